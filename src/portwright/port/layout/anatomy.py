"""The parts of a training script: its loops, the step inside them, and who is model, optimizer, scheduler and loader."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from portwright.port.layout.program import (
    Frame,
    Given,
    Header,
    Item,
    Line,
    Loop,
    Program,
    Setting,
    Var,
    flatten,
    is_backward,
)
from portwright.port.layout.units import RefusalError, Unit
from portwright.port.layout.values import UnknownError, Values

IN_PLACE = "Use --style in-place, which keeps the script's own loop."
_WRAPPERS = ("tqdm", "rich.progress", "alive_progress")
PLACERS = ("to", "cuda", "cpu")


@dataclass(eq=False)
class Anatomy:
    """What was found, in the order of the program."""

    program: Program
    values: Values
    epoch_loop: Loop | None
    batch_loop: Loop
    setup: list[Line]  # before the step, in and outside of the epoch loop
    setup_of_epoch: set[Line]
    step: list[Line | Header]  # from the batch to backward()
    backward: Line
    loss: tuple[ast.expr, Frame]
    after_step: list[Item]  # of the batch loop, after backward()
    after_epoch: list[Item]
    teardown: list[Item]
    optimizer: Var | None = None
    model: Var | None = None
    scheduler: Var | None = None
    devices: set[Var] = field(default_factory=set)

    @property
    def all_lines(self) -> Iterator[Item]:
        return flatten(self.program.items)


def dissect(program: Program, values: Values) -> Anatomy:
    """Finds the one training loop; RefusalError where there is none, or more than run() has room for."""
    found = [
        (path, line)
        for path, line in _walk(program.items, ())
        if isinstance(line, Line) and _backward_of(line)
    ]
    unit = program.entry
    if not found:
        call = next((n for n in unit.tree.all(ast.Call) if is_backward(n)), None)
        raise RefusalError(
            "no loop that calls backward() was found on the way from the script's start"
            if call is None
            else "the way from the script's start to this backward() is not understood",
            "Name the script that trains; call what trains in a plain for loop (no list of calls, no library's runner); "
            "or use --style in-place.",
            unit,
            call,
        )
    loops, backward = found[0]
    if len(found) > 1:
        second = found[1][1]
        raise RefusalError(
            "there is more than one backward(): several losses or networks are trained in turn",
            f"run() makes one update a step from one loss. {IN_PLACE}",
            second.frame.unit,
            second.node,
        )
    if not loops:
        raise RefusalError("backward() is in no loop", IN_PLACE, backward.frame.unit, backward.node)
    if len(loops) > 2:
        raise RefusalError(
            f"{len(loops)} loops stand around the step, and run() has epochs and batches", IN_PLACE,
            loops[0].frame.unit, loops[0].node,
        )  # fmt: skip
    batch_loop = loops[-1]
    epoch_loop = loops[0] if len(loops) == 2 else None
    anatomy = _cut(program, values, epoch_loop, batch_loop, backward)
    _find_devices(anatomy)
    _find_optimizer(anatomy)
    return anatomy


def _walk(items: Sequence[Item], loops: tuple[Loop, ...]) -> Iterator[tuple[tuple[Loop, ...], Item]]:
    for item in items:
        yield loops, item
        if isinstance(item, Loop):
            yield from _walk(item.body, (*loops, item))


def _backward_of(line: Line) -> ast.Call | None:
    if line.target is not None:
        return None
    return next((n for n in ast.walk(line.node) if isinstance(n, ast.Call) and is_backward(n)), None)


def _cut(
    program: Program, values: Values, epoch_loop: Loop | None, batch_loop: Loop, backward: Line
) -> Anatomy:
    outer = epoch_loop or batch_loop
    position = program.items.index(outer)
    setup = [i for i in program.items[:position] if isinstance(i, Line)]
    of_epoch: set[Line] = set()
    after_epoch: list[Item] = []
    if epoch_loop is not None:
        inner = epoch_loop.body.index(batch_loop)
        before = epoch_loop.body[:inner]
        setup += [i for i in before if isinstance(i, Line)]
        of_epoch = {i for i in before if isinstance(i, Line)}
        after_epoch = epoch_loop.body[inner + 1 :]
    ahead = [*program.items[:position], *(epoch_loop.body if epoch_loop else [])]
    if other := next((i for i in ahead if isinstance(i, Loop) and i is not batch_loop), None):
        raise RefusalError("another loop trains before this one", IN_PLACE, other.frame.unit, other.node)
    at = batch_loop.body.index(backward)
    step = [i for i in batch_loop.body[:at] if isinstance(i, (Line, Header))]
    call = _backward_of(backward)
    assert call is not None
    return Anatomy(
        program=program,
        values=values,
        epoch_loop=epoch_loop,
        batch_loop=batch_loop,
        setup=setup,
        setup_of_epoch=of_epoch,
        step=step,
        backward=backward,
        loss=(_loss_of(call, program, backward.frame, step), backward.frame),
        after_step=batch_loop.body[at + 1 :],
        after_epoch=after_epoch,
        teardown=program.items[position + 1 :],
    )


def _loss_of(call: ast.Call, program: Program, frame: Frame, step: Sequence[Line | Header]) -> ast.expr:
    """What backward() is called on, without a scaler's factor; or what it is given, where its object comes from before the step."""
    assert isinstance(call.func, ast.Attribute)
    receiver = call.func.value
    if call.args and isinstance(receiver, (ast.Name, ast.Attribute)):
        ref = program.reference(receiver, frame)
        made = {
            o.ref
            for i in step
            if isinstance(i, Line)
            for o in program.occurrences(i.target[0] if i.target else i.node, i.frame)
            if o.stores
        }
        if ref not in made:
            return call.args[0]
    weight = (
        call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "gradient"), None)
    )
    if weight is not None and not (isinstance(weight, ast.Constant) and weight.value is None):
        raise RefusalError(
            "backward() is given a gradient of its own, and run() calls it on the loss alone",
            IN_PLACE,
            frame.unit,
            call,
        )
    if (
        isinstance(receiver, ast.Call)
        and isinstance(receiver.func, ast.Attribute)
        and receiver.func.attr == "scale"
        and receiver.args
    ):
        return receiver.args[0]
    return receiver


def kind_of(anatomy: Anatomy, var: Var) -> str:
    """The class or function that made a variable, dotted; empty where it cannot be told."""
    for value, frame, _ in definitions_of(anatomy, var):
        dotted = made_by(value, frame) or _made_by_getattr(anatomy, value, frame)
        if dotted:
            return dotted
    return ""


def definitions_of(anatomy: Anatomy, var: Var) -> list[tuple[ast.expr | None, Frame, Item]]:
    """What a variable is assigned; of an if whose test is known, the branch that is taken."""
    found: list[tuple[ast.expr | None, Frame, Item]] = []
    for value, frame, item in anatomy.values.definitions.get(var, []):
        if value is None and isinstance(item, Line) and isinstance(item.node, ast.If):
            found += [(v, frame, item) for v in _in_branch(anatomy, item.node, frame, var)]
        else:
            found.append((value, frame, item))
    return found


def _in_branch(anatomy: Anatomy, node: ast.If, frame: Frame, var: Var) -> list[ast.expr]:
    try:
        taken = [node.body if anatomy.values.evaluate(node.test, frame) else node.orelse]
    except UnknownError:
        taken = []
    found: list[ast.expr] = []
    for statement in (s for block in taken for s in block):
        if isinstance(statement, ast.If):
            found += _in_branch(anatomy, statement, frame, var)
        elif isinstance(statement, ast.Assign):
            found += [
                statement.value for t in statement.targets if anatomy.program.reference(t, frame) == var
            ]
    return found


def _made_by_getattr(anatomy: Anatomy, value: ast.expr | None, frame: Frame) -> str:
    """`getattr(optim, args.optim)(...)`."""
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Call) and len(value.func.args) == 2):
        return ""
    inner = value.func
    if not (isinstance(inner.func, ast.Name) and inner.func.id == "getattr"):
        return ""
    base = frame.unit.names.resolve(inner.args[0])
    name = anatomy.values.try_evaluate(inner.args[1], frame)
    return f"{base}.{name}" if base and isinstance(name, str) else ""


def made_by(value: ast.expr | None, frame: Frame) -> str:
    while (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in PLACERS
    ):
        value = value.func.value
    return (frame.unit.names.resolve(value.func) or "") if isinstance(value, ast.Call) else ""


def _find_devices(anatomy: Anatomy) -> None:
    for var, definitions in anatomy.values.definitions.items():
        for value, frame, _ in definitions:
            if value is not None and is_device(anatomy, value, frame):
                anatomy.devices.add(var)


def is_device(anatomy: Anatomy, node: ast.expr, frame: Frame) -> bool:
    """Whether an expression is a device: torch.device(...), or the text "cuda"."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value.split(":")[0] in ("cuda", "cpu", "mps", "xpu")
    if isinstance(node, ast.Call):
        name = frame.unit.names.resolve(node.func) or ""  # of torch, or of a library that wraps it
        return name.endswith((".device", ".current_accelerator", ".current_device"))
    if isinstance(node, ast.IfExp):
        return is_device(anatomy, node.body, frame) or is_device(anatomy, node.orelse, frame)
    if isinstance(node, (ast.Name, ast.Attribute)):
        ref = anatomy.program.reference(node, frame)
        if isinstance(ref, Var) and ref in anatomy.devices:
            return True
        stored = anatomy.values.stores_of(ref) if isinstance(ref, Setting) else []
        if any(v is not None and v is not node and is_device(anatomy, v, f) for v, f in stored):
            return True
        name = node.id if isinstance(node, ast.Name) else node.attr
        return name in ("device", "gpu_id", "local_rank") or name.endswith("_device")
    return False


def _steps(program: Program, item: Line, optimizer: Var) -> bool:
    """Whether a statement calls step() of the optimizer, or of what is given it, such as a scaler."""
    calls = (n for n in ast.walk(item.node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute))
    return any(
        program.reference(each, item.frame) == optimizer
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "step"
        for each in (call.func.value, *call.args)
    )


def _find_optimizer(anatomy: Anatomy) -> None:
    program = anatomy.program
    optimizers, schedulers, unknown = set(), set(), set()
    for item in anatomy.all_lines:
        for call in (n for n in ast.walk(item.node) if isinstance(n, ast.Call)):
            if isinstance(item, Line) and isinstance(call.func, ast.Attribute) and call.func.attr == "step":
                candidates = [call.func.value, *call.args]
                for each in candidates:
                    ref = program.reference(each, item.frame)
                    kind = kind_of(anatomy, ref) if isinstance(ref, Var) else ""
                    if isinstance(ref, Var) and is_scheduler(kind):
                        schedulers.add(ref)
                    elif isinstance(ref, Var) and is_optimizer(kind):
                        optimizers.add(ref)
                    elif each is call.func.value and not kind:
                        unknown.add(item.frame.unit.text(each))
    place = anatomy.backward
    if len(optimizers) > 1:
        raise RefusalError(
            f"{len(optimizers)} optimizers are stepped, and run() has one",
            IN_PLACE,
            place.frame.unit,
            place.node,
        )
    if not optimizers and unknown:
        raise RefusalError(
            f"what is stepped here cannot be told to be an optimizer of torch.optim: {', '.join(sorted(unknown))}",
            f"Make it in a statement of its own, optimizer = torch.optim.X(...). {IN_PLACE}",
            place.frame.unit,
            place.node,
        )
    if not optimizers:
        raise RefusalError(
            "no optimizer of torch.optim was found that makes the update",
            f"params.yaml describes the optimizer: make it in a statement of its own, optimizer = torch.optim.X(...). {IN_PLACE}",
            place.frame.unit,
            place.node,
        )
    if len(schedulers) > 1:
        raise RefusalError(
            f"{len(schedulers)} schedulers change one learning rate", IN_PLACE, place.frame.unit, place.node
        )
    anatomy.optimizer = optimizers.pop()
    in_loop = [i for i in flatten([*anatomy.step, *anatomy.after_step]) if isinstance(i, Line)]
    if not any(_steps(program, item, anatomy.optimizer) for item in in_loop):
        raise RefusalError(
            "the update is made outside of the loop that calls backward(): gradients of several batches are added up there",
            f"Count batches in one loop, and update after every so many of them. {IN_PLACE}", place.frame.unit, place.node,
        )  # fmt: skip
    made = [
        (value, item)
        for value, frame, item in definitions_of(anatomy, anatomy.optimizer)
        if is_optimizer(made_by(value, frame))
    ]
    if len(made) > 1:
        raise RefusalError(
            "the optimizer is made in several places, and run() makes one",
            IN_PLACE,
            made[-1][1].frame.unit,
            made[-1][0],
        )
    anatomy.scheduler = schedulers.pop() if schedulers else _own_scheduler(anatomy, anatomy.optimizer)
    anatomy.model = _find_model(anatomy)


def _own_scheduler(anatomy: Anatomy, optimizer: Var) -> Var | None:
    """What the project makes of the optimizer and steps beside it: a class of its own, or a function that returns one."""
    for item in anatomy.all_lines:
        for call in (n for n in ast.walk(item.node) if isinstance(n, ast.Call)):
            if not (
                isinstance(item, Line) and isinstance(call.func, ast.Attribute) and call.func.attr == "step"
            ):
                continue
            ref = anatomy.program.reference(call.func.value, item.frame)
            if isinstance(ref, Var) and ref != optimizer and is_made_of(anatomy, ref, optimizer):
                return ref
    return None


def runs_with_update(anatomy: Anatomy, item: Item, node: ast.AST) -> bool | None:
    """Whether a node of a statement runs whenever an update is made, or never; None where a condition decides."""
    path = path_to(item.node, node)
    for above, below in itertools.pairwise(path):
        if not isinstance(above, ast.If) or below is above.test:
            continue
        branch = above.body if below in above.body else above.orelse
        known = anatomy.values.try_evaluate(above.test, item.frame, default=...)
        if known is not ...:
            if bool(known) != (branch is above.body):
                return False
            continue
        steps = [
            c.func.value for s in branch for c in ast.walk(s)
            if isinstance(c, ast.Call) and isinstance(c.func, ast.Attribute) and c.func.attr == "step"
        ]  # fmt: skip
        if anatomy.optimizer not in {anatomy.program.reference(e, item.frame) for e in steps}:
            return None
    return True


def path_to(root: ast.AST, node: ast.AST) -> list[ast.AST]:
    if root is node:
        return [root]
    below = (path_to(child, node) for child in ast.iter_child_nodes(root))
    return next(([root, *path] for path in below if path), [])


def is_made_of(anatomy: Anatomy, var: Var, optimizer: Var) -> bool:
    """Whether a variable holds what a call returned that was given the optimizer, and so may change it."""
    return any(
        isinstance(value, ast.Call)
        and any(
            anatomy.program.reference(a, frame) == optimizer
            for a in (*value.args, *(k.value for k in value.keywords))
        )
        for value, frame, _ in definitions_of(anatomy, var)
    )


def is_optimizer(kind: str) -> bool:
    head, _, last = kind.rpartition(".")
    return head == "torch.optim" and last[:1].isupper()


def is_scheduler(kind: str) -> bool:
    return kind.startswith("torch.optim.lr_scheduler.") or (
        kind.startswith("transformers.") and "schedule" in kind
    )


def optimizer_call(anatomy: Anatomy, var: Var) -> tuple[ast.Call, Frame, Item]:
    for value, frame, item in definitions_of(anatomy, var):
        if isinstance(value, ast.Call):
            return value, frame, item
    raise RefusalError("where the optimizer is made cannot be told", IN_PLACE, anatomy.program.entry)


def _find_model(anatomy: Anatomy) -> Var:
    """The module whose parameters are optimised."""
    assert anatomy.optimizer is not None
    call, frame, item = optimizer_call(anatomy, anatomy.optimizer)
    owners = _owners(anatomy, call.args[0] if call.args else _keyword(call, "params"), frame, 0)
    if len(owners) != 1:
        raise RefusalError(
            f"the optimizer is given parameters of {len(owners) or 'no'} modules, and run() trains one",
            f"Make them parts of one nn.Module. {IN_PLACE}", item.frame.unit, call,
        )  # fmt: skip
    return owners.pop()


def _owners(anatomy: Anatomy, node: ast.expr | None, frame: Frame, depth: int) -> set[Var]:
    found: set[Var] = set()
    if node is None or depth > 6:
        return found
    for each in ast.walk(node):
        if (
            isinstance(each, ast.Call)
            and isinstance(each.func, ast.Attribute)
            and each.func.attr in ("parameters", "named_parameters")
        ):
            owner = each.func.value
            while isinstance(owner, ast.Attribute) and not isinstance(
                anatomy.program.reference(owner, frame), Var
            ):
                owner = owner.value  # model.head.parameters()
            ref = anatomy.program.reference(owner, frame)
            if isinstance(ref, Var):
                found.add(ref)
    if not found:
        for occurrence in anatomy.program.occurrences(node, frame):
            if isinstance(occurrence.ref, Var):
                for value, origin, _ in anatomy.values.definitions.get(occurrence.ref, []):
                    found |= _owners(anatomy, value, origin, depth + 1)
    return found


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((k.value for k in call.keywords if k.arg == name), None)


def unwrap_iterable(anatomy: Anatomy, node: ast.expr, frame: Frame) -> tuple[ast.expr, Frame, bool]:
    """What a loop really goes over, without tqdm and enumerate, and whether it counts."""
    counted = False
    for _ in range(8):
        if isinstance(node, ast.Call) and node.args:
            name = frame.unit.names.resolve(node.func) or ""
            if isinstance(node.func, ast.Name) and node.func.id == "tqdm":
                name = "tqdm"  # imported, or where that fails a function that does nothing
            if isinstance(node.func, ast.Name) and node.func.id == "enumerate":
                node, counted = node.args[0], True
                continue
            if name.startswith(_WRAPPERS) and not name.endswith("trange"):
                node = node.args[0]
                continue
            if isinstance(node.func, ast.Name) and node.func.id == "iter":
                node = node.args[0]
                continue
        ref = anatomy.program.reference(node, frame)
        found = anatomy.values.value_of(ref) if isinstance(ref, Var) else None
        if found is not None and isinstance(found[0], ast.Call) and made_by(*found).startswith(_WRAPPERS):
            node, frame = found
            continue
        if isinstance(node, ast.Name) and isinstance(ref, Given):
            node, frame = ref.expr, ref.frame  # a parameter that was given an expression
            continue
        break
    return node, frame, counted


def place_of(unit: Unit, node: ast.AST | None) -> tuple[int, int]:
    if node is None or not hasattr(node, "lineno"):
        return 1, 1
    start, _ = unit.source.span(node)
    return unit.source.position(start)
