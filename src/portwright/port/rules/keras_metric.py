from __future__ import annotations

import ast

from portwright.port.model_functions import functions_of
from portwright.port.rule import File, Findings
from portwright.port.tensorflow_names import TensorFlowRule, tensorflow_of

_COMPUTE = "portwright.tensorflow.keras_parts.compute_metrics"  # without updating their state


class KerasMetric(TensorFlowRule):
    """Finds metrics of Keras in a model_fn.

    ## Why
    A metric of tf.keras keeps its state in variables of its own, which the vendor's estimator does not know. The
    metrics of tf.compat.v1 come as a value and an update, which run on the host.

    ## Example
    ```python
    import portwright.tensorflow as ptf
    import tensorflow as tf

    def model_fn(features, labels, mode, params):
        accuracy = tf.keras.metrics.Accuracy()
        accuracy.update_state(labels, features)
        return ptf.EstimatorSpec(mode, loss=params["loss"], eval_metric_ops={"accuracy": accuracy})
    ```

    ## Instead
    ```python
    import portwright.tensorflow as ptf
    import tensorflow as tf

    def model_fn(features, labels, mode, params):
        accuracy = tf.compat.v1.metrics.accuracy(labels, features)
        return ptf.EstimatorSpec(mode, loss=params["loss"], eval_metric_ops={"accuracy": accuracy})
    ```

    ## Safety
    Manual: the twins are not equal in all cases. Keras's Accuracy compares numbers as they are, where that of tf.compat.v1
    rounds predictions down if the labels are whole numbers; its mean errors of one row a batch weigh each batch alike; and
    its sample weights are broadcast otherwise.
    """

    code = "PW619"
    needs = ("listed_metrics",)
    words = ("metrics",)
    cure = "Use tf.compat.v1.metrics, which gives a value and an update."

    def find(self, file: File) -> Findings:
        functions = functions_of(file)
        if _COMPUTE in map(file.resolve, file.tree.all(ast.Name)) and not file.methods("update_state"):
            return
        for call, name in tensorflow_of(file).calls("keras.metrics."):
            kind = name.rpartition(".")[2]
            if kind[:1].isupper() and functions.in_model_fn(call):
                message = f"{kind} of tf.keras keeps its state where the vendor's estimator does not look"
                yield self.report(file, call, message)
