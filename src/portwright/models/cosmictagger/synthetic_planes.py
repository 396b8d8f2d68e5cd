"""Events that need no file: straight cosmic tracks, and a neutrino's tracks and shower, seen by three planes of wires.

Every plane shares the drift time (rows) and has wires of its own angle (columns), so that the three images are projections
of one event. A neutrino's particles start at one vertex inside, are short, and leave more charge than cosmic muons do.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

Array = np.ndarray[Any, Any]

WIRE_ANGLES = (math.pi / 3, -math.pi / 3, 0.0)
COSMIC, NEUTRINO = 1, 2
MUON_CHARGE = 1.0  # a step's mean deposit; the others' are relative to it
MEAN_COSMICS = 5
NOISE_SHARE = 0.002  # of pixels that show a little charge and are background


@dataclass(frozen=True)
class Deposits:
    """Charge at points of the unit cube (drift, height, length), all of one label."""

    points: Array  # [number, 3]
    charge: Array  # [number]
    label: int


class SyntheticPlanes(Dataset[dict[str, Tensor]]):
    """Events drawn from `seed`, `name` and their index, and from nothing else."""

    def __init__(self, num_samples: int, image_size: tuple[int, int], seed: int, name: str) -> None:
        self.num_samples, self.image_size = num_samples, image_size
        self.seed, self.name = seed, name

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not 0 <= index < self.num_samples:
            raise IndexError(f"event {index} of {self.num_samples}")
        random = np.random.default_rng([self.seed, zlib.crc32(self.name.encode()), index])
        images, labels = draw_event(random, self.image_size)
        return {"image": torch.from_numpy(images), "label": torch.from_numpy(labels)}


def draw_event(random: np.random.Generator, image_size: tuple[int, int]) -> tuple[Array, Array]:
    """Charge as float32 and labels as int32, each [3, height, width]."""
    spacing = 0.5 / max(image_size)
    parts = [draw_cosmic(random, spacing) for _ in range(1 + random.poisson(MEAN_COSMICS - 1))]
    parts += draw_neutrino(random, spacing)
    images = np.zeros((len(WIRE_ANGLES), *image_size), np.float32)
    labels = np.zeros((len(WIRE_ANGLES), *image_size), np.int32)
    for part in parts:  # the neutrino last: where it crosses a cosmic track, the pixel is the neutrino's
        for plane, angle in enumerate(WIRE_ANGLES):
            rows, columns, inside = project(part.points, angle, image_size)
            np.add.at(images[plane], (rows, columns), part.charge[inside].astype(np.float32))
            labels[plane, rows, columns] = part.label
    is_noise = random.random(images.shape) < NOISE_SHARE
    images += np.where(is_noise, random.exponential(0.3 * MUON_CHARGE, images.shape), 0).astype(np.float32)
    return images, labels


def project(points: Array, angle: float, image_size: tuple[int, int]) -> tuple[Array, Array, Array]:
    """Rows and columns of the points that a plane sees, and which they are."""
    height, width = image_size
    across = (points[:, 2] - 0.5) * math.cos(angle) + (points[:, 1] - 0.5) * math.sin(angle)
    rows = np.floor(points[:, 0] * height).astype(np.int64)
    # The widest plane's wires span the cube's diagonal as seen from its angle.
    columns = np.floor((0.5 + across / (math.cos(math.pi / 3) + math.sin(math.pi / 3))) * width).astype(
        np.int64
    )
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    return rows[inside], columns[inside], inside


def draw_cosmic(random: np.random.Generator, spacing: float) -> Deposits:
    """A muon from above to below, through the whole detector."""
    start = np.array([random.random(), 1.0, random.random()])
    end = np.array([random.random(), 0.0, random.random()])
    return make_track(random, start, end, MUON_CHARGE, spacing, COSMIC)


def draw_neutrino(random: np.random.Generator, spacing: float) -> list[Deposits]:
    vertex = 0.2 + 0.6 * random.random(3)
    particles = [
        make_track(
            random,
            vertex,
            vertex + draw_direction(random) * random.uniform(0.1, 0.3),
            2.0 * MUON_CHARGE,
            spacing,
            NEUTRINO,
        )
    ]
    for _ in range(random.integers(1, 3)):
        end = vertex + draw_direction(random) * random.uniform(0.03, 0.1)
        particles.append(make_track(random, vertex, end, 4.0 * MUON_CHARGE, spacing, NEUTRINO))
    if random.random() < 0.7:
        particles.append(make_shower(random, vertex, draw_direction(random), spacing))
    return particles


def draw_direction(random: np.random.Generator) -> Array:
    drawn = random.normal(size=3)
    return drawn / np.linalg.norm(drawn)


def make_track(
    random: np.random.Generator, start: Array, end: Array, charge: float, spacing: float, label: int
) -> Deposits:
    num_points = max(2, int(np.linalg.norm(end - start) / spacing))
    along = np.linspace(0.0, 1.0, num_points)[:, None]
    points = start + (end - start) * along + random.normal(scale=spacing, size=(num_points, 3))
    return Deposits(points, charge * random.gamma(4.0, 0.25, num_points), label)


def make_shower(random: np.random.Generator, vertex: Array, direction: Array, spacing: float) -> Deposits:
    """A cone of scattered deposits: thin at its start, densest after a while, then running out."""
    num_points = int(0.25 / spacing)
    along = random.gamma(2.0, 0.06, num_points)[:, None]
    aside = random.normal(size=(num_points, 3)) * 0.12 * along
    return Deposits(
        vertex + direction * along + aside, 2.5 * MUON_CHARGE * random.gamma(2.0, 0.5, num_points), NEUTRINO
    )
