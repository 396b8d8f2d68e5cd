"""Torch optimizers from their specification, and gradient clipping."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from portwright.errors import UserError
from portwright.job.optimizer import AdamParams, AdamWParams, OptimizerParams
from portwright.runtime.extra_optimizers import Adafactor, Lamb, Lion, Muon, UncorrectedAdam
from portwright.runtime.optimizer_state import load_optimizer_state, optimizer_state
from portwright.runtime.param_groups import make_param_groups
from portwright.runtime.shards import DTensor, local, sums_of_squares

__all__ = [
    "clip_gradients",
    "gradient_norm",
    "load_optimizer_state",
    "make_optimizer",
    "make_param_groups",
    "optimizer_state",
]

_OURS = {kind.__name__: kind for kind in (Adafactor, Lamb, Lion, Muon)}
_WITH_FUSED_KERNEL = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
_WITH_SPARSE_GRADIENTS = (torch.optim.SGD, torch.optim.Adagrad)
_FUSED_DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


def make_optimizer(model: nn.Module, spec: OptimizerParams) -> torch.optim.Optimizer:
    """Realises a specification on a model whose parameters are where they will be trained.

    Torch's fused kernels are taken wherever the parameters allow; call it after FSDP2 has sharded the model.
    """
    groups = make_param_groups(model, spec)
    kind, options = _realise(spec)
    parameters = [parameter for group in groups for parameter in group["params"]]
    has_sparse = _check_sparse(model, kind, spec)
    if kind.__module__.startswith(__package__ or "portwright"):
        for group in groups:
            for name, parameter in zip(group["param_names"], group["params"], strict=True):
                if parameter.is_complex():
                    raise UserError(
                        f"{spec.optimizer_type} takes real parameters, and '{name}' is {parameter.dtype}.",
                        "Use Adam, AdamW or SGD, or hold real and imaginary part apart.",
                    )
    if kind is torch.optim.Rprop and any(isinstance(parameter, DTensor) for parameter in parameters):
        raise UserError("torch's Rprop cannot train sharded parameters.", "Use runconfig.distributed: ddp.")
    if kind in _WITH_FUSED_KERNEL and not has_sparse:
        options["fused"] = _can_fuse(kind, parameters) or None
    rate = spec.schedule(0)
    for group in groups:
        group["lr"] = rate * group.get("lr_scale", 1.0)
    return kind(groups, lr=rate, **options)  # type: ignore[call-arg]


def _realise(spec: OptimizerParams) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """The class and those of its settings that the specification names as it does."""
    kind: type[torch.optim.Optimizer] = _OURS.get(spec.optimizer_type) or getattr(
        torch.optim, spec.optimizer_type
    )
    options: dict[str, Any] = {name: getattr(spec, name) for name in type(spec).model_fields}
    options |= {alias: getattr(spec, name) for alias, name in spec.aliases.items()}
    options |= {pair: (getattr(spec, one), getattr(spec, two)) for pair, (one, two) in spec.pairs.items()}
    if isinstance(spec, AdamParams | AdamWParams) and not spec.correct_bias:
        kind, options["decoupled"] = UncorrectedAdam, isinstance(spec, AdamWParams)
    wanted = inspect.signature(kind).parameters.keys() - {"lr", "weight_decay"}  # which come with the groups
    return kind, {name: value for name, value in options.items() if name in wanted}


def _can_fuse(kind: type[torch.optim.Optimizer], parameters: list[Tensor]) -> bool:
    if any(isinstance(parameter, DTensor) for parameter in parameters) and kind not in (
        torch.optim.Adam,
        torch.optim.AdamW,
    ):
        return False  # DTensor knows no rule for the other fused kernels
    if any(parameter.dtype not in _FUSED_DTYPES or not _is_dense(parameter) for parameter in parameters):
        return False
    devices = {parameter.device.type for parameter in parameters}
    if not devices <= {"cpu", "cuda"}:
        return False
    # Adagrad's kernel for CUDA came after torch 2.4.
    return kind is not torch.optim.Adagrad or devices == {"cpu"} or _has_cuda_adagrad()


def _is_dense(parameter: Tensor) -> bool:
    """Whether memory holds the elements without gaps; the CPU kernels do not look, and would mix elements up."""
    part = local(parameter.detach())
    orders = [torch.contiguous_format]
    orders += {4: [torch.channels_last], 5: [torch.channels_last_3d]}.get(part.ndim, [])
    return any(part.is_contiguous(memory_format=order) for order in orders)


@functools.cache
def _has_cuda_adagrad() -> bool:
    """Tries it, since torch offers no other way to find out."""
    weight = nn.Parameter(torch.ones(1, device="cuda"))
    weight.grad = torch.ones_like(weight)
    try:
        torch.optim.Adagrad([weight], fused=True).step()
    except (RuntimeError, NotImplementedError):
        return False
    return True


def _check_sparse(model: nn.Module, kind: type[torch.optim.Optimizer], spec: OptimizerParams) -> bool:
    """Whether an embedding gives sparse gradients; refuses what cannot take them."""
    sparse = [
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
        and module.sparse
        and module.weight.requires_grad
    ]
    if not sparse:
        return False
    reason = None
    if kind not in _WITH_SPARSE_GRADIENTS:
        reason = f"{spec.optimizer_type} takes none"
    elif spec.weight_decay_rate:
        reason = f"weight_decay_rate={spec.weight_decay_rate} makes them dense"
    elif spec.max_gradient_norm or spec.max_gradient_value:
        reason = "they cannot be clipped"
    if reason:
        raise UserError(
            f"the embedding '{sparse[0]}' gives sparse gradients, and {reason}.", "Make it with sparse=False."
        )
    return True


@torch.no_grad()
def clip_gradients(parameters: Iterable[Tensor], spec: OptimizerParams) -> Tensor | None:
    """Clips by joint norm or by value; gives the norm before clipping where it was computed. The host does not wait."""
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not grads:
        return None
    if spec.max_gradient_value is not None:
        parts = [local(grad) for grad in grads]
        torch._foreach_clamp_min_(parts, -spec.max_gradient_value)
        torch._foreach_clamp_max_(parts, spec.max_gradient_value)
        return None
    if spec.max_gradient_norm is None:
        return None
    total = gradient_norm(grads)
    factor = (spec.max_gradient_norm / (total + 1e-6)).clamp(max=1.0)
    factors = {device: factor.to(device) for device in {grad.device for grad in grads}}
    for device, on_device in factors.items():
        torch._foreach_mul_([local(grad) for grad in grads if grad.device == device], on_device)
    return total


@torch.no_grad()
def gradient_norm(grads: list[Tensor]) -> Tensor:
    """The 2-norm of all gradients as one vector, over all processes that share them."""
    plain = [grad for grad in grads if not isinstance(grad, DTensor)]
    sharded = [grad for grad in grads if isinstance(grad, DTensor)]
    norms = list(torch._foreach_norm(plain)) if plain else []
    if sharded:
        norms += sums_of_squares([local(grad) for grad in sharded], sharded).sqrt().unbind()
    total: Tensor = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
    return total
