"""What lives on the emulated IPUs between calls: weights, each replica's buffers, and the random state."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence

import torch

from portwright.emulate.poptorch._errors import refuse
from portwright.emulate.poptorch._logging import logger


def on_device(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A private copy of a host tensor in the type that an IPU keeps it in."""
    if tensor.is_complex() or tensor.dtype == torch.bfloat16:
        raise refuse(f"{name} is {tensor.dtype}, which IPUs do not have. Use torch.float32 or torch.half.")
    if tensor.device.type != "cpu":
        raise refuse(
            f"{name} is on {tensor.device}: PopTorch takes host tensors. Leave the model on the CPU."
        )
    copy = tensor.detach().clone()
    if tensor.dtype == torch.float64:
        logger.warning("%s is torch.float64, which IPUs do not have: it is kept there as torch.float32", name)
        copy = copy.float()
    return copy


class Image:
    """The device's own copies; the host's tensors are read and written only when somebody asks for it."""

    def __init__(
        self, parameters: Mapping[str, torch.Tensor], buffers: Mapping[str, torch.Tensor], replicas: int
    ) -> None:
        self.parameters = {name: on_device(name, tensor) for name, tensor in parameters.items()}
        self._buffers = [
            {name: on_device(name, tensor) for name, tensor in buffers.items()} for _ in range(replicas)
        ]
        self._views = [{**self.parameters, **mine} for mine in self._buffers]

    def weights(self, replica: int = 0) -> dict[str, torch.Tensor]:
        """All tensors of one replica by name; programs and optimizers change them in place."""
        return self._views[replica]

    def read_host(self, host: Mapping[str, torch.Tensor], names: Sequence[str] | None = None) -> None:
        """Copies host tensors to every replica."""
        for name in host if names is None else names:
            for view in self._views:
                with torch.no_grad():
                    view[name].copy_(host[name].detach())

    def write_host(self, host: Mapping[str, torch.Tensor]) -> None:
        """Copies the weights, and the first replica's buffers, into the host's tensors that are still as they were."""
        with torch.no_grad():
            for name, tensor in host.items():
                mine = self._views[0].get(name)
                if mine is not None and mine.shape == tensor.shape:
                    tensor.data.copy_(mine)


class RandomState:
    """The random numbers of the device: its own sequence, apart from the host's generator."""

    def __init__(self, seed: int | None) -> None:
        self.set([secrets.randbits(32) if seed is None else seed])

    def get(self) -> list[int]:
        """The seed, followed by the state that has come of it."""
        return [self._seed, *self._state.tolist()]

    def set(self, values: Sequence[int]) -> None:
        """Takes a seed alone, or what get() gave."""
        if not values or not all(isinstance(value, int) for value in values):
            raise refuse("a random state is a list of integers: a seed, or what rng_state gave before.")
        generator = torch.Generator()
        generator.manual_seed(values[0])
        if len(values) > 1:
            try:
                generator.set_state(torch.tensor(values[1:], dtype=torch.uint8))
            except (RuntimeError, TypeError) as error:
                raise refuse(
                    f"this is no random state of the emulator ({len(values)} numbers): {error}"
                ) from error
        self._seed = values[0]
        self._state = generator.get_state()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Has torch draw from the device's sequence, and leaves the host's as it was."""
        host = torch.get_rng_state()
        torch.set_rng_state(self._state)
        try:
            yield
            self._state = torch.get_rng_state()
        finally:
            torch.set_rng_state(host)
