"""How long to train, how often to log, evaluate and save: the section runconfig, as the script's loops have it."""

from __future__ import annotations

import ast

from portwright.port.layout.account import NOT_SAID
from portwright.port.layout.dissolve import is_seed
from portwright.port.layout.evaluation import batch_target, first_number
from portwright.port.layout.lengths import Lengths
from portwright.port.layout.plan import Plan
from portwright.port.layout.program import Frame, Given, Item, Line, Setting, Var, flatten
from portwright.port.layout.tuning import count_rounds
from portwright.port.layout.values import UnknownError


def describe_run(plan: Plan) -> None:
    """Fills runconfig; what counts epochs is noted for set_defaults where the number of batches is not known here."""
    config, anatomy = plan.settings.own["runconfig"], plan.anatomy
    plan.num_updates = _count_updates(plan)
    if anatomy.epoch_loop is not None:
        rounds = count_rounds(anatomy, anatomy.epoch_loop)
        if rounds is None:
            loop = anatomy.epoch_loop
            plan.account.leave(
                loop.frame.unit, loop.node, "how many epochs there are is known only when the script runs",
                "Set runconfig.num_epochs.", NOT_SAID,
            )  # fmt: skip
        config["num_epochs"] = rounds or 1
    elif plan.by_hand is not None and plan.num_updates:
        config["max_steps"] = plan.num_updates
    else:
        config["num_epochs"] = 1
    if plan.by_hand is not None and anatomy.epoch_loop is not None:
        if plan.num_updates:
            config["steps_per_epoch"] = plan.num_updates
        elif plan.by_hand.length is not None:
            plan.in_epochs["steps_per_epoch"] = 1
    limit = _find_limit(plan)
    if limit is not None:
        config.pop("num_epochs", None)
        config["max_steps"] = limit // plan.num_accumulated
    _describe_seed(plan)
    _describe_logs(plan)
    _describe_frequencies(plan)
    _describe_schedule(plan)


def _count_updates(plan: Plan) -> int | None:
    """Updates of one pass over the training data."""
    anatomy = plan.anatomy
    if plan.by_hand is not None:
        count = count_rounds(anatomy, anatomy.batch_loop)
    elif plan.train_loader is not None:
        count = Lengths(anatomy).of(*plan.train_loader)
    else:
        count = None
    return max(count // plan.num_accumulated, 1) if count else None


def _find_limit(plan: Plan) -> int | None:
    """n of `if step >= n: break`, in a loop that is the only one."""
    anatomy = plan.anatomy
    if anatomy.epoch_loop is not None or not isinstance(anatomy.batch_loop.node, ast.For):
        return None
    _, counter = batch_target(anatomy.batch_loop)
    if counter is None:
        return None
    for item in [*anatomy.step, *anatomy.after_step]:
        node = item.node
        if not (isinstance(item, Line) and isinstance(node, ast.If) and isinstance(node.body[-1], ast.Break)):
            continue
        test = node.test
        if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.left, ast.Name)):
            continue
        if plan.program.reference(test.left, item.frame) != plan.program.reference(
            counter, anatomy.batch_loop.frame
        ):
            continue
        count = plan.anatomy.values.try_evaluate(test.comparators[0], item.frame)
        if not isinstance(count, int) or not isinstance(test.ops[0], (ast.GtE, ast.Eq, ast.Gt)):
            continue
        count += isinstance(test.ops[0], ast.Gt) + (item in anatomy.after_step) - first_number(anatomy)
        if count > 0:
            plan.account.dissolve(item.frame.unit, node, "runconfig.max_steps")
            return count
    return None


def _describe_seed(plan: Plan) -> None:
    for line in plan.anatomy.setup:
        node = line.node
        if (
            is_seed(line)
            and isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and node.value.args
        ):
            seed = plan.anatomy.values.try_evaluate(node.value.args[0], line.frame)
            if isinstance(seed, int) and 0 <= seed < 2**32:
                plan.settings.own["runconfig"].setdefault("seed", seed)


def _describe_logs(plan: Plan) -> None:
    for item in plan.anatomy.after_step:
        every = _every(plan, item)
        if every is not None and _calls(
            item, "print", "info", "add_scalar", "log", "set_postfix", "set_description"
        ):
            plan.settings.own["runconfig"].setdefault("log_steps", every)


def _describe_frequencies(plan: Plan) -> None:
    """Evaluations and checkpoints: each epoch, or every so many steps or epochs."""
    anatomy, config = plan.anatomy, plan.settings.own["runconfig"]
    evaluating = {line for e in plan.kept for line in e.callers}
    for key in ("eval_frequency", "checkpoint_steps"):
        for item in flatten([*anatomy.after_step, *anatomy.after_epoch]):
            if not isinstance(item, Line):
                continue
            if (item not in evaluating) if key == "eval_frequency" else not _saves(plan, item):
                continue
            every = _every(plan, item) if isinstance(item.node, ast.If) else None
            if item in anatomy.after_step:
                if every is not None:
                    config.setdefault(key, every)
            elif anatomy.epoch_loop is not None and key not in config and key not in plan.in_epochs:
                if plan.num_updates:
                    config[key] = (every or 1) * plan.num_updates
                    plan.settings.comments["runconfig", key] = (
                        f"{'an epoch' if not every or every == 1 else f'{every} epochs'}"
                    )
                else:
                    plan.in_epochs[key] = every or 1


def _describe_schedule(plan: Plan) -> None:
    """A schedule that counts epochs counts steps from now on."""
    tuning = plan.tuning
    if tuning.in_epochs is None or not plan.num_updates:
        return
    key, spec = tuning.in_epochs, tuning.section["learning_rate"]
    count = spec[key]
    spec[key] = [c * plan.num_updates for c in count] if isinstance(count, list) else count * plan.num_updates
    plan.settings.comments["optimizer", "learning_rate"] = (
        f"{key}: {count} epoch{'' if count == 1 else 's'} of {plan.num_updates} steps"
    )
    tuning.in_epochs = None


def _every(plan: Plan, item: Item) -> int | None:
    """n of `if i % n == 0`."""
    if not isinstance(item.node, ast.If):
        return None
    for part in ast.walk(item.node.test):
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod):
            value = plan.anatomy.values.try_evaluate(part.right, item.frame)
            return value if isinstance(value, int) and value > 0 else None
    return None


def _calls(item: Item, *names: str) -> bool:
    return any(
        isinstance(n, ast.Call)
        and (getattr(n.func, "id", "") in names or getattr(n.func, "attr", "") in names)
        for n in ast.walk(item.node)
    )


def _saves(plan: Plan, item: Line) -> bool:
    for call in (n for n in ast.walk(item.node) if isinstance(n, ast.Call)):
        if item.frame.unit.names.resolve(call.func) == "torch.save":
            return True
        found = plan.program.callee(call, item.frame)
        if found is not None and any(
            isinstance(n, ast.Call) and found[0].names.resolve(n.func) == "torch.save"
            for n in ast.walk(found[1])
        ):
            return True
    return False


def fix_settings(plan: Plan) -> None:
    """Settings that run() knows by names of its own."""
    anatomy, settings = plan.anatomy, plan.settings
    loop = anatomy.epoch_loop or (anatomy.batch_loop if plan.by_hand is not None else None)
    if loop is not None and isinstance(loop.node, ast.For):
        name = "num_epochs" if anatomy.epoch_loop is not None else "max_steps"
        rounds = count_rounds(anatomy, loop)
        if rounds is not None and (name == "num_epochs" or plan.num_accumulated == 1):
            _fix(plan, loop.node.iter, loop.frame, rounds, f"runconfig.{name}")
    for line in anatomy.setup:
        if is_seed(line):
            try:
                call = line.node.value  # type: ignore[attr-defined]
                seed = anatomy.values.evaluate(call.args[0], line.frame)
            except (UnknownError, IndexError):
                continue
            if isinstance(seed, int) and not isinstance(seed, bool):
                _fix(plan, call.args[0], line.frame, seed, "runconfig.seed")
    settings.fixed = {k: v for k, v in settings.fixed.items() if k in settings.entries}


def _fix(plan: Plan, node: ast.AST, frame: Frame, value: int, name: str) -> None:
    for occurrence in plan.program.occurrences(node, frame):
        ref = occurrence.ref
        if isinstance(ref, Given) and ref.expr is not occurrence.node:
            _fix(plan, ref.expr, ref.frame, value, name)
        elif (
            isinstance(ref, (Setting, Var))
            and ref in plan.settings.entries
            and plan.settings.entries[ref].value == value
        ):
            plan.settings.fixed.setdefault(ref, name)
