"""Cuts a model into blocks: each begins with a module, and lives on an IPU."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from portwright.errors import UserError, suggest
from portwright.targets.ipu.section import IpuSection


def begin_blocks(poptorch: Any, whole: nn.Module, net: nn.Module, section: IpuSection) -> None:
    """Marks where blocks begin; the first one begins with everything (`whole`), since no op may be outside of blocks."""
    paths = [path for path, _ in net.named_modules()]
    begun: dict[str, str] = {}
    for index, block in enumerate(section.blocks):
        path = next((path for path in paths if path and fnmatchcase(path, block.module)), None)
        if path is None:
            raise UserError(
                f"ipu.blocks.{index}.module: the model has no module '{block.module}'.",
                suggest(
                    block.module, [path for path in paths if path.count(".") <= block.module.count(".")][1:]
                ),
            )
        if path in begun:
            raise UserError(
                f"ipu.blocks.{index}.module: '{block.module}' begins with the module '{path}', as '{begun[path]}' does.",
                "Let each block begin with a module of its own.",
            )
        begun[path] = block.module
        module = whole if index == 0 else net.get_submodule(path)
        poptorch.BeginBlock(module, section.stage_of(index), block.ipu)
