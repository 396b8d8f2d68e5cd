from __future__ import annotations

import ast

from portwright.port.model_functions import functions_of
from portwright.port.rule import File, Findings
from portwright.port.tensorflow_names import TensorFlowRule, tensorflow_of
from portwright.port.tree import is_name, words

_HOST = words("print Print io.write_file write_file io.read_file read_file debugging.Assert Assert")
_READS = ("numpy", "eval")


class HostWorkInModel(TensorFlowRule):
    """Finds work for the host in model code: printing, reading files, values read out of tensors.

    ## Why
    model_fn describes a graph and is called once. What it prints or reads happens once, too, or needs the host in
    the middle of the step; a tensor of a graph has no value yet.

    ## Example
    ```python
    import tensorflow as tf

    def model_fn(features, labels, mode, params):
        loss = tf.reduce_mean(features)
        tf.print(loss)
        return loss
    ```

    ## Instead
    ```python
    import tensorflow as tf

    def model_fn(features, labels, mode, params):
        loss = tf.reduce_mean(features)
        return loss
    ```

    ## Safety
    Manual: what was printed is in the log of the run, or goes to a hook.
    """

    code = "PW627"
    needs = ("work_on_device",)
    words = ("print", "Print", "numpy", "eval", "write_file", "read_file", "Assert")
    cure = "Leave it out; the loss is logged, and a LoggingTensorHook shows other values on CPU and GPU."

    def find(self, file: File) -> Findings:
        functions = functions_of(file)
        for call, name in tensorflow_of(file).calls(*_HOST):
            if functions.in_model(call):
                yield self.report(file, call, f"tf.{name} needs the host in the middle of the step")
        for call in file.methods(*_READS):
            if functions.in_model_fn(call) and _is_tensor(file, call.func.value):
                message = f"a tensor of a graph has no value yet, and no .{call.func.attr}()"
                yield self.report(file, call, message, cure="Compute with the tensor itself.")
        for call in file.tree.all(ast.Call):
            if (
                is_name(call.func, "print")
                and functions.in_model_fn(call)
                and any(_is_tensor(file, argument) for argument in call.args)
            ):
                message = "print() shows a tensor's name once, not its value at each step"
                yield self.report(file, call, message)


def _is_tensor(file: File, node: ast.expr, depth: int = 0) -> bool:
    """Whether a node is made by a TensorFlow function, or is an input of model_fn."""
    match node:
        case ast.Call():
            return (file.resolve(node.func) or "").startswith("tensorflow.")
        case ast.Subscript():
            return _is_tensor(file, node.value, depth)
        case ast.Name(id="features" | "labels"):
            return depth < 4
    values = [b.value for b in file.tree.bindings(node) if b.kind == "assign" and b.value is not None]
    return depth < 4 and any(_is_tensor(file, value, depth + 1) for value in values)
