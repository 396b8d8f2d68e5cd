"""What HuggingFace folders look like in the wild, what is refused, and what is left when something goes wrong."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import warnings

import pytest
import torch
import transformers
import yaml
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner
from unit.huggingface.test_convert_families import nothing, save

from portwright.cli import app
from portwright.discover import find_models
from portwright.errors import UnsupportedError, UserError
from portwright.huggingface import check as check_module
from portwright.huggingface.command import Options, bring_in, take_back
from portwright.huggingface.mapping import same_bits
from portwright.huggingface.model_folder import replace_section
from portwright.huggingface.weights import open_folder
from portwright.runtime.checkpoint import read_checkpoint

GPT2 = {"vocab_size": 61, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 33}
BERT = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 33,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("theirs")
    transformers.utils.logging.disable_progress_bar()
    save("GPT2LMHeadModel", GPT2, folder / "gpt2")
    save("BertForMaskedLM", BERT, folder / "bert")
    return folder


@pytest.fixture
def gpt2(made, tmp_path):
    return shutil.copytree(made / "gpt2", tmp_path / "theirs")


@pytest.fixture
def bert(made, tmp_path):
    return shutil.copytree(made / "bert", tmp_path / "theirs")


def _weights(folder):
    return load_file(folder / "model.safetensors")


def _ours(folder):
    opened = read_checkpoint(folder / "model_dir" / "checkpoint_0").shards
    return {shard.name: shard.tensor for shard in opened}


def _bring(source, **more):
    out = source.parent / more.pop("name", "ours")
    return bring_in(Options(source, out, **more), nothing), out


def _assert_same(one, two):
    assert one.keys() == two.keys()
    assert all(same_bits(one[name], two[name]) for name in one)


# -- forms of the files ------------------------------------------------------------------------------------------


def _as_torch(folder):
    torch.save(_weights(folder), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def _as_old_torch(folder):
    torch.save(_weights(folder), folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    (folder / "model.safetensors").unlink()


def _as_shards(folder):
    _split(folder, "model", "safetensors", lambda part, path: save_file(part, path, {"format": "pt"}))


def _as_torch_shards(folder):
    _split(folder, "pytorch_model", "bin", torch.save)


def _split(folder, stem, suffix, write):
    state = _weights(folder)
    (folder / "model.safetensors").unlink()
    names = list(state)
    parts = [names[::2], names[1::2]]
    weight_map = {}
    for i, part in enumerate(parts):
        file = f"{stem}-{i + 1:05d}-of-00002.{suffix}"
        write({name: state[name] for name in part}, folder / file)
        weight_map.update(dict.fromkeys(part, file))
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))


def _twice(folder):
    state = _weights(folder)
    state["lm_head.weight"] = state["transformer.wte.weight"].clone()
    save_file(state, folder / "model.safetensors")


def _with_buffers(folder):
    state = {name.removeprefix("transformer."): tensor for name, tensor in _weights(folder).items()}
    for i in range(2):
        state[f"h.{i}.attn.bias"] = torch.ones(1, 1, 33, 33).tril()
        state[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(state, folder / "model.safetensors")


def _wrapped(folder):
    save_file({f"module.{n}": t for n, t in _weights(folder).items()}, folder / "model.safetensors")


@pytest.mark.parametrize(
    "change", [_as_torch, _as_old_torch, _as_shards, _as_torch_shards, _twice, _with_buffers, _wrapped]
)
def test_forms_of_a_gpt2(gpt2, change):
    _bring(gpt2, name="plain")
    change(gpt2)
    made, out = _bring(gpt2, check=change is not _wrapped)  # which transformers itself does not read
    _assert_same(_ours(out), _ours(gpt2.parent / "plain"))
    assert change is _wrapped or made["check"]["equal"]


def test_old_names_of_a_bert_with_more_than_its_class_has(bert):
    _bring(bert, name="plain")
    state = _weights(bert)
    renamed = {
        n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t
        for n, t in state.items()
    }
    renamed["bert.embeddings.position_ids"] = torch.arange(33)[None]
    renamed["cls.predictions.decoder.weight"] = state["bert.embeddings.word_embeddings.weight"].clone()
    renamed["cls.seq_relationship.weight"], renamed["cls.seq_relationship.bias"] = (
        torch.ones(2, 24),
        torch.ones(2),
    )
    save_file(renamed, bert / "model.safetensors")
    _, out = _bring(bert)
    _assert_same(_ours(out), _ours(bert.parent / "plain"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_bit_for_bit_and_config_says_it(tmp_path, dtype):
    save("GPT2LMHeadModel", GPT2, tmp_path / "theirs", dtype)
    made, out = _bring(tmp_path / "theirs", check=True)
    assert made["check"]["equal"]
    assert {tensor.dtype for tensor in _ours(out).values()} == {dtype}
    take_back(Options(out, tmp_path / "back"), nothing)
    _assert_same(_weights(tmp_path / "back"), _weights(tmp_path / "theirs"))
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back").dtype == dtype


@pytest.mark.parametrize(
    ("name", "dtype"), [("bf16", torch.bfloat16), ("float16", torch.float16), ("fp64", torch.float64)]
)
def test_dtype_converts_on_either_way(gpt2, name, dtype):
    made, out = _bring(gpt2, dtype=name, check=True)
    assert made["check"]["equal"]
    state = _weights(gpt2)
    assert same_bits(
        _ours(out)["model/embeddings.word_embeddings.weight"], state["transformer.wte.weight"].to(dtype)
    )
    _, plain = _bring(gpt2, name="plain")
    back = take_back(Options(plain, gpt2.parent / "back", dtype=name, check=True), nothing)
    assert back["check"]["equal"]
    _assert_same(_weights(gpt2.parent / "back"), {n: t.to(dtype) for n, t in state.items()})
    assert json.loads((gpt2.parent / "back" / "config.json").read_text())["dtype"] == str(dtype).removeprefix(
        "torch."
    )


def test_a_value_that_a_narrow_type_cannot_hold_is_refused_and_leaves_nothing(gpt2):
    state = _weights(gpt2)
    state["transformer.wte.weight"][0, 0] = 1e6
    save_file(state, gpt2 / "model.safetensors")
    with pytest.raises(
        UserError, match=r"'transformer.wte.weight' has values up to 1e\+06, which torch.float16"
    ):
        _bring(gpt2, dtype="fp16")
    assert [each.name for each in gpt2.parent.iterdir()] == ["theirs"]


def test_shards_load_in_transformers_without_a_word(gpt2):
    _, out = _bring(gpt2)
    back = gpt2.parent / "back"
    made = take_back(Options(out, back, shard_size="20kB", check=True), nothing)
    assert made["check"]["equal"]
    assert len([name for name in made["files"] if name.startswith("model-0")]) > 2
    for file in back.glob("model-*.safetensors"):
        assert file.stat().st_size < 25_000
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, loading = transformers.AutoModelForCausalLM.from_pretrained(back, output_loading_info=True)
    assert not any(loading.values()), loading
    state = model.state_dict()
    assert all(same_bits(state[name], tensor) for name, tensor in _weights(gpt2).items())
    assert _bring(back, name="again")[0]["tensors"] == made["tensors"]


def test_tokenizer_and_generation_settings_go_along(gpt2):
    (gpt2 / "tokenizer.json").write_text("{}")
    (gpt2 / "merges.txt").write_text("ü é\n", "utf-8")
    (gpt2 / "secret.txt").write_text("not ours to copy")
    made, out = _bring(gpt2)
    params = yaml.safe_load((out / "configs" / "params.yaml").read_text())
    assert params["train_input"]["tokenizer"] == params["eval_input"]["tokenizer"] == str(out / "huggingface")
    assert made["notes"] == []
    back = gpt2.parent / "back"
    take_back(Options(out, back), nothing)
    for name in ("tokenizer.json", "merges.txt", "generation_config.json"):
        assert (back / name).read_bytes() == (gpt2 / name).read_bytes()
    assert not (back / "secret.txt").exists()


def test_without_a_tokenizer_it_is_said_on_the_way_back_too(gpt2, tmp_path):
    _, out = _bring(gpt2)
    (note,) = take_back(Options(out, tmp_path / "without"), nothing)["notes"]
    assert "no tokenizer goes along" in note
    (out / "huggingface" / "tokenizer.json").write_text("{}")
    assert take_back(Options(out, tmp_path / "with"), nothing)["notes"] == []


def test_without_a_tokenizer_it_is_said(gpt2):
    made, _ = _bring(gpt2)
    assert any("train_input.tokenizer" in note for note in made["notes"])


# -- our side ----------------------------------------------------------------------------------------------------


def test_params_have_the_model_of_the_weights_and_the_rest_of_the_reference(bert):
    _, out = _bring(bert)
    params = yaml.safe_load((out / "configs" / "params.yaml").read_text())
    assert params["model"]["hidden_size"] == 24
    assert params["model"]["disable_nsp"] is True
    assert params["train_input"]["max_sequence_length"] == 33
    assert params["optimizer"]["optimizer_type"]
    assert (out / "run.py").is_file()


def test_weights_alone(bert):
    made, _ = _bring(bert, name="w.safetensors", weights_only=True, check=True)
    assert made["check"]["equal"]
    _, folder = _bring(bert)
    written = load_file(bert.parent / "w.safetensors")
    _assert_same({f"model/{name}": tensor for name, tensor in written.items()}, _ours(folder))
    out = bert.parent / "back"
    take_back(
        Options(bert.parent / "w.safetensors", out, "bert", folder / "configs" / "params.yaml"), nothing
    )
    _assert_same(_weights(out), {n: t for n, t in _weights(bert).items() if n in _weights(out)})


def test_changed_params_change_the_config_and_nothing_else(gpt2):
    _, out = _bring(gpt2)
    file = out / "configs" / "params.yaml"
    params = yaml.safe_load(file.read_text())
    params["model"]["attention_dropout_rate"] = 0.25
    file.write_text(yaml.safe_dump(params))
    take_back(Options(out / "model_dir", gpt2.parent / "back"), nothing)
    given, written = (json.loads((gpt2.parent / n / "config.json").read_text()) for n in ("theirs", "back"))
    assert written == {**given, "attn_pdrop": 0.25}


def test_a_new_head_is_drawn_and_the_old_one_left(bert):
    with pytest.raises(UserError, match=r"classifier.weight.*--new-head"):
        _bring(bert, model="bert_classifier")
    made, out = _bring(bert, model="bert_classifier", new_head=True)
    told = " ".join(made["notes"])
    assert "drawn anew: bert.pooler.dense.weight" in told
    assert "classifier.weight" in told
    assert "cls.predictions.bias" in told
    ours = _ours(out)
    given = _weights(bert)
    assert same_bits(
        ours["model/bert.embeddings.word_embeddings.weight"], given["bert.embeddings.word_embeddings.weight"]
    )
    assert ours["model/classifier.weight"].std() > 0
    _assert_same(_ours(_bring(bert, name="again", model="bert_classifier", new_head=True)[1]), ours)
    back = take_back(Options(out, bert.parent / "back", "bert_classifier", check=True), nothing)
    assert back["check"]["equal"]
    back = json.loads((bert.parent / "back" / "config.json").read_text())
    assert back["architectures"] == ["BertForSequenceClassification"]


def test_a_base_model_gets_a_head(tmp_path):
    save("BertModel", BERT, tmp_path / "theirs")
    with pytest.raises(UserError, match=r"BertModel.*--model and --new-head: bert, bert_classifier"):
        _bring(tmp_path / "theirs")
    made, out = _bring(tmp_path / "theirs", model="bert_qa", new_head=True)
    assert made["notes"][0] == "drawn anew: qa_outputs.weight, qa_outputs.bias"
    given = _weights(tmp_path / "theirs")["encoder.layer.1.output.dense.weight"]
    assert same_bits(_ours(out)["model/bert.encoder.layers.1.linear2.weight"], given)


def test_a_new_head_cannot_be_checked(bert):
    with pytest.raises(UserError, match="a new head has no like"):
        _bring(bert, model="bert_classifier", new_head=True, check=True)


def test_roberta_and_bert_share_a_folder_and_are_told_apart(tmp_path):
    save(
        "RobertaForSequenceClassification",
        {**BERT, "pad_token_id": 1, "type_vocab_size": 1},
        tmp_path / "theirs",
    )
    made, out = _bring(tmp_path / "theirs")
    assert (made["model"], made["family"]) == ("bert_classifier", "roberta_classifier")
    shutil.rmtree(out / "huggingface")  # nothing but the params says it now
    made = take_back(Options(out, tmp_path / "back", "bert_classifier", check=True), nothing)
    assert made["family"] == "roberta_classifier"
    assert made["check"]["equal"]


def test_evaluates_and_trains_where_the_conversion_put_it(tmp_path):
    from portwright.text import shipped_documents, train_tokenizer

    tokenizer = train_tokenizer("gpt", shipped_documents()[:40], 400)
    config = {
        **GPT2,
        "vocab_size": 400,
        "eos_token_id": tokenizer.eos_id,
        "bos_token_id": tokenizer.eos_id,
    }
    save("GPT2LMHeadModel", config, tmp_path / "theirs")
    (tmp_path / "theirs" / "tokenizer.json").write_text(tokenizer.to_json(), "utf-8")
    _, out = _bring(tmp_path / "theirs")
    command = [
        sys.executable,
        str(out / "run.py"),
        "CPU",
        "--params",
        str(out / "configs" / "params.yaml"),
        "--json",
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    for more in (
        ["--mode", "eval", "--eval_steps", "2"],
        ["--mode", "train", "--max_steps", "2"],
    ):
        ran = subprocess.run([*command, *more], capture_output=True, text=True, cwd=tmp_path, env=env)
        assert ran.returncode == 0, ran.stderr
    assert (out / "model_dir" / "checkpoint_2").is_dir()
    made = take_back(Options(out, tmp_path / "tuned", check=True), nothing)
    assert made["step"] == 2
    assert made["check"]["equal"]
    assert not same_bits(
        _weights(tmp_path / "tuned")["transformer.wte.weight"],
        _weights(tmp_path / "theirs")["transformer.wte.weight"],
    )


def test_a_section_is_replaced_and_the_comments_of_others_stay():
    text = "# top\ntrain_input:\n  a: 1  # kept\n\nmodel:\n  x: 1  # gone\n\n  y:\n  - 2\n# of the optimizer\noptimizer:\n  lr: 1\n"
    made = replace_section(text, "model", {"z": "ü"})
    assert "a: 1  # kept" in made
    assert "# of the optimizer" in made
    assert "gone" not in made
    assert yaml.safe_load(made) == {"train_input": {"a": 1}, "model": {"z": "ü"}, "optimizer": {"lr": 1}}
    flow = "{model: {x: 1}, optimizer: {lr: 1}}\n"
    assert yaml.safe_load(replace_section(flow, "model", {"z": 1})) == {
        "model": {"z": 1},
        "optimizer": {"lr": 1},
    }
    assert yaml.safe_load(replace_section("a: 1", "model", {"z": 1})) == {"a": 1, "model": {"z": 1}}


# -- what is refused ---------------------------------------------------------------------------------------------


def _damage(folder, name, data):
    (folder / name).write_bytes(data)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: (f / "config.json").unlink(), "has no config.json"),
        (lambda f: _damage(f, "config.json", b"{"), "is not JSON"),
        (lambda f: _damage(f, "config.json", b"[1]"), "holds a list"),
        (lambda f: _damage(f, "config.json", b"\xff\xfe"), "is not JSON"),
        (lambda f: (f / "model.safetensors").unlink(), "has no weights"),
        (
            lambda f: (f / "model.safetensors").rename(f / "model.fp16.safetensors"),
            "Rename model.fp16.safetensors",
        ),
        (lambda f: (f / "model.safetensors").rename(f / "tf_model.h5"), "TensorFlow's"),
        (
            lambda f: _damage(f, "model.safetensors", b"version https://git-lfs.github.com/spec/v1\n"),
            "git lfs pull",
        ),
        (lambda f: _damage(f, "model.safetensors", b"<!DOCTYPE html>"), "web page"),
        (lambda f: _damage(f, "model.safetensors", b""), "it is empty"),
        (
            lambda f: _damage(f, "model.safetensors", (f / "model.safetensors").read_bytes()[:-9]),
            "not a whole safetensors",
        ),
        (
            lambda f: (_as_torch(f), _damage(f, "pytorch_model.bin", b"PK\x03\x04 cut")),
            "truncated torch file",
        ),
        (lambda f: (_as_shards(f), (f / "model-00002-of-00002.safetensors").unlink()), "lacks model-00002"),
        (lambda f: (_as_shards(f), _damage(f, "model.safetensors.index.json", b"{}")), "no weight_map"),
        (
            lambda f: (
                _as_shards(f),
                _damage(f, "model.safetensors.index.json", b'{"weight_map": {"a": "../x"}}'),
            ),
            "no file beside it",
        ),
    ],
)
def test_bad_folders_are_told(gpt2, change, says):
    change(gpt2)
    with pytest.raises(UserError, match=says):
        _bring(gpt2)
    assert not (gpt2.parent / "ours").exists()


def test_an_index_that_names_what_no_file_holds(gpt2):
    _as_shards(gpt2)
    file = gpt2 / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    index["weight_map"]["ghost"] = "model-00001-of-00002.safetensors"
    file.write_text(json.dumps(index))
    with pytest.raises(UserError, match="ghost"):
        open_folder(gpt2)


class _Evil:
    def __reduce__(self):
        return (os.mkdir, ("evil",))


def test_pickled_code_never_runs(gpt2, monkeypatch):
    monkeypatch.chdir(gpt2.parent)
    torch.save({"transformer.wte.weight": _Evil()}, gpt2 / "pytorch_model.bin")
    (gpt2 / "model.safetensors").unlink()
    with pytest.raises(UserError, match="would run code"):
        _bring(gpt2)
    assert not (gpt2.parent / "evil").exists()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "LlamaForCausalLM"),
        ({"architectures": None, "model_type": "llama"}, "model_type 'llama'"),
        ({"architectures": [], "model_type": None}, "model_type None"),
    ],
)
def test_unknown_models_are_told_with_those_that_are_known(gpt2, config, says):
    given = json.loads((gpt2 / "config.json").read_text())
    (gpt2 / "config.json").write_text(json.dumps({**given, **config}))
    with pytest.raises(UserError, match=f"{says}.*Valid: "):
        _bring(gpt2)


def test_a_model_of_another_type_is_refused(gpt2):
    with pytest.raises(UserError, match="model_type 'gpt2', and the model 'bert' reads 'bert'"):
        _bring(gpt2, model="bert")
    with pytest.raises(UserError, match="Did you mean 'gpt2'"):
        _bring(gpt2, model="gpt-2")


@pytest.mark.parametrize(
    "values",
    [
        {"n_layer": "two"},
        {"n_layer": -1},
        {"n_embd": None},
        {"n_head": 0},
        {"n_embd": [24]},
        {"n_embd": 25},
        {"vocab_size": 1.5},
    ],
)
def test_nonsense_in_a_config_is_told(gpt2, values):
    given = json.loads((gpt2 / "config.json").read_text())
    (gpt2 / "config.json").write_text(json.dumps({**given, **values}))
    with pytest.raises(UserError):
        _bring(gpt2)
    assert not (gpt2.parent / "ours").exists()


@pytest.mark.parametrize(
    "config",
    [
        {"id2label": {0: "gut", 1: "nä: 'h'", 2: "# x"}},
        {"num_labels": 1},
        {"num_labels": 4, "problem_type": "multi_label_classification"},
    ],
)
def test_labels_and_kinds_of_problems_go_along(tmp_path, config):
    save("BertForSequenceClassification", {**BERT, **config}, tmp_path / "theirs")
    made, out = _bring(tmp_path / "theirs", check=True)
    assert made["check"]["equal"]
    shutil.rmtree(out / "huggingface")  # so that all comes from the params
    back = take_back(Options(out, tmp_path / "back", "bert_classifier", check=True), nothing)
    assert back["check"]["equal"]
    given, written = (transformers.AutoConfig.from_pretrained(tmp_path / n) for n in ("theirs", "back"))
    assert (written.id2label, written.problem_type) == (given.id2label, given.problem_type)


def test_model_type_alone_says_the_model(gpt2):
    given = json.loads((gpt2 / "config.json").read_text())
    del given["architectures"]
    (gpt2 / "config.json").write_text(json.dumps(given))
    assert _bring(gpt2)[0]["model"] == "gpt2"


def test_what_exists_is_replaced_only_by_force_and_only_what_a_conversion_made(gpt2):
    _, out = _bring(gpt2)
    before = sorted(each.name for each in out.iterdir())
    with pytest.raises(UserError, match="exists already"):
        _bring(gpt2)
    _bring(gpt2, force=True)
    assert sorted(each.name for each in out.iterdir()) == before
    precious = gpt2.parent / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("42")
    with pytest.raises(UserError, match="was not made by a conversion"):
        _bring(gpt2, name="precious", force=True)
    assert (precious / "thesis.txt").read_text() == "42"
    own = shutil.copytree(find_models()["fc_mnist"], gpt2.parent / "own")  # it has a run.py, too
    with pytest.raises(UserError, match="was not made by a conversion"):
        _bring(gpt2, name="own", force=True)
    assert (own / "model.py").is_file()
    (gpt2.parent / "empty").mkdir()
    _bring(gpt2, name="empty")
    for place in (gpt2, gpt2.parent):
        with pytest.raises(UserError, match="holds what is to be converted"):
            bring_in(Options(gpt2, place, force=True), nothing)


def test_a_failure_in_the_middle_leaves_what_was_there(gpt2, monkeypatch):
    _, out = _bring(gpt2)
    kept = _ours(out)
    monkeypatch.setattr("portwright.huggingface.incoming.write_checkpoint", _fail)
    with pytest.raises(RuntimeError, match="disk on fire"):
        _bring(gpt2, force=True)
    _assert_same(_ours(out), kept)
    assert sorted(each.name for each in gpt2.parent.iterdir()) == ["ours", "theirs"]


def _fail(*arguments):
    raise RuntimeError("disk on fire")


def test_without_transformers_a_check_says_the_cure(gpt2, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"pip install 'portwright\[huggingface\]'"):
        _bring(gpt2, check=True)
    assert not (gpt2.parent / "ours").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dtype": "int7"}, "--dtype is 'int7'"),
        ({"out": None}, "Add OUT"),
    ],
)
def test_bad_options(gpt2, options, says):
    given = {"source": gpt2, "out": gpt2.parent / "ours", **options}
    with pytest.raises(UserError, match=says):
        bring_in(Options(**given), nothing)


def test_sources_of_ours_that_are_none(gpt2, tmp_path):
    (tmp_path / "nothing").mkdir()
    for source, says in (
        (gpt2, "is a HuggingFace folder"),
        (tmp_path / "nothing", "has no checkpoint"),
        (tmp_path / "lacking", "no checkpoint"),
    ):
        with pytest.raises(UserError, match=says):
            take_back(Options(source, tmp_path / "back", "gpt2"), nothing)
    _bring(gpt2, name="w.safetensors", weights_only=True)
    (tmp_path / "configs").mkdir()  # of something else
    (tmp_path / "configs" / "params.yaml").write_text("model: {}")
    with pytest.raises(UserError, match="Name it: --model"):
        take_back(Options(tmp_path / "w.safetensors", tmp_path / "back"), nothing)
    with pytest.raises(UserError, match="--params"):
        take_back(Options(tmp_path / "w.safetensors", tmp_path / "back", "gpt2"), nothing)


def test_params_of_another_size_are_told_by_tensor(gpt2):
    _, out = _bring(gpt2)
    file = out / "configs" / "params.yaml"
    file.write_text(file.read_text().replace("hidden_size: 24", "hidden_size: 48"))
    with pytest.raises(UserError, match=r"embeddings.word_embeddings.weight is 61x24, not 61x48"):
        take_back(Options(out, gpt2.parent / "back"), nothing)


def test_what_huggingface_does_not_model_is_refused(gpt2):
    given = json.loads((gpt2 / "config.json").read_text())
    (gpt2 / "config.json").write_text(json.dumps({**given, "scale_attn_by_inverse_layer_idx": True}))
    with pytest.raises((UserError, UnsupportedError), match="scale_attn_by_inverse_layer_idx"):
        _bring(gpt2)


# -- the command -------------------------------------------------------------------------------------------------


def _run(*words):
    return CliRunner().invoke(app, ["convert", *map(str, words)])


def test_the_command_tells_and_lists(gpt2, tmp_path):
    listed = _run("--from", "hf", gpt2, "--list")
    assert listed.exit_code == 0
    assert "decoder.layers.0.self_attn.in_proj_weight 72x24" in listed.stdout
    assert "transformer.h.0.attn.c_attn.weight 24x72 transposed" in listed.stdout
    rows = json.loads(_run("--from", "hf", gpt2, "--list", "--json").stdout)["table"]
    assert {"ours": "decoder.norm.bias", "shape": [24], "dtype": "float32", "theirs": ["transformer.ln_f.bias"],
            "their_shapes": [[24]], "transposed": False} in rows  # fmt: skip
    assert not (tmp_path / "ours").exists()

    done = _run("--from", "hf", gpt2, tmp_path / "ours", "--check")
    assert done.exit_code == 0, done.output
    assert "equal to GPT2LMHeadModel" in done.stdout
    back = json.loads(_run("--to", "hf", tmp_path / "ours", tmp_path / "back", "--check", "--json").stdout)
    assert back["check"]["equal"] is True
    assert back["files"] == ["config.json", "generation_config.json", "model.safetensors"]


def test_a_difference_is_status_1(gpt2, tmp_path, monkeypatch):
    assert _run("--from", "hf", gpt2, tmp_path / "ours", "--check", "--tolerance", "0").exit_code in (0, 1)
    real = check_module.make_batch

    def other_batch(config, network):
        with torch.no_grad():
            network.decoder.norm.bias.add_(1.0)
        return real(config, network)

    monkeypatch.setattr(check_module, "make_batch", other_batch)
    done = _run("--from", "hf", gpt2, tmp_path / "other", "--check")
    assert done.exit_code == 1
    assert "NOT equal" in done.stdout


@pytest.mark.parametrize("words", [(), ("--from", "hf", "--to", "hf"), ("--from", "onnx")])
def test_one_direction_is_needed(gpt2, tmp_path, words):
    done = _run(*words, gpt2, tmp_path / "ours")
    assert isinstance(done.exception, UserError)


def test_importing_the_command_line_loads_no_torch():
    code = "import sys, portwright.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"architectures": None, "model_type": ["gpt2"]}, "which no model of ours reads"),
        ({"n_layer": 10_000_000}, "say 10000000 layers, and the checkpoint has 28 tensors"),
    ],
)
def test_a_config_that_no_model_can_have_is_told_at_once(gpt2, values, says):
    given = {**json.loads((gpt2 / "config.json").read_text()), **values}
    (gpt2 / "config.json").write_text(json.dumps(given))
    with pytest.raises(UserError, match=says):
        _bring(gpt2)


def test_params_of_another_kind_of_model_are_told(gpt2, tmp_path):
    _, out = _bring(gpt2)
    with pytest.raises(UserError, match=r"the params have no model\.\w+, which a bert needs"):
        take_back(Options(out, tmp_path / "back", model="bert"), nothing)


@pytest.mark.parametrize("tolerance", ["nan", "-1", "inf"])
def test_a_tolerance_that_decides_nothing_is_refused(gpt2, tmp_path, tolerance):
    words = [
        "convert",
        "--from",
        "hf",
        str(gpt2),
        str(tmp_path / "ours"),
        "--check",
        "--tolerance",
        tolerance,
    ]
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, UserError)
    assert "--tolerance is" in str(result.exception)
    assert not (tmp_path / "ours").exists()


def test_a_check_of_weights_that_are_no_numbers_is_status_1_and_its_json_is_json(gpt2, tmp_path):
    state = _weights(gpt2)
    state["transformer.wpe.weight"][3, 2] = float("nan")
    save_file(state, gpt2 / "model.safetensors", {"format": "pt"})
    words = ["convert", "--from", "hf", str(gpt2), str(tmp_path / "ours"), "--check", "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1
    document = json.loads(result.stdout, parse_constant=pytest.fail)
    assert document["check"]["difference"] is None
    assert document["check"]["equal"] is False


def test_the_command_to_run_next_can_be_pasted(gpt2, tmp_path):
    out = tmp_path / "my größe 'model'"
    result = CliRunner().invoke(app, ["convert", "--from", "hf", str(gpt2), str(out)])
    line = next(each for each in result.stdout.splitlines() if "portwright run" in each)
    assert shlex.split(line) == ["portwright", "run", str(out), "CPU", "--mode", "eval"]
