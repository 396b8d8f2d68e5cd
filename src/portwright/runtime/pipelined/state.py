"""The state of a model that lies over several processes, as if it were in one: by canonical names, to the first process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from portwright.runtime.optimizers import optimizer_state
from portwright.runtime.pipelined.holding import Holding
from portwright.runtime.world import World
from portwright.target import Shard

Named = tuple[str, torch.Tensor]


def gather_model(net: nn.Module, holding: Holding, world: World, group: dist.ProcessGroup) -> Iterator[Named]:
    """Every tensor of the model; on other processes than the first, one that is not held is a shape without data."""
    for name, value in net.state_dict().items():
        if isinstance(value, torch.Tensor):
            home = holding.home_of(name) if name in holding.first_name_of else 0
            yield name, _bring(value, home, world, group)


def gather_optimizer(
    optimizer: torch.optim.Optimizer,
    names: dict[torch.Tensor, str],
    holding: Holding,
    world: World,
    group: dist.ProcessGroup,
) -> Iterator[Named]:
    """The optimizer's state of every parameter, each from the process that speaks for it."""
    own = [
        (label, tensor)
        for label, tensor in optimizer_state(optimizer, names)
        if holding.home_of(_parameter_of(label, holding)) == world.rank
    ]
    described = world.gather([(label, tuple(tensor.shape), tensor.dtype) for label, tensor in own])
    tensors = dict(own)
    for rank, items in enumerate(described):
        for label, shape, dtype in items:
            value = tensors[label] if rank == world.rank else torch.empty(shape, dtype=dtype, device="meta")
            yield label, _bring(value, rank, world, group)


def take_held(
    shards: Iterable[Shard], own: Mapping[str, torch.Tensor], holding: Holding, rank: int
) -> tuple[list[Named], dict[str, torch.Tensor]]:
    """Puts the weights that are held here in their places; gives the optimizer's state of them, and this process's draws."""
    optimizer: list[Named] = []
    generators: dict[str, torch.Tensor] = {}
    for shard in shards:
        kind, _, name = shard.name.partition("/")
        if kind == "model":
            if not own[name].is_meta:
                with torch.no_grad():
                    own[name].copy_(shard.tensor)
        elif kind == "optimizer":
            parameter = _parameter_of(name, holding)
            if not parameter or holding.is_held(
                parameter
            ):  # one of no parameter at all is for the optimizer to refuse
                optimizer.append((name, shard.tensor))
        elif kind == "rng":
            owner, _, generator = name.partition("/")
            if owner == str(rank):
                generators[generator] = shard.tensor
    return optimizer, generators


def _parameter_of(label: str, holding: Holding) -> str:
    """A parameter's own name has no slash in it; the name of its state may be anything."""
    name = label.rpartition("/")[0]
    while name and name not in holding.first_name_of:
        name = name.rpartition("/")[0]
    return name


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
    for parameter, state in optimizer.state.items():  # some make it at once, where the weight was
        moved: dict[str, Any] = {
            key: value.to(device)
            for key, value in state.items()
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape and value.ndim
        }
        state.update(moved)
