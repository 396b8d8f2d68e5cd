"""Settles the account: what no file took is dissolved into run() or left to a person, statement by statement."""

from __future__ import annotations

import ast

from portwright.port.layout.account import NOT_SAID
from portwright.port.layout.anatomy import is_made_of
from portwright.port.layout.dissolve import (
    ARGUMENTS,
    BATCHES,
    DRAWN,
    EPOCHS,
    OTHERWISE,
    PIECES,
    REPORTS,
    RESUMES,
    SAME_OBJECT,
    UPDATES,
    harmless,
)
from portwright.port.layout.evaluation import Evaluation
from portwright.port.layout.otherwise import tell_differences
from portwright.port.layout.plan import Plan
from portwright.port.layout.program import Header, Item, Line, Loop, Var, flatten
from portwright.port.layout.values import UnknownError
from portwright.port.tree import FUNCTIONS

EVALUATES = "run() evaluates: --mode eval and train_and_eval, with get_eval_dataloader()"
NAMED = "nothing: a finding names it, or what depends on it"
_CURE = "Put it where it belongs in the layout, or keep the script's loop with --style in-place."


def settle(plan: Plan) -> None:
    anatomy, account = plan.anatomy, plan.account
    unit = anatomy.backward.frame.unit
    account.dissolve(unit, anatomy.backward.node, UPDATES)
    for loop in (anatomy.epoch_loop, anatomy.batch_loop):
        if loop is not None:
            into = EPOCHS if loop is anatomy.epoch_loop else BATCHES
            if loop is anatomy.batch_loop and plan.by_hand is not None:
                into = DRAWN
            account.dissolve(loop.frame.unit, loop.node, into)
    _settle_settings(plan)
    _find_own_file(plan)
    tell_evaluations(plan)
    tell_differences(plan)
    needed = _needed(plan)
    for item in plan.program.items:
        _settle_item(plan, item, needed)
    _tell_dependents(plan)
    for statement in plan.program.entry.tree.module.body:
        if isinstance(
            statement, (ast.Import, ast.ImportFrom)
        ) and "portwright" not in plan.program.entry.text(statement):
            account.place(plan.program.entry, statement, "where its names are used")


def tell_evaluations(plan: Plan) -> None:
    """A finding of each evaluation that run() does not make, and of one that it makes of more batches."""
    if plan.evaluation is not None:
        on = f"run() evaluates on {_loader_text(plan, plan.evaluation)}"
    elif plan.eval_phase is not None:
        on = f"run() evaluates on the data of the phase {plan.eval_phase!r}"
    else:
        on = "get_eval_dataloader() has no data to return"
    kept_calls = {evaluation.outer for evaluation in plan.kept}
    for evaluation in plan.evaluations:
        unit, node = evaluation.callers[0].frame.unit, evaluation.outer
        text = _shortened(unit.text(node))
        data = _loader_text(plan, evaluation) if evaluation.loader else ""
        if evaluation not in plan.kept:
            what = f"what {text} makes of {data or 'other data'}" if node in kept_calls else text
            why = "" if data else "which loader its data come from cannot be told, and "
            plan.account.leave(
                unit, node, f"{what} is left out: {why}{on}",
                "Let get_eval_dataloader() in data.py return a loader of these data, and run.py --mode eval evaluates on them.",
            )  # fmt: skip
        elif evaluation.part:
            message = f"{text} evaluates on some batches of {data}, and run() on all of them"
            plan.account.leave(unit, node, message, "Set runconfig.eval_steps.", NOT_SAID)


def _loader_text(plan: Plan, evaluation: Evaluation) -> str:
    assert evaluation.loader is not None
    node, frame = evaluation.loader
    ref = plan.program.reference(node, frame)
    return ref.name if isinstance(ref, Var) else _shortened(frame.unit.text(node))


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 80 else text[:77] + "..."


def _find_own_file(plan: Plan) -> None:
    """`__file__` means another folder in the layout than it did in the script."""
    unit = plan.program.entry
    for name in unit.tree.all(ast.Name):
        statement = unit.tree.statement_of(name)
        if name.id == "__file__" and statement is not None:
            plan.account.leave(
                unit, name, "the script asks where it stands (__file__), and its layout stands elsewhere",
                "Name the folder in configs/params.yaml, or copy what is read there to the layout.", NOT_SAID,
            )  # fmt: skip


def _needed(plan: Plan) -> set[Var]:
    found = plan.model.needs | plan.train.needs | plan.evaluated.needs | plan.step.needs
    assert plan.anatomy.model is not None
    return found | {
        v for v in (plan.anatomy.model, plan.anatomy.optimizer, plan.anatomy.scheduler) if v is not None
    }


def _settle_settings(plan: Plan) -> None:
    account, settings, values = plan.account, plan.settings, plan.anatomy.values
    for line in values.argparse_lines:
        if any(
            o.node is getattr(line.node, "value", None)
            for s, o in values.options.items()
            if s.space in plan.program.tables
        ):
            account.place(line.frame.unit, line.node, "configs/params.yaml")
            continue
        calls = {o.node: s for s, o in values.options.items()}
        key = next((calls[n] for n in ast.walk(line.node) if isinstance(n, ast.Call) and n in calls), None)
        entry = settings.entries.get(key) if key is not None else None
        if key is not None and key in settings.fixed:
            account.place(line.frame.unit, line.node, f"configs/params.yaml: {settings.fixed[key]}")
        elif entry is not None and entry.sections:
            where = ", ".join(f"{section}.{entry.key}" for section in entry.sections)
            account.place(line.frame.unit, line.node, f"configs/params.yaml: {where}")
        else:
            account.dissolve(line.frame.unit, line.node, ARGUMENTS)
    for var, line in plan.constants.items():
        entry = settings.entries[var]
        if var in settings.fixed:
            account.place(line.frame.unit, line.node, f"configs/params.yaml: {settings.fixed[var]}")
        elif entry.sections:
            where = ", ".join(f"{section}.{entry.key}" for section in entry.sections)
            account.place(line.frame.unit, line.node, f"configs/params.yaml: {where}")


def _settle_item(plan: Plan, item: Item, needed: set[Var]) -> None:
    account, unit = plan.account, item.frame.unit
    if isinstance(item, Loop):
        for inner in item.body:
            _settle_item(plan, inner, needed)
        if not account.knows(item.node):
            account.leave(unit, item.node, "this loop trains, too", _CURE)
        return
    if account.knows(item.node):
        return
    reason = _of_evaluation(plan, item) if isinstance(item, Line) else None
    if item.node in plan.program.entered:
        reason = reason or PIECES
    reason = reason or (SAME_OBJECT if item in plan.anatomy.values.alias_lines else plan.dissolver.why(item))
    if reason is None and isinstance(item, Line):
        reason = _why_needless(plan, item, needed)
    if reason == RESUMES and not _never_runs(plan, item):
        message = f"what is loaded here is not loaded by run(), which resumes from its own model_dir: {_first_line(item)}"
        account.leave(
            unit,
            item.node,
            message,
            "Name the file with --checkpoint_path, or load it in model.py.",
            NOT_SAID,
        )
        return
    if reason is not None:
        account.dissolve(unit, item.node, reason)
        return
    if isinstance(item, Header):
        account.leave(unit, item.node, f"run() has no place for this: {_first_line(item)}", _CURE)
        return
    if isinstance(item.node, (ast.If, ast.Return)) and _ends_training(item.node):
        account.leave(
            unit, item.node, f"training ends early by a condition, which run() does not look at: {_first_line(item)}",
            "Choose runconfig.num_epochs or max_steps; --mode eval_all tells which checkpoint is the best.",
        )  # fmt: skip
        return
    account.leave(unit, item.node, f"run() has no place for this: {_first_line(item)}", _CURE)


def _ends_training(node: ast.AST, *, in_loop: bool = False) -> bool:
    """Whether a condition, or a return, leaves the loop that trains."""
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return False
    if isinstance(node, (ast.Return, ast.Break)):
        return isinstance(node, ast.Return) or not in_loop
    in_loop = in_loop or isinstance(node, (ast.For, ast.While))
    return any(_ends_training(each, in_loop=in_loop) for each in ast.iter_child_nodes(node))


def _never_runs(plan: Plan, item: Line | Header) -> bool:
    """Whether a condition says no with the script's own settings."""
    return isinstance(item.node, ast.If) and not plan.anatomy.values.try_evaluate(
        item.node.test, item.frame, default=True
    )


def _of_evaluation(plan: Plan, line: Line) -> str | None:
    if not any(line in evaluation.callers for evaluation in plan.evaluations) or _ends_training(line.node):
        return None
    if not any(line in evaluation.callers for evaluation in plan.kept):
        return NAMED
    has_metric = plan.evaluation is not None and plan.evaluation.labels is not None
    return f"{EVALUATES}; it reports the loss{' and eval/accuracy' if has_metric else ' alone'}"


def _tell_dependents(plan: Plan) -> None:
    """More than a report depends on what a statement reads that is left to a person."""
    lines = [item for item in flatten(plan.program.items) if isinstance(item, Line)]
    account = plan.account
    read = {var for line in lines if account.is_left(line.node) for var in plan.slicer.of_line(line)[0]}
    for line in reversed(lines):
        row = account.dissolved.get(line.node)
        reads, writes, _ = plan.slicer.of_line(line)
        if row is not None and row["into"] == REPORTS and read & (writes | plan.slicer.effects(line)):
            row["into"] = NAMED
            read |= reads


def _why_needless(plan: Plan, line: Line, needed: set[Var]) -> str | None:
    if plan.dissolver.loads_again(line):
        return None
    if line in plan.constants.values() and line in plan.anatomy.setup:
        return ARGUMENTS if _is_consumed(plan, line) else REPORTS
    node = line.node
    if isinstance(node, ast.If):
        try:
            if not plan.anatomy.values.evaluate(node.test, line.frame) and not node.orelse:
                return OTHERWISE
        except UnknownError:
            pass
        if _saves_best(node):
            return "run() keeps the last checkpoints (runconfig.max_checkpoints); --mode eval_all tells which is the best"
    if not harmless(node):
        return None
    writes = plan.slicer.of_line(line)[1]
    if isinstance(node, ast.Return):
        return REPORTS
    if (
        writes & needed
        and line not in plan.anatomy.after_step
        and line not in plan.anatomy.after_epoch
        and line not in plan.anatomy.teardown
    ):
        return None
    touched = plan.slicer.effects(line)
    if touched & needed or any(_holds_optimizer(plan, var) for var in touched):
        return None
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        func = node.value.func
        if isinstance(func, ast.Attribute) and touched:
            return REPORTS  # losses.append(...), meter.update(...)
        later = line in plan.anatomy.after_step or line in plan.anatomy.after_epoch
        return REPORTS if later and plan.program.callee(node.value, line.frame) is not None else None
    return REPORTS


def _holds_optimizer(plan: Plan, var: Var) -> bool:
    optimizer = plan.anatomy.optimizer
    return optimizer is not None and is_made_of(plan.anatomy, var, optimizer)


def _is_consumed(plan: Plan, line: Line) -> bool:
    own = plan.slicer.of_line(line)[1]
    for other in (plan.anatomy.optimizer, plan.anatomy.scheduler):
        for _, _, item in plan.anatomy.values.definitions.get(other, []) if other is not None else ():
            if isinstance(item, Line) and plan.slicer.of_line(item)[0] & own:
                return True
    return any(plan.slicer.of_line(i)[0] & own for i in plan.anatomy.after_step if isinstance(i, Line))


def _saves_best(node: ast.If) -> bool:
    return any(
        isinstance(n, ast.Attribute) and n.attr in ("save", "state_dict", "save_pretrained", "deepcopy")
        for n in ast.walk(node)
    ) and not any(isinstance(n, (ast.Break, ast.Return)) for n in ast.walk(node))


def _first_line(item: Line | Header) -> str:
    return _shortened(item.frame.unit.text(item.node).split("\n")[0])
