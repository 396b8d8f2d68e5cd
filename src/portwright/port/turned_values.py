"""Follows one function from sequence first to batch first, and notes the edits that keep its results.

Values whose first two dimensions change places are carried as far as what is done to them is understood; anywhere
else they are turned back, so that the rewritten function computes what it did.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from portwright.port.finding import Edit
from portwright.port.rewrite import const, has_star, remove_statement
from portwright.port.rule import File
from portwright.port.source import apply_edits
from portwright.port.tree import FUNCTIONS, ClassInfo, FunctionNode, dotted_chain, pair
from portwright.port.turned_ranks import rank_of
from portwright.port.turned_tables import (
    ATTENTION_LAYERS,
    COMPARISONS,
    ELEMENTWISE_LOSSES,
    FREE_ATTRIBUTES,
    LAST_DIM,
    LOSS_FUNCTIONS,
    POSITION_WISE_FUNCTIONS,
    POSITION_WISE_METHODS,
    ROW_LOSSES,
    WHOLE,
    Layout,
    dim_of,
    is_position_wise,
    is_swap,
    reduces,
)

SWAP = ".transpose(0, 1)"
_BACK = ".transpose(0, 1).contiguous()"  # the tensor was contiguous, and view() may rely on it
_INNER_COST = 3
_TIGHT = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)
_SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class StuckError(Exception):
    """This function cannot be followed, and why."""


class RowsError(Exception):
    """Rows in another order met something that minds."""


@dataclass(frozen=True)
class Interface:
    """A module that is turned as a whole: its arguments in order, those that are turned, and what it gives."""

    arguments: tuple[str, ...]
    turned: frozenset[str]
    gives: Layout = "turned"


class Context(Protocol):
    """What is known of the modules around a function."""

    def layer_of(self, call: ast.Call) -> str | None: ...
    def interface_of(self, call: ast.Call) -> Interface | None: ...
    def loss_of(self, call: ast.Call) -> ast.Call | None: ...


class Turning:
    """One function; `absorb` lets swaps of its own stand for the turning, `rows` lets flattened rows change order."""

    def __init__(
        self,
        file: File,
        info: ClassInfo | None,
        context: Context,
        turned: Iterable[str] = (),
        *,
        gives: Layout = "same",
        absorb: bool = True,
        rows: bool = True,
    ) -> None:
        self.file, self.info, self.context = file, info, context
        self.env: dict[str, Layout] = dict.fromkeys(turned, "turned")
        self.deep: set[str] = set()  # turned names whose last dimension is neither sequence nor batch
        self.dropped: dict[ast.AST, Edit] = {}
        self.jumps: list[dict[str, Layout]] = []
        self.gives, self.absorb, self.rows = gives, absorb, rows
        self.edits: list[Edit] = []
        self.cost = 0  # transposes put in; those in the midst of a model count for more than those around it
        self.is_fed = True  # whether no input of the model had to be turned here
        self.removed = 0

    # Statements

    def run(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            mark, removed = len(self.edits), self.removed
            self._statement(statement)
            if self.removed > removed and isinstance(statement, ast.Assign):
                own, self.edits = self.edits[mark:], self.edits[:mark]
                self.edits += self._whole(statement, own)

    def _whole(self, statement: ast.Assign, edits: Sequence[Edit]) -> list[Edit]:
        """A statement that lost a swap as one edit, so that it can go where other rules leave nothing of it."""
        start, end = self.file.source.span(statement)
        shifted = [Edit(e.start - start, e.end - start, e.text) for e in merge(edits)]
        text = apply_edits(self.file.source.data[start:end], shifted).decode("utf-8")
        targets, _, value = text.partition("=")
        if targets.strip() == value.strip():
            return remove_statement(self.file, statement)
        return [Edit(start, end, text)]

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign):
            self._assign(node.targets, node.value)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self._assign([node.target], node.value)
        elif isinstance(node, ast.AugAssign):
            self._augment(node)
        elif isinstance(node, ast.Return):
            self._return(node)
        elif isinstance(node, ast.Expr):
            if self.value(node.value) == "pair":
                return
        elif isinstance(node, ast.If):
            self.same(node.test)
            self._branches([node.body, node.orelse])
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            self.same(node.iter)
            targets = {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
            self.env.update(dict.fromkeys(targets, "same"))
            self._repeat(node.body, targets)
            self.run(node.orelse)
        elif isinstance(node, (ast.Break, ast.Continue)):
            self.jumps.append(dict(self.env))
        elif isinstance(node, ast.While):
            self.same(node.test)
            self._repeat(node.body, set())
            self.run(node.orelse)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                self.same(item.context_expr)
            self.run(node.body)
        elif isinstance(node, ast.Try):
            self._branches([[*node.body, *node.orelse], *(h.body for h in node.handlers)])
            self.run(node.finalbody)
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            if any(isinstance(n, ast.Name) and self.env.get(n.id, "same") != "same" for n in ast.walk(node)):
                raise StuckError(f"{node.name} uses a sequence from around it")
        else:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self._untouched_target(child)
                    self.same(child)
                elif self._is_concerned(child):
                    raise StuckError(f"a {type(node).__name__.lower()} statement is not followed")

    def _is_concerned(self, node: ast.AST) -> bool:
        """Whether a sequence, or a layer for one, occurs anywhere inside."""
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and self.env.get(part.id, "same") != "same":
                return True
            if isinstance(part, ast.Call) and (
                self.context.layer_of(part) or self.context.interface_of(part)
            ):
                return True
        return False

    def _branches(self, blocks: Sequence[Sequence[ast.stmt]]) -> None:
        before, ends = dict(self.env), []
        for block in blocks:
            self.env = dict(before)
            self.run(block)
            if not block or not isinstance(block[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break)):
                ends.append(self.env)
        merged = ends[0] if ends else dict(before)
        for other in ends[1:]:
            for name in {*merged, *other}:
                if merged.get(name, "same") != other.get(name, "same"):
                    raise StuckError(f"{name} is turned in one branch and not in the other")
        self.env = merged

    def _repeat(self, body: Sequence[ast.stmt], own: set[str]) -> None:
        before, outer = dict(self.env), self.jumps
        self.jumps = []
        self.run(body)
        for jump in self.jumps:
            for name, layout in jump.items():
                if layout != self.env.get(name, "same"):
                    self.env[name] = "mixed"
        self.jumps = outer
        for name, layout in before.items():
            if name not in own and self.env.get(name, "same") != layout:
                raise StuckError(f"{name} changes its layout in a loop")
        for name, layout in self.env.items():
            carried = name not in own and name not in before and layout != "same"
            if carried and self._read_first(body, name):
                raise StuckError(f"{name} is carried from one time around to the next")

    def _read_first(self, body: Sequence[ast.stmt], name: str) -> bool:
        """Whether a loop reads a name before it sets it, by the order of the text."""
        nodes = [n for s in body for n in ast.walk(s) if isinstance(n, ast.Name) and n.id == name]
        stores = [n.lineno for n in nodes if isinstance(n.ctx, ast.Store)]
        return bool(stores) and any(n.lineno < min(stores) for n in nodes if isinstance(n.ctx, ast.Load))

    def _assign(self, targets: Sequence[ast.expr], value: ast.expr) -> None:
        if len(targets) == 1 and isinstance(targets[0], (ast.Tuple, ast.List)):
            self._unpack(targets[0], value)
            return
        layout = self.value(value)
        if not all(isinstance(t, ast.Name) for t in targets):
            for target in targets:
                self._untouched_target(target)
            self._settle(value, layout)
            layout = "same"
        if layout == "pair":
            raise StuckError("what attention returns is kept as a pair")
        for target in targets:
            if isinstance(target, ast.Name):
                self._set(target.id, layout, value)

    def _set(self, name: str, layout: Layout, value: ast.expr) -> None:
        deep = self._is_deep(value)
        self.env[name] = layout
        self.deep.discard(name)
        if deep:
            self.deep.add(name)

    def _is_deep(self, node: ast.expr) -> bool:
        """Whether a turned value certainly has dimensions behind sequence and batch."""
        if isinstance(node, ast.Name):
            return node.id in self.deep
        if isinstance(node, ast.BinOp):
            return self._is_deep(node.left) or self._is_deep(node.right)
        if isinstance(node, ast.UnaryOp):
            return self._is_deep(node.operand)
        if isinstance(node, ast.Subscript):
            indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            return all(isinstance(i, ast.Slice) for i in indices) and self._is_deep(node.value)
        return isinstance(node, ast.Call) and self._gives_deep(node)

    def _gives_deep(self, node: ast.Call) -> bool:
        if self.context.layer_of(node) is not None or self.context.interface_of(node) is not None:
            return True
        made = self._made(node)
        if made is not None and self._is_position_wise_module(node):
            last = (self.file.resolve(made.func) or "").rpartition(".")[2]
            return last in ("Embedding", "Linear") or self._is_deep(node.args[0])
        if is_swap(node):
            first = node.args[0] if node.args else None
            return len(first.elts if isinstance(first, (ast.Tuple, ast.List)) else node.args) > 2
        dotted = self.file.resolve(node.func)
        if isinstance(node.func, ast.Attribute) and dotted is None:
            return node.func.attr in POSITION_WISE_METHODS and self._is_deep(node.func.value)
        name = (dotted or "").rpartition(".")[2]
        keeps = name in POSITION_WISE_FUNCTIONS or name in ("softmax", "log_softmax")
        return keeps and bool(node.args) and self._is_deep(node.args[0])

    def _unpack(self, target: ast.Tuple | ast.List, value: ast.expr) -> None:
        leaves = list(pair(target, value))
        if all(part is not None for _, part in leaves) and isinstance(value, (ast.Tuple, ast.List)):
            layouts = [self.value(part) for _, part in leaves if part is not None]
            for (leaf, part), layout in zip(leaves, layouts, strict=True):
                if isinstance(leaf, ast.Name) and layout != "pair" and part is not None:
                    self._set(leaf.id, layout, part)
                elif part is not None:
                    self._untouched_target(leaf)
                    self._settle(part, layout)
            return
        shape = self._shape_of_turned(value)
        if shape and len(target.elts) >= 2 and not any(isinstance(e, ast.Starred) for e in target.elts):
            first, second = target.elts[:2]
            self._replace(first, self.file.segment(second))
            self._replace(second, self.file.segment(first))
            taken: Layout = "same"
        else:
            taken = self.value(value)
            if taken == "pair" and len(target.elts) != 2:
                raise StuckError("what attention returns is taken apart in another way")
            if taken != "pair":
                self._settle(value, taken)
        for place, (leaf, _) in enumerate(leaves):
            if isinstance(leaf, ast.Name):
                self.env[leaf.id] = "turned" if taken == "pair" and place == 0 else "same"
                self.deep.discard(leaf.id)
                if taken == "pair" and place == 0:
                    self.deep.add(leaf.id)
            else:
                self._untouched_target(leaf)
                if taken == "pair" and place == 0:
                    raise StuckError("what attention returns is kept as an attribute")

    def _shape_of_turned(self, value: ast.expr) -> bool:
        """`x.shape` or `x.size()` of a turned name."""
        if isinstance(value, ast.Call) and not value.args and not value.keywords:
            value = value.func if isinstance(value.func, ast.Attribute) else value
            named = isinstance(value, ast.Attribute) and value.attr == "size"
        else:
            named = isinstance(value, ast.Attribute) and value.attr == "shape"
        return named and isinstance(value, ast.Attribute) and self._is_turned_name(value.value)

    def _is_turned_name(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and self.env.get(node.id) == "turned"

    def _untouched_target(self, target: ast.expr) -> None:
        root = target
        while isinstance(root, (ast.Subscript, ast.Attribute)):
            root = root.value
        written = isinstance(target, ast.Subscript) and isinstance(root, ast.Name)
        if written and isinstance(root, ast.Name) and self.env.get(root.id, "same") != "same":
            raise StuckError(f"{root.id} is written to in place")

    def _augment(self, node: ast.AugAssign) -> None:
        if not isinstance(node.target, ast.Name):
            self._untouched_target(node.target)
            self.same(node.value)
            return
        before = self.env.get(node.target.id, "same")
        if before == "same":
            self.same(node.value)
            return
        layout = self.value(node.value)
        if layout == before or (layout == "same" and self._is_number(node.value)):
            return
        if not (before == "turned" and layout == "same" and self._turn_summand(node.value)):
            raise StuckError(f"{node.target.id} is changed in place")

    def _return(self, node: ast.Return) -> None:
        if node.value is None:
            return
        layout = self.value(node.value)
        if self.gives == "turned":
            if layout in ("pair", "rows") or isinstance(node.value, ast.Tuple):
                raise StuckError("it returns more than one sequence")
            if layout == "same":
                raise StuckError("it returns a sequence that it has turned itself")
        else:
            self._settle(node.value, layout)

    # Values

    def same(self, node: ast.expr) -> None:
        """A value that has to be as it was before."""
        self._settle(node, self.value(node))

    def _settle(self, node: ast.expr, layout: Layout) -> None:
        if layout == "turned" and node in self.dropped:
            self.edits.remove(self.dropped.pop(node))  # the swap that stands here does what is needed
            self.removed -= 1
        elif layout == "turned":
            self._insert_after(node, _BACK)
        elif layout == "rows":
            raise RowsError
        elif layout == "pair":
            raise StuckError("what attention returns is kept as a pair")

    def value(self, node: ast.expr) -> Layout:
        """Follows an expression, and says what became of its value."""
        if isinstance(node, ast.Name):
            layout = self.env.get(node.id, "same")
            if layout == "mixed":
                raise StuckError(f"{node.id} is turned on one way through a loop and not on another")
            return layout
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.JoinedStr):
            if self._is_concerned(node):
                raise StuckError("a sequence is used inside of a text")
            return "same"
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.MatMult):
                self.same(node.left)
                self.same(node.right)
                return "same"
            return self._combine(node.left, node.right)
        if isinstance(node, ast.Compare):
            return self._compare(node)
        if isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not):
            return self.value(node.operand)
        if isinstance(node, ast.IfExp):
            self.same(node.test)
            layouts = self.value(node.body), self.value(node.orelse)
            if layouts[0] == layouts[1]:
                return layouts[0]
            for part, layout in zip((node.body, node.orelse), layouts, strict=True):
                self._settle(part, layout)
            return "same"
        if isinstance(node, ast.NamedExpr):
            layout = self.value(node.value)
            self._set(node.target.id, layout, node.value)
            return layout
        if isinstance(node, _SCOPES):
            self._inner_scope(node)
            return "same"
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.same(child)
            elif isinstance(child, ast.comprehension):
                self._inner_scope(node)
        return "same"

    def _inner_scope(self, node: ast.AST) -> None:
        """Names in a comprehension or lambda are turned back, each where it stands."""
        for part in ast.walk(node):
            if isinstance(part, ast.Call) and (
                self.context.layer_of(part) or self.context.interface_of(part)
            ):
                raise StuckError("a layer is called in a comprehension or lambda")
            if isinstance(part, (ast.Name, ast.arg)):
                name = part.id if isinstance(part, ast.Name) else part.arg
                layout = self.env.get(name, "same")
                if layout == "rows":
                    raise RowsError
                if layout != "same" and not (isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)):
                    raise StuckError(f"{name} has another meaning inside an expression")
                if layout == "turned" and isinstance(part, ast.Name):
                    self._insert_after(part, _BACK)

    def _attribute(self, node: ast.Attribute) -> Layout:
        if dotted_chain(node) and self.file.resolve(node) is not None:
            return "same"
        layout = self.value(node.value)
        if layout == "same" or node.attr in FREE_ATTRIBUTES:
            return "same"
        if node.attr == "data":
            return layout
        if node.attr == "grad":
            raise StuckError("the gradient of a sequence is read")
        self._settle(node.value, layout)
        return "same"

    def _subscript(self, node: ast.Subscript) -> Layout:
        base = node.value
        if (
            isinstance(base, ast.Attribute)
            and base.attr == "shape"
            and self._is_turned_name(base.value)
            and const(node.slice) in (0, 1)
        ):
            self._replace(node.slice, "1" if const(node.slice) == 0 else "0")
            return "same"
        if isinstance(base, ast.Attribute) and base.attr == "shape" and self._is_turned_name(base.value):
            place = const(node.slice)
            is_last = place == -1 and self._is_deep(base.value)
            if isinstance(place, int) and (place > 1 or is_last):
                return "same"
        layout = self.value(base)
        if layout == "pair":
            if const(node.slice) not in (0, 1):
                raise StuckError("what attention returns is taken apart in another way")
            return "turned" if const(node.slice) == 0 else "same"
        if layout != "turned":
            self._settle(base, layout)
            self.same(node.slice)
            return "same"
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        simple = [isinstance(i, ast.Slice) or isinstance(const(i), int) for i in indices]
        if not all(simple) or any(isinstance(const(i), bool) for i in indices):
            self._insert_after(base, _BACK)
            self.same(node.slice)
            return "same"
        if len(indices) == 1:
            self._insert_before(indices[0], ":, ")
            self.same(indices[0])
        else:
            texts = [self._rendered(index) for index in indices[:2]]
            self._replace(indices[0], texts[1])
            self._replace(indices[1], texts[0])
            for index in indices[2:]:
                self.same(index)
        return "turned" if all(isinstance(i, ast.Slice) for i in indices[:2]) else "same"

    def _compare(self, node: ast.Compare) -> Layout:
        if all(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            self.value(node.left)
            return "same"
        if len(node.ops) == 1 and not isinstance(node.ops[0], (ast.In, ast.NotIn)):
            return self._combine(node.left, node.comparators[0])
        for part in (node.left, *node.comparators):
            self.same(part)
        return "same"

    def _combine(self, left: ast.expr, right: ast.expr) -> Layout:
        return self._pair_up(left, self.value(left), right, self.value(right))

    def _pair_up(self, left: ast.expr, of_left: Layout, right: ast.expr, of_right: Layout) -> Layout:
        """Two operands, element by element."""
        layouts = of_left, of_right
        if layouts[0] == layouts[1] and layouts[0] != "pair":
            return layouts[0]
        for layout, other, other_layout in ((layouts[0], right, layouts[1]), (layouts[1], left, layouts[0])):
            if layout not in ("turned", "rows") or other_layout != "same":
                continue
            if self._is_number(other) or (layout == "turned" and self._turn_summand(other)):
                return layout
        for part, layout in ((left, layouts[0]), (right, layouts[1])):
            self._settle(part, layout)
        return "same"

    def _turn_summand(self, node: ast.expr) -> bool:
        """Turns a tensor of three dimensions that is broadcast against a turned one."""
        if rank_of(self.file, self.info, node) != 3:
            return False
        before = self.cost
        self._insert_after(node, SWAP)
        self.cost = before  # it takes the place of nothing else
        return True

    def _is_number(self, node: ast.expr) -> bool:
        if isinstance(node, ast.UnaryOp):
            return self._is_number(node.operand)
        if isinstance(node, ast.BinOp):
            return self._is_number(node.left) and self._is_number(node.right)
        if isinstance(const(node), (int, float)) or self.file.flow.kind(node) == "number":
            return True
        if isinstance(node, ast.Call) and (self.file.resolve(node.func) or "").startswith(
            ("math.", "numpy.sqrt")
        ):
            return True
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and self.info is not None:
            values = self.info.attributes.get(node.attr, [])
            return bool(values) and all(self._is_setting(value) for value in values)
        return isinstance(node, ast.Name) and node.id.isupper()

    def _is_setting(self, value: ast.expr) -> bool:
        """A number, or an argument of __init__ kept as it is."""
        if isinstance(value, ast.Name):
            found = self.file.tree.scope_of(value).lookup(value.id)
            return found is not None and all(b.kind == "parameter" for b in found[1])
        return not isinstance(value, ast.Attribute) and self._is_number(value)

    # Calls

    def _call(self, node: ast.Call) -> Layout:
        layer = self.context.layer_of(node)
        if layer is not None:
            known = ATTENTION_LAYERS[layer]
            self._arguments(node, known.arguments, frozenset(known.sequences))
            return "pair" if layer == "MultiheadAttention" else "turned"
        interface = self.context.interface_of(node)
        if interface is not None:
            self._arguments(node, interface.arguments, interface.turned)
            return interface.gives
        if self._is_position_wise_module(node):
            return self.value(node.args[0])
        loss = self._loss(node)
        if loss is not None:
            return loss
        dotted = self.file.resolve(node.func)
        if dotted is not None:
            return self._function(node, dotted)
        of_name = len(node.args) == 1 and self._is_turned_name(node.args[0])
        if of_name and isinstance(node.func, ast.Name) and node.func.id == "len":
            start, end = self.file.source.span(node)
            inner = self.file.source.span(node.args[0])
            self.edits += [Edit(start, inner[0], ""), Edit(inner[1], end, ".size(1)")]
            return "same"
        if isinstance(node.func, ast.Attribute):
            return self._method(node, node.func)
        self.same(node.func)
        self._in_place(node, getattr(node.func, "id", ""))
        self._all_same(node)
        return "same"

    def _in_place(self, node: ast.Call, name: str) -> None:
        """What is turned back is a copy, into which nothing can be written."""
        parts = [*node.args, *(k.value for k in node.keywords)] if name.endswith("_") else []
        parts += [k.value for k in node.keywords if k.arg == "out"]
        if any(self._is_concerned(part) for part in parts):
            raise StuckError("a sequence is changed in place")

    def _all_same(self, node: ast.Call, skip: int = 0) -> None:
        for part in (*node.args[skip:], *(k.value for k in node.keywords)):
            self.same(part)

    def _arguments(self, node: ast.Call, names: Sequence[str], turned: frozenset[str]) -> None:
        if has_star(node):
            raise StuckError("the arguments of a call are hidden in a list or dict")
        given = [*zip(names, node.args, strict=False), *((k.arg or "", k.value) for k in node.keywords)]
        if len(node.args) > len(names):
            raise StuckError("a call has more arguments than are known")
        wanted = [part for name, part in given if name in turned]
        for name, part in given:
            if name not in turned:
                self.same(part)
        repeated = len(wanted) > 1 and len({ast.dump(part) for part in wanted}) == 1
        if repeated and isinstance(wanted[0], ast.Name) and self.value(wanted[0]) == "same":
            # Attention looks whether its arguments are one tensor.
            name = "turned" if not self.file.binds("turned") else "portwright_turned"
            self._replace(wanted[0], f"({name} := {wanted[0].id}{SWAP})")
            for part in wanted[1:]:
                self._replace(part, name)
            self.cost += 1
            return
        for part in wanted:
            layout = self.value(part)
            if layout == "same" and not (isinstance(part, ast.Constant) and part.value is None):
                self._insert_after(part, SWAP)
                self.cost += _INNER_COST if self.info is not None else 0
                self.is_fed = False
            elif layout not in ("same", "turned"):
                self._settle(part, layout)

    def _is_position_wise_module(self, node: ast.Call) -> bool:
        made = self._made(node)
        return (
            len(node.args) == 1
            and not node.keywords
            and made is not None
            and is_position_wise(self.file, made)
        )

    def _made(self, node: ast.Call) -> ast.Call | None:
        """How the module that a call runs was made, where it is an attribute that is set once."""
        func = node.func
        if self.info is None or not isinstance(func, ast.Attribute) or not isinstance(func.value, ast.Name):
            return None
        values = self.info.attributes.get(func.attr, [])
        made = values[0] if len(values) == 1 and func.value.id == "self" else None
        return made if isinstance(made, ast.Call) else None

    def _loss(self, node: ast.Call) -> Layout | None:
        """A loss over two tensors in the same order, which gives one number whatever that is."""
        made = self.context.loss_of(node)
        dotted = self.file.resolve(made.func if made is not None else node.func) or ""
        head, _, last = dotted.rpartition(".")
        name = last if made is not None and head == "torch.nn" else LOSS_FUNCTIONS.get(last, "")
        if made is None and head != "torch.nn.functional":
            return None
        if name not in ROW_LOSSES or len(node.args) != 2 or not reduces(made or node):
            return None
        layouts = [self.value(a) for a in node.args]
        allowed = ("rows", "turned") if name in ELEMENTWISE_LOSSES else ("rows",)
        # Both come in the same new order only if the script itself had swapped what it feeds.
        if layouts[0] == layouts[1] and layouts[0] in allowed and (layouts[0] == "turned" or self.is_fed):
            for k in node.keywords:
                self.same(k.value)
            return "same"
        for part, layout in zip(node.args, layouts, strict=True):
            self._settle(part, layout)
        for k in node.keywords:
            self.same(k.value)
        return "same"

    def _function(self, node: ast.Call, dotted: str) -> Layout:
        head, _, last = dotted.rpartition(".")
        first = node.args[0] if node.args and not isinstance(node.args[0], ast.Starred) else None
        self._in_place(node, last)
        if head in ("torch", "torch.nn.functional") and first is not None:
            of_last = last in LAST_DIM and dim_of(node, 1) == -1 and self._is_deep(first)
            if last in POSITION_WISE_FUNCTIONS or of_last:
                layout = self.value(first)
                self._all_same(node, skip=1)
                return layout
            if last in WHOLE and len(node.args) == 1 and not node.keywords:
                self.value(first)
                return "same"
        self._all_same(node)
        return "same"

    def _method(self, node: ast.Call, func: ast.Attribute) -> Layout:
        receiver, name = func.value, func.attr
        layout = self.value(receiver)
        if layout == "pair":
            raise StuckError("what attention returns is kept as a pair")
        if layout == "same":
            if self.absorb and is_swap(node):
                self._drop_call(node, receiver)
                return "turned"
            self._all_same(node)
            return "same"
        if (name.endswith("_") and name != "requires_grad_") or name == "register_hook":
            raise StuckError("a sequence is changed in place")
        dim = dim_of(node, 0)
        of_last = name in LAST_DIM and dim == -1 and not _keeps_dim(node)
        if name in POSITION_WISE_METHODS or (of_last and (layout == "rows" or self._is_deep(receiver))):
            self._all_same(node)
            return layout
        if name in COMPARISONS and len(node.args) == 1 and not node.keywords:
            return self._pair_up(receiver, layout, node.args[0], self.value(node.args[0]))
        if name in WHOLE and not node.args and not node.keywords:
            return "same"
        if layout == "rows":
            if name in LAST_DIM and dim == 1 and not _keeps_dim(node):
                return "rows"
            if name == "size" and len(node.args) == 1:
                return "same"
            raise RowsError
        if is_swap(node):
            self._drop_call(node, receiver)
            return "same"
        if name == "size" and isinstance(dim, int) and (dim >= 0 or (dim == -1 and self._is_deep(receiver))):
            if dim in (0, 1):
                self._replace(node.args[0] if node.args else node.keywords[0].value, str(1 - dim))
            return "same"
        if name in ("sum", "mean") and dim in (0, 1) and not _keeps_dim(node):
            given = node.args[0] if node.args else next(k.value for k in node.keywords if k.arg == "dim")
            self._replace(given, "1" if dim == 0 else "0")
            return "same"
        if dim == -1 and (name == "unsqueeze" or (name == "squeeze" and self._is_deep(receiver))):
            return "turned"
        if name == "masked_fill" and len(node.args) == 2 and not node.keywords:
            mask = self.value(node.args[0])
            self.same(node.args[1])
            if mask == "turned":
                return "turned"
            self._settle(node.args[0], mask)
            self._insert_after(receiver, _BACK)
            return "same"
        if self.rows and not node.keywords and _flattens(node, name):
            for part in node.args[1:]:
                self.same(part)
            if name == "view":
                _start, end = self.file.source.span(func)
                self.edits.append(Edit(end - len("view"), end, "reshape"))
            return "rows"
        self._insert_after(receiver, _BACK)
        self._all_same(node)
        return "same"

    # Edits

    def _insert_after(self, node: ast.expr, text: str) -> None:
        start, end = self.file.source.span(node)
        if isinstance(node, _TIGHT):
            self.edits.append(Edit(end, end, text))
        else:
            self.edits += [Edit(start, start, "("), Edit(end, end, ")" + text)]
        self.cost += 1

    def _insert_before(self, node: ast.expr, text: str) -> None:
        start, _ = self.file.source.span(node)
        self.edits.append(Edit(start, start, text))

    def _rendered(self, node: ast.expr) -> str:
        """The text of a part with the edits that it needs, for it to be put elsewhere."""
        mark = len(self.edits)
        self.same(node)
        own, self.edits = merge(self.edits[mark:]), self.edits[:mark]
        start, end = self.file.source.span(node)
        shifted = [Edit(e.start - start, e.end - start, e.text) for e in own]
        return apply_edits(self.file.source.data[start:end], shifted).decode("utf-8")

    def _replace(self, node: ast.AST, text: str) -> None:
        self.edits.append(self.file.replace(node, text))

    def _drop_call(self, node: ast.Call, receiver: ast.expr) -> None:
        _, end = self.file.source.span(node)
        _, inner = self.file.source.span(receiver)
        # Parentheses around the receiver belong to it.
        dot = self.file.source.data.rindex(b".", inner, self.file.source.span(node.func)[1])
        self.dropped[node] = Edit(dot, end, "")
        self.edits.append(self.dropped[node])
        self.removed += 1


def _keeps_dim(node: ast.Call) -> bool:
    return len(node.args) > 1 or any(k.arg == "keepdim" for k in node.keywords)


def _flattens(node: ast.Call, name: str) -> bool:
    """`view(-1)`, `reshape(-1, n)`, `flatten(0, 1)`: the first two dimensions become one."""
    if name in ("view", "reshape"):
        return len(node.args) in (1, 2) and const(node.args[0]) == -1
    return name == "flatten" and [const(a) for a in node.args] == [0, 1]


def merge(edits: Iterable[Edit]) -> list[Edit]:
    """Joins what is put in at one place, in the order in which it was noted: inner expressions come first."""
    merged: list[Edit] = []
    places: dict[int, int] = {}
    for edit in edits:
        if edit.start == edit.end and edit.start in places:
            place = places[edit.start]
            merged[place] = Edit(edit.start, edit.end, merged[place].text + edit.text)
            continue
        if edit.start == edit.end:
            places[edit.start] = len(merged)
        merged.append(edit)
    return sorted(set(merged))


def argument_names(function: FunctionNode, skip: int = 0) -> tuple[str, ...]:
    arguments = function.args
    return tuple(a.arg for a in [*arguments.posonlyargs, *arguments.args][skip:])
