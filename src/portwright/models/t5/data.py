"""Text with spans taken out, for the model to tell what stood there; or pairs of texts, to fine-tune on."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from portwright import text


def get_train_dataloader(params: dict[str, Any]) -> DataLoader[Any]:
    return make_dataloader(params, "train_input")


def get_eval_dataloader(params: dict[str, Any]) -> DataLoader[Any]:
    return make_dataloader(params, "eval_input")


def make_dataloader(params: dict[str, Any], section: str) -> DataLoader[Any]:
    is_of_pairs = params[section]["objective"] == "pairs"
    return text.make_dataloader(text.translation if is_of_pairs else text.span_corruption, params, section)
