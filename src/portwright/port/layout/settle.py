"""Settles the account: what no file took is dissolved into run() or left to a person, statement by statement."""

from __future__ import annotations

import ast

from portwright.port.layout.account import NOT_SAID
from portwright.port.layout.anatomy import is_made_of
from portwright.port.layout.dissolve import ARGUMENTS, OTHERWISE, REPORTS, UPDATES, harmless
from portwright.port.layout.plan import Plan
from portwright.port.layout.program import Header, Item, Line, Loop, Var
from portwright.port.layout.values import UnknownError

EVALUATES = (
    "run() evaluates: --mode eval and train_and_eval, with get_eval_dataloader() and the metrics of model.py"
)
_CURE = "Put it where it belongs in the layout, or keep the script's loop with --style in-place."


def settle(plan: Plan) -> None:
    anatomy, account = plan.anatomy, plan.account
    unit = anatomy.backward.frame.unit
    account.dissolve(unit, anatomy.backward.node, UPDATES)
    for loop in (anatomy.epoch_loop, anatomy.batch_loop):
        if loop is not None:
            into = "runconfig.num_epochs" if loop is anatomy.epoch_loop else "run() goes over the batches"
            if loop is anatomy.batch_loop and plan.by_hand is not None:
                into = "get_train_dataloader() of data.py; what it draws at random comes from the loader's own stream"
            account.dissolve(loop.frame.unit, loop.node, into)
    _settle_settings(plan)
    _find_own_file(plan)
    needed = _needed(plan)
    for item in plan.program.items:
        _settle_item(plan, item, needed)
    for statement in plan.program.entry.tree.module.body:
        if isinstance(
            statement, (ast.Import, ast.ImportFrom)
        ) and "portwright" not in plan.program.entry.text(statement):
            account.place(plan.program.entry, statement, "where its names are used")


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
    reason = (
        "another name for the same object"
        if item in plan.anatomy.values.alias_lines
        else plan.dissolver.why(item)
    )
    if reason is None and isinstance(item, Line):
        reason = _why_needless(plan, item, needed)
    if reason is not None:
        account.dissolve(unit, item.node, reason)
        return
    if isinstance(item, Header):
        account.leave(unit, item.node, f"run() has no place for this: {_first_line(plan, item)}", _CURE)
        return
    if any(isinstance(n, (ast.Break, ast.Return)) for n in ast.walk(item.node)) and isinstance(
        item.node, (ast.If, ast.Return)
    ):
        account.leave(
            unit, item.node, f"training ends early by a condition, which run() does not look at: {_first_line(plan, item)}",
            "Choose runconfig.num_epochs or max_steps; --mode eval_all tells which checkpoint is the best.",
        )  # fmt: skip
        return
    account.leave(unit, item.node, f"run() has no place for this: {_first_line(plan, item)}", _CURE)


def _why_needless(plan: Plan, line: Line, needed: set[Var]) -> str | None:
    if any(line in evaluation.callers for evaluation in plan.evaluations):
        return EVALUATES
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


def _first_line(plan: Plan, item: Line | Header) -> str:
    text = item.frame.unit.text(item.node).split("\n")[0].strip()
    return text if len(text) <= 80 else text[:77] + "..."
