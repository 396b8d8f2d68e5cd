"""Saved executables: what save(), loadExecutable(), poptorch.load() and the executable cache write and read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from portwright.emulate.poptorch._archive import Archive, write_archive
from portwright.emulate.poptorch._errors import AssertedError, refuse
from portwright.emulate.poptorch._executable import Executable, anchors_of
from portwright.emulate.poptorch._inputs import Signature
from portwright.emulate.poptorch._logging import logger
from portwright.emulate.poptorch._optimizer_link import OptimizerLink
from portwright.emulate.poptorch._poptorch_data import PoptorchData, parse
from portwright.emulate.poptorch._program import Program
from portwright.emulate.poptorch._saved_model import SavedModel, describe_model, tensors_of
from portwright.emulate.poptorch._saved_options import (
    optimizer_from_json,
    optimizer_to_json,
    options_from_json,
    options_to_json,
)
from portwright.emulate.poptorch._structure import Structure
from portwright.emulate.poptorch.poptorch_core import Error

if TYPE_CHECKING:
    from portwright.emulate.poptorch._poplar_executor import PoplarExecutor

DEFAULT_NAME = "model.poptorch"
_COUNTS = ("device_iterations", "replication_factor", "input_group_size")


class Exported(NamedTuple):
    """What a file has beside the program, so that it can be loaded without the user's code."""

    model: torch.nn.Module
    link: OptimizerLink | None


@dataclass(frozen=True)
class Loaded:
    """A file's content; `data` has the options, and the model and optimizer where they were exported."""

    archive: Archive
    executable: Executable
    data: PoptorchData
    state: dict[str, torch.Tensor]


def write(
    filename: str,
    executable: Executable,
    options: Any,
    version: str,
    *,
    exported: Exported | None = None,
    random: list[int] | None = None,
) -> None:
    """Writes a file; without an exported model it is good for loadExecutable() only."""
    path = Path(filename)
    if path.is_dir():
        logger.warning("save(): %s is a folder, so the model goes to %s in it", filename, DEFAULT_NAME)
        path = path / DEFAULT_NAME
    program, constants = executable.program.to_file_parts()
    documents = {"program": program, "executable": _describe(executable), "options": options_to_json(options)}
    tensors: dict[str, Mapping[str, torch.Tensor]] = {"constants": constants}
    if exported is not None:
        documents["model"] = describe_model(exported.model)
        tensors["weights"] = tensors_of(exported.model)
        if exported.link is not None:
            rule = exported.link.rule
            tensors["state"] = {} if rule is None else rule.state()
            names = {id(parameter): name for name, parameter in exported.model.named_parameters()}
            documents["optimizer"] = optimizer_to_json(exported.link.optimizer, names)
    manifest = {
        "version": version,
        "emulated": "PopTorch 3.4",
        "training": executable.training,
        "rng_state": random,
    }
    try:
        write_archive(path, manifest, documents, tensors)
    except OSError as error:
        raise refuse(f"{path} cannot be written: {error}.") from error


def read(filename: str, version: str) -> Loaded:
    """Reads a file; a foreign or damaged one, or one of another version, is refused with the reason."""
    archive = Archive(Path(filename))
    try:
        data = parse(json.dumps(archive.manifest).encode(), version)
    except AssertionError as error:
        raise archive.wrong(str(error)) from None
    try:
        program = Program.from_file_parts(archive.document("program"), archive.tensors("constants"))
        executable = _executable(program, archive.document("executable"), bool(archive.manifest["training"]))
        data.options = options_from_json(archive.document("options"))
        state = archive.tensors("state") if archive.has("state.safetensors") else {}
        if archive.has("model.json"):
            data.model = SavedModel(archive.document("model"), archive.tensors("weights"))
            if archive.has("optimizer.json"):
                parameters: dict[str, torch.Tensor] = dict(data.model.named_parameters())
                data.optimizer = optimizer_from_json(archive.document("optimizer"), parameters)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise archive.wrong(f"its content does not fit together ({type(error).__name__}: {error})") from error
    return Loaded(archive, executable, data, state)


def check_fits(loaded: Loaded, weights: Mapping[str, torch.Tensor], options: Any, training: bool) -> None:
    """Refuses a program of another model or for another purpose, or one compiled for other counts than these options have."""
    filename = loaded.archive.path
    if loaded.executable.training != training:
        kinds = {True: "trainingModel", False: "inferenceModel"}
        raise refuse(
            f"{filename} holds the program of a {kinds[not training]}, and this is a {kinds[training]}."
        )
    for name, (dtype, shape) in loaded.executable.weights.items():
        there = weights.get(name)
        found = "none" if there is None else f"{there.dtype} {list(there.shape)}"
        if found != f"{dtype} {shape}":
            raise refuse(
                f"{filename} was compiled for another model: its {name} is {dtype} {shape}, this model has {found}."
            )
    for anchor in anchors_of(options).values():
        is_computed = ":" in anchor.name or anchor.name.startswith("input/") or anchor.name == "loss"
        known = loaded.executable.results if is_computed else loaded.executable.tensor_names
        if anchor.name not in known:
            raise refuse(
                f"{filename} was compiled without the anchored tensor {anchor.name}. Compile it anew."
            )
    compiled = loaded.data.options
    pairs = [(name, getattr(compiled, name), getattr(options, name)) for name in _COUNTS]
    accumulation = (compiled.Training.gradient_accumulation, options.Training.gradient_accumulation)
    for name, then, now in [*pairs, ("gradient_accumulation", *accumulation)]:
        if then != now:
            raise refuse(
                f"{filename} was compiled with {name} {then}, and the options say {now}. Use the same ones."
            )


def load(
    filename: str,
    version: str,
    wrap_training: Callable[..., PoplarExecutor],
    wrap_inference: Callable[..., PoplarExecutor],
    edit_options: Callable[[Any], None] | None,
) -> PoplarExecutor:
    """Makes the executor of a saved model again, with its weights, optimizer and random state."""
    data = (loaded := read(filename, version)).data
    if data.model is None:
        raise refuse(
            f"{filename} was saved with export_model=False: it has the program, but no weights. Wrap the model with "
            f"trainingModel() or inferenceModel(), and call loadExecutable({filename!r}) on it.",
            AssertedError,
        )
    if edit_options is not None:
        edit_options(data.options)
    given = (data.model, data.options)
    executor = wrap_training(*given, data.optimizer) if data.training else wrap_inference(*given)
    executor.loadExecutable(filename)
    executor._restore(loaded.state, data.rng_state)
    return executor


def through_cache(executable: Executable, options: Any, version: str) -> Executable:
    """With Options.enableExecutableCaching: the cached program where there is an equal one, else puts this one there."""
    popart = options._popart.options
    if not popart.get("enableEngineCaching") or not popart.get("cachePath"):
        return executable
    try:
        path = Path(popart["cachePath"]) / f"{_key(executable, options, version)}.poptorch"
    except Error as error:  # a result that no file can hold
        logger.warning("the executable is not cached: %s", error)
        return executable
    if path.exists():
        try:
            program = read(str(path), version).executable.program
        except Error as error:
            logger.warning("the cached executable %s is of no use and is made anew: %s", path, error)
        else:
            logger.info("found the executable cached: %s", path)
            return replace(executable, program=program)  # with the classes of this process's results
    write(str(path), executable, options, version)
    logger.info("the executable was put into the cache: %s", path)
    return executable


def _key(executable: Executable, options: Any, version: str) -> str:
    program, constants = executable.program.to_file_parts()
    settings = options_to_json(options)
    settings["popart"].pop("cachePath", None)
    settings["values"].pop("random_seed", None)  # no part of the program
    digest = hashlib.sha256(
        json.dumps([version, program, _describe(executable), settings], sort_keys=True).encode()
    )
    for name in sorted(constants):
        digest.update(name.encode())
        digest.update(constants[name].detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]


def _describe(executable: Executable) -> dict[str, Any]:
    structure = executable.structure
    return {
        "inputs": [executable.inputs.names, executable.inputs.positional, executable.inputs.named],
        "outputs": None if structure is None else structure.to_json(),
        "results": executable.results,
        "tensor_names": executable.tensor_names,
        "weights": executable.weights,
        "scales_loss": executable.scales_loss,
        "placement": executable.placement,
    }


def _executable(program: Program, data: Mapping[str, Any], training: bool) -> Executable:
    outputs = data["outputs"]
    return Executable(
        program,
        Signature(*data["inputs"]),
        None if outputs is None else Structure.from_json(outputs),
        dict(data["results"]),
        list(data["tensor_names"]),
        training,
        dict(data["weights"]),
        bool(data["scales_loss"]),
        dict(data["placement"]),
    )
