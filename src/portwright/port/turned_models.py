"""Turns a model from sequence first to batch first: its layers, its forward(), and the loops that call it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from portwright.port.finding import Edit
from portwright.port.rewrite import argument, has_star, set_keyword
from portwright.port.rule import File
from portwright.port.tree import FUNCTIONS, ClassInfo, FunctionNode, is_name
from portwright.port.turned_instances import find_instances, is_aside, uses_of
from portwright.port.turned_tables import (
    ATTENTION_LAYERS,
    OURS,
    STACKS,
    Layout,
    attention_layer,
    takes_sequence_first,
    words,
)
from portwright.port.turned_values import (
    SWAP,
    Interface,
    RowsError,
    StuckError,
    Turning,
    argument_names,
    merge,
)

_ASIDE = words(
    """
    parameters named_parameters modules named_modules state_dict load_state_dict train eval to apply requires_grad_
    d_model nhead batch_first
    """
)
_MAX_TURNED_ARGUMENTS = 6
_AROUND = ".transpose(0, -2)"  # of a batch it turns the first two dimensions; without one it changes nothing


@dataclass
class Layers:
    """The sequence-first layers of a class: by attribute, in lists, and the calls that make them."""

    info: ClassInfo
    by_name: dict[str, str] = field(default_factory=dict)
    lists: dict[str, str] = field(default_factory=dict)
    own: str = ""  # of a subclass: the layer that it is itself
    made: list[tuple[ast.Call, str]] = field(default_factory=list)
    stacks: dict[str, ast.Call] = field(default_factory=dict)


def find_layers(file: File, info: ClassInfo) -> Layers:
    layers = Layers(info)
    for name, values in info.attributes.items():
        if len(values) == 1 and isinstance(values[0], ast.Call):
            _note_layer(file, layers, name, values[0])
    bases = [
        b for b in file.names.bases_of(info.node) if b in ("torch.nn.Transformer", f"{OURS}.Transformer")
    ]
    for call in file.methods("__init__") if bases else ():
        of_base = isinstance(call.func, ast.Attribute) and _is_super(call.func.value)
        if of_base and file.tree.class_of(call) is info and takes_sequence_first(call, "Transformer"):
            layers.own = "Transformer"
            layers.made.append((call, "Transformer"))
            for part in ("encoder", "decoder"):
                if part not in info.attributes:
                    layers.by_name[part] = f"Transformer{part.title()}"
    return layers


def _note_layer(file: File, layers: Layers, name: str, made: ast.Call) -> None:
    kind = attention_layer(file, made.func)
    if kind in STACKS:
        inner = _layer_of_stack(file, made, STACKS[kind])
        if inner is not None:
            layers.by_name[name] = kind
            layers.stacks[name] = made
            layers.made.append((inner, STACKS[kind]))
    elif kind is not None:
        if takes_sequence_first(made, kind):
            layers.by_name[name] = kind
            layers.made.append((made, kind))
    elif file.resolve(made.func) == "torch.nn.ModuleList" and len(made.args) == 1:
        listed = made.args[0]
        parts = listed.elts if isinstance(listed, (ast.List, ast.Tuple)) else [getattr(listed, "elt", listed)]
        calls = [p for p in parts if isinstance(p, ast.Call)]
        kinds = {attention_layer(file, c.func) for c in calls}
        first = next(iter(kinds), None)
        if len(kinds) != 1 or len(calls) != len(parts) or first is None or first in STACKS:
            return
        if all(takes_sequence_first(c, first) for c in calls):
            layers.lists[name] = first
            layers.made += [(c, first) for c in calls]


def _layer_of_stack(file: File, made: ast.Call, kind: str) -> ast.Call | None:
    given = argument(made, 0, "encoder_layer" if "Encoder" in kind else "decoder_layer")
    if isinstance(given, ast.Name):
        found = file.tree.scope_of(given).lookup(given.id)
        values = [b.value for b in found[1] if b.kind == "assign"] if found else []
        given = values[0] if found and len(values) == len(found[1]) == 1 else None
    elif isinstance(given, ast.Attribute) and is_name(given.value, "self"):
        info = file.tree.class_of(given)
        own = info.attributes.get(given.attr, []) if info else []
        given = own[0] if len(own) == 1 else None
    if isinstance(given, ast.Call) and attention_layer(file, given.func) == kind:
        return given if takes_sequence_first(given, kind) else None
    return None


def _is_super(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and is_name(node.func, "super")


class ModelContext:
    """What the functions of one model, and those that call it, are followed with."""

    def __init__(self, file: File, layers: Layers) -> None:
        self.file, self.layers = file, layers
        self.parts: dict[str, Interface] = {}  # the model's own modules that are turned with it
        self.calls: set[ast.Call] = set()  # of the model itself
        self.interface: Interface | None = None

    def layer_of(self, call: ast.Call) -> str | None:
        return layer_called(self.file, self.layers, call)

    def interface_of(self, call: ast.Call) -> Interface | None:
        if call in self.calls:
            return self.interface
        func = call.func
        inside = self.file.tree.class_of(call) is self.layers.info
        if inside and isinstance(func, ast.Attribute) and is_name(func.value, "self"):
            return self.parts.get(func.attr)
        return None

    def loss_of(self, call: ast.Call) -> ast.Call | None:
        values = list(_values_of(self.file, call.func))
        if not values or not all(isinstance(v, ast.Call) for v in values):
            return None
        names = {self.file.resolve(v.func) for v in values if isinstance(v, ast.Call)}
        return values[0] if len(names) == 1 and isinstance(values[0], ast.Call) else None


def layer_called(file: File, layers: Layers, call: ast.Call) -> str | None:
    """Which sequence-first layer a call runs, if any."""
    func = call.func
    if isinstance(func, ast.Name):
        found = file.tree.scope_of(func).lookup(func.id)
        values = [b.value for b in found[1]] if found and all(b.kind == "iterate" for b in found[1]) else []
        names = {v.attr for v in values if isinstance(v, ast.Attribute) and is_name(v.value, "self")}
        kinds = {layers.lists.get(name) for name in names}
        inside = file.tree.class_of(call) is layers.info
        return kinds.pop() if inside and len(values) == len(names) == len(kinds) == 1 else None
    if not isinstance(func, ast.Attribute) or file.tree.class_of(call) is not layers.info:
        return None
    if is_name(func.value, "self"):
        return layers.by_name.get(func.attr)
    if func.attr == "forward" and _is_super(func.value):
        return layers.own or None
    inner = func.value
    if (
        isinstance(inner, ast.Attribute)
        and is_name(inner.value, "self")
        and func.attr in ("encoder", "decoder")
    ):
        return f"Transformer{func.attr.title()}" if layers.by_name.get(inner.attr) == "Transformer" else None
    return None


def _values_of(file: File, node: ast.expr, depth: int = 0) -> Iterator[ast.expr | None]:
    """What a name can stand for, through the arguments of the file's own functions; None for what is not seen."""
    if depth > 4 or not isinstance(node, (ast.Name, ast.Attribute)):
        yield node if isinstance(node, ast.Call) else None
        return
    if isinstance(node, ast.Attribute):
        info = file.tree.class_of(node)
        values = info.attributes.get(node.attr, []) if info and is_name(node.value, "self") else []
        yield from values
        if not values:
            yield None
        return
    found = file.tree.scope_of(node).lookup(node.id)
    for binding in found[1] if found else ():
        if binding.kind == "parameter":
            function = next((f for f, s in file.tree.scopes.items() if found and s is found[0]), None)
            yield from _arguments_for(file, function, node.id, depth)
        elif binding.kind == "assign" and binding.value is not None:
            value = binding.value
            while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
                if value.func.attr not in ("to", "cuda", "cpu"):
                    break
                value = value.func.value
            yield from _values_of(file, value, depth + 1)
        else:
            yield None


def _arguments_for(file: File, function: ast.AST | None, name: str, depth: int) -> Iterator[ast.expr | None]:
    if not isinstance(function, FUNCTIONS):
        return
    names = argument_names(function)
    for call in file.tree.all(ast.Call):
        if is_name(call.func, function.name) and not has_star(call):
            given = argument(call, names.index(name) if name in names else -1, name)
            if given is not None:
                yield from _values_of(file, given, depth + 1)


def turn(file: File, layers: Layers) -> list[Edit]:
    """The edits that make a model batch first; StuckError says why there are none."""
    _check_class(file, layers)
    for name in {**layers.by_name, **layers.lists}:
        _check_uses(file, layers, name)
    for call, kind in layers.made:
        if kind == "Transformer" and any(
            argument(call, p, n) for p, n in ((7, "custom_encoder"), (8, "custom_decoder"))
        ):
            raise StuckError("it is given an encoder or decoder of its own")
    edits = [edit for call, kind in layers.made for edit in _set_batch_first(file, call, kind)]
    edits += _keep_padding(file, layers)
    try:
        edits += _turn_flow(file, layers)
    except StuckError:
        edits += _turn_around(file, layers)
    return merge(dict.fromkeys(edits))


def _check_class(file: File, layers: Layers) -> None:
    """Nothing that cannot be seen from here may call the layers."""
    own = layers.info.node.name
    for other in file.tree.classes:
        if any(isinstance(b, ast.Name) and b.id == own for b in other.bases):
            raise StuckError(f"{other.name} derives from {own}")
    project, path = file.names.project, file.source.path
    if project.is_used_elsewhere(path, own, rf"class\s+\w+\s*\([^()]*\b{own}\b"):
        raise StuckError(f"a class in another file derives from {own}")
    for name in {**layers.by_name, **layers.lists}:
        if project.is_used_elsewhere(path, own, rf"(?<!self)\.{name}\("):
            raise StuckError(f"another file calls .{name}()")


def _check_uses(file: File, layers: Layers, name: str) -> None:
    for node in file.attributes(name):
        parent = file.tree.parents.get(node)
        called = isinstance(parent, ast.Call) and parent.func is node
        if not is_name(node.value, "self"):
            if called and file.resolve(node) is None:
                raise StuckError(f"{file.segment(node)} is called from outside of its class")
            continue
        if file.tree.class_of(node) is not layers.info or not isinstance(node.ctx, ast.Load) or called:
            continue
        if isinstance(parent, ast.Attribute):
            outer = file.tree.parents.get(parent)
            whole = layers.by_name.get(name) == "Transformer" and parent.attr in ("encoder", "decoder")
            if parent.attr in _ASIDE or (whole and isinstance(outer, ast.Call) and outer.func is parent):
                continue
            raise StuckError(f"self.{name}.{parent.attr} reaches into the layer")
        if name in layers.lists and isinstance(parent, ast.For) and parent.iter is node:
            continue
        if isinstance(parent, ast.Call) and node in parent.args and parent in layers.stacks.values():
            continue
        raise StuckError(f"self.{name} is used in another way than by calling it")


def _set_batch_first(file: File, call: ast.Call, kind: str) -> list[Edit]:
    place = ATTENTION_LAYERS[kind].batch_first
    given = argument(call, place, "batch_first")
    if given is not None:
        return [file.replace(given, "True")]
    return set_keyword(file, call, "batch_first", "True")


def _layer_calls(file: File, layers: Layers) -> Iterator[tuple[ast.Call, str]]:
    for method in layers.info.methods.values():
        for node in ast.walk(method):
            kind = layer_called(file, layers, node) if isinstance(node, ast.Call) else None
            if isinstance(node, ast.Call) and kind is not None:
                yield node, kind


def _keep_padding(file: File, layers: Layers) -> list[Edit]:
    """Batch-first encoders would leave zeros at padded positions in evaluation, which sequence-first ones do not."""
    edits = []
    for call, kind in _layer_calls(file, layers):
        place = {"TransformerEncoder": 2, "Transformer": 5}.get(kind)
        given = argument(call, place, "src_key_padding_mask") if place is not None else None
        if given is None or (isinstance(given, ast.Constant) and given.value is None):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if name in layers.stacks:
            if argument(layers.stacks[name], 3, "enable_nested_tensor") is None:
                edits += set_keyword(file, layers.stacks[name], "enable_nested_tensor", "False")
            continue
        values = layers.info.attributes.get(name, [])
        made = values[0] if layers.by_name.get(name) == "Transformer" else layers.made[0][0]
        statement = file.tree.statement_of(made)
        whole = f"self.{name}.encoder" if layers.by_name.get(name) == "Transformer" else "self.encoder"
        if statement is not None:
            edits.append(_insert_statement_after(file, statement, f"{whole}.use_nested_tensor = False"))
    return list(dict.fromkeys(edits))


def _insert_statement_after(file: File, statement: ast.stmt, text: str) -> Edit:
    _, end = file.source.span(statement)
    return Edit(end, end, f"{file.source.newline}{_indent(file, statement)}{text}")


def _indent(file: File, statement: ast.stmt) -> str:
    start, _ = file.source.span(statement)
    line_start, _ = file.source.line_span(statement.lineno)
    before = file.source.data[line_start:start].decode("utf-8")
    return before if not before.strip() else " " * len(before)


def _turn_flow(file: File, layers: Layers) -> list[Edit]:
    """Follows the model's methods, and the functions that call it where all of those are seen."""
    context = ModelContext(file, layers)
    edits: list[Edit] = []
    for name, part, own in _turned_parts(file, layers, context):
        context.parts[name] = part
        edits += own
    forward = layers.info.methods.get("forward")
    for name, method in layers.info.methods.items():
        if name != "forward" and name != "__init__" and _concerns(context, method):
            edits += _open(file, context, method)
    if not isinstance(forward, FUNCTIONS) or not _concerns(context, forward):
        return edits
    instances = find_instances(file, layers.info)
    if instances is not None:
        try:
            return edits + _closed(file, context, forward, instances)
        except StuckError:
            context.calls, context.interface = set(), None
    return edits + _open(file, context, forward)


def _concerns(context: ModelContext, method: FunctionNode) -> bool:
    return any(
        isinstance(n, ast.Call) and (context.layer_of(n) or context.interface_of(n)) for n in ast.walk(method)
    )


def _turned_parts(
    file: File, layers: Layers, context: ModelContext
) -> Iterator[tuple[str, Interface, list[Edit]]]:
    """Modules of this file that the model alone uses and that can be turned with it, as a PositionalEncoding can."""
    for name, values in layers.info.attributes.items():
        made = values[0] if len(values) == 1 else None
        reference = file.resolve(made.func) if isinstance(made, ast.Call) else None
        info = next(
            (i for i in file.flow.module_classes if reference == f"{file.source.path}::{i.node.name}"), None
        )
        forward = info.methods.get("forward") if info else None
        if info is None or not isinstance(forward, FUNCTIONS) or info is layers.info:
            continue
        if find_layers(file, info).made or len(argument_names(forward)) < 2:
            continue
        if not _is_only_called(file, layers, name):
            continue
        arguments = argument_names(forward, skip=1)
        inner = ModelContext(file, Layers(info))
        try:
            followed = _follow(file, info, inner, forward.body, arguments[:1], gives="turned", absorb=False)
        except StuckError:
            continue
        if followed.cost:
            continue
        made_calls = file.calls(reference) if reference else []
        alone = all(any(c in v for v in layers.info.attributes.values()) for c in made_calls)
        named = [n for n in uses_of(file, info) if not is_aside(file, n)]
        unseen = len(named) > len(made_calls) or not alone or info.node not in file.tree.module.body
        if followed.edits and (
            unseen or file.names.project.is_used_elsewhere(file.source.path, info.node.name)
        ):
            continue
        yield name, Interface(arguments, frozenset(arguments[:1])), followed.edits


def _is_only_called(file: File, layers: Layers, name: str) -> bool:
    for node in file.attributes(name):
        parent = file.tree.parents.get(node)
        inside = is_name(node.value, "self") and file.tree.class_of(node) is layers.info
        called = isinstance(parent, ast.Call) and parent.func is node
        in_init = file.tree.function_of(node) is layers.info.methods.get("__init__")
        if inside and isinstance(node.ctx, ast.Load) and (not called or in_init):
            return False
        if not inside and called and not is_name(node.value, "self") and file.resolve(node) is None:
            return False
    return True


def _follow(
    file: File,
    info: ClassInfo | None,
    context: ModelContext,
    body: Sequence[ast.stmt],
    turned: Sequence[str] = (),
    *,
    gives: Layout = "same",
    absorb: bool | None = None,
    rows: bool = False,
) -> Turning:
    """The way through a function that needs the fewest transposes."""
    best: Turning | None = None
    reason: StuckError | None = None
    for absorbing in (False, True) if absorb is None else (absorb,):
        for with_rows in (True, False) if rows else (False,):
            way = Turning(file, info, context, turned, gives=gives, absorb=absorbing, rows=with_rows)
            try:
                way.run(body)
            except StuckError as error:
                reason = error
                continue
            except RowsError:
                reason = StuckError("rows change their order")
                continue
            if best is None or way.cost < best.cost:
                best = way
    if best is None:
        raise reason or StuckError("it cannot be followed")
    best.edits = merge(best.edits)
    return best


def _choices(forward: FunctionNode) -> list[tuple[str, ...]]:
    """Sets of arguments that could be sequences: those that are always given."""
    names = argument_names(forward)
    required = names[1 : len(names) - len(forward.args.defaults)][:_MAX_TURNED_ARGUMENTS]
    return [c for size in range(len(required), -1, -1) for c in combinations(required, size)]


def _open(file: File, context: ModelContext, method: FunctionNode) -> list[Edit]:
    """Turns a method's inputs where it begins and its result where it ends; its callers see no change."""
    if not isinstance(method, FUNCTIONS):
        raise StuckError("a layer is called in a lambda")
    best: tuple[int, Turning, tuple[str, ...]] | None = None
    reason: StuckError | None = None
    for turned in _choices(method):
        try:
            way = _follow(file, context.layers.info, context, method.body, turned)
        except StuckError as error:
            reason = error
            continue
        cost = way.cost + len(turned)
        if best is None or cost < best[0]:
            best = (cost, way, turned)
    if best is None:
        raise reason or StuckError("it cannot be followed")
    return [*_entry(file, method, best[2]), *best[1].edits]


def _entry(file: File, method: ast.FunctionDef | ast.AsyncFunctionDef, turned: Sequence[str]) -> list[Edit]:
    body = method.body
    has_doc = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) and len(body) > 1
    first = body[1] if has_doc else body[0]
    start, _ = file.source.span(first)
    line_start, _ = file.source.line_span(first.lineno)
    before = file.source.data[line_start:start].decode("utf-8")
    between = f"{file.source.newline}{before}" if not before.strip() else "; "
    text = "".join(f"{name} = {name}{SWAP}{between}" for name in turned)
    return [Edit(start, start, text)] if text else []


def _closed(
    file: File, context: ModelContext, forward: FunctionNode, calls: dict[ast.AST, list[ast.Call]]
) -> list[Edit]:
    """Turns forward() and every function that calls the model, so that no transpose is left where none is needed."""
    assert isinstance(forward, FUNCTIONS)
    best: tuple[int, list[Edit]] | None = None
    reason: StuckError | None = None
    context.calls = {call for found in calls.values() for call in found}
    for turned in _choices(forward):
        for gives in ("turned", "same"):
            context.interface = Interface(argument_names(forward, skip=1), frozenset(turned), gives)
            try:
                # A swap of its own would make the result's first dimension another one than its callers'.
                absorb = False if gives == "turned" else None
                info = context.layers.info
                ways = [_follow(file, info, context, forward.body, turned, gives=gives, absorb=absorb)]
                for function in calls:
                    around = file.tree.class_of(function)
                    ways.append(_follow(file, around, context, _body_of(function), rows=True))
            except StuckError as error:
                reason = error
                continue
            cost = sum(way.cost for way in ways)
            if best is None or cost < best[0]:
                best = (cost, [edit for way in ways for edit in way.edits])
    if best is None:
        raise reason or StuckError("it cannot be followed")
    return best[1]


def _body_of(function: ast.AST) -> list[ast.stmt]:
    body: list[ast.stmt] = function.body  # type: ignore[attr-defined]
    return body


def _turn_around(file: File, layers: Layers) -> list[Edit]:
    """Puts transposes around each call of a layer, which is always the same."""
    edits: list[Edit] = []
    for call, kind in _layer_calls(file, layers):
        if has_star(call):
            raise StuckError("the arguments of a call are hidden in a list or dict")
        known = ATTENTION_LAYERS[kind]
        given = [*zip(known.arguments, call.args, strict=False), *((k.arg, k.value) for k in call.keywords)]
        wanted = [part for name, part in given if name in known.sequences]
        same = len(wanted) > 1 and len({ast.dump(p) for p in wanted}) == 1 and isinstance(wanted[0], ast.Name)
        for place, part in enumerate(wanted):
            text = (
                file.segment(part)
                if isinstance(part, (ast.Name, ast.Attribute))
                else f"({file.segment(part)})"
            )
            if same:
                text = "turned" if place else f"(turned := {text}{_AROUND})"
            else:
                text += _AROUND
            edits.append(file.replace(part, text))
        if kind == "MultiheadAttention":
            edits.append(_turn_back_pair(file, call))
        else:
            _, end = file.source.span(call)
            edits.append(Edit(end, end, f"{_AROUND}.contiguous()"))
    return edits


def _turn_back_pair(file: File, call: ast.Call) -> Edit:
    parent = file.tree.parents.get(call)
    if (
        isinstance(parent, ast.Subscript)
        and isinstance(parent.slice, ast.Constant)
        and parent.slice.value == 0
    ):
        _, end = file.source.span(parent)
        return Edit(end, end, f"{_AROUND}.contiguous()")
    if isinstance(parent, ast.Assign) and parent.value is call and len(parent.targets) == 1:
        target = parent.targets[0]
        if isinstance(target, ast.Tuple) and len(target.elts) == 2 and isinstance(target.elts[0], ast.Name):
            name = target.elts[0].id
            return _insert_statement_after(file, parent, f"{name} = {name}{_AROUND}.contiguous()")
    raise StuckError("what attention returns is kept as a pair")
