"""Slices of the alphabet: given a b c d, the letters to predict are b c d e."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from portwright import UserError


class AlphabetDataset(Dataset[dict[str, torch.Tensor]]):
    """Slices that start at random letters; a sample depends on `name`, `seed` and its index, and on nothing else."""

    def __init__(self, num_samples: int, seq_length: int, vocab_size: int, seed: int, name: str) -> None:
        if not 1 <= seq_length < vocab_size:
            raise UserError(
                f"seq_length is {seq_length} in an alphabet of {vocab_size} letters.",
                "Take at least 1, and leave one letter over to be predicted.",
            )
        self.num_samples, self.seq_length, self.vocab_size = num_samples, seq_length, vocab_size
        self.seed, self.name = seed, name

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not 0 <= index < self.num_samples:
            raise IndexError(f"sample {index} of {self.num_samples}")
        start = random.Random(f"{self.name}:{self.seed}:{index}").randrange(self.vocab_size - self.seq_length)
        letters = torch.arange(start, start + self.seq_length + 1, dtype=torch.int32)
        mask = torch.ones(self.seq_length, dtype=torch.int32)
        return {"input_ids": letters[:-1], "target_ids": letters[1:], "attention_mask": mask}


def get_train_dataloader(params: dict[str, Any]) -> DataLoader[Any]:
    return make_dataloader(params, "train_input")


def get_eval_dataloader(params: dict[str, Any]) -> DataLoader[Any]:
    return make_dataloader(params, "eval_input")


def make_dataloader(params: dict[str, Any], name: str) -> DataLoader[Any]:
    options, model = params[name], params["model"]
    if options["seq_length"] > model["seq_len"]:
        raise UserError(
            f"{name}.seq_length is {options['seq_length']} and model.seq_len {model['seq_len']}.",
            "Let the model have at least as many positions as a sample has letters.",
        )
    dataset = AlphabetDataset(
        options["num_samples"], options["seq_length"], model["vocab_size"], params["runconfig"]["seed"], name
    )
    return DataLoader(
        dataset,
        batch_size=options["batch_size"],
        shuffle=options["shuffle"],
        num_workers=options["num_workers"],
    )
