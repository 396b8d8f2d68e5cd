"""A training step of a user's model as a Graph, without its memory and without its values.

The model is made and its step is run under fake tensors; every op below autograd is recorded, forward and backward, as an
accelerator's lazy front end would see it. docs/decisions/0002 says why it is not torch.export.
"""

from __future__ import annotations

import logging
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parameter import is_lazy

from portwright.base_model import LossModule, split_loss
from portwright.errors import UserError
from portwright.graph.capturing.hosts import ConstructionMode, Hosts, lend_fakes
from portwright.graph.capturing.tape import Tape
from portwright.graph.capturing.trace import Recorder
from portwright.graph.capturing.trace_calls import CallWatch, watch_lists, watch_modules
from portwright.graph.graph import Graph, Module, Stop, mark_repeats
from portwright.graph.inputs import TensorSpec, map_tensors
from portwright.layers.plain_ops import plain_ops
from portwright.watching.places import PlaceFinder
from portwright.watching.random_states import untouched_rng

_LONGEST = 400  # characters of an error's message; torch can list every backend that it knows
# What torch says where its own C++ code reads a tensor that has no data.
_NO_DATA = ("data is not allocated yet", "Cannot access data pointer", "doesn't have storage")


def capture(
    model_factory: Callable[[], Any],
    batch: Any,
    *,
    trains: bool = True,
    casts: AbstractContextManager[Any] | None = None,
    optimizer: str = "",
    root: Path | None = None,
    fuses_attention: bool = False,
) -> Graph:
    """Records one step of the model that the factory makes, on a batch of tensors or of TensorSpec.

    The factory gives what `run` takes: a PyTorchBaseModel, an nn.Module that returns its loss, or any callable of a batch.
    `casts` is active in the forward pass; code under `root` counts as the user's; `fuses_attention` is for targets whose
    scaled_dot_product_attention is one kernel that keeps no scores, and whose loss with its output layer is one that keeps no logits. Faults of the user's code are in `Graph.stops`;
    a UserError means that the batch or the factory cannot be used.
    """
    start = time.perf_counter()
    finder = PlaceFinder(root)
    tape = Tape(finder, _BOUNDARIES)
    info: dict[str, Any] = {"torch": torch.__version__}
    modules: tuple[Module, ...] = ()
    loss, batch_size = -1, 1
    with ExitStack() as stack:
        stack.enter_context(_kept_globals())
        fake_mode = stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        hosts = Hosts(fake_mode)
        try:
            inputs, batch_size = _make_batch(batch, tape)
            model = _make(model_factory, tape, hosts)
            paths: dict[int, str] = {}
            if isinstance(model, LossModule):
                if any(map(is_lazy, model.net.parameters())):
                    with ConstructionMode(hosts), torch.no_grad():
                        model.call(inputs)  # their sizes follow from the first batch
                stack.enter_context(lend_fakes(model.net, fake_mode))
                for name, parameter in model.net.named_parameters():
                    tape.add_given(parameter, "parameter", name, name.rpartition(".")[0])
                for name, buffer in model.net.named_buffers():
                    tape.add_given(buffer, "buffer", name, name.rpartition(".")[0])
                modules = tuple(_list_modules(model.net))
                paths = {id(part): path for path, part in model.net.named_modules()}
                model.train(trains)
            stack.enter_context(watch_modules(tape, paths))
            if not fuses_attention:
                stack.enter_context(sdpa_kernel(SDPBackend.MATH))
                stack.enter_context(plain_ops())
            loss = _run_step(model, inputs, casts or nullcontext(), trains, tape, hosts, info)
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            _note_failure(error, tape, finder)
        finally:
            tape.give_back_gradients()
    modules = mark_repeats(modules, tape.nodes, tape.values)
    info["seconds"] = time.perf_counter() - start
    return Graph(
        tuple(tape.nodes),
        tuple(tape.values),
        modules,
        tuple(tape.stops),
        batch_size,
        trains,
        loss,
        optimizer,
        info,
    )


def _run_step(
    model: Callable[[Any], Any],
    inputs: Any,
    casts: AbstractContextManager[Any],
    trains: bool,
    tape: Tape,
    hosts: Hosts,
    info: dict[str, Any],
) -> int:
    # Frames outside this function are not part of the step.
    call = model.call if isinstance(model, LossModule) else model
    watch = CallWatch(tape, hosts, in_step=True)
    with Recorder(tape, hosts), watch, watch_lists(watch):
        with casts, torch.set_grad_enabled(trains):
            result = call(inputs)
            loss = _find_loss(result, trains, info)
        if loss is None:
            return -1
        index = tape.index(loss)
        if trains:
            if not loss.requires_grad:
                raise RuntimeError("the loss does not depend on a weight that is trained")
            tape.phase = "backward"
            # torch.autograd.backward would count as a torch function of the user's.
            torch.autograd.Variable._execution_engine.run_backward(
                (loss,),
                (torch.ones_like(loss),),
                False,
                False,
                (),
                allow_unreachable=True,
                accumulate_grad=True,
            )
        return index


def _find_loss(result: Any, trains: bool, info: dict[str, Any]) -> Tensor | None:
    try:
        return split_loss(result)[0]
    except UserError:
        if not trains:
            return None
    outputs: list[Tensor] = []

    def keep(tensor: Any, name: str) -> None:
        if isinstance(tensor, Tensor) and tensor.requires_grad and tensor.dtype.is_floating_point:
            outputs.append(tensor)

    is_object = hasattr(result, "__dict__") and not isinstance(result, Tensor | Mapping | tuple | list)
    map_tensors(dict(vars(result)) if is_object else result, keep)
    if not outputs:
        raise RuntimeError(
            f"the model returned {type(result).__name__}, with no loss and no output that can be trained"
        )
    info["loss"] = "the mean of the model's outputs, since it returns no loss"
    total = outputs[0].mean()
    for tensor in outputs[1:]:
        total = total + tensor.mean()
    return total


def _note_failure(error: BaseException, tape: Tape, finder: PlaceFinder) -> None:
    if tape.has_guessed:
        # An error after a guess may come from the guess.
        tape.end_early()
        return
    said = str(error).strip()
    place = finder.find_raised(error, _BOUNDARIES)
    if any(part in said for part in _NO_DATA):
        message = "the values of a tensor are read on the host"
        tape.end_early(Stop("host_read", "", tape.failed_module or "", place, message))
        return
    message = (
        f"{type(error).__name__}: {textwrap.shorten(said.splitlines()[0], _LONGEST, placeholder=' ...')}"
        if said
        else type(error).__name__
    )
    if tape.phase == "backward":
        message = f"in the backward pass, {message}"
    tape.end_early(Stop("failure", tape.failed_op, tape.failed_module or "", place, message))


def _make(model_factory: Callable[[], Any], tape: Tape, hosts: Hosts) -> Any:
    with ConstructionMode(hosts), CallWatch(tape, hosts, in_step=False):
        made = model_factory()
    if isinstance(made, LossModule):
        return made
    if isinstance(made, nn.Module) or isinstance(getattr(made, "model", None), nn.Module):
        return LossModule(made)
    if not callable(made):
        raise UserError(
            f"the model's factory returned {type(made).__name__}.",
            "Return a PyTorchBaseModel, an nn.Module, or a function of a batch.",
        )
    return made


def _make_batch(batch: Any, tape: Tape) -> tuple[Any, int]:
    sizes: list[int] = []

    def make(tensor: Tensor | TensorSpec, name: str) -> Tensor:
        try:
            dtype = getattr(torch, tensor.dtype) if isinstance(tensor, TensorSpec) else tensor.dtype
            made = torch.empty(tuple(tensor.shape), dtype=dtype)
        except (AttributeError, RuntimeError) as error:
            raise UserError(
                f"torch {torch.__version__} cannot make the input {name or 'tensor'} of {tensor}: {str(error).splitlines()[0]}.",
                "Choose another shape or type.",
            ) from error
        if isinstance(tensor, Tensor) and tensor.requires_grad:
            made.requires_grad_()
        tape.add_given(made, "input", name)
        if made.ndim:
            sizes.append(made.shape[0])
        return made

    made = map_tensors(batch, make)
    return made, sizes[0] if sizes else 1


def _list_modules(net: nn.Module) -> Iterator[Module]:
    counted: set[int] = set()
    for path, part in net.named_modules():
        own = [p for p in part._parameters.values() if p is not None and id(p) not in counted]
        counted.update(id(p) for p in own)
        yield Module(path, type(part).__name__, sum(p.numel() for p in own))


@contextmanager
def _kept_globals() -> Iterator[None]:
    """Restores the settings of the process that a user's factory or step changes.

    Inside, the CPU's fused recurrent layers are off, since no accelerator has them, and torch does not log errors that
    become stops.
    """
    dtype, grad = torch.get_default_dtype(), torch.is_grad_enabled()
    uses_onednn: bool = torch._C._get_mkldnn_enabled()
    context = torch._GLOBAL_DEVICE_CONTEXT
    had_device, device = hasattr(context, "device_context"), getattr(context, "device_context", None)
    logger = logging.getLogger(FakeTensorMode.__module__)
    was_quiet, logger.disabled = logger.disabled, True
    try:
        torch._C._set_mkldnn_enabled(False)
        with untouched_rng(torch.device("cpu")), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a real run shows them; here some are about fake tensors
            yield
    finally:
        logger.disabled = was_quiet
        torch._C._set_mkldnn_enabled(uses_onednn)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
        if getattr(context, "device_context", None) is not device:
            torch.set_default_device(None if device is None else device.device)
        if not had_device and hasattr(context, "device_context"):
            del context.device_context  # torch 2.4 cannot ask for a default that was taken back


_BOUNDARIES = (_run_step.__code__, _make.__code__)
