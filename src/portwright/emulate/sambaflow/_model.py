"""A model made ready for the device: its names, its guards, and the call that is traced."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_unflatten

from portwright.emulate.sambaflow import _state
from portwright.emulate.sambaflow._pef import TensorEntry, compare_tensors, shorten
from portwright.emulate.sambaflow._refusal import SambaFlowError
from portwright.emulate.sambaflow.logging import samba_logger
from portwright.emulate.sambaflow.samba.nn.parameter import SambaParameter
from portwright.emulate.sambaflow.samba.sambatensor import SambaTensor, to_torch

_MARK, _GUARD = "_portwright_converted", "_portwright_guarded"


def from_torch_model_(model: nn.Module, parent_module_prefix: str | None = None) -> None:
    """Converts a model in place: its parameters become SambaParameters with the device's names, and the host stops training it."""
    if not isinstance(model, nn.Module):
        raise SambaFlowError(
            f"from_torch_model_ got {type(model).__name__}, not an nn.Module.",
            "A tensor is converted by samba.from_torch_tensor.",
        )
    top = parent_module_prefix or re.sub(r"\W", "_", type(model).__name__.lower())
    for path, part in model.named_modules():
        if not hasattr(part, "name"):  # the user's own stays
            part.name = "__".join([top, *path.split(".")]) if path else top
    for path, parameter in model.named_parameters():
        parameter.__class__ = SambaParameter
        if _GUARD not in parameter.__dict__ and parameter.requires_grad:  # a copy has lost its hook
            parameter.__dict__[_GUARD] = True
            parameter.register_hook(_refuse_host_backward)  # type: ignore[no-untyped-call]
        parameter.__dict__["sn_name"] = "__".join([top, *path.split(".")])
    if not is_converted(model):
        model.__dict__[_MARK] = True
        model.register_forward_pre_hook(_tell_stale)
        model.register_state_dict_pre_hook(lambda module, *_: _tell_stale(module, None))  # type: ignore[no-untyped-call]


def is_converted(model: Any) -> bool:
    return isinstance(model, nn.Module) and bool(model.__dict__.get(_MARK))


def _refuse_host_backward(gradient: Tensor) -> None:
    """Hook of every converted weight: a program's own backward works on the device's tensors and never comes here."""
    # the vendor's examples compare gradients with the host's there, and only there
    if _state.command == "test":
        return
    raise SambaFlowError(
        "backward() reached a weight of a converted model on the host: SambaFlow differentiates on the device.",
        "Remove backward(); samba.session.run has it as section 'bckwd' (the command 'test' alone compares with the host).",
    )


def _tell_stale(model: nn.Module, _: Any) -> None:
    if model in _state.stale and not _state.is_tracing:
        samba_logger.warning(
            "the host's weights are older than the device's: call samba.session.to_cpu(model) before using them",
            log_limit=1,
        )


# -- inputs ----------------------------------------------------------------------------------------------------


def list_inputs(inputs: Any, what: str = "inputs") -> list[SambaTensor]:
    """The SambaTensors of a list, tuple, dictionary or tree of them, in order; each needs a name of its own."""
    leaves = [leaf for leaf in tree_flatten(inputs)[0] if isinstance(leaf, Tensor)]
    named: list[SambaTensor] = []
    if not leaves:
        raise SambaFlowError(
            f"{what}: no tensor was given.", "Give SambaTensors, made by samba.from_torch_tensor."
        )
    for index, leaf in enumerate(leaves):
        if not isinstance(leaf, SambaTensor):
            raise SambaFlowError(
                f"{what}: tensor {index} is a {type(leaf).__name__}, not a SambaTensor.",
                "Make it with samba.from_torch_tensor(tensor, name=..., batch_dim=0).",
            )
        if leaf.sn_name is None:
            raise SambaFlowError(
                f"{what}: tensor {index}, of shape {list(leaf.shape)}, has no name.",
                "Name it: samba.from_torch_tensor(tensor, name='image', batch_dim=0).",
            )
        if leaf.dtype in (torch.float64, torch.complex64, torch.complex128):
            raise SambaFlowError(
                f"{what}: '{leaf.sn_name}' is {leaf.dtype}, which no public document shows on an RDU.",
                "Cast it to float32 or bfloat16.",
            )
        named.append(leaf)
    names = [leaf.sn_name for leaf in named]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SambaFlowError(f"{what}: two tensors are named '{twice}'.", "Give each a name of its own.")
    return named


def make_call(
    model: nn.Module, inputs: Any, precision: str
) -> Callable[[dict[str, Tensor], list[Tensor]], Any]:
    """The model's forward as a function of its weights and of its inputs' tensors, in the precision of the program."""
    leaves, structure = tree_flatten(inputs)
    places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    wants_bfloat16 = precision == "bf16"

    def cast(tensor: Tensor) -> Tensor:
        return tensor.bfloat16() if wants_bfloat16 and tensor.is_floating_point() else tensor

    kept = _kept_types(model)

    def call(weights: dict[str, Tensor], tensors: list[Tensor]) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = cast(tensor)
        lent = {name: tensor if name in kept else cast(tensor) for name, tensor in weights.items()}
        given = tree_unflatten(filled, structure)
        with _state.tracing():
            if isinstance(given, Mapping):
                return functional_call(model, lent, (), dict(given))
            return functional_call(model, lent, tuple(given) if isinstance(given, tuple | list) else (given,))

    return call


def _kept_types(model: nn.Module) -> set[str]:
    """Buffers, since a copy in another type would not carry a change in place back, and the weights of norms that keep statistics."""
    kept = {name for name, _ in model.named_buffers()}
    for path, part in model.named_modules():
        if any(buffer.is_floating_point() for buffer in part.buffers(recurse=False)):
            kept |= {f"{path}.{name}".lstrip(".") for name, _ in part.named_parameters(recurse=False)}
    return kept


def match_inputs(given: Any, compiled: Sequence[Any]) -> list[SambaTensor]:
    """Run-time inputs in the order of the program's, by their names; says each that differs."""
    leaves = {leaf.sn_name: leaf for leaf in list_inputs(given, "input_tensors")}
    entries = [TensorEntry(str(name), tuple(leaf.shape), str(leaf.dtype)) for name, leaf in leaves.items()]
    order = {entry.name: index for index, entry in enumerate(compiled)}
    entries.sort(key=lambda entry: order.get(entry.name, len(order)))
    if problems := compare_tensors("input", compiled, entries):
        raise SambaFlowError(
            f"the inputs are not those of the PEF: {shorten(problems)}.",
            "Give the names, shapes and types that were compiled for, or compile again; drop a short last batch.",
        )
    return [leaves[entry.name] for entry in compiled]


def plain(tensors: Sequence[SambaTensor]) -> list[Tensor]:
    """What the device gets of them: copies, which a model may change in place without the host noticing."""
    return [to_torch(tensor).detach().clone() for tensor in tensors]
