"""Sentences and their translations: your own, or numbers in English and German words."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from portwright import text


def get_train_dataloader(params: dict[str, Any]) -> DataLoader[Any]:
    return text.make_dataloader(text.translation, params, "train_input")


def get_eval_dataloader(params: dict[str, Any]) -> DataLoader[Any]:
    return text.make_dataloader(text.translation, params, "eval_input")
