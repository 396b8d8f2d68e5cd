"""Weights of the PyTorch layers in those of TensorFlow, and a comparison of what both give."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import torch
from torch import nn


def numbers(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def array(x: Any) -> np.ndarray:
    return x.detach().numpy() if isinstance(x, torch.Tensor) else np.asarray(x)


def draw(module: nn.Module, seed: int = 3) -> nn.Module:
    """Weights that are all different, biases and norms as well."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return module


def dense_pairs(layer: Any, weight: Any, bias: Any) -> list[tuple[Any, Any]]:
    pairs = [(layer.kernel, weight.T)]
    return pairs if layer.bias is None else [*pairs, (layer.bias, bias)]


def attention_pairs(layer: Any, module: Any) -> list[tuple[Any, Any]]:
    q_width, kv_width = layer.query.units, layer.key.units
    if module.in_proj_weight is None:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    else:
        weights = module.in_proj_weight.split((q_width, kv_width, kv_width))
    biases = (None,) * 3
    if module.in_proj_bias is not None:
        biases = module.in_proj_bias.split((q_width, kv_width, kv_width))
    pairs = []
    for part, weight, bias in zip((layer.query, layer.key, layer.value), weights, biases, strict=True):
        pairs += dense_pairs(part, weight, bias)
    return pairs + dense_pairs(layer.output_projection, module.out_proj.weight, module.out_proj.bias)


def norm_pairs(layer: Any, module: Any) -> list[tuple[Any, Any]]:
    pairs = [(layer.gamma, module.weight)]
    return pairs if getattr(module, "bias", None) is None else [*pairs, (layer.beta, module.bias)]


def block_pairs(layer: Any, module: Any) -> list[tuple[Any, Any]]:
    pairs = attention_pairs(layer.self_attn, module.self_attn)
    if getattr(module, "multihead_attn", None) is not None:
        pairs += attention_pairs(layer.multihead_attn, module.multihead_attn)
    for name in ("linear1", "linear2"):
        pairs += dense_pairs(getattr(layer, name), getattr(module, name).weight, getattr(module, name).bias)
    for name in ("norm1", "norm2", "norm3"):
        if getattr(module, name, None) is not None:
            pairs += norm_pairs(getattr(layer, name), getattr(module, name))
    return pairs


def gradients_of(module: nn.Module) -> nn.Module:
    """A copy of the module that has the gradients where its weights were."""
    copied = copy.deepcopy(module)
    with torch.no_grad():
        for held, parameter in zip(copied.parameters(), module.parameters(), strict=True):
            held.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    return copied


def compare(
    ours: Callable[..., Any],
    theirs: Callable[..., Any],
    inputs: list[np.ndarray],
    module: nn.Module,
    pairs: Callable[[Any], list[tuple[Any, Any]]],
    *,
    rtol: float = 1e-4,
    atol: float = 2e-5,
) -> None:
    """Runs both forward and backward from the same weights.

    `pairs` names each TensorFlow weight with the part of a module that it must equal.
    """
    ours(*[tf.constant(x) for x in inputs])  # weights come with the first call
    for variable, value in pairs(module):
        variable.assign(array(value))
    floats = [x for x in inputs if x.dtype == np.float32]
    torch_inputs = [torch.from_numpy(x.copy()) for x in inputs]
    torch_floats = [x.requires_grad_() for x in torch_inputs if x.is_floating_point()]
    expected = theirs(*torch_inputs)
    weights = numbers(tuple(expected.shape), seed=9)
    (expected * torch.from_numpy(weights)).sum().backward()
    variables = [variable for variable, _ in pairs(module)]
    with tf.GradientTape() as tape:
        tensors = [tf.constant(x) for x in inputs]
        tf_floats = [x for x in tensors if x.dtype == tf.float32]
        tape.watch(tf_floats)
        found = ours(*tensors)
        score = tf.reduce_sum(found * weights)
    np.testing.assert_allclose(array(found), array(expected), rtol=rtol, atol=atol)
    gradients = tape.gradient(score, [*tf_floats, *variables], unconnected_gradients="zero")
    assert len(gradients) == len(floats) + len(variables)
    wanted = [x.grad for x in torch_floats] + [value for _, value in pairs(gradients_of(module))]
    names = [*("input" for _ in floats), *(variable.name for variable in variables)]
    for name, mine, other in zip(names, gradients, wanted, strict=True):
        mine = array(tf.convert_to_tensor(mine))
        np.testing.assert_allclose(mine, array(other), rtol=10 * rtol, atol=20 * atol, err_msg=name)
