from __future__ import annotations

import ast

from portwright.port.rewrite import argument, is_constant
from portwright.port.rule import File, Findings
from portwright.port.tensorflow_names import TensorFlowRule

_POSITION = 4  # of eval_metric_ops in EstimatorSpec


class EvaluationMetric(TensorFlowRule):
    """Finds metrics that are handed to EstimatorSpec as eval_metric_ops.

    ## Why
    On a CS system metrics are computed on the host, from tensors that the step hands out. CSEstimatorSpec takes them as
    `host_call`: a function and the tensors that it gets; eval_metric_ops would put the metrics into the step.

    ## Example
    ```python
    import portwright.tensorflow as ptf
    import tensorflow as tf

    def model_fn(features, labels, mode, params):
        metrics = {"accuracy": tf.compat.v1.metrics.accuracy(labels, features)}
        return ptf.EstimatorSpec(mode, loss=params["loss"], eval_metric_ops=metrics)
    ```

    ## Instead
    ```python
    import portwright.tensorflow as ptf
    import tensorflow as tf

    def metrics_fn(labels, features):
        return {"accuracy": tf.compat.v1.metrics.accuracy(labels, features)}

    def model_fn(features, labels, mode, params):
        return ptf.CSEstimatorSpec(mode, loss=params["loss"], host_call=(metrics_fn, [labels, features]))
    ```

    ## Safety
    Manual: which tensors the metrics need is yours to name. Both forms give the same numbers on CPU and GPU.
    """

    code = "PW629"
    needs = ("listed_metrics",)
    words = ("eval_metric_ops", "EstimatorSpec")
    cure = "Return CSEstimatorSpec(mode, loss=..., host_call=(metrics_fn, [tensors])), where metrics_fn makes the same dict."

    def find(self, file: File) -> Findings:
        for call in file.tree.all(ast.Call):
            dotted = file.resolve(call.func) or ""
            given = argument(call, _POSITION, "eval_metric_ops")
            is_spec = dotted.endswith(".EstimatorSpec") and dotted.startswith(
                ("tensorflow", "portwright.tensorflow")
            )
            if is_spec and given is not None and not is_constant(given, None):
                yield self.report(file, given, "these metrics would be a part of the step")
