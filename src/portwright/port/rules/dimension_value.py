from __future__ import annotations

import ast
from collections.abc import Iterator

from portwright.port.finding import Edit, Finding
from portwright.port.rule import File, Rule
from portwright.port.tensorflow_names import tensorflow_of

_SHAPES = ("shape", "get_shape", "output_shape")
_KEEPS_OLD = ("disable_v2_behavior", "disable_v2_tensorshape")


class DimensionValue(Rule):
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
        return tf.zeros([x.shape[-1], units])
    ```

    ## Safety
    Safe: it is the same number. A file that switches the old shapes on is left alone.
    """

    code = "PW616"
    name = "dimension-value"
    targets = ("csx", "ipu", "rdu")
    safety = "safe"
    words = ("value",)
    cure = "Leave .value out."
    framework = "tensorflow"

    def find(self, file: File) -> Iterator[Finding]:
        if any(r.name in _KEEPS_OLD for r in tensorflow_of(file).references):
            return
        for node in file.attributes("value"):
            if isinstance(node.value, ast.Subscript) and _is_shape(file, node.value.value):
                _, end = file.source.span(node)
                start = file.source.span(node.value)[1]
                text = file.source.data[start:end]
                if b"\n" in text or b"#" in text:
                    edits = []
                else:
                    edits = [Edit(start, end, "")]
                yield self.report(file, node, "a dimension is a number, which has no .value", edits)


def _is_shape(file: File, node: ast.expr, depth: int = 0) -> bool:
    """`x.shape`, `x.get_shape()`, and a name that holds nothing else."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "get_shape"
    if isinstance(node, ast.Attribute):
        return node.attr in _SHAPES
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Slice) and _is_shape(file, node.value, depth)
    if isinstance(node, ast.Name) and depth < 4:
        found = file.tree.scope_of(node).lookup(node.id)
        return found is not None and all(
            b.kind == "assign" and b.value is not None and _is_shape(file, b.value, depth + 1)
            for b in found[1]
        )
    return False


RULE = DimensionValue()
