"""All random generators that a step can draw from, as tensors that fit into a checkpoint."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_all(seed: int, device: torch.device | None = None) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    if device is not None and device.type not in ("cpu", "cuda"):  # torch.manual_seed has seeded these two
        _device_module(device).manual_seed_all(seed)


def _device_module(device: torch.device) -> Any:
    """torch.cuda, or the module that a vendor's package adds to torch, such as torch.hpu."""
    return getattr(torch, device.type)


def capture_rng(device: torch.device) -> dict[str, torch.Tensor]:
    version, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    states = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor([version, *words], dtype=torch.int64),
        "python_gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
        "numpy": torch.tensor([int(position), int(has_gauss), *keys.tolist()], dtype=torch.int64),  # type: ignore[union-attr]
        "numpy_gauss": torch.tensor([cached], dtype=torch.float64),
    }
    if device.type != "cpu":
        states[device.type] = _device_module(device).get_rng_state(device).cpu()
    return states


def restore_rng(states: Mapping[str, torch.Tensor], device: torch.device) -> None:
    if "torch" in states:
        # Copied, because torch reads the state from the start of its storage, whatever the tensor's offset into it.
        torch.set_rng_state(states["torch"].to("cpu", torch.uint8, copy=True))
    if "python" in states:
        version, *words = states["python"].tolist()
        gauss = states["python_gauss"].tolist()
        random.setstate((version, tuple(words), gauss[0] if gauss else None))
    if "numpy" in states:
        position, has_gauss, *keys = states["numpy"].tolist()
        np.random.set_state(
            ("MT19937", np.array(keys, dtype=np.uint32), position, has_gauss, states["numpy_gauss"].item())
        )
    if device.type != "cpu" and device.type in states:
        _device_module(device).set_rng_state(states[device.type].to("cpu", torch.uint8), device)


@contextmanager
def untouched_rng(device: torch.device) -> Iterator[None]:
    """Restores every generator after the block, so that evaluation never changes training."""
    states = capture_rng(device)
    try:
        yield
    finally:
        restore_rng(states, device)
