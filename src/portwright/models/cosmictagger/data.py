"""Events of three planes: drawn on the spot, or read from a larcv3 file."""

from __future__ import annotations

from typing import Any

from larcv_file import LarcvPlanes
from synthetic_planes import SyntheticPlanes
from torch.utils.data import DataLoader, Dataset

from portwright import UserError

FULL_SIZE = (1280, 2048)  # ticks and wires of a plane


def get_train_dataloader(params: dict[str, Any]) -> DataLoader[Any]:
    return make_dataloader(params, "train_input")


def get_eval_dataloader(params: dict[str, Any]) -> DataLoader[Any]:
    return make_dataloader(params, "eval_input")


def make_dataloader(params: dict[str, Any], name: str) -> DataLoader[Any]:
    options = params[name]
    return DataLoader(
        make_dataset(params, name),
        batch_size=options["batch_size"],
        shuffle=options["shuffle"],
        drop_last=options["drop_last"],
        num_workers=options["num_workers"],
    )


def make_dataset(params: dict[str, Any], name: str) -> Dataset[Any]:
    options, depth = params[name], params["model"]["depth"]
    dataset: LarcvPlanes | SyntheticPlanes
    if options["file"] is not None:
        dataset = LarcvPlanes(
            options["file"],
            options["downsample"],
            options["image_producer"],
            options["label_producer"],
            options["num_samples"],
        )
    else:
        size = tuple(side >> options["downsample"] for side in FULL_SIZE)
        dataset = SyntheticPlanes(
            options["num_samples"], (size[0], size[1]), params["runconfig"]["seed"], name
        )
    height, width = dataset.image_size
    if height % (1 << depth) or width % (1 << depth):
        raise UserError(
            f"{name}: images of {height} x {width} (downsample {options['downsample']}) cannot be halved {depth} times.",
            "Take a smaller model.depth or a smaller downsample; together they are at most 8 at full size.",
        )
    return dataset
