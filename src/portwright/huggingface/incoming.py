"""Converts checkpoints of HuggingFace and the model zoo to our model folders, or to one file of weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from portwright.discover import find_models
from portwright.errors import UserError
from portwright.huggingface.check import check, require_transformers
from portwright.huggingface.mapping import Family, Move, Params, as_ours, moves_of
from portwright.huggingface.model_folder import (
    check_section,
    complete_section,
    is_converted,
    make_folder,
    open_ours,
    read_model_section,
    reference_folder,
)
from portwright.huggingface.options import (
    OnBytes,
    Options,
    account,
    atomic_file,
    list_moves,
    parse_dtype,
    require_out,
    total_bytes,
)
from portwright.huggingface.registry import family_to_read, folder_of_config
from portwright.huggingface.weights import (
    Weights,
    check_storable,
    open_folder,
    read_config,
    write_checkpoint,
    write_file,
)
from portwright.huggingface.zoo import adapt_section, open_zoo_file, zoo_family
from portwright.job.atomic import atomic_directory
from portwright.job.yaml_source import read_yaml


@dataclass(frozen=True)
class Incoming:
    """A foreign checkpoint with our model and params for it."""

    folder: str
    family: Family
    section: dict[str, Any]
    weights: Weights
    carried: Path | None  # the folder whose config and tokenizer are copied too


def read_huggingface(options: Options) -> Incoming:
    """Reads a HuggingFace folder."""
    if options.params is not None:
        raise UserError(
            "--params belongs to --to hf and --from zoo: here config.json says it.", "Leave it out."
        )
    config = read_config(options.source)
    folder, family = family_to_read(options.model or folder_of_config(config), config)
    theirs = open_folder(options.source)
    section = _section_of(config, folder, family, theirs, options.weights_only)
    return Incoming(folder, family, section, theirs, options.source)


def read_zoo(options: Options) -> Incoming:
    """Reads a .mdl file of the model zoo's release 1.6, with the params.yaml of its training."""
    if options.check:
        raise UserError(
            "--check compares with transformers, which reads no file of the model zoo.",
            "Check it on the way out: portwright convert --to hf OUT OTHER --check.",
        )
    if options.model is None or options.params is None:
        raise UserError(
            "a file of the model zoo says neither its model nor its sizes.",
            "Give --model and --params, the params.yaml that it was trained with.",
        )
    given = read_yaml(options.params).values.get("model")
    if not isinstance(given, dict):
        raise UserError(
            f"{options.params} has no section 'model'.", "Give the params of the model's training."
        )
    folder, family = zoo_family(options.model)
    section = complete_section(adapt_section(given), folder)
    family.config_of(section)  # refuses what the family does not model
    return Incoming(folder, family, section, open_zoo_file(options.source), None)


def bring_in(
    options: Options, on_bytes: OnBytes, read: Callable[[Options], Incoming] = read_huggingface
) -> dict[str, Any]:
    """Makes a model folder with a checkpoint, or one file of weights, and describes what was made."""
    if options.check:
        if options.new_head:
            raise UserError(
                "--check compares whole models, and a new head has no like.", "Leave one of them out."
            )
        require_transformers()
    given = read(options)
    ours, moves, notes = _convert(given, options)
    direction = "from hf" if read is read_huggingface else "from zoo"
    made = account(direction, options, given.folder, given.family, ours, list_moves(moves, ours), notes)
    if options.only_list:
        return made
    out = require_out(options, is_file=options.weights_only, is_made=is_converted)
    check_storable(ours.specs)
    total = total_bytes(ours)
    if options.weights_only:
        with atomic_file(out) as temporary:
            write_file(temporary, ours, lambda n: on_bytes(n, total))
        made["weights"] = str(out)
    else:
        reference_folder(given.folder)
        source = options.source.resolve().name
        with atomic_directory(out) as temporary:
            notes += make_folder(temporary, out, given.folder, given.section, given.carried, source)
            # checks that a run accepts them
            read_model_section(temporary / "configs" / "params.yaml", given.folder)
            write_checkpoint(temporary / "model_dir" / "checkpoint_0", ours, lambda n: on_bytes(n, total))
        made["checkpoint"] = str(out / "model_dir" / "checkpoint_0")
        made["params"] = str(out / "configs" / "params.yaml")
    if options.check:
        written = open_ours(out if options.weights_only else out / "model_dir" / "checkpoint_0", None).weights
        rounded = parse_dtype(options.dtype)
        compared = check(options.source, written, given.family, given.section, options.tolerance, rounded)
        made["check"] = compared.as_dict()
    return made


def _convert(given: Incoming, options: Options) -> tuple[Weights, list[Move], list[str]]:
    """Our weights, where each comes from, and notes for the user."""
    dtype = parse_dtype(options.dtype)
    try:
        ours, moves = as_ours(given.weights, given.family, given.section, dtype, options.new_head)
    except UserError as error:
        if error.details.get("missing") and not error.details.get("misshapen"):
            error.cure += " Weights that the checkpoint has not are drawn anew with --new-head."
        raise
    if not options.new_head:
        return ours, moves, []
    ours, fresh = _with_fresh(ours, given.family, given.section)
    used = {name for move in moves for name in move.theirs}
    left = [name for name in given.weights.specs if name not in used]
    told = (("drawn anew", fresh), ("left out", left))
    return ours, moves, [f"{what}: {', '.join(names)}" for what, names in told if names]


def _section_of(
    config: Mapping[str, Any], folder: str, family: Family, theirs: Weights, weights_only: bool
) -> dict[str, Any]:
    """The section `model:` that a config.json means."""
    try:
        section = family.params_of(config)
        if family.by_tensors is not None:
            section = family.by_tensors(section, theirs.specs.keys())
    except (TypeError, ValueError, KeyError, AttributeError) as error:  # values of types that no config has
        raise UserError(
            f"config.json cannot be read as that of a {family.model_type}: {type(error).__name__}: {error}.",
            "Correct it, or download it again.",
        ) from error
    return section if weights_only and folder not in find_models() else check_section(section, folder)


def _with_fresh(ours: Weights, family: Family, section: Params) -> tuple[Weights, list[str]]:
    """Adds weights that the checkpoint lacks, drawn as for a new training."""
    missing = [move.ours for move in moves_of(family, section) if move.ours not in ours.specs]
    if not ours.specs:
        raise UserError("the checkpoint has no weight of this model at all.", "Give another.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        state = family.network(section).state_dict() if missing else {}
    kinds = [spec.dtype for spec in ours.specs.values() if spec.dtype.is_floating_point]
    kind = max(set(kinds), key=kinds.count)
    fresh = Weights.of({name: state[name].to(kind) for name in missing})
    specs = {**ours.specs, **fresh.specs}
    return Weights(specs, lambda name: (fresh if name in fresh.specs else ours).read(name)), missing
