"""Running text: from data_dir, or text that comes with the package."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from portwright import text


def get_train_dataloader(params: dict[str, Any]) -> DataLoader[Any]:
    return text.make_dataloader(text.causal_lm, params, "train_input")


def get_eval_dataloader(params: dict[str, Any]) -> DataLoader[Any]:
    return text.make_dataloader(text.causal_lm, params, "eval_input")
