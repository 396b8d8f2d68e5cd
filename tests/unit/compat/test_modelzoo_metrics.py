"""Metrics of release 1.6, reported like any other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from portwright.compat.modelzoo_metrics import (
    CBMetric,
    DeviceOutputs,
    RougeScoreMetric,
    compute_confusion_matrix,
    divide_no_nan,
    get_all_metrics,
)
from portwright.errors import UserError
from portwright.runtime.metrics import NoValueError, clear_registry, compute_all_metrics, reset_all_metrics


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    clear_registry()
    yield
    clear_registry()


class Largest(CBMetric):
    def init_state(self) -> None:
        self.reset_state()

    def reset_state(self) -> None:
        self.largest = -1.0

    def update_on_device(self, values: Tensor) -> Any:  # type: ignore[override]
        return DeviceOutputs(args=[values.max()])

    def update_on_host(self, largest: Tensor) -> None:  # type: ignore[override]
        assert largest.device.type == "cpu"
        self.largest = max(self.largest, float(largest))

    def compute(self) -> float:
        return self.largest


def test_a_metric_of_ones_own_is_reported_and_reset() -> None:
    metric = Largest("eval/largest")
    metric(torch.tensor([1.0, 3.0]))
    metric(torch.tensor([2.0]))
    assert metric.num_updates == 2
    assert compute_all_metrics() == {"eval/largest": 3.0}
    assert get_all_metrics() == {"eval/largest": metric}
    reset_all_metrics()
    assert (metric.num_updates, metric.compute()) == (0, -1.0)


def test_several_processes_cannot_share_its_state() -> None:
    with pytest.raises(UserError, match=r"'Largest' .* keeps its state in one process"):
        Largest().reduce(lambda tensor: None)


def test_the_device_part_must_give_outputs() -> None:
    class Wrong(Largest):
        def update_on_device(self, values: Tensor) -> Any:  # type: ignore[override]
            return values

    with pytest.raises(UserError, match="returned Tensor"):
        Wrong()(torch.ones(1))


def test_divide_and_confusion() -> None:
    assert divide_no_nan(torch.tensor([1.0, 1.0]), torch.tensor([2.0, 0.0])).tolist() == [0.5, 0.0]
    labels, predictions = torch.tensor([[1, 2, 4]]), torch.tensor([[2, 2, 4]])
    matrix = compute_confusion_matrix(labels, predictions, None)
    assert matrix.shape == (5, 5)
    assert matrix.nonzero().tolist() == [[1, 2], [2, 2], [4, 4]]
    weighted = compute_confusion_matrix(labels, predictions.float(), 5, torch.tensor([[0.5, 2.0, 1.0]]))
    assert weighted[1, 2] == 0.5


def test_rouge_of_chosen_sentences(tmp_path: Path) -> None:
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("[PAD]\n[CLS]\n[SEP]\nthe\ncat\nsat\nrun\n##ning\n.\n")
    metric = RougeScoreMetric(str(vocabulary), 2, "eval/rouge2")
    with pytest.raises(NoValueError):
        metric.compute()
    #              [CLS] the cat sat [SEP] | [CLS] the run ##ning . [SEP] | padding
    ids = torch.tensor([[1, 3, 4, 5, 2, 1, 3, 6, 7, 8, 2, 0]])
    starts, counts = torch.tensor([[0, 5, 0]]), torch.tensor([[1.0, 1.0, 0.0]])
    metric(torch.tensor([[1, 1, 1]]), torch.tensor([[1, 0, 0]]), starts, counts, ids)
    # Wanted: the cat sat the running, four pairs; given: the cat sat, two of them.
    assert metric.compute() == {"precision": 1.0, "recall": 0.5, "f1_score": pytest.approx(2 / 3)}
    assert compute_all_metrics()["eval/rouge2/recall"] == 0.5
    metric.reset()
    metric(torch.tensor([[0, 0, 0]]), torch.tensor([[0, 0, 0]]), starts, counts, ids)
    assert metric.compute() == {"precision": 0.0, "recall": 0.0, "f1_score": 0.0}
    with pytest.raises(UserError, match="cannot be read"):
        RougeScoreMetric(str(tmp_path / "none.txt"))
