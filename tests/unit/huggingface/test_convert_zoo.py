"""Checkpoints of the model zoo's release 1.6: the same weights come out as from HuggingFace's file."""

import pytest
import torch
import transformers
import yaml
from unit.huggingface.test_convert_families import nothing, save

from portwright.errors import UnsupportedError, UserError
from portwright.huggingface.command import Options, bring_in, take_back
from portwright.huggingface.incoming import read_zoo
from portwright.huggingface.mapping import same_bits
from portwright.runtime.checkpoint import read_checkpoint

GPT2 = {
    "vocab_size": 61,
    "n_embd": 24,
    "n_layer": 2,
    "n_head": 3,
    "n_positions": 33,
    "activation_function": "gelu",
}
GPT2_PARAMS = {
    "vocab_size": 61,
    "hidden_size": 24,
    "use_position_embedding": True,
    "position_embedding_type": "learned",
    "share_embedding_weights": True,
    "max_position_embeddings": 33,
    "num_hidden_layers": 2,
    "dropout_rate": 0.1,
    "layer_norm_epsilon": 1e-5,
    "num_heads": 3,
    "filter_size": 96,
    "nonlinearity": "gelu",
    "use_bias_in_output": False,
    "mixed_precision": True,
    "allow_multireplica": False,
}


@pytest.fixture(autouse=True)
def _quiet():
    transformers.utils.logging.disable_progress_bar()


def _zoo_names(state):
    """GPT-2's tensors under the names that the zoo's layers give them."""
    made = {
        "embedding_layer.word_embeddings.weight": state["transformer.wte.weight"],
        "embedding_layer.position_embeddings.weight": state["transformer.wpe.weight"],
        "lm_head.weight": state["transformer.wte.weight"],
    }
    parts = {
        "attn.c_proj": "self_attn.proj_output_dense_layer",
        "mlp.c_fc": "ffn.ffn.0.linear_layer",
        "mlp.c_proj": "ffn.ffn.1.linear_layer",
        "ln_1": "norm1",
        "ln_2": "norm3",
    }
    for i in range(2):
        block, layer = f"transformer.h.{i}", f"transformer_decoder.layers.{i}"
        for kind in ("weight", "bias"):
            for each, part in zip("qkv", state[f"{block}.attn.c_attn.{kind}"].chunk(3, dim=-1), strict=True):
                made[f"{layer}.self_attn.proj_{each}_dense_layer.{kind}"] = (
                    part.t() if part.dim() == 2 else part
                )
            for theirs, zoo in parts.items():
                tensor = state[f"{block}.{theirs}.{kind}"]
                made[f"{layer}.{zoo}.{kind}"] = tensor.t() if tensor.dim() == 2 else tensor
    for kind in ("weight", "bias"):
        made[f"ln_f.{kind}"] = made[f"transformer_decoder.norm.{kind}"] = state[f"transformer.ln_f.{kind}"]
    return {name: tensor.contiguous() for name, tensor in made.items()}


def _write(folder, state, params):
    torch.save({"model": state, "global_step": 7}, folder / "checkpoint_7.mdl")
    (folder / "zoo.yaml").write_text(
        yaml.safe_dump({"model": params, "train_input": {"data_processor": "X"}})
    )


def _options(folder, model, **more):
    return Options(folder / "checkpoint_7.mdl", folder / "ours", model, folder / "zoo.yaml", **more)


def _ours(folder):
    return {s.name: s.tensor for s in read_checkpoint(folder / "model_dir" / "checkpoint_0").shards}


def _assert_same(one, two):
    assert one.keys() == two.keys()
    assert all(same_bits(one[name], two[name]) for name in one)


def test_gpt2_becomes_what_huggingfaces_file_becomes_and_goes_there(tmp_path):
    model = save("GPT2LMHeadModel", GPT2, tmp_path / "theirs")
    bring_in(Options(tmp_path / "theirs", tmp_path / "reference"), nothing)
    _write(tmp_path, _zoo_names(model.state_dict()), GPT2_PARAMS)
    made = bring_in(_options(tmp_path, "gpt2"), nothing, read_zoo)
    assert made["direction"] == "from zoo"
    _assert_same(_ours(tmp_path / "ours"), _ours(tmp_path / "reference"))
    back = take_back(Options(tmp_path / "ours", tmp_path / "back", "gpt2", check=True), nothing)
    assert back["check"]["equal"]


def test_bert_has_huggingfaces_names(tmp_path):
    config = {
        "vocab_size": 61,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 40,
        "max_position_embeddings": 33,
    }
    model = save("BertForPreTraining", config, tmp_path / "theirs")
    bring_in(Options(tmp_path / "theirs", tmp_path / "reference"), nothing)
    params = {
        "vocab_size": 61,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_heads": 3,
        "filter_size": 40,
        "max_position_embeddings": 33,
        "disable_nsp": False,
        "enable_vts": True,
    }
    state = {**model.state_dict(), "bert.embeddings.position_ids": torch.arange(33)[None]}
    _write(tmp_path, state, params)
    bring_in(_options(tmp_path, "bert"), nothing, read_zoo)
    _assert_same(_ours(tmp_path / "ours"), _ours(tmp_path / "reference"))


def test_what_it_does_not_know_is_refused(tmp_path):
    _write(tmp_path, {"w": torch.ones(1)}, GPT2_PARAMS)
    for options, says in (
        (_options(tmp_path, None), "--model and --params"),
        (_options(tmp_path, "t5"), "does not know 't5'"),
        (_options(tmp_path, "gpt2", check=True), "--to hf OUT OTHER --check"),
        (_options(tmp_path, "gpt2"), "unexpected: w"),
        (Options(tmp_path, tmp_path / "ours", "gpt2", tmp_path / "zoo.yaml"), "is not a file"),
    ):
        with pytest.raises(UserError, match=says):
            bring_in(options, nothing, read_zoo)
    _write(tmp_path, {"w": torch.ones(1)}, {**GPT2_PARAMS, "position_embedding_type": "fixed"})
    with pytest.raises((UserError, UnsupportedError), match="position_embedding_type"):
        bring_in(_options(tmp_path, "gpt2"), nothing, read_zoo)
