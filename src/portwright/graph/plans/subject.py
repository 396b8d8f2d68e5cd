"""What `portwright plan` plans: a model folder's run.py, a reference model, or a callable in a file."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from portwright.errors import PortwrightError, UserError, suggest
from portwright.graph.plans.data import Data
from portwright.graph.plans.described import DescribedBatch, parse_batch, resize_batch
from portwright.graph.plans.optimizer_state import OptimizerCost
from portwright.graph.plans.request import Request, find_script
from portwright.job.arguments import parse_arguments
from portwright.job.blame import blame
from portwright.job.model_list import find_config
from portwright.job.optimizer import DEFAULT_OPTIMIZER, OPTIMIZERS, optimizer_schema
from portwright.job.run_params import load_run_params
from portwright.runtime import run as run_module
from portwright.runtime.asked_script import ask_script
from portwright.runtime.base_model import LossModule, make_model
from portwright.runtime.precision import resolve_precision


@dataclass
class Subject:
    """A model to plan, and a batch for it."""

    name: str
    make_model: Callable[[], Any]  # what `capture` takes: a fresh model each time
    batch: Any
    optimizer: OptimizerCost
    root: Path  # of the user's code
    half: str = ""  # dtype of the run's own mixed precision, '' for none
    has_fixed_optimizer: bool = False  # named on the command line: what the model brings does not count
    data: Data = field(default_factory=Data)
    notes: list[str] = field(default_factory=list)


def load_subject(request: Request) -> Subject:
    """Runs the user's files as far as they describe the model, never further: nothing is trained."""
    if request.batch_size is not None and request.batch_size < 1:
        raise UserError(f"--batch-size is {request.batch_size}.", "Give a number from 1 on.")
    script = find_script(request.path)
    subject = _from_callable(request) if script is None else _from_script(request, script)
    if request.batch_size is not None:
        subject.batch = resize_batch(subject.batch, request.batch_size)
    if request.optimizer is not None:
        options = subject.optimizer.options if _same(request.optimizer, subject.optimizer.name) else {}
        subject.optimizer = OptimizerCost(_known_optimizer(request.optimizer), options)
        subject.has_fixed_optimizer = True
    return subject


# -- a run.py ------------------------------------------------------------------------------------------------


def _from_script(request: Request, script: Path) -> Subject:
    given = request.params
    params_path = find_config(script.parent, str(given)) if given else script.parent / "configs/params.yaml"
    if not params_path.is_file():
        raise UserError(f"there is no params file '{params_path}'.", "Give one with --params.")
    overrides = [word for text in request.overrides for word in ("-D", text)]
    arguments = ["CPU", "--mode", "train", "--params", str(params_path.resolve()), *overrides]
    with mock.patch.object(sys, "argv", [str(script), *arguments]):  # as the script would find it
        return _load_script(request, script, arguments)


def _load_script(request: Request, script: Path, arguments: Sequence[str]) -> Subject:
    parts = run_module._Parts(**_ask(script, request.compat))
    parts.check()
    parsed = parse_arguments(arguments, parts.extra_args_parser_fn)
    params = load_run_params(parsed, parts.default_params_fn)
    options = params.optimizer.model_dump()
    precision = resolve_precision(params.values, params.runconfig.precision, "cuda")
    subject = Subject(
        name=request.path,
        make_model=lambda: make_model(parts.model_fn, copy.deepcopy(params.values), None),
        batch=None,
        optimizer=OptimizerCost(params.optimizer.optimizer_type, options),
        root=script.parent,
        half={"bf16": "bfloat16", "fp16": "float16"}.get(precision.name, ""),
    )
    if request.inputs:
        subject.batch = parse_batch(request.inputs)
        subject.make_model = lambda: _routed(make_model(parts.model_fn, copy.deepcopy(params.values), None))
        subject.data = Data(why_no_samples="the batch was given with --input")
        return subject
    subject.batch, subject.data = _read_batch(parts.train_data_fn, copy.deepcopy(params.values), params)
    return subject


def _ask(script: Path, compat: str | None) -> Mapping[str, Any]:
    """What the script passes to run(), with the model zoo's modules lent to it where `compat` says so."""
    cure = "Call it, as `portwright new` does, or plan FILE.py:CALLABLE with --input instead."
    if compat is None:
        return ask_script(script, cure)
    from portwright.compat.lend import explain_import_error, lend

    lend(compat)

    def explain(error: Exception) -> PortwrightError:
        return explain_import_error(script, error) if isinstance(error, ImportError) else blame(error)

    return ask_script(script, cure, explain)


def _read_batch(data_fn: Any, values: dict[str, Any], params: Any) -> tuple[Any, Data]:
    """The first batch of the project's own training data."""
    from portwright.data.loader import ResumableLoader

    cure = "Or describe a batch: --input 'x:float32[8,784]' --input 'y:int64[8]'."
    if data_fn is None:
        raise UserError("run() was called without train_data_fn, so there is no batch.", cure)
    try:
        with warnings.catch_warnings():
            # The processes that load data are for the machine that will train, which need not be this one.
            warnings.filterwarnings("ignore", message="This DataLoader will create")
            made = data_fn(values)
            loader = ResumableLoader(made, name="train_input", seed=params.runconfig.seed or 0, repeat=False)
            try:
                batch = next(iter(loader), None)
            finally:
                loader.close()
    except PortwrightError as error:
        error.cure = f"{error.cure} {cure}".strip()
        raise
    except Exception as error:
        blamed = blame(error)
        raise UserError(f"no batch could be read: {blamed.message}", cure) from error
    if batch is None:
        raise UserError("the training data has no batch.", cure)
    paths = _data_paths(params.values.get("train_input"))
    try:
        return batch, Data(num_samples=len(made.dataset), paths=paths)
    except (AttributeError, TypeError, NotImplementedError) as error:
        return batch, Data(
            why_no_samples=f"the training data does not say how many samples it has ({error})", paths=paths
        )


def _data_paths(section: Any) -> tuple[Path, ...]:
    found = []
    for key, value in section.items() if isinstance(section, Mapping) else ():
        if not str(key).endswith(("_dir", "_path", "_file", "_dirs", "_paths", "_files")):
            continue
        for path in value if isinstance(value, list) else [value]:
            if isinstance(path, str) and path and Path(path).expanduser().exists():
                found.append(Path(path).expanduser())
    return tuple(found)


# -- FILE.py:CALLABLE ----------------------------------------------------------------------------------------


def _from_callable(request: Request) -> Subject:
    file_name, _, name = request.path.rpartition(":")
    file = Path(file_name)
    if not file.is_file():
        raise UserError(f"there is no file '{file}'.", "Give FILE.py:CALLABLE.")
    if not request.inputs:
        raise UserError(
            f"'{request.path}' has no data loader, so there is no batch.",
            "Describe one: --input 'x:float32[8,784]', once for each argument of forward.",
        )
    made = _find_callable(file.resolve(), name)
    params = _plain_params(request)
    given = parse_batch(request.inputs)
    notes = [] if request.optimizer else [f"no params name an optimizer: {DEFAULT_OPTIMIZER} is assumed."]

    def factory() -> LossModule:
        model = _build(made, request.path, params)
        return _routed(model if isinstance(model, LossModule) else LossModule(model))

    return Subject(
        name=request.path,
        make_model=factory,
        batch=given,
        optimizer=OptimizerCost(DEFAULT_OPTIMIZER),
        root=file.resolve().parent,
        data=Data(why_no_samples="the batch was given with --input"),
        notes=notes,
    )


def _plain_params(request: Request) -> dict[str, Any] | None:
    from portwright.job.params import load_params

    if request.params is None:
        if request.overrides:
            raise UserError("-D was given without --params.", "Say which params file it changes.")
        return None
    return load_params(request.params, overrides=request.overrides).values


def _find_callable(file: Path, name: str) -> Callable[..., Any]:
    sys.path.insert(0, str(file.parent))
    # Under its own name, unless a module that is in use has it.
    module_name = file.stem if file.stem not in sys.modules else f"_planned_{file.stem}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except PortwrightError:
        raise
    except Exception as error:
        raise blame(error) from error
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            public = [k for k, v in vars(found).items() if not k.startswith("_") and callable(v)]
            raise UserError(f"{file} has no '{name}'.", suggest(part, public))
        found = getattr(found, part)
    if not callable(found):
        raise UserError(
            f"'{name}' of {file} is {type(found).__name__}.",
            "Name a class or a function that makes the model.",
        )
    return found  # type: ignore[no-any-return]


def _build(made: Callable[..., Any], path: str, params: dict[str, Any] | None) -> Any:
    from torch import nn

    if isinstance(made, nn.Module):
        return copy.deepcopy(made)  # each capture may change the model that it is given
    try:
        declared = list(inspect.signature(made).parameters.values())
    except (TypeError, ValueError):
        declared = []
    needed = [
        p
        for p in declared
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    if params is not None and needed:
        return make_model(made, copy.deepcopy(params), None)
    if needed:
        names = ", ".join(p.name for p in needed)
        raise UserError(
            f"{path} needs the argument(s) {names}.",
            "Name a function without arguments that makes the model, or give its params with --params.",
        )
    return made()


def _routed(model: LossModule) -> LossModule:
    """Hands described inputs to forward by name where all names are arguments of it, else in their order."""
    if model.__dict__["user_model"] is not model.net:
        return model  # a model with a __call__ of its own takes the batch as a whole
    net, whole = model.net, model.call
    declared = list(inspect.signature(net.forward).parameters.values())
    names = {p.name for p in declared if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    num_positional = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in declared)
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in declared)

    def call(batch: Any) -> Any:
        if isinstance(batch, DescribedBatch) and batch._fields and set(batch._fields) <= names:
            return net(**dict(batch.items()))
        if not isinstance(batch, tuple):
            return net(batch)
        return net(*batch) if takes_any or num_positional >= len(batch) else whole(batch)

    model.call = call
    return model


# -- optimizers ----------------------------------------------------------------------------------------------


def _same(one: str, other: str) -> bool:
    return one.lower() == other.lower()


def _known_optimizer(name: str) -> str:
    schema = optimizer_schema(name)
    return next(known for known, kind in OPTIMIZERS.items() if kind is schema)
