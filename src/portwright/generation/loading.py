"""A trained network from a model folder: the class its run.py names, with the weights and the params of a checkpoint, and its tokenizer."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from portwright import text
from portwright.base_model import make_model
from portwright.discover import FRAMEWORKS
from portwright.errors import PortwrightError, UserError
from portwright.generation.inputs import is_encoder_decoder
from portwright.graph.plans.request import Request, find_script, framework_of
from portwright.job.arguments import parse_arguments
from portwright.job.run_params import default_model_dir, load_run_params
from portwright.patched import patched
from portwright.runtime.asked_script import ask_script
from portwright.runtime.checkpoint import (
    list_checkpoints,
    locate_checkpoint,
    match_names,
    read_checkpoint,
)
from portwright.text.sources import choose_tokenizer, find_source
from portwright.text.tokenizer import Tokenizer, check_tokenizer
from portwright.text.tokenizer_files import load_tokenizer

_CARRIED_FOLDER = "huggingface"  # where `portwright convert` puts the tokenizer that came with the weights
_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "vocab.txt")
_SENTINEL = re.compile(r"<extra_id_(\d+)>")
_DEFAULT_PARAMS = Path("configs") / "params.yaml"
_RUN_PARAMS = Path("train") / "params_train.yaml"  # written by a run into its model_dir


@dataclass(frozen=True)
class TrainedNetwork:
    """A network with its weights, and where they came from."""

    network: nn.Module
    params: dict[str, Any]
    params_file: Path
    checkpoint: Path
    step: int
    folder: Path  # of the model's files


def load_trained(
    name: str,
    checkpoint: Path | None,
    params_file: Path | None,
    overrides: Sequence[str],
    device: torch.device,
    note: Callable[[str], None],
) -> TrainedNetwork:
    """Makes the network of a model folder or reference model and fills it.

    `checkpoint` is a checkpoint or a folder with some; by default the params' model_dir. Without a params file the
    params are those saved by the checkpoint's run, else the folder's own.
    """
    script = find_script(name)
    if script is None:
        raise UserError(
            f"'{name}' is not a model folder.", "Give a folder with a run.py, or a reference model."
        )
    if framework_of(Request(name)) != FRAMEWORKS[0]:
        raise UserError(
            f"'{name}' is a model of TensorFlow, and text is generated with those of PyTorch.",
            "Take the PyTorch model of that name, or another.",
        )
    own_params = params_file if params_file is not None else script.parent / _DEFAULT_PARAMS
    arguments = [str(script), "CPU", "--mode", "eval", "--params", str(own_params)]
    with patched(sys, "argv", arguments):  # as when run.py is run
        parts = ask_script(script)
    params: dict[str, Any] | None = None
    if checkpoint is None:
        params = _read_params(parts, script, own_params, overrides)
        given_dir = params.get("runconfig", {}).get("model_dir")
        model_dir = Path(given_dir).expanduser() if given_dir else default_model_dir(script.parent)
        if not list_checkpoints(model_dir):
            raise UserError(
                f"'{name}' has no checkpoint in {model_dir}.",
                f"Train it (portwright run {name} CPU --mode train), or give one with --checkpoint.",
            )
        checkpoint = model_dir
    found = _choose_checkpoint(checkpoint, note)
    kept = found.parent / _RUN_PARAMS
    if params_file is None and kept.is_file():
        own_params, params = kept, None
    if params is None:
        try:
            params = _read_params(parts, script, own_params, overrides)
        except PortwrightError as error:
            if own_params == kept:
                error.cure += f" These are the params of the run that made {found}: is it one of '{name}'?"
            raise
    network = make_model(parts["model_fn"], copy.deepcopy(params), "cpu").net
    step = _fill(network, found, note)
    return TrainedNetwork(network.to(device).eval(), params, own_params, found, step, script.parent)


def _read_params(
    parts: dict[str, Any], script: Path, params_file: Path, overrides: Sequence[str]
) -> dict[str, Any]:
    if not params_file.is_file():
        raise UserError(f"there is no params file '{params_file}'.", "Give one with --params.")
    changed = [word for text in overrides for word in ("-D", text)]
    words = ["CPU", "--mode", "eval", "--params", str(params_file.resolve()), *changed]
    with patched(sys, "argv", [str(script), *words]):
        arguments = parse_arguments(words, parts["extra_args_parser_fn"])
        return load_run_params(arguments, parts["default_params_fn"]).values


def _choose_checkpoint(path: Path, note: Callable[[str], None]) -> Path:
    path = path.expanduser()
    if not path.exists():
        raise UserError(
            f"There is no checkpoint {path}.",
            "Give --checkpoint a checkpoint, a model_dir or a .safetensors file.",
        )
    return locate_checkpoint(path, note) or path  # the reader of checkpoints will say what is wrong with it


def _fill(network: nn.Module, checkpoint: Path, note: Callable[[str], None]) -> int:
    loaded = read_checkpoint(checkpoint, weights_only=True)
    own = network.state_dict(keep_vars=True)
    with torch.no_grad():
        for shard in match_names(loaded.shards, own, note):
            target = own.get(shard.name.removeprefix("model/"))
            if target is not None:
                target.copy_(shard.tensor)
    return loaded.step


class Vocabulary:
    """A network's tokenizer, and the tokens that begin and end its texts."""

    def __init__(self, tokenizer: Tokenizer, network: nn.Module, model: Mapping[str, Any]) -> None:
        self.tokenizer = tokenizer
        self._answers = is_encoder_decoder(network)
        said = model.get("eos_token_id")
        told = [] if said is None else [said] if isinstance(said, int) else list(said)
        self.eos_ids: list[int] = told or ([tokenizer.roles["eos"]] if "eos" in tokenizer.roles else [])
        pad = model.get("pad_token_id")
        self.pad_id: int = pad if pad is not None else tokenizer.roles.get("pad", (self.eos_ids or [0])[0])

    def encode(self, prompt: str) -> list[int]:
        """The ids of a prompt; for an encoder they end with the end token, for a decoder an empty prompt is the token between texts."""
        ids: list[int] = []
        place = 0
        for match in _SENTINEL.finditer(prompt) if self.tokenizer.sentinel_ids else ():
            ids += self.tokenizer.encode(prompt[place : match.start()]).tolist()
            number = int(match[1])
            if number >= len(self.tokenizer.sentinel_ids):
                raise UserError(
                    f"The prompt has {match[0]}, and the tokenizer {len(self.tokenizer.sentinel_ids)} sentinels.",
                    f"Take <extra_id_0> to <extra_id_{len(self.tokenizer.sentinel_ids) - 1}>.",
                )
            ids.append(self.tokenizer.sentinel_ids[number])
            place = match.end()
        ids += self.tokenizer.encode(prompt[place:]).tolist()
        if self._answers or not ids:
            ids += self.eos_ids[:1]
        if not ids:
            raise UserError(
                "The prompt is empty, and the tokenizer has no end token to begin with.", "Give a prompt."
            )
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text up to the first end token."""
        ended = next((place for place, token in enumerate(ids) if token in self.eos_ids), len(ids))
        return self.tokenizer.decode(ids[:ended])


def find_vocabulary(trained: TrainedNetwork, given: Path | None, note: Callable[[str], None]) -> Vocabulary:
    """The tokenizer that was given, that came with converted weights, or that training used; refuses a wrong one."""
    model = _model_section(trained)
    noted = _named_tokenizer(trained)
    if given is not None:
        tokenizer = _load(given, trained)
        if noted is not None and noted.fingerprint != tokenizer.fingerprint:
            raise UserError(
                f"{tokenizer.source} is not {noted.source}, which {trained.params_file} says the model was trained with.",
                "Leave --tokenizer out, or give the same one.",
            )
    else:
        if noted is None and _is_unchanged_conversion(trained):
            note(
                "no tokenizer came with the converted weights: the one made from train_input's text is taken, whose tokens "
                "may not be theirs. Give theirs with --tokenizer."
            )
        tokenizer = noted if noted is not None else _made_in_training(trained, model)
    check_tokenizer(tokenizer, "generate", model)
    return Vocabulary(tokenizer, trained.network, model)


def _model_section(trained: TrainedNetwork) -> dict[str, Any]:
    model = dict(trained.params.get("model") or {})
    sizes = [model[name] for name in ("vocab_size", "src_vocab_size", "tgt_vocab_size") if name in model]
    if not sizes:
        raise UserError(
            f"{trained.params_file} has no model.vocab_size.", "Say there how many tokens the model knows."
        )
    return {**model, "vocab_size": min(sizes)}


def _named_tokenizer(trained: TrainedNetwork) -> Tokenizer | None:
    """The tokenizer in the file that the params or a conversion name."""
    named = _input_section(trained).get("tokenizer")
    if named:
        return _load(named, trained)
    for around in (trained.checkpoint.parent, trained.checkpoint.parent.parent, trained.folder):
        folder = around / _CARRIED_FOLDER
        if any((folder / name).is_file() for name in _TOKENIZER_FILES):
            return _load(folder, trained)
    return None


def _is_unchanged_conversion(trained: TrainedNetwork) -> bool:
    """Whether the weights are still as converted from HuggingFace, so that their tokenizer is HuggingFace's."""
    around = trained.checkpoint.parent.parent / _CARRIED_FOLDER
    return trained.step == 0 and (around / "config.json").is_file()


def _input_section(trained: TrainedNetwork) -> Mapping[str, Any]:
    return trained.params.get("train_input") or {}


def _is_of_pairs(trained: TrainedNetwork) -> bool:
    objective = _input_section(trained).get("objective")
    return getattr(trained.network, "text_kind", None) == "pairs" or objective == "pairs"


def _load(path: str | Path, trained: TrainedNetwork) -> Tokenizer:
    """Loads a tokenizer as training does: for span corruption, sentinels are added where it has none."""
    is_of_spans = getattr(trained.network, "text_kind", None) == "t5" and not _is_of_pairs(trained)
    num_sentinels = _input_section(trained).get("extra_ids") or 0
    return load_tokenizer(path).with_sentinels(num_sentinels if is_of_spans else 0)


def _made_in_training(trained: TrainedNetwork, model: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that the data section trains again on the same text, or kept beside it."""
    options = _input_section(trained)
    kind = getattr(trained.network, "text_kind", None)
    found: Tokenizer | None = None
    if _is_of_pairs(trained):
        found = text.translation(options, "train_input", trained.params["model"])[1]
    elif kind is not None:
        found = choose_tokenizer(find_source(options, "train_input"), kind, model["vocab_size"], options)
    if found is None:
        raise UserError(
            f"Which tokenizer this {type(trained.network).__name__} was trained with is not noted in {trained.params_file}.",
            "Give it with --tokenizer, or note it there as train_input.tokenizer.",
        )
    return found
