"""Records in files of every format: what is in them comes out, in memory, mapped or by chunks, and errors name the place."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from loader_cases import make
from torch.utils.data import DataLoader

from portwright.data import FileDataset, Store, files, hdf5
from portwright.data.files import open_files, pack_files
from portwright.errors import UserError

NUM = 50


def columns() -> dict[str, np.ndarray[Any, Any]]:
    ids = np.arange(NUM * 6, dtype=np.int32).reshape(NUM, 6)
    return {
        "input_ids": ids,
        "label": np.arange(NUM, dtype=np.int32),
        "score": np.arange(NUM, dtype=np.float32) / 4,
    }


def write_hdf5(path: Path, arrays: dict[str, Any], **options: Any) -> None:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, **options)


def write(path: Path, arrays: dict[str, Any]) -> Path:
    rows = [
        {name: array[row].tolist() for name, array in arrays.items()} for row in range(len(arrays["label"]))
    ]
    if path.suffix in (".h5", ".hdf5"):
        write_hdf5(path, arrays)
    elif path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".csv":
        lines = [",".join(arrays)] + [
            ",".join(f'"{json.dumps(cell)}"' for cell in row.values()) for row in rows
        ]
        path.write_text("\n".join(lines) + "\n")
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

        table = pyarrow.table({name: [row[name] for row in rows] for name in arrays})
        schema = {
            "input_ids": pyarrow.list_(pyarrow.int32()),
            "label": pyarrow.int32(),
            "score": pyarrow.float32(),
        }
        table = table.cast(pyarrow.schema([(name, schema[name]) for name in arrays]))
        if path.suffix == ".parquet":
            parquet.write_table(table, path, row_group_size=7)
        elif path.suffix == ".arrow":
            with pyarrow.ipc.new_file(str(path), table.schema) as file:
                file.write_table(table, max_chunksize=7)
        else:
            with pyarrow.ipc.new_stream(str(path), table.schema) as file:
                file.write_table(table, max_chunksize=7)
    return path


FORMATS = ["a.h5", "a.npz", "a.csv", "a.jsonl", "a.parquet", "a.arrow", "a.feather"]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_records(tmp_path: Path, name: str) -> None:
    data = FileDataset(write(tmp_path / name, columns()))
    indices = np.array([3, 49, 0, 3])
    gathered = data.gather(indices)
    assert len(data) == NUM
    for field, array in columns().items():
        assert gathered[field].dtype == array.dtype, field
        np.testing.assert_array_equal(gathered[field], array[indices])
    some = FileDataset(tmp_path / name, fields=["label"])
    assert list(some.gather(indices)) == ["label"]
    with pytest.raises(UserError, match=r"no (field|data set) 'lable'.*Did you mean 'label'"):
        FileDataset(tmp_path / name, fields=["lable"])


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_that_is_cut_off_is_named(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, columns())
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2 + 1])
    with pytest.raises(UserError, match=rf"{name}.*(cannot be|line \d+)"):
        FileDataset(path)
    path.write_bytes(b"")
    with pytest.raises(UserError, match=name):
        FileDataset(path)


def test_npy_files_are_fields_of_one_record(tmp_path: Path) -> None:
    for name, array in columns().items():
        np.save(tmp_path / f"{name}.npy", array)
    data = FileDataset(tmp_path)
    assert sorted(data.gather(np.array([1]))) == ["input_ids", "label", "score"]
    np.save(tmp_path / "short.npy", np.zeros(3))
    with pytest.raises(UserError, match="short: 3"):
        FileDataset(tmp_path)
    np.save(tmp_path / "short.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(UserError, match=r"short.npy cannot be read as npy"):
        FileDataset(tmp_path)
    (tmp_path / "x.csv").write_text("a\n1\n")
    with pytest.raises(UserError, match="lie among others"):
        FileDataset(tmp_path)


STORAGE: list[dict[str, Any]] = [
    {},
    {"chunks": True},
    {"chunks": True, "compression": "gzip"},
    {"chunks": True, "compression": "lzf", "shuffle": True},
]


@pytest.mark.parametrize("most_bytes", [0, 2 << 30])
@pytest.mark.parametrize("options", STORAGE)
def test_hdf5_however_it_is_stored(
    tmp_path: Path, options: dict[str, Any], most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdf5, "MOST_BYTES_IN_MEMORY", most_bytes)
    write_hdf5(tmp_path / "a.h5", columns(), **options)
    data = FileDataset(tmp_path / "a.h5")
    (part,) = data.columns._parts
    assert part.is_slow == (bool(options) and most_bytes == 0)
    indices = np.random.default_rng(0).integers(0, NUM, 200)
    for field, array in columns().items():
        np.testing.assert_array_equal(data.gather(indices)[field], array[indices])
    batches = list(make(DataLoader(data, batch_size=8, shuffle=True, num_workers=2)))
    assert sorted(int(label) for batch in batches for label in batch["label"]) == list(range(NUM))
    assert pickle.loads(pickle.dumps(part)).gather(np.array([7]))["label"] == [7]


def test_a_contiguous_data_set_is_mapped(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "a.h5", columns())
    (part,) = open_files([tmp_path / "a.h5"])._parts
    base = part._mapped["input_ids"]
    while not isinstance(base, np.memmap):
        base = base.base
        assert base is not None


def test_a_handle_is_opened_in_each_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5, "MOST_BYTES_IN_MEMORY", 0)
    write_hdf5(tmp_path / "a.h5", columns(), chunks=True)
    data = FileDataset(tmp_path / "a.h5")
    data.gather(np.arange(NUM))  # this process has a handle now
    with multiprocessing.get_context("fork").Pool(2) as pool:
        found = pool.map(data.gather, [np.array([row]) for row in range(NUM)])
    assert [int(each["label"][0]) for each in found] == list(range(NUM))


@pytest.mark.parametrize("options", STORAGE)
def test_the_zoos_layout(tmp_path: Path, options: dict[str, Any]) -> None:
    rows = np.arange(NUM * 3 * 5, dtype=np.int32).reshape(NUM, 3, 5)
    write_hdf5(tmp_path / "a.h5", {"data": rows}, **options)
    data = FileDataset(tmp_path / "a.h5")
    (batch,) = make(DataLoader(data, batch_size=NUM))
    assert list(batch) == ["input_ids", "attention_mask", "labels"]
    for place, tensor in enumerate(batch.values()):
        np.testing.assert_array_equal(tensor.numpy(), rows[:, place])
    assert list(FileDataset(tmp_path / "a.h5", fields=["data"]).gather(np.array([1]))) == ["data"]


def test_groups_and_text_in_hdf5(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["group/x"] = np.arange(4)
        file["text"] = ["a", "b", "c", "d"]
    assert FileDataset(tmp_path / "a.h5", fields=["group/x"])[2]["group/x"] == 2
    with pytest.raises(UserError, match="'text' is object"):
        FileDataset(tmp_path / "a.h5")


@pytest.mark.parametrize("interleave", [False, True])
def test_several_files_are_one(tmp_path: Path, interleave: bool) -> None:
    parts, start = [], 0
    for number, size in enumerate((20, 3, 27)):
        part = {name: array[start : start + size] for name, array in columns().items()}
        parts.append(part["label"].tolist())
        write(tmp_path / f"{number}.jsonl", part)
        start += size
    data = FileDataset(tmp_path, interleave=interleave)
    seen = data.gather(np.arange(NUM))["label"].tolist()
    if interleave:
        assert seen[:9] == [0, 20, 23, 1, 21, 24, 2, 22, 25]
        assert seen[9:13] == [3, 26, 4, 27]
    else:
        assert seen == list(range(NUM))
    assert sorted(seen) == list(range(NUM))
    indices = np.array([30, 1, 1, 22])
    np.testing.assert_array_equal(data.gather(indices)["label"], np.array(seen)[indices])


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": [1, 2]}\n')
    (tmp_path / "b.jsonl").write_text('{"x": [1, 2, 3]}\n')
    with pytest.raises(UserError, match=r"b.jsonl has x int32\[3\], and .*a.jsonl has x int32\[2\]"):
        FileDataset(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("a.csv", "", "holds no record"),
        ("a.csv", "x,y\n", "holds no record"),
        ("a.csv", "x,y\n1,2\n3\n", "line 3: 1 columns where the heading has 2"),
        ("a.csv", "x\n1\nhello\n", "line 3: 'x' is 'hello', which is no number"),
        ("a.csv", 'x\n"[1, 2]"\n"[1]"\n', "record 1 has .* values in 'x'"),
        ("a.jsonl", '{"x": 1}\n[1]\n', r"line 2: \[1\] is no JSON object"),
        ("a.jsonl", '{"x": 1}\n{"y": 1}\n', "line 2: no 'x'"),
        ("a.jsonl", '{"x": 1}\n{"x": \n', "line 2: not JSON"),
        ("a.jsonl", '{"x": 1}\n{"x": "text"}\n', "record 1 has 'text' in 'x'"),
        ("a.jsonl", '{"x": 1}\n{"x": null}\n', "record 1 has 'None' in 'x'"),
        ("a.jsonl", '{"x": [[1, 2], [3]]}\n', "record 0 has"),
        ("a.jsonl", '{"x": []}\n', "records of 'x' have shape"),
        ("a.txt", "hello", "no format known"),
    ],
)
def test_bad_text_is_named_by_its_line(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=complaint):
        FileDataset(tmp_path / name)


def test_numbers_keep_their_kind(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"big": 4294967296, "flag": true, "real": 1.5, "low": -3}\n')
    found = FileDataset(tmp_path / "a.jsonl").gather(np.array([0]))
    assert {name: array.dtype.name for name, array in found.items()} == {
        "big": "int64", "flag": "bool", "real": "float32", "low": "int32"
    }  # fmt: skip


def test_bad_tables_are_named(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    path = tmp_path / "a.parquet"
    for column, complaint in (
        ([1, None], "record 1 has no 'x'"),
        ([[1, 2], [1]], "record 1 has 1 values in 'x' where the first has 2"),
        (["a", "b"], "'x' is string, which is no number"),
    ):
        parquet.write_table(pyarrow.table({"x": column}), path)
        with pytest.raises(UserError, match=complaint):
            FileDataset(path)


def test_without_pyarrow_the_cure_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match="needs pyarrow") as caught:
        FileDataset(tmp_path / "a.parquet")
    assert "portwright[arrow]" in caught.value.cure


def test_what_is_too_large_for_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_TEXT_BYTES", 10)
    write(tmp_path / "a.jsonl", columns())
    with pytest.raises(UserError, match="would have to be read into memory") as caught:
        FileDataset(tmp_path / "a.jsonl")
    assert "portwright data pack" in caught.value.cure


@pytest.mark.parametrize("places", [["nowhere"], [], ["."]])
def test_nothing_there(tmp_path: Path, places: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError):
        FileDataset(places)


def test_files_are_packed_into_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SHARD_BYTES", 32 * 7)
    for number in range(2):
        write(tmp_path / f"{number}.jsonl", columns())
    pack_files([tmp_path], tmp_path / "store")
    store = Store(tmp_path / "store")
    assert len(store) == 2 * NUM
    np.testing.assert_array_equal(store.gather(np.arange(NUM, 2 * NUM))["input_ids"], columns()["input_ids"])
    (tmp_path / "store" / "shard-00004.bin").unlink()
    pack_files([tmp_path], tmp_path / "store")
    assert Store(tmp_path / "store").manifest.shards[4].records == 7
    np.testing.assert_array_equal(
        Store(tmp_path / "store").gather(np.arange(NUM))["label"], columns()["label"]
    )
    write(tmp_path / "1.jsonl", {name: array[:9] for name, array in columns().items()})
    with pytest.raises(UserError, match="other data or other options"):
        pack_files([tmp_path], tmp_path / "store")


def test_files_that_differ_are_not_packed_together(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": [1, 2]}\n')
    (tmp_path / "b.jsonl").write_text('{"x": 3}\n')
    with pytest.raises(UserError, match=r"b.jsonl has x int32\[\], and"):
        pack_files([tmp_path], tmp_path / "store")
