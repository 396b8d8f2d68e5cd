from __future__ import annotations

import ast

from portwright.port.finding import Edit
from portwright.port.rule import File, Findings
from portwright.port.tensorflow_names import TensorFlowRule, tensorflow_of

_SHAPES = ("shape", "get_shape", "output_shape")
_KEEPS_OLD = ("disable_v2_behavior", "disable_v2_tensorshape")


class DimensionValue(TensorFlowRule):
    """Finds `.value` of a dimension: `x.shape[1].value`.

    ## Why
    In TensorFlow 2 the parts of a shape are numbers, or None where a size is not known, and a number has no `.value`.

    ## Example
    ```python
    import tensorflow as tf

    def dense(x, units):
        return tf.zeros([x.shape[-1].value, units])
    ```

    ## Instead
    ```python
    import tensorflow as tf

    def dense(x, units):
        return tf.zeros([tf.compat.dimension_value(x.shape[-1]), units])
    ```

    ## Safety
    Safe: tf.compat.dimension_value gives the .value where there is one, as in TensorFlow 1 and where the old shapes are
    switched on, and else the number itself. A file whose classes have a shape of their own is left to you, since that can
    hold anything, and one that switches the old shapes on is left alone.
    """

    code = "PW616"
    needs = ("tensorflow_2",)
    safety = "safe"
    words = ("value",)
    cure = "Leave .value out, or write tf.compat.dimension_value(x.shape[1]), which takes the old shapes too."

    def find(self, file: File) -> Findings:
        if any(r.name in _KEEPS_OLD for r in tensorflow_of(file).references):
            return
        # A shape that cannot be followed.
        own: list[ast.AST] = [a for a in file.attributes(*_SHAPES) if isinstance(a.ctx, ast.Store)]
        own += [f for f in file.tree.all(ast.FunctionDef) if f.name in _SHAPES]
        for node in file.attributes("value"):
            if isinstance(node.value, ast.Subscript) and _is_shape(file, node.value.value):
                _, end = file.source.span(node)
                start, stop = file.source.span(node.value)
                text = file.source.data[stop:end]
                call = tensorflow_of(file).spell("compat.dimension_value")
                edits = [Edit(start, start, f"{call}("), Edit(stop, end, ")")]
                if call is None or own or b"\n" in text or b"#" in text:
                    edits = []
                yield self.report(file, node, "a dimension is a number, which has no .value", edits)


def _is_shape(file: File, node: ast.expr, depth: int = 0) -> bool:
    """Whether a node is `x.shape`, `x.get_shape()`, or a name that is only assigned those."""
    match node:
        case ast.Call(func=ast.Attribute(attr="get_shape")):
            return True
        case ast.Attribute():
            return node.attr in _SHAPES
        case ast.Subscript(slice=ast.Slice()):
            return _is_shape(file, node.value, depth)
    values = file.tree.assigned_values(node) if depth < 4 else []
    return bool(values) and all(_is_shape(file, value, depth + 1) for value in values)
