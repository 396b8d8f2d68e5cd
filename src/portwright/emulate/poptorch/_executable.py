"""A compiled step: the frozen program, what it takes and gives, and one run of it over a call's micro-batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.func import functional_call

from portwright.emulate.poptorch import _rules, _utils
from portwright.emulate.poptorch._batching import Batching
from portwright.emulate.poptorch._device import Image, RandomState
from portwright.emulate.poptorch._errors import refuse
from portwright.emulate.poptorch._inputs import Signature, to_device
from portwright.emulate.poptorch._naming import ModuleOutputs, all_names, check_anchors
from portwright.emulate.poptorch._outputs import check_period
from portwright.emulate.poptorch._program import Program
from portwright.emulate.poptorch._python_state import PythonState
from portwright.emulate.poptorch._structure import Structure

WRITTEN = "written/"
"""Before the number of an input in the name of the output that has what forward() made of it in place."""
LOSS_SCALE = "lossScaling_FLOAT"
"""The name under which a program that scales its loss finds the factor among its weights."""


@dataclass(frozen=True)
class Executable:
    """What compiling gives, and what a file holds; `results` says which output of the program has a name."""

    program: Program
    inputs: Signature
    structure: Structure | None
    results: dict[str, int]
    tensor_names: list[str]
    training: bool
    weights: dict[str, list[Any]]
    scales_loss: bool
    placement: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    memory: dict[str, Any] = field(default_factory=dict)  # of each IPU, where it was compiled in this process


@dataclass(frozen=True)
class Anchor:
    """A tensor to be kept: which one, and of which micro-batches."""

    name: str
    mode: int
    period: int


def anchors_of(options: Any) -> dict[str, Anchor]:
    """The anchored tensors by their short name."""
    return {
        short: Anchor(name, mode, period)
        for short, (name, _, mode, period) in options.anchored_tensors.items()
    }


def partials_of(options: Any) -> torch.dtype | None:
    """The type that products of half tensors are added up in, where Precision.setPartialsType has set one."""
    named = {"half": torch.float16, "float": torch.float32}
    return named.get(options._popart.options.get("partialsTypeMatMuls", ""))


def compile_step(
    model: torch.nn.Module,
    args: Any,
    options: Any,
    image: Image,
    *,
    optimizer: torch.optim.Optimizer | None,
    scales_loss: bool,
    numbers: Sequence[str],
    around: AbstractContextManager[Any],
) -> Executable:
    """Runs the user's Python once, on the first micro-batch, and keeps what it computes as a program."""
    started = time.perf_counter()
    training = optimizer is not None
    trained = [name for name, p in model.named_parameters() if p.requires_grad] if training else []
    batching = Batching.of(options)
    check_period(options.output_mode, options.output_return_period, batching)
    anchors = anchors_of(options)
    for anchor in anchors.values():
        check_period(anchor.mode, anchor.period, batching, f"the anchor of {anchor.name}")
    flat = _utils.flattenTensorStructure((args.args, args.kwargs))
    inputs = [
        batching.first(tensor, f"input {index}").clone() for index, tensor in enumerate(to_device(flat))
    ]
    weights = {name: tensor.clone() for name, tensor in image.weights().items()}
    if scales_loss:
        weights[LOSS_SCALE] = torch.ones(())
    traced = _Traced(model, args, options, [anchor.name for anchor in anchors.values()])
    with around, RandomState(0).active(), _rules.watching(options, training=training) as watch:
        program = Program.trace(
            traced.call,
            weights,
            inputs,
            training=training,
            find_loss=traced.find_loss(watch, scales_loss),
            trained=trained,
            partials=partials_of(options),
        )
    _check_buffers(program, options)
    memory = _rules.check_memory(watch, options, weights, optimizer)
    signature = Signature.of(args)
    names = all_names(
        [*signature.names, *signature.named], image.weights(), trained, traced.recorded, training
    )
    if "loss" not in traced.extra and training:
        names.remove("loss")  # it can be looked at where forward() returns it
    names += numbers  # of the optimizer
    check_anchors((anchor.name for anchor in anchors.values()), names)
    return Executable(
        program,
        signature,
        traced.structure,
        traced.extra,
        names,
        training,
        {name: [str(tensor.dtype), list(tensor.shape)] for name, tensor in image.weights().items()},
        scales_loss,
        watch.placement.as_json(),
        time.perf_counter() - started,
        memory.as_json(),
    )


class _Traced:
    """The user's model as a function of weights and inputs, which is what gets traced."""

    def __init__(self, model: torch.nn.Module, args: Any, options: Any, anchors: Sequence[str]) -> None:
        self._model = model
        self._args = args
        self._anchors = anchors
        self._outputs = ModuleOutputs(model, options._module_namescope_enabled)
        self.extra: dict[str, int] = {}
        self._scale: torch.Tensor | None = None
        self._result: Any = None
        self._flat: list[torch.Tensor] = []

    @property
    def recorded(self) -> list[str]:
        return list(self._outputs.tensors)

    def call(self, weights: dict[str, torch.Tensor], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        versions = [tensor._version for tensor in inputs]
        own = dict(weights)
        self._scale = own.pop(LOSS_SCALE, None)
        args, kwargs = _utils.reconstructTensorStructure((tuple(self._args.args), self._args.kwargs), inputs)
        for name, _ in self._model.named_parameters(remove_duplicate=False):
            if (
                name in own
            ):  # as torch marks those that are of no class of their own: isinstance() and get_parameter() ask
                own[name].__dict__["_is_param"] = True
        state = PythonState(self._model)
        handle = self._model.register_forward_hook(_check_kept(dict(own)))
        tensors: list[tuple[dict[str, Any], dict[str, Any]]] = []
        for part in self._model.modules():
            tensors += [(part._parameters, {**part._parameters}), (part._buffers, {**part._buffers})]
        try:
            with self._outputs.recording():
                result = functional_call(self._model, own, args, kwargs)
        finally:
            handle.remove()
            for there, before in tensors:  # what forward() has taken out comes back
                there.clear()
                there.update(before)
        state.warn_of_changes()
        self._result = result
        flat: list[torch.Tensor] = _utils.flattenTensorStructure(result)
        named = {name: self._outputs.tensors[name] for name in self._anchors if name in self._outputs.tensors}
        for name, value in [*zip(self._args.arg_names, args, strict=True), *kwargs.items()]:
            if f"input/{name}" in self._anchors and isinstance(value, torch.Tensor):
                named[f"input/{name}"] = value
        for index, (tensor, version) in enumerate(zip(inputs, versions, strict=True)):
            if tensor._version != version:  # forward() has changed it in place, and the host is to see that
                named[f"{WRITTEN}{index}"] = tensor
        self.extra = {name: len(flat) + index for index, name in enumerate(named)}
        self._flat = flat
        return [*flat, *named.values()]

    @property
    def structure(self) -> Structure | None:
        """The nesting of what forward() returned; asked for after the trace."""
        return None if self._result is None else Structure.of(self._result)

    def find_loss(self, watch: Any, scales: bool) -> Callable[[Any], torch.Tensor]:
        def find(_: Any) -> torch.Tensor:
            loss: torch.Tensor = watch.find_loss(self._result)
            for index, tensor in enumerate(self._flat):
                if tensor is loss:
                    self.extra["loss"] = index
            return loss * self._scale if scales and self._scale is not None else loss

        return find


def _check_kept(given: Mapping[str, torch.Tensor]) -> Callable[..., None]:
    """A hook that refuses a forward() which put another tensor in the place of a weight: the device has the old one."""

    def check(model: torch.nn.Module, inputs: Any, result: Any) -> None:
        now = {
            **dict(model.named_parameters(remove_duplicate=False)),
            **dict(model.named_buffers(remove_duplicate=False)),
        }
        for name, tensor in given.items():
            if name not in now:
                raise refuse(f"forward() removes {name} from the model, which the compiled program needs.")
            if now[name] is not tensor:
                raise refuse(
                    f"forward() puts a new tensor in the place of {name}, which the compiled program does not see. "
                    f"Change it in place: self.{name}.copy_(value)."
                )

    return check


def _check_buffers(program: Program, options: Any) -> None:
    changed = sorted(program.written)
    if changed and options.replication_factor > 1 and options.broadcast_buffers:
        raise refuse(
            f"forward() changes {', '.join(changed[:3])}{', ...' if len(changed) > 3 else ''}, and with "
            f"{options.replication_factor} replicas PopTorch does not keep such buffers alike. If the model can do with "
            "buffers that differ between replicas, set Options.broadcastBuffers(False)."
        )
