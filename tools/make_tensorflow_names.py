"""Writes port/tensorflow_v1.py: the names of TensorFlow 1's API that today's `tf` lacks, or means otherwise.

    python tools/make_tensorflow_names.py     # needs TensorFlow and tf_keras

A word is a name, and for functions whose arguments changed, apart by slashes: how many leading arguments are the same, and
the keywords that both know. A word that ends with a colon is the module of those behind it. Kinds: `gone` (only tf.compat.v1 has it), `module` (a whole module that is gone), `other` (the
same name, another meaning), `arguments` (the same meaning for calls within the shared arguments).
"""

from __future__ import annotations

import inspect
import os
import textwrap
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf
from tensorflow.python.util import tf_decorator

OUT = Path(__file__).parents[1] / "src/portwright/port/tensorflow_v1.py"
_LEFT_OUT = {"compat", "keras", "tools", "python", "core", "estimator", "contrib", "lite"}
# The same arguments and another result: broadcasting, sampling, gradients into labels, collections, modes, how several
# shards of a table are numbered, what fills a constant, merged labels of a beam, seeds, ragged tensors for sparse ones.
_OTHER = {
    "where", "executing_eagerly", "nn.softmax_cross_entropy_with_logits", "image.resize", "gradients", "hessians",
    "while_loop", "map_fn", "name_scope", "device", "test.compute_gradient", "saved_model.load", "nn.ctc_loss",
    "train.Checkpoint", "variable_creator_scope", "data.experimental.make_csv_dataset", "image.crop_and_resize",
    "nn.embedding_lookup", "nn.embedding_lookup_sparse", "nn.nce_loss", "nn.sampled_softmax_loss",
    "nn.ctc_beam_search_decoder", "image.extract_glimpse", "image.sample_distorted_bounding_box", "strings.split",
    "nn.fractional_avg_pool", "nn.fractional_max_pool", "cond",
}  # fmt: skip
# Of what remains, those whose other arguments have another default, which no signature shows.
_NARROWER = {"constant": ("arguments", "2", "value dtype name")}
_ALIKE = {"test", "autograph", "distribute", "lookup", "feature_column"}  # left to their v2 form


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
    if dotted in _NARROWER:
        return _NARROWER[dotted]
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


def render(found: Iterable[tuple[str, str, str, str]]) -> Iterator[str]:
    """The table as Python: of each kind its names, a module's together."""
    kinds: dict[str, dict[str, list[str]]] = {}
    for dotted, kind, shared, keywords in found:
        module, _, name = dotted.rpartition(".")
        word = f"{name}/{shared}/{keywords.replace(' ', ',')}" if kind == "arguments" else name
        kinds.setdefault(kind, {}).setdefault(module, []).append(word)
    for kind, modules in kinds.items():
        words = " ".join(" ".join([f"{module}:", *names]) for module, names in modules.items())
        yield f'    "{kind}": """'
        yield textwrap.indent(textwrap.fill(words, 108, break_long_words=False), " " * 8)
        yield '    """,'


def main() -> None:
    found = list(rows(tf.compat.v1, tf, "", 0))
    head = f'"""Names of TensorFlow 1 that `tf` lacks or means otherwise, by tools/make_tensorflow_names.py from {tf.__version__}."""'
    OUT.write_text("\n".join([head, "", "TABLE = {", *render(found), "}", ""]))
    print(len(found), "names")


if __name__ == "__main__":
    main()
