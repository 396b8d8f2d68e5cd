from __future__ import annotations

import ast

from portwright.port.pipelines import pipelines_of
from portwright.port.rewrite import argument, has_star, is_constant, set_keyword
from portwright.port.rule import File, Findings
from portwright.port.tensorflow_names import TensorFlowRule

_POSITIONS = {"batch": 1, "padded_batch": 3, "map_and_batch": 3}
_EVALUATES = ("eval", "test", "val", "dev", "predict", "infer")


class RaggedDatasetBatch(TensorFlowRule):
    """Finds batches of a tf.data pipeline whose last one can be smaller.

    ## Why
    Without drop_remainder=True the first size of a batch is not known when the graph is built, and the last batch can
    have another: the step cannot be compiled for one shape.

    ## Example
    ```python
    import tensorflow as tf

    def train_input_fn(params):
        return tf.data.Dataset.range(100).batch(params["batch_size"])
    ```

    ## Instead
    ```python
    import tensorflow as tf

    def train_input_fn(params):
        return tf.data.Dataset.range(100).batch(params["batch_size"], drop_remainder=True)
    ```

    ## Safety
    Unsafe: the samples of the last batch are not seen in that epoch. Pipelines that look like evaluation, and padding
    to the longest sample of a batch, are left to you; where training repeats its data before the batches, nothing is lost.
    """

    code = "PW618"
    needs = ("static_shapes",)
    safety = "unsafe"
    words = ("batch", "padded_batch", "map_and_batch")
    cure = (
        "Set drop_remainder=True in training; in evaluation pad the last batch and give the padding weight 0."
    )

    def find(self, file: File) -> Findings:
        for step in pipelines_of(file).steps:
            position = _POSITIONS.get(step.name)
            if position is None or has_star(step.call):
                continue
            given = argument(step.call, position, "drop_remainder")
            if step.name == "padded_batch" and _pads_to_longest(step.call):
                cure = "Give padded_shapes numbers, the longest length that you want, so that every batch has one shape."
                yield self.report(
                    file, step.call, "batches are padded to their own longest sample", cure=cure
                )
            if given is not None and not is_constant(given, False):
                continue
            if _is_for_training(file, step.call):
                message = "the last batch can be smaller than the others"
                edits = set_keyword(file, step.call, "drop_remainder", "True")
                edits = edits if given is None else [file.replace(given, "True")]
                yield self.report(file, step.call, message, edits)
            else:
                message = "the last batch of this evaluation can be smaller than the others"
                cure = "Pad the last batch and give the padding weight 0 in the metrics, or choose a size that divides the number of samples."
                yield self.report(file, step.call, message, cure=cure)


def _pads_to_longest(call: ast.Call) -> bool:
    """Whether padded_shapes is left out, or has None or -1 in it."""
    shapes = argument(call, 1, "padded_shapes")
    return shapes is None or any(
        is_constant(n, None) or (isinstance(n, ast.UnaryOp) and isinstance(n.op, ast.USub))
        for n in ast.walk(shapes)
    )


def _is_for_training(file: File, call: ast.Call) -> bool:
    """Whether a dataset is for training, by the names of functions around it and of the variable."""
    around = list(file.tree.ancestors(call))
    names = [a.name for a in around if isinstance(a, ast.FunctionDef)]
    names += [file.segment(a.test) for a in around if isinstance(a, ast.If)]
    statement = file.tree.statement_of(call)
    if isinstance(statement, ast.Assign):
        names += [file.segment(t) for t in statement.targets]
    text = " ".join(names).lower()
    return "train" in text or not any(word in text for word in _EVALUATES)
