"""Damage of a store that its own tests do not think of: each is told in a sentence, and all of it at once."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from portwright.data import Field
from portwright.data.store import Store, check_store
from portwright.data.store_writer import StoreWriter
from portwright.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    writer = StoreWriter(tmp_path, [Field("id", "int64"), Field("x", "float32", (7,))], made_by={})
    for number in range(4):
        ids = np.arange(10 * number, 10 * number + 10)
        writer.write_shard(number, {"id": ids, "x": np.ones((10, 7), np.float32) * ids[:, None]})
    writer.finish(4)
    return tmp_path


def test_check_lists_every_shard_that_is_damaged(folder: Path) -> None:
    (folder / "shard-00000.bin").unlink()
    cut, flipped = folder / "shard-00001.bin", folder / "shard-00003.bin"
    cut.write_bytes(cut.read_bytes()[:-1])
    flipped.write_bytes(b"\x01" + flipped.read_bytes()[1:])
    problems = check_store(folder).problems
    assert "shard-00000.bin is missing" in problems[0]
    assert "shard-00001.bin is truncated" in problems[1]
    assert "shard-00003.bin: records 0 to 9 are damaged in 'id'" in problems[2]
    assert len(problems) == 3


def edit(folder: Path, *path: Any, value: Any) -> None:
    """A change by hand, with the checksum mended too."""
    document = json.loads((folder / "manifest.json").read_text())
    del document["crc32"]
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    (folder / "manifest.json").write_text(json.dumps({**document, "crc32": zlib.crc32(canonical)}))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("header", "fields", 1, "shape"), [10**30]),
        (("header", "fields", 1, "shape"), [2**40, 2**40]),
        (("header", "block_records"), 10**40),
        (("shards", 0, "file"), "a\0b"),
        (("shards", 0, "file"), "\ud800"),
        (("shards", 0, "records"), 10**30),
        (("shards", 0, "bytes"), -1),
    ],
)
def test_numbers_and_names_beyond_all_bounds_are_damage(
    folder: Path, path: tuple[Any, ...], value: Any
) -> None:
    edit(folder, *path, value=value)
    with pytest.raises(UserError, match=r"manifest.json is damaged: "):
        Store(folder)


@pytest.mark.parametrize(
    "text", ['{"header": ' + "9" * 5000 + "}", "[" * 100_000], ids=["digits of a number", "depth"]
)
def test_json_that_python_cannot_hold_is_damage(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(text)
    with pytest.raises(UserError, match=r"manifest.json is damaged: it is not UTF-8 or not JSON"):
        Store(folder)


def test_a_manifest_that_links_to_itself_is_told(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").symlink_to("manifest.json")
    with pytest.raises(UserError, match=r"cannot read .*manifest.json: Too many levels of symbolic links"):
        Store(folder)
