"""The function that replays a program: one line an op, each value dropped at its last use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from torch import Tensor

from portwright.emulate.poptorch._program_graph import Given, Op, Ref, Value, refs_in

Forward = Callable[..., list[Tensor]]
Observe = Callable[[Any], None]
FILE = "<frozen program>"
"""What a traceback calls the function's text."""
FIRST_LINE = 2
"""The line of that text with the first op; each op has one."""


def build(
    ops: Sequence[Op],
    given: Sequence[Given],
    results: Sequence[Ref],
    replace_target: Callable[[Any], Any],
    observe: Observe | None = None,
    shown: Collection[int] = (),
) -> Forward:
    """The function that takes the given tensors in order and gives the results.

    Its text is made of numbers alone; what they stand for, ops and arguments, is handed over as objects. So nothing of a
    program, which may come from a file, is ever read as code. `observe` is called with what the ops
    of these numbers, `shown`, give.
    """
    return _Writer(ops, given, results).compile(replace_target, observe, shown)


def _shown(function: Callable[..., Any], observe: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        observe(result)
        return result

    return call


class _Writer:
    def __init__(self, ops: Sequence[Op], given: Sequence[Given], results: Sequence[Ref]) -> None:
        self._ops, self._given, self._results = ops, given, results
        self._names: dict[Ref, str] = {ref: f"g{number}" for number, ref in enumerate(given)}
        self._objects: dict[str, Any] = {}
        self._last: dict[Ref, int] = {}  # the op that uses a value last
        self._items: dict[int, list[Value]] = defaultdict(list)  # of an op that gives several: those in use
        for number, op in enumerate([*ops, None]):
            for ref in refs_in(results if op is None else (op.args, op.kwargs)):
                if ref not in self._last and isinstance(ref, Value) and ref.path:
                    self._items[ref.op].append(ref)
                self._last[ref] = number

    def compile(
        self, replace_target: Callable[[Any], Any], observe: Observe | None, shown: Collection[int]
    ) -> Forward:
        dead: dict[int, list[Ref]] = defaultdict(list)
        for ref, number in self._last.items():
            dead[number].append(ref)
        functions: dict[Any, str] = {}
        text = [f"def forward({', '.join(self._names.values())}):"]
        for number, op in enumerate(self._ops):
            is_seen = number in shown
            if (op.target, is_seen) not in functions:
                function = replace_target(op.target)
                functions[op.target, is_seen] = self._keep(_shown(function, observe) if is_seen else function)
            line = self._write(number, op, functions[op.target, is_seen])
            if dead[number]:
                line.append(f"del {', '.join(self._names[ref] for ref in dead[number])}")
            text.append(f" {'; '.join(line)}")
        text.append(f" return [{', '.join(self._names[ref] for ref in self._results)}]")
        space = dict(self._objects)
        exec(compile("\n".join(text), FILE, "exec"), space)
        forward: Forward = space["forward"]
        return forward

    def _write(self, number: int, op: Op, function: str) -> list[str]:
        arguments = [self._express(argument) for argument in op.args]
        if op.kwargs:
            named = ", ".join(
                f"{self._keep(key)}: {self._express(value)}" for key, value in op.kwargs.items()
            )
            arguments.append(f"**{{{named}}}")
        call = f"{function}({', '.join(arguments)})"
        whole = Value(number)
        if whole in self._last:
            self._names[whole] = f"v{number}"
            return [f"v{number} = {call}"]
        if number not in self._items:
            return [call]
        lines = [f"v{number} = {call}"]
        for place, item in enumerate(self._items[number]):
            self._names[item] = f"v{number}_{place}"
            lines.append(f"v{number}_{place} = v{number}{''.join(f'[{int(step)}]' for step in item.path)}")
        return [*lines, f"del v{number}"]

    def _express(self, argument: Any) -> str:
        if isinstance(argument, Given | Value):
            return self._names[argument]
        if isinstance(argument, list | tuple) and any(True for _ in refs_in(argument)):
            return f"[{', '.join(map(self._express, argument))}]"
        if isinstance(argument, Mapping):
            raise TypeError(f"no op of torch takes {argument!r}")
        return self._keep(argument)

    def _keep(self, thing: Any) -> str:
        name = f"k{len(self._objects)}"
        self._objects[name] = thing
        return name
