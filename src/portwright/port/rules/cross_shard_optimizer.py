from __future__ import annotations

from collections.abc import Iterator

from portwright.port.finding import Finding
from portwright.port.rewrite import argument, unwrap
from portwright.port.rule import File, Rule
from portwright.port.tensorflow_names import tensorflow_of

_NAMES = ("contrib.tpu.CrossShardOptimizer", "tpu.CrossShardOptimizer", "estimator.tpu.CrossShardOptimizer")


class CrossShardOptimizer(Rule):
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
    Safe: without a TPU it hands on the optimizer as it is.
    """

    code = "PW613"
    name = "cross-shard-optimizer"
    targets = ("csx", "ipu", "rdu")
    safety = "safe"
    words = ("CrossShardOptimizer",)
    cure = "Use the optimizer itself."
    framework = "tensorflow"

    def find(self, file: File) -> Iterator[Finding]:
        for call, _ in tensorflow_of(file).calls(*_NAMES):
            inner = argument(call, 0, "opt")
            message = "CrossShardOptimizer is for TPUs"
            yield self.report(file, call, message, unwrap(file, call, inner) if inner is not None else ())


RULE = CrossShardOptimizer()
