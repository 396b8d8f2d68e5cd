"""A store that was finished and then lost a part: the command that made it makes that part again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from portwright.data.store import check_store
from portwright.errors import UserError
from portwright.text import Objective, shipped_documents
from portwright.text.prepare import PrepareOptions, prepare

OPTIONS = PrepareOptions(Objective("causal", 32), vocab_size=400, unit_bytes=4000, skip_bad=True)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "a.jsonl"
    lines = [json.dumps({"text": text}) for text in shipped_documents()[:20]]
    path.write_text("\n".join([*lines, '{"text": 3}', ""]), encoding="utf-8")
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


LOSSES: dict[str, Callable[[Path], object]] = {
    "shard": lambda folder: (folder / "shard-00001.bin").unlink(),
    "truncated shard": lambda folder: _cut(folder / "shard-00000.bin"),
    "last shard": lambda folder: sorted(folder.glob("shard-*.bin"))[-1].unlink(),
    "tokenizer": lambda folder: (folder / "tokenizer.json").unlink(),
    "truncated manifest": lambda folder: _cut(folder / "manifest.json"),
    "empty manifest": lambda folder: (folder / "manifest.json").write_text(""),
    "manifest": lambda folder: (folder / "manifest.json").write_text(
        (folder / "manifest.json").read_text().replace('"records": ', '"records": 1', 1)
    ),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_what_was_lost_is_made_again(corpus: Path, tmp_path: Path, loss: str) -> None:
    prepare([corpus], tmp_path / "store", OPTIONS)
    before = contents(tmp_path / "store")
    LOSSES[loss](tmp_path / "store")
    assert contents(tmp_path / "store") != before
    made = prepare([corpus], tmp_path / "store", OPTIONS)
    assert contents(tmp_path / "store") == before
    assert made.num_bad == 1
    assert check_store(tmp_path / "store").problems == ()


def test_shards_of_other_options_do_not_come_in_under_a_damaged_manifest(
    corpus: Path, tmp_path: Path
) -> None:
    prepare([corpus], tmp_path, OPTIONS)
    (tmp_path / "manifest.json").write_text("{")
    other = PrepareOptions(Objective("causal", 16), vocab_size=400, unit_bytes=4000, skip_bad=True)
    with pytest.raises(UserError, match=r"shard-00000.json is a shard of other data or other options"):
        prepare([corpus], tmp_path, other)
    assert prepare([corpus], tmp_path, other, force=True).num_rows > 0
    assert check_store(tmp_path).problems == ()


def test_a_manifest_of_something_else_is_left_alone(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"name": "an app"}')
    for force in (False, True):
        with pytest.raises(UserError, match=r"is not the manifest of a Portwright store"):
            prepare([corpus], tmp_path, OPTIONS, force=force)
    assert (tmp_path / "manifest.json").read_text() == '{"name": "an app"}'
