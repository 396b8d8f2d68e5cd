"""The command `portwright convert`: HuggingFace's checkpoints to ours, and back."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from portwright.discover import find_models
from portwright.errors import UserError, suggest
from portwright.huggingface.check import Checked, check, require_transformers
from portwright.huggingface.config import make_config
from portwright.huggingface.mapping import Family, Params, moves_of
from portwright.huggingface.model_folder import (
    OurModel,
    carry,
    check_section,
    make_folder,
    open_ours,
    read_model_section,
    reference_folder,
)
from portwright.huggingface.place import atomic_file, require_place
from portwright.huggingface.registry import (
    families_of,
    family_to_read,
    family_to_write,
    folder_of_config,
    names_to_choose,
)
from portwright.huggingface.turned import as_ours, as_theirs, list_moves, parse_dtype, render_moves
from portwright.huggingface.weights import CONFIG_FILE, Weights, open_folder, read_config
from portwright.huggingface.writing import check_storable, write_checkpoint, write_file, write_folder
from portwright.job.atomic import atomic_directory
from portwright.job.sizes import parse_bytes, show_bytes
from portwright.runtime.checkpoint_files import TensorSpec

FORMATS = ("hf", "huggingface")
_LARGE_BYTES = 200_000_000  # below, a bar would be gone before it was seen


@dataclass(frozen=True)
class Options:
    """What a conversion was asked for."""

    source: Path
    out: Path | None
    model: str | None = None
    params: Path | None = None
    dtype: str | None = None
    shard_size: str = "5GB"
    weights_only: bool = False
    new_head: bool = False
    check: bool = False
    tolerance: float = 1e-4
    force: bool = False
    only_list: bool = False


def convert_and_print(given_from: str | None, given_to: str | None, options: Options, as_json: bool) -> bool:
    """Converts, tells what was made, and says whether the check, if one was asked for, found both sides equal."""
    if (given_from is None) == (given_to is None):
        raise UserError("one of --from and --to is needed.", "Say --from hf or --to hf.")
    chosen = given_from or given_to or ""
    if chosen.lower() not in FORMATS:
        raise UserError(f"unknown format '{chosen}'.", suggest(chosen, FORMATS))
    convert = bring_in if given_from is not None else take_back
    try:
        with _progress(shown=not as_json) as on_bytes:
            made = convert(options, on_bytes)
    except OSError as error:  # of what is read; what cannot be written is told where it happens
        raise UserError(
            f"Cannot read {error.filename or options.source}: {(error.strerror or str(error)).lower()}.",
            "Check the path and its permissions.",
        ) from error
    if as_json:
        print(json.dumps(made, indent=2))
    else:
        _print(made)
    return made.get("check", {"equal": True})["equal"] is True


def bring_in(options: Options, on_bytes: Callable[[int, int], None]) -> dict[str, Any]:
    """A HuggingFace folder as a model folder of ours with a checkpoint, or as one file of weights."""
    config = read_config(options.source)
    folder, family = family_to_read(options.model or folder_of_config(config), config)
    if options.check:
        if options.new_head:
            raise UserError(
                "--check compares whole models, and a new head has no like.", "Leave one of them out."
            )
        require_transformers()
    theirs = open_folder(options.source)
    section = _section_of(config, folder, family, theirs, options.weights_only)
    dtype = parse_dtype(options.dtype)
    notes: list[str] = []
    try:
        ours, moves = as_ours(theirs, family, section, dtype, options.new_head)
    except UserError as error:
        if error.details.get("missing") and not error.details.get("misshapen") and not options.new_head:
            error.cure += " Weights that the checkpoint has not are drawn anew with --new-head."
        raise
    if options.new_head:
        ours, fresh = _with_fresh(ours, family, section)
        used = {name for move in moves for name in move.theirs}
        left = [name for name in theirs.specs if name not in used]
        notes += [f"drawn anew: {', '.join(fresh)}"] if fresh else []
        notes += [f"left out: {', '.join(left)}"] if left else []
    made = _account("from hf", options, folder, family, ours, list_moves(moves, ours), notes)
    if options.only_list:
        return made
    out = _require_out(options, is_file=options.weights_only, mark="run.py")
    check_storable(ours.specs)
    total = _total_bytes(ours)
    if options.weights_only:
        with atomic_file(out) as temporary:
            write_file(temporary, ours, lambda n: on_bytes(n, total))
        made["weights"] = str(out)
    else:
        reference_folder(folder)
        with atomic_directory(out) as temporary:
            notes += make_folder(
                temporary, out, folder, section, options.source, options.source.resolve().name
            )
            read_model_section(temporary / "configs" / "params.yaml", folder)  # a run must take them too
            write_checkpoint(temporary / "model_dir" / "checkpoint_0", ours, lambda n: on_bytes(n, total))
        made["checkpoint"] = str(out / "model_dir" / "checkpoint_0")
        made["params"] = str(out / "configs" / "params.yaml")
    if options.check:
        written = open_ours(out if options.weights_only else out / "model_dir" / "checkpoint_0", None)
        made["check"] = check(options.source, written.weights, family, section, options.tolerance).as_dict()
    return made


def take_back(options: Options, on_bytes: Callable[[int, int], None]) -> dict[str, Any]:
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
    made = _account("to hf", options, folder, family, model.weights, list_moves(moves, model.weights), [])
    made["step"] = model.step
    if options.only_list:
        return made
    out = _require_out(options, is_file=False, mark=CONFIG_FILE)
    check_storable(theirs.specs)
    total = _total_bytes(theirs)
    with atomic_directory(out) as temporary:
        carried = carry(model.carried, temporary) if model.carried is not None else []
        (temporary / CONFIG_FILE).unlink(missing_ok=True)
        files = write_folder(temporary, config, theirs, shard_bytes, lambda n: on_bytes(n, total))
    made["files"] = sorted({*files, *carried})
    if options.check:
        ours = Weights(model.weights.specs, model.weights.read)
        made["check"] = check(out, ours, family, section, options.tolerance).as_dict()
    return made


def _section_of(
    config: Mapping[str, Any], folder: str, family: Family, theirs: Weights, weights_only: bool
) -> dict[str, Any]:
    """The section `model:` that a config.json means."""
    try:
        section = family.params_of(config)
        if family.by_tensors is not None:
            section = family.by_tensors(section, theirs.specs.keys())
    except (TypeError, ValueError, KeyError, AttributeError) as error:  # values of kinds that no config has
        raise UserError(
            f"config.json cannot be read as that of a {family.model_type}: {type(error).__name__}: {error}.",
            "Correct it, or download it again.",
        ) from error
    return section if weights_only and folder not in find_models() else check_section(section, folder)


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


def _with_fresh(ours: Weights, family: Family, section: Params) -> tuple[Weights, list[str]]:
    """Adds what the checkpoint lacks, drawn as a training from nothing would."""
    if family.network is None:
        raise UserError(
            f"the family {family.name} names no network to draw weights from.", "Leave --new-head out."
        )
    missing = [move.ours for move in moves_of(family, section) if move.ours not in ours.specs]
    if len(missing) == len(moves_of(family, section)):
        raise UserError("the checkpoint has no weight of this model at all.", "Give another.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        state = family.network(section).state_dict() if missing else {}
    kinds = [spec.dtype for spec in ours.specs.values() if spec.dtype.is_floating_point]
    kind = max(set(kinds), key=kinds.count)
    fresh = {name: state[name].to(kind) for name in missing}
    specs = {name: TensorSpec(tuple(tensor.shape), tensor.dtype) for name, tensor in fresh.items()}
    specs = {**ours.specs, **specs}
    return Weights(specs, lambda name: fresh[name] if name in fresh else ours.read(name)), missing


def _require_out(options: Options, *, is_file: bool, mark: str) -> Path:
    if options.out is None:
        raise UserError("no place to write to was given.", "Add OUT, or --list to see the tensors only.")
    require_place(options.out, options.source, force=options.force, is_file=is_file, mark=mark)
    return options.out


def _account(
    direction: str,
    options: Options,
    folder: str,
    family: Family,
    ours: Weights,
    rows: list[dict[str, Any]],
    notes: list[str],
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "direction": direction,
        "model": folder,
        "family": family.name,
        "source": str(options.source),
        "out": None if options.out is None or options.only_list else str(options.out),
        "tensors": len(rows),
        "bytes": _total_bytes(ours),
        "notes": notes,
    }
    return {**made, "table": rows} if options.only_list else made


def _total_bytes(weights: Weights) -> int:
    return sum(spec.num_bytes for spec in weights.specs.values())


def _print(made: Mapping[str, Any]) -> None:
    for note in made["notes"]:
        print(f"note: {note}", file=sys.stderr)
    if "table" in made:
        print(render_moves(made["table"]))
        return
    print(
        f"{made['model']}: {made['tensors']} tensors, {show_bytes(made['bytes'])}, written to {made['out']}"
    )
    if "checkpoint" in made:
        print(f"  portwright run {made['out']} CPU --mode eval")
        print(f"  checkpoint: {made['checkpoint']}")
    if "check" in made:
        values = {key: value for key, value in made["check"].items() if key != "equal"}
        print(f"  {Checked(**values)}")


@contextlib.contextmanager
def _progress(shown: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal for what takes a while; nothing elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if not shown or not console.is_terminal:
        yield lambda num_bytes, total: None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("writing"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: list[Any] = []

        def on_bytes(num_bytes: int, total: int) -> None:
            if total < _LARGE_BYTES:
                return
            if not tasks:
                tasks.append(bars.add_task("writing", total=total))
            bars.advance(tasks[0], num_bytes)

        yield on_bytes
