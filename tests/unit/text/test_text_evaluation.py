"""Evaluation has the tokenizer of training, whatever lies beside its own text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from portwright import text
from portwright.errors import UserError
from portwright.text.prepare import PrepareOptions, prepare

TEXTS = text.shipped_documents()[:20]
CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "causal": (text.causal_lm, {"max_sequence_length": 16}, {"vocab_size": 400}),
    "pairs": (
        text.masked_lm,
        {"max_sequence_length": 16, "split": "paragraph"},
        {"vocab_size": 400, "pad_token_id": 0},
    ),
    "spans": (
        text.span_corruption,
        {"src_max_sequence_length": 16, "extra_ids": 9},
        {"vocab_size": 400, "pad_token_id": 0, "eos_token_id": 1},
    ),
}


def write(folder: Path, texts: list[str]) -> str:
    folder.mkdir()
    for number, each in enumerate(texts):
        (folder / f"{number}.txt").write_text(each, encoding="utf-8")
    return str(folder)


@pytest.fixture
def params(tmp_path: Path) -> dict[str, Any]:
    """Training and evaluation have other words."""
    return {
        "train_input": {"data_dir": write(tmp_path / "train", TEXTS[:10]), "tokenizer": None},
        "eval_input": {
            "data_dir": write(tmp_path / "eval", [each.upper() for each in TEXTS[10:]]),
            "tokenizer": None,
        },
    }


def make(name: str, params: dict[str, Any], section: str) -> Any:
    function, options, model = CASES[name]
    return function({**options, **text.section_options(params, section)}, section, model)[1]


@pytest.mark.parametrize("name", CASES)
def test_evaluation_takes_the_tokenizer_that_training_keeps(name: str, params: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"that of training, .* does not exist"):
        make(name, params, "eval_input")
    trained = make(name, params, "train_input")
    assert make(name, params, "eval_input").fingerprint == trained.fingerprint
    # One of an earlier training on what is evaluated now is no reason to take that.
    other = make(name, {"train_input": params["eval_input"]}, "train_input")
    assert other.fingerprint != trained.fingerprint
    assert make(name, params, "eval_input").fingerprint == trained.fingerprint


def test_evaluation_takes_the_tokenizer_that_training_names(params: dict[str, Any]) -> None:
    trained = make("causal", params, "train_input")
    kept = next(Path(params["train_input"]["data_dir"]).glob("tokenizer-*.json"))
    named = {**params, "train_input": {"data_dir": None, "tokenizer": str(kept)}}
    assert make("causal", named, "eval_input").fingerprint == trained.fingerprint
    own = {**params, "eval_input": {**params["eval_input"], "tokenizer": "absent.json"}}
    with pytest.raises(UserError, match=r"absent\.json"):
        make("causal", own, "eval_input")


def test_stores(params: dict[str, Any], tmp_path: Path) -> None:
    chosen = PrepareOptions(text.Objective("causal", 16), vocab_size=400)
    for section in ("train", "eval"):
        prepare([tmp_path / section], tmp_path / f"{section}_store", chosen)
    stored = {"data_dir": str(tmp_path / "train_store"), "tokenizer": None}
    trained = make("causal", {**params, "train_input": stored}, "train_input")
    assert make("causal", {**params, "train_input": stored}, "eval_input").fingerprint == trained.fingerprint
    both = {
        "train_input": stored,
        "eval_input": {"data_dir": str(tmp_path / "eval_store"), "tokenizer": None},
    }
    with pytest.raises(UserError, match="Training has that one: prepare these data with it"):
        make("causal", both, "eval_input")


def test_pairs_of_texts(tmp_path: Path) -> None:
    sections = {}
    for section, words in (("train_input", "one two three four"), ("eval_input", "FIVE SIX SEVEN")):
        folder = tmp_path / section
        folder.mkdir()
        (folder / "a.tsv").write_text(f"source\ttarget\n{words}\t{words}\n" * 3, encoding="utf-8")
        sections[section] = {"data_dir": str(folder), "tokenizer": None}
    model = {"src_vocab_size": 300, "tgt_vocab_size": 300, "pad_token_id": 0, "eos_token_id": 3}
    _, trained = text.translation(text.section_options(sections, "train_input"), "train_input", model)
    _, same = text.translation(text.section_options(sections, "eval_input"), "eval_input", model)
    assert trained is not None
    assert same is not None
    assert same.fingerprint == trained.fingerprint


def test_evaluation_of_the_package_after_training_on_other_text_is_refused(params: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="eval_input names no data"):
        text.section_options({**params, "eval_input": {"data_dir": None, "tokenizer": None}}, "eval_input")
