"""Structures of tensors: taken apart, put together, and joined along the batch."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterator
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
    return list(_flatten(tensors, canonical_structure))


def _flatten(value: Any, like: Any) -> Iterator[torch.Tensor]:
    parser = getCustomParser(value)
    if parser is not None:
        yield from parser.yieldTensors(value)
    elif isinstance(value, dict):
        for key in value if like is None else like:
            yield from _flatten(value[key], None if like is None else like[key])
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _flatten(item, None if like is None else like[index])
    elif isinstance(value, torch.Tensor):
        yield value


def reconstructTensorStructure(structure, values, filter_fn=lambda t: True):
    """The same structure with other tensors: those for which `filter_fn` is true, in the order of flattening."""
    return _rebuild(structure, iter(values), filter_fn)


def _rebuild(value: Any, tensors: Iterator[torch.Tensor], wanted: Callable[[torch.Tensor], bool]) -> Any:
    parser = getCustomParser(value)
    if parser is not None:
        return parser.reconstruct(value, tensors)
    if isinstance(value, dict):
        return type(value)({key: _rebuild(item, tensors, wanted) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        items = [_rebuild(item, tensors, wanted) for item in value]
        return (
            type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        )  # a named tuple takes each
    if isinstance(value, torch.Tensor) and wanted(value):
        return next(tensors)
    return value


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
