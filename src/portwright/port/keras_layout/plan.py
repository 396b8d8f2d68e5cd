"""Which statements of a Keras script go where, and what params.yaml says."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from portwright.port.keras_layout.anatomy import Anatomy, Literals, NotLiteralError
from portwright.port.keras_layout.optimizer import optimizer_section
from portwright.port.keras_layout.script import RefusalError, Script, Statement, calls_of

_EPOCHS, _BATCH = 1, 32  # fit()'s own defaults
_CALLBACKS = {  # what run() does instead; "" where nothing does
    "ModelCheckpoint": "runconfig.checkpoint_steps and max_checkpoints",
    "BackupAndRestore": "a run continues from its last checkpoint",
    "TensorBoard": "the event files of model_dir",
    "CSVLogger": "log.jsonl in model_dir",
    "ProgbarLogger": "the progress of run()",
    "TerminateOnNaN": "runconfig.check_loss_values",
    "History": "log.jsonl in model_dir",
    "EarlyStopping": "",
    "ReduceLROnPlateau": "",
    "LearningRateScheduler": "",
}
_CURES = {
    "EarlyStopping": "Use stop_if_no_decrease_hook of portwright.tensorflow with an Estimator of your own, or watch the run and stop it.",
    "ReduceLROnPlateau": "Give optimizer.learning_rate a schedule in params.yaml.",
    "LearningRateScheduler": "Give optimizer.learning_rate a schedule in params.yaml.",
}
_SHOWN = (
    "summary",
    "plot_model",
    "print",
    "show",
    "plot",
    "savefig",
    "figure",
    "legend",
    "xlabel",
    "ylabel",
    "title",
)


@dataclass
class Feed:
    """Where batches of one kind come from: arrays that are cut into batches, or a dataset as it is."""

    kind: str  # "arrays" or "dataset"
    features: ast.expr
    labels: ast.expr | None
    until: int  # the position in the flow where they are read


@dataclass
class Plan:
    script: Script
    anatomy: Anatomy
    train: Feed
    evaluation: Feed | None
    split: float  # of validation_split; 0: none
    params: dict[str, dict[str, Any]] = field(default_factory=dict)
    comments: dict[str, str] = field(default_factory=dict)  # "section.key": comment
    dissolved: list[tuple[ast.AST, str]] = field(default_factory=list)
    left: list[tuple[ast.AST, str, str, str]] = field(default_factory=list)  # node, code, message, cure

    def not_said(self, node: ast.AST, message: str, cure: str) -> None:
        self.left.append((node, "PW703", message, cure))


def make_plan(script: Script, anatomy: Anatomy) -> Plan:
    literals = Literals(script, anatomy.fit_at)
    fit = anatomy.fit
    train = _feed(script, fit["x"], fit.get("y"), anatomy.fit_at, literals)
    split = float(_number(fit, "validation_split", literals, 0.0))
    if split and train.kind == "dataset":
        raise RefusalError(
            fit["validation_split"], "a dataset cannot be split by validation_split", "Give validation_data."
        )
    if not 0 <= split < 1:
        raise RefusalError(
            fit["validation_split"], f"validation_split is {split}", "Give a fraction below 1."
        )
    plan = Plan(script, anatomy, train, _evaluation(script, anatomy, literals), split)
    _write_params(plan, literals)
    _judge_callbacks(plan, literals)
    return plan


def _feed(script: Script, x: ast.expr, y: ast.expr | None, until: int, literals: Literals) -> Feed:
    if y is not None:
        return Feed("arrays", x, y, until)
    made = literals.expression(x)
    text = ast.unparse(made)
    if any(
        word in text for word in ("ImageDataGenerator", ".flow(", ".flow_from_", "Sequence(", "generator(")
    ):
        raise RefusalError(
            x,
            f"the data come from a generator: {text[:60]}",
            "Make a tf.data.Dataset of it: image_dataset_from_directory, or from_generator.",
        )
    if _is_class_of(script, made, "Sequence"):
        raise RefusalError(x, "the data come from a keras Sequence", "Make a tf.data.Dataset of it.")
    return Feed("dataset", x, None, until)


def _is_class_of(script: Script, made: ast.expr, base: str) -> bool:
    if not isinstance(made, ast.Call) or not isinstance(made.func, ast.Name):
        return False
    found = script.definitions.get(made.func.id)
    node = found.node if found is not None else None
    if isinstance(node, ast.FunctionDef) and any(
        isinstance(p, (ast.Yield, ast.YieldFrom)) for p in ast.walk(node)
    ):
        return True
    return isinstance(node, ast.ClassDef) and any(ast.unparse(b).endswith(base) for b in node.bases)


def _evaluation(script: Script, anatomy: Anatomy, literals: Literals) -> Feed | None:
    given = anatomy.fit.get("validation_data")
    if given is not None:
        made = literals.expression(given)
        if isinstance(made, (ast.Tuple, ast.List)):
            if len(made.elts) != 2:
                raise RefusalError(given, "validation_data has weights", "Give (x, y).")
            return Feed("arrays", made.elts[0], made.elts[1], anatomy.fit_at)
        return Feed("dataset", given, None, anatomy.fit_at)
    if "validation_split" in anatomy.fit:
        return None
    if (
        anatomy.evaluate is not None
        and anatomy.evaluate_at is not None
        and "sample_weight" not in anatomy.evaluate
    ):
        return _feed(script, anatomy.evaluate["x"], anatomy.evaluate.get("y"), anatomy.evaluate_at, literals)
    return None


def _number(given: dict[str, ast.expr], name: str, literals: Literals, default: Any) -> Any:
    if name not in given:
        return default
    try:
        return literals.value(given[name])
    except NotLiteralError as error:
        raise RefusalError(given[name], f"{name} is computed: {error}", "Write the number.") from None


def _write_params(plan: Plan, literals: Literals) -> None:
    fit, anatomy = plan.anatomy.fit, plan.anatomy
    batch_size = _number(fit, "batch_size", literals, _BATCH)
    train: dict[str, Any] = {}
    if plan.train.kind == "arrays":
        shuffle = _number(fit, "shuffle", literals, True)
        train = {"batch_size": batch_size, "shuffle": bool(shuffle), "drop_last": False}
        plan.comments["train_input.drop_last"] = "true for accelerators, which want batches of one shape"
        plan.not_said(
            fit["x"], "the last batch of an epoch can be smaller than the others, as in fit()",
            "Set train_input.drop_last: true for an accelerator, or choose a batch_size that divides the number of samples.",
        )  # fmt: skip
        if shuffle:
            plan.not_said(
                fit["x"],
                "fit() shuffles the samples in an order of its own",
                "Nothing to do; with shuffle=False the losses are the same.",
            )
    evaluation: dict[str, Any] = {}
    if (plan.evaluation is not None and plan.evaluation.kind == "arrays") or plan.split:
        given = {**(anatomy.evaluate or {})}
        size = _number(
            fit, "validation_batch_size", literals, _number(given, "batch_size", literals, batch_size)
        )
        evaluation = {"batch_size": size, "drop_last": False}
        if plan.split:
            evaluation["validation_split"] = plan.split
            train["validation_split"] = plan.split
    runconfig: dict[str, Any] = {"num_epochs": _number(fit, "epochs", literals, _EPOCHS)}
    if "steps_per_epoch" in fit:
        runconfig["steps_per_epoch"] = _number(fit, "steps_per_epoch", literals, None)
    if "validation_steps" in fit:
        runconfig["eval_steps"] = _number(fit, "validation_steps", literals, None)
    seed = _seed(plan.script)
    runconfig["seed"] = 1 if seed is None else seed
    plan.params = {
        "train_input": train,
        "eval_input": evaluation,
        "model": {},
        "optimizer": optimizer_section(
            anatomy.compile["optimizer"], Literals(plan.script, anatomy.compile_at)
        ),
        "runconfig": runconfig,
    }


def _seed(script: Script) -> int | None:
    for statement in script.flow:
        for call in calls_of(statement, "set_random_seed", "set_seed"):
            if call.args and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, int):
                return call.args[0].value
    return None


def _judge_callbacks(plan: Plan, literals: Literals) -> None:
    given = plan.anatomy.fit.get("callbacks")
    if given is None:
        return
    listed = literals.expression(given)
    elements: Iterable[ast.expr] = listed.elts if isinstance(listed, (ast.List, ast.Tuple)) else [listed]
    for element in elements:
        made = literals.expression(element)
        name = ast.unparse(made.func if isinstance(made, ast.Call) else made).rpartition(".")[2]
        instead = _CALLBACKS.get(name, "")
        if instead:
            plan.dissolved.append((element, instead))
        else:
            cure = _CURES.get(name, "Do it in a hook of portwright.tensorflow, or after the run.")
            plan.left.append((element, "PW701", f"the callback {name} has no place in run()", cure))


def settle(plan: Plan) -> None:
    """Says of every statement that went into no file where it went, or that it is left."""
    script, anatomy = plan.script, plan.anatomy
    for position, statement in enumerate(script.flow):
        if statement.places:
            continue
        node = statement.node
        if position in (anatomy.compile_at, anatomy.fit_at):
            plan.dissolved.append((node, "run()"))
        elif any(calls_of(statement, "evaluate")):
            plan.dissolved.append((node, "python run.py CPU --mode eval"))
        elif any(calls_of(statement, "predict")):
            plan.dissolved.append((node, "python run.py CPU --mode predict"))
        elif any(calls_of(statement, "save", "save_weights", "export")):
            plan.left.append(
                (
                    node,
                    "PW701",
                    _first_line(statement),
                    "Checkpoints are in model_dir; export_saved_model of an Estimator exports one.",
                )
            )
        elif _only_shows(statement) or _is_consumed(plan, statement) or _is_alias(node, anatomy.model):
            plan.dissolved.append((node, "nothing: it shows or prepares what run() does"))
        else:
            plan.left.append(
                (node, "PW701", _first_line(statement), "Put it where it belongs, in model.py or data.py.")
            )


def _first_line(statement: Statement) -> str:
    return f"not placed: {statement.text.splitlines()[0].strip()}"


def _is_alias(node: ast.AST, model: str) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id == model


def _only_shows(statement: Statement) -> bool:
    node = statement.node
    if not isinstance(node, (ast.Expr, ast.For, ast.If)):
        return False
    calls = [c for c in ast.walk(node) if isinstance(c, ast.Call)]
    shown = [
        c
        for c in calls
        if (c.func.attr if isinstance(c.func, ast.Attribute) else getattr(c.func, "id", "")) in _SHOWN
    ]
    return bool(shown)


def _is_consumed(plan: Plan, statement: Statement) -> bool:
    """Optimizers, callbacks and numbers that are in params.yaml now."""
    given = {*plan.anatomy.fit.values(), *plan.anatomy.compile.values()}
    wanted = {n.id for value in given for n in ast.walk(value) if isinstance(n, ast.Name)}
    for _ in range(4):
        for other in plan.script.flow:
            if other.changes & wanted and isinstance(other.node, ast.Assign):
                wanted |= other.reads
    return isinstance(statement.node, ast.Assign) and bool(statement.changes & wanted)
