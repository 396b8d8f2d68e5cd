from __future__ import annotations

from portwright.port.model_functions import functions_of
from portwright.port.rule import File, Findings
from portwright.port.tensorflow_names import TensorFlowRule, tensorflow_of

_NAMES = ("py_func", "py_function", "numpy_function", "contrib.eager.py_func")


class PythonFunction(TensorFlowRule):
    """Finds Python functions inside of a TensorFlow graph.

    ## Why
    A Python function runs in the process that made the graph, one call at a time. In a model it stops the step; in an
    input pipeline it is slow, cannot be saved with the pipeline's position, and leaves shapes unknown.

    ## Example
    ```python
    import tensorflow as tf

    def model_fn(features, labels, mode, params):
        return tf.py_function(abs, [features], tf.float32)
    ```

    ## Instead
    ```python
    import tensorflow as tf

    def model_fn(features, labels, mode, params):
        return tf.abs(features)
    ```

    ## Safety
    Manual: it has to be written with TensorFlow's own functions.
    """

    code = "PW622"
    needs = ("work_on_device",)
    words = ("py_func", "py_function", "numpy_function")
    cure = "Write it with tf.* functions; what cannot be is done once, when the data is written to files."

    def find(self, file: File) -> Findings:
        functions = functions_of(file)
        for call, name in tensorflow_of(file).calls(*_NAMES):
            if functions.in_model(call):
                yield self.report(
                    file, call, f"tf.{name} runs Python in the step, which an accelerator cannot"
                )
            else:
                cure = (
                    "Write it with tf.* functions, or call set_shape() on its results and put it before cache(); a pipeline with it is "
                    "fast-forwarded at resume instead of restored."
                )
                message = f"tf.{name} runs Python one sample at a time, and its results have no shape"
                yield self.report(file, call, message, cure=cure)
