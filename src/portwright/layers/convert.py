"""Replaces torch.nn's transformer modules anywhere in a model by ours with the same weights, and back."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from portwright.errors import UserError
from portwright.layers.attention import MultiheadAttention
from portwright.layers.block_parts import Block
from portwright.layers.blocks import TransformerDecoderLayer, TransformerEncoderLayer
from portwright.layers.transformer import (
    Transformer,
    TransformerDecoder,
    TransformerEncoder,
)

_OURS_OF_TORCH: dict[type[nn.Module], type[nn.Module]] = {
    nn.MultiheadAttention: MultiheadAttention,
    nn.TransformerEncoderLayer: TransformerEncoderLayer,
    nn.TransformerDecoderLayer: TransformerDecoderLayer,
    nn.TransformerEncoder: TransformerEncoder,
    nn.TransformerDecoder: TransformerDecoder,
    nn.Transformer: Transformer,
}
_TORCH_OF_OURS = {ours: torchs for torchs, ours in _OURS_OF_TORCH.items()}

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class Unconverted:
    """A module that was not converted: its type, its name and why."""

    name: str
    type_name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name or '(the module itself)'} ({self.type_name}): {self.reason}"


@dataclass(frozen=True)
class Conversion:
    """The converted model, which shares parameters and buffers with the one it came from.

    `converted` and `unconverted` name modules as `named_modules` does; `notes` say what to know about the others.
    """

    module: nn.Module
    converted: tuple[str, ...] = ()
    unconverted: tuple[Unconverted, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{len(self.converted)} modules converted, {len(self.unconverted)} left as they were."]
        return "\n".join(
            [*lines, *(f"- {left}" for left in self.unconverted), *(f"- {note}" for note in self.notes)]
        )


def from_torch(module: nn.Module) -> Conversion:
    """Makes a model in which torch.nn's transformer modules are ours; the given one does not change.

    Parameters and buffers are the same objects in both, so an optimizer keeps working, and so does a state dict.
    Hooks, training flags and attributes come along. Subclasses of torch's modules stay, as their code may count on
    how torch's computes; what they contain is converted.
    """
    return _convert(module, _OURS_OF_TORCH, _why_not_ours)


def to_torch(module: nn.Module) -> Conversion:
    """Makes a model in which our transformer modules are torch.nn's, where torch.nn has what they do."""
    return _convert(module, _TORCH_OF_OURS, _why_not_torchs)


@dataclass
class _Walk:
    """One pass over a model: what was made of each module, and what is to be said about it."""

    types: dict[type[nn.Module], type[nn.Module]]
    why_not: Callable[[nn.Module, dict[type[nn.Module], type[nn.Module]]], str | None]
    made: dict[int, nn.Module] = field(default_factory=dict)
    converted: list[str] = field(default_factory=list)
    unconverted: list[Unconverted] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def visit(self, module: nn.Module, name: str) -> nn.Module:
        if id(module) in self.made:
            return self.made[id(module)]
        reason = self.why_not(module, self.types)
        if isinstance(module, torch.jit.ScriptModule):
            original_names = {getattr(part, "original_name", "") for part in module.modules()}
            if original_names & {kind.__name__ for kind in self.types}:
                reason = "it was compiled by torch.jit; convert before that"
                self.unconverted.append(Unconverted(name, type(module).__name__, reason))
            self.made[id(module)] = module
            return module
        made = _copy_structure(module)
        self.made[id(module)] = made
        for child_name, child in module._modules.items():
            if child is not None:
                made._modules[child_name] = self.visit(child, f"{name}.{child_name}" if name else child_name)
        self.notes += _notes_on(module, name)
        new_type = self.types.get(type(module))
        if reason is not None:
            if isinstance(made, nn.TransformerEncoder) and any(
                isinstance(part, Block) for part in made.layers
            ):
                made.use_nested_tensor = False
                self.notes.append(
                    f"{name or '(the module itself)'}: nested tensors are off, since its layers are ours now; in evaluation its "
                    "padded positions are computed, where torch leaves zeros"
                )
            self.unconverted.append(Unconverted(name, type(module).__name__, reason))
        elif new_type is not None:
            made.__class__ = new_type
            _adapt(made)
            self.converted.append(name)
        return made


def _convert(
    module: nn.Module,
    types: dict[type[nn.Module], type[nn.Module]],
    why_not: Callable[[nn.Module, dict[type[nn.Module], type[nn.Module]]], str | None],
) -> Conversion:
    if not isinstance(module, nn.Module):
        raise UserError(f"A {type(module).__name__} was given to be converted.", "Give an nn.Module.")
    for name, part in module.named_modules():
        if isinstance(part, nn.parallel.DistributedDataParallel) or hasattr(part, "_orig_mod"):
            wrapper = type(part).__name__
            raise UserError(
                f"{name or 'The module'} is wrapped in {wrapper}, which holds on to what it wraps.",
                "Convert the module inside it, then wrap that.",
            )
    walk = _Walk(types, why_not)
    made = walk.visit(module, "")
    return Conversion(made, tuple(walk.converted), tuple(walk.unconverted), tuple(walk.notes))


def _copy_structure(module: nn.Module) -> nn.Module:
    """A module of the same type with the same parameters, buffers and attributes, but registries of its own."""
    made = object.__new__(type(module))
    made.__dict__ = {
        key: copy.copy(value) if isinstance(value, dict | set) and key.startswith("_") else value
        for key, value in module.__dict__.items()
    }
    return made


def _notes_on(module: nn.Module, name: str) -> list[str]:
    """Notes on what a module shares with the original: handles of hooks, and modules in plain attributes."""
    where = name or "(the module itself)"
    notes = []
    num_hooks = sum(len(getattr(module, kind, {})) for kind in _HOOKS)
    if num_hooks:
        notes.append(
            f"{where}: {num_hooks} hooks came along; their handles remove only those of the original"
        )
    for attribute, value in vars(module).items():
        if attribute in ("_modules", *_HOOKS):
            continue
        held = (
            value
            if isinstance(value, list | tuple)
            else value.values()
            if isinstance(value, dict)
            else [value]
        )
        if any(
            isinstance(item, nn.Module) or isinstance(getattr(item, "__self__", None), nn.Module)
            for item in held
        ):
            notes.append(f"{where}: the attribute {attribute} still refers to the original's modules")
    return notes


def _why_not_ours(module: nn.Module, types: dict[type[nn.Module], type[nn.Module]]) -> str | None:
    known = next((torchs for torchs in types if isinstance(module, torchs)), None)
    if known is None or isinstance(module, tuple(types.values())):
        return None
    if type(module) is not known:
        return f"it is a subclass of torch.nn.{known.__name__}, whose code may differ"
    return _why_not_plain(module)


def _why_not_torchs(module: nn.Module, types: dict[type[nn.Module], type[nn.Module]]) -> str | None:
    known = next((ours for ours in types if isinstance(module, ours)), None)
    if known is None:
        return None
    if type(module) is not known:
        return f"it is a subclass of {known.__name__}, which torch.nn has not"
    if isinstance(module, MultiheadAttention):
        if module.attention_type != "scaled_dot_product" or module.attention_scale is not None:
            return f"its scores are scaled otherwise (attention_type={module.attention_type!r})"
        if module.has_qk_norm:
            return "it norms queries and keys"
        if module.head_dim * module.num_heads != module.embed_dim:
            return "its heads together are not as wide as its input"
        if (module.in_proj_bias is None) != (module.out_proj.bias is None):
            return "only one of its projections has a bias"
    if isinstance(module, TransformerDecoderLayer) and not module.add_cross_attention:
        return "it has no attention to a memory"
    if isinstance(module, Block):
        attentions = [part for part in module.children() if isinstance(part, nn.MultiheadAttention)]
        reasons = [_why_not_torchs(part, types) for part in attentions]
        if any(reasons):
            return f"its attention has no form in torch.nn: {next(reason for reason in reasons if reason)}"
        return _why_not_torchs_parts(module) or _why_not_plain(module)
    return _why_not_plain(module)


def _why_not_torchs_parts(module: nn.Module) -> str | None:
    """Why a layer's parts prevent torch's layer: it reads their weights and biases, while ours calls them."""
    norms = [part for name, part in module.named_children() if name.startswith("norm")]
    if any(type(norm) is not nn.LayerNorm for norm in norms):
        return "its norms are not LayerNorm"
    parts = [*norms, module.linear1, module.linear2, module.self_attn.out_proj]  # type: ignore[union-attr]
    if len({getattr(part, "bias", None) is None for part in parts}) > 1:
        return "some of its parts have biases and some have none"
    return None


def _why_not_plain(module: nn.Module) -> str | None:
    """Why a module cannot be rebuilt from its attributes: hooks or the like change it."""
    if "forward" in module.__dict__:
        return "its forward was replaced on the instance"
    if isinstance(module, nn.MultiheadAttention):
        weights = (
            ("in_proj_weight",)
            if module._qkv_same_embed_dim
            else ("q_proj_weight", "k_proj_weight", "v_proj_weight")
        )
        if type(module.out_proj).forward is not nn.Linear.forward or module.out_proj._forward_hooks:
            return "its out_proj does more than torch's attention lets it: torch reads the weight alone"
        missing = [weight for weight in weights if module._parameters.get(weight) is None]
        if missing:
            return f"{missing[0]} is not a plain parameter (pruned or reparametrized)"
    return None


def _adapt(made: Any) -> None:
    """Sets the attributes that mean different things in torch's layers and ours."""
    if type(made) is TransformerEncoderLayer:
        made.activation_relu_or_gelu = 0
    elif type(made) is nn.TransformerEncoderLayer:
        activation = made.activation
        is_relu = activation is F.relu or isinstance(activation, nn.ReLU)
        is_gelu = activation is F.gelu or isinstance(activation, nn.GELU)
        made.activation_relu_or_gelu = 1 if is_relu else 2 if is_gelu else 0
    elif type(made) is nn.TransformerEncoder and len(made.layers) > 0:
        made.use_nested_tensor &= bool(getattr(made.layers[0], "activation_relu_or_gelu", 0))
