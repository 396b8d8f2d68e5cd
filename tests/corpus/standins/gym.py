"""Not gym: a pole on a cart, with the usual equations of motion and a generator of its own."""

from types import SimpleNamespace

import numpy as np


class _CartPole:
    spec = SimpleNamespace(reward_threshold=475.0)

    def __init__(self):
        self._rng = np.random.RandomState(0)

    def reset(self, seed=None):
        if seed is not None:
            self._rng = np.random.RandomState(seed)
        self._state = self._rng.uniform(-0.05, 0.05, 4)
        return self._state.astype(np.float32), {}

    def step(self, action):
        _, speed, angle, turning = self._state
        force, sine, cosine = (10.0 if action == 1 else -10.0), np.sin(angle), np.cos(angle)
        push = (force + 0.05 * turning**2 * sine) / 1.1
        turned = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        moved = push - 0.05 * turned * cosine / 1.1
        self._state = self._state + 0.02 * np.array([speed, moved, turning, turned])
        is_over = bool(abs(self._state[0]) > 2.4 or abs(self._state[2]) > 0.2095)
        return self._state.astype(np.float32), 1.0, is_over, False, {}

    def render(self):
        pass


def make(name):
    if name != "CartPole-v1":
        raise ValueError(f"this stand-in has no {name}")
    return _CartPole()
