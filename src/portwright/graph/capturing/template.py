"""The ops of one module call, forward and backward, to be written again for a call that is equal to it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from portwright.graph.capturing.tape import Tape
from portwright.graph.graph import Node, Ref, Value

Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


def layout_of(tensor: Tensor) -> Layout:
    return tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype


def make_like(layout: Layout) -> Tensor:
    shape, stride, dtype = layout
    return torch.empty_strided(shape, stride, dtype=dtype)


class NotEqualError(Exception):
    """A call cannot be written again; the message says why."""


@dataclass(frozen=True)
class Pulled:
    """The backward pass for a gradient of one layout."""

    nodes: tuple[Node, ...]
    values: tuple[Value, ...]  # those that it makes
    grads: tuple[tuple[int, Layout] | None, ...]  # one a given tensor: its value in the template


class Template:
    """What a module call did on given tensors: its arguments first, then its weights and buffers.

    Values of the template are numbered: given ones, those of the forward pass, the gradient of the result, those of the
    backward pass. The autograd graph is kept, since the layout of a gradient is known only when it comes.
    """

    def __init__(self, tape: Tape, path: str, given: Sequence[Tensor], run: Callable[[], Tensor]) -> None:
        self.path, self.given = path, tuple(given)
        self.made: list[weakref.ref[Tensor]] = []
        with tape.aside():
            tape.made = self.made
            for number, tensor in enumerate(given):
                tape.add_given(tensor, "input", str(number))
            self._result = run()
            self.result = tape.index(self._result)
            self.nodes, self.values = tuple(tape.nodes), tuple(tape.values)
            _check(self, bool(tape.stops))
            self._state = tape.keep()
            self._state["made"] = None
        self.layout = layout_of(self._result)
        self._pulled: dict[Layout, Pulled] = {}

    @property
    def num_given(self) -> int:
        return len(self.given)

    def pull(self, tape: Tape, layout: Layout) -> Pulled:
        """The backward pass for a gradient of this layout; recorded once. Frames outside of it are not part of the step."""
        if layout not in self._pulled:
            wanted = [t for t in self.given if t.requires_grad]
            with tape.aside(self._state):
                for number, tensor in enumerate(self.given):
                    tape.bind(tensor, number)
                with tape.paused():
                    grad = make_like(layout)
                tape.phase, tape.call = "backward", ""
                tape.modules = []  # whatever is running now, the engine is not inside of it
                tape.add_given(grad, "input", "gradient")
                first_node, first_value = len(tape.nodes), len(tape.values)
                found = iter(
                    torch.autograd.Variable._execution_engine.run_backward(
                        (self._result,), (grad,), True, False, tuple(wanted), allow_unreachable=True, accumulate_grad=False
                    )
                )  # fmt: skip
                made = [next(found) if tensor.requires_grad else None for tensor in self.given]
                grads = tuple(None if g is None else (tape.index(g), layout_of(g)) for g in made)
                values = tuple(tape.values[first_value:])
                if any(value.kind != "activation" for value in values):
                    raise NotEqualError("its backward pass reads a tensor from outside")
                self._pulled[layout] = Pulled(tuple(tape.nodes[first_node:]), values, grads)
        return self._pulled[layout]


class Copy:
    """One more call like a template's."""

    def __init__(self, template: Template, tape: Tape, path: str, given: Sequence[int]) -> None:
        self._template, self._tape, self._path, self._given = template, tape, path, tuple(given)

    def write_forward(self) -> Tensor:
        template, tape = self._template, self._tape
        self._first_node, self._first_value = len(tape.nodes), len(tape.values)
        place = _Renumber(self._given, template.num_given, self._first_value)
        tape.note_autograd(self._first_node)
        self._write(template.nodes, template.values[template.num_given :], place, 0, self._first_node)
        for node in tape.nodes[self._first_node :]:
            for value in node.inputs:
                if tape.values[value].kind == "parameter":
                    tape.note_read(value, node.index)
        with tape.paused():
            result = make_like(template.layout)
        tape.bind(result, place(template.result))
        return result

    def write_backward(self, grad: Tensor) -> list[Tensor | None]:
        template, tape = self._template, self._tape
        pulled = template.pull(tape, layout_of(grad))
        num_forward = len(template.values) - template.num_given
        known = (*self._given, *range(self._first_value, self._first_value + num_forward), tape.index(grad))
        place = _Renumber(known, len(known), len(tape.values))
        self._write(pulled.nodes, pulled.values, place, len(template.nodes), len(tape.nodes))
        grads: list[Tensor | None] = []
        made: dict[int, Tensor] = {len(template.values): grad}
        for found in pulled.grads:
            if found is not None and found[0] not in made:
                with tape.paused():
                    made[found[0]] = make_like(found[1])
                tape.bind(made[found[0]], place(found[0]))
            grads.append(None if found is None else made[found[0]])
        return grads

    def _write(
        self, nodes: Sequence[Node], values: Sequence[Value], place: _Renumber, first_old: int, first_new: int
    ) -> None:
        template, tape = self._template, self._tape
        for value in values:
            base = place(value.base)
            # What is given may itself be a view.
            tape.add_copy(value, tape.values[base].base if base < len(tape.values) else base)
        for node in nodes:
            index = len(tape.nodes)
            forward = node.forward
            if forward >= 0:
                forward += self._first_node if forward < len(template.nodes) else first_new - first_old
            outputs = tuple([place(v) for v in node.outputs])
            for output in outputs:
                tape.makers[output] = index
            tape.nodes.append(
                Node(
                    index,
                    node.op,
                    node.phase,
                    place.all(node.args),
                    {name: place.all(arg) for name, arg in node.kwargs.items()},
                    tuple([place(v) for v in node.inputs]),
                    outputs,
                    self._path + node.module[len(template.path) :],
                    node.place,
                    node.call,
                    forward,
                )
            )


class _Renumber:
    """Numbers of a template's values in the tape: those known, then those made one after the other."""

    def __init__(self, known: Sequence[int], num_known: int, first_made: int) -> None:
        self._known, self._num_known, self._shift = known, num_known, first_made - num_known

    def __call__(self, value: int) -> int:
        return self._known[value] if value < self._num_known else value + self._shift

    def all(self, arg: Any) -> Any:
        kind = type(arg)
        if kind is Ref:
            return Ref(self(arg.value))
        if kind is tuple:
            return tuple([self.all(part) for part in arg])
        if kind is dict:
            return {name: self.all(part) for name, part in arg.items()}
        return arg


def _check(template: Template, has_stops: bool) -> None:
    """Refuses what a copy of the ops would not be: reads from outside, changes of what is given, results that are views."""
    num_given = template.num_given
    if has_stops:
        raise NotEqualError("it has a stop")
    if any(value.kind != "activation" for value in template.values[num_given:]):
        raise NotEqualError("it reads a tensor from outside")
    if template.result < num_given or template.values[template.result].base < num_given:
        raise NotEqualError("its result is a view of what it was given")
    for node in template.nodes:
        if not node.module.startswith(template.path):
            raise NotEqualError("it runs a module from outside")
        _, name, overload = node.op.split(".", 2)
        changes = (name.endswith("_") and not name.endswith("__")) or overload.endswith("out")
        if changes and any(template.values[value].base < num_given for value in node.outputs):
            raise NotEqualError("it changes what it was given")
