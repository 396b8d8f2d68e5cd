"""Structures of tensors: taken apart, put together, and joined along the batch."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generator, List

import torch

from portwright.emulate.poptorch._logging import logger
from portwright.emulate.poptorch._refused import partly, refused

ATTR_PREFIX = "attr:"

custom_arg_parsers: dict[type, Any] = {}
"""By type of argument, the poptorch.ICustomArgParser that takes it apart."""


def deprecated(domain, since_version, reason):
    """Marks a function that a later version drops: every call of it is logged."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def warned(*args: Any, **kwargs: Any) -> Any:
            logger.warning(
                "%s.%s is deprecated since %s: %s.", domain, function.__name__, since_version, reason
            )
            return function(*args, **kwargs)

        return warned

    return decorate


def assert_signatures_match(poptorch_method, reference_method):
    """Refuses a method whose parameters differ from those of another."""
    ours = inspect.signature(poptorch_method).parameters
    theirs = inspect.signature(reference_method).parameters
    if ours != theirs:
        raise AssertionError(f"parameters {list(ours.values())} are not {list(theirs.values())}.")


@partly(
    "attributes given as JSON are read; 'attr:' with an address in memory, for custom operations, is refused."
)
def accessAttributes(attribute_id_str):
    """Gives the attributes of a custom operation as a dictionary."""
    if not isinstance(attribute_id_str, str):
        raise ValueError(f"attributes come as a str, not {attribute_id_str!r}.")
    if attribute_id_str.startswith("{"):
        return json.loads(attribute_id_str)
    raise ValueError(f"attributes come as a JSON object, not {attribute_id_str!r}.")


def isOnIpu(x):
    """Whether a tensor is on an IPU; under the emulator they are all on the CPU."""
    return x.device.type == "ipu"


def getCustomParser(custom_type_instance):
    """The parser that was registered for a value's class, or for one that it inherits from; None without one."""
    for kind in (type(custom_type_instance), *custom_arg_parsers):
        if isinstance(custom_type_instance, kind) and kind in custom_arg_parsers:
            return custom_arg_parsers[kind]
    return None


def flattenTensorStructure(tensors, canonical_structure=None):
    """All tensors of nested lists, tuples, dicts and registered types; dicts in the order of the canonical structure."""
    if (custom := getCustomParser(tensors)) is not None:
        return list(custom.yieldTensors(tensors))
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    like = tensors if canonical_structure is None else canonical_structure
    flat: list[torch.Tensor] = []
    for place in _places(tensors, like):
        flat += flattenTensorStructure(tensors[place], like[place])
    return flat


def _places(value: Any, like: Any) -> Iterable[Any]:
    """By what the parts of a structure are found in it, in the order of another; nothing is in what is no structure."""
    if isinstance(value, dict):
        return list(like)
    return range(len(value)) if isinstance(value, (list, tuple)) else ()


def reconstructTensorStructure(structure, values, filter_fn=lambda t: True):
    """The same structure with other tensors: those for which `filter_fn` is true, in the order of flattening."""
    return _rebuild(structure, iter(values), filter_fn)


def _rebuild(value: Any, tensors: Iterator[torch.Tensor], wanted: Callable[[torch.Tensor], bool]) -> Any:
    if (custom := getCustomParser(value)) is not None:
        return custom.reconstruct(value, tensors)
    if isinstance(value, torch.Tensor):
        return next(tensors) if wanted(value) else value
    if not isinstance(value, (dict, list, tuple)):
        return value
    parts = [_rebuild(value[place], tensors, wanted) for place in _places(value, value)]
    if isinstance(value, dict):
        return type(value)(dict(zip(value, parts, strict=True)))
    return (
        type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    )  # a named tuple takes each


def combine_batch_tensors_gen(tensors: List[List[torch.Tensor]]) -> Generator[torch.Tensor, None, None]:
    """Joins the first tensors of all batches, then the second ones, and so on."""
    for parts in zip(*tensors, strict=True):
        yield torch.cat(parts)


def combined_batch_generator(dataloader_iterator, num_batches_to_combine, drop_last=True):
    """Joins every `num_batches_to_combine` batches into one; fewer are left at the end, and dropped or joined."""
    held: list[list[torch.Tensor]] = []
    batch = None
    for batch in dataloader_iterator:
        held.append(flattenTensorStructure(batch))
        if len(held) == num_batches_to_combine:
            yield reconstructTensorStructure(batch, combine_batch_tensors_gen(held))
            held = []
    if held and not drop_last:
        yield reconstructTensorStructure(batch, combine_batch_tensors_gen(held))


@refused("a tensor has no ID of a device here; compare tensors themselves.")
def getIpuTensorId(x: torch.Tensor): ...
