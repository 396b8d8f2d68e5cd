from __future__ import annotations

import ast

from portwright.port.finding import Edit, Finding
from portwright.port.rewrite import remove_statement
from portwright.port.rule import File, Findings
from portwright.port.tensorflow_homes import CANNED, ESTIMATOR, INNER, VENDOR, VENDOR_MODULES, estimator_home
from portwright.port.tensorflow_names import (
    TensorFlowRule,
    binds_another,
    is_early,
    lend,
    put_early,
    tensorflow_of,
)

_CANNED_V1 = "from portwright.tensorflow.canned import v1 as canned_v1"
_PACKAGES = (
    "tensorflow_estimator.", "tensorflow.python.estimator.", "tensorflow.contrib.estimator.", "tensorflow.estimator.",
    "tensorflow.compat.v1.estimator.", "tensorflow.compat.v2.estimator.",
)  # fmt: skip
_HOMES = {"": ESTIMATOR, **{f".{inner}": names for inner, names in INNER.items()}}


class EstimatorName(TensorFlowRule):
    """Takes tf.estimator and its kin from portwright.tensorflow.

    ## Why
    tf.estimator left TensorFlow in 2.16, and the vendor's estimators were built on it. portwright.tensorflow has the
    same classes and functions on today's TensorFlow, with the same checkpoints.

    ## Example
    ```python
    import tensorflow as tf

    def model_fn(features, labels, mode, params):
        return tf.estimator.EstimatorSpec(mode, predictions=features["x"])
    ```

    ## Instead
    ```python
    import portwright.tensorflow as ptf
    import tensorflow as tf

    def model_fn(features, labels, mode, params):
        return ptf.EstimatorSpec(mode, predictions=features["x"])
    ```

    ## Safety
    Safe: names, arguments, checkpoints and results are the same, those of TensorFlow 2.15's own, whose losses, metrics and
    variables drawn programs repeat. The import comes first, since it has TensorFlow come with its legacy Keras, as the
    releases with tf.estimator did. TensorFlow 1 and 2 each have ready-made estimators of their own, which
    take other optimizers and sum the losses or average them: each is taken from its twin, and unsafe where the file does
    not tell which it means.
    """

    code = "PW611"
    needs = ("tensorflow_2",)
    safety = "safe"
    words = ("estimator", "cs_estimator", "cs_estimator_spec", "run_config")
    cure = "Take it from portwright.tensorflow."

    def find(self, file: File) -> Findings:
        for reference in tensorflow_of(file).references:
            first, _, rest = reference.name.partition(".")
            if first != "estimator" or reference.root is None or rest.partition(".")[0] == "tpu":
                continue
            home = estimator_home(rest)
            if home is None:
                yield self._unknown(file, reference.node, f"tf.{reference.name}")
                continue
            message = f"tf.{reference.name} is gone from TensorFlow"
            names = tensorflow_of(file)
            is_old = reference.generation == "compat.v1." or (not reference.generation and names.is_version_1)
            alias, imports = lend(file)
            if home.partition(".")[0] in CANNED and is_old:
                edits = [*imports, file.replace(reference.node, f"canned_v1.{home}")]
                if binds_another(file, "canned_v1", "portwright.tensorflow.canned.v1"):
                    edits = []
                yield self.report(file, reference.node, message, edits, (_CANNED_V1,))
                continue
            # Unless the file shows the version, a ready-made estimator may sum its losses (TensorFlow 1) or average them (2).
            is_known = home.partition(".")[0] not in CANNED or bool(reference.generation)
            text = f"{alias}.{home}" if home else alias
            edits = [*imports, file.replace(reference.node, text)]
            yield self.report(file, reference.node, message, edits, safety="safe" if is_known else "unsafe")
        for statement in file.tree.all(ast.ImportFrom):
            yield from self._imported(file, statement)
        for plain in file.tree.all(ast.Import):
            if any(a.name.partition(".")[0] == "tensorflow_estimator" for a in plain.names):
                yield self._unknown(file, plain, f"`{file.segment(plain)}`")

    def _imported(self, file: File, statement: ast.ImportFrom) -> Findings:
        module = f"{statement.module}."
        if statement.level or not _is_theirs(file, statement, module):
            return
        if [a.name for a in statement.names] == ["estimator"] and module in (
            "tensorflow.", "tensorflow.compat.v1.", "tensorflow.compat.v2.", "tensorflow_estimator.python.estimator.",
        ):  # fmt: skip
            bound = statement.names[0].asname or "estimator"
            new = f"import portwright.tensorflow as {bound}"
            used = {r.name.partition(".")[2] for r in tensorflow_of(file).references if r.root is None}
            names = {name.partition(".")[0] for name in used}
            unknown = [n for n in used if estimator_home(n) is None and not n.startswith("tpu.")]
            if unknown or f"{bound}.tpu" in file.source.text:
                yield self._unknown(file, statement, f"a part of `{bound}`")
                return
        elif (home := _home(module, names := {a.name for a in statement.names})) is not None:
            spelled = [f"{a.name} as {a.asname}" if a.asname else a.name for a in statement.names]
            new = f"from portwright.tensorflow{home} import {', '.join(spelled)}"
        else:
            known = {name for names in _HOMES.values() for name in names} | VENDOR | {"estimator"}
            first = next((a.name for a in statement.names if a.name not in known), statement.names[0].name)
            if _is_vendors(module) and first not in VENDOR:
                return  # not one of the vendor's estimators
            yield self._unknown(file, statement, f"{statement.module}.{first}")
            return
        is_known = not names & CANNED or ".compat.v2." in module
        yield self.report(
            file, statement, f"{statement.module} is gone", _move(file, statement, new),
            safety="safe" if is_known else "unsafe",
        )  # fmt: skip

    def _unknown(self, file: File, node: ast.AST, what: str) -> Finding:
        cure = "See docs/tensorflow.md for what there is; `portwright run --compat estimator` lends the rest of the old modules."
        return self.report(file, node, f"{what} has no twin in portwright.tensorflow", cure=cure)


def _home(module: str, names: set[str]) -> str | None:
    """The module below portwright.tensorflow that has all of these names."""
    if _is_vendors(module):
        return "" if names <= VENDOR else None
    return next((home for home, known in _HOMES.items() if names <= known), None)


def _is_vendors(module: str) -> bool:
    return module.startswith(VENDOR_MODULES)


def _is_theirs(file: File, statement: ast.ImportFrom, module: str) -> bool:
    if module in ("tensorflow.", "tensorflow.compat.v1.", "tensorflow.compat.v2."):
        return any(a.name == "estimator" for a in statement.names)
    if module.startswith(_PACKAGES):
        return ".tpu." not in module
    if not _is_vendors(module):
        return False
    # The project's own copy of the vendor's wrappers is kept.
    return file.names.project.find_module(file.source.path, statement.module or "", 0) is None


def _move(file: File, statement: ast.ImportFrom, new: str) -> list[Edit]:
    """Edits that put the new import before anything that loads TensorFlow."""
    if is_early(file, statement):
        return [file.replace(statement, new)]
    if statement in file.tree.module.body:
        return [put_early(file, new), *remove_statement(file, statement)]
    return [*lend(file)[1], file.replace(statement, new)]
