"""The peers of benchmarks/data.py, each set up as its documentation recommends, with its own files and its own shuffle.

Every function makes the files that it reads, once, and gives an endless iterator of batches as torch tensors. What is not
installed raises ImportError and is named in the output as left out.
"""

from __future__ import annotations

import io
import sys
import tarfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

Batches = Iterator[Any]


class Rows(Dataset[Any]):
    """A row at a time from a memory-mapped .npy file."""

    def __init__(self, path: Path) -> None:
        self.rows = np.load(path, mmap_mode="r")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.array(self.rows[index]))


class RowBatches(Rows):
    """The same, a batch at a time; the collate_fn that belongs to it changes nothing."""

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        return torch.from_numpy(self.rows[indices])


def _again(loader: Any) -> Batches:
    while True:
        yield from loader


def _as_is(batch: Any) -> Any:
    return batch


def torch_plain(folder: Path, batch_size: int) -> Batches:
    return _again(DataLoader(Rows(folder / "rows.npy"), batch_size, shuffle=True, drop_last=True))


def torch_workers(folder: Path, batch_size: int) -> Batches:
    data = Rows(folder / "rows.npy")
    return _again(
        DataLoader(data, batch_size, shuffle=True, drop_last=True, num_workers=2, persistent_workers=True)
    )


def torch_getitems(folder: Path, batch_size: int) -> Batches:
    data = RowBatches(folder / "rows.npy")
    return _again(DataLoader(data, batch_size, shuffle=True, drop_last=True, collate_fn=_as_is))


def _import_streaming() -> Any:
    """MosaicML's package imports torchvision for its image sets; a CPU build of torch may have none that loads."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        import transformers.feature_extraction_utils  # noqa: F401  (it asks whether torchvision is there)

        names = [f"torchvision{name}" for name in ("", ".datasets", ".transforms", ".transforms.functional")]
        sys.modules.update({name: types.ModuleType(name) for name in names})
        sys.modules["torchvision.datasets"].VisionDataset = Dataset  # type: ignore[attr-defined]
        sys.modules["torchvision.transforms.functional"].to_tensor = None  # type: ignore[attr-defined]
        import streaming

        for name in names:
            del sys.modules[name]
    else:
        import streaming
    return streaming


def mosaicml_streaming(folder: Path, batch_size: int) -> Batches:
    streaming = _import_streaming()
    local = folder / "mds"
    if not (local / "index.json").exists():
        rows = np.load(folder / "rows.npy", mmap_mode="r")
        columns = {"x": f"ndarray:int32:{rows.shape[1]}"}
        with streaming.MDSWriter(out=str(local), columns=columns, compression=None) as writer:
            for row in rows:
                writer.write({"x": np.array(row)})
    data = streaming.StreamingDataset(local=str(local), shuffle=True, batch_size=batch_size)
    return _again(streaming.StreamingDataLoader(data, batch_size=batch_size, num_workers=0, drop_last=True))


def webdataset(folder: Path, batch_size: int) -> Batches:
    import webdataset as wds

    tars = folder / "tars"
    if not tars.exists():
        rows = np.load(folder / "rows.npy", mmap_mode="r")
        tars.mkdir()
        for number, start in enumerate(range(0, len(rows), 10_000)):
            with tarfile.open(tars / f"{number:04d}.tar", "w") as tar:
                for index in range(start, min(start + 10_000, len(rows))):
                    content = io.BytesIO()
                    np.save(content, rows[index])
                    entry = tarfile.TarInfo(f"{index:08d}.npy")
                    entry.size = content.tell()
                    content.seek(0)
                    tar.addfile(entry, content)
    shards = [str(path) for path in sorted(tars.glob("*.tar"))]
    data = (
        wds.WebDataset(shards, shardshuffle=len(shards), empty_check=False)
        .shuffle(5000)
        .decode()
        .to_tuple("npy")
        .map_tuple(torch.from_numpy)
        .batched(batch_size, partial=False)
    )
    return _again(wds.WebLoader(data, batch_size=None, num_workers=2, persistent_workers=True))


def huggingface_datasets(folder: Path, batch_size: int) -> Batches:
    import datasets

    local = folder / "arrow"
    if not local.exists():
        rows = np.load(folder / "rows.npy", mmap_mode="r")
        features = datasets.Features({"x": datasets.List(datasets.Value("int32"), length=rows.shape[1])})
        datasets.Dataset.from_dict({"x": np.array(rows)}, features=features).save_to_disk(str(local))
    data = datasets.load_from_disk(str(local)).with_format("torch")
    return _again(DataLoader(data, batch_size, shuffle=True, drop_last=True))


class _NumpyRows:
    def __init__(self, path: Path) -> None:
        self.rows = np.load(path, mmap_mode="r")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


def grain(folder: Path, batch_size: int) -> Batches:
    import grain as pygrain

    data = pygrain.MapDataset.source(_NumpyRows(folder / "rows.npy")).seed(0).shuffle().repeat()
    batches = data.batch(batch_size, drop_remainder=True).to_iter_dataset()
    return (torch.from_numpy(batch) for batch in batches)


PEERS = {
    "torch DataLoader, a sample at a time": torch_plain,
    "torch DataLoader, 2 workers": torch_workers,
    "torch DataLoader, __getitems__": torch_getitems,
    "MosaicML Streaming": mosaicml_streaming,
    "WebDataset": webdataset,
    "HuggingFace datasets": huggingface_datasets,
    "Grain": grain,
}
