"""Checkpoints with the names of the model zoo's layers."""

from __future__ import annotations

import torch

from portwright.compat.modelzoo_layers import TransformerDecoderLayer
from portwright.runtime.checkpoint import match_names
from portwright.target import Shard


def zoo_weights(width: int = 4) -> dict[str, torch.Tensor]:
    names = [f"self_attn.proj_{part}_dense_layer" for part in ("q", "k", "v", "output")]
    names += ["ffn.ffn.0.linear_layer", "ffn.ffn.1.linear_layer"]
    made = {f"{name}.weight": torch.randn(width, width) for name in names}
    made |= {f"{name}.bias": torch.randn(width) for name in names}
    return made | {f"norm{n}.{what}": torch.randn(width) for n in (1, 3) for what in ("weight", "bias")}


def test_they_fit_the_layer_as_load_state_dict_would_read_them() -> None:
    biases = dict.fromkeys(
        ("use_projection_bias_in_attention", "use_ffn_bias_in_attention", "use_ffn_bias"), True
    )
    layer = TransformerDecoderLayer(4, 2, 4, add_cross_attention=False, **biases)
    given, notes = zoo_weights(), []
    shards = [Shard(f"model/{name}", tensor) for name, tensor in given.items()]
    matched = {
        s.name.removeprefix("model/"): s.tensor for s in match_names(shards, layer.state_dict(), notes.append)
    }
    layer.load_state_dict(dict(given))
    assert matched.keys() == layer.state_dict().keys()
    assert all(tensor.equal(matched[name]) for name, tensor in layer.state_dict().items())
    assert "model zoo" in notes[0]


def test_a_model_with_such_names_of_its_own_keeps_them() -> None:
    given = zoo_weights()
    shards = [Shard(f"model/{name}", tensor) for name, tensor in given.items()]
    assert {s.name.removeprefix("model/") for s in match_names(shards, given, print)} == set(given)
