"""Fields, datasets and an iterator over batches of one length."""

from __future__ import annotations

import random
from types import SimpleNamespace

import torch


class Field:
    def __init__(self, words=()):
        self.vocab = Vocab(words)


class Vocab:
    def __init__(self, words):
        self.itos = list(words)
        self.stoi = {word: number for number, word in enumerate(words)}

    def __len__(self):
        return len(self.itos)


class Dataset:
    def __init__(self, examples, fields, **_):
        self.examples, self.fields = examples, fields


class BucketIterator:
    def __init__(self, dataset, batch_size, device=None, train=False, **_):
        self.dataset, self.batch_size, self.device, self.train = dataset, batch_size, device, train

    def __len__(self):
        return -(-len(self.dataset.examples) // self.batch_size)

    def __iter__(self):
        examples = list(self.dataset.examples)
        if self.train:
            random.shuffle(examples)
        for start in range(0, len(examples), self.batch_size):
            chosen = examples[start : start + self.batch_size]
            columns = {
                name: torch.tensor(
                    [[field.vocab.stoi[word] for word in getattr(example, name)] for example in chosen]
                )
                for name, field in self.dataset.fields.items()
            }
            yield SimpleNamespace(
                **{name: values.t().contiguous().to(self.device) for name, values in columns.items()}
            )
