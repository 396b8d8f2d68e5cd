"""What a trace has recorded so far: values, nodes and stops, and the place where the step is."""

from __future__ import annotations

import bisect
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from portwright.graph.graph import Kind, Node, Phase, Ref, Stop, Value
from portwright.watching.place import Place
from portwright.watching.places import PlaceFinder

_MARK = "_portwright_value"


@cache
def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Tape:
    """Numbers tensors and op calls in the order in which they are seen."""

    def __init__(self, finder: PlaceFinder, boundaries: tuple[CodeType, ...]) -> None:
        self.values: list[Value] = []
        self.nodes: list[Node] = []
        self.stops: list[Stop] = []
        self.phase: Phase = "forward"
        self.call = ""  # the torch function that is running, of those that the user's code called
        self.modules: list[
            tuple[str, str | None]
        ] = []  # that are running: path, and the library's class if it is one
        self.makers: dict[int, int] = {}  # value -> node
        self.has_guessed = False
        self.failed_op = ""  # the op that an exception came from
        self.failed_module: str | None = None  # innermost module that an exception has left
        self._finder, self._boundaries = finder, boundaries
        self._key = object()  # tells this trace's marks from another's
        self._gradients: list[tuple[Tensor, Tensor | None]] = []
        self._real: dict[int, tuple[Tensor, int]] = {}
        self._storages: dict[int, int] = {}  # of given values
        self._kept: list[Tensor] = []  # keeps the owners of these storages, so that no address is used again
        self._sequence: list[int] = []  # sequence numbers of autograd's nodes, rising
        self._sequence_nodes: list[int] = []
        self._readers: dict[int, int] = {}  # parameter value -> first forward node that reads it
        self._owners: dict[int, str] = {}  # parameter value -> module path

    def add_given(self, tensor: Tensor, kind: Kind, name: str, owner: str = "") -> int:
        """A tensor that was there before the step."""
        base = self._storages.get(storage_id(tensor), -1)
        index = self._add(tensor, kind, name, base, tensor.requires_grad)
        self._storages.setdefault(storage_id(tensor), index)
        self._kept.append(tensor)
        self._owners[index] = owner
        return index

    def index(self, tensor: Tensor) -> int:
        """The number of a tensor that an op reads."""
        mark = getattr(tensor, _MARK, None)
        if mark is not None and mark[0] is self._key:
            return int(mark[1])
        known = self._real.get(id(tensor))
        if known is not None:
            return known[1]
        if tensor.requires_grad and tensor.is_leaf and not isinstance(tensor, FakeTensor):
            self._gradients.append((tensor, tensor.grad))
        is_weight = isinstance(tensor, nn.Parameter) or (tensor.requires_grad and tensor.is_leaf)
        return self.add_given(tensor, "parameter" if is_weight else "constant", "")

    def give_back_gradients(self) -> None:
        """Restores the gradients of real weights that the step reached outside of its model."""
        for tensor, gradient in self._gradients:
            tensor.grad = gradient

    def alias(self, tensor: Tensor, of: Tensor) -> None:
        """Notes another object of the same tensor, as autograd makes by detach."""
        self._bind(tensor, self.index(of))

    def add_node(
        self,
        op: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        results: Iterable[Tensor],
        grad_node: Any = None,
    ) -> None:
        """Records a call and gives its results their numbers."""
        inputs: dict[int, Tensor] = {}
        plain_args = tuple([self._plain(a, inputs) for a in args])
        plain_kwargs = {k: self._plain(v, inputs) for k, v in kwargs.items()} if kwargs else {}
        index = len(self.nodes)
        storages = {storage_id(t): i for i, t in inputs.items()} if inputs else {}
        needs_grad = (
            self.phase == "forward"
            and torch.is_grad_enabled()
            and any(t.requires_grad for t in inputs.values())
        )
        outputs = []
        for tensor in results:
            base = storages.get(storage_id(tensor), -1)
            if base >= 0:
                base = self.values[base].base
            needs = needs_grad and (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
            number = self._add(tensor, "activation", "", base, needs)
            self.makers[number] = index
            outputs.append(number)
        module, place, call, forward = self._where(index, grad_node)
        if self.phase == "forward":
            for number in inputs:
                if self.values[number].kind == "parameter":
                    self._readers.setdefault(number, index)
        self.nodes.append(
            Node(index, op, self.phase, plain_args, plain_kwargs, tuple(inputs), tuple(outputs), module, place, call, forward)
        )  # fmt: skip

    def add_guess(self, kind: Any, op: str, message: str) -> None:
        """Records a stop after which the trace goes on with a guess."""
        self.has_guessed = True
        self.add_stop(kind, op, message)

    def add_stop(self, kind: Any, op: str, message: str) -> None:
        """Records a stop once for each place."""
        place, _ = self.place()
        stop = Stop(kind, op, self.module, place, message)
        if not any((s.kind, s.op, s.place) == (kind, op, place) for s in self.stops):
            self.stops.append(stop)

    def end_early(self, stop: Stop | None = None) -> None:
        """Marks the last stop as the one where the trace ended."""
        if stop is not None:
            self.stops.append(stop)
        self.stops[-1] = replace(self.stops[-1], is_last=True)

    def place(self) -> tuple[Place | None, bool]:
        return self._finder.find(sys._getframe(1), self._boundaries)

    @property
    def module(self) -> str:
        return self.modules[-1][0] if self.modules else ""

    @property
    def called(self) -> str:
        """What the user's line called: the outermost module of a library, else a torch function."""
        name = ""
        for _, library_name in reversed(self.modules):
            if library_name == "":
                break
            name = library_name or name
        return name or self.call

    def _where(self, index: int, grad_node: Any) -> tuple[str, Place | None, str, int]:
        place, is_users = self.place()
        self._note_sequence(index)
        if self.phase == "forward":
            return self.module, place, self.called, -1
        forward = self._forward_of(grad_node)
        if forward is None:
            return self.module, place if is_users else None, self.called, -1
        if isinstance(forward, str):  # the gradient of a weight that no recorded op reads
            return forward, place, "", -1
        node = self.nodes[forward]
        module = self.module if self.modules else node.module
        return module, place if is_users else node.place, self.called if is_users else node.call, forward

    def _note_sequence(self, index: int) -> None:
        # Autograd numbers its nodes as it makes them, before the op runs: the first op seen with a number made that node.
        number = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
        if not self._sequence or number > self._sequence[-1]:
            self._sequence.append(number)
            self._sequence_nodes.append(index)

    def _forward_of(self, grad_node: Any) -> int | str | None:
        if grad_node is None:
            return self._sequence_nodes[-1] if self._sequence_nodes else None
        variable = getattr(grad_node, "variable", None)
        if variable is not None:
            value = self.index(variable)
            return self._readers.get(value, self._owners.get(value, ""))
        # A node that autograd made behind the op, such as CopySlices, belongs to the op before it.
        position = bisect.bisect_right(self._sequence, grad_node._sequence_nr()) - 1
        return self._sequence_nodes[position] if position >= 0 else None

    def _add(self, tensor: Tensor, kind: Kind, name: str, base: int, requires_grad: bool) -> int:
        index = len(self.values)
        self.values.append(
            Value(index, tuple(tensor.shape), dtype_name(tensor.dtype), kind, name, base if base >= 0 else index, requires_grad)
        )  # fmt: skip
        self._bind(tensor, index)
        return index

    def _bind(self, tensor: Tensor, index: int) -> None:
        if type(tensor) is Tensor or type(tensor) is nn.Parameter:
            self._real[id(tensor)] = tensor, index  # a user's real tensor gets no attribute from us
        else:
            setattr(tensor, _MARK, (self._key, index))

    def _plain(self, value: Any, inputs: dict[int, Tensor]) -> Any:
        if isinstance(value, Tensor):
            index = self.index(value)
            inputs.setdefault(index, value)
            return Ref(index)
        if value is None or isinstance(value, int | float | str | complex):
            return value
        if isinstance(value, list | tuple):
            return tuple([self._plain(v, inputs) for v in value])
        if isinstance(value, torch.dtype):
            return dtype_name(value)
        if isinstance(value, Mapping):
            return {k: self._plain(v, inputs) for k, v in value.items()}
        return str(value).removeprefix("torch.")


def storage_id(tensor: Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except NotImplementedError:  # sparse: no two share one
        return id(tensor)
