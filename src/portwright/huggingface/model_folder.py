"""Our side of a conversion: a model folder with its params, and the checkpoints in it."""

from __future__ import annotations

import runpy
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from portwright.discover import find_models, find_targets
from portwright.errors import UserError
from portwright.huggingface.weights import CONFIG_FILE, Weights
from portwright.job.params import load_params
from portwright.job.problems import check_model
from portwright.job.run_params import schema_of_namespace
from portwright.runtime.checkpoint import locate_checkpoint, read_checkpoint
from portwright.runtime.checkpoint_folder import MANIFEST_FILE

CARRIED_FOLDER = "huggingface"  # in a model folder: files that came with the weights, to be written back
_CARRIED_NAMES = (
    CONFIG_FILE,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
    "chat_template.jinja",
)
_TOKENIZERS = (("tokenizer.json",), ("vocab.json", "merges.txt"), ("vocab.txt",))
_PARAMS_FILE = Path("configs") / "params.yaml"
_MARK = "# Converted from"  # first line of the params that a conversion wrote


@dataclass(frozen=True)
class OurModel:
    """Our weights, and the files that belong to them."""

    weights: Weights
    path: Path  # of the checkpoint
    step: int
    params_file: Path | None
    carried: Path | None  # the folder with files that came with them


def open_ours(path: Path, params_file: Path | None) -> OurModel:
    """Opens a checkpoint, the newest good one in a model_dir or model folder, or a file of weights."""
    checkpoint = _find_checkpoint(path)
    loaded = read_checkpoint(checkpoint, weights_only=True)
    specs = {
        name.removeprefix("model/"): spec
        for name, spec in loaded.shards.specs.items()
        if name.startswith("model/")
    }
    weights = Weights(specs, lambda name: loaded.shards.read(f"model/{name}"))
    return OurModel(
        weights,
        checkpoint,
        loaded.step,
        params_file if params_file is not None else _find_params(checkpoint),
        _find_carried(checkpoint),
    )


def _find_checkpoint(path: Path) -> Path:
    if path.is_file() and (path.parent / MANIFEST_FILE).is_file():
        return path.parent
    if (found := locate_checkpoint(path, lambda note: None)) is not None:
        return found
    if (path / CONFIG_FILE).is_file():
        raise UserError(
            f"'{path}' is a HuggingFace folder, not one of ours.", "Bring it in with --from hf, not --to."
        )
    raise UserError(
        f"'{path}' has no checkpoint.",
        "Give a checkpoint folder, a model_dir, or a model folder that was trained.",
    )


def _find_params(checkpoint: Path) -> Path | None:
    """The params that the checkpoint's run saved, else those of the model folder around it."""
    if checkpoint.is_file():  # no model folder need be around it
        return None
    run_dir = checkpoint.parent
    candidates = [run_dir / "train" / "params_train.yaml"]
    candidates += [folder / _PARAMS_FILE for folder in (run_dir, run_dir.parent)]
    return next((each for each in candidates if each.is_file()), None)


def _find_carried(checkpoint: Path) -> Path | None:
    if checkpoint.is_file():
        return None
    around = (checkpoint.parent, checkpoint.parent.parent)
    return next((f / CARRIED_FOLDER for f in around if (f / CARRIED_FOLDER / CONFIG_FILE).is_file()), None)


def read_model_section(params_file: Path, folder: str) -> dict[str, Any]:
    """The section `model:` of a params file as a run would see it: checked, and with the reference model's defaults."""
    section = read_sections(params_file, folder).get("model")
    if not section:
        raise UserError(
            f"{params_file} has no section 'model'.", "Give the params of the model with --params."
        )
    return dict(section)


def read_sections(params_file: Path, folder: str) -> dict[str, Any]:
    """All sections of a params file as a run would see them."""
    reference = reference_folder(folder)
    beside = params_file.resolve().parent.parent
    namespace = _run_utils(beside if (beside / "utils.py").is_file() else reference)
    params = load_params(
        params_file,
        default_params_fn=namespace.get("set_defaults"),
        user_schemas=schema_of_namespace(namespace, "utils.py") or {},
        known_target_sections=[name for target in find_targets().values() for name in target.sections],
    )
    return params.values


def check_section(section: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """A model section from config.json, checked by the reference model's schema."""
    kind = (schema_of_namespace(_run_utils(reference_folder(folder)), "utils.py") or {}).get("model")
    if kind is None:
        return dict(section)
    checked, problems = check_model(kind, dict(section), ("model",))
    if checked is None or problems:
        wrong = "; ".join(f"{'.'.join(map(str, each.path))}: {each.message}" for each in problems)
        raise UserError(
            f"the model does not take these params: {wrong}.", "Correct them where they come from."
        )
    return {key: getattr(checked, key, value) for key, value in section.items()}


def complete_section(section: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """A model section with the reference model's defaults, checked by its schema."""
    set_defaults = _run_utils(reference_folder(folder)).get("set_defaults")
    params: dict[str, Any] = {"model": dict(section)}
    completed = (set_defaults(params) or params)["model"] if set_defaults is not None else params["model"]
    return check_section(completed, folder)


def _run_utils(folder: Path) -> dict[str, Any]:
    sys.path.insert(0, str(folder))
    try:
        return runpy.run_path(str(folder / "utils.py"))
    except Exception as error:  # a user's file may raise anything
        raise UserError(
            f"{folder / 'utils.py'} cannot be imported: {type(error).__name__}: {error}.", "Correct it first."
        ) from error
    finally:
        sys.path.remove(str(folder))


def reference_folder(name: str) -> Path:
    models = find_models()
    if name not in models:
        raise UserError(
            f"there is no reference model '{name}' to make a folder from.",
            "Write the weights alone: --weights-only OUT.safetensors.",
        )
    return models[name]


def is_converted(folder: Path) -> bool:
    """Whether a conversion made this folder rather than a user."""
    params_file = folder / _PARAMS_FILE
    return params_file.is_file() and params_file.read_bytes().startswith(_MARK.encode())


def make_folder(
    folder: Path, final: Path, name: str, section: Mapping[str, Any], theirs: Path | None, source: str
) -> list[str]:
    """Fills an empty folder with a reference model, the converted model section, and the files that came with the weights.

    `final` is the name that the folder will have. Gives notes for the user.
    """
    shutil.copytree(
        reference_folder(name),
        folder,
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("__pycache__", "model_dir"),
    )
    params_file = folder / _PARAMS_FILE
    if not params_file.is_file():
        raise UserError(f"the reference model '{name}' has no {_PARAMS_FILE}.", "Reinstall Portwright.")
    if theirs is not None:
        carry(theirs, folder / CARRIED_FOLDER)
    text = replace_section(params_file.read_text("utf-8"), "model", section)
    kinds = schema_of_namespace(_run_utils(folder), "utils.py") or {}
    tokenizer = final.resolve() / CARRIED_FOLDER if theirs is not None and has_tokenizer(theirs) else None
    notes = []
    for input_name in ("train_input", "eval_input"):
        known = getattr(kinds.get(input_name), "model_fields", {})
        before = (yaml.safe_load(text) or {}).get(input_name) or {}
        values = _fit_input(before, known, section, tokenizer)
        if values != before:
            text = replace_section(text, input_name, values)
        # evaluation has training's tokenizer: one note is enough
        unset = tokenizer is None and "tokenizer" in known and not values.get("tokenizer")
        if unset and input_name == "train_input":
            notes.append(
                "no tokenizer.json, vocab.json or vocab.txt came with the weights: set train_input.tokenizer, or a new one is trained "
                "whose tokens are not those of the weights"
            )
    heading = (
        f"{_MARK} {source} by `portwright convert`; the weights that belong to `model:` are in model_dir.\n"
    )
    params_file.write_text(heading + text, "utf-8")
    return notes


def _fit_input(
    given: Mapping[str, Any], known: Mapping[str, Any], section: Mapping[str, Any], tokenizer: Path | None
) -> dict[str, Any]:
    """An input section with the weights' tokenizer, and with sequences no longer than their positions."""
    values = dict(given)
    if tokenizer is not None and "tokenizer" in known:
        values["tokenizer"] = str(tokenizer)
    longest = section.get("max_position_embeddings")
    if longest is not None and section.get("positions_after_padding"):
        longest -= section["pad_token_id"] + 1
    if longest is not None and "max_sequence_length" in known:
        default = known["max_sequence_length"].get_default()
        if (values.get("max_sequence_length") or default or 0) > longest:
            values["max_sequence_length"] = longest
    return values


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds a tokenizer that the data sections read."""
    return any(all((folder / name).is_file() for name in names) for names in _TOKENIZERS)


def replace_section(text: str, name: str, values: Mapping[str, Any]) -> str:
    """A params file with one section replaced; the text of the others, comments and all, stays."""
    wanted = {**(yaml.safe_load(text) or {}), name: dict(values)}
    lines = text.splitlines(keepends=True)
    dumped = yaml.safe_dump({name: dict(values)}, sort_keys=False, allow_unicode=True, width=100)
    start = next((i for i, line in enumerate(lines) if line.startswith(f"{name}:")), None)
    if start is None:
        made = text.rstrip("\n") + "\n\n" + dumped
    else:
        # The section ends at the next unindented line, or at the comments above it.
        end = next((i for i in range(start + 1, len(lines)) if lines[i][:1] not in " \t\r\n"), len(lines))
        gap = "\n" if end < len(lines) else ""
        made = "".join(lines[:start]) + dumped + gap + "".join(lines[end:])
    # Where the lines of a section cannot be found, the values are kept and the comments lost.
    return (
        made
        if _means(made, wanted)
        else yaml.safe_dump(wanted, sort_keys=False, allow_unicode=True, width=100)
    )


def _means(text: str, wanted: object) -> bool:
    try:
        return bool(yaml.safe_load(text) == wanted)
    except yaml.YAMLError:
        return False


def carry(source: Path, target: Path) -> list[str]:
    """Copies config, generation settings and tokenizer, if they exist; gives their names."""
    target.mkdir(parents=True, exist_ok=True)
    names = [name for name in _CARRIED_NAMES if (source / name).is_file()]
    for name in names:
        shutil.copyfile(source / name, target / name)
    return names
