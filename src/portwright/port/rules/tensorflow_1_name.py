from __future__ import annotations

import ast

from portwright.port.finding import Safety
from portwright.port.rule import File, Findings
from portwright.port.tensorflow_names import (
    Reference,
    TensorFlowRule,
    is_legacy_keras,
    row_of,
    spell_old,
    tensorflow_of,
)

_OTHERS = ("contrib", "estimator")  # PW614, PW611
_BEFORE_1 = frozenset({  # names removed in TensorFlow 1.0, which tf.compat.v1 lacks too
    "audio_summary", "batch_matmul", "complex_abs", "histogram_summary", "image_summary", "inv", "merge_all_summaries", "merge_summary", "mul",
    "neg", "pack", "scalar_summary", "select", "sub", "train.SummaryWriter", "unpack",
})  # fmt: skip


class TensorFlow1Name(TensorFlowRule):
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
    Safe: it is the same function, by the name that TensorFlow 1.13 and all later ones have for it. A name that exists
    in both is rewritten only in a file that uses what TensorFlow 2 lacks, and only where the call means something else
    there. A name that is reached by another one for its module (`train = tf.train`) is written out where it is used. Unsafe
    for a name that exists in both where the file asks which TensorFlow it has (`tf.__version__`, `hasattr(tf, ...)`, a `try`
    around a name): it can be for both. Control flow and variables stay TensorFlow 2's, unless PW626 switches them. What is
    drawn at random without a seed of its own is drawn otherwise from release to release of TensorFlow, with a seed of the
    graph too: there only the distribution is the same.
    """

    code = "PW610"
    needs = ("tensorflow_2",)
    safety = "safe"
    words = ("tensorflow",)
    cure = "Write tf.compat.v1 in front of it."

    def find(self, file: File) -> Findings:
        names = tensorflow_of(file)
        for reference in names.named(*_BEFORE_1):
            cure = "Write what TensorFlow 1.0 made of it, such as tf.multiply for tf.mul, and port that."
            yield self.report(
                file, reference.node, f"tf.{reference.name} left with TensorFlow 1.0", cure=cure
            )
        if not names.is_version_1:
            return
        for reference in names.references:
            if (
                (reference.root is None and not isinstance(reference.node, ast.Attribute))
                or reference.generation
                or reference.name.partition(".")[0] in _OTHERS
                or is_legacy_keras(reference.name)
                or names.comes_with_its_module(reference)
            ):
                continue
            if names.needs_version_1(reference):
                row = row_of(reference.name)
                is_safe = not names.may_be_for_both or row is None or row.is_gone
                yield self.report(
                    file, reference.node, _say(reference), spell_old(file, reference),
                    safety="safe" if is_safe else "unsafe",
                )  # fmt: skip
        for statement in {node for node, _, _ in names.imports}:
            yield from self._imported(file, statement, "unsafe" if names.may_be_for_both else "safe")

    def _imported(self, file: File, statement: ast.ImportFrom, safety: Safety) -> Findings:
        below = (statement.module or "").removeprefix("tensorflow")
        full = {a: f"{below}.{a.name}".removeprefix(".") for a in statement.names}
        old = [
            a
            for a, name in full.items()
            if name.partition(".")[0] not in _OTHERS and row_of(name) is not None
        ]
        if not old:
            return
        kept = [a for a in statement.names if a not in old]
        lines = [f"from {home} import {', '.join(map(_spell, part))}" for home, part in (
            (f"tensorflow{below}", kept), (f"tensorflow.compat.v1{below}", old)) if part]  # fmt: skip
        yield self.report(
            file, statement, f"{old[0].name} is TensorFlow 1's", [file.replace(statement, "; ".join(lines))],
            safety=safety,
        )  # fmt: skip


def _say(reference: Reference) -> str:
    row = row_of(reference.name)
    fate = "is gone from" if row is not None and row.is_gone else "means something else in"
    return f"tf.{reference.name} {fate} TensorFlow 2"


def _spell(alias: ast.alias) -> str:
    return f"{alias.name} as {alias.asname}" if alias.asname else alias.name
