"""Loss, metrics and learning rate beside the public CosmicTagger's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from unit.models.cosmic_folder import load, original

from portwright.job.schedules import parse_schedule

losses, metrics, schedule = load("plane_losses"), load("plane_metrics"), load("rate_schedule")


def draw(num_events: int = 2, seed: int = 1, size: tuple[int, int] = (12, 20)) -> tuple[Tensor, Tensor]:
    """Logits and labels plane by plane; labels are mostly background, and every plane has all three."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3 * num_events, 3, *size, generator=generator) * 3
    drawn = torch.rand(3 * num_events, *size, generator=generator)
    labels = (drawn < 0.2).int() + (drawn < 0.05).int()
    labels[:, 0, :3] = torch.tensor([0, 1, 2], dtype=torch.int32)
    return logits, labels


@pytest.mark.parametrize("balance", ["light", "even", "focal", "none"])
@pytest.mark.parametrize("seed", [1, 2])
def test_losses_and_gradients(balance: str, seed: int) -> None:
    logits, labels = draw(seed=seed)
    ours, theirs = (logits.clone().requires_grad_() for _ in range(2))
    with original() as source:
        calculator = source.loss.LossCalculator(source.optimizer.LossBalanceScheme[balance])
        expected = calculator(labels.long().chunk(3), theirs.chunk(3))
    # Without balance the original means to average and does not: it gives the loss of each pixel.
    expected = expected.mean()
    loss = losses.plane_loss(ours, labels, balance)
    torch.testing.assert_close(loss, expected, rtol=2e-6, atol=0)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-9)


def test_metrics() -> None:
    logits, labels = draw(num_events=4)
    labels[0] = labels[0].clamp(max=1)  # a plane without a neutrino, where none is predicted either
    logits[0, 2] = -100
    with original() as source:
        peer: Any = SimpleNamespace(NEUTRINO_INDEX=2, COSMIC_INDEX=1)
        expected = source.trainer._calculate_accuracy(peer, logits.chunk(3), labels.chunk(3))
    names = {
        "accuracy": "Total_Accuracy",
        "non_background_accuracy": "Non_Bkg_Accuracy",
        "cosmic_iou": "Cosmic_IoU",
        "neutrino_iou": "Neutrino_IoU",
        "mean_iou": "mIoU",
    }
    assert set(names) == set(metrics.NAMES)
    for ours, theirs in names.items():
        metric = metrics.PlaneMetric(ours)
        metric(labels=labels, predictions=logits.argmax(1))
        # The original's third is 0.3333333.
        assert metric.compute() == pytest.approx(float(expected[f"Average/{theirs}"]), rel=1e-6)


@pytest.mark.parametrize("batch_size", [2, 32])
def test_learning_rates(batch_size: int) -> None:
    num_events = 43075
    with original() as source:
        peer: Any = SimpleNamespace(
            args=SimpleNamespace(
                mode=SimpleNamespace(optimizer=SimpleNamespace(learning_rate=0.0003)),
                run=SimpleNamespace(minibatch_size=batch_size),
            ),
            _train_data_size=num_events,
        )
        source.trainer.build_lr_schedule(peer)
    steps_per_epoch = num_events / batch_size
    rate = parse_schedule(schedule.published_schedule(steps_per_epoch))
    for epoch in [0, 0.25, 0.5, 0.999, 1, 1.5, 10, 20.9, 21, 21.1, 21.33, 22, 22.7, 24, 26.5, 29, 40]:
        step = round(epoch * steps_per_epoch)
        assert rate(step) == pytest.approx(float(peer.lr_calculator(step)), rel=1e-3)
