"""Checkpoints of ours as folders that transformers loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from portwright.errors import UserError, suggest
from portwright.huggingface.check import check, require_transformers
from portwright.huggingface.config import make_config
from portwright.huggingface.mapping import Family, Params
from portwright.huggingface.model_folder import (
    OurModel,
    carry,
    has_tokenizer,
    open_ours,
    read_model_section,
    read_sections,
)
from portwright.huggingface.options import OnBytes, Options, account, require_out, total_bytes
from portwright.huggingface.registry import (
    families_of,
    family_to_read,
    family_to_write,
    folder_of_config,
    names_to_choose,
)
from portwright.huggingface.tokenizer_out import write_tokenizer
from portwright.huggingface.turned import as_theirs, list_moves, parse_dtype
from portwright.huggingface.weights import CONFIG_FILE, read_config
from portwright.huggingface.writing import check_storable, write_folder
from portwright.job.atomic import atomic_directory
from portwright.job.sizes import parse_bytes


def take_back(options: Options, on_bytes: OnBytes) -> dict[str, Any]:
    """A checkpoint of ours as a folder that transformers loads."""
    for given, flag in ((options.weights_only, "--weights-only"), (options.new_head, "--new-head")):
        if given:
            raise UserError(f"{flag} belongs to --from hf.", "Leave it out.")
    if options.check:
        require_transformers()
    shard_bytes = parse_bytes(options.shard_size)
    model = open_ours(options.source, options.params)
    folder, family, section = _describe(model, options)
    theirs, moves = as_theirs(model.weights, family, section, parse_dtype(options.dtype))
    config = make_config(family, folder, section, theirs, model.carried)
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
    """The training's tokenizer, and a note where there is none."""
    why = "its params are not known"
    if model.carried is not None and not model.step:
        why = "none came with the weights"  # one made from some text would not be theirs
    elif model.params_file is not None:
        why = write_tokenizer(folder, read_sections(model.params_file, folder), out) or ""
    return [f"no tokenizer goes along ({why}): put the one of the training beside config.json"] if why else []


def _describe(model: OurModel, options: Options) -> tuple[str, Family, Params]:
    """The folder, family and model section of a checkpoint of ours."""
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
    """A folder that has kept the name of the reference model says which it is."""
    names = names_to_choose()
    around = [source.resolve(), *source.resolve().parents[:2]]
    found = next((each.name for each in around if each.name in names), None)
    if found is None:
        raise UserError(
            f"'{source}' does not say which model it is of.", f"Name it: --model. {suggest('', names)}"
        )
    return found
