from __future__ import annotations

import ast

from portwright.port.finding import Edit
from portwright.port.model_functions import functions_of
from portwright.port.rewrite import argument, const, has_star, text_of
from portwright.port.rule import File, Findings
from portwright.port.tensorflow_names import TensorFlowRule, tensorflow_of


class DynamicShape(TensorFlowRule):
    """Finds tf.shape() in model code.

    ## Why
    A step is compiled for one shape of its inputs. What tf.shape() gives is a tensor, known only when the step runs;
    with batches of one size (drop_remainder=True) `x.shape` has the number when the graph is built.

    ## Example
    ```python
    import tensorflow as tf

    def model_fn(features, labels, mode, params):
        size = tf.shape(features)[0]
        return tf.reshape(features, [size, -1])
    ```

    ## Instead
    ```python
    import tensorflow as tf

    def model_fn(features, labels, mode, params):
        size = features.shape[0]
        return tf.reshape(features, [size, -1])
    ```

    ## Safety
    Unsafe: where a size is not known when the graph is built, `x.shape` has None. A shape that is used as a whole is
    left to you.
    """

    code = "PW617"
    needs = ("static_graph_shapes",)
    safety = "unsafe"
    words = ("shape",)
    cure = "Make the batches of one size (drop_remainder=True), and use x.shape, which has the numbers when the graph is built."

    def find(self, file: File) -> Findings:
        functions = functions_of(file)
        for call, _ in tensorflow_of(file).calls("shape"):
            if functions.in_model(call) and (call.args or call.keywords):
                yield self.report(
                    file, call, "the shape is known only when the step runs", _rewrite(file, call)
                )


def _rewrite(file: File, call: ast.Call) -> list[Edit]:
    """Edits that replace `tf.shape(x)[i]` by `x.shape[i]`."""
    tensor = argument(call, 0, "input")
    outer = file.tree.parents.get(call)
    if (
        not isinstance(tensor, (ast.Name, ast.Attribute, ast.Subscript))
        or has_star(call)
        or len(call.args) + len(call.keywords) > 1
        or not isinstance(outer, ast.Subscript)
        or outer.value is not call
        or not isinstance(const(outer.slice), int)
        or isinstance(file.tree.parents.get(outer), ast.Attribute)  # the result is used as a tensor
    ):
        return []
    return [file.replace(call, f"{text_of(file, tensor)}.shape")]
