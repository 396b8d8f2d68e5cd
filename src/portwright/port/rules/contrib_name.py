from __future__ import annotations

import ast
from collections.abc import Iterator

from portwright.port.finding import Edit, Finding
from portwright.port.rewrite import has_star, is_constant
from portwright.port.rule import File, Rule
from portwright.port.tensorflow_contrib import ESTIMATOR, HOMES, advice
from portwright.port.tensorflow_names import Reference, is_legacy_keras, is_lent, lend, tensorflow_of


class ContribName(Rule):
    """Finds parts of tf.contrib, and puts what has a home elsewhere there.

    ## Why
    tf.contrib left with TensorFlow 1. Some of its parts moved, some live on in packages of their own, some are gone.

    ## Example
    ```python
    import tensorflow as tf

    def input_fn(files, parse, size):
        d = tf.data.TFRecordDataset(files)
        return d.apply(tf.contrib.data.map_and_batch(parse, size, drop_remainder=True)).prefetch(1)
    ```

    ## Instead
    ```python
    import tensorflow as tf

    def input_fn(files, parse, size):
        d = tf.data.TFRecordDataset(files)
        return d.apply(tf.data.experimental.map_and_batch(parse, size, drop_remainder=True)).prefetch(1)
    ```

    ## Safety
    Safe: only what is the same elsewhere is moved (data, cells, uniform Xavier, the global step). What has no such
    home, as layer_norm or slim, is left to you with a word on what to use.
    """

    code = "PW614"
    name = "contrib-name"
    targets = ("csx", "ipu", "rdu")
    safety = "safe"
    words = ("contrib",)
    cure = "Take it from its home of today."
    framework = "tensorflow"

    def find(self, file: File) -> Iterator[Finding]:
        for reference in tensorflow_of(file).references:
            first, _, rest = reference.name.partition(".")
            if first != "contrib" or reference.root is None or rest.partition(".")[0] == "tpu":
                continue
            edits = self._rewrite(file, reference, rest)
            message = f"tf.{reference.name} is gone from TensorFlow"
            yield self.report(file, reference.node, message, edits, cure=None if edits else advice(rest))
        for node, alias, name in tensorflow_of(file).imports:
            if name.partition(".")[0] == "contrib":
                below = name.partition(".")[2]
                yield self.report(file, node, f"tensorflow.{name} is gone", cure=advice(below or alias.name))
        for plain in file.tree.all(ast.Import):
            for alias in plain.names:
                if alias.name.startswith("tensorflow.contrib."):
                    cure = advice(alias.name.removeprefix("tensorflow.contrib."))
                    yield self.report(file, plain, f"{alias.name} is gone", cure=cure)

    def _rewrite(self, file: File, reference: Reference, name: str) -> list[Edit]:
        assert reference.root is not None
        tf = reference.root.id
        module, _, last = name.partition(".")
        if module == "estimator" and last in ESTIMATOR:
            alias, imports = lend(file)
            return [*imports, file.replace(reference.node, f"{alias}.{last}")]
        if name == "layers.xavier_initializer":
            call = file.tree.parents.get(reference.node)
            if isinstance(call, ast.Call) and call.func is reference.node and _is_plain_xavier(call):
                edits = [file.replace(reference.node, f"{tf}.compat.v1.glorot_uniform_initializer")]
                start = file.source.span(call.args[0])[0] if call.args else None
                if start is not None:  # uniform=True, which is what it is
                    end = file.source.span(call.args[0])[1]
                    edits.append(Edit(start, end, ""))
                return edits
            return []
        home = HOMES.get(name)
        if home is None:
            return []
        needs_keras = is_legacy_keras(home.removeprefix("compat.v1.")) and not is_lent(file)
        return [*(lend(file)[1] if needs_keras else ()), file.replace(reference.node, f"{tf}.{home}")]


def _is_plain_xavier(call: ast.Call) -> bool:
    """Uniform, and its other arguments by name."""
    if has_star(call) or len(call.args) > 1 or (call.args and call.keywords):
        return False
    return all(is_constant(a, True) for a in call.args) and all(
        k.arg in ("seed", "dtype") for k in call.keywords
    )


RULE = ContribName()
