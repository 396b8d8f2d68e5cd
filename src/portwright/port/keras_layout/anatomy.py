"""What a Keras script does: its model, how it is compiled, and what fit() and evaluate() are given."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass, field
from typing import Any

from portwright.port.keras_layout.script import RefusalError, Script, Statement, calls_of
from portwright.port.tree import MethodCall

_COMPILE = (
    "optimizer",
    "loss",
    "metrics",
    "loss_weights",
    "weighted_metrics",
    "run_eagerly",
    "steps_per_execution",
    "jit_compile",
)
_FIT = (
    "x", "y", "batch_size", "epochs", "verbose", "callbacks", "validation_split", "validation_data", "shuffle", "class_weight",
    "sample_weight", "initial_epoch", "steps_per_epoch", "validation_steps", "validation_batch_size", "validation_freq",
    "max_queue_size", "workers", "use_multiprocessing",
)  # fmt: skip
_EVALUATE = ("x", "y", "batch_size", "verbose", "sample_weight", "steps", "callbacks")


_RENAMED = {"nb_epoch": "epochs"}  # of Keras 1


@dataclass
class Anatomy:
    """The parts of a script that a layout is made of."""

    model: str
    compile_at: int
    fit_at: int
    compile: dict[str, ast.expr]
    fit: dict[str, ast.expr]
    evaluates: list[tuple[int, ast.Call, dict[str, ast.expr]]] = field(default_factory=list)


def read_anatomy(script: Script) -> Anatomy:
    """Raises RefusalError where the script does not train one compiled model with one fit()."""
    fits = [(i, c) for i, s in enumerate(script.flow) for c in calls_of(s, "fit", "fit_generator")]
    fits = [(i, c) for i, c in fits if not _is_of_data(c)]
    if not fits:
        inside = next((s for s in script.definitions.values() if any(calls_of(s, "fit"))), None)
        if inside is not None:
            raise RefusalError(
                inside.node,
                f"fit() is called in '{next(iter(inside.changes))}' only, which the script's own flow does not reach",
                "Call fit() at the top of the script, or in a function that is called there with its arguments.",
            )
        raise RefusalError(
            None,
            "no call of a Keras model's fit() was found",
            "Name the script that calls fit(); an Estimator's script and a loop with GradientTape stay as they are: use "
            "--style in-place, or `portwright new NAME --framework tensorflow` and move the parts by hand.",
        )
    if len(fits) > 1:
        raise RefusalError(
            script.flow[fits[1][0]].node,
            "fit() is called twice",
            "Port the first training alone, and the second as a run of its own.",
        )
    fit_at, fit = fits[0]
    _refuse_nested(script.flow[fit_at], fit)
    if not isinstance(fit.func.value, ast.Name):
        raise RefusalError(
            fit, f"the model is '{ast.unparse(fit.func.value)}'", "Give the model a name of its own."
        )
    model = fit.func.value.id
    names = _aliases(script, model, fit_at)
    compiles = [
        (i, c)
        for i, s in enumerate(script.flow[: fit_at + 1])
        for c in calls_of(s, "compile")
        if ast.unparse(c.func.value) in names
    ]
    if not compiles:
        raise RefusalError(
            fit,
            f"no compile() of '{model}' was found in the script before fit()",
            "Call compile() in the script's own flow.",
        )
    compile_at, call = compiles[-1]
    compiled = ast.unparse(call.func.value)
    _refuse_nested(script.flow[compile_at], call)
    _refuse_own_steps(script)
    _refuse_keras_3(script)
    found = Anatomy(compiled, compile_at, fit_at, _arguments(call, _COMPILE), _arguments(fit, _FIT))
    _check_fit(found, fit)
    for position, statement in enumerate(script.flow):
        for other in calls_of(statement, "evaluate"):
            if ast.unparse(other.func) in {f"{n}.evaluate" for n in names} and other.args:
                found.evaluates.append((position, other, _arguments(other, _EVALUATE)))
    return found


def _aliases(script: Script, model: str, until: int) -> set[str]:
    """The names that a model has before fit(): a function that makes one may call it otherwise."""
    names = {model}
    for statement in reversed(script.flow[:until]):
        node = statement.node
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and statement.changes & names:
            names.add(node.value.id)
    return names


def _is_of_data(call: MethodCall) -> bool:
    """scaler.fit(x), tokenizer.fit(...): nothing that a compiled model has."""
    name = ast.unparse(call.func.value).lower()
    given = {k.arg for k in call.keywords}
    if given & {
        "epochs",
        "batch_size",
        "validation_data",
        "validation_split",
        "callbacks",
        "verbose",
        "steps_per_epoch",
    }:
        return False
    return any(
        word in name
        for word in (
            "scaler",
            "encoder",
            "pca",
            "token",
            "datagen",
            "transform",
            "imputer",
            "binarizer",
            "vector",
        )
    )


def _refuse_nested(statement: Statement, call: ast.Call) -> None:
    node = statement.node
    value = node.value if isinstance(node, (ast.Expr, ast.Assign)) else None
    if value is not call:
        what = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        where = type(node).__name__.lower()
        raise RefusalError(
            call,
            f"{what}() stands inside of a '{where}' statement",
            f"Let {what}() be a statement of its own.",
        )


def _refuse_own_steps(script: Script) -> None:
    for name, statement in script.definitions.items():
        if isinstance(statement.node, ast.ClassDef):
            for method in statement.node.body:
                if isinstance(method, ast.FunctionDef) and method.name in (
                    "train_step",
                    "test_step",
                    "make_train_function",
                ):
                    message = f"'{name}' has a {method.name} of its own"
                    raise RefusalError(
                        method,
                        message,
                        "Write model_fn by hand: its loss and its update are what this method computes.",
                    )


def _refuse_keras_3(script: Script) -> None:
    for node in ast.walk(script.module):
        text = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        if isinstance(node, ast.ImportFrom) and not node.level:
            text = node.module or ""
        if text in ("keras.ops", "keras.random", "keras.distribution"):
            raise RefusalError(
                node, f"it uses {text}, which Keras 3 alone has", "Write this part with tf.* functions."
            )


def _arguments(call: ast.Call, names: tuple[str, ...]) -> dict[str, ast.expr]:
    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        raise RefusalError(call, "its arguments come from a list or dict", "Write them out.")
    found = dict(zip(names, call.args, strict=False))
    found.update({_RENAMED.get(k.arg, k.arg): k.value for k in call.keywords if k.arg is not None})
    strange = [name for name in found if name not in names]
    if strange:
        what = call.func.attr if isinstance(call.func, ast.Attribute) else "it"
        raise RefusalError(
            call,
            f"{what}() is given {strange[0]}, which is not known here",
            "Leave it out, or say it in params.yaml.",
        )
    return {
        name: value
        for name, value in found.items()
        if not (isinstance(value, ast.Constant) and value.value is None)
    }


def _check_fit(anatomy: Anatomy, call: ast.Call) -> None:
    for name, what in (
        ("class_weight", "Weigh the loss in model_fn, by tf.gather(weights, labels)."),
        ("sample_weight", "Put the weights into the features, and weigh the loss in model_fn."),
        ("initial_epoch", "Leave it out: a run continues by itself where it stopped."),
    ):
        if name in anatomy.fit:
            raise RefusalError(call, f"fit() is given {name}", what)
    if "x" not in anatomy.fit:
        raise RefusalError(call, "fit() gets no data", "Give it arrays or a dataset.")
    if "loss" not in anatomy.compile:
        raise RefusalError(
            call,
            "the model is compiled without a loss",
            "Give compile() a loss; add_loss() alone has none to name.",
        )
    if "optimizer" not in anatomy.compile:
        anatomy.compile["optimizer"] = ast.Constant("rmsprop")
    if "weighted_metrics" in anatomy.compile:
        raise RefusalError(
            call, "compile() is given weighted_metrics", "Write metrics_fn in model.py by hand."
        )


class NotLiteralError(Exception):
    """An expression whose value only a run would tell."""


class Literals:
    """Values of a script's expressions, as far as they are written in it."""

    def __init__(self, script: Script, until: int) -> None:
        self._values: dict[str, ast.expr | None] = {}
        for statement in script.flow[:until]:
            node = statement.node
            is_plain = (
                isinstance(node, ast.Assign)
                and len(node.targets) == 1
                and isinstance(node.targets[0], ast.Name)
            )
            for name in statement.changes:
                self._values[name] = node.value if is_plain and isinstance(node, ast.Assign) else None

    def expression(self, node: ast.expr) -> ast.expr:
        """What a name stands for."""
        seen: set[str] = set()
        while isinstance(node, ast.Name) and node.id not in seen:
            seen.add(node.id)
            value = self._values.get(node.id)
            if value is None:
                return node
            node = value
        return node

    def value(self, node: ast.expr) -> Any:
        """A number, text, list or dict; raises NotLiteralError."""
        node = self.expression(node)
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self.value(e) for e in node.elts]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.value(node.operand)
        if isinstance(node, ast.BinOp):
            return self._compute(node)
        raise NotLiteralError(ast.unparse(node))

    def _compute(self, node: ast.BinOp) -> Any:
        left, right = self.value(node.left), self.value(node.right)
        if not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
            raise NotLiteralError(ast.unparse(node))
        try:
            match node.op:
                case ast.Add():
                    return left + right
                case ast.Sub():
                    return left - right
                case ast.Mult():
                    return left * right
                case ast.Div():
                    return left / right
                case ast.FloorDiv():
                    return left // right
                case ast.Pow() if abs(right) < 64 and math.isfinite(left):
                    return left**right
        except (ZeroDivisionError, OverflowError):
            pass
        raise NotLiteralError(ast.unparse(node))
