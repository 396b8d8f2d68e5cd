"""Pairs of texts in every format, and what is said of files that are none."""

import csv
import json

import pytest

from portwright.errors import UserError
from portwright.text.pairs import read_pairs, read_parallel

PAIRS = [
    ("one", "eins"),
    ("two, or\tthree", 'zwei "oder" drei'),
    ("東京 🙂", "Größe\u2028hier"),
    ("", "leer"),
]
SOURCES, TARGETS = [s for s, _ in PAIRS], [t for _, t in PAIRS]


def write_jsonl(folder, records):
    path = folder / "a.jsonl"
    path.write_text(
        "\n".join(json.dumps(record, ensure_ascii=False) for record in records) + "\n\n", encoding="utf-8"
    )
    return path


def write_table(path, delimiter, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    return path


def test_jsonl(tmp_path):
    path = write_jsonl(tmp_path, [{"source": s, "target": t, "more": 1} for s, t in PAIRS])
    assert read_pairs(path) == (SOURCES, TARGETS)
    assert read_pairs(tmp_path) == (SOURCES, TARGETS)


def test_nested_keys(tmp_path):
    write_jsonl(tmp_path, [{"translation": {"en": s, "de": t}} for s, t in PAIRS])
    assert read_pairs(tmp_path, "translation.en", "translation.de") == (SOURCES, TARGETS)
    assert read_pairs(tmp_path, "translation.de", "translation.en") == (TARGETS, SOURCES)


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("a.TSV", "\t")])
def test_tables_with_a_heading(tmp_path, name, delimiter):
    rows = [("id", "target", "source"), *((i, t, s) for i, (s, t) in enumerate(PAIRS))]
    assert read_pairs(write_table(tmp_path / name, delimiter, rows)) == (SOURCES, TARGETS)


def test_tsv_without_a_heading_is_taken_as_it_is(tmp_path):
    (tmp_path / "a.tsv").write_bytes(b'one "and\teins"\r\ntwo\tzwei')
    assert read_pairs(tmp_path) == (['one "and', "two"], ['eins"', "zwei"])


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("suffix", ["parquet", "arrow", "stream.arrow"])
def test_arrow(tmp_path, suffix, nested):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    rows = [{"source": s, "target": t} for s, t in PAIRS]
    table = pa.table({"pair": rows}) if nested else pa.table({"source": SOURCES, "target": TARGETS})
    path = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        pq.write_table(table, path)
    else:
        make = pa.ipc.new_stream if "stream" in suffix else pa.ipc.new_file
        with make(str(path), table.schema) as writer:
            writer.write_table(table)
    keys = ("pair.source", "pair.target") if nested else ()
    assert read_pairs(tmp_path, *keys) == (SOURCES, TARGETS)
    path.write_bytes(path.read_bytes()[:-30])
    if suffix != "stream.arrow":  # a stream may end anywhere between its batches
        with pytest.raises(UserError, match="cannot be read"):
            read_pairs(tmp_path, *keys)


def test_parallel_files(tmp_path):
    for name, lines in (("b.src", SOURCES), ("b.tgt", TARGETS), ("a.src", ["x"]), ("a.tgt", ["y"])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    assert read_pairs(tmp_path) == (["x", *SOURCES], ["y", *TARGETS])
    assert read_parallel(tmp_path / "b.tgt", tmp_path / "b.src") == (TARGETS, SOURCES)
    with pytest.raises(UserError, match=r"has 1 lines and .* 4"):
        read_parallel(tmp_path / "a.src", tmp_path / "b.tgt")
    (tmp_path / "a.tgt").unlink()
    with pytest.raises(UserError, match=r"no a\.tgt beside it"):
        read_pairs(tmp_path)


def test_several_places_keep_their_order(tmp_path):
    for name in ("second", "first"):
        (tmp_path / name).mkdir()
        write_jsonl(tmp_path / name, [{"source": name, "target": "x"}])
    assert read_pairs([tmp_path / "second", tmp_path / "first" / "a.jsonl"]).sources == ["second", "first"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"source": "a", "target": "b"}\n{"source"', "line 2: not JSON"),
        ("a.jsonl", b'{"source": "a"}', "line 1: no key 'target'"),
        ("a.jsonl", b'{"source": "a", "target": null}', "'target' is None, not text"),
        ("a.jsonl", b'{"source": "a", "target": ["b"]}', r"'target' is \['b'\]"),
        ("a.jsonl", b"[1, 2]", r"\[1, 2\] is no JSON object"),
        ("a.jsonl", b"\xff\xfe", "0xff is not UTF-8"),
        ("a.jsonl", b"", "no pair of texts"),
        ("a.csv", b"src,target\na,b\n", "no key 'source'.*Did you mean 'src'"),
        ("a.csv", b"source,target\na,b,c\n", "line 2: 3 columns where the heading has 2"),
        ("a.csv", b'source,target\n"a,b\n', "not a table"),
        ("a.tsv", b"a\tb\nc\n", "line 2: 1 columns"),
        ("a.parquet", b"no", "cannot be read"),
        ("a.txt", b"x", "holds no file of a format that is read here .it has a.txt"),
    ],
)
def test_bad_files_are_named(tmp_path, name, content, said):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=said):
        read_pairs(tmp_path)


def test_missing_places_are_named(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        read_pairs(tmp_path / "nowhere")
    with pytest.raises(UserError, match="it has nothing"):
        read_pairs(tmp_path)


def test_a_long_field_and_a_byte_order_mark(tmp_path):
    before = csv.field_size_limit()
    long = "x" * 200_000
    (tmp_path / "a.csv").write_text(f"\ufeffsource,target\n{long},y\n", encoding="utf-8")
    assert read_pairs(tmp_path).sources == [long]
    assert csv.field_size_limit() == before
