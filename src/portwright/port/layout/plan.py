"""What goes where: the script's statements cut into those that make the model, those that make the data, and the step."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from portwright.port.layout.account import NOT_SAID, Account
from portwright.port.layout.anatomy import IN_PLACE, Anatomy, dissect, kind_of, made_by, unwrap_iterable
from portwright.port.layout.definitions import Definitions
from portwright.port.layout.dissolve import Dissolver, is_seed
from portwright.port.layout.evaluation import Evaluation, Finder, batch_target, first_number, read_metric
from portwright.port.layout.lengths import Lengths
from portwright.port.layout.program import Frame, Given, Global, Header, Line, Program, Setting, Var, flatten
from portwright.port.layout.settings import Key, Settings
from portwright.port.layout.slices import Slice, Slicer
from portwright.port.layout.slices import is_plain as is_plain_line
from portwright.port.layout.text import Renderer
from portwright.port.layout.tuning import Problem, Tuning, count_rounds, describe
from portwright.port.layout.units import RefusalError
from portwright.port.layout.values import Values, is_plain
from portwright.port.tree import FUNCTIONS, pair

_RANDOM = (
    "rand",
    "shuffle",
    "random_split",
    "permutation",
    "train_test_split",
    "choice",
    "sample",
    "normal",
    "uniform",
    "make_",
)


@dataclass
class ByHand:
    """Batches that the loop makes by itself: its head, and the statements that make one."""

    lines: list[Line]
    of_epoch: list[Line]
    yields: list[Var]
    length: tuple[ast.Call, Frame] | None


@dataclass
class Plan:
    program: Program
    account: Account
    anatomy: Anatomy
    definitions: Definitions
    dissolver: Dissolver
    slicer: Slicer
    renderer: Renderer
    tuning: Tuning
    settings: Settings = field(default_factory=Settings)
    constants: dict[Var, Line] = field(default_factory=dict)
    pinned: set[Var] = field(default_factory=set)  # constants that definitions read as globals
    step: Slice = field(default_factory=Slice)
    # what the step needs of the script around it, beside the model
    free: list[Var] = field(default_factory=list)
    target: ast.expr | None = None
    by_hand: ByHand | None = None
    model: Slice = field(default_factory=Slice)
    train: Slice = field(default_factory=Slice)
    evaluated: Slice = field(default_factory=Slice)
    train_loader: tuple[ast.expr, Frame] | None = None
    eval_loader: tuple[ast.expr, Frame] | None = None
    evaluation: Evaluation | None = None
    evaluations: list[Evaluation] = field(default_factory=list)
    kept: list[Evaluation] = field(default_factory=list)  # those that run() makes
    evaluates_training: bool = False  # whether all evaluations go over the training data
    num_accumulated: int = 1
    num_updates: int | None = None  # of one pass over the training data
    # keys of runconfig that set_defaults turns into steps
    in_epochs: dict[str, int] = field(default_factory=dict)
    divides: ast.AST | None = None  # the division of the loss that accumulation makes

    @property
    def eval_phase(self) -> object:
        """The text for evaluation in `for phase in ["train", "val"]`."""
        return self.program.phases[1].value if self.program.phases and self.train_loader is not None else None

    @property
    def shares_data(self) -> bool:
        """Whether both loaders come from statements that must run once, together."""
        common = {line for line in self.train.lines if line in self.evaluated.lines and not is_seed(line)}
        return bool(common) and self.eval_loader is not None


def make_plan(program: Program, targets: tuple[str, ...]) -> Plan:
    values = Values(program)
    anatomy = dissect(program, values)
    dissolver = Dissolver(anatomy)
    slicer = Slicer(anatomy, lambda node, frame: dissolver.of(node, frame) is not None)
    plan = Plan(
        program,
        Account(targets),
        anatomy,
        Definitions(program),
        dissolver,
        slicer,
        Renderer(anatomy),
        describe(anatomy),
    )
    _find_constants(plan)
    _find_accumulation(plan)
    for _ in range(3):
        plan.by_hand, plan.train_loader, plan.eval_loader = None, None, None
        _cut_step(plan)
        if not plan.evaluations:
            _find_evaluations(plan)
        _cut_data(plan)
        _cut_evaluation(plan)
        _cut_model(plan)
        before = set(plan.pinned)
        _pin(plan)
        if plan.pinned <= before:
            break  # what stands at the top of a file is made there, and nowhere else
    _refuse_optimizer(plan)
    return plan


def _refuse_optimizer(plan: Plan) -> None:
    """Refuses `model, optimizer = library.prepare(model, optimizer)`: run() makes the optimizer of a model that is whole."""
    for line in [*plan.model.lines, *plan.train.lines, *plan.evaluated.lines]:
        reads, writes, _ = plan.slicer.of_line(line)
        if plan.anatomy.optimizer in reads | writes:
            raise RefusalError(
                "the model or the data are made together with the optimizer here, and run() makes the optimizer after them",
                f"Make them apart from each other. {IN_PLACE}", line.frame.unit, line.node,
            )  # fmt: skip


def finish_plan(plan: Plan) -> None:
    """Sorts settings, once it is known which of them run() knows by names of its own."""
    _sort_settings(plan)
    for problem in plan.tuning.problems:
        plan.account.leave(problem.frame.unit, problem.node, problem.message, problem.cure, NOT_SAID)


# -- constants -----------------------------------------------------------------------------------------------------------------


def _find_constants(plan: Plan) -> None:
    values, settings = plan.anatomy.values, plan.settings
    for setting, option in values.options.items():
        if setting not in values.stores:
            settings.add(setting, option.default, option.help)
            if not option.is_known:
                plan.account.leave(
                    option.unit, option.node, f"the default of {option.key} is known only when the script runs",
                    "Set it in configs/params.yaml.", NOT_SAID,
                )  # fmt: skip
    for line in plan.anatomy.setup:
        if (
            line in plan.anatomy.setup_of_epoch
            or line.target is not None
            or not isinstance(line.node, ast.Assign)
        ):
            continue
        if len(line.node.targets) != 1:
            continue
        parts = [(t, v) for t, v in pair(line.node.targets[0], line.node.value)]
        found: dict[Var, object] = {}
        for target, value in parts:
            ref = plan.program.reference(target, line.frame)
            literal = value is not None and not any(
                isinstance(n, (ast.Name, ast.Call, ast.Attribute)) for n in ast.walk(value)
            )
            known = values.try_evaluate(value, line.frame, default=...) if literal else ...
            if (
                not isinstance(ref, Var)
                or known is ...
                or not is_plain(known)
                or len(values.definitions.get(ref, [])) != 1
            ):
                break
            if ref in plan.anatomy.devices:
                break
            found[ref] = known
        if len(found) != len(parts):
            continue
        for var, known in found.items():
            plan.constants[var] = line
            settings.add(var, known, _comment_behind(line))


def _comment_behind(line: Line) -> str:
    source = line.frame.unit.source
    _, end = source.span(line.node)
    text = (
        source.data[end : source.line_span(line.node.end_lineno or line.node.lineno)[1]]
        .decode("utf-8")
        .strip()
    )
    return text.lstrip("# ") if text.startswith("#") else ""


def gone(plan: Plan, lines: list[Line]) -> set[Line]:
    """Lines that run() makes needless, or that are settings: no slice needs them."""
    values = plan.anatomy.values
    return {
        line for line in lines
        if line in values.argparse_lines or line in values.alias_lines or line in plan.constants.values()
        or plan.dissolver.why(line) is not None or _makes_pinned(plan, line)
        or leaves(line.node) or any(line in e.callers for e in plan.evaluations)
    }  # fmt: skip


def leaves(node: ast.AST) -> bool:
    """Whether a statement may end the function that it stands in."""
    return any(isinstance(n, ast.Return) for n in ast.walk(node)) and not isinstance(
        node, (*FUNCTIONS, ast.ClassDef)
    )


def _makes_pinned(plan: Plan, line: Line) -> bool:
    writes = plan.slicer.of_line(line)[1] if plan.pinned and is_plain_line(line) else set()
    return bool(writes) and writes <= plan.pinned


# -- the step --------------------------------------------------------------------------------------------------------------------


def _find_accumulation(plan: Plan) -> None:
    """`if (i + 1) % n == 0: optimizer.step()`: n batches make one update."""
    anatomy = plan.anatomy
    for item in anatomy.after_step:
        node = item.node
        if not isinstance(item, Line) or not isinstance(node, ast.If):
            continue
        steps = any(
            isinstance(c, ast.Call) and isinstance(c.func, ast.Attribute) and c.func.attr == "step"
            and plan.anatomy.optimizer in {plan.program.reference(e, item.frame) for e in (c.func.value, *c.args)}
            for c in ast.walk(node)
        )  # fmt: skip
        if not steps:
            continue
        parts = [n for n in ast.walk(node.test) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod)]
        count = anatomy.values.try_evaluate(parts[0].right, item.frame, default=...) if parts else ...
        if not isinstance(count, int) or count < 1:
            raise RefusalError(
                "updates are made now and then, by a rule that only a run would tell",
                IN_PLACE,
                item.frame.unit,
                node,
            )
        plan.num_accumulated = count
        plan.tuning.section["grad_accum_steps"] = count
        if (
            count > 1
            and isinstance(anatomy.batch_loop.node, ast.For)
            and not _makes_whole_groups(plan, item, count)
        ):
            message = f"run() makes an update after each {count} batches of the training, and the script may make others: {item.frame.unit.text(node.test)}"
            cure = f"Let an epoch have a multiple of {count} batches and update after each {count}, or compare with `portwright verify`."
            plan.tuning.problems.append(Problem(message, cure, node.test, item.frame))
        for line in [*anatomy.step, anatomy.backward]:
            for each in ast.walk(line.node):
                if (
                    isinstance(each, (ast.BinOp, ast.AugAssign)) and isinstance(each.op, ast.Div)
                    and anatomy.values.try_evaluate(_right(each), line.frame, default=None) == count
                ):  # fmt: skip
                    plan.divides = each


def _makes_whole_groups(plan: Plan, item: Line, count: int) -> bool:
    """Whether the script, too, updates after batches n, 2n, ... of the whole training: it counts so, and epochs end with a group."""
    anatomy, loop = plan.anatomy, plan.anatomy.batch_loop
    assert isinstance(item.node, ast.If)
    assert isinstance(loop.node, ast.For)
    test, (_, counter) = item.node.test, batch_target(loop)
    length = Lengths(anatomy).of(*unwrap_iterable(anatomy, loop.node.iter, loop.frame)[:2])
    is_whole = length is not None and length % count == 0
    is_one_epoch = anatomy.epoch_loop is None or count_rounds(anatomy, anatomy.epoch_loop) == 1
    if (
        isinstance(test, ast.BoolOp)
        and isinstance(test.op, ast.Or)
        and is_whole
        and "len(" in ast.unparse(test.values[-1])
    ):
        test = test.values[0]  # the other is about the last batch, which ends a group anyway
    rest: object = None
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq):
        rest, test = anatomy.values.try_evaluate(test.comparators[0], item.frame), test.left
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        rest, test = 0, test.operand
    if counter is None or not (isinstance(test, ast.BinOp) and isinstance(test.op, ast.Mod)):
        return False
    counted: ast.expr = test.left
    added: object = 0
    if isinstance(counted, ast.BinOp) and isinstance(counted.op, ast.Add):
        added, counted = anatomy.values.try_evaluate(counted.right, item.frame), counted.left
    counts = plan.program.reference(counted, item.frame) == plan.program.reference(counter, loop.frame)
    if not counts or not isinstance(added, int) or not isinstance(rest, int):
        return False
    return (first_number(anatomy) + count - 1 + added - rest) % count == 0 and (is_whole or is_one_epoch)


def _right(node: ast.BinOp | ast.AugAssign) -> ast.expr:
    return node.right if isinstance(node, ast.BinOp) else node.value


def _cut_step(plan: Plan) -> None:
    anatomy, slicer = plan.anatomy, plan.slicer
    loop = anatomy.batch_loop
    if not isinstance(loop.node, ast.For):
        raise RefusalError(
            "the step stands in a while loop",
            f"Loop over batches with for. {IN_PLACE}",
            loop.frame.unit,
            loop.node,
        )
    outer_loop = anatomy.epoch_loop
    if outer_loop is not None and not isinstance(outer_loop.node, ast.For):
        raise RefusalError(
            "the loop over batches stands in a while loop", f"Loop over epochs with for. {IN_PLACE}",
            outer_loop.frame.unit, outer_loop.node,
        )  # fmt: skip
    plan.target, counter = batch_target(loop)
    lines = [i for i in anatomy.step if isinstance(i, Line)]
    for item in anatomy.step:
        if not isinstance(item, Line):
            _unwrap(plan, item)
    skipped = {line for line in lines if plan.dissolver.why(line) is not None}
    plan.step = slicer.cut(lines, [anatomy.loss], without=skipped)
    batch_vars = slicer.mentions(plan.target, loop.frame)[1]
    counters = slicer.mentions(counter, loop.frame)[1] if counter is not None else set()
    _refuse_carried(plan, batch_vars | counters)
    _decide_by_hand(plan, batch_vars, counters)
    given = set(plan.by_hand.yields) if plan.by_hand else batch_vars
    outer = (
        slicer.mentions(anatomy.epoch_loop.node.target, anatomy.epoch_loop.frame)[1]
        if anatomy.epoch_loop and isinstance(anatomy.epoch_loop.node, ast.For)
        else set()
    )
    bound, free = set(given), []
    for line in plan.step.lines:
        reads, writes, _ = slicer.of_line(line)
        for var in sorted(reads - bound, key=lambda v: (v.owner, v.name)):
            if var in counters | outer:
                raise RefusalError(
                    f"the loss depends on '{var.name}', which counts steps or epochs",
                    f"run() hands on the batch alone. {IN_PLACE}", line.frame.unit, line.node,
                )  # fmt: skip
            if var not in free:
                free.append(var)
        bound |= writes
    for var in slicer.mentions(*anatomy.loss)[0]:
        if var not in bound and var not in free:
            free.append(var)
    plan.free = [
        v
        for v in free
        if v != anatomy.model
        and v not in plan.constants
        and v not in anatomy.devices
        and v not in plan.program.namespaces
        and v not in plan.pinned
    ]


def _refuse_carried(plan: Plan, given: set[Var]) -> None:
    """Refuses what one step hands to the next, such as a hidden state: run() hands a step its batch alone."""
    bound = set(given)
    parts = [(line, *plan.slicer.of_line(line)[:2]) for line in plan.step.lines]
    written = {var for _, _, writes in parts for var in writes}
    after = [i for i in plan.anatomy.after_step if isinstance(i, Line) and plan.dissolver.why(i) is None]
    written |= {var for line in after for var in plan.slicer.of_line(line)[1] if var != plan.anatomy.model}
    for line, reads, writes in parts:
        maybe = isinstance(line.node, (ast.If, ast.With, ast.For, ast.Try)) and line.target is None
        own = _own_names(plan, line) if maybe else set()
        carried = (reads & written) - bound - own
        for var in sorted(carried, key=lambda v: v.name):
            if var not in plan.constants:
                raise RefusalError(
                    f"'{var.name}' is carried from one step to the next",
                    f"Begin each step from the batch alone. {IN_PLACE}", line.frame.unit, line.node,
                )  # fmt: skip
        bound |= (
            writes if not isinstance(line.node, ast.If) or line.target is not None else _surely(plan, line)
        )


def _surely(plan: Plan, line: Line) -> set[Var]:
    """Names that both branches of an if bind."""
    assert isinstance(line.node, ast.If)
    branches = [
        {w for s in block for w in plan.slicer.mentions(s, line.frame)[1]}
        for block in (line.node.body, line.node.orelse)
    ]
    return branches[0] & branches[1]


def _own_names(plan: Plan, line: Line) -> set[Var]:
    """Names that a block binds above where it reads them, as far as the order of its text tells."""
    seen: set[Var] = set()
    stored: set[Var] = set()
    read_first: set[Var] = set()
    values = sorted(
        plan.program.occurrences(line.node, line.frame),
        key=lambda o: (o.node.lineno, o.stores, o.node.col_offset),
    )
    for occurrence in values:
        if isinstance(occurrence.ref, Var):
            if occurrence.stores:
                stored.add(occurrence.ref)
            elif occurrence.ref not in stored:
                read_first.add(occurrence.ref)
            seen.add(occurrence.ref)
    return seen - read_first


def _unwrap(plan: Plan, header: Header) -> None:
    node, frame = header.node, header.frame
    if isinstance(node, ast.With):
        for item in node.items:
            name = made_by(item.context_expr, frame)
            if name == "torch.autocast":
                call = item.context_expr
                assert isinstance(call, ast.Call)
                enabled = next((k.value for k in call.keywords if k.arg == "enabled"), None)
                if plan.anatomy.values.try_evaluate(enabled, frame, default=True) is False:
                    plan.account.dissolve(
                        frame.unit, node, "autocast is off by default; runconfig.precision turns it on"
                    )
                else:
                    plan.account.leave(
                        frame.unit, node, "mixed precision is chosen by autocast, and run() computes in fp32 until params.yaml says otherwise",
                        "Set runconfig.precision to bf16 or fp16.", NOT_SAID,
                    )  # fmt: skip


def _decide_by_hand(plan: Plan, batch_vars: set[Var], counters: set[Var]) -> None:
    """Whether the loop goes over a loader, or makes its batches itself."""
    anatomy, slicer = plan.anatomy, plan.slicer
    loop = anatomy.batch_loop
    assert isinstance(loop.node, ast.For)
    node, frame, _ = unwrap_iterable(anatomy, loop.node.iter, loop.frame)
    if _is_loader(plan, node, frame):
        plan.train_loader = (node, frame)
        return
    is_range = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"
    lines: list[Line] = []
    tainted = {anatomy.model} | {v for v in plan.step.needs if _is_module(plan, v)}
    for line in plan.step.lines:
        reads = slicer.of_line(line)[0]
        if reads & tainted or plan.dissolver.why(line):
            break
        lines.append(line)
    rest = [line for line in plan.step.lines if line not in lines]
    needed = slicer.cut(rest, [anatomy.loss]).needs
    made = {w for line in lines for w in slicer.of_line(line)[1]} | batch_vars | counters
    yields = [v for v in _in_order(plan, lines, batch_vars | counters) if v in needed and v in made]
    if not yields:  # the whole data at each step
        if not is_range:
            raise RefusalError(
                "what this loop's batches are cannot be told", IN_PLACE, loop.frame.unit, loop.node
            )
        yields = [
            v for v in _in_order(plan, rest, set(), reads=True)
            if v in needed and v not in tainted and v not in plan.constants and v not in anatomy.devices
            and v not in plan.program.namespaces and not any(v in slicer.of_line(line)[1] for line in rest)
        ]  # fmt: skip
        if not yields:
            raise RefusalError("the step has no batch", IN_PLACE, loop.frame.unit, loop.node)
    of_epoch = [line for line in anatomy.setup if line in anatomy.setup_of_epoch]
    wanted = slicer.cut(
        of_epoch,
        [(node, frame)],
        {v for line in lines for v in slicer.of_line(line)[0]},
        gone(plan, of_epoch),
    )
    length = (node, frame) if is_range else None
    plan.by_hand = ByHand(lines, wanted.lines, yields, length)  # type: ignore[arg-type]
    plan.step.lines = rest


def _in_order(plan: Plan, lines: list[Line], first: set[Var], *, reads: bool = False) -> list[Var]:
    found = sorted(first, key=lambda v: v.name)
    for line in lines:
        for occurrence in plan.program.occurrences(line.node, line.frame):
            ref = occurrence.ref
            if isinstance(ref, Var) and ref not in found and occurrence.stores != reads:
                found.append(ref)
    return found


def _is_module(plan: Plan, var: Var) -> bool:
    kind = kind_of(plan.anatomy, var)
    return plan.program.entry.names.is_module_class(kind or None)


def _is_loader(plan: Plan, node: ast.expr, frame: Frame) -> bool:
    anatomy = plan.anatomy
    ref = plan.program.reference(node, frame)
    found = (
        [(v, f) for v, f, _ in anatomy.values.definitions.get(ref, [])]
        if isinstance(ref, Var)
        else [(node, frame)]
    )
    items = [i for _, _, i in anatomy.values.definitions.get(ref, [])] if isinstance(ref, Var) else []
    for value, origin in found:
        kind = made_by(value, origin)
        if kind.rpartition(".")[2].endswith(("DataLoader", "Loader")):
            return True
        if isinstance(value, ast.Subscript) and _is_loader(plan, value.value, origin):
            return True
        if isinstance(value, (ast.Dict, ast.DictComp)) and "DataLoader" in origin.unit.text(value):
            return True
        if isinstance(value, ast.Dict) and any(_is_loader(plan, v, origin) for v in value.values):
            return True
        if isinstance(value, ast.Call) and _makes_loader(plan, value, origin):
            return True
    for item in items:
        if isinstance(item, Line):
            for call in (n for n in ast.walk(item.node) if isinstance(n, ast.Call)):
                if made_by(call, item.frame).endswith("DataLoader") or _makes_loader(plan, call, item.frame):
                    return True
    if isinstance(node, ast.Subscript):
        return _is_loader(plan, node.value, frame)
    return False


def _makes_loader(plan: Plan, call: ast.Call, frame: Frame) -> bool:
    callee = plan.program.callee(call, frame)
    if callee is None:
        return False
    nodes = list(ast.walk(callee[1]))
    makes = any(
        isinstance(n, (ast.Name, ast.Attribute))
        and "DataLoader" in (n.id if isinstance(n, ast.Name) else n.attr)
        for n in nodes
    )
    return makes and not any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in nodes)


# -- data, evaluation, model -------------------------------------------------------------------------------------------------------


def _cut_data(plan: Plan) -> None:
    anatomy = plan.anatomy
    lines = [line for line in anatomy.setup if line not in anatomy.setup_of_epoch or not plan.by_hand]
    skipped = gone(plan, lines)
    if plan.by_hand is not None:
        variables = {
            v for line in (*plan.by_hand.lines, *plan.by_hand.of_epoch) for v in plan.slicer.of_line(line)[0]
        }
        own = {
            v for line in (*plan.by_hand.lines, *plan.by_hand.of_epoch) for v in plan.slicer.of_line(line)[1]
        }
        assert isinstance(anatomy.batch_loop.node, ast.For)
        wanted = [(anatomy.batch_loop.node.iter, anatomy.batch_loop.frame)]
        plan.train = plan.slicer.cut(lines, wanted, (variables | set(plan.by_hand.yields)) - own, skipped)
        for line in (*plan.by_hand.lines, *plan.by_hand.of_epoch):
            plan.train.settings |= plan.slicer.of_line(line)[2]
            plan.train.needs |= plan.slicer.of_line(line)[0]
        parts = [line.node for line in (*plan.by_hand.lines, *plan.by_hand.of_epoch)]
    else:
        assert plan.train_loader is not None
        plan.train = plan.slicer.cut(lines, [plan.train_loader], without=skipped)
        parts = []
    _with_seeds(plan, plan.train, parts)


def _with_seeds(plan: Plan, part: Slice, more: list[ast.stmt]) -> None:
    """Data that are drawn at random are drawn from the script's own seed, each time alike."""
    if not _is_drawn(plan, part, more):
        return
    seeds = [line for line in plan.anatomy.setup if is_seed(line)]
    rest = [line for line in part.lines if line not in plan.anatomy.setup]
    part.lines = [line for line in plan.anatomy.setup if line in part.lines or line in seeds] + rest
    for line in seeds:
        part.settings |= plan.slicer.of_line(line)[2]
        part.needs |= plan.slicer.of_line(line)[0]


def _is_drawn(plan: Plan, part: Slice, more: Sequence[ast.stmt] = ()) -> bool:
    nodes: list[ast.AST] = [*(line.node for line in part.lines), *more]
    names = {n for line in part.lines for n in _global_names(plan, line.node, line.frame)}
    own = plan.definitions
    nodes += [own.homes[name] for name in own.closure(names) if own.is_definition(name)]
    return any(_draws(n) for node in nodes for n in ast.walk(node))


def _draws(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    if any(k.arg in ("generator", "random_state") for k in node.keywords):
        return False  # from a generator of its own
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name.lower().startswith(_RANDOM)


def _find_evaluations(plan: Plan) -> None:
    """Every evaluation that the script makes, and those among them that run() will make."""
    anatomy = plan.anatomy
    finder = Finder(anatomy, lambda node, frame: _is_loader(plan, node, frame))
    own = [*plan.step.lines, *(plan.by_hand.lines if plan.by_hand else [])]
    beside = [item for item in anatomy.step if item not in own]
    finder.look([*anatomy.after_epoch, *anatomy.teardown, *anatomy.after_step, *beside, *anatomy.setup])
    plan.evaluations = finder.found
    for each in plan.evaluations:
        if each.loader is not None and not _can_be_made(plan, each):
            each.loader = None
    others = [e for e in plan.evaluations if e.loader and not finder.same(e.loader, plan.train_loader)]
    if plan.eval_phase is not None:
        return  # the evaluation is the loop's other phase
    if others:
        plan.evaluation = min(others, key=lambda e: e.part)
        chosen = plan.evaluation
        plan.kept = [e for e in others if finder.same(e.loader, chosen.loader) and e.part == chosen.part]
    elif plan.train_loader is not None and all(e.loader for e in plan.evaluations):
        plan.kept, plan.evaluates_training = plan.evaluations, bool(plan.evaluations)
        plan.evaluation = next(iter(plan.kept), None)


def _cut_loader(plan: Plan, evaluation: Evaluation, more: Sequence[tuple[ast.expr, Frame]] = ()) -> Slice:
    """What makes an evaluation's loader, before the training, after it, or in the evaluation's own function."""
    assert evaluation.loader is not None
    later = [i for i in flatten([*plan.anatomy.after_epoch, *plan.anatomy.teardown]) if isinstance(i, Line)]
    lines = [*plan.anatomy.setup, *later, *evaluation.before]
    return plan.slicer.cut(lines, [*more, evaluation.loader], without=gone(plan, lines))


def _can_be_made(plan: Plan, evaluation: Evaluation) -> bool:
    """Whether all that a loader needs is made in the script, and not given by a loop around the evaluation."""
    part = _cut_loader(plan, evaluation)
    made = {var for line in part.lines for var in plan.slicer.of_line(line)[1]}
    known = made | set(plan.constants) | plan.program.namespaces | plan.anatomy.devices
    return part.needs <= known


def _cut_evaluation(plan: Plan) -> None:
    anatomy, evaluation = plan.anatomy, plan.evaluation
    if evaluation is None:
        return
    if not plan.evaluates_training:
        plan.eval_loader = evaluation.loader
        assert evaluation.loader is not None
        plan.evaluated = _cut_loader(plan, evaluation)
        if plan.train_loader is not None and _is_drawn(plan, plan.evaluated) and _is_drawn(plan, plan.train):
            # From one stream of random numbers: drawn alone, they would be those that training has.
            plan.evaluated = _cut_loader(plan, evaluation, [plan.train_loader])
        _with_seeds(plan, plan.evaluated, [])
    before = [line for line in anatomy.setup if line in anatomy.setup_of_epoch]
    if plan.by_hand is None:
        assert plan.target is not None
        lines = [*before, *plan.step.lines]
        read_metric(anatomy, evaluation, plan.slicer, plan.renderer, lines, plan.target)


def _cut_model(plan: Plan) -> None:
    anatomy = plan.anatomy
    assert anatomy.model is not None
    wanted = {anatomy.model, *plan.free}
    evaluation = plan.evaluation
    if evaluation is not None and evaluation.labels and evaluation.predictions:
        assert evaluation.loop is not None
        own = {w for line in evaluation.extra for w in plan.slicer.of_line(line)[1]} | set(evaluation.same)
        own |= plan.slicer.mentions(evaluation.loop.target, evaluation.frame)[1]
        more: set[Var] = set()
        for line in evaluation.extra:
            more |= plan.slicer.of_line(line)[0] - own
        for part in (evaluation.labels, evaluation.predictions):
            more |= plan.slicer.mentions(*part)[0] - own
        more -= set(plan.constants) | anatomy.devices | plan.program.namespaces | {anatomy.model}
        plan.free += [v for v in sorted(more, key=lambda v: v.name) if v not in plan.free]
        wanted |= more
    if plan.tuning.own_optimizer and anatomy.optimizer is not None:
        call, frame, _ = next(
            (v, f, i) for v, f, i in anatomy.values.definitions[anatomy.optimizer] if v is not None
        )
        wanted |= plan.slicer.mentions(call, frame)[0]
    skipped = gone(plan, anatomy.setup)
    plan.model = plan.slicer.cut(anatomy.setup, variables=wanted, without=skipped)
    plan.model.settings |= plan.step.settings


# -- settings ----------------------------------------------------------------------------------------------------------------------


def _global_names(plan: Plan, node: ast.AST, frame: Frame) -> set[str]:
    found = set()
    for occurrence in plan.program.occurrences(node, frame):
        if isinstance(occurrence.ref, Global) and occurrence.ref.unit is plan.program.entry:
            found.add(occurrence.ref.name)
        elif isinstance(occurrence.ref, Given) and occurrence.ref.expr is not occurrence.node:
            found |= _global_names(plan, occurrence.ref.expr, occurrence.ref.frame)
    return found


def needed_names(plan: Plan, lines: list[Line]) -> set[str]:
    """Top-level names of the script that some lines use."""
    found: set[str] = set()
    for line in lines:
        if line.value is not None and line.target is not None:
            found |= _global_names(plan, *line.value)
        else:
            found |= _global_names(plan, line.node, line.frame)
    return found


def _pin(plan: Plan) -> None:
    """Constants that classes and functions read as globals stay constants of their file."""
    lines = [*plan.model.lines, *plan.train.lines, *plan.evaluated.lines, *plan.step.lines]
    lines += plan.evaluation.extra if plan.evaluation else []
    lines += [*plan.by_hand.lines, *plan.by_hand.of_epoch] if plan.by_hand else []
    plan.pinned |= plan.definitions.variables(closed_names(plan, needed_names(plan, lines)))


def closed_names(plan: Plan, names: set[str]) -> set[str]:
    """Top-level names with all that they need: what definitions mention, and what makes the globals among them."""
    while True:
        found = plan.definitions.closure(names)
        for var in plan.definitions.variables(found):
            if var not in plan.program.namespaces:
                found |= needed_names(plan, plan.slicer.cut(plan.anatomy.setup, variables=[var]).lines)
        found = plan.definitions.closure(found)
        if found <= names:
            return found
        names = found


def _sort_settings(plan: Plan) -> None:
    settings, slicer = plan.settings, plan.slicer

    def keys(part: Slice) -> list[Key]:
        wanted: set[Key] = {*part.settings, *(v for v in part.needs if v in plan.constants)}
        return [k for k in settings.entries if k in wanted and not _stays(plan, k)]

    step_needs = set(plan.step.needs)
    evaluation = plan.evaluation
    if evaluation is not None and evaluation.labels and evaluation.predictions:
        for line in evaluation.extra:
            step_needs |= slicer.of_line(line)[0]
            plan.step.settings |= slicer.of_line(line)[2]
        for part in (evaluation.labels, evaluation.predictions):
            step_needs |= slicer.mentions(*part)[0]
            plan.step.settings |= slicer.mentions(*part)[2]
    for key in keys(plan.model) + keys(Slice([], step_needs, plan.step.settings)):
        settings.use(key, "model")
    for key in keys(plan.train):
        if "model" not in settings.entries[key].sections:
            settings.use(key, "train_input")
    evaluated = plan.evaluated
    if plan.shares_data:  # what both loaders come from is training's
        alone = [line for line in evaluated.lines if line not in plan.train.lines]
        mentioned = [slicer.of_line(line) for line in alone]
        evaluated = Slice(alone, {v for m in mentioned for v in m[0]}, {s for m in mentioned for s in m[2]})
    for key in keys(evaluated):
        if "model" not in settings.entries[key].sections:
            settings.use(key, "eval_input")
    users = (
        (plan.model, "model"),
        (plan.step, "model"),
        (plan.train, "train_input"),
        (plan.evaluated, "eval_input"),
    )
    for user, section in users:
        for space in user.needs & plan.program.namespaces:
            _use_whole(plan, space, section)
    settings.own["optimizer"] = plan.tuning.section
    for name, comment in plan.tuning.comments.items():
        settings.comments["optimizer", name] = comment


def _stays(plan: Plan, key: Key) -> bool:
    """Whether a setting stays a constant of its file, because functions read it as a global."""
    if isinstance(key, Var):
        return key in plan.pinned
    return key.space in plan.pinned and key.space in plan.program.tables


def _use_whole(plan: Plan, space: Var, section: str) -> None:
    """Settings that are handed on as one: those that any code mentions."""
    words: set[object] = set()
    trees: list[ast.AST] = [plan.program.entry.tree.module]
    for unit in plan.program.workspace.units():
        trees.append(unit.tree.module)
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                words.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.add(node.value)
    for key, entry in plan.settings.entries.items():
        is_used = isinstance(key, Setting) and key.space == space and key.key in words
        if is_used and not entry.sections and not _stays(plan, key):
            plan.settings.use(key, section)
