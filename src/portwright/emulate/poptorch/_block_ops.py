"""Blocks: the parts of a model that execution strategies put on IPUs (names as in `poptorch.ops`)."""

from __future__ import annotations

import functools
from typing import Any, Optional

import torch

from portwright.emulate.poptorch import _active, _impl
from portwright.emulate.poptorch._expect import asserted


class Block(torch.nn.Module):
    """What runs inside of `with Block(...)` is one block; behind it there is none, until the next starts."""

    _stages_manager: Any = None  # of the execution strategy, while a model is traced

    @staticmethod
    def useAutoId():
        """Numbers blocks without a name from 0 again: to be called first in forward()."""
        if Block._stages_manager is not None:
            Block._stages_manager.resetAutoId()

    @staticmethod
    def start(user_id: Optional[str] = None, ipu_id: Optional[int] = None):
        """Starts a block that lasts until the next one starts."""
        _start(user_id, ipu_id)

    def __init__(self, user_id: Optional[str] = None, ipu_id: Optional[int] = None):
        super().__init__()
        _check_ipu(ipu_id)
        self._user_id = user_id
        self._ipu_id = ipu_id

    def __enter__(self):
        Block.start(self._user_id, self._ipu_id)
        watch = _active.current()
        if watch is not None:
            watch.blocks.open()

    def __exit__(self, type, value, traceback):
        watch = _active.current()
        if watch is not None:
            watch.blocks.end()


def _start(user_id: Any, ipu_id: Any) -> None:
    watch, manager = _active.current(), Block._stages_manager
    if watch is None or manager is None:
        return
    _check_ipu(ipu_id)
    block = user_id or manager.nextAutoId()
    watch.blocks.begin(str(block), *manager.beginStage(block, ipu_id))


def _check_ipu(ipu_id: Any) -> None:
    if ipu_id is not None and (not isinstance(ipu_id, int) or isinstance(ipu_id, bool) or ipu_id < 0):
        raise _impl.createPoptorchError(f"the ipu_id of a block is a number from 0, not {ipu_id!r}.")


class LegacyBeginBlockFn(torch.nn.Module):
    """A function with which a block begins."""

    def __init__(self, layer_to_call, user_id=None, ipu_id=None):
        super().__init__()
        self._user_id = user_id
        self._layer_to_call = layer_to_call
        self._ipu_id = ipu_id

    def __call__(self, *input, **kwargs):
        self._user_id = _begin(self._user_id, self._ipu_id)
        return self._layer_to_call(*input, **kwargs)


class _BlockHook:
    """Called before a module: a block begins, and keeps its number from then on."""

    def __init__(self, user_id, ipu_id):
        self._user_id = user_id
        self._ipu_id = ipu_id

    def __call__(self, module, input):
        self._user_id = _begin(self._user_id, self._ipu_id)

    def __repr__(self) -> str:
        return f"BeginBlock(user_id={self._user_id}, ipu_id={self._ipu_id})"


def _begin(user_id: Any, ipu_id: Any) -> Any:
    manager = Block._stages_manager
    if manager is not None:
        user_id = manager.nextAutoId() if user_id is None else user_id
        _start(user_id, ipu_id)
    return user_id


def removeBlocks(module):
    """Takes back what BeginBlock did to a module and to those inside of it."""
    if not isinstance(module, torch.nn.Module):
        raise asserted(f"removeBlocks takes a torch.nn.Module, not {module!r}.")
    for part in module.modules():
        for number in _block_hooks(part):
            del part._forward_pre_hooks[number]


def _block_hooks(module: torch.nn.Module) -> list[int]:
    return [number for number, hook in module._forward_pre_hooks.items() if isinstance(hook, _BlockHook)]


def BeginBlock(
    layer_to_call: torch.nn.Module,
    user_id: str = None,  # type: ignore[assignment]
    ipu_id: int = None,  # type: ignore[assignment]
) -> torch.nn.Module:
    """Has a block begin when the module is called, which lasts until the next begins; gives the same module back."""
    given = type(layer_to_call).__name__
    _check_ipu(ipu_id)
    if isinstance(layer_to_call, torch.nn.Module):
        if _block_hooks(layer_to_call):
            raise _impl.createPoptorchError(
                f"a block begins with this {given} already. Take that back first: poptorch.removeBlocks(module)."
            )
        layer_to_call.register_forward_pre_hook(_BlockHook(user_id, ipu_id))
        return layer_to_call
    if not callable(layer_to_call):
        raise _impl.createPoptorchError(f"BeginBlock takes a torch.nn.Module or a function, not {given}.")
    return LegacyBeginBlockFn(layer_to_call, user_id, ipu_id)


def BlockFunction(user_id: Optional[str] = None, ipu_id: Optional[int] = None):
    """A decorator: the function's body is a block."""
    _check_ipu(ipu_id)

    def mark(body: Any) -> Any:
        @functools.wraps(body)
        def block(*args: Any, **kwargs: Any) -> Any:
            with Block(user_id, ipu_id):
                return body(*args, **kwargs)

        return block

    return mark
