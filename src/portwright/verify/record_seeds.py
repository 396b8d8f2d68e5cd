"""Random numbers of a recorded script: each purpose has its own stream, independent of the others."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from portwright.data.seeding import derive_seed, seed_process
from portwright.patched import in_place_of


class Streams:
    """Seeds and saves the global generators of torch, numpy and random."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._has_cuda = torch.cuda.is_available()
        self._num_inits = 0
        self._num_generators = 0
        self._first: dict[str, Any] = {}
        self._own_depth = 0  # number of open `own` blocks
        self._init_depth = 0

    def derive(self, *parts: int | str) -> int:
        return derive_seed("verify", self._seed, *parts)

    def start(self, *parts: int | str) -> None:
        """Seeds the global generators for a stream."""
        seed = self.derive(*parts)
        seed_process(seed)
        if self._has_cuda:
            torch.cuda.manual_seed_all(seed)

    @property
    def is_own(self) -> bool:
        """Whether an `own` block is open."""
        return self._own_depth > 0

    @contextmanager
    def own(self, *parts: int | str) -> Iterator[None]:
        """Seeds the generators for the block, and restores their state after it."""
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()
        cuda = torch.cuda.get_rng_state_all() if self._has_cuda else []
        self._own_depth += 1
        self.start(*parts)
        try:
            yield
        finally:
            self._own_depth -= 1
            torch.set_rng_state(before[0])
            random.setstate(before[1])
            np.random.set_state(before[2])
            if cuda:
                torch.cuda.set_rng_state_all(cuda)

    @contextmanager
    def initialising(self) -> Iterator[None]:
        """Wraps code that initialises weights: the k-th outermost block that draws anything has the k-th stream."""
        if self._init_depth:
            yield
            return
        self._init_depth += 1
        try:
            with self.own("init", self._num_inits):
                before = torch.get_rng_state()
                try:
                    yield
                finally:
                    if not torch.equal(before, torch.get_rng_state()):
                        self._num_inits += 1
        finally:
            self._init_depth -= 1

    def guard_seeding(self) -> None:
        """Replaces the functions that seed globally.

        The first seed of a script is replaced by the recording's, since a port may use another value; other seeds stay.
        Seeding without a value uses a fixed one instead of the clock.
        """
        torch.manual_seed = torch.random.manual_seed = self._guard("torch", torch.manual_seed)
        np.random.seed = self._guard("numpy", np.random.seed)
        random.seed = self._guard("random", random.seed)
        torch.seed = torch.random.seed = lambda: torch.manual_seed(0).initial_seed()

        @in_place_of(np.random, "default_rng")
        def seeded_rng(default_rng: Any, seed: Any = None) -> Any:
            if seed is None:
                self._num_generators += 1
                seed = self.derive("generator", self._num_generators)
            return default_rng(seed)

    def _guard(self, name: str, seeding: Any) -> Any:
        @functools.wraps(seeding)
        def seed(value: Any = None, *args: Any, **kwargs: Any) -> Any:
            value = kwargs.pop("seed", kwargs.pop("a", value))
            if value is None:
                value = 0
            if not self._own_depth:
                first = self._first.setdefault(name, value)
                if type(first) is type(value) and isinstance(first, int | float | str) and first == value:
                    value = self.derive("process") % 2**32
            return seeding(value, *args, **kwargs)

        return seed
