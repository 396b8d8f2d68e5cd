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
    "CSVLogger": "the event files of model_dir",
    "ProgbarLogger": "the progress of run()",
    "TerminateOnNaN": "runconfig.check_loss_values",
    "History": "the event files of model_dir",
    "EarlyStopping": "",
    "ReduceLROnPlateau": "",
    "LearningRateScheduler": "",
}
_CURES = {
    "EarlyStopping": "Use stop_if_no_decrease_hook of portwright.tensorflow.experimental with an Estimator of your own, or watch the run and stop it.",
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


_PREDICTS = ("predict", "predict_generator", "predict_classes", "predict_proba", "predict_on_batch")
_ASKS = ("evaluate", "evaluate_generator", "test_on_batch", *_PREDICTS)


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
    evaluated: dict[str, ast.expr] = field(default_factory=dict)  # what the evaluate() was given that is kept
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
    evaluation, evaluated = _evaluation(script, anatomy, train, literals)
    plan = Plan(script, anatomy, train, evaluation, split, evaluated)
    _write_params(plan, literals)
    _scale_loss(plan)
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


def _evaluation(
    script: Script, anatomy: Anatomy, train: Feed, literals: Literals
) -> tuple[Feed | None, dict[str, ast.expr]]:
    """The data of fit()'s validation; without one, those of the first evaluate(), and what else that was given."""
    given = anatomy.fit.get("validation_data")
    if given is not None:
        made = literals.expression(given)
        if isinstance(made, (ast.Tuple, ast.List)):
            if len(made.elts) != 2:
                raise RefusalError(given, "validation_data has weights", "Give (x, y).")
            return Feed("arrays", made.elts[0], made.elts[1], anatomy.fit_at), {}
        return Feed("dataset", given, None, anatomy.fit_at), {}
    if "validation_split" in anatomy.fit:
        return None, {}
    found = [
        (position, arguments)
        for position, _, arguments in anatomy.evaluates
        if not {"sample_weight", "steps"} & arguments.keys()
    ]
    others = [row for row in found if not _is_fed(script, row[0], row[1], train)]
    for position, arguments in (others or found)[:1]:
        return _feed(script, arguments["x"], arguments.get("y"), position, literals), arguments
    return None, {}


def _is_fed(script: Script, position: int, arguments: dict[str, ast.expr], feed: Feed) -> bool:
    """Whether a call sees the data of a feed: the same names, which nothing changes in between."""
    one, other = (arguments["x"], arguments.get("y")), (feed.features, feed.labels)
    if [e and ast.dump(e) for e in one] != [e and ast.dump(e) for e in other]:
        return False
    names = {n.id for e in one if e is not None for n in ast.walk(e) if isinstance(n, ast.Name)}
    first, last = sorted((position, feed.until))
    return not any(s.changes & names for s in script.flow[first:last])


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
        default = _number(plan.evaluated, "batch_size", literals, batch_size)
        size = _number(fit, "validation_batch_size", literals, default)
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


def _scale_loss(plan: Plan) -> None:
    """Keras scales the loss under mixed_float16 by itself; params.yaml says it."""
    for statement in plan.script.flow[: plan.anatomy.fit_at]:
        for call in calls_of(statement, "set_global_policy", "set_policy", "Policy"):
            if any(isinstance(n, ast.Constant) and n.value == "mixed_float16" for n in ast.walk(call)):
                plan.params["optimizer"].update(loss_scaling_factor="dynamic")
                plan.comments["optimizer.loss_scaling_factor"] = (
                    "as Keras scales the loss under mixed_float16"
                )


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
        elif _asks_model(script, statement):
            lost = _left_out(plan, position, statement)
            plan.left += [(call, "PW701", message, cure) for call, message, cure in lost]
            if not lost:
                modes = [m for m in ("evaluate", "predict") if any(calls_of(statement, m))]
                into = ", ".join(f"python run.py CPU --mode {m.replace('evaluate', 'eval')}" for m in modes)
                plan.dissolved.append((node, into))
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


def _asks_model(script: Script, statement: Statement) -> bool:
    """Whether a statement evaluates or predicts, or calls a function of the script that does."""
    reached = [statement, *script.needed_definitions(set(statement.reads))]
    return any(any(calls_of(s, *_ASKS)) for s in reached)


def _left_out(plan: Plan, position: int, statement: Statement) -> list[tuple[ast.AST, str, str]]:
    """What a statement evaluates or predicts on other data than eval_input_fn gives: node, message, cure."""
    script, feed = plan.script, plan.evaluation
    if feed is not None:
        data = ast.unparse(feed.features)
    else:
        data = "the validation_split of fit()" if plan.split else "no data"
    known = {id(call): arguments for _, call, arguments in plan.anatomy.evaluates}
    calls = list(calls_of(statement, *_ASKS))
    lost: list[tuple[ast.AST, str, str]] = []
    for call in calls:
        arguments = known.get(id(call), {})
        if call.func.attr == "predict" and call.args and feed is not None:
            arguments = (
                {"x": call.args[0], "y": feed.labels} if feed.labels is not None else {"x": call.args[0]}
            )
        is_kept = feed is not None and "x" in arguments and _is_fed(script, position, arguments, feed)
        if not is_kept or {"sample_weight", "steps"} & arguments.keys():
            mode = "predict" if call.func.attr in _PREDICTS else "eval"
            message = f"{ast.unparse(call)[:80]} is left out: run.py --mode {mode} reads {data}"
            lost.append(
                (
                    call,
                    message,
                    f"Let {mode}_input_fn in data.py return these data, and run.py hand it to run().",
                )
            )
    if not calls:
        cure = "Call evaluate() and predict() in the script's own flow, or write eval_input_fn in data.py by hand."
        lost.append((statement.node, f"{_first_line(statement)}, which evaluates or predicts", cure))
    return lost


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
