"""Finds the checkpoint that a run starts from or reads, and loads its weights."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from portwright.errors import UserError, suggest
from portwright.job.arguments import Arguments
from portwright.job.atomic import explain_os_error
from portwright.job.logs import Console
from portwright.job.params import Params
from portwright.job.rundir import RunDir
from portwright.tensorflow.checkpoints import find_damage, forget_damaged, newest_checkpoint, step_of

_INDEX = ".index"
_NAME = re.compile(r"model\.ckpt-(\d+)")
_STATISTICS = re.compile(r"/moving_(mean|variance)$")  # BatchNorm's, which no gradient trains
_NUM_LISTED = 5


def list_checkpoints(model_dir: Path) -> list[str]:
    """All checkpoints in the folder, in the order of steps."""
    found = [path for path in model_dir.glob(f"model.ckpt-*{_INDEX}") if _NAME.fullmatch(path.stem)]
    return [
        str(path.with_suffix(""))
        for path in sorted(found, key=lambda path: int(path.stem.rpartition("-")[2]))
    ]


def find_given(given: Path) -> str:
    """The checkpoint that a path on the command line means: its name without an ending, one of its files, or a folder."""
    if given.is_dir():
        newest = tf.train.latest_checkpoint(str(given))
        if newest is None:
            raise UserError(f"'{given}' has no checkpoint.", "Give a path such as model_dir/model.ckpt-1000.")
        given = Path(newest)
    name = re.sub(r"\.(index|meta|data-\d+-of-\d+)$", "", given.name)
    checkpoint = given.with_name(name)
    if not checkpoint.with_name(name + _INDEX).is_file():
        there = [Path(path).name for path in list_checkpoints(given.parent)]
        raise UserError(
            f"there is no checkpoint '{given}'.",
            suggest(name, there) if there else "Give a path such as model_dir/model.ckpt-1000.",
        )
    damage = find_damage(str(checkpoint))
    if damage is not None:
        raise UserError(
            f"the checkpoint {checkpoint} is damaged: {damage}.", "Give another --checkpoint_path."
        )
    return str(checkpoint)


def prepare_start(
    arguments: Arguments, params: Params, model_dir: Path, console: Console
) -> tuple[int, str | None]:
    """Makes model_dir's newest checkpoint the one that training starts from.

    Gives its step, and the checkpoint of which only the weights are to be taken, if that is asked for.
    """
    config = params.runconfig
    given = arguments.checkpoint_path or config.checkpoint_path
    pretrained = arguments.is_pretrained_checkpoint or config.is_pretrained_checkpoint
    if pretrained and given is None:
        raise UserError("--is_pretrained_checkpoint needs a checkpoint.", "Add --checkpoint_path PATH.")
    newest = newest_checkpoint(str(model_dir), console.warning) or _newest_unlisted(model_dir, console)
    if newest is not None and not config.autoload_last_checkpoint:
        raise UserError(
            f"runconfig.autoload_last_checkpoint is false, and {model_dir} has {Path(newest).name}.",
            "TensorFlow always goes on from what is in model_dir: choose another --model_dir.",
        )
    # With a checkpoint from another folder, model_dir's newest is a later state of the run that began there, and is used.
    # A checkpoint of model_dir itself is given in order to go back to it.
    goes_back = given is not None and Path(given).resolve().parent == model_dir.resolve()
    if given is not None and (newest is None or (goes_back and not pretrained)):
        chosen = find_given(Path(given))
        if pretrained:
            console.info(f"weights taken from {chosen}; starting at step 0")
            return 0, chosen
        if newest is not None and Path(newest).name != Path(chosen).name:
            console.note(f"starting from {chosen}, though {model_dir} has {Path(newest).name}.")
        newest = chosen if goes_back else _copy(chosen, model_dir)
    elif given is not None and newest is not None:
        console.note(
            f"{model_dir} has {Path(newest).name} of this run already, so it continues instead of starting from {given}."
        )
    if newest is None:
        return 0, None
    forget_damaged(str(model_dir), newest)
    step = step_of(newest)
    console.info(f"resuming from {newest} at step {step}")
    return step, None


def find_for_reading(arguments: Arguments, params: Params, model_dir: Path, console: Console) -> str:
    """The checkpoint to evaluate or to predict with."""
    given = arguments.checkpoint_path or params.runconfig.checkpoint_path
    if given is not None:
        return find_given(Path(given))
    RunDir(model_dir, read_only=True)  # raises an error if something is wrong with the folder
    found = newest_checkpoint(str(model_dir), console.warning) or _newest_unlisted(model_dir, console)
    if found is None:
        raise UserError(
            f"mode {arguments.mode} needs a checkpoint, and {model_dir} has no good one.",
            "Train first, or give --checkpoint_path or --model_dir.",
        )
    return found


def take_weights(checkpoint: str, note: Callable[[str], None]) -> None:
    """Initialises the current graph's variables from a checkpoint's weights of the same name and shape.

    A note lists the variables that keep their values and those of the checkpoint that are not used; no match is an error.
    """
    there = dict(tf.train.list_variables(checkpoint))
    trained = {variable.op.name: variable for variable in tf.compat.v1.trainable_variables()}
    statistics = {v.op.name: v for v in tf.compat.v1.global_variables() if _STATISTICS.search(v.op.name)}
    own: dict[str, Any] = {**trained, **statistics}
    taken = {name: v for name, v in own.items() if name in there and there[name] == v.shape.as_list()}
    if not taken:
        raise UserError(
            f"{checkpoint} has no weight of this model: none of its {len(there)} values has both name and shape of "
            f"one of the model's {len(own)}.",
            "Give another --checkpoint_path.",
        )
    tf.compat.v1.train.init_from_checkpoint(checkpoint, taken)
    left = [name for name in own if name not in taken]
    if left:
        note(f"not in the checkpoint, and left as initialised: {_listed(left)}")
    unused = [name for name in there if name not in taken and _is_weight(name, there)]
    if unused:
        note(f"in the checkpoint, and not in the model: {_listed(unused)}")


def _is_weight(name: str, there: dict[str, Any]) -> bool:
    """Whether a value of a checkpoint is a weight, rather than the step or an optimizer's slot."""
    scope = name.rpartition("/")[0]
    return name != "global_step" and bool(scope) and scope not in there


def _copy(checkpoint: str, model_dir: Path) -> str:
    """Copies a checkpoint into model_dir, and lists it last, so that a killed copy leaves no listed checkpoint."""
    source = Path(checkpoint)
    wanted = model_dir / f"model.ckpt-{step_of(checkpoint)}"
    try:
        files = sorted(
            source.parent.glob(f"{_escape(source.name)}.*"), key=lambda path: path.name.endswith(_INDEX)
        )
        for path in files:
            shutil.copyfile(path, model_dir / (wanted.name + path.name.removeprefix(source.name)))
        beside = source.parent / "resume" / f"step-{step_of(checkpoint)}"  # its resume point
        if beside.is_dir():
            shutil.copytree(beside, model_dir / "resume" / beside.name, dirs_exist_ok=True)
    except OSError as error:
        raise explain_os_error(error, model_dir) from error
    return str(wanted)


def _newest_unlisted(model_dir: Path, console: Console) -> str | None:
    """The newest undamaged checkpoint of a folder whose file `checkpoint` is missing."""
    for checkpoint in reversed(list_checkpoints(model_dir) if model_dir.is_dir() else []):
        damage = find_damage(checkpoint)
        if damage is None:
            console.note(
                f"{model_dir} has no list of its checkpoints; going by the files: {Path(checkpoint).name}."
            )
            return checkpoint
        console.warning(f"skipping {checkpoint}: {damage}.")
    return None


def _escape(name: str) -> str:
    return re.sub(r"([\[\]*?])", r"[\1]", name)


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_NUM_LISTED])
    return f"{shown}, and {len(names) - _NUM_LISTED} more" if len(names) > _NUM_LISTED else shown
