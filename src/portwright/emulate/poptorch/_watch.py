"""What is seen of one trace of a model, and what PopTorch says to it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from portwright.emulate.poptorch import _impl, _losses, _placement, poptorch_core
from portwright.emulate.poptorch._logging import logger
from portwright.emulate.poptorch._overlaps import Overlaps
from portwright.emulate.poptorch._placement import Placement, Tag
from portwright.emulate.poptorch._recording import Residence
from portwright.graph.capturing.places import PlaceFinder
from portwright.graph.capturing.tape import Tape, storage_id
from portwright.graph.capturing.trace import tensors_in
from portwright.graph.graph import Graph, Kind, Module, Node, Place
from portwright.graph.kernels import Verdict
from portwright.graph.match import Refusal, match
from portwright.targets.ipu.kernels import table

_MOST_TOLD = 5  # refused ops in one message
_Method = TypeVar("_Method", bound=Callable[..., Any])


def _unseen(method: _Method) -> _Method:
    """What we ask of tensors ourselves is not a function that the model calls."""

    @functools.wraps(method)
    def ask(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return method(*args, **kwargs)

    return ask  # type: ignore[return-value]


class Watch:
    """What was seen of one trace."""

    def __init__(self, options: Any, *, training: bool) -> None:
        self.options, self.training = options, training
        self.phase: Literal["before", "forward", "after", "backward"] = "before"  # of the model's call
        self.is_paused = False
        self.num_trusted = 0
        self.makes_on_ipu = False
        self.anchors: dict[str, Tensor] = {}
        self.checkpoints: set[int] = set()  # values that recomputation keeps
        self.overlaps = Overlaps()
        self.multi_conv: int | None = None  # the first node of the poptorch.MultiConv that is open
        self.scopes: list[str] = []
        self.results: tuple[int, ...] = ()  # values that the outermost module returned
        self.residence = Residence()
        self.blocks = _placement.make_blocks(options)
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
        self._is_checked = False
        self.kept: set[int] = set()  # values of the forward pass that gradients read
        self._storages: dict[int, int] = {}  # of a tensor: the value that it was made as

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

    @_unseen
    def add_node(self, op: str, args: Any, kwargs: Any, results: list[Tensor], is_device: bool) -> None:
        number = len(self.tape.nodes)
        self.tape.add_node(op, args, kwargs, results)
        for tensor in results:
            self._storages.setdefault(storage_id(tensor), self.tape.index(tensor))
        self.tags.append(self.blocks.note_op(number))
        if not is_device:
            self.of_host.add(number)
        if self.num_trusted or op.startswith("poptorch."):
            self._own.add(number)

    @_unseen
    def note_kept(self, tensors: list[Tensor]) -> None:
        """Gradients read these: what of them is the forward pass's was kept for that."""
        for tensor in tensors:
            index = self._storages.get(storage_id(tensor))
            if index is not None and self.tape.values[index].kind in ("activation", "input"):
                self.kept.add(index)

    @_unseen
    def alias(self, result: Tensor, of: Tensor) -> None:
        """Another handle of the same tensor."""
        self.tape.alias(result, of)

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

    def find_tag(self) -> Tag | None:
        if self.phase != "backward":
            return self.blocks.tag
        forward = self.tape._forward_of(torch._C._current_autograd_node(), ())
        if isinstance(forward, int) and forward < len(self.tags):
            return self.tags[forward]
        return self.blocks.entered[-1] if self.blocks.entered else Tag()

    def check(self) -> None:
        """Judges the forward pass as a whole; what the real one finds when it compiles."""
        if self._is_checked:
            return
        self._is_checked = True
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
        self.overlaps.check(
            values, nodes, self.results, self.blocks.mode, self.options, self.training, self.refuse
        )
        readers = (
            (values[value].name, tag, node.place)
            for node, tag in zip(nodes, self.tags, strict=True)
            for value in node.inputs
            if tag is not None and values[value].kind == "parameter" and values[value].name
        )
        _placement.check_shared_weights(readers, self.blocks.mode, self.refuse)

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
        error = self.refuse(_told(first), place, first.module)
        raise _with_more(error, more) if more else error

    # Refusals

    def refuse(
        self, message: str, place: Place | None = None, module: str | None = None
    ) -> poptorch_core.Error:
        """The error for what PopTorch does not take, with the user's line and module."""
        where = "" if place is None else f" [{place}"
        if where:
            where += f", in {self._kinds.get(module, '')} '{module}']" if module else "]"
        error: poptorch_core.Error = _impl.createPoptorchError(f"{message.rstrip('. ')}.{where}")
        error.location = "" if place is None else str(place)
        return error

    def refuse_here(self, message: str) -> poptorch_core.Error:
        return self.refuse(message, self.tape.place()[0], self.tape.module)

    def refuse_read(self, name: str, place: Place | None = None) -> poptorch_core.Error:
        return self.refuse(
            f"{name} reads a tensor of the graph on the host while the model is compiled: its values are not there until the "
            "program runs. Keep it a tensor (torch.where instead of if, a mask or poptorch.dynamic_slice instead of a slice), and return it "
            "to look at it",
            place or self.tape.place()[0],
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


def _told(one: Refusal) -> str:
    name = ".".join(one.op.split(".")[:2])
    return f"{one.reason}. {one.cure}" if name in one.reason else f"{one.op}: {one.reason}. {one.cure}"


class _Judged:
    """The table of the target, asked about the nodes that are the model's own."""

    def __init__(self, unjudged: set[int]) -> None:
        self._unjudged, self._table = unjudged, table()
        self.label, self.rows, self.casts = self._table.label, self._table.rows, self._table.casts

    def judge(self, graph: Graph, node: Node) -> Any:
        return Verdict("native") if node.index in self._unjudged else self._table.judge(graph, node)


def _with_more(error: poptorch_core.Error, more: str) -> poptorch_core.Error:
    longer: poptorch_core.Error = _impl.createPoptorchError(error.message + more)
    longer.location = error.location
    return longer
