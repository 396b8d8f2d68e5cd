"""Tells whether a module adds the tutorial's sinusoids, by working out a small table from its text with numpy.

Nothing of the file is run: only the arithmetic below is understood, and anything else ends the reading.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from portwright.port.rewrite import argument
from portwright.port.rule import File
from portwright.port.tree import FUNCTIONS, ClassInfo

_MAX_STEPS = 200_000
_MAX_ELEMENTS = 1_000_000


class _UnknownError(Exception):
    """Something that is not understood."""


@dataclass(frozen=True)
class Sinusoids:
    """A module that adds sinusoids to a batch-first input: its arguments for the width, the length and the dropout.

    `length` is a number where it is fixed. `scale` says that the input is multiplied by the root of the width first.
    """

    width: str
    length: str | int
    dropout: str | float | None
    scaled: bool


def read_sinusoids(file: File, info: ClassInfo, *, sequence_first: bool = False) -> Sinusoids | str:
    """What a module adds to batches that come first (or second), or why that is not understood."""
    made, forward = info.methods.get("__init__"), info.methods.get("forward")
    if not isinstance(made, FUNCTIONS) or not isinstance(forward, FUNCTIONS):
        return "it has no __init__ or no forward"
    if len(forward.args.args) != 2 or forward.args.vararg or forward.args.kwarg or forward.args.kwonlyargs:
        return "its forward takes more than the embeddings"
    others = set(info.methods) - {"__init__", "forward"}
    if others:
        return f"it has a method {sorted(others)[0]}"
    dropouts = [
        v
        for values in info.attributes.values()
        for v in values
        if isinstance(v, ast.Call) and file.resolve(v.func) == "torch.nn.Dropout"
    ]
    rate = argument(dropouts[0], 0, "p") if len(dropouts) == 1 else None
    names = [a.arg for a in made.args.args[1:]]
    for width, length in permutations([*names, ""], 2):
        if not width or (rate is not None and isinstance(rate, ast.Name) and rate.id in (width, length)):
            continue
        try:
            import numpy as np

            with np.errstate(all="ignore"):
                found = _probe(file, info, made, forward, width, length, sequence_first)
        except (_UnknownError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError):
            continue
        if found is None:
            continue
        scaled, drops, fixed_length = found
        dropout = _rate(rate, names) if drops else None
        if drops and dropout is None:
            return "the rate of its dropout is not an argument"
        return Sinusoids(width, length or fixed_length, dropout, scaled)
    return "its table is not the tutorial's sinusoids for batches that come first"


def _rate(rate: ast.expr | None, names: list[str]) -> str | float | None:
    if rate is None:
        return 0.5  # torch's default
    if isinstance(rate, ast.Name) and rate.id in names:
        return rate.id
    value = rate.value if isinstance(rate, ast.Constant) else None
    return float(value) if isinstance(value, (int, float)) else None


def _probe(
    file: File,
    info: ClassInfo,
    made: Any,
    forward: Any,
    width: str,
    length: str,
    sequence_first: bool,
) -> tuple[bool, bool, int] | None:
    """Whether the input is scaled and dropped out, and the table's length; None if the result is another one."""
    import numpy as np

    answers: set[tuple[bool, bool, int]] = set()
    for num_columns, num_rows in ((6, 9), (8, 7)):
        given: dict[str, Any] = {width: num_columns}
        if length:
            given[length] = num_rows
        reader = _Reader(file, info, np)
        reader.make(made, given)
        rows = max((v.shape[-2] if v.shape[-2] != 1 else v.shape[0]) for v in reader.tensors())
        if length and rows != num_rows:
            return None
        wanted = _table(np, 5, num_columns)
        inputs = np.linspace(-1.0, 1.0, 2 * 5 * num_columns).reshape(2, 5, num_columns)
        if sequence_first:
            inputs, wanted = inputs.swapaxes(0, 1).copy(), wanted[:, None]
        plain, doubled = reader.forward(forward, inputs, 1.0), reader.forward(forward, inputs, 2.0)
        drops = not np.allclose(plain, doubled)
        if drops and not np.allclose(2 * plain, doubled):
            return None
        scale = math.sqrt(num_columns)
        if plain.shape == inputs.shape and np.allclose(plain, inputs + wanted, atol=1e-7):
            answers.add((False, drops, 0 if length else rows))
        elif plain.shape == inputs.shape and np.allclose(plain, inputs * scale + wanted, atol=1e-7):
            answers.add((True, drops, 0 if length else rows))
        else:
            return None
    return answers.pop() if len(answers) == 1 else None


def _table(np: Any, num_rows: int, num_columns: int) -> Any:
    frequencies = np.exp(np.arange(0, num_columns, 2) * (-math.log(10000.0) / num_columns))
    table = np.zeros((num_rows, num_columns))
    angles = np.arange(num_rows)[:, None] * frequencies
    table[:, 0::2], table[:, 1::2] = np.sin(angles), np.cos(angles)
    return table


class _Reader:
    """Works out the statements of one small class."""

    def __init__(self, file: File, info: ClassInfo, np: Any) -> None:
        self.file, self.info, self.np = file, info, np
        self.own: dict[str, Any] = {}
        self.names: dict[str, Any] = {}
        self.factor = 1.0
        self.steps = 0

    def tensors(self) -> list[Any]:
        return [v for v in self.own.values() if isinstance(v, self.np.ndarray) and v.ndim > 1]

    def make(self, made: ast.FunctionDef, given: Mapping[str, Any]) -> None:
        arguments = made.args.args[1:]
        defaults = dict(zip([a.arg for a in arguments][::-1], made.args.defaults[::-1], strict=False))
        self.names = {n: self._value(d) for n, d in defaults.items() if isinstance(d, ast.Constant)}
        for a in arguments:
            self.names.setdefault(a.arg, 0.0)
        self.names.update(given)
        self._run(made.body)

    def forward(self, method: ast.FunctionDef, inputs: Any, factor: float) -> Any:
        self.factor = factor
        self.names = {method.args.args[1].arg: inputs.copy()}
        result = self._run(method.body)
        if not isinstance(result, self.np.ndarray):
            raise _UnknownError
        return result

    def _run(self, body: list[ast.stmt]) -> Any:
        for node in body:
            self.steps += 1
            if self.steps > _MAX_STEPS:
                raise _UnknownError
            if isinstance(node, ast.Return):
                return self._value(node.value)
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                self._store(node.targets[0], node.value)
            elif isinstance(node, ast.AugAssign):
                combined = ast.BinOp(_loaded(node.target), node.op, node.value)
                self._set(node.target, self._value(combined))
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self._store(node.target, node.value)
            elif isinstance(node, ast.Expr):
                self._expression(node.value)
            elif isinstance(node, ast.For) and not node.orelse:
                for item in self._value(node.iter):
                    self._set(node.target, item)
                    self._run(node.body)
            elif not isinstance(node, (ast.Pass, ast.Assert)):
                raise _UnknownError
        return None

    def _expression(self, node: ast.expr) -> None:
        if isinstance(node, ast.Constant):
            return
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            raise _UnknownError
        name = node.func.attr
        if name == "__init__":
            return
        if name == "register_buffer" and isinstance(node.args[0], ast.Constant):
            self.own[str(node.args[0].value)] = self._value(node.args[1])
            return
        self._value(node)

    def _store(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Attribute) and isinstance(value, ast.Call):
            dotted = self.file.resolve(value.func)
            if dotted == "torch.nn.Dropout":
                self.own[target.attr] = lambda x: x * self.factor
                return
        if isinstance(target, ast.Attribute) and not _is_self(target.value):
            return  # pe.requires_grad = False
        self._set(target, self._value(value))

    def _set(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, ast.Attribute) and _is_self(target.value):
            self.own[target.attr] = value
        elif isinstance(target, ast.Subscript):
            self._value(target.value)[self._index(target.slice)] = value
        else:
            raise _UnknownError

    def _index(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Tuple):
            return tuple(self._index(e) for e in node.elts)
        if isinstance(node, ast.Slice):
            parts = (None if p is None else self._value(p) for p in (node.lower, node.upper, node.step))
            return slice(*parts)
        return self._value(node)

    def _value(self, node: ast.AST | None) -> Any:
        self.steps += 1
        if self.steps > _MAX_STEPS:
            raise _UnknownError
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self.names[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            return self._operate(_OPERATIONS[type(node.op)], self._value(node.left), self._value(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._value(node.operand)
        if isinstance(node, ast.Subscript):
            return self._value(node.value)[self._index(node.slice)]
        if isinstance(node, (ast.Tuple, ast.List)):
            return [self._value(e) for e in node.elts]
        if isinstance(node, ast.Attribute):
            if _is_self(node.value):
                return self.own[node.attr]
            dotted = self.file.resolve(node) or ""
            if dotted.startswith("torch."):
                return dotted  # a dtype
            value = self._value(node.value)
            if node.attr == "shape":
                return value.shape
            if node.attr in ("device", "dtype", "data"):
                return value if node.attr == "data" else None
            raise _UnknownError
        if isinstance(node, ast.Call):
            return self._call(node)
        raise _UnknownError

    def _operate(self, operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
        numbers = (int, float, self.np.number, self.np.ndarray)
        if not isinstance(left, numbers) or not isinstance(right, numbers):
            raise _UnknownError
        return self._small(operation(left, right))

    def _small(self, value: Any) -> Any:
        if isinstance(value, self.np.ndarray) and value.size > _MAX_ELEMENTS:
            raise _UnknownError
        return value

    def _call(self, node: ast.Call) -> Any:
        np, func = self.np, node.func
        if isinstance(func, ast.Name) and func.id in _BUILTINS:
            return _BUILTINS[func.id](*(self._value(a) for a in node.args))
        dotted = self.file.resolve(func) or ""
        head, _, last = dotted.rpartition(".")
        if dotted in ("torch.autograd.Variable", "torch.nn.Parameter"):
            if dotted.endswith("Parameter"):
                raise _UnknownError  # it is trained
            return self._value(node.args[0])
        if head in ("torch", "math", "numpy") and last in _FUNCTIONS:
            arguments = [self._value(a) for a in node.args]
            if last == "arange" and any(isinstance(a, str) for a in arguments):
                raise _UnknownError
            if last == "arange" and max(abs(a) for a in arguments) > _MAX_ELEMENTS:
                raise _UnknownError
            if last in ("zeros", "ones", "empty"):
                shape = arguments[0] if isinstance(arguments[0], list) else arguments
                if math.prod(int(s) for s in shape) > _MAX_ELEMENTS:
                    raise _UnknownError
                return np.full(tuple(int(s) for s in shape), 1.0 if last == "ones" else 0.0)
            if last == "tensor":
                return np.array(arguments[0], dtype=float)
            return self._small(getattr(np, _FUNCTIONS[last])(*arguments))
        if not isinstance(func, ast.Attribute):
            raise _UnknownError
        if _is_self(func.value):
            module = self.own[func.attr]
            if not callable(module) or len(node.args) != 1:
                raise _UnknownError
            return module(self._value(node.args[0]))
        if dotted:
            raise _UnknownError
        return self._method(func.attr, self._value(func.value), [self._value(a) for a in node.args])

    def _method(self, name: str, x: Any, arguments: list[Any]) -> Any:
        np = self.np
        if name in (
            "float",
            "double",
            "to",
            "detach",
            "requires_grad_",
            "clone",
            "contiguous",
            "type_as",
            "cuda",
            "cpu",
        ):
            return x
        if name == "size":
            return x.shape[arguments[0]] if arguments else x.shape
        if name == "unsqueeze":
            return np.expand_dims(x, arguments[0] if arguments[0] >= 0 else x.ndim + 1 + arguments[0])
        if name == "squeeze":
            return np.squeeze(x, *arguments)
        if name in ("reshape", "view"):
            return np.reshape(x, arguments[0] if isinstance(arguments[0], (list, tuple)) else arguments)
        if name == "t":
            return x.T
        if name == "transpose":
            return np.swapaxes(x, *arguments)
        if name == "permute":
            return np.transpose(x, arguments)
        if name in ("exp", "sin", "cos", "log", "sqrt"):
            return getattr(np, name)(x)
        if name in ("mul", "add", "sub", "div"):
            return self._operate(_METHOD_OPERATIONS[name], x, arguments[0])
        raise _UnknownError


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _loaded(target: ast.expr) -> ast.expr:
    if isinstance(target, ast.Name):
        return ast.Name(target.id, ast.Load())
    raise _UnknownError


_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: (float(a) if isinstance(a, int) else a) ** b,
}
_METHOD_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "mul": lambda a, b: a * b,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "div": lambda a, b: a / b,
}
_BUILTINS: dict[str, Callable[..., Any]] = {"range": range, "float": float, "int": int, "len": len}
_FUNCTIONS = {
    "arange": "arange", "exp": "exp", "sin": "sin", "cos": "cos", "log": "log", "sqrt": "sqrt", "pow": "power",
    "zeros": "zeros", "ones": "ones", "empty": "zeros", "tensor": "array", "outer": "outer",
}  # fmt: skip
