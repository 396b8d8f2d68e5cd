from __future__ import annotations

import ast

from portwright.port.finding import Edit, Finding, Safety
from portwright.port.rewrite import remove_statement
from portwright.port.rule import File, Findings
from portwright.port.tensorflow_contrib import advice, home_of
from portwright.port.tensorflow_names import (
    Reference,
    TensorFlowRule,
    binds_another,
    is_legacy_keras,
    is_lent,
    lend,
    tensorflow_of,
)

# Names with a replacement whose arguments or defaults differ, or whose class is another.
_OTHER_ARGUMENTS = (
    "autograph.", "cluster_resolver.Slurm", "distribute.", "eager.", "learn.", "estimator.DNN", "estimator.Linear", "rnn.LayerRNNCell",
)  # fmt: skip
# Arguments of tf.contrib that the replacements refuse.
_REFUSED = frozenset({
    "renorm", "batch_weights", "adjustment", "zero_debias_moving_mean", "param_initializers", "data_format", "channels_axis", "reduction_axes",
    "gradient_noise_scale", "gradient_multipliers", "cell_clip", "use_peephole", "devices", "max_size",
})  # fmt: skip


class ContribName(TensorFlowRule):
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
        return d.apply(tf.compat.v1.data.experimental.map_and_batch(parse, size, drop_remainder=True)).prefetch(1)
    ```

    ## Safety
    Safe: only what is the same elsewhere is moved: to tf.compat.v1 where that still has it, to portwright.tensorflow and
    portwright.compat where we have it with the same arguments and variables; drawn programs compute the same under TensorFlow
    1.15 and here. Unsafe where the new home takes other arguments or is another class (autograph, Slurm's cluster, distribute,
    eager, learn, heads and estimators, LayerRNNCell), or refuses one that is given, such as batch_norm's renorm. What reaches
    ours in a dict and is refused stops the program with its name. The rest is left to you, with a word on what to use.
    """

    code = "PW614"
    needs = ("tensorflow_2",)
    safety = "safe"
    words = ("contrib",)
    cure = "Take it from its home of today."

    def find(self, file: File) -> Findings:
        names = tensorflow_of(file)
        for reference in names.references:
            first, _, rest = reference.name.partition(".")
            if first != "contrib" or rest.partition(".")[0] == "tpu":
                continue
            if reference.root is None and not isinstance(reference.node, ast.Attribute):
                continue  # the import is rewritten instead
            edits, imports = _rewrite(file, reference, rest)
            message = f"tf.{reference.name} is gone from TensorFlow"
            cure = None if edits else advice(rest)
            is_other = (
                rest.startswith(_OTHER_ARGUMENTS) or rest.endswith("_head") or _is_refused(file, reference)
            )
            safety: Safety = "unsafe" if is_other else "safe"
            yield self.report(file, reference.node, message, edits, imports, cure=cure, safety=safety)
        for statement in {node for node, _, name in names.imports if name.partition(".")[0] == "contrib"}:
            yield self._imported(file, statement)
        for plain in file.tree.all(ast.Import):
            for alias in plain.names:
                if alias.name.startswith("tensorflow.contrib."):
                    unused = (
                        alias.asname is not None
                        and len(plain.names) == 1
                        and not _is_read(file, alias.asname)
                    )
                    edits = remove_statement(file, plain) if unused else []
                    cure = advice(alias.name.removeprefix("tensorflow.contrib."))
                    yield self.report(file, plain, f"{alias.name} is gone", edits, cure=cure)

    def _imported(self, file: File, statement: ast.ImportFrom) -> Finding:
        """A finding for `from tensorflow.contrib.layers import layer_norm`; rewritten if one module of portwright has all names."""
        module = (statement.module or "").removeprefix("tensorflow").removeprefix(".")
        below = module.partition(".")[2]
        names = [f"{below}.{a.name}".strip(".") for a in statement.names]
        homes = [home_of(name) if below else None for name in names]
        places = [
            f"{home.package}.{home.name}".rpartition(".") if home is not None else ("", "", "")
            for home in homes
        ]
        packages = {package for package, _, _ in places}
        edits: list[Edit] = []
        if len(packages) == 1 and (package := packages.pop()).startswith("portwright."):
            parts = [
                there + (f" as {bound}" if (bound := a.asname or a.name) != there else "")
                for (_, _, there), a in zip(places, statement.names, strict=True)
            ]
            lent = [] if is_lent(file) else lend(file)[1]
            edits = [*lent, file.replace(statement, f"from {package} import {', '.join(parts)}")]
        elif not below and not any(_is_read(file, a.asname or a.name) for a in statement.names):
            edits = remove_statement(file, statement)  # all uses of the module were rewritten
        cure = None if edits else advice(names[0])
        message = f"{statement.module}.{statement.names[0].name} is gone"
        return self.report(file, statement, message, edits, cure=cure)


def _is_read(file: File, name: str) -> bool:
    return any(n.id == name and isinstance(n.ctx, ast.Load) for n in file.tree.all(ast.Name))


def _rewrite(file: File, reference: Reference, name: str) -> tuple[list[Edit], tuple[str, ...]]:
    spell = tensorflow_of(file).spell
    if name == "layers.xavier_initializer":
        call = file.tree.parent_call(reference.node)
        text = spell("compat.v1.glorot_uniform_initializer")
        if call is not None and _is_plain_xavier(call) and text is not None:
            return [file.replace(reference.node, text)], ()
    home = home_of(name)
    if home is None:
        return [], ()
    if home.package == "tensorflow":
        needs_keras = is_legacy_keras(home.name.removeprefix("compat.v1.")) and not is_lent(file)
        text = spell(home.name)
        if text is None:
            return [], ()
        return [*(lend(file)[1] if needs_keras else ()), file.replace(reference.node, text)], ()
    alias, early = lend(file)
    if home.package == "portwright.tensorflow":
        return [*early, file.replace(reference.node, f"{alias}.{home.name}")], ()
    module = home.package.rpartition(".")[2]
    if binds_another(file, module, f"portwright.compat.{module}"):
        return [], ()
    edits = [*(() if is_lent(file) else early), file.replace(reference.node, f"{module}.{home.name}")]
    return edits, (f"from portwright.compat import {module}",)


def _is_refused(file: File, reference: Reference) -> bool:
    call = file.tree.parent_call(reference.node)
    return call is not None and any(k.arg in _REFUSED for k in call.keywords)


def _is_plain_xavier(call: ast.Call) -> bool:
    """Whether it is the default, uniform form, with all other arguments by name."""
    return not call.args and all(k.arg in ("seed", "dtype") for k in call.keywords)
