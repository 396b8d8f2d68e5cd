"""How many batches a loader gives, where its data set says so in plain numbers."""

from __future__ import annotations

import ast

from portwright.port.layout.anatomy import Anatomy, made_by
from portwright.port.layout.program import Frame, Given, Instance, Var
from portwright.port.layout.values import UnknownError
from portwright.port.tree import FUNCTIONS

_MAX_DEPTH = 12
_BY_SHAPE = frozenset({"torch.randn", "torch.rand", "torch.zeros", "torch.ones", "torch.empty"})


class Lengths:
    def __init__(self, anatomy: Anatomy) -> None:
        self.anatomy, self.program, self.values = anatomy, anatomy.program, anatomy.values

    def of(self, node: ast.expr | None, frame: Frame, depth: int = 0) -> int | None:
        """len() of a value, or None."""
        if node is None or depth > _MAX_DEPTH:
            return None
        ref = self.program.reference(node, frame)
        if isinstance(ref, Var):
            found = self.values.value_of(ref)
            return self.of(*found, depth + 1) if found is not None else None
        if isinstance(ref, Given) and ref.expr is not node:
            return self.of(ref.expr, ref.frame, depth + 1)
        if (
            isinstance(node, (ast.ListComp, ast.GeneratorExp))
            and len(node.generators) == 1
            and not node.generators[0].ifs
        ):
            return self.of(node.generators[0].iter, frame, depth + 1)
        if isinstance(node, (ast.List, ast.Tuple)):
            return len(node.elts)
        return self._of_call(node, frame, depth) if isinstance(node, ast.Call) else None

    def _of_call(self, node: ast.Call, frame: Frame, depth: int) -> int | None:
        name = made_by(node, frame)
        arguments = node.args
        keywords = {k.arg: k.value for k in node.keywords}
        first = arguments[0] if arguments else None
        if isinstance(node.func, ast.Name) and node.func.id == "range" and not name:
            numbers = [self._number(a, frame) for a in arguments]
            return (
                len(range(*(n for n in numbers if n is not None)))
                if None not in numbers and numbers
                else None
            )
        if name.endswith("DataLoader"):
            return self._of_loader(arguments, keywords, frame, depth)
        if name in ("torch.utils.data.TensorDataset", "torch.tensor", "torch.as_tensor", "torch.from_numpy"):
            return self.of(first, frame, depth + 1)
        if name in _BY_SHAPE:
            return self._of_shape(first, frame)
        if name == "torch.randint":
            return self._of_shape(keywords.get("size") or (arguments[-1] if arguments else None), frame)
        if name == "torch.arange" and len(arguments) == 1:
            return self._number(first, frame)
        found = self.program.workspace.definition(frame.unit.names.resolve(node.func))
        if found is not None and isinstance(found[1], ast.ClassDef):
            return self._of_object(node, frame, depth)
        return None

    def _of_loader(
        self, arguments: list[ast.expr], keywords: dict[str | None, ast.expr], frame: Frame, depth: int
    ) -> int | None:
        if None in keywords or keywords.keys() & {"sampler", "batch_sampler"}:
            return None
        data = arguments[0] if arguments else keywords.get("dataset")
        size = self._number(
            arguments[1] if len(arguments) > 1 else keywords.get("batch_size", ast.Constant(1)), frame
        )
        count = self.of(data, frame, depth + 1)
        drops = self.values.try_evaluate(keywords.get("drop_last"), frame, default=False)
        if count is None or not size:
            return None
        return count // size if drops else -(-count // size)

    def _of_object(self, call: ast.Call, frame: Frame, depth: int) -> int | None:
        """What __len__ of a class of the project returns: a number, or the length of what __init__ keeps."""
        found = self.program._class_of(call, frame)
        if found is None:
            return None
        unit, info = found
        length, init = info.methods.get("__len__"), info.methods.get("__init__")
        if not isinstance(length, FUNCTIONS) or not isinstance(init, FUNCTIONS):
            return None
        last = length.body[-1]
        if len([s for s in length.body if not isinstance(s, ast.Expr)]) != 1 or not isinstance(
            last, ast.Return
        ):
            return None
        inner = self.program._call(call, unit, init, Instance(unit, info), frame)
        kept = _kept(last.value)
        if kept is None:
            return self._number(last.value, inner)
        values = info.attributes.get(kept[0], [])
        if len(values) != 1:
            return None
        return self.of(values[0], inner, depth + 1) if kept[1] else self._number(values[0], inner)

    def _of_shape(self, node: ast.expr | None, frame: Frame) -> int | None:
        value = self._value(node, frame)
        if isinstance(value, (list, tuple)) and value:
            return value[0] if isinstance(value[0], int) else None
        return value if isinstance(value, int) else None

    def _number(self, node: ast.expr | None, frame: Frame) -> int | None:
        value = self._value(node, frame)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def _value(self, node: ast.expr | None, frame: Frame) -> object:
        if isinstance(node, ast.Tuple) and node.elts:  # only the first size counts
            node = node.elts[0]
        try:
            return self.values.evaluate(node, frame) if node is not None else None
        except UnknownError:
            return None


def _kept(node: ast.expr | None) -> tuple[str, bool] | None:
    """The attribute that __len__ looks at, and whether it asks for its length."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr, False
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len" and node.args:
        inner = _kept(node.args[0])
        return (inner[0], True) if inner is not None and not inner[1] else None
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "shape"
    ):
        inner = _kept(node.value.value)
        return (inner[0], True) if inner is not None else None
    return None
