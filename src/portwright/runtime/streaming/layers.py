"""Which modules of a model are streamed: the repeated layers, found in its lists, or named by the user."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from portwright.errors import UserError, suggest

# A module that holds more than this share of all weights and has lists inside is looked into: streaming it whole would save nothing.
_LARGE = 0.25
_LISTS = (nn.ModuleList, nn.Sequential)
_WITHOUT_FORWARD = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def find_layers(net: nn.Module, patterns: Sequence[str] | None = None) -> list[tuple[str, nn.Module]]:
    """The modules to stream, in the order of the model, none inside another.

    Without patterns: items of ModuleLists and Sequentials; of a model that has none, its children. `patterns` are module
    paths with * and ?; the outermost module that a pattern names is taken.
    """
    _refuse_compiled(net)
    found = _named(net, patterns) if patterns is not None else _in_lists(net)
    if not found:
        raise UserError(
            f"{type(net).__name__} has no layers that could be streamed: no module in it has weights.",
            "Use runconfig.execution: resident.",
        )
    return found


def _refuse_compiled(net: nn.Module) -> None:
    for path, module in net.named_modules():
        if (
            getattr(module, "_compiled_call_impl", None) is not None
            or type(module).__name__ == "OptimizedModule"
        ):
            raise UserError(
                f"'{path or type(net).__name__}' is compiled, and compiled code holds on to its weights, which are to be streamed.",
                "Leave torch.compile out of the model, or use runconfig.execution: resident.",
            )


def _named(net: nn.Module, patterns: Sequence[str]) -> list[tuple[str, nn.Module]]:
    modules = {path: module for path, module in net.named_modules() if path and _has_weights(module)}
    found: list[tuple[str, nn.Module]] = []
    for pattern in patterns:
        if not any(fnmatchcase(path, pattern) for path in modules):
            raise UserError(
                f"runconfig.streaming.layers: '{pattern}' names no module with weights.",
                suggest(pattern, list(modules)[:40]),
            )
        if all(isinstance(m, _WITHOUT_FORWARD) for path, m in modules.items() if fnmatchcase(path, pattern)):
            raise UserError(
                f"runconfig.streaming.layers: '{pattern}' names a list, which is never called itself.",
                f"Name its items, such as '{pattern}.*'.",
            )
    for path, module in modules.items():
        if isinstance(module, _WITHOUT_FORWARD) or any(path.startswith(f"{taken}.") for taken, _ in found):
            continue
        if any(fnmatchcase(path, pattern) for pattern in patterns):
            found.append((path, module))
    return found


def _in_lists(net: nn.Module) -> list[tuple[str, nn.Module]]:
    total = max(1, _num_weights(net))
    return _outermost(_items(net, "", total)) or _children(net, "", total)


def _outermost(layers: list[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """The layers without repetition and without those inside another: a model may hold its layers in several lists."""
    inside = {part for _, layer in layers for part in layer.modules() if part is not layer}
    found: dict[nn.Module, str] = {}
    for path, layer in layers:
        if layer not in inside:
            found.setdefault(layer, path)
    return [(path, layer) for layer, path in found.items()]


def _items(module: nn.Module, path: str, total: int) -> list[tuple[str, nn.Module]]:
    """Items of the lists in `module`, each looked into where it is large."""
    found: list[tuple[str, nn.Module]] = []
    for name, child in module.named_children():
        if not _has_weights(child):
            continue
        place = f"{path}.{name}" if path else name
        if not isinstance(module, _LISTS) or isinstance(child, _WITHOUT_FORWARD):
            found += _items(child, place, total)
            continue
        inner = _items(child, place, total) if _num_weights(child) > _LARGE * total else []
        found += inner if len(inner) > 1 else [(place, child)]
    return found


def _children(module: nn.Module, path: str, total: int) -> list[tuple[str, nn.Module]]:
    found: list[tuple[str, nn.Module]] = []
    for name, child in module.named_children():
        if not _has_weights(child):
            continue
        place = f"{path}.{name}" if path else name
        inner = _children(child, place, total) if _num_weights(child) > _LARGE * total else []
        if len(inner) > 1 or isinstance(child, _WITHOUT_FORWARD):
            found += inner
        else:
            found.append((place, child))
    return found


def _has_weights(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def _num_weights(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
