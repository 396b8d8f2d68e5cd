"""Writes port/tensorflow_v1.py: the names of TensorFlow 1's API that today's `tf` lacks, or means otherwise.

    python tools/make_tensorflow_names.py     # needs TensorFlow and tf_keras

A row is name, kind, and for functions whose arguments changed: how many leading arguments are the same, and the
keywords that both know. Kinds: `gone` (only tf.compat.v1 has it), `module` (a whole module that is gone), `other` (the
same name, another meaning), `arguments` (the same meaning for calls within the shared arguments).
"""

from __future__ import annotations

import inspect
import os
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf
from tensorflow.python.util import tf_decorator

OUT = Path(__file__).parents[1] / "src/portwright/port/tensorflow_v1.py"
_LEFT_OUT = {"compat", "keras", "tools", "python", "core", "estimator", "contrib", "lite"}
# The same arguments and another result: broadcasting, sampling, gradients into labels, collections, modes.
_OTHER = {
    "where", "executing_eagerly", "nn.softmax_cross_entropy_with_logits", "image.resize", "gradients", "hessians",
    "while_loop", "map_fn", "name_scope", "device", "test.compute_gradient", "saved_model.load", "nn.ctc_loss",
    "train.Checkpoint", "variable_creator_scope", "data.experimental.make_csv_dataset", "image.crop_and_resize",
}  # fmt: skip
_ALIKE = {"test", "autograph", "distribute", "debugging", "lookup", "feature_column"}  # left to their v2 form


def rows(v1: Any, v2: Any, prefix: str, depth: int) -> Iterator[tuple[str, str, str, str]]:
    for name in sorted(n for n in dir(v1) if not n.startswith("_")):
        dotted = prefix + name
        if dotted in _LEFT_OUT:
            continue
        old, new = getattr(v1, name, None), getattr(v2, name, None)
        if isinstance(old, types.ModuleType):
            if not old.__name__.startswith(("tensorflow", "tf_keras")):
                continue
            if not isinstance(new, types.ModuleType):
                yield dotted, "module", "", ""
            elif depth < 3:
                yield from rows(old, new, f"{dotted}.", depth + 1)
        elif new is None:
            yield dotted, "gone", "", ""
        elif not _is_same(old, new) and not any(dotted.startswith(f"{part}.") for part in _ALIKE):
            yield dotted, *_compare(dotted, old, new)


def _is_same(old: Any, new: Any) -> bool:
    if old is new or (isinstance(old, (int, str, float)) and old == new):
        return True
    return callable(old) and callable(new) and tf_decorator.unwrap(old)[1] is tf_decorator.unwrap(new)[1]


def _compare(dotted: str, old: Any, new: Any) -> tuple[str, str, str]:
    if dotted in _OTHER or inspect.isclass(old) or inspect.isclass(new) or not callable(old):
        return "other", "", ""
    try:
        first, second = (inspect.signature(tf_decorator.unwrap(f)[1]).parameters for f in (old, new))
    except (TypeError, ValueError):
        return "other", "", ""
    shared = 0
    for one, other in zip(first.values(), second.values(), strict=False):
        if one.name != other.name or not _same_default(one.default, other.default):
            break
        shared += 1
    both = [n for n in first if n in second and _same_default(first[n].default, second[n].default)]
    if any(n in second and n not in both for n in first):
        return "other", "", ""  # a default changed: the same call has another meaning
    return "arguments", str(shared), " ".join(both)


def _same_default(one: Any, other: Any) -> bool:
    nothing = (None, False, inspect.Parameter.empty)
    return one is other or one == other or (one in nothing and other in nothing)


def main() -> None:
    lines = ["\t".join(row).rstrip() for row in rows(tf.compat.v1, tf, "", 0)]
    head = (
        f'"""Names of TensorFlow 1 that `tf` lacks or means otherwise, by tools/make_tensorflow_names.py from {tf.__version__}.\n\n'
        'Rows: name, kind, number of leading arguments that are the same, keywords that both have.\n"""\n\n'
    )
    OUT.write_text(head + 'ROWS = """\\\n' + "\n".join(lines) + '\n"""\n')
    print(len(lines), "names")


if __name__ == "__main__":
    main()
