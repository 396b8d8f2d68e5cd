from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from portwright.cli import app
from portwright.data.store import Store
from portwright.errors import UserError
from portwright.text import Objective, shipped_documents, train_tokenizer
from portwright.text.prepare import Prepared, PrepareOptions, prepare
from portwright.text.tokenizer_files import load_tokenizer

TEXTS = shipped_documents()[:60]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "a.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in TEXTS[:40]), encoding="utf-8"
    )
    for number, text in enumerate(TEXTS[40:]):
        (folder / f"b{number:02d}.txt").write_text(text, encoding="utf-8")
    return folder


def options(name: str = "causal", *, workers: int = 1, **more: object) -> PrepareOptions:
    objective = {key: more.pop(key) for key in list(more) if key in Objective.__dataclass_fields__}
    length = objective.pop("sequence_length", 32)
    settings = {"vocab_size": 600, "num_sentinels": 20, "unit_bytes": 6000, "workers": workers, **more}
    return PrepareOptions(Objective(name, length, **objective), **settings)  # type: ignore[arg-type]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def undisturbed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare([corpus], tmp_path_factory.mktemp("undisturbed") / "store", options())


def test_the_store_holds_every_token_once(corpus: Path, undisturbed: Prepared) -> None:
    store = Store(undisturbed.folder)
    rows = store.gather(np.arange(len(store)))
    tokenizer = load_tokenizer(undisturbed.folder)
    # A shard begins anew, with a row that is padded at its end.
    found: list[int] = []
    for tokens, length in zip(rows["tokens"], rows["length"], strict=True):
        found += tokens[: length if length <= 32 else 32].tolist()
    in_order = [*TEXTS[:40], *TEXTS[40:]]
    wanted = [number for text in in_order for number in [*tokenizer.encode(text).tolist(), tokenizer.eos_id]]
    joined = "".join(tokenizer.decode([number]) for number in wanted if number != tokenizer.eos_id)
    assert "".join(tokenizer.decode([number]) for number in found if number != tokenizer.eos_id) == joined
    assert found.count(tokenizer.eos_id) == len(TEXTS)
    assert undisturbed.num_shards > 10
    assert store.tokenizer is not None
    assert store.tokenizer["fingerprint"] == tokenizer.fingerprint


@pytest.mark.parametrize("name", ["masked", "pairs", "spans"])
def test_other_objectives(corpus: Path, tmp_path: Path, name: str) -> None:
    made = prepare([corpus], tmp_path / "store", options(name, split="paragraph"))
    store = Store(made.folder)
    rows = store.gather(np.arange(len(store)))
    assert made.num_rows == len(store) > 100
    assert rows["length"].min() >= 1
    if name == "pairs":
        assert 0.4 < rows["next_sentence_label"].mean() < 0.6


def test_static_masks_differ_from_turn_to_turn(corpus: Path, tmp_path: Path) -> None:
    plain = prepare([corpus], tmp_path / "plain", options("masked", unit_bytes=10**6))
    made = prepare(
        [corpus],
        tmp_path / "store",
        options("masked", unit_bytes=10**6, static=True, dup_factor=3, max_predictions=6, seed=5),
    )
    assert made.num_rows == 3 * plain.num_rows
    store, clean = Store(made.folder), Store(plain.folder)
    rows = store.gather(np.arange(len(store)))
    tokens = clean.gather(np.arange(len(clean)))["tokens"].astype(int)
    for turn in range(3):
        part = {key: value[turn * len(clean) : (turn + 1) * len(clean)] for key, value in rows.items()}
        counted = np.arange(6) < part["num_predictions"][:, None]
        true = np.take_along_axis(tokens, part["masked_lm_positions"].astype(int), axis=1)
        assert (true[counted] == part["masked_lm_ids"][counted]).all()
    turns = rows["masked_lm_positions"].reshape(3, len(clean), 6)
    assert (turns[0] != turns[1]).any()
    assert (turns[1] != turns[2]).any()


def test_any_number_of_processes_makes_the_same_bytes(
    corpus: Path, undisturbed: Prepared, tmp_path: Path
) -> None:
    made = prepare([corpus], tmp_path / "store", options(workers=2))
    assert contents(made.folder) == contents(undisturbed.folder)
    assert made.num_tokens == undisturbed.num_tokens


def test_killed_in_the_middle_it_goes_on(corpus: Path, undisturbed: Prepared, tmp_path: Path) -> None:
    out = tmp_path / "store"
    command = [sys.executable, "-m", "portwright", "data", "prepare", str(corpus), "--out", str(out)]
    command += [
        "--objective",
        "causal",
        "--sequence-length",
        "32",
        "--vocab-size",
        "600",
        "--extra-ids",
        "20",
    ]
    command += ["--shard-text", "6000", "--workers", "2"]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    while process.poll() is None and len(list(out.glob("shard-*.json"))) < 2:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.returncode == -signal.SIGKILL, "it was done before it could be killed"
    while _group_lives(process.pid):  # the workers leave by themselves; the test's timeout says if not
        time.sleep(0.05)
    num_before = len(list(out.glob("shard-*.json")))
    assert num_before >= 2
    assert not (out / "manifest.json").exists()
    with pytest.raises(UserError, match="was not finished"):
        Store(out)
    made = prepare([corpus], out, options())
    assert made.num_kept == num_before
    assert contents(out) == contents(undisturbed.folder)


def _group_lives(group: int) -> bool:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                return True
    return False


def test_missing_shards_alone_are_made_again(corpus: Path, undisturbed: Prepared, tmp_path: Path) -> None:
    out = tmp_path / "store"
    prepare([corpus], out, options())
    (out / "manifest.json").unlink()
    (out / "shard-00003.bin").write_bytes(b"cut off")
    (out / "shard-00005.json").unlink()
    (out / "prepare.json").write_text(
        json.dumps(json.loads((undisturbed.folder / "manifest.json").read_text())["header"]["made_by"])
    )
    made = prepare([corpus], out, options())
    assert made.num_kept == made.num_shards - 2
    assert contents(out) == contents(undisturbed.folder)


def test_done_is_said_and_other_options_are_refused(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    prepare([corpus], out, options())
    before = contents(out)
    again = prepare([corpus], out, options(workers=3))
    assert again.was_done
    assert contents(out) == before
    with pytest.raises(UserError, match=r"objective\.sequence_length was 32 and is 16"):
        prepare([corpus], out, options(sequence_length=16))
    with pytest.raises(UserError, match=r"tokenizer\.trained was"):
        prepare([corpus], out, options(vocab_size=700))
    with pytest.raises(UserError, match=r"other files or contents: b00\.txt"):
        prepare([corpus / "a.jsonl"], out, options())
    assert contents(out) == before
    made = prepare([corpus / "a.jsonl"], out, options(sequence_length=16), force=True)
    assert not made.was_done
    assert contents(out) == contents(
        prepare([corpus / "a.jsonl"], tmp_path / "other", options(sequence_length=16)).folder
    )


def test_a_folder_with_something_else_is_left_alone(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match=r"is not empty: it holds thesis\.tex"):
        prepare([corpus], tmp_path, options(), force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def _gpt_tokenizer(folder: Path) -> Path:
    file = folder / "gpt.json"
    file.write_text(train_tokenizer("gpt", TEXTS[:5], 400).to_json(), encoding="utf-8")
    return file


def test_options_may_change_while_nothing_is_made(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="vocab_size is 20"):
        prepare([corpus], tmp_path / "store", options(vocab_size=20))
    assert prepare([corpus], tmp_path / "store", options()).num_kept == 0


def test_bad_records(corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    good = json.dumps({"text": "a good record, and long enough to fill some rows. " * 20})
    lines = [good, "{", good, '{"text": ""}', good, '{"other": 1}']
    (folder / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(UserError, match=r"a\.jsonl', line 2: not JSON .*--skip-bad"):
        prepare([folder], tmp_path / "one", options(vocab_size=300))
    # What was begun without --skip-bad goes on with it, and its end is no other.
    first = options(vocab_size=300, unit_bytes=500, tokenizer=str(_gpt_tokenizer(tmp_path)))
    with pytest.raises(UserError, match="line 2"):
        prepare([folder], tmp_path / "two", first)
    chosen = dataclasses.replace(first, skip_bad=True)
    assert prepare([folder], tmp_path / "two", chosen).num_kept == 1
    assert contents(tmp_path / "two") == contents(prepare([folder], tmp_path / "three", chosen).folder)
    with pytest.raises(UserError, match="begun with --skip-bad, and 3 bad records"):
        prepare([folder], tmp_path / "two", first)

    for workers in (1, 2):
        made = prepare(
            [folder],
            tmp_path / f"skip{workers}",
            options(vocab_size=300, skip_bad=True, unit_bytes=500, workers=workers),
        )
        assert made.num_bad == 3
        told = json.loads((made.folder / "skipped.json").read_text(encoding="utf-8"))
        assert told["count"] == 3
        assert [each["place"] for each in told["records"]] == ["line 2", "line 4", "line 6"]
        again = prepare([folder], made.folder, options(vocab_size=300, skip_bad=True, unit_bytes=500))
        assert (again.was_done, again.num_bad) == (True, 3)
    assert contents(tmp_path / "skip1") == contents(tmp_path / "skip2")


def test_an_error_of_a_worker_is_its_own(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n{"text": 1}\n', encoding="utf-8")
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(train_tokenizer("gpt", TEXTS[:5], 400).to_json(), encoding="utf-8")
    with pytest.raises(UserError, match=r"a\.jsonl', line 2: 'text' is 1, not text"):
        prepare([tmp_path / "a.jsonl"], tmp_path / "out", options(workers=2, tokenizer=str(tokenizer)))


def test_nothing_to_learn_from_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{\n{\n", encoding="utf-8")
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(train_tokenizer("gpt", TEXTS[:5], 400).to_json(), encoding="utf-8")
    with pytest.raises(UserError, match="make no row: 2 records are bad"):
        prepare([tmp_path / "a.jsonl"], tmp_path / "out", options(tokenizer=str(tokenizer), skip_bad=True))
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_tokenizer_without_the_special_tokens_is_refused(corpus: Path, tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(train_tokenizer("gpt", TEXTS[:5], 400).to_json(), encoding="utf-8")
    with pytest.raises(UserError, match="has no token for 'pad'"):
        prepare([corpus], tmp_path / "out", options("masked", tokenizer=str(tokenizer)))
    t5 = tmp_path / "t5.json"
    t5.write_text(train_tokenizer("t5", TEXTS[:5], 400, num_sentinels=1).to_json(), encoding="utf-8")
    with pytest.raises(UserError, match=r"has 1 sentinels .* have 5 spans"):
        prepare([corpus], tmp_path / "out2", options("spans", sequence_length=90, tokenizer=str(t5)))


# Python 3.11's pool may stumble in its own thread when a worker dies.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_is_killed_is_told(corpus: Path, tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(train_tokenizer("gpt", TEXTS[:5], 400).to_json(), encoding="utf-8")
    killed: list[int] = []

    def kill_one(what: str, done: int, total: int) -> None:
        children = multiprocessing.active_children()
        if what == "preparing" and children and children[0].pid and not killed:
            killed.append(children[0].pid)
            os.kill(children[0].pid, signal.SIGKILL)

    chosen = options(workers=2, tokenizer=str(tokenizer))
    with pytest.raises(UserError, match=r"a worker process died.*Run the same command again"):
        prepare([corpus], tmp_path / "out", chosen, on_progress=kill_one)
    assert killed
    made = prepare([corpus], tmp_path / "out", options(tokenizer=str(tokenizer)))
    assert contents(made.folder) == contents(
        prepare([corpus], tmp_path / "other", options(tokenizer=str(tokenizer))).folder
    )


class EndingPool(ProcessPoolExecutor):
    """Loses its first worker while the second is begun: the pipes are closed by then."""

    def _spawn_process(self) -> None:
        if self._processes:
            process = next(iter(self._processes.values()))
            process.kill()
            process.join()
            self._broken = True
            raise OSError("handle is closed")
        super()._spawn_process()  # type: ignore[misc]


class ForgetfulPool(ProcessPoolExecutor):
    """Takes what nobody will work on, as one does that ended just then."""

    def submit(self, *arguments: Any, **options: Any) -> Future[Any]:
        self._broken = True
        return Future()


@pytest.mark.parametrize("pool", [EndingPool, ForgetfulPool])
def test_a_pool_that_ends_while_work_is_handed_over(
    pool: type[ProcessPoolExecutor], corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portwright.text.prepare.ProcessPoolExecutor", pool)
    with pytest.raises(UserError, match=r"a worker process died.*Run the same command again"):
        prepare([corpus], tmp_path / "out", options(workers=2))


def test_one_process_at_a_time(corpus: Path, tmp_path: Path) -> None:
    import fcntl

    (tmp_path / "out").mkdir()
    descriptor = os.open(tmp_path / "out", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(UserError, match="another process prepares"):
        prepare([corpus], tmp_path / "out", options())
    os.close(descriptor)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--objective", "causl"], "Did you mean 'causal'"),
        (["--sequence-length", "0"], "sequence_length is 0"),
        (["--split", "word"], "split is 'word'"),
        (["--tokenizer", "absent.json"], "'absent.json' does not exist"),
        (["--tokenizer-kind", "bort"], "Did you mean 'bert'"),
        (["--workers", "0"], "workers is 0"),
        (["--static"], "masks nothing"),
        (["--shard-text", "much"], "is not a size"),
    ],
)
def test_bad_options(corpus: Path, tmp_path: Path, arguments: list[str], says: str) -> None:
    base = [
        "data",
        "prepare",
        str(corpus),
        "--out",
        str(tmp_path / "out"),
        "--objective",
        "causal",
        "--sequence-length",
        "8",
    ]
    result = CliRunner().invoke(app, [*base, *arguments])
    assert isinstance(result.exception, UserError)
    assert says in str(result.exception)


def test_the_command_tells(corpus: Path, tmp_path: Path) -> None:
    base = ["data", "prepare", str(corpus), "--out", str(tmp_path / "out"), "--objective", "masked"]
    base += [
        "--sequence-length",
        "32",
        "--vocab-size",
        "600",
        "--tokenizer-kind",
        "roberta",
        "--workers",
        "1",
    ]
    result = CliRunner().invoke(app, base)
    assert result.exit_code == 0
    assert "samples in 1 shard;" in result.stdout
    details = json.loads(CliRunner().invoke(app, [*base, "--json"]).stdout)
    assert details["was_done"] is True
    assert details["tokenizer"]["special_ids"]["pad"] == 1


def test_preparing_and_its_processes_need_no_torch() -> None:
    code = (
        "import sys, portwright.text.prepare, portwright.text.datasets\n"
        "assert 'torch' not in sys.modules and 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
