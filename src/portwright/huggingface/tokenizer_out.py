"""Writes the tokenizer of a model's training in a form that transformers loads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from portwright.errors import PortwrightError

_KINDS = {"gpt2": "gpt", "gpt3": "gpt", "gptj": "gpt", "bert": "bert", "roberta": "roberta", "t5": "t5"}
_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def write_tokenizer(folder: str, params: Mapping[str, Any], out: Path) -> str | None:
    """Writes tokenizer.json and tokenizer_config.json, or gives the reason why there is none."""
    from portwright.text.sources import choose_tokenizer, find_source
    from portwright.text.tokenizer_files import load_tokenizer

    options = params.get("train_input") or {}
    try:
        if folder in _KINDS and options.get("objective") != "pairs":
            source = find_source(options, "train_input")
            tokenizer = choose_tokenizer(source, _KINDS[folder], params["model"]["vocab_size"], options)
        else:
            tokenizer = load_tokenizer(options["tokenizer"]) if options.get("tokenizer") else None
    except PortwrightError as error:
        return str(error)
    if tokenizer is None:
        return "the params of the training name none"
    (out / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for role in _ROLES:
        if role in tokenizer.roles:
            settings[f"{role}_token"] = tokenizer.backend.id_to_token(tokenizer.roles[role])
    length = params["model"].get("max_position_embeddings")
    if isinstance(length, int):
        settings["model_max_length"] = length
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    return None
