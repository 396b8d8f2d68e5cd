from __future__ import annotations

import ast

from portwright.port.pipelines import pipelines_of
from portwright.port.rewrite import text_of
from portwright.port.rule import File, Findings
from portwright.port.tensorflow_names import TensorFlowRule, tensorflow_of
from portwright.port.tree import is_method_call

_METHODS = ("make_one_shot_iterator", "make_initializable_iterator")


class OneShotIterator(TensorFlowRule):
    """Finds iterators that are made of a dataset by hand.

    ## Why
    The method is gone from TensorFlow 2. An input_fn that returns the dataset itself needs no iterator: the
    Estimator makes one, and saves its position with each checkpoint.

    ## Example
    ```python
    import tensorflow as tf

    def input_fn(params):
        d = tf.data.Dataset.range(100).batch(8, drop_remainder=True)
        return d.make_one_shot_iterator().get_next()
    ```

    ## Instead
    ```python
    import tensorflow as tf

    def input_fn(params):
        d = tf.data.Dataset.range(100).batch(8, drop_remainder=True)
        return d
    ```

    ## Safety
    Safe where the method of a dataset becomes the function of tf.compat.v1, which calls that method; unsafe where it
    cannot be told that it is a dataset, since a class of yours can have such a method. Unsafe where an input_fn returns the dataset instead:
    the shuffle is then a part of the step's graph, whose random operations are counted for their seeds, so that a shuffle
    or dropout without a seed of its own draws others.
    """

    code = "PW625"
    needs = ("tensorflow_2", "fed_by_estimator")
    safety = "safe"
    words = ("make_one_shot_iterator", "make_initializable_iterator")
    cure = (
        "Return the dataset from input_fn; elsewhere use tf.compat.v1.data.make_one_shot_iterator(dataset)."
    )

    def find(self, file: File) -> Findings:
        for call in file.methods(*_METHODS):
            dataset = call.func.value
            if call.args or call.keywords:
                continue
            name = tensorflow_of(file).spell(f"compat.v1.data.{call.func.attr}")
            edits = [] if name is None else [file.replace(call, f"{name}({text_of(file, dataset)})")]
            # The user's own classes may have such a method too.
            yield self.report(
                file, call, f".{call.func.attr}() is gone from TensorFlow 2", edits,
                safety="safe" if pipelines_of(file).is_dataset(dataset) else "unsafe",
            )  # fmt: skip
        for made, _ in tensorflow_of(file).calls("data.make_one_shot_iterator"):
            returned = _returned(file, made)
            if returned is not None and made.args:
                message = "the Estimator can save the position of a dataset, but not of this iterator"
                edits = [file.replace(returned, file.segment(made.args[0]))]
                yield self.report(file, made, message, edits, needs=("fed_by_estimator",), safety="unsafe")


def _returned(file: File, call: ast.Call) -> ast.Call | None:
    """The get_next() call in `return ITERATOR.get_next()` of an input function."""
    outer = file.tree.parent_call(file.tree.parents[call])
    is_returned = is_method_call(outer, "get_next") and isinstance(file.tree.parents[outer], ast.Return)
    is_for_input = "input_fn" in getattr(file.tree.function_of(call), "name", "")
    return outer if is_returned and is_for_input else None
