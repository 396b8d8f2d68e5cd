"""What is seen of one trace of a model, and what PopTorch says to it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from portwright.emulate import table_of
from portwright.emulate.poptorch import _losses, _placement, poptorch_core
from portwright.emulate.poptorch._errors import refuse
from portwright.emulate.poptorch._logging import logger
from portwright.emulate.poptorch._placement import Placement, Tag
from portwright.graph.capturing.hosts import tensors_in
from portwright.graph.capturing.tape import Tape, storage_id
from portwright.graph.capturing.trace import guess_shape
from portwright.graph.graph import Graph, Kind, Module, Node
from portwright.graph.kernels import Verdict
from portwright.graph.match import match
from portwright.watching.place import Place
from portwright.watching.places import PlaceFinder

_lock = threading.RLock()  # models of two threads are compiled one after the other
_here = threading.local()  # .watch is what this thread compiles


def current() -> Watch | None:
    """The watch over the model that this thread is compiling."""
    watch: Watch | None = getattr(_here, "watch", None)
    return watch


def isRunningOnIpu() -> bool:
    """Whether the code runs as part of a model that is being compiled for IPUs."""
    return current() is not None


@contextmanager
def active(watch: Watch) -> Iterator[None]:
    with _lock:
        outer, _here.watch = current(), watch
        try:
            yield
        finally:
            _here.watch = outer


@contextmanager
def trusted() -> Iterator[None]:
    """What runs inside stands for one op of PopTorch's own: the ops that it is computed with here are not judged."""
    watch = current()
    if watch is None:
        yield
        return
    watch.num_trusted += 1
    try:
        yield
    finally:
        watch.num_trusted -= 1


aten = torch.ops.aten

# Handles of a tensor that autograd and torch.fx make for themselves.
_SAME = {aten.detach.default, aten.alias.default, aten.lift.default, aten.lift_fresh.default}
# Their results have sizes that PopTorch knows from the arguments.
_SIZED = {aten._ctc_loss.default, aten._ctc_loss.Tensor, aten.linalg_lstsq.default}
# Indices given as a list are made on the host by torch itself; a copy is how a constant gets onto the IPU.
_TAKE_HOST = {"index", "index_put", "index_put_", "_unsafe_index", "_index_put_impl_", "copy_", "copy"}
_INT32 = torch.iinfo(torch.int32)
# These read sizes out of the values of an argument, or give a tensor other memory.
_READ_SIZES = {aten._pack_padded_sequence.default: 1, aten._pad_packed_sequence.default: 1}
_OTHER_MEMORY = {"resize_", "resize_as_", "set_", "resize", "_resize_output_"}
_MOST_TOLD = 5  # refused ops in one message
_Method = TypeVar("_Method", bound=Callable[..., Any])


def _unseen(method: _Method) -> _Method:
    """What we ask of tensors ourselves is not a function that the model calls."""

    @functools.wraps(method)
    def ask(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return method(*args, **kwargs)

    return ask  # type: ignore[return-value]


class Residence:
    """Which tensors are on the IPU; others are the host's, and the host may look at them.

    On the IPU are weights, buffers, inputs, what is made there, and what is computed from any of these.
    """

    def __init__(self) -> None:
        self._on_ipu: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._on_host: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def add(self, tensor: Tensor) -> None:
        self._on_ipu[tensor] = True

    def add_host(self, tensor: Tensor) -> None:
        """A tensor that the model brought; one that a function makes for itself is where its arguments are."""
        self._on_host[tensor] = True

    def sort(self, tensors: list[Tensor]) -> bool:
        """Keeps those of the arguments of a function that are the host's; whether some are the IPU's."""
        hosts = [tensor for tensor in tensors if not self.has(tensor)]
        for tensor in hosts:
            self.add_host(tensor)
        return len(hosts) < len(tensors)

    def is_host(self, tensor: Tensor) -> bool:
        return tensor in self._on_host and tensor not in self._on_ipu

    def has(self, tensor: Any) -> bool:
        return isinstance(tensor, Tensor) and tensor in self._on_ipu


class Watch:
    """What was seen of one trace."""

    def __init__(self, options: Any, *, training: bool) -> None:
        self.options, self.training = options, training
        self.phase: Literal["before", "forward", "after", "backward"] = "before"  # of the model's call
        self.is_paused = False
        self.num_trusted = 0
        self.makes_on_ipu = False
        self.checkpoints: set[int] = set()  # values that recomputation keeps
        self.results: tuple[int, ...] = ()  # values that the outermost module returned
        self.residence = Residence()
        self.blocks = _placement.Blocks(options._execution_strategy.backendOptions().get("execution_mode", 0))
        self.finder = PlaceFinder()
        self.tape = Tape(self.finder, ())
        self.tags: list[Tag | None] = []  # one a node
        self._own: set[int] = set()  # nodes that PopTorch's own functions are computed with
        self.of_host: set[int] = set()  # nodes that the host computes: constants for the program
        self._losses: list[_losses.Loss] = []
        self._kinds: dict[str, str] = {}  # module path: class
        self._modules: tuple[Module, ...] = ()
        self.paths: dict[int, str] = {}
        self._noted: set[tuple[str, str]] = set()
        self._placement: Placement | None = None
        self.is_checked = False
        self.kept: set[int] = set()  # values of the forward pass that gradients read
        self._storages: dict[int, int] = {}  # of a tensor: the value that it was made as

    @property
    def sees_model(self) -> bool:
        """Whether what this thread runs is the model's forward()."""
        return current() is self and self.phase == "forward" and not self.is_paused

    # What the model is, and what it does

    @_unseen
    def enter_model(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        """The outermost module is called: its weights and what it is given are on the IPU."""
        self.phase = "forward"
        owned: set[int] = set()
        modules = []
        for path, part in model.named_modules():
            self.paths[id(part)] = path
            is_compiled = isinstance(getattr(part, "_orig_mod", None), nn.Module)
            if is_compiled or part._compiled_call_impl is not None:
                raise self.refuse(
                    f"the module '{path}' was compiled by torch.compile, whose code does not go through PopTorch. Give PopTorch the "
                    "module as it was written",
                    self.tape.place()[0],
                )
            if isinstance(part, torch.jit.ScriptModule) and next(part.parameters(), None) is not None:
                raise self.refuse(
                    f"the module '{path}' was made by torch.jit, and keeps its parameters out of reach: they would not be trained. Use "
                    "the module as it was written",
                    self.tape.place()[0],
                )
            self._kinds[path] = type(part).__name__
            own = [p for p in part._parameters.values() if p is not None and id(p) not in owned]
            owned.update(map(id, own))
            modules.append(Module(path, type(part).__name__, sum(p.numel() for p in own)))
        self._modules = tuple(modules)
        for name, parameter in model.named_parameters():
            self._give(parameter, "parameter", name)
        for name, buffer in model.named_buffers():
            self._give(buffer, "buffer", name)
        for number, leaf in enumerate(tree_leaves((args, kwargs))):
            if isinstance(leaf, Tensor) and not self.residence.has(leaf):
                self._give(leaf, "input", str(number))

    def _give(self, tensor: Tensor, kind: Kind, name: str) -> None:
        index = self.tape.add_given(tensor, kind, name, name.rpartition(".")[0])
        self._storages.setdefault(storage_id(tensor), index)
        self.residence.add(tensor)

    @_unseen
    def leave_model(self, result: Any) -> None:
        self.phase = "after"
        self.results = tuple(
            self.tape.index(leaf) for leaf in tree_leaves(result) if isinstance(leaf, Tensor)
        )

    # What the recorder shows and asks, for each op

    def judge(self, func: Any, args: Any, kwargs: Any, given: list[Tensor]) -> bool:
        """Refuses an op that an IPU cannot do, and says whether the IPU does it; the host does what has only tensors of its own."""
        if self.phase not in ("forward", "backward"):
            return False
        has_ipu = any(map(self.residence.has, given))
        stray = next(filter(self.residence.is_host, given), None)
        may_mix = func in _SAME or func._opname in _TAKE_HOST or self.num_trusted
        if has_ipu and stray is not None and not may_mix:
            raise self.refuse_host_tensor(str(func), stray)
        if (has_ipu or self.phase == "backward") and not self._has_fixed_size(func, args, kwargs):
            raise self.refuse_shape(str(func))
        return has_ipu or (self.makes_on_ipu and stray is None)

    def _has_fixed_size(self, func: Any, args: Any, kwargs: Any) -> bool:
        if func in _READ_SIZES:
            return not self.residence.has(args[_READ_SIZES[func]])
        if func is aten.bincount.default:
            return bool(kwargs.get("minlength") or (len(args) > 2 and args[2]))
        if func._opname in _OTHER_MEMORY:
            return False
        return func in _SIZED or guess_shape(func, args, kwargs) is None

    def is_readable(self, tensors: list[Tensor]) -> bool:
        """Whether the host may look at the values of these tensors."""
        if self.phase == "backward":
            return all(map(self.residence.is_host, tensors))
        return self.phase != "forward" or not any(map(self.residence.has, tensors))

    def note(
        self, func: Any, args: Any, kwargs: Any, given: list[Tensor], result: Any, is_device: bool
    ) -> None:
        """An op has run."""
        if self.phase == "backward":
            if func not in _SAME:
                self._note_kept(given)
            return
        if self.phase != "forward":
            return
        results = tensors_in((result,))
        if not given or func is aten.lift_fresh.default:
            for tensor in results:
                self._check_range(tensor)
        if func in _SAME:
            self.tape.alias(result, args[0])
            if is_device or (func is aten.lift_fresh.default and self.makes_on_ipu):
                self.residence.add(result)
            return
        number = len(self.tape.nodes)
        self.tape.add_node(str(func), args, kwargs, results)
        for tensor in results:
            self._storages.setdefault(storage_id(tensor), self.tape.index(tensor))
            (self.residence.add if is_device else self.residence.add_host)(tensor)
        self.tags.append(self.blocks.note_op(number))
        if not is_device:
            self.of_host.add(number)
        if self.num_trusted:
            self._own.add(number)

    def _note_kept(self, tensors: list[Tensor]) -> None:
        """Gradients read these: what of them is the forward pass's was kept for that."""
        for tensor in tensors:
            index = self._storages.get(storage_id(tensor))
            if index is not None and self.tape.values[index].kind in ("activation", "input"):
                self.kept.add(index)

    def _check_range(self, tensor: Tensor) -> None:
        """A constant of 64 bits is one of 32 on an IPU."""
        if tensor.dtype is not torch.int64 or not tensor.numel():
            return
        with _disable_current_modes():
            low, high = int(tensor.min()), int(tensor.max())
        if low < _INT32.min or high > _INT32.max:
            raise self.refuse_here(
                f"a constant of torch.int64 has the value {high if high > _INT32.max else low}: IPUs compute with 32-bit integers. Use "
                f"one from {_INT32.min} to {_INT32.max}"
            )

    @_unseen
    def index(self, tensor: Tensor) -> int:
        """The number of a tensor."""
        return self.tape.index(tensor)

    @_unseen
    def mark_loss(self, result: Any, name: str) -> None:
        """A tensor is a loss, from which gradients may start."""
        for tensor in tensors_in((result,)):
            self._losses.append(_losses.Loss(self.tape.index(tensor), tensor, name, self.tape.place()[0]))

    def note_once(self, message: str, *values: Any) -> None:
        """A line of the log, once for each line of the model."""
        place = str(self.tape.place()[0])
        if (place, message) not in self._noted:
            self._noted.add((place, message))
            logger.warning(message + " (%s)", *values, place)

    # What is asked of it

    def find_loss(self, result: Any) -> Tensor:
        """The tensor that gradients start from; it has one element, and need not be among the results."""
        self.check()
        loss = _losses.find_last(self._losses, self.tape.nodes, self.refuse)
        tensor = loss.tensor
        if tensor.numel() != 1:
            # PopART starts the gradients with one number, whatever the shape of the loss: gradgrowerloss.cpp.
            raise self.refuse(
                f"the loss ({loss}) has the shape {list(tensor.shape)}, and PopTorch starts the gradients from one number. Reduce it: "
                "poptorch.identity_loss(loss, reduction='mean') or 'sum'; where it is weighted or masked first, mark what comes of "
                "that the same way",
                loss.place,
            )
        if not tensor.requires_grad:
            raise self.refuse(
                f"the loss ({loss}) depends on no weight that is trained. Compute it from the model's output, not under "
                "torch.no_grad() nor from what was detached",
                loss.place,
            )
        returned = [self.index(t) for t in tree_leaves(result) if isinstance(t, Tensor) and t.numel() == 1]
        if _losses.is_continued(loss, returned, self.tape.nodes):
            logger.warning(
                "gradients start from %s; what the model computes from it afterwards has no part in them. Mark the last one: "
                "poptorch.identity_loss(loss, reduction='none')",
                loss,
            )
        self.phase = "backward"
        return tensor if tensor.ndim == 0 else tensor.sum()

    @property
    def placement(self) -> Placement:
        """The stage and IPU of each block, once the model has run."""
        self.check()
        assert self._placement is not None
        return self._placement

    @property
    def graph(self) -> Graph:
        """The forward pass as our own graph."""
        tape = self.tape
        return Graph(tuple(tape.nodes), tuple(tape.values), self._modules, (), 1, self.training)

    def place_here(self) -> Place | None:
        """The user's line of what is running; of a gradient's op, that of the forward op whose gradient it is a part of."""
        gradient = torch._C._current_autograd_node() if self.phase == "backward" else None
        if gradient is None:
            return self.tape.place()[0]
        forward = self.tape._forward_of(gradient)
        return self.tape.nodes[forward].place if isinstance(forward, int) else None

    def check(self) -> None:
        """Judges the forward pass as a whole; what the real one finds when it compiles."""
        if self.is_checked:
            return
        self.is_checked = True
        self._check_ops()
        nodes = self.tape.nodes
        self._placement = _placement.place(
            nodes,
            self.tags,
            self.blocks,
            self.options,
            trains=self.training,
            is_placed=lambda node: node.index not in self.of_host,
            refuse=self.refuse,
        )
        _placement.warn_unused_blocks(self.options, self.blocks)
        values = self.tape.values
        readers = (
            (values[value].name, tag, node.place)
            for node, tag in zip(nodes, self.tags, strict=True)
            for value in node.inputs
            if tag is not None and values[value].kind == "parameter" and values[value].name
        )
        _placement.check_shared_weights(readers, self.refuse)

    def close(self) -> None:
        """The trace is over: its tensors are let go."""
        self.tape._real.clear()
        self.tape._kept.clear()
        self._losses = []

    def _check_ops(self) -> None:
        unjudged = self._own | self.of_host
        graph = self.graph
        report = match(graph, _Judged(unjudged), "IPU")
        if not report.refused:
            return
        first, others = report.refused[0], report.refused[1:]
        lines = [
            f"{one.op} at {one.file}:{one.line}: {one.reason}. {one.cure}" for one in others[:_MOST_TOLD]
        ]
        if len(others) > _MOST_TOLD:
            lines.append(f"{len(others) - _MOST_TOLD} more")
        more = "".join(f"\n  also {line}" for line in lines)
        place = Place(first.file, first.line or 0) if first.file else None
        name = ".".join(first.op.split(".")[:2])
        said = f"{first.reason}. {first.cure}"
        raise self.refuse(said if name in first.reason else f"{first.op}: {said}", place, first.module, more)

    # Refusals

    def refuse(
        self, message: str, place: Place | None = None, module: str | None = None, more: str = ""
    ) -> poptorch_core.Error:
        """The error for what PopTorch does not take, with the user's line and module, and `more` behind them."""
        where = "" if place is None else f" [{place}"
        if where:
            where += f", in {self._kinds.get(module, '')} '{module}']" if module else "]"
        error: poptorch_core.Error = refuse(f"{message.rstrip('. ')}.{where}{more}")
        error.location = "" if place is None else str(place)
        return error

    def refuse_here(self, message: str) -> poptorch_core.Error:
        return self.refuse(message, self.place_here(), self.tape.module)

    def refuse_read(self, name: str, place: Place | None = None) -> poptorch_core.Error:
        return self.refuse(
            f"{name} reads a tensor of the graph on the host while the model is compiled: its values are not there until the "
            "program runs. Keep it a tensor (torch.where instead of if, a mask or poptorch.dynamic_slice instead of a slice), and return it "
            "to look at it",
            place or self.place_here(),
            self.tape.module,
        )

    def refuse_host_tensor(self, op: str, tensor: Tensor) -> poptorch_core.Error:
        with torch._C.DisableTorchFunction():
            kind = f"{str(tensor.dtype).removeprefix('torch.')} of shape {list(tensor.shape)}"
        return self.refuse_here(
            f"{op} is given tensors of the IPU and one of the host ({kind}), where an IPU tensor is expected. Register it as a buffer of "
            'the model, make it in forward() by torch.tensor(), or move it there: x.to("ipu")'
        )

    def refuse_shape(self, op: str) -> poptorch_core.Error:
        return self.refuse_here(
            f"{op}: the size of its result depends on the values of a tensor, and a program for IPUs has fixed shapes. Multiply or "
            "fill by a mask (torch.where, masked_fill) instead of selecting"
        )

    def refuse_backward(self, name: str) -> poptorch_core.Error:
        return self.refuse_here(
            f"{name} inside of the model: poptorch.trainingModel computes the gradients of the loss itself. Leave it out, and "
            "return the loss"
        )

    def refuse_device(self, name: str, device: Any) -> poptorch_core.Error:
        return self.refuse_here(
            f"{name} moves a tensor to {str(device)!r} inside of the model, where all tensors are on the IPU. Leave the device out"
        )


class _Judged:
    """The table of the target, asked about the nodes that are the model's own."""

    def __init__(self, unjudged: set[int]) -> None:
        self._unjudged, self._table = unjudged, table_of("poptorch")
        self.label, self.rows, self.casts = self._table.label, self._table.rows, self._table.casts

    def judge(self, graph: Graph, node: Node) -> Any:
        return Verdict("native") if node.index in self._unjudged else self._table.judge(graph, node)
