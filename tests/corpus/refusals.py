"""Minimal programs that the real front end refuses for the reason for which it refuses a project of the corpus.

Each `code` defines `make_model` and `batch`; tests/vendor/test_corpus_refusals.py asks the front end about it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """Why projects are refused after a port, and the least that shows it."""

    projects: tuple[str, ...]
    reason: str
    code: str
    words: str  # part of what the front end says to it


REFUSALS = (
    Refusal(
        ("word_language_model", "awd-lstm-lm", "attention-is-all-you-need"),
        "The loop flattens the targets before the step, so that the parts of a batch have different first dimensions, which"
        " the SDK's loader does not take. Feed them as they are, batch first, and flatten them in the step (by hand: the function that"
        " cuts the batches serves the evaluation too).",
        """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 20)

    def forward(self, words, targets):
        return nn.functional.cross_entropy(self.table(words).view(-1, 20), targets)


make_model = Net
batch = (torch.zeros(8, 4, dtype=torch.long), torch.zeros(32, dtype=torch.long))
""",
        "Only uniform batch sizes are supported",
    ),
    Refusal(
        ("activity-recognition",),
        "The dataset yields numpy's float64, and the loop casts each batch. float64 has no type on the device, so the cast belongs into"
        " the dataset; from the source alone one cannot tell what a file of arrays holds.",
        """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(9, 6)

    def forward(self, sample):
        return self.layer(sample.float()).sum()


make_model = Net
batch = torch.zeros(4, 9, dtype=torch.float64)
""",
        "unsupported input dtype: 'f64'",
    ),
    Refusal(
        ("pytorch-flows",),
        "The order of the variables is turned around by an index that is an array of numpy's; the backward pass of such an index in a later"
        " dimension is not lowered. legal.getitem with the order as a list, or legal.flip, is accepted, by hand.",
        """
import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.order = np.arange(6)[::-1].copy()

    def forward(self, x):
        return (self.layer(x)[:, self.order] * x).sum()


make_model = Net
batch = torch.zeros(4, 6)
""",
        "failed to legalize operation 'torch.prim.ListConstruct'",
    ),
    Refusal(
        ("pygcn",),
        "The graph is a sparse tensor, which the SDK's loader does not take. `port --unsafe` writes its zeros out (PW343), and the front end"
        " accepts that. It is not called safe since 0.9.0: the dense matrix of a large graph may not fit into the memory that its sparse one"
        " takes.",
        """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, graph, nodes):
        return torch.spmm(graph, self.layer(nodes)).sum()


make_model = Net
batch = (torch.eye(4).to_sparse(), torch.zeros(4, 4))
""",
        "aten::_sparse_coo_tensor_with_dims_and_tensors",
    ),
)

# Results that an earlier version of the page had, and why they are others now.
CHANGES = (
    "tkipf/pygcn was accepted after the port. The rewrite behind it (PW343) is not called safe any more, see above.",
    "pytorch-cifar, pytorch-cifar100 and pointnet were called equal by bounds between 0.8 and 14 times an update, which hardly any change"
    " goes beyond: batches of 4 at the learning rate of 128 made rounding grow without end. `verify` says *cannot tell* of such a run since 0.9.0."
    " They now train at a rate for 4 samples, and PointNet on batches of 16: equal by bounds far below 1e-2.",
    "awd-lstm-lm was refused for its loader alone, and its step is now refused, too: `.data` of a value of which the text does not say that it"
    " is a tensor stays (PW408 is unsafe there).",
    "Fewer findings are fixed than before, since some rewrites could not be argued to be equal on every machine: `--unsafe` makes those.",
)
