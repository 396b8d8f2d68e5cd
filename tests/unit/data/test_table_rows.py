"""The reader of tables: rows with their places, whatever the format, and csv's bound while readers take turns."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from portwright.data.tables import find_files, read_rows
from portwright.errors import UserError


def test_readers_that_end_in_any_order_leave_the_bound_of_cells_as_it_was(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    long = "x" * 200_000
    (tmp_path / "a.csv").write_text(f"a\n{long}\nlast\n")
    one, other = read_rows(tmp_path / "a.csv"), read_rows(tmp_path / "a.csv")
    assert next(one).values == next(other).values == {"a": long}
    assert [row.values["a"] for row in one] == ["last"]
    assert csv.field_size_limit() == 1 << 30
    other.close()
    assert csv.field_size_limit() == before


TABLES = {
    "a.csv": 'a,b\n1,"x\ny"\n\n2,z\n',
    "a.tsv": 'a\tb\n1\t"x\ny"\n\n2\tz\n',
    "a.jsonl": '{"a": "1", "b": "x\\ny"}\n\n{"a": "2", "b": "z"}',
}


@pytest.mark.parametrize("name", TABLES)
def test_rows_of_text_come_with_their_places(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + TABLES[name].encode())
    rows = list(read_rows(tmp_path / name))
    assert [row.values for row in rows] == [{"a": "1", "b": "x\ny"}, {"a": "2", "b": "z"}]
    lines = [1, 3] if name == "a.jsonl" else [3, 5]
    assert [row.place.rpartition("line ")[2] for row in rows] == [str(line) for line in lines]


@pytest.mark.parametrize("form", ["parquet", "arrow", "feather"])
def test_rows_of_arrow_come_with_their_numbers(tmp_path: Path, form: str) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"a": list(range(10))})
    path = tmp_path / f"a.{form}"
    if form == "parquet":
        parquet.write_table(table, path, row_group_size=3)
    else:
        make = pyarrow.ipc.new_file if form == "arrow" else pyarrow.ipc.new_stream
        with make(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
    assert list(read_rows(path)) == [(f"record {number + 1}", {"a": number}) for number in range(10)]


def test_quotation_marks_of_a_lenient_table_are_letters(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b' a ,b\n"x"y,\x00z\n')
    (row,) = read_rows(tmp_path / "a.csv", lenient=True)
    assert row.values == {"a": "xy", "b": "z"}
    with pytest.raises(UserError, match="not a table"):
        list(read_rows(tmp_path / "a.csv"))
    (tmp_path / "a.tsv").write_text('a\tb\n"x\ty"\n')
    (row,) = read_rows(tmp_path / "a.tsv", quoted=False)
    assert row.values == {"a": '"x', "b": 'y"'}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", b"a,\xe9\n1,2\n", "the heading: 0xe9 is not UTF-8"),
        ("a.csv", b"a,b\n1,\xe9\n", "line 2: 0xe9 is not UTF-8"),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xe9"}\n', r"line 2, byte 16: 0xe9 is not UTF-8"),
        ("a.jsonl", b"[" * 100_000, r"line 1: not JSON that can be read"),
    ],
)
def test_what_cannot_be_read_is_named_by_its_place(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=said):
        list(read_rows(tmp_path / name))


def test_files_are_found_by_their_endings(tmp_path: Path) -> None:
    for name in ("b.CSV", "a.csv", "c.txt"):
        (tmp_path / name).touch()
    assert [path.name for path in find_files(tmp_path, (".csv",))] == ["a.csv", "b.CSV"]
    with pytest.raises(UserError, match=r"input: '.*c.txt' is of no format"):
        find_files([tmp_path / "c.txt"], (".csv",), "input: ")
    with pytest.raises(UserError, match=r"no file of a format .*it has a.csv, b.CSV, c.txt"):
        find_files(tmp_path, (".jsonl",))
