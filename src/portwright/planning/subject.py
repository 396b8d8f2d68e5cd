"""What `portwright plan` plans: a model folder's run.py, a reference model, or a callable in a file."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from portwright.base_model import LossModule, make_model
from portwright.discover import host_target
from portwright.errors import PortwrightError, UserError
from portwright.graph.inputs import DescribedBatch, parse_batch, resize_batch
from portwright.graph.plans.optimizer_state import OptimizerCost
from portwright.graph.plans.request import Data, Request, data_paths, find_script
from portwright.job.blame import blame
from portwright.job.optimizer import DEFAULT_OPTIMIZER, OPTIMIZERS, optimizer_schema
from portwright.job.params import Params
from portwright.planning.user_file import check_batch_size, find_callable, plain_params
from portwright.runtime.asked_script import ask_script, loaded_script
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
    has_fixed_optimizer: bool = False  # named on the command line, which goes before the model's own
    data: Data = field(default_factory=Data)
    notes: list[str] = field(default_factory=list)


def load_subject(request: Request) -> Subject:
    """Runs the user's files only as far as they describe the model; nothing is trained."""
    check_batch_size(request)
    script = find_script(request.path)
    subject = _from_callable(request) if script is None else _from_script(request, script)
    if request.batch_size is not None:
        subject.batch = resize_batch(subject.batch, request.batch_size)
    if request.optimizer is not None:
        schema = optimizer_schema(request.optimizer)
        name = next(known for known, kind in OPTIMIZERS.items() if kind is schema)
        options = subject.optimizer.options if name.lower() == subject.optimizer.name.lower() else {}
        subject.optimizer = OptimizerCost(name, options)
        subject.has_fixed_optimizer = True
    return subject


# -- a run.py ------------------------------------------------------------------------------------------------


def _from_script(request: Request, script: Path) -> Subject:
    def ask(script: Path) -> Mapping[str, Any]:
        return _ask(script, request.compat)

    with loaded_script(script, request.params, request.overrides, ask=ask, target=host_target()) as (
        parts,
        _,
        params,
    ):
        options = params.optimizer.model_dump()
        precision = resolve_precision(params.values, params.runconfig.precision, "cuda")
        subject = Subject(
            name=request.path,
            make_model=lambda: make_model(parts.model_fn, copy.deepcopy(params.values), None),
            batch=None,
            optimizer=OptimizerCost(params.optimizer.optimizer_type, options),
            root=script.parent,
            half={"bf16": "bfloat16", "fp16": "float16"}.get(precision.name, ""),
            notes=_not_counted(params, precision.name),
        )
        if request.inputs:
            subject.batch = parse_batch(request.inputs)
            subject.make_model = lambda: _routed(
                make_model(parts.model_fn, copy.deepcopy(params.values), None)
            )
            subject.data = Data(why_no_samples="the batch was given with --input")
            return subject
        subject.batch, subject.data = _read_batch(parts.train_data_fn, copy.deepcopy(params.values), params)
        return subject


def _not_counted(params: Params, precision: str) -> list[str]:
    """What params ask for whose memory or operations a plan does not count."""
    spec, streaming = params.optimizer, params.runconfig.streaming
    asked = {
        "optimizer.grad_accum_steps": spec.grad_accum_steps > 1,
        "optimizer.max_gradient_norm": spec.max_gradient_norm is not None,
        "optimizer.max_gradient_value": spec.max_gradient_value is not None,
        "optimizer.loss_scaling_factor": spec.loss_scaling_factor != 1.0,
        "runconfig.precision: fp64": precision == "fp64",
        "runconfig.streaming.offload_activations": streaming.offload_activations,
        "runconfig.streaming.store": streaming.store is not None,
        "runconfig.streaming.state_dtype": streaming.state_dtype != "fp32",
    }
    names = [name for name, is_asked in asked.items() if is_asked]
    return [f"not counted, though params ask for it: {', '.join(names)}."] if names else []


def _ask(script: Path, compat: str | None) -> Mapping[str, Any]:
    """What the script passes to run(); with `compat`, it can import the model zoo's modules."""
    cure = "Call it, as `portwright new` does, or plan FILE.py:CALLABLE with --input instead."
    if compat is None:
        return ask_script(script, cure)
    from portwright.compat.lend import explain_error, lend

    lend(compat)
    return ask_script(script, cure, explain_error(script))


def _read_batch(data_fn: Any, values: dict[str, Any], params: Any) -> tuple[Any, Data]:
    """The first batch of the project's own training data."""
    from portwright.data.loader import ResumableLoader

    cure = "Or describe a batch: --input 'x:float32[8,784]' --input 'y:int64[8]'."
    if data_fn is None:
        raise UserError("run() was called without train_data_fn, so there is no batch.", cure)
    try:
        with warnings.catch_warnings():
            # The number of data workers is chosen for the machine that will train, which may be another one.
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
    paths = data_paths(params.values.get("train_input"))
    try:
        return batch, Data(num_samples=len(made.dataset), paths=paths)
    except (AttributeError, TypeError, NotImplementedError) as error:
        return batch, Data(
            why_no_samples=f"the training data does not say how many samples it has ({error})", paths=paths
        )


# -- FILE.py:CALLABLE ----------------------------------------------------------------------------------------


def _from_callable(request: Request) -> Subject:
    made, folder = find_callable(request, "CALLABLE", "a class or a function that makes the model")
    if not request.inputs:
        raise UserError(
            f"'{request.path}' has no data loader, so there is no batch.",
            "Describe one: --input 'x:float32[8,784]', once for each argument of forward.",
        )
    params = plain_params(request)
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
        root=folder,
        data=Data(why_no_samples="the batch was given with --input"),
        notes=notes,
    )


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
