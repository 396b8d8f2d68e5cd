"""The packed store: what is written is read, by any gather, and damage is named by file and record."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stores import write_store

from portwright.data import Field, Store, StoreDataset, StoreWriter
from portwright.data.manifest import DTYPES
from portwright.data.store import check_store
from portwright.errors import UserError


def columns(num_records: int) -> dict[str, np.ndarray[Any, Any]]:
    generator = np.random.default_rng(num_records)
    return {
        "input_ids": generator.integers(0, 30_000, (num_records, 9), dtype=np.uint16),
        "length": np.arange(num_records, dtype=np.int32),
        "weights": generator.random((num_records, 2, 3), dtype=np.float32),
    }


@pytest.fixture
def store_folder(tmp_path: Path) -> Path:
    write_store(tmp_path / "store", columns(1000), made_by={"test": 1}, shard_records=300)
    return tmp_path / "store"


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(num_records=st.integers(0, 40), shard_records=st.integers(1, 50), seed=st.integers(0, 99))
def test_every_record_comes_back(tmp_path: Path, num_records: int, shard_records: int, seed: int) -> None:
    folder = tmp_path / f"{num_records}-{shard_records}"
    shutil.rmtree(folder, ignore_errors=True)
    arrays = columns(num_records)
    write_store(folder, arrays, made_by={}, shard_records=shard_records)
    store = Store(folder)
    assert len(store) == num_records
    some = np.random.default_rng(seed).integers(0, max(num_records, 1), 25 if num_records else 0)
    for indices in (np.arange(num_records), some, some[:1], some[:0]):
        gathered = store.gather(indices)
        assert list(gathered) == list(arrays)
        for name, array in arrays.items():
            assert gathered[name].dtype == array.dtype
            np.testing.assert_array_equal(gathered[name], array[indices])


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back(tmp_path: Path, dtype: str) -> None:
    array = np.arange(12).reshape(4, 3).astype(dtype)
    write_store(tmp_path, {"x": array}, made_by={})
    gathered = Store(tmp_path).gather(np.array([3, 0, 0]))["x"]
    assert gathered.dtype == array.dtype
    np.testing.assert_array_equal(gathered, array[[3, 0, 0]])


def test_bytes_are_little_endian(tmp_path: Path) -> None:
    write_store(tmp_path, {"x": np.array([[1, 258]], dtype=">u2")}, made_by={})
    assert (tmp_path / "shard-00000.bin").read_bytes()[:4] == bytes([1, 0, 2, 1])


def test_fields_can_be_chosen(store_folder: Path) -> None:
    assert list(Store(store_folder, ["length"]).gather(np.array([5]))) == ["length"]
    with pytest.raises(UserError, match=r"no field 'lenght'.*Did you mean 'length'"):
        Store(store_folder, ["lenght"])


def test_a_store_travels_to_another_process(store_folder: Path) -> None:
    data = pickle.loads(pickle.dumps(StoreDataset(store_folder, fields=["length"])))
    assert data[999]["length"] == 999


def damage(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(bytes(data))


def test_a_damaged_block_is_named_when_it_is_touched(store_folder: Path) -> None:
    shard = store_folder / "shard-00002.bin"
    damage(shard, 18 * 7)  # input_ids of its record 7, which is record 607
    store = Store(store_folder)
    store.gather(np.arange(600))  # not touched yet
    with pytest.raises(
        UserError, match=r"shard-00002.bin: records 0 to 299 are damaged in 'input_ids'"
    ) as caught:
        store.gather(np.array([3, 610]))
    assert "portwright data check" in caught.value.cure
    with pytest.raises(UserError, match="damaged"):  # and again: what was found bad is never taken for seen
        store.gather(np.array([610]))
    assert len(Store(store_folder, verify="off").gather(np.array([610]))["input_ids"]) == 1
    report = check_store(store_folder)
    assert len(report.problems) == 1
    assert "shard-00002.bin: records 0 to 299" in report.problems[0]


def test_only_blocks_that_are_touched_are_looked_at(tmp_path: Path) -> None:
    write_store(tmp_path, {"x": np.zeros((1000, 4096), dtype=np.int32)}, made_by={})  # 4 records a block
    damage(tmp_path / "shard-00000.bin", 500 * 16384)
    store = Store(tmp_path)
    store.gather(np.concatenate([np.arange(500), np.arange(504, 1000)]))
    with pytest.raises(UserError, match="records 500 to 503 are damaged"):
        store.gather(np.array([503]))


def test_workers_share_what_was_looked_at(store_folder: Path) -> None:
    store = Store(store_folder)
    context = multiprocessing.get_context("fork")
    process = context.Process(target=store.gather, args=(np.arange(1000),))
    process.start()
    process.join()
    assert store._verified.sum() == 4


@pytest.mark.parametrize(
    ("size", "complaint"),
    [
        (0, r"is truncated: 0 of \d+ bytes, it ends in record 0 of 'input_ids'"),
        (18 * 100 + 1, "it ends in record 100 of 'input_ids'"),
        (5440 + 40, "it ends in record 10 of 'length'"),
        (-1, "it ends in its checksums"),
    ],
)
def test_a_truncated_shard_is_named(store_folder: Path, size: int, complaint: str) -> None:
    shard = store_folder / "shard-00001.bin"
    os.truncate(shard, size if size >= 0 else shard.stat().st_size + size)
    with pytest.raises(UserError, match=rf"shard-00001.bin .*{complaint}"):
        Store(store_folder)


def test_a_shard_that_grew_or_is_gone_or_lost_its_checksums(store_folder: Path) -> None:
    shard = store_folder / "shard-00001.bin"
    whole = shard.read_bytes()
    shard.write_bytes(whole + b"x")
    with pytest.raises(UserError, match="instead of"):
        Store(store_folder)
    shard.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(UserError, match=r"shard-00001.bin: the checksums at its end are damaged"):
        Store(store_folder)
    shard.unlink()
    with pytest.raises(UserError, match=r"shard-00001.bin is missing, with 300 records"):
        Store(store_folder)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda text: text[: len(text) // 2], "not JSON"),
        (lambda text: text.replace('"records": 300', '"records": 299', 1), "checksum does not match"),
        (lambda text: "[]", "not the manifest of a Portwright store"),
        (lambda text: "{}", "not the manifest of a Portwright store"),
        (lambda text: text.replace('"version": 1', '"version": 9'), "version 9"),
        (lambda text: "\udcff", "not UTF-8"),
        (lambda text: "", "not JSON"),
    ],
)
def test_a_damaged_manifest_is_named(store_folder: Path, change: Any, complaint: str) -> None:
    path = store_folder / "manifest.json"
    path.write_bytes(change(path.read_text()).encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=rf"manifest.json .*{complaint}"):
        Store(store_folder)


def resealed(folder: Path, **header: Any) -> None:
    import zlib

    document = json.loads((folder / "manifest.json").read_text())
    del document["crc32"]
    document["header"].update(header)
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    (folder / "manifest.json").write_text(json.dumps({**document, "crc32": zlib.crc32(canonical)}))


@pytest.mark.parametrize(
    "header",
    [
        {"fields": [{"name": "x", "dtype": "object", "shape": []}]},
        {"fields": []},
        {"fields": [{"name": "x"}]},
        {"block_records": 0},
        {"surplus": 1},
    ],
)
def test_a_manifest_of_a_bad_maker_is_refused(store_folder: Path, header: dict[str, Any]) -> None:
    resealed(store_folder, **header)
    with pytest.raises(UserError, match=r"manifest.json is damaged"):
        Store(store_folder)


def test_no_store_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no folder"):
        Store(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"holds no manifest.json"):
        Store(tmp_path)
    writer = StoreWriter(tmp_path, [Field("x", "int32")], made_by={})
    writer.write_shard(0, {"x": [1, 2]})
    with pytest.raises(UserError, match="was not finished"):
        Store(tmp_path)


def test_ids_beyond_the_vocabulary_are_named(tmp_path: Path) -> None:
    ids = np.zeros((700, 4), dtype=np.uint16)
    ids[650, 2] = 1234
    write_store(tmp_path, {"input_ids": ids}, made_by={}, tokenizer={"vocab_size": 2000}, shard_records=300)
    StoreDataset(tmp_path, vocab_size=1235)
    with pytest.raises(UserError, match=r"shard-00002.bin: record 50 has the id 1234") as caught:
        StoreDataset(tmp_path, vocab_size=1234)
    assert "Set vocab_size to 2000" in caught.value.cure
    assert max(shard.highest["input_ids"] for shard in Store(tmp_path).manifest.shards) == 1234
    with pytest.raises(UserError, match="no field 'ids'"):
        StoreDataset(tmp_path, vocab_size=9, ids_field="ids")


def test_the_ids_of_prepared_text_are_found_by_themselves(tmp_path: Path) -> None:
    write_store(tmp_path, {"tokens": np.full((3, 2), 7, dtype=np.uint16)}, made_by={})
    StoreDataset(tmp_path, vocab_size=8)
    with pytest.raises(UserError, match="has the id 7"):
        StoreDataset(tmp_path, vocab_size=7)


def test_ids_have_to_be_whole_numbers(tmp_path: Path) -> None:
    write_store(tmp_path, {"input_ids": np.zeros((3, 2), dtype=np.float32)}, made_by={})
    with pytest.raises(UserError, match="float32, and ids are whole numbers"):
        StoreDataset(tmp_path, vocab_size=10)
    write_store(tmp_path / "b", {"input_ids": np.full((3, 2), -1, dtype=np.int16)}, made_by={})
    with pytest.raises(UserError, match="record 0 has the id -1"):
        StoreDataset(tmp_path / "b", vocab_size=10)


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({}, "given the fields none"),
        ({"x": [[1, 2]], "y": [1]}, "given the fields x, y"),
        ({"x": [1, 2]}, "records have shape"),
        ({"x": 5}, "records have shape"),
        ({"x": [[1.5, 2]]}, "float64 given, uint16 declared"),
        ({"x": [[1, 2], [3, 70000]]}, "record 1 holds 70000, which uint16 cannot"),
        ({"x": [[1, 2], [-3, 7]]}, "record 1 holds -3, which uint16 cannot"),
        ({"x": [["a", "b"]]}, "given, uint16 declared"),
    ],
)
def test_what_does_not_fit_is_not_written(tmp_path: Path, arrays: Any, complaint: str) -> None:
    writer = StoreWriter(tmp_path, [Field("x", "uint16", (2,))], made_by={})
    with pytest.raises(UserError, match=complaint):
        writer.write_shard(0, arrays)
    assert list(tmp_path.iterdir()) == []


def test_fields_of_different_lengths_are_refused(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, [Field("x", "int8"), Field("y", "int8")], made_by={})
    with pytest.raises(UserError, match="x: 2, y: 3"):
        writer.write_shard(0, {"x": [1, 2], "y": [1, 2, 3]})


def test_a_store_is_finished_only_whole_and_never_mixed(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, [Field("x", "int32")], made_by={"length": 128})
    writer.write_shard(1, {"x": [3]})
    with pytest.raises(UserError, match=r"lacks shard-00000.bin of 2"):
        writer.finish(2)
    writer.write_shard(0, {"x": [1, 2]})
    writer.write_shard(2, {"x": [9]})
    assert writer.finish(2).num_records == 3
    assert not (tmp_path / "shard-00002.bin").exists()
    assert Store(tmp_path).gather(np.arange(3))["x"].tolist() == [1, 2, 3]
    other = StoreWriter(tmp_path, [Field("x", "int32")], made_by={"length": 64})
    with pytest.raises(UserError, match="other data or other options"):
        other.has_shard(0)


def test_a_lost_shard_alone_is_written_again(store_folder: Path) -> None:
    writer = StoreWriter(
        store_folder,
        [Field("input_ids", "uint16", (9,)), Field("length", "int32"), Field("weights", "float32", (2, 3))],
        made_by={"test": 1},
    )
    assert [writer.has_shard(number) for number in range(5)] == [True, True, True, True, False]
    os.truncate(store_folder / "shard-00001.bin", 10)
    (store_folder / "shard-00003.bin").unlink()
    (store_folder / "shard-00002.json").write_text("{")
    assert [writer.has_shard(number) for number in range(4)] == [True, False, False, False]
    for number in (1, 2, 3):
        writer.write_shard(
            number, {k: v[300 * number : 300 * number + 300] for k, v in columns(1000).items()}
        )
    writer.finish(4)
    assert check_store(store_folder).problems == ()


WRITER = """
import sys, time, numpy as np
from portwright.data import Field, StoreWriter
writer = StoreWriter(sys.argv[1], [Field("x", "int64", (1000,))], made_by={})
for number in range(40):
    if not writer.has_shard(number):
        writer.write_shard(number, {"x": np.full((100, 1000), number)})
    print(number, flush=True)
time.sleep(float(sys.argv[2]))
writer.finish(40)
"""


def test_a_writer_that_is_killed_goes_on(tmp_path: Path) -> None:
    for delay in (0.0, 0.004, 0.011):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), "60"], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        for _ in range(3):
            process.stdout.readline()
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert not (tmp_path / "manifest.json").exists()
    subprocess.run([sys.executable, "-c", WRITER, str(tmp_path), "0"], check=True, stdout=subprocess.DEVNULL)
    assert check_store(tmp_path).problems == ()
    assert Store(tmp_path).gather(np.arange(0, 4000, 100))["x"][:, 5].tolist() == list(range(40))


def test_a_shard_name_cannot_leave_the_folder(store_folder: Path) -> None:
    document = json.loads((store_folder / "manifest.json").read_text())
    document["shards"][0]["file"] = "../shard-00000.bin"
    (store_folder / "manifest.json").write_text(json.dumps(document))
    resealed(store_folder)
    with pytest.raises(UserError, match="no plain file name"):
        Store(store_folder)


def test_shards_of_any_sizes_are_gathered_from(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, [Field("x", "int64", (2,))], made_by={})
    sizes = [3, 0, 50, 1, 7]
    rows = np.arange(2 * sum(sizes)).reshape(-1, 2)
    start = 0
    for number, size in enumerate(sizes):
        writer.write_shard(number, {"x": rows[start : start + size]})
        start += size
    writer.finish(len(sizes))
    indices = np.random.default_rng(1).integers(0, len(rows), 200)
    np.testing.assert_array_equal(Store(tmp_path).gather(indices)["x"], rows[indices])
