from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import tempfile
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from portwright.data.tables import BadRecord
from portwright.errors import UserError
from portwright.text.documents import read_documents
from portwright.text.feed import TextPart, feed_units
from portwright.text.inputs import find_inputs
from portwright.text.objectives import Document

TEXTS = ["Ein Satz.\nNoch einer.", "日本語 🙂", 'with "quotes", commas\nand lines', "x" * 300, "a\n\nb"]


def records(
    places: list[Path], split: str = "file", unit_bytes: int = 100, key: str = "text"
) -> list[object]:
    found: list[object] = []
    for number, (unit, _) in enumerate(feed_units(find_inputs(places), unit_bytes, split)):  # type: ignore[arg-type]
        assert unit.number == number
        found += read_documents(unit.parts, split, key)  # type: ignore[arg-type]
    return found


def texts(found: list[object]) -> list[str]:
    assert all(isinstance(each, Document) for each in found), found
    return [each.text for each in found if isinstance(each, Document)]


def write_jsonl(path: Path, documents: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents), encoding="utf-8")
    return path


@given(st.binary(max_size=400), st.integers(1, 60), st.sampled_from(["file", "paragraph", "line"]))
def test_units_hold_all_bytes_of_a_text(data: bytes, unit_bytes: int, split: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.txt"
        path.write_bytes(data)
        units = [unit for unit, _ in feed_units(find_inputs([path]), unit_bytes, split)]  # type: ignore[arg-type]
    parts = [part for unit in units for part in unit.parts]
    assert b"".join(part.data for part in parts if isinstance(part, TextPart)) == data
    place, line = 0, 1
    for part in parts:
        assert isinstance(part, TextPart)
        assert (part.first_byte, part.first_line) == (place, line)
        place += len(part.data)
        line += part.data.count(b"\n")
        assert part.is_last == (part is parts[-1])


@given(
    st.lists(
        st.text(alphabet='ab",\n 字', min_size=1, max_size=30).filter(str.strip), min_size=1, max_size=12
    ),
    st.integers(1, 200),
)
def test_records_are_the_same_however_they_are_cut(documents: list[str], unit_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        assert (
            texts(records([write_jsonl(folder / "a.jsonl", documents)], unit_bytes=unit_bytes)) == documents
        )
        with (folder / "a.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "text"])
            writer.writerows(enumerate(documents))
        assert texts(records([folder / "a.csv"], unit_bytes=unit_bytes)) == documents


@pytest.mark.parametrize("ending", ["", ".gz", ".bz2", ".xz", ".zst"])
def test_compressed_files(tmp_path: Path, ending: str) -> None:
    raw = write_jsonl(tmp_path / "a.jsonl", TEXTS * 20).read_bytes()
    (tmp_path / "a.jsonl").unlink()
    pack = {
        "": bytes,
        ".gz": gzip.compress,
        ".bz2": bz2.compress,
        ".xz": lzma.compress,
        ".zst": lambda data: pyarrow.compress(data, codec="zstd", asbytes=True),
    }[ending]
    (tmp_path / f"a.jsonl{ending}").write_bytes(pack(raw))
    assert texts(records([tmp_path], unit_bytes=1000)) == TEXTS * 20


@pytest.mark.parametrize("form", ["parquet", "file", "stream"])
def test_tables(tmp_path: Path, form: str) -> None:
    table = pyarrow.table({"id": list(range(50)), "text": TEXTS * 10})
    if form == "parquet":
        pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    else:
        make = pyarrow.ipc.new_file if form == "file" else pyarrow.ipc.new_stream
        with pyarrow.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, make(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=7)
    assert texts(records([tmp_path], unit_bytes=500)) == TEXTS * 10
    with pytest.raises(UserError, match=r"no column 'txt'.*Did you mean 'text'"):
        records([tmp_path], key="txt")


def test_what_is_a_document_in_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n\r\n \nthree\n\n\n")
    assert texts(records([path], "file")) == ["one\ntwo\n\n \nthree\n\n\n"]
    assert texts(records([path], "paragraph")) == ["one\ntwo", "three"]
    assert texts(records([path], "line")) == ["one", "two", "three"]


def test_a_long_text_is_one_document_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n".join(f"line {number} é" for number in range(60)), encoding="utf-8")
    found = [each for each in records([path], "file", unit_bytes=64) if isinstance(each, Document)]
    assert len(found) > 5
    assert "".join(each.text for each in found) == path.read_text(encoding="utf-8")
    assert [each.whole for each in found] == [False] * (len(found) - 1) + [True]
    assert [each.begun for each in found] == [False] + [True] * (len(found) - 1)


def test_a_text_without_any_blank_is_cut_between_letters(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("字é🙂x" * 200, encoding="utf-8")
    assert "".join(texts(records([path], "file", unit_bytes=61))) == "字é🙂x" * 200


def bad(found: list[object]) -> list[tuple[str, str]]:
    return [(each.place, each.reason) for each in found if isinstance(each, BadRecord)]


def test_bad_lines_are_named_and_the_others_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [
        b'{"text": "good"}',
        b'{"text": ',
        b"",
        b'{"txt": "a"}',
        b'{"text": 3}',
        b'{"text": " \\n"}',
        b'["text"]',
        b'{"text": "\xff"}',
        b'{"text": "\\ud800"}',
        b'{"text": "good too"}',
    ]
    path.write_bytes(b"\n".join(lines))
    for unit_bytes in (1, 30, 10_000):
        found = records([path], unit_bytes=unit_bytes)
        assert [each.text for each in found if isinstance(each, Document)] == ["good", "good too"]
        assert bad(found) == [
            ("line 2", "not JSON (Expecting value at column 10)"),
            ("line 4", "no key 'text'"),
            ("line 5", "'text' is 3, not text"),
            ("line 6", "the document is empty"),
            ("line 7", "['text'] is no JSON object"),
            (f"line 8, byte {sum(len(line) + 1 for line in lines[:7]) + 10}", "0xff is not UTF-8"),
            ("line 9", "'text' holds half of a surrogate pair"),
        ]


def test_bad_text_is_named_by_its_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"good line\n" * 20 + b"bad \xe4 line\n" + b"good line\n" * 20)
    for unit_bytes in (40, 10_000):
        assert bad(records([path], "line", unit_bytes)) == [("byte 204", "0xe4 is not UTF-8")]
        assert bad(records([path], "file", unit_bytes)) == [("byte 204", "0xe4 is not UTF-8")]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv"])
def test_an_empty_file_is_no_document(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    assert bad(records([tmp_path / name])) == [("the file", "the document is empty")]


def test_truncated_compression_keeps_what_was_whole(tmp_path: Path) -> None:
    plain = "".join(
        json.dumps({"text": f"document {number} {number**5}"}) + "\n" for number in range(500)
    ).encode()
    packed = gzip.compress(plain)
    (tmp_path / "a.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    found = records([tmp_path], unit_bytes=500)
    reasons = bad(found)
    assert reasons[-1][1] == "the compressed file is truncated"
    assert reasons[-1][0].startswith("byte ")
    assert len(reasons) <= 2  # that, and the line that it cut
    assert len(found) > 100

    (tmp_path / "a.jsonl.gz").write_bytes(b"no gzip at all")
    assert "damaged" in bad(records([tmp_path]))[0][1]


def test_bad_csv(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('id,text\n1,"two\nlines"\n2,a,b\n3,""\n4,good\n', encoding="utf-8")
    for unit_bytes in (5, 1000):
        assert bad(records([path], unit_bytes=unit_bytes)) == [
            ("record that ends on line 4", "3 columns where the heading has 2"),
            ("record that ends on line 5", "the document is empty"),
        ]
    path.write_text('id,text\n1,"open\n', encoding="utf-8")
    with pytest.raises(UserError, match="not a table"):
        records([path])
    path.write_text("id,txt\n1,a\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"no column 'text'.*Did you mean 'txt'"):
        records([path])


def test_inputs_of_folders(tmp_path: Path) -> None:
    for name in (
        "b/x.txt",
        "a.jsonl",
        ".hidden/y.txt",
        "c.bin",
        "b/.z.txt",
        "d.parquet.gz",
        "tokenizer.json",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert [file.name for file in find_inputs([tmp_path])] == ["a.jsonl", "b/x.txt"]
    assert [file.format for file in find_inputs([tmp_path / "c.bin"])] == ["text"]
    with pytest.raises(UserError, match="is given twice"):
        find_inputs([tmp_path, tmp_path / "a.jsonl"])
    with pytest.raises(UserError, match="does not exist"):
        find_inputs([tmp_path / "absent"])
    with pytest.raises(UserError, match="one JSON document"):
        find_inputs([tmp_path / "tokenizer.json"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no file of text"):
        find_inputs([tmp_path / "empty"])


def test_a_broken_parquet_file_is_named(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS}), buffer)
    (tmp_path / "a.parquet").write_bytes(buffer.getvalue()[:-20])
    with pytest.raises(UserError, match=r"a\.parquet' cannot be read"):
        records([tmp_path])
