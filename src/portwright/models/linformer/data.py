"""Text with masked tokens: from data_dir, or text that comes with the package."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from portwright import text
from portwright.job.input_params import loader_arguments


def get_train_dataloader(params: dict[str, Any]) -> DataLoader[Any]:
    return make_dataloader(params, "train_input")


def get_eval_dataloader(params: dict[str, Any]) -> DataLoader[Any]:
    return make_dataloader(params, "eval_input")


def make_dataloader(params: dict[str, Any], section: str) -> DataLoader[Any]:
    options = text.section_options(params, section)
    dataset, _ = text.masked_lm(options, section, params["model"])
    return DataLoader(dataset, **loader_arguments(options, section))
