"""Tables that were read as something else than they are, found by attacking FileDataset."""

from __future__ import annotations

from pathlib import Path

import h5py
import pytest

from portwright.data import FileDataset
from portwright.errors import UserError


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("1,2\n3,4\n", r"a.csv, line 1: '1' is a value, and the first line names the columns"),
        ("[1],2\n[3],4\n", r"line 1: '\[1\]' is a value"),
        ("a,a\n1,2\n", r"line 1: the heading has 'a' 2 times"),
        ("a,\n1,2\n", r"line 1: the heading has a column without a name"),
    ],
)
def test_a_csv_without_a_heading_loses_no_record(tmp_path: Path, content: str, complaint: str) -> None:
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(UserError, match=complaint):
        FileDataset(tmp_path / "a.csv")


def test_a_column_without_a_name_may_lie_beside_those_that_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(",ids\n0,5\n1,6\n")  # as pandas writes its index
    assert FileDataset(tmp_path / "a.csv", fields=["ids"])[1]["ids"] == 6


def test_whole_numbers_that_no_dtype_holds_are_not_rounded(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": -1}\n{"id": 18446744073709551615}\n')
    with pytest.raises(UserError, match=r"a.jsonl: 'id' holds numbers that no array can"):
        FileDataset(tmp_path / "a.jsonl")


def test_a_hole_in_a_list_is_not_made_a_number(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for name, kind in (("a", pyarrow.list_(pyarrow.int64())), ("b", pyarrow.list_(pyarrow.int64(), 2))):
        table = pyarrow.table({"ids": pyarrow.array([[1, 2], [3, None], [5, 6]], kind)})
        parquet.write_table(table, tmp_path / f"{name}.parquet", row_group_size=1)
        with pytest.raises(UserError, match=rf"{name}.parquet: record 1 has nothing at a place of the list"):
            FileDataset(tmp_path / f"{name}.parquet")


def test_an_hdf5_data_set_without_values_is_told(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("ids", data=h5py.Empty("int32"))
    with pytest.raises(UserError, match=r"a.h5: 'ids' is int32 of shape \(\)"):
        FileDataset(tmp_path / "a.h5")
