"""Files of records as a data set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from portwright.data.draws import Draws
from portwright.data.files import open_files
from portwright.data.gather import Arrays, GatherDataset, Indices, Transform


class FileDataset(GatherDataset):
    """The records of HDF5, npy, npz, Parquet, Arrow, CSV or JSONL files, or of folders of them, as one data set.

    `fields` names those to read (all without). `interleave` takes a record of each file in turn instead of file after
    file; with shuffle=True every record of every file may come at any time anyway.
    """

    def __init__(
        self,
        files: str | Path | Sequence[str | Path],
        transform: Transform | None = None,
        fields: Sequence[str] | None = None,
        *,
        interleave: bool = False,
    ) -> None:
        places = [files] if isinstance(files, str | Path) else list(files)
        self.columns = open_files(places, fields, interleave=interleave)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.columns)

    def gather(self, indices: Indices, draws: Draws | None = None) -> Arrays:
        batch = self.columns.gather(indices)
        if self.transform is None:
            return batch
        return self.transform(batch, Draws(self.seed, self.epoch, indices) if draws is None else draws)
