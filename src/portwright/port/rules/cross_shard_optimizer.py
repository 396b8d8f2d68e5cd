from __future__ import annotations

import ast

from portwright.port.rewrite import argument, unwrap
from portwright.port.rule import File, Findings
from portwright.port.tensorflow_names import TensorFlowRule, tensorflow_of

_NAMES = ("contrib.tpu.CrossShardOptimizer", "tpu.CrossShardOptimizer", "estimator.tpu.CrossShardOptimizer")


class CrossShardOptimizer(TensorFlowRule):
    """Takes CrossShardOptimizer away from the optimizer that it wraps.

    ## Why
    It averages gradients over the cores of a TPU. The other accelerators do that themselves, and on one host there
    is nothing to average.

    ## Example
    ```python
    import tensorflow as tf

    def make(optimizer, use_tpu):
        if use_tpu:
            optimizer = tf.contrib.tpu.CrossShardOptimizer(optimizer)
        return optimizer
    ```

    ## Instead
    ```python
    import tensorflow as tf

    def make(optimizer, use_tpu):
        if use_tpu:
            pass
        return optimizer
    ```

    ## Safety
    Safe: on anything but a TPU its step fails, since the sum over the cores has no kernel there, so that a program which
    runs does not reach it or is on a TPU; there the ported program stops, since portwright.tensorflow refuses use_tpu. A call whose arguments do something of their own,
    and a name for the class, are left to you.
    """

    code = "PW613"
    needs = ("tensorflow_2",)
    safety = "safe"
    words = ("CrossShardOptimizer",)
    cure = "Use the optimizer itself."

    def find(self, file: File) -> Findings:
        names = tensorflow_of(file)
        calls = {call.func: call for call, _ in names.calls(*_NAMES)}
        for reference in names.named(*_NAMES):
            call = calls.get(reference.node)
            if call is None:
                if isinstance(reference.node, ast.Attribute):  # an import is PW614's
                    yield self.report(file, reference.node, "CrossShardOptimizer is for TPUs")
                continue
            inner = argument(call, 0, "opt")
            given = [*call.args, *(k.value for k in call.keywords)]
            is_whole = inner is not None and all(a is inner or not _does_something(a) for a in given)
            edits = unwrap(file, call, inner) if inner is not None and is_whole else []
            yield self.report(file, call, "CrossShardOptimizer is for TPUs", edits)


def _does_something(argument: ast.expr) -> bool:
    return any(isinstance(node, (ast.Call, ast.Starred)) for node in ast.walk(argument))
