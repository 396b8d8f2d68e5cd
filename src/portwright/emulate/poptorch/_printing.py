"""Printing models without what wrapping adds to them."""

from __future__ import annotations

import builtins
import textwrap

import torch


def module_repr(m: torch.nn.Module):
    """The text of a module as torch writes it; a wrapped parameter's class does not show."""
    lines = m.extra_repr().split("\n") if m.extra_repr() else []
    children = [
        f"({name}): {module_repr(child) if child is not None else None}" for name, child in m._modules.items()
    ]
    hooks = "".join(f"{hook!r} " for hook in m._forward_pre_hooks.values())
    if not children and len(lines) <= 1:
        return f"{hooks}{m._get_name()}({''.join(lines)})"
    body = textwrap.indent("\n".join([*lines, *children]), "  ")
    return f"{hooks}{m._get_name()}(\n{body}\n)"


def print(m):
    """Prints a module, or anything else as Python does."""
    builtins.print(module_repr(m) if isinstance(m, torch.nn.Module) else m)
