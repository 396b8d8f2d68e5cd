"""Converts our checkpoints to folders that transformers loads."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from portwright.discover import find_models
from portwright.errors import PortwrightError, UserError, suggest
from portwright.huggingface.check import check, require_transformers
from portwright.huggingface.mapping import Family, Params, as_theirs
from portwright.huggingface.model_folder import (
    OurModel,
    carry,
    has_tokenizer,
    open_ours,
    read_model_section,
    read_sections,
)
from portwright.huggingface.options import (
    OnBytes,
    Options,
    account,
    list_moves,
    parse_dtype,
    require_out,
    total_bytes,
)
from portwright.huggingface.registry import (
    families_of,
    family_to_read,
    family_to_write,
    folder_of_config,
    names_to_choose,
)
from portwright.huggingface.weights import (
    CONFIG_FILE,
    Weights,
    check_storable,
    read_config,
    read_json,
    write_folder,
)
from portwright.job.atomic import atomic_directory
from portwright.job.sizes import parse_bytes
from portwright.text.sources import choose_tokenizer, find_source
from portwright.text.tokenizer_files import load_tokenizer

# Of a model folder: the kind of tokenizer that its training makes.
_KINDS = {"gpt2": "gpt", "gpt3": "gpt", "gptj": "gpt", "bert": "bert", "roberta": "roberta", "t5": "t5"}
_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_DTYPE_KEYS = ("dtype", "torch_dtype")  # today's name, and that of releases before 5


def take_back(options: Options, on_bytes: OnBytes) -> dict[str, Any]:
    """Converts our checkpoint to a folder that transformers loads, and describes what was made."""
    for given, flag in ((options.weights_only, "--weights-only"), (options.new_head, "--new-head")):
        if given:
            raise UserError(f"{flag} belongs to --from hf.", "Leave it out.")
    if options.check:
        require_transformers()
    shard_bytes = parse_bytes(options.shard_size)
    model = open_ours(options.source, options.params)
    folder, family, section = _describe(model, options)
    theirs, moves = as_theirs(model.weights, family, section, parse_dtype(options.dtype))
    config = _make_config(family, folder, section, theirs, model.carried)
    made = account("to hf", options, folder, family, model.weights, list_moves(moves, model.weights), [])
    made["step"] = model.step
    if options.only_list:
        return made
    out = require_out(options, is_file=False, is_made=lambda folder: (folder / CONFIG_FILE).is_file())
    check_storable(theirs.specs)
    total = total_bytes(theirs)
    with atomic_directory(out) as temporary:
        carried = carry(model.carried, temporary) if model.carried is not None else []
        (temporary / CONFIG_FILE).unlink(missing_ok=True)
        files = write_folder(temporary, config, theirs, shard_bytes, lambda n: on_bytes(n, total))
        if not has_tokenizer(temporary):
            made["notes"] += _bring_tokenizer(model, folder, temporary)
        files = sorted({*files, *carried, *(path.name for path in temporary.glob("tokenizer*.json"))})
    made["files"] = files
    if options.check:
        rounded = parse_dtype(options.dtype)
        compared = check(out, model.weights, family, section, options.tolerance, rounded)
        made["check"] = compared.as_dict()
    return made


def _bring_tokenizer(model: OurModel, folder: str, out: Path) -> list[str]:
    """Writes the training's tokenizer; gives a note where there is none."""
    why = "its params are not known"
    if model.carried is not None and not model.step:
        why = "none came with the weights"  # a newly trained one would not be that of the weights
    elif model.params_file is not None:
        why = write_tokenizer(folder, read_sections(model.params_file, folder), out) or ""
    return [f"no tokenizer goes along ({why}): put the one of the training beside config.json"] if why else []


def write_tokenizer(folder: str, params: Mapping[str, Any], out: Path) -> str | None:
    """Writes the training's tokenizer as transformers loads it, or gives the reason why there is none."""
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


def _describe(model: OurModel, options: Options) -> tuple[str, Family, Params]:
    """The folder, family and model section of our checkpoint."""
    carried = read_config(model.carried) if model.carried is not None else None
    name = options.model or (
        folder_of_config(carried) if carried is not None else _name_around(options.source)
    )
    if model.params_file is not None:
        section: Params = read_model_section(model.params_file, families_of(name)[0][0])
        return *family_to_write(name, section), section
    if carried is None:
        raise UserError(
            f"'{model.path}' has no params beside it.", "Give the model's params with --params FILE."
        )
    folder, family = family_to_read(name, carried)
    return folder, family, family.params_of(carried)


def _name_around(source: Path) -> str:
    """The reference model whose model.py is in a folder around, else whose name a folder has (gpt2, gpt2_run)."""
    names = names_to_choose()
    around = [source.resolve(), *source.resolve().parents[:2]]
    texts = {path.joinpath("model.py").read_bytes(): name for name, path in find_models().items()}
    files = (folder / "model.py" for folder in around)
    found = [texts.get(file.read_bytes()) for file in files if file.is_file()]
    found += [folder.name.removesuffix("_run") for folder in around]
    known = next((name for name in found if name in names), None)
    if known is None:
        raise UserError(
            f"'{source}' does not say which model it is of.", f"Name it: --model. {suggest('', names)}"
        )
    return known


def _make_config(
    family: Family, folder: str, params: Params, weights: Weights, carried: Path | None
) -> dict[str, Any]:
    """A config.json that transformers reads.

    Where the weights came from HuggingFace, it is the original config, with keys that we do not know, changed only where
    the params have changed.
    """
    told = family.config_of(params)
    made = {"model_type": family.model_type, "architectures": [family.classes(folder)[0]], **told}
    original = _original(family, carried)
    if original is not None:
        try:
            before = family.config_of(family.params_of(original))
        except PortwrightError:
            before = None
        if before is not None:
            changed = {key: value for key, value in told.items() if key not in before or before[key] != value}
            removed = before.keys() - told.keys()
            made = {**{key: value for key, value in original.items() if key not in removed}, **changed}
            made.setdefault("model_type", family.model_type)
            if not set(original.get("architectures") or ()) & set(family.classes(folder)):  # a new head
                made["architectures"] = told.get("architectures", [family.classes(folder)[0]])
            return _with_dtype(made, weights, [key for key in _DTYPE_KEYS if key in made])
    return _with_dtype(made, weights, _DTYPE_KEYS[:1])


def _original(family: Family, carried: Path | None) -> dict[str, Any] | None:
    if carried is None:
        return None
    original = read_json(carried / CONFIG_FILE)
    if not isinstance(original, dict) or original.get("model_type") != family.model_type:
        return None
    return original


def _with_dtype(config: Mapping[str, Any], weights: Weights, keys: Sequence[str]) -> dict[str, Any]:
    """Sets the weights' dtype, in which transformers loads them, under the keys that the config has."""
    sizes: Counter[str] = Counter()
    for spec in weights.specs.values():
        if spec.dtype.is_floating_point:
            sizes[str(spec.dtype).removeprefix("torch.")] += spec.num_bytes
    if not sizes:
        return dict(config)
    dtype = sizes.most_common(1)[0][0]
    return {**config, **dict.fromkeys(keys, dtype)}
