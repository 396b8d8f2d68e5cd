"""Logits equal torch's: nn.Transformer itself, and U-Net and Linformer written anew in torch here."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from forward import random_weights, run_with
from model_folder import load, params_of

torch = pytest.importorskip("torch")
F = torch.nn.functional
RANDOM = np.random.default_rng(0)


def close(ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=2e-4, atol=5e-5)


class Weights:
    """Our weights for torch: kernels turned over."""

    def __init__(self, arrays: dict[str, Any]) -> None:
        self.arrays = arrays

    def __getitem__(self, name: str) -> Any:
        return torch.tensor(self.arrays[name])

    def linear(self, name: str, x: Any) -> Any:
        return F.linear(x, self[f"{name}/kernel"].T, self[f"{name}/bias"])

    def norm(self, name: str, x: Any, eps: float) -> Any:
        return F.layer_norm(x, x.shape[-1:], self[f"{name}/gamma"], self[f"{name}/beta"], eps)


def fill_attention(module: Any, weights: Weights, name: str) -> None:
    parts = [weights[f"{name}/{part}/kernel"].T for part in ("query", "key", "value")]
    biases = [weights[f"{name}/{part}/bias"] for part in ("query", "key", "value")]
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.cat(parts))
        module.in_proj_bias.copy_(torch.cat(biases))
        module.out_proj.weight.copy_(weights[f"{name}/output/kernel"].T)
        module.out_proj.bias.copy_(weights[f"{name}/output/bias"])


def fill_layer(layer: Any, weights: Weights, name: str) -> None:
    fill_attention(layer.self_attn, weights, f"{name}/self_attn")
    if hasattr(layer, "multihead_attn"):
        fill_attention(layer.multihead_attn, weights, f"{name}/multihead_attn")
    with torch.no_grad():
        for part in ("linear1", "linear2"):
            getattr(layer, part).weight.copy_(weights[f"{name}/{part}/kernel"].T)
            getattr(layer, part).bias.copy_(weights[f"{name}/{part}/bias"])
        for part in ("norm1", "norm2", "norm3"):
            if hasattr(layer, part):
                getattr(layer, part).weight.copy_(weights[f"{name}/{part}/gamma"])
                getattr(layer, part).bias.copy_(weights[f"{name}/{part}/beta"])


def positions(length: int, width: int) -> Any:
    place = torch.arange(length)[:, None].float()
    rate = torch.exp(torch.arange(0, width, 2).float() * (-math.log(10000.0) / width))
    table = torch.zeros(length, width)
    table[:, 0::2], table[:, 1::2] = torch.sin(place * rate), torch.cos(place * rate)
    return table


@pytest.mark.parametrize("one_embedding", [False, True])
def test_transformer_equals_torchs_own(one_embedding: bool) -> None:
    changes = {
        "src_vocab_size": 30,
        "tgt_vocab_size": 30,
        "hidden_size": 16,
        "filter_size": 24,
        "decoder_num_hidden_layers": 3,
        "share_encoder_decoder_embedding": one_embedding,
        "share_embedding_weights": one_embedding,
    }
    model = params_of("transformer")["model"] | changes
    arrays = {
        "encoder_input_ids": RANDOM.integers(0, 30, (3, 7)).astype(np.int32),
        "encoder_mask": (np.arange(7) < np.array([7, 4, 2])[:, None]).astype(np.int32),
        "decoder_input_ids": RANDOM.integers(0, 30, (3, 5)).astype(np.int32),
    }

    def build() -> Any:
        constants = {name: tf.constant(array) for name, array in arrays.items()}
        return load("transformer", "model").Transformer(model, 9).logits(constants, False)

    weights = Weights(random_weights(build))
    theirs = torch.nn.Transformer(
        16,
        4,
        custom_encoder=torch.nn.TransformerEncoder(
            torch.nn.TransformerEncoderLayer(16, 4, 24, batch_first=True), 2, enable_nested_tensor=False
        ),
        custom_decoder=torch.nn.TransformerDecoder(
            torch.nn.TransformerDecoderLayer(16, 4, 24, batch_first=True), 3
        ),
        batch_first=True,
    ).eval()
    for side, stack in (("encoder", theirs.encoder), ("decoder", theirs.decoder)):
        for index, layer in enumerate(stack.layers):
            fill_layer(layer, weights, f"{side}_{index}")
    decoder_table = weights[("encoder" if one_embedding else "decoder") + "_embeddings/word_embeddings"]
    source = weights["encoder_embeddings/word_embeddings"][arrays["encoder_input_ids"]] * 4
    target = decoder_table[arrays["decoder_input_ids"]] * 4
    padding = torch.tensor(arrays["encoder_mask"] == 0)
    hidden = theirs(
        source + positions(7, 16),
        target + positions(5, 16),
        tgt_mask=torch.triu(torch.ones(5, 5, dtype=torch.bool), 1),
        src_key_padding_mask=padding,
        memory_key_padding_mask=padding,
    )
    output = decoder_table.T if one_embedding else weights["output/kernel"]
    close(run_with(weights.arrays, build), hidden @ output)


@pytest.mark.parametrize("style", ["linformer", "linformer-shared-heads", "linformer-shared-kv"])
def test_linformer_equals_a_twin_in_torch(style: str) -> None:
    sizes = {
        "vocab_size": 30,
        "hidden_size": 16,
        "filter_size": 24,
        "max_position_embeddings": 9,
        "projected_dims": 3,
    }
    model = params_of("linformer")["model"] | sizes | {"attention_style": style}
    ids = RANDOM.integers(0, 30, (3, 7)).astype(np.int32)
    mask = (np.arange(7) < np.array([7, 4, 2])[:, None]).astype(np.int32)

    def build() -> Any:
        network = load("linformer", "model").make_network(model)
        features = {"input_ids": tf.constant(ids), "input_mask": tf.constant(mask)}
        return network.mlm_logits(network.encode(features, False), tf.constant([[1, 3], [0, 2], [1, 0]]))

    arrays = random_weights(build)
    weights = Weights(arrays)
    eps = model["layer_norm_epsilon"]
    table = weights["embeddings/word_embeddings"]
    x = weights.norm("embeddings_norm", table[ids] + weights["embeddings/position_embeddings"][:7], eps)
    is_token = torch.tensor(mask == 1)[:, None, :, None]
    for layer in ("encoder_0", "encoder_1"):

        def heads(part: str, x: Any = x, layer: str = layer) -> Any:
            return weights.linear(f"{layer}/self_attn/{part}", x).view(3, 7, 4, 4).transpose(1, 2)

        name = f"{layer}/self_attn/key_projection_kernel"
        mix_keys = weights[name]
        mix_values = mix_keys if style.endswith("kv") else weights[name.replace("key_", "value_")]
        assert mix_keys.shape[0] == (4 if style == "linformer" else 1)
        keys = torch.einsum("hrl,bhlw->bhrw", mix_keys[..., :7].expand(4, 3, 7), heads("key") * is_token)
        values = torch.einsum(
            "hrl,bhlw->bhrw", mix_values[..., :7].expand(4, 3, 7), heads("value") * is_token
        )
        scores = torch.softmax(heads("query") @ keys.transpose(-1, -2) / 2.0, -1)
        attended = (scores @ values).transpose(1, 2).reshape(3, 7, 16)
        x = weights.norm(f"{layer}/norm1", x + weights.linear(f"{layer}/self_attn/output", attended), eps)
        fed = weights.linear(f"{layer}/linear2", F.gelu(weights.linear(f"{layer}/linear1", x)))
        x = weights.norm(f"{layer}/norm2", x + fed, eps)
    chosen = x[torch.arange(3)[:, None], torch.tensor([[1, 3], [0, 2], [1, 0]])]
    head = weights.norm("mlm_norm", F.gelu(weights.linear("mlm_transform", chosen)), eps)
    close(run_with(arrays, build), head @ table.T + weights["mlm_output/bias"])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_classes": 3, "initial_conv_filters": 4, "nonlinearity": "elu"},
        {"skip_connect": False, "enable_bias": False, "convs_per_block": ["3x3_conv", "1x1_conv"]},
        {"batch_norm": True},
    ],
    ids=["plain", "three-classes", "without-skips", "batch-norm"],
)
def test_unet_equals_a_twin_in_torch(changes: dict[str, Any]) -> None:
    model = params_of("unet")["model"] | {"encoder_filters": [3, 4, 5], "decoder_filters": [4, 3]} | changes
    images = RANDOM.normal(size=(2, 8, 12, 2)).astype(np.float32)

    def build() -> Any:
        return load("unet", "model").UNet(model)(tf.constant(images), False)

    arrays = random_weights(build)
    arrays = {name: abs(array) if "variance" in name else array for name, array in arrays.items()}
    weights = Weights(arrays)

    def conv(x: Any, name: str) -> Any:
        kernel = weights[f"{name}/kernel"].permute(3, 2, 0, 1)
        bias = weights[f"{name}/bias"] if model["enable_bias"] else None
        return F.conv2d(x, kernel, bias, padding="same")

    def activated(x: Any, name: str) -> Any:
        x = conv(x, name)
        if model["batch_norm"]:
            parts = [
                weights[f"{name}_norm/{part}"] for part in ("moving_mean", "moving_variance", "gamma", "beta")
            ]
            x = F.batch_norm(x, *parts, eps=1e-3)
        return F.elu(x) if model["nonlinearity"] == "elu" else F.relu(x)

    def block(x: Any, name: str) -> Any:
        return activated(activated(x, f"{name}_conv_0"), f"{name}_conv_1")

    x = torch.tensor(images).permute(0, 3, 1, 2)
    if model["initial_conv_filters"]:
        x = activated(x, "initial_conv")
    passed = []
    for depth in range(2):
        x = block(x, f"encoder_{depth}")
        passed.append(x)
        x = F.max_pool2d(x, 2)
    x = block(x, "bottleneck")
    for depth in range(2):
        name = f"decoder_{depth}_up"
        bias = weights[f"{name}/bias"] if model["enable_bias"] else None
        x = F.conv_transpose2d(x, weights[f"{name}/kernel"].permute(3, 2, 0, 1), bias, stride=2)
        if model["skip_connect"]:
            x = torch.cat([x, passed[-1 - depth]], 1)
        x = block(x, f"decoder_{depth}")
    close(run_with(arrays, build), conv(x, "output").permute(0, 2, 3, 1))


@pytest.mark.parametrize("kind", ["bce", "bce_dice"])
@pytest.mark.parametrize("num_classes", [2, 3])
def test_losses_of_unet_equal_torchs(kind: str, num_classes: int) -> None:
    num_outputs = 1 if num_classes == 2 else num_classes
    logits = RANDOM.normal(size=(2, 4, 4, num_outputs)).astype(np.float32)
    labels = RANDOM.integers(0, num_classes, (2, 4, 4)).astype(np.int32)
    ours = run_with(
        {}, lambda: load("unet", "model").segmentation_loss(tf.constant(logits), tf.constant(labels), kind)
    )
    scores, truth = torch.tensor(logits), torch.tensor(labels.astype(np.int64))
    if num_classes == 2:
        expected = F.binary_cross_entropy_with_logits(scores[..., 0], truth.float())
        found, wanted = torch.sigmoid(scores[..., 0]), truth.float()
    else:
        expected = F.cross_entropy(scores.permute(0, 3, 1, 2), truth)
        found = torch.softmax(scores, -1)[..., 1:]
        wanted = F.one_hot(truth, num_classes)[..., 1:].float()
    if kind == "bce_dice":
        expected = expected + 1 - (2 * (found * wanted).sum() + 1) / (found.sum() + wanted.sum() + 1)
    close(ours, expected)
