from __future__ import annotations

import ast

from portwright.port.rule import File, Findings
from portwright.port.tensorflow_homes import TPU
from portwright.port.tensorflow_names import TensorFlowRule, lend, tensorflow_of

_PLACES = ("contrib.tpu.", "estimator.tpu.")


class TpuEstimator(TensorFlowRule):
    """Takes the TPU's estimator, its spec and its configuration from portwright.tensorflow.

    ## Why
    TPUEstimator left TensorFlow with tf.contrib and tf.estimator. Here it trains on the host, with the same
    `params["batch_size"]`, `eval_metrics` and `host_call`; for a CS system the same model_fn goes to CerebrasEstimator.

    ## Example
    ```python
    import tensorflow as tf

    def model_fn(features, labels, mode, params):
        return tf.contrib.tpu.TPUEstimatorSpec(mode=mode, predictions=features)
    ```

    ## Instead
    ```python
    import portwright.tensorflow as ptf
    import tensorflow as tf

    def model_fn(features, labels, mode, params):
        return ptf.tpu.TPUEstimatorSpec(mode=mode, predictions=features)
    ```

    ## Safety
    Safe: the same names, arguments and results, as they worked with use_tpu=False, where a TPU's estimator trained on the
    host. On a TPU, with use_tpu=True, the ported program stops with an error. A name for the module itself is left to you.
    """

    code = "PW612"
    needs = ("tensorflow_2",)
    safety = "safe"
    words = ("tpu",)
    cure = "Take it from portwright.tensorflow; for a CS system give the model_fn to CerebrasEstimator."

    def find(self, file: File) -> Findings:
        for reference in tensorflow_of(file).named(*_PLACES, *(place.removesuffix(".") for place in _PLACES)):
            if reference.root is None and not isinstance(reference.node, ast.Attribute):
                continue  # imported by its own name
            rest = reference.name.partition("tpu.")[2]
            first, _, below = rest.partition(".")
            if first == "CrossShardOptimizer":
                continue  # PW613
            if first not in TPU:
                cure = "Leave it out: it speaks to a TPU's runtime; portwright.tensorflow trains the estimator without."
                yield self.report(file, reference.node, f"tf.{reference.name} is for TPUs", cure=cure)
                continue
            alias, imports = lend(file)
            text = f"{alias}.tpu.{first}" + (f".{below}" if below else "")
            yield self.report(
                file, reference.node, f"tf.{reference.name} is gone from TensorFlow",
                [*imports, file.replace(reference.node, text)],
            )  # fmt: skip
