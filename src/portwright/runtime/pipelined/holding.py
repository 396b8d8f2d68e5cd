"""Which process holds which weights, what the holders of one weight exchange, and the state of the whole model from all processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from portwright.runtime.optimizers import optimizer_state
from portwright.runtime.pipelined.schedules import Groups, Layout
from portwright.runtime.pipelined.weights import all_weights, named_weights
from portwright.runtime.world import World

Named = tuple[str, torch.Tensor]
_BUCKET_BYTES = 64 << 20


class Holding:
    """The weights of a process: those of its pieces. The first process holds the weights that no piece uses.

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
        self.first_name_of = {full: self._first_name[id(tensor)] for full, tensor, _, _ in all_weights(net)}

    def is_held(self, name: str) -> bool:
        return self._layout.position in self.positions_of[self.first_name_of[name]]

    def home_of(self, name: str) -> int:
        """The process whose copy of a weight is saved: the first of its holders, in the first copy of the model."""
        return self._layout.rank_of(self.positions_of[self.first_name_of[name]][0], replica=0)

    def parameter_of(self, label: str) -> str:
        """A parameter's own name has no slash in it; the name of its state may be anything."""
        name = label.rpartition("/")[0]
        while name and name not in self.first_name_of:
            name = name.rpartition("/")[0]
        return name

    def drop_others(self, device: torch.device) -> None:
        """Moves what is held to the device, and leaves of the rest only its shape."""
        replaced: dict[int, torch.Tensor] = {}
        for full, tensor, holder, key in list(all_weights(self._net)):
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
        """Gives the first replica's buffers to the others, which saw other batches."""
        if self._layout.num_replicas == 1:
            return
        for name, buffer in self._net.named_buffers():
            if self.is_held(name):
                positions = self.positions_of[name]
                source = self._layout.rank_of(positions[0], replica=0)
                dist.broadcast(buffer.detach(), source, group=groups.columns(positions))


@torch.no_grad()
def _sum_over(group: dist.ProcessGroup, parameters: Sequence[nn.Parameter]) -> None:
    by_dtype: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        by_dtype.setdefault(parameter.dtype, []).append(parameter)
    for dtype in sorted(by_dtype, key=str):
        for bucket in _buckets(by_dtype[dtype]):
            # The processes also add up who has a gradient: a weight that has none anywhere must stay without.
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


def gather_model(
    own: Mapping[str, torch.Tensor], holding: Holding, world: World, group: dist.ProcessGroup
) -> Iterator[Named]:
    """Every tensor of the model; on other processes than the first, one that is not held is a shape without data."""
    for name, value in own.items():
        home = holding.home_of(name) if name in holding.first_name_of else 0
        yield name, _bring(value, home, world, group)


def gather_optimizer(
    optimizer: torch.optim.Optimizer,
    names: dict[torch.Tensor, str],
    holding: Holding,
    world: World,
    group: dist.ProcessGroup,
) -> Iterator[Named]:
    """The optimizer's state of every parameter, each from that parameter's home process."""
    own = [
        (label, tensor)
        for label, tensor in optimizer_state(optimizer, names)
        if holding.home_of(holding.parameter_of(label)) == world.rank
    ]
    described = world.gather([(label, tuple(tensor.shape), tensor.dtype) for label, tensor in own])
    tensors = dict(own)
    for rank, items in enumerate(described):
        for label, shape, dtype in items:
            value = tensors[label] if rank == world.rank else torch.empty(shape, dtype=dtype, device="meta")
            yield label, _bring(value, rank, world, group)


def _bring(value: torch.Tensor, home: int, world: World, group: dist.ProcessGroup) -> torch.Tensor:
    if home == 0:
        return value
    if world.rank == home:
        dist.send(_as_bytes(value.detach().cpu()), 0, group=group)
    elif world.rank == 0:
        received = torch.empty(value.shape, dtype=value.dtype)
        dist.recv(_as_bytes(received), home, group=group)
        return received
    return value


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Gloo does not know every type, but bytes it does."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def keep_held(optimizer: torch.optim.Optimizer, held: Sequence[torch.Tensor], device: torch.device) -> None:
    """Leaves an optimizer the parameters of this process, in its groups as they are."""
    known = {id(parameter) for parameter in held}
    for group in optimizer.param_groups:
        kept = [place for place, parameter in enumerate(group["params"]) if id(parameter) in known]
        for key in ("params", "param_names"):
            if key in group:
                group[key] = [group[key][place] for place in kept]
    for parameter in [parameter for parameter in optimizer.state if id(parameter) not in known]:
        del optimizer.state[parameter]
    for parameter, state in optimizer.state.items():  # made already by some, on the old device
        moved: dict[str, Any] = {
            key: value.to(device)
            for key, value in state.items()
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape and value.ndim
        }
        state.update(moved)
