"""Which process holds which weights, and what the holders of one weight tell each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from portwright.runtime.pipelined.layout import Groups, Layout
from portwright.runtime.pipelined.stand_ins import named_weights

_BUCKET_BYTES = 64 << 20


class Holding:
    """The weights of a process: those of its pieces. What no piece uses lies with the first process.

    A weight that pieces on several processes use (a tied embedding) is held by each, and its gradients are summed.
    """

    def __init__(self, net: nn.Module, layout: Layout, uses: Mapping[int, frozenset[str]]) -> None:
        self._net, self._layout = net, layout
        self.positions_of: dict[str, tuple[int, ...]] = {}  # by first name
        for name, _ in named_weights(net):
            found = {layout.position_of(piece) for piece, names in uses.items() if name in names}
            self.positions_of[name] = tuple(sorted(found)) or (0,)
        self._first_name = {id(tensor): name for name, tensor in named_weights(net)}
        # Every name in the net's own state, tied ones under each of theirs.
        self.first_name_of = {full: self._first_name[id(tensor)] for full, tensor, _, _ in _all_weights(net)}

    def is_held(self, name: str) -> bool:
        return self._layout.position in self.positions_of[self.first_name_of[name]]

    def home_of(self, name: str) -> int:
        """The process that speaks for a weight: the first of its holders, in the first copy of the model."""
        return self._layout.rank_of(self.positions_of[self.first_name_of[name]][0], replica=0)

    def drop_others(self, device: torch.device) -> None:
        """Moves what is held to the device, and leaves of the rest only its shape."""
        replaced: dict[int, torch.Tensor] = {}
        for full, tensor, holder, key in list(_all_weights(self._net)):
            if self.is_held(full):
                if tensor.device != device:
                    if isinstance(tensor, nn.Parameter):
                        tensor.data = tensor.data.to(device)
                    else:
                        holder[key] = replaced.setdefault(id(tensor), tensor.to(device))
                continue
            if id(tensor) not in replaced:
                shape_only = torch.empty_like(tensor, device="meta")
                replaced[id(tensor)] = (
                    nn.Parameter(shape_only, requires_grad=tensor.requires_grad)
                    if isinstance(tensor, nn.Parameter)
                    else shape_only
                )
            holder[key] = replaced[id(tensor)]

    def shared_sets(self) -> list[tuple[int, ...]]:
        """Sets of positions whose processes hold weights together, with those of the other replicas."""
        return sorted(set(self.positions_of.values()))

    def sum_gradients(self, groups: Groups, named: Sequence[tuple[str, nn.Parameter]]) -> None:
        """Adds up the gradients of weights that several processes hold; all of them get the same sum."""
        by_set: dict[tuple[int, ...], list[nn.Parameter]] = {}
        for name, parameter in named:
            positions = self.positions_of[name]
            if len(positions) * self._layout.num_replicas > 1:
                by_set.setdefault(positions, []).append(parameter)
        for positions, parameters in sorted(by_set.items()):
            _sum_over(groups.columns(positions), parameters)

    def share_buffers(self, groups: Groups) -> None:
        """Gives the first replica's buffers to the others, whose batches were others."""
        if self._layout.num_replicas == 1:
            return
        for name, buffer in self._net.named_buffers():
            if self.is_held(name):
                positions = self.positions_of[name]
                source = self._layout.rank_of(positions[0], replica=0)
                dist.broadcast(buffer.detach(), source, group=groups.columns(positions))


def _all_weights(net: nn.Module) -> Iterator[tuple[str, torch.Tensor, dict[str, Any], str]]:
    """Each name of each parameter and buffer, with the place where it is kept."""
    for path, module in net.named_modules(remove_duplicate=False):
        for kind in ("_parameters", "_buffers"):
            for key, tensor in getattr(module, kind).items():
                if tensor is not None:
                    yield f"{path}.{key}" if path else key, tensor, getattr(module, kind), key


@torch.no_grad()
def _sum_over(group: dist.ProcessGroup, parameters: Sequence[nn.Parameter]) -> None:
    by_dtype: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        by_dtype.setdefault(parameter.dtype, []).append(parameter)
    for dtype in sorted(by_dtype, key=str):
        for bucket in _buckets(by_dtype[dtype]):
            # Which of them have a gradient travels along: one that has none anywhere must stay without.
            has = torch.tensor([p.grad is not None for p in bucket], dtype=dtype, device=bucket[0].device)
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
            grads = [grad.to_dense() if grad.is_sparse else grad for grad in grads]
            flat = torch.cat([has, *(grad.reshape(-1) for grad in grads)])
            dist.all_reduce(flat, group=group)
            present, start = (flat[: len(bucket)] > 0).tolist(), len(bucket)
            for parameter, is_present in zip(bucket, present, strict=True):
                if is_present:
                    # In the weight's own order of memory, which fused optimizers rely on.
                    summed = flat[start : start + parameter.numel()].view(parameter.shape)
                    parameter.grad = torch.empty_like(parameter).copy_(summed)
                start += parameter.numel()


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        bucket.append(parameter)
        size += parameter.numel() * parameter.element_size()
        if size >= _BUCKET_BYTES:
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket
