"""Handwritten digits: scikit-learn's 8 x 8 set, or MNIST when data_dir has its IDX files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from portwright.images.mnist import read_digits, read_mnist

TEST_SAMPLES = 360  # every fifth of scikit-learn's 1,797 digits


def get_train_dataloader(params: dict[str, Any]) -> DataLoader[Any]:
    return make_dataloader(params["train_input"], "train")


def get_eval_dataloader(params: dict[str, Any]) -> DataLoader[Any]:
    return make_dataloader(params["eval_input"], "test")


def make_dataloader(options: dict[str, Any], split: str) -> DataLoader[Any]:
    data_dir = options.get("data_dir")
    images, labels = read_digits(split) if data_dir is None else read_mnist(Path(data_dir), split)
    return DataLoader(
        TensorDataset(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels)),
        batch_size=options["batch_size"],
        shuffle=options["shuffle"],
        drop_last=options["drop_last"],
        num_workers=options["num_workers"],
    )
