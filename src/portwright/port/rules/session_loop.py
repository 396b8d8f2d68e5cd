from __future__ import annotations

import ast
from itertools import takewhile

from portwright.port.finding import Edit
from portwright.port.model_functions import functions_of
from portwright.port.rewrite import keyword
from portwright.port.rule import File, Findings
from portwright.port.tensorflow_names import TensorFlowRule, tensorflow_of
from portwright.port.tree import is_method_call

_SESSIONS = (
    "Session", "InteractiveSession", "train.MonitoredSession", "train.MonitoredTrainingSession", "train.SingularMonitoredSession",
    "train.Supervisor",
)  # fmt: skip
_TRAINS = ("fit", "fit_generator", "train", "train_on_batch")
_GRAPH_ONLY = ("placeholder", "placeholder_with_default", "sparse_placeholder")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_MODULES = ("tensorflow", "tensorflow.compat.v1")
_SWITCHES = ("disable_eager_execution", "disable_v2_behavior", "enable_eager_execution")


class SessionLoop(TensorFlowRule):
    """Finds training with sessions and placeholders, and a model_fn that trains by itself.

    ## Why
    In TensorFlow 2 what is written at the top of a script runs at once, and a placeholder is an error, unless
    that is switched off. And an accelerator's step is not fed by a loop of the host: it gets its batches from an input_fn,
    and its model from a model_fn, which builds a step and never calls train or fit: the Estimator does that.

    ## Example
    ```python
    import tensorflow as tf

    x = tf.compat.v1.placeholder(tf.float32, [8, 2])
    with tf.compat.v1.Session() as session:
        session.run(x * 2, feed_dict={x: [[1.0, 2.0]] * 8})
    ```

    ## Instead
    ```python
    import portwright.tensorflow as ptf
    import tensorflow as tf

    def model_fn(features, labels, mode, params):
        return ptf.EstimatorSpec(mode, predictions=features * 2)

    estimator = ptf.Estimator(model_fn)
    ```

    ## Safety
    Safe where the script cannot run on today's TensorFlow without the switch: the session or placeholder is called by
    a name that is gone, or first thing in a file without a graph of its own. The switch is disable_v2_behavior, by which
    shapes, variables and control flow are TensorFlow 1's too, and which `--compat estimator` sets. Elsewhere it is unsafe,
    since it is for the whole program, and other parts of it may count on eager execution. Turning the loop into a model_fn
    and an input_fn is left to you.
    """

    code = "PW626"
    needs = ("tensorflow_2", "fed_by_estimator")
    safety = "safe"
    words = (
        "Session",
        "placeholder",
        "MonitoredTrainingSession",
        "MonitoredSession",
        "Supervisor",
        "feed_dict",
        *_TRAINS,
    )
    cure = "Bring the model into a model_fn, what is fed into an input_fn, and let the Estimator run them."

    def find(self, file: File) -> Findings:
        names, functions = tensorflow_of(file), functions_of(file)
        sessions = [c for c, _ in names.calls(*_SESSIONS) if not functions.in_model_fn(c)]
        fed = [c for c, _ in names.calls(*_GRAPH_ONLY) if not _is_of_serving(file, c)]
        # What surely fails without the switch: a removed name, and code that runs at the top level.
        gone = {r.node for r in names.references if not r.generation and not names.may_be_for_both}
        if not any(r.name in _SWITCHES for r in names.references):
            first = min([*sessions, *fed], key=lambda c: c.lineno, default=None)
            text = names.spell("compat.v1.disable_v2_behavior")
            statement = _import_of_tensorflow(file)
            if first is not None and text is not None and statement is not None:
                text += "()"
                is_safe = any(c.func in gone or _runs_first(file, c) for c in [*sessions, *fed])
                yield self.report(
                    file, first, "TensorFlow 2 has no graph here unless it is told to",
                    _insert_behind_imports(file, statement, text), cure=f"Call {text} behind the imports.",
                    safety="safe" if is_safe else "unsafe",
                )  # fmt: skip
        trains = bool(file.methods("minimize", "apply_gradients"))
        for call in sessions:
            if trains and _runs_steps(file, call):
                message = "the host's own loop feeds the steps of this session"
                yield self.report(file, call, message, needs=("fed_by_estimator",))
        for name in _TRAINS:
            for call in file.methods(name):
                is_training = name != "train" or functions.is_estimator(call.func.value)
                if is_training and functions.in_model_fn(call):
                    message = f"model_fn calls {name}(), where it should only build a step"
                    yield self.report(
                        file, call, message, cure="Leave it out: the Estimator trains what model_fn builds.", needs=("fed_by_estimator",)
                    )  # fmt: skip


def _runs_first(file: File, call: ast.Call) -> bool:
    """Whether the call runs at the file's top level, outside a graph of its own."""
    statement = file.tree.statement_of(call)
    has_graph = bool(tensorflow_of(file).named("Graph"))
    return statement in file.tree.module.body and not isinstance(statement, _DEFINITIONS) and not has_graph


def _is_of_serving(file: File, call: ast.Call) -> bool:
    """Whether a placeholder is in a serving input function, which an Estimator calls in its own graph."""
    function = file.tree.function_of(call)
    return function is not None and any(
        word in getattr(function, "name", "").lower()
        for word in ("serving", "receiver", "export", "input_fn")
    )


def _import_of_tensorflow(file: File) -> ast.stmt | None:
    """The top-level import that defines `tf`."""
    imports = (node for node in file.tree.module.body if isinstance(node, ast.Import))
    return next((node for node in imports if any(a.name in _MODULES for a in node.names)), None)


def _insert_behind_imports(file: File, statement: ast.stmt, text: str) -> list[Edit]:
    """Inserts a text after the block of imports that starts here."""
    body = file.tree.module.body
    rest = body[body.index(statement) :]
    imports = list(takewhile(lambda node: isinstance(node, (ast.Import, ast.ImportFrom)), rest))
    last, behind = imports[-1], rest[len(imports) :]
    if behind and behind[0].lineno == last.end_lineno:  # a statement on the same line
        _, end = file.source.span(last)
        return [Edit(end, end, f"; {text}")]
    start, end = file.source.line_span(last.end_lineno or last.lineno)
    end = start + len(file.source.data[start:end].rstrip(b"\r\n"))
    newline = file.source.newline
    return [Edit(end, end, f"{newline}{newline}{text}")]


def _runs_steps(file: File, call: ast.Call) -> bool:
    """Whether the function around a session has a loop that runs it."""
    around: ast.AST = file.tree.function_of(call) or file.tree.module
    return any(
        is_method_call(node, "run") and (keyword(node, "feed_dict") or file.tree.loops_of(node))
        for node in ast.walk(around)
    )
