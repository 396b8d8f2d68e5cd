from __future__ import annotations

import ast
from collections.abc import Iterator

from portwright.port.finding import Edit, Finding
from portwright.port.model_functions import functions_of
from portwright.port.rewrite import has_star, is_constant, remove_statement
from portwright.port.rule import File, Rule
from portwright.port.tensorflow_names import tensorflow_of

# The metric of tf.compat.v1 that computes the same, where the metric is made without arguments of its own.
_TWINS = {
    "Accuracy": "accuracy",
    "Mean": "mean",
    "MeanAbsoluteError": "mean_absolute_error",
    "MeanSquaredError": "mean_squared_error",
    "RootMeanSquaredError": "root_mean_squared_error",
}


class KerasMetric(Rule):
    """Finds metrics of Keras in a model_fn.

    ## Why
    A metric of tf.keras keeps its state in variables of its own, which the vendor's estimator does not know. The
    metrics of tf.compat.v1 come as a value and an update, which run on the host.

    ## Example
    ```python
    import portwright.tensorflow as ptf
    import tensorflow as tf

    def model_fn(features, labels, mode, params):
        accuracy = tf.keras.metrics.Accuracy()
        accuracy.update_state(labels, features)
        return ptf.EstimatorSpec(mode, loss=params["loss"], eval_metric_ops={"accuracy": accuracy})
    ```

    ## Instead
    ```python
    import portwright.tensorflow as ptf
    import tensorflow as tf

    def model_fn(features, labels, mode, params):
        accuracy = tf.compat.v1.metrics.accuracy(labels, features)
        return ptf.EstimatorSpec(mode, loss=params["loss"], eval_metric_ops={"accuracy": accuracy})
    ```

    ## Safety
    Safe where the metric is made and updated once and otherwise only handed on, and has a twin of the same meaning
    (accuracy, mean, absolute, squared and root squared error). The others are left to you.
    """

    code = "PW619"
    name = "keras-metric"
    targets = ("csx",)
    safety = "safe"
    words = ("metrics",)
    cure = "Use tf.compat.v1.metrics, which gives a value and an update."
    framework = "tensorflow"

    def find(self, file: File) -> Iterator[Finding]:
        functions = functions_of(file)
        for call, name in tensorflow_of(file).calls("keras.metrics."):
            kind = name.rpartition(".")[2]
            if not kind[:1].isupper() or not functions.in_model_fn(call):
                continue
            message = f"{kind} of tf.keras keeps its state where the vendor's estimator does not look"
            yield self.report(file, call, message, _rewrite(file, call, kind))


def _rewrite(file: File, call: ast.Call, kind: str) -> list[Edit]:
    statement = file.tree.statement_of(call)
    twin = tensorflow_of(file).spell(f"compat.v1.metrics.{_TWINS.get(kind, '')}")
    if (
        kind not in _TWINS
        or twin is None
        or any(k.arg not in ("name", "dtype") for k in call.keywords)
        or len(call.args) > 1
        or any(not is_constant(a, None) and not isinstance(a, ast.Constant) for a in call.args)
        or not isinstance(statement, ast.Assign)
        or statement.value is not call
        or len(statement.targets) != 1
        or not isinstance(statement.targets[0], ast.Name)
    ):
        return []
    name = statement.targets[0].id
    function = file.tree.function_of(call)
    if function is None:
        return []
    updates: list[ast.Call] = []
    for node in ast.walk(function):
        if not isinstance(node, ast.Name) or node.id != name or node is statement.targets[0]:
            continue
        parent = file.tree.parents.get(node)
        if isinstance(parent, ast.Attribute):
            made = file.tree.parents.get(parent)
            if parent.attr != "update_state" or not isinstance(made, ast.Call) or made.func is not parent:
                return []
            if not isinstance(file.tree.parents.get(made), ast.Expr) or has_star(made):
                return []
            updates.append(made)
        elif not isinstance(node.ctx, ast.Load) or (isinstance(parent, ast.Call) and parent.func is node):
            return []
    if len(updates) != 1:
        return []
    update = updates[0]
    at = file.tree.statement_of(update)
    if at is None or file.tree.block_of(at) is not file.tree.block_of(statement):
        return []
    arguments = _arguments(file, update, kind)
    if arguments is None:
        return []
    text = f"{name} = {twin}({arguments})"
    return [*remove_statement(file, statement), file.replace(update, text)]


def _arguments(file: File, update: ast.Call, kind: str) -> str | None:
    names = {"y_true": "labels", "y_pred": "predictions", "sample_weight": "weights", "values": "values"}
    parts = [file.segment(a) for a in update.args]
    most = 1 if kind == "Mean" else 2
    if len(parts) > most:
        parts[most:] = [f"weights={parts[most]}", *parts[most + 1 :]]
    for given in update.keywords:
        if given.arg not in names:
            return None
        parts.append(f"{names[given.arg]}={file.segment(given.value)}")
    return ", ".join(parts) if len(parts) <= most + 1 else None


RULE = KerasMetric()
