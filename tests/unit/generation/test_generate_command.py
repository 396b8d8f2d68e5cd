"""`portwright generate`: checkpoints, tokenizers, prompts, output; what does not belong together is told."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file

from portwright.errors import UserError
from portwright.generation import generate
from portwright.generation.command import GenerateRequest, generate_and_print, read_choices
from portwright.huggingface.model_folder import complete_section
from portwright.networks import T5, Gpt, Seq2Seq
from portwright.networks.bert_heads import BertForPreTraining
from portwright.runtime.checkpoint import CheckpointWriter
from portwright.target import Shard
from portwright.text.tokenizer_training import train_tokenizer

_SIZES = ("model.hidden_size=16", "model.num_hidden_layers=1", "model.num_heads=2", "model.filter_size=32")
_GPT = (
    *_SIZES,
    "model.vocab_size=300",
    "model.max_position_embeddings=40",
    "train_input.max_sequence_length=16",
)
_GPT_MODEL = {
    "vocab_size": 300,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_heads": 2,
    "filter_size": 32,
    "max_position_embeddings": 40,
    "initializer_range": 0.5,
}
_TEXTS = ["the quick brown fox jumps over the lazy dog", "pack my box with five dozen liquor jugs"] * 20


@pytest.fixture(autouse=True)
def _fresh_model_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Model folders import their own model.py, data.py and utils.py; one process has room for one set of those."""
    path = list(sys.path)
    for name in ("model", "data", "utils"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    sys.path[:] = path
    for name in ("model", "data", "utils"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    file.write_text(train_tokenizer("gpt", _TEXTS, 280).to_json(), "utf-8")
    return file


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("weights") / "gpt.safetensors"
    save_file(dict(Gpt(_GPT_MODEL).state_dict()), file)
    return file


def _request(weights: Path, tokenizer: Path | None, **given: Any) -> GenerateRequest:
    choices = read_choices(**given.pop("choices", {"max_new_tokens": 6}))
    defaults = {"prompts": ["the quick"], "overrides": _GPT, "device": "cpu"}
    return GenerateRequest(
        "gpt2", checkpoint=weights, tokenizer=tokenizer, choices=choices, **{**defaults, **given}
    )


def test_text_follows_the_prompt(
    weights: Path, tokenizer_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generate_and_print(_request(weights, tokenizer_file))
    text = capsys.readouterr().out
    assert text.startswith("the quick")
    assert len(text.rstrip("\n")) > len("the quick")
    generate_and_print(_request(weights, tokenizer_file, stream=True))
    assert capsys.readouterr().out == text


def test_json_tells_each_result_and_batches_do_not_change_samples(
    weights: Path, tokenizer_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_bytes("\ufeffthe dog\r\n\n  \nnaïve 🙂\njugs\n".encode())
    choices = {"max_new_tokens": 5, "temperature": 1.3, "seed": 4, "num_return_sequences": 2}
    documents = []
    for batch_size in (8, 1):
        generate_and_print(
            _request(
                weights,
                tokenizer_file,
                prompt_file=prompts,
                batch_size=batch_size,
                as_json=True,
                choices=choices,
            )
        )
        documents.append(json.loads(capsys.readouterr().out))
    assert documents[0]["step"] == 0
    results = documents[0]["results"]
    assert [r["prompt"] for r in results] == [
        p for p in ("the quick", "the dog", "naïve 🙂", "jugs") for _ in "ab"
    ]
    assert [r["tokens"] for r in results] == [r["tokens"] for r in documents[1]["results"]]
    assert [r["sample"] for r in results] == list(range(8))
    assert len({tuple(r["tokens"]) for r in results}) > 4


def test_an_unseeded_run_tells_one_seed_for_all_batches(
    weights: Path, tokenizer_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"prompts": ["a", "b", "c"], "batch_size": 1, "as_json": True}
    generate_and_print(
        _request(weights, tokenizer_file, choices={"do_sample": True, "max_new_tokens": 4}, **given)
    )
    first = json.loads(capsys.readouterr().out)["results"]
    assert len({r["seed"] for r in first}) == 1
    again = {"seed": first[0]["seed"], "max_new_tokens": 4}
    generate_and_print(_request(weights, tokenizer_file, choices=again, **given))
    assert json.loads(capsys.readouterr().out)["results"] == first


def test_an_empty_prompt_begins_a_text_and_length_is_bounded_by_positions(
    weights: Path, tokenizer_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generate_and_print(_request(weights, tokenizer_file, prompts=[""], as_json=True, choices={}))
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert 0 < len(result["tokens"]) <= 40
    with pytest.raises(UserError, match="max_new_tokens"):
        generate_and_print(_request(weights, tokenizer_file, choices={"max_new_tokens": 41}))
    with pytest.raises(UserError, match="Shorten the prompt"):
        generate_and_print(_request(weights, tokenizer_file, prompts=["jugs " * 60], choices={}))


def test_what_does_not_belong_together_is_told(weights: Path, tokenizer_file: Path, tmp_path: Path) -> None:
    large = tmp_path / "large.json"
    large.write_text(train_tokenizer("gpt", ["".join(map(chr, range(32, 2000)))] * 3, 400).to_json(), "utf-8")
    with pytest.raises(UserError, match=r"model.vocab_size is 300"):
        generate_and_print(_request(weights, large))
    other = tmp_path / "other.json"
    other.write_text(train_tokenizer("gpt", ["zzz yyy xxx"] * 9, 262).to_json(), "utf-8")
    noted = (*_GPT, f"train_input.tokenizer={tokenizer_file}")
    with pytest.raises(UserError, match="was trained with"):
        generate_and_print(_request(weights, other, overrides=noted))
    with pytest.raises(UserError, match="shape"):
        generate_and_print(_request(weights, tokenizer_file, overrides=(*_GPT, "model.hidden_size=32")))
    for given, says in (
        ({"prompts": []}, "no prompt"),
        ({"prompt_file": tmp_path / "none.txt"}, "none.txt"),
        ({"batch_size": 0}, "batch-size"),
        ({"device": "nosuch"}, "nosuch"),
        ({"stream": True, "as_json": True}, "--stream"),
        ({"choices": {"max_new_tokens": 0}}, "max_new_tokens=0"),
        ({"choices": {"early_stopping": "maybe"}}, "early_stopping"),
    ):
        with pytest.raises(UserError, match=says):
            generate_and_print(_request(weights, tokenizer_file, **given))
    not_text = tmp_path / "latin.txt"
    not_text.write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match="UTF-8: byte 3"):
        generate_and_print(_request(weights, tokenizer_file, prompt_file=not_text))


@pytest.mark.parametrize("name", ["t5", "transformer"])
def test_encoder_decoders_answer(
    name: str, tmp_path: Path, tokenizer_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    kind = "t5" if name == "t5" else "translation"
    tokenizer = train_tokenizer(kind, _TEXTS, 80, num_sentinels=5 if name == "t5" else 0)
    file = tmp_path / "tokenizer.json"
    file.write_text(tokenizer.to_json(), "utf-8")
    ids = {"pad_token_id": tokenizer.pad_id, "eos_token_id": tokenizer.eos_id}
    common = {**ids, "encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 1, "num_heads": 2}
    if name == "t5":
        model: dict[str, Any] = {**common, "vocab_size": 100, "d_model": 16, "d_kv": 8, "d_ff": 16}
        network: torch.nn.Module = T5(model)
    else:
        model = {**common, "src_vocab_size": 90, "tgt_vocab_size": 90, "hidden_size": 16, "filter_size": 16}
        network = Seq2Seq(model)
    save_file(dict(network.state_dict()), tmp_path / "weights.safetensors")
    overrides = [f"model.{key}={value}" for key, value in model.items()]
    prompts = ["the <extra_id_0> brown fox", "dog"] if name == "t5" else ["the quick brown fox", "dog"]
    request = GenerateRequest(
        name,
        prompts,
        checkpoint=tmp_path / "weights.safetensors",
        tokenizer=file,
        overrides=overrides,
        device="cpu",
        as_json=True,
        choices={"max_new_tokens": 5, "num_beams": 2},
    )
    generate_and_print(request)
    both = json.loads(capsys.readouterr().out)["results"]
    assert [r["prompt"] for r in both] == prompts
    for result in both:
        sys.modules.pop("model"), sys.modules.pop("utils"), sys.modules.pop("data")
        generate_and_print(GenerateRequest(**{**vars(request), "prompts": [result["prompt"]]}))
        (alone,) = json.loads(capsys.readouterr().out)["results"]
        assert alone["tokens"] == result["tokens"]
    if name == "t5":
        with pytest.raises(UserError, match="extra_id_9"):
            generate_and_print(GenerateRequest(**{**vars(request), "prompts": ["<extra_id_9>"]}))


def test_prompts_come_from_stdin(
    weights: Path, tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the fox\n")))
    generate_and_print(_request(weights, tokenizer_file, prompts=(), prompt_file=Path("-"), as_json=True))
    assert json.loads(capsys.readouterr().out)["results"][0]["prompt"] == "the fox"


def test_a_run_is_found_with_its_params_and_its_tokenizer(
    tmp_path: Path, tokenizer_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run's own params count, not the folder's; a damaged checkpoint gives way to the one before it."""
    torch.manual_seed(0)
    run = tmp_path / "run"
    shards = [Shard(f"model/{name}", value) for name, value in Gpt(_GPT_MODEL).state_dict().items()]
    with CheckpointWriter(run, None, on_note=pytest.fail) as writer:
        writer.save(2, shards, {})
        writer.save(4, shards, {})
    params = {
        "train_input": {"max_sequence_length": 16, "tokenizer": str(tokenizer_file)},
        "model": _GPT_MODEL,
        "optimizer": {"optimizer_type": "AdamW", "learning_rate": 0.1},
        "runconfig": {"max_steps": 4},
    }
    (run / "train").mkdir()
    (run / "train" / "params_train.yaml").write_text(yaml.safe_dump(params), "utf-8")
    request = GenerateRequest(
        "gpt2", ["the"], checkpoint=run, device="cpu", as_json=True, choices={"max_new_tokens": 4}
    )
    generate_and_print(request)
    newest = json.loads(capsys.readouterr().out)
    assert newest["step"] == 4
    assert newest["checkpoint"].endswith("checkpoint_4")
    with (run / "checkpoint_4" / "model.safetensors").open("r+b") as file:
        file.seek(-1, io.SEEK_END)
        file.write(b"\xff")
    words = [
        "generate",
        "gpt2",
        "--checkpoint",
        str(run),
        "--prompt",
        "the",
        "--max-new-tokens",
        "4",
        "--json",
    ]
    made = subprocess.run([sys.executable, "-m", "portwright.cli", *words], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["step"] == 2
    assert json.loads(made.stdout)["results"] == newest["results"]
    assert "checkpoint_4" in made.stderr
    damaged = GenerateRequest("gpt2", ["the"], checkpoint=run / "checkpoint_4", device="cpu")
    with pytest.raises(UserError, match="not good"):
        generate_and_print(damaged)
    with pytest.raises(UserError, match="no checkpoint in"):
        generate_and_print(
            GenerateRequest(
                "gpt2", ["the"], device="cpu", overrides=[f"runconfig.model_dir={tmp_path / 'none'}"]
            )
        )
    with pytest.raises(UserError, match="tensorflow/gpt2"):
        generate_and_print(GenerateRequest("tensorflow/gpt2", ["the"]))


def test_networks_that_do_not_generate_are_told_before_a_tokenizer_is_asked_for(tmp_path: Path) -> None:
    sizes = {**_GPT_MODEL, "disable_nsp": True}
    file = tmp_path / "bert.safetensors"
    save_file(dict(BertForPreTraining(complete_section(sizes, "bert")).state_dict()), file)
    changed = [f"model.{name}={json.dumps(value)}" for name, value in sizes.items()]
    overrides = [*changed, "train_input.max_sequence_length=16"]
    request = GenerateRequest("bert", ["the"], checkpoint=file, overrides=overrides, device="cpu")
    with pytest.raises(UserError, match="BertForPreTraining cannot generate"):
        generate_and_print(request)


def test_a_checkpoint_of_another_model_is_told_as_that(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with CheckpointWriter(run, None, on_note=pytest.fail) as writer:
        writer.save(2, [Shard("model/weight", torch.ones(2))], {})
    (run / "train").mkdir()
    params = {"train_input": {"src_max_sequence_length": 4}, "model": {"d_model": 8}}
    (run / "train" / "params_train.yaml").write_text(yaml.safe_dump(params), "utf-8")
    with pytest.raises(UserError, match=r"run that made .*checkpoint_2: is it one of 'gpt2'\?"):
        generate_and_print(GenerateRequest("gpt2", ["the"], checkpoint=run, device="cpu"))


def test_a_checkpoint_that_is_not_there_is_told_with_the_option_s_own_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no checkpoint .*none.* --checkpoint a"):
        generate_and_print(GenerateRequest("gpt2", ["the"], checkpoint=tmp_path / "none", device="cpu"))


def test_without_transformers_the_extra_is_named(
    weights: Path, tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match="portwright generate needs transformers") as caught:
        generate_and_print(_request(weights, tokenizer_file))
    assert caught.value.cure == "pip install 'portwright[huggingface]'"
    with pytest.raises(UserError, match=r"portwright\[huggingface\]"):
        generate(Gpt(_GPT_MODEL), [[1]])


def test_bytes_that_are_no_text_are_told(weights: Path, tokenizer_file: Path) -> None:
    with pytest.raises(UserError, match=r"'the \\udcff' is not UTF-8: character 4"):
        generate_and_print(_request(weights, tokenizer_file, prompts=["the \udcff"]))


@pytest.mark.parametrize("step", [0, 3])
def test_converted_weights_without_a_tokenizer_are_told(
    tmp_path: Path, step: int, capsys: pytest.CaptureFixture[str]
) -> None:
    model = {**_GPT_MODEL, "vocab_size": 300}
    shards = [Shard(f"model/{name}", value) for name, value in Gpt(model).state_dict().items()]
    with CheckpointWriter(tmp_path / "model_dir", None, on_note=pytest.fail) as writer:
        writer.save(step, shards, {})
    (tmp_path / "huggingface").mkdir()
    (tmp_path / "huggingface" / "config.json").write_text("{}", "utf-8")
    request = GenerateRequest(
        "gpt2",
        ["the"],
        checkpoint=tmp_path / "model_dir",
        overrides=_GPT,
        device="cpu",
        choices={"max_new_tokens": 2},
    )
    generate_and_print(request)
    # Those that were trained on here had their tokens chosen here.
    assert ("no tokenizer came with the converted weights" in capsys.readouterr().err) is (step == 0)
