from __future__ import annotations

import ast
from collections.abc import Iterator

from portwright.port.finding import Edit, Finding
from portwright.port.rule import File, Rule
from portwright.port.tensorflow_names import Reference, is_legacy_keras, row_of, tensorflow_of

_OTHERS = ("contrib", "estimator")  # PW614, PW611


class TensorFlow1Name(Rule):
    """Finds names of TensorFlow 1 that `tf` lacks, or means otherwise.

    ## Why
    TensorFlow 2 dropped some names and gave others new arguments, defaults and results: `tf.where` broadcasts,
    `tf.random_normal_initializer` has another deviation, the second argument of `tf.nn.dropout` is what is dropped.
    `tf.compat.v1` holds all of them as they were.

    ## Example
    ```python
    import tensorflow as tf

    with tf.variable_scope("dense"):
        w = tf.get_variable("w", [4, 2], initializer=tf.truncated_normal_initializer(stddev=0.02))
    ```

    ## Instead
    ```python
    import tensorflow as tf

    with tf.compat.v1.variable_scope("dense"):
        w = tf.compat.v1.get_variable("w", [4, 2], initializer=tf.compat.v1.truncated_normal_initializer(stddev=0.02))
    ```

    ## Safety
    Safe: it is the same function by the name that is left. A name that exists in both is rewritten only in a file
    that cannot be for TensorFlow 2 anyway, and only where the call's arguments mean something else there.
    """

    code = "PW610"
    name = "tensorflow-1-name"
    targets = ("csx", "ipu", "rdu")
    safety = "safe"
    words = ("tensorflow",)
    cure = "Write tf.compat.v1 in front of it."
    framework = "tensorflow"

    def find(self, file: File) -> Iterator[Finding]:
        names = tensorflow_of(file)
        if not names.is_version_1:
            return
        for reference in names.references:
            if (
                reference.root is None
                or reference.generation
                or reference.name.partition(".")[0] in _OTHERS
                or is_legacy_keras(reference.name)
            ):
                continue
            if names.needs_version_1(reference):
                yield self.report(file, reference.node, _say(reference), [_insert(file, reference.root)])
        for statement in {node for node, _, _ in names.imports}:
            if statement.module == "tensorflow":
                yield from self._imported(file, statement)

    def _imported(self, file: File, statement: ast.ImportFrom) -> Iterator[Finding]:
        old = [a for a in statement.names if a.name not in _OTHERS and row_of(a.name) is not None]
        if not old:
            return
        kept = [a for a in statement.names if a not in old]
        lines = [f"from tensorflow.compat.v1 import {', '.join(map(_spell, old))}"]
        if kept:
            lines.insert(0, f"from tensorflow import {', '.join(map(_spell, kept))}")
        text = "; ".join(lines)
        yield self.report(
            file, statement, f"{old[0].name} is TensorFlow 1's", [file.replace(statement, text)]
        )


def _insert(file: File, root: ast.Name) -> Edit:
    _, end = file.source.span(root)
    return Edit(end, end, ".compat.v1")


def _say(reference: Reference) -> str:
    row = row_of(reference.name)
    if row is not None and row.kind in ("gone", "module"):
        return f"tf.{reference.name} is gone from TensorFlow 2"
    return f"tf.{reference.name} means something else in TensorFlow 2"


def _spell(alias: ast.alias) -> str:
    return f"{alias.name} as {alias.asname}" if alias.asname else alias.name


RULE = TensorFlow1Name()
