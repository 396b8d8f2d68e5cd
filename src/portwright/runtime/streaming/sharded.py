"""The collectives of weight streaming: each thread that talks to the other processes has groups of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from portwright.errors import UserError
from portwright.runtime.world import World

_ONE_BUCKET = 1 << 20  # elements from which a gradient is worth a collective of its own
_SAME_CALLS = "Every process must call the same layers in the same order: draw what is skipped from a generator with the same seed."
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


class Ranks:
    """What the processes of a streaming session do together.

    The fetch thread gathers weights, and the thread that runs backward gathers gradients. Only one of them uses a group, since the
    order of its collectives must be the same everywhere. Before the bytes move, the processes say over the host which
    layer they mean: parts of different layers would otherwise be put together without a word.
    """

    def __init__(self, world: World, device: torch.device) -> None:
        self.rank, self.size = world.rank, world.size
        self._is_nccl = device.type == "cuda" and "nccl" in world.backend
        self._weights, self._gradients = (dist.new_group(backend=world.backend) for _ in range(2))
        if self._is_nccl:
            if os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
                raise UserError(
                    "CUDA_DEVICE_MAX_CONNECTIONS=1 puts all streams of a GPU into one queue, where gathering weights and averaging "
                    "gradients could wait for each other for ever.",
                    "Unset it, or set it to 8 or more.",
                )
            self._layers, self._talk = (dist.new_group(backend="gloo") for _ in range(2))
            for group in (self._weights, self._gradients):
                # NCCL connects at a group's first use, which must not be in two threads at once.
                dist.all_reduce(torch.zeros(1, device=device), group=group)
            torch.cuda.synchronize(device)
        else:
            self._layers, self._talk = self._weights, self._gradients

    # -- the fetch thread -----------------------------------------------------------------------------------

    def agree_on_layer(self, index: int, names: Sequence[str]) -> None:
        """All processes are about to gather this layer."""
        indexes = [int(told[0]) for told in self._tell([index], self._layers)]
        self._check_same(indexes, lambda i: f"asks for the layer '{names[i]}'")

    def gather(self, whole: Tensor) -> None:
        """Fills bytes of which each process has its chunk already."""
        chunks = whole.chunk(self.size)
        if self._is_nccl:
            dist.all_gather_into_tensor(whole, chunks[self.rank], group=self._weights)
        else:
            dist.all_gather(list(chunks), chunks[self.rank].clone(), group=self._weights)

    # -- the thread of backward -----------------------------------------------------------------------------

    def agree_on_gradients(self, index: int, has: Sequence[bool], names: Sequence[str]) -> list[bool]:
        """Which weights of a layer have a gradient in any process; index -1: backward is over."""
        told = self._tell([index, *map(int, has)], self._talk)
        self._check_same(
            [int(values[0]) for values in told],
            lambda i: "is through with backward" if i < 0 else f"has gradients of the layer '{names[i]}'",
        )
        return [bool(flag) for flag in torch.stack(told)[:, 1:].amax(0).tolist()] if has else []

    def average(self, flat: Tensor) -> Tensor:
        """This process's chunk of the mean over all processes; the rest of `flat` is anything afterwards."""
        flat.div_(self.size)
        own = flat.chunk(self.size)[self.rank]
        if self._is_nccl:
            dist.reduce_scatter_tensor(own, flat, group=self._gradients)
        else:  # older gloo cannot scatter what it reduces
            dist.all_reduce(flat, group=self._gradients)
        return own

    def sum(self, values: Tensor) -> Tensor:
        """Over all processes, in place, on whichever device."""
        dist.all_reduce(values, group=self._gradients if values.is_cuda else self._talk)
        return values

    def send_from_first(self, tensors: Iterable[Tensor]) -> None:
        """Gives the first process's values to all; small tensors are sent together."""
        small: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for tensor in tensors:
            if tensor.numel() >= _ONE_BUCKET:
                self._send([tensor.detach()])
            elif tensor.numel():
                small.setdefault((tensor.dtype, tensor.device), []).append(tensor.detach())
        for together in small.values():
            self._send(together)

    def _send(self, tensors: list[Tensor]) -> None:
        joined = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.broadcast(joined, 0, group=self._gradients if joined.is_cuda else self._talk)
        if self.rank > 0:
            parts = torch.split(joined, [tensor.numel() for tensor in tensors])
            for tensor, part in zip(tensors, parts, strict=True):
                tensor.copy_(part.view(tensor.shape))

    def assemble(self, whole: Tensor, own: Tensor, bounds: Sequence[tuple[int, int]]) -> None:
        """Fills a flat host tensor of which each process has the elements within its bounds."""
        begin, end = bounds[self.rank]
        whole[begin:end].copy_(own)
        for rank, (begin, end) in enumerate(bounds):
            if end > begin:  # as bytes: gloo does not know all types
                dist.broadcast(whole[begin:end].view(torch.uint8), rank, group=self._talk)

    def make_equal(self, weights: Sequence[Tensor]) -> None:
        """Gives the first process's values to weights that another process has made differently."""
        own = torch.tensor([_checksum(weight) for weight in weights], dtype=torch.int64)
        told = torch.stack(self._exchange(own, self._talk))
        differs = (told != told[0]).any(0).tolist()
        self.send_from_first(weight for weight, is_other in zip(weights, differs, strict=True) if is_other)

    def average_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Averages as DDP does; a gradient that no process has stays None, one that some have counts as zero in the others."""
        parameters = [parameter for parameter in parameters if parameter.requires_grad]
        if not parameters:
            return
        missing = [i for i, parameter in enumerate(parameters) if parameter.grad is None]
        flats = [_flat_gradient(parameter) for parameter in parameters]
        has = torch.ones(len(parameters), dtype=torch.float32, device=flats[0].device)
        for index in missing:
            has[index] = 0.0
        buckets: dict[torch.dtype, list[Tensor]] = {}
        for flat in flats:
            if flat.numel() >= _ONE_BUCKET:
                self.sum(flat.div_(self.size))
            else:
                buckets.setdefault(flat.dtype, []).append(flat)
        for small in buckets.values():
            joined = torch.cat(small).div_(self.size)
            parts = torch.split(self.sum(joined), [flat.numel() for flat in small])
            torch._foreach_copy_(small, list(parts))
        self.sum(has)
        if missing:  # only then does the host have to know
            everywhere = has.tolist()
            for index in missing:
                if not everywhere[index]:
                    parameters[index].grad = None

    # -- both -----------------------------------------------------------------------------------------------

    def _tell(self, values: Sequence[int], group: dist.ProcessGroup) -> list[Tensor]:
        return self._exchange(torch.tensor(values, dtype=torch.int64), group)

    def _exchange(self, own: Tensor, group: dist.ProcessGroup) -> list[Tensor]:
        told = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(told, own, group=group)
        return told

    def _check_same(self, indexes: list[int], describe: Callable[[int], str]) -> None:
        other = next((rank for rank, index in enumerate(indexes) if index != indexes[0]), None)
        if other is None:
            return
        raise UserError(
            f"the processes do not stream the same layers: process 0 {describe(indexes[0])}, process {other} "
            f"{describe(indexes[other])}.",
            _SAME_CALLS,
        )


def _checksum(weight: Tensor) -> int:
    flat = weight.detach().reshape(-1)
    return int(flat.view(_INTEGERS.get(flat.element_size(), torch.int64)).sum(dtype=torch.int64))


def _flat_gradient(parameter: nn.Parameter) -> Tensor:
    """A flat view of the gradient, in the order of the weight's memory, so that changes reach the gradient."""
    grad = parameter.grad
    if grad is None:
        grad = torch.zeros_like(parameter, requires_grad=False)
    elif grad.is_sparse or grad.stride() != parameter.stride():
        dense = grad.to_dense() if grad.is_sparse else grad
        grad = torch.empty_like(parameter, requires_grad=False).copy_(dense)
    parameter.grad = grad
    if grad.is_contiguous():
        return grad.view(-1)
    return grad.as_strided((grad.numel(),), (1,), grad.storage_offset())
