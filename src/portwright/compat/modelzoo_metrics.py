"""`modelzoo.common.pytorch.metrics`: CBMetric for user-defined metrics, and the metrics that differ from Portwright's."""

from __future__ import annotations

import string
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from portwright.compat.modelzoo_cb_model import to_cpu
from portwright.errors import UserError
from portwright.runtime.metrics import Metric, compute_all_metrics, registered_metrics, reset_all_metrics
from portwright.runtime.metrics.base import Sums

__all__ = [
    "CBMetric",
    "DeviceOutputs",
    "RougeScoreMetric",
    "compute_all_metrics",
    "compute_confusion_matrix",
    "divide_no_nan",
    "get_all_metrics",
    "reset_all_metrics",
]


@dataclass
class DeviceOutputs:
    """The values that a metric's device part passes to its host part."""

    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)


class CBMetric(Metric):
    """A metric in two parts: `update_on_device` returns tensors, `update_on_host` takes them in host memory.

    Its state is its own, so a run in several processes cannot add it up: that is an error, not one process's value.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.num_updates = 0
        self.init_state()

    def init_state(self) -> None:
        """Creates the state; called once."""

    def update_on_device(self, *args: Any, **kwargs: Any) -> DeviceOutputs:
        """Computes what the host part needs; by default it gets the arguments as they are."""
        return DeviceOutputs(args=list(args), kwargs=kwargs)

    @abstractmethod
    def update_on_host(self, *args: Any, **kwargs: Any) -> None:
        """Adds one batch."""

    @abstractmethod
    def compute(self) -> Any:
        """The value over all batches since the last reset."""

    def reset_state(self) -> None:
        """Forgets every batch."""

    def update(self, *args: Any, **kwargs: Any) -> None:
        outputs = self.update_on_device(*args, **kwargs)
        if not isinstance(outputs, DeviceOutputs):
            raise UserError(
                f"{type(self).__name__}.update_on_device returned {type(outputs).__name__}.",
                "Return DeviceOutputs.",
            )
        self.update_on_host(*_detached(outputs.args), **_detached(outputs.kwargs))
        self.num_updates += 1

    def reset(self) -> None:
        self.num_updates = 0
        self.reset_state()

    def reduce(self, all_reduce: Callable[[Tensor], None]) -> None:
        raise UserError(
            f"The metric '{self.name}' ({type(self).__name__}) keeps its state in one process.",
            "Evaluate in one process, or derive it from portwright.runtime.metrics.Metric.",
        )

    def sum_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {}

    def value(self, sums: Sums) -> float:
        raise NotImplementedError("compute() gives the value")


def _detached(values: Any) -> Any:
    """Tensors in host memory; a structure that holds anything else stays as it is."""
    try:
        return to_cpu(values)
    except TypeError:
        return values


def get_all_metrics() -> dict[str, Metric]:
    """All living metrics by name."""
    return {metric.name: metric for metric in registered_metrics()}


def divide_no_nan(num: Tensor, denom: Tensor) -> Tensor:
    """num / denom, and 0 where denom is 0."""
    return torch.where(denom == 0, 0.0, num / denom.where(denom != 0, 1))


def compute_confusion_matrix(
    labels: Tensor,
    predictions: Tensor,
    num_classes: int | None,
    weights: Tensor | None = None,
    on_device: bool = False,
) -> Tensor:
    """How often (or with what weight) each label, a row, was predicted as each class, a column."""
    labels, predictions = labels.flatten().long(), predictions.flatten()
    if num_classes is None:
        num_classes = int(torch.maximum(labels.max(), predictions.max())) + 1
    added = torch.ones_like(predictions) if weights is None else weights.flatten().to(predictions.dtype)
    flat = torch.zeros(num_classes**2, dtype=predictions.dtype, device=predictions.device)
    return flat.scatter_add(0, labels * num_classes + predictions.long(), added).reshape(
        num_classes, num_classes
    )


class RougeScoreMetric(CBMetric):
    """ROUGE-n of extractive summaries: the n-grams of the sentences chosen, against those of the right ones.

    A sentence runs from its [CLS] token to the next; `vocab_file` turns ids into words.
    """

    def __init__(self, vocab_file: str, max_n: int = 1, name: str | None = None) -> None:
        self.max_n = max_n
        try:
            self._tokens = Path(vocab_file).read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise UserError(
                f"vocab_file '{vocab_file}' cannot be read: {error}.", "Give a file with a token a line."
            ) from error
        super().__init__(name)

    def init_state(self) -> None:
        self.reset_state()

    def reset_state(self) -> None:
        self._num_matched = self._num_wanted = self._num_given = 0

    def update_on_host(
        self, labels: Tensor, predictions: Tensor, cls_indices: Tensor, cls_weights: Tensor, input_ids: Tensor
    ) -> None:
        rows = zip(labels, predictions, cls_indices, cls_weights, input_ids, strict=True)
        for label, prediction, starts, weights, ids in rows:
            wanted, given = (
                self._ngrams(_chosen(choice, starts, weights, ids)) for choice in (label, prediction)
            )
            self._num_matched += (wanted & given).total()
            self._num_wanted += wanted.total()
            self._num_given += given.total()

    def compute(self) -> dict[str, float]:
        if self.num_updates == 0:
            raise self.no_value("it was never called")
        matched = self._num_matched
        return {
            "precision": matched / max(self._num_given, 1),
            "recall": matched / max(self._num_wanted, 1),
            "f1_score": 2 * matched / max(self._num_given + self._num_wanted, 1),
        }

    def _ngrams(self, ids: Sequence[int]) -> Counter[tuple[str, ...]]:
        text = " ".join(self._tokens[token] for token in ids).replace(" ##", "").lower()
        words = [word for word in text.split() if word not in _NO_WORDS]
        return Counter(zip(*(words[offset:] for offset in range(self.max_n)), strict=False))


_NO_WORDS = {"[pad]", "[cls]", "[sep]", *string.punctuation}


def _chosen(choice: Tensor, starts: Tensor, weights: Tensor, ids: Tensor) -> list[int]:
    """The ids of the chosen sentences, without those that the weights leave out."""
    ends = starts.roll(-1)
    chosen: list[int] = []
    for start, end, picked in zip(starts.tolist(), ends.tolist(), (choice * weights).tolist(), strict=True):
        if picked:
            # The last sentence ends with the text: after it come zeros, or the first start again.
            chosen += ids[start : end if end > start else len(ids)].tolist()
    return chosen
