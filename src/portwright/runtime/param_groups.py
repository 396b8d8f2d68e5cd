"""Which parameters are decayed, and which are matrices: by the type of the module that owns them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from portwright.errors import UserError
from portwright.job.optimizer import MuonParams, OptimizerParams

log = logging.getLogger(__name__)

_BIAS = re.compile(r"(^|_)bias(es)?(_|$)")
_NORM_CLASS = re.compile(r"norm(\d+d)?$", re.IGNORECASE)
# These change how a weight is written, and own the weight itself.
_REPARAMETRIZATION = re.compile(r"(weight|spectral)_?norm", re.IGNORECASE)
_NORM_WORD = re.compile(r"norm", re.IGNORECASE)
_NORM_ATTRIBUTE = re.compile(r"(^|_)(layer_?norm|norm|ln|bn)\d*(_|$)", re.IGNORECASE)


def make_param_groups(model: nn.Module, spec: OptimizerParams) -> list[dict[str, Any]]:
    """Groups the trainable parameters by weight decay, and for Muon by the rule that updates them.

    Biases and the parameters of norms are not decayed, nor what the user's patterns match. A tied parameter appears
    once, a frozen one not at all. Each group lists the parameters' names under `param_names`.
    """
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not named:
        raise UserError(
            "the model has no trainable parameter.",
            "Leave requires_grad on for at least one, or use --mode eval.",
        )
    for name, parameter in named:
        if is_lazy(parameter):
            raise UserError(
                f"parameter '{name}' has no shape yet: its module is lazy.",
                "Give the module its sizes, or call the model once on a batch where it is built.",
            )
    undecayed = _undecayed(model, named, spec)
    matrices = _matrices(model, named, spec) if isinstance(spec, MuonParams) else set()
    groups: dict[tuple[bool, bool], dict[str, Any]] = {}
    for is_matrix in (True, False):
        for decays in (True, False):
            group: dict[str, Any] = {"params": [], "param_names": []}
            group["weight_decay"] = spec.weight_decay_rate if decays else 0.0
            if isinstance(spec, MuonParams):
                group["use_muon"] = is_matrix
                group["lr_scale"] = 1.0 if is_matrix else spec.adamw_lr_scale
            groups[is_matrix, decays] = group
    for name, parameter in named:
        decays = spec.weight_decay_rate == 0 or id(parameter) not in undecayed
        group = groups[id(parameter) in matrices, decays]
        group["params"].append(parameter)
        group["param_names"].append(name)
    return [group for group in groups.values() if group["params"]]


def _undecayed(model: nn.Module, named: Sequence[tuple[str, Tensor]], spec: OptimizerParams) -> set[int]:
    patterns = spec.exclude_from_weight_decay
    if patterns == []:
        return set()
    chosen = {
        id(parameter)
        for path, module, name, parameter in _owned(model)
        if _is_bias(f"{path}.{name}") or _is_of_norm(path, module, parameter)
    }
    for pattern in patterns or []:
        matched = {id(parameter) for name, parameter in named if pattern in name}
        if not matched:
            log.warning("exclude_from_weight_decay: '%s' is in no parameter's name.", pattern)
        chosen |= matched
    return chosen


def _matrices(model: nn.Module, named: Sequence[tuple[str, Tensor]], spec: MuonParams) -> set[int]:
    """Weights of linear maps inside the network; a convolution's kernel is one, flattened."""
    others = {
        id(parameter)
        for path, module, name, parameter in _owned(model)
        if _is_bias(f"{path}.{name}")
        or _is_of_norm(path, module, parameter)
        or isinstance(module, nn.Embedding | nn.EmbeddingBag)
        or (parameter.ndim != 2 and not isinstance(module, nn.modules.conv._ConvNd))
        or parameter.ndim < 2
    }
    return {
        id(parameter)
        for name, parameter in named
        if id(parameter) not in others and not any(pattern in name for pattern in spec.adamw_params)
    }


def _owned(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, Tensor]]:
    """Every parameter with each module that holds it directly; tied ones come more than once."""
    for path, module in model.named_modules(remove_duplicate=False):
        for name, parameter in module.named_parameters(recurse=False):
            yield path, module, name, parameter


def _is_bias(name: str) -> bool:
    # Members of a list are numbers, and a parametrized parameter is kept as `...parametrizations.bias.original`.
    words = [
        word for word in name.split(".") if not word.isdigit() and not re.fullmatch(r"original\d*", word)
    ]
    return bool(words) and _BIAS.search(words[-1]) is not None


def _is_of_norm(path: str, module: nn.Module, parameter: Tensor) -> bool:
    names = [kind.__name__ for kind in type(module).__mro__ if kind not in (nn.Module, object)]
    names = [name for name in names if not _REPARAMETRIZATION.search(name)]
    if any(_NORM_CLASS.search(name) for name in names):
        return True
    if parameter.ndim > 1:
        return False
    own_name = path.rpartition(".")[2]
    return any(_NORM_WORD.search(name) for name in names) or _NORM_ATTRIBUTE.search(own_name) is not None
