"""Adds to TensorFlow and Keras, once they are loaded, parts that they dropped, and switches to TensorFlow 1's behaviour."""

from __future__ import annotations

import functools
import importlib
import logging
import random
import sys
import weakref
from collections.abc import Callable
from typing import Any

from portwright.errors import UserError


def give_back_to_tensorflow(tensorflow: Any) -> None:
    """Adds tf.estimator, also under tf.compat, and tf.compat.v1.contrib."""
    tensorflow.estimator = importlib.import_module("tensorflow.estimator")
    of_v1 = importlib.import_module("tensorflow.compat.v1.estimator")
    for version in ("v1", "v2"):
        api = getattr(tensorflow.compat, version)
        module: Any
        for module in {
            id(m): m for m in (api, sys.modules.get(f"tensorflow.compat.{version}")) if m
        }.values():
            module.estimator = of_v1 if version == "v1" else tensorflow.estimator
            if version == "v1":
                module.contrib = importlib.import_module("tensorflow.contrib")
    _let_flags_be_defined_again()


def _let_flags_be_defined_again() -> None:
    """Lets a script define flags such as --log_dir, which absl.logging defines itself since 2019."""
    from absl import flags
    from absl import logging as absl_logging

    for flag in flags.FLAGS.flags_by_module_dict().get(absl_logging.__name__, []):
        flag.allow_override = True


def give_back_to_keras(tf_keras: Any) -> None:
    """Restores old behaviour of layers: dtypes may be set, convolutions take no groups, initializers use the graph's seed."""
    layer = importlib.import_module("tf_keras.src.engine.base_layer").Layer
    for name in ("compute_dtype", "variable_dtype", "dtype_policy"):
        there = vars(layer)[name]
        if there.fset is None:
            setattr(layer, name, property(there.fget, _setter(name), there.fdel, there.__doc__))
    generator = importlib.import_module("tf_keras.src.backend").RandomGenerator
    generator._create_seed = _from_the_graphs_seed(generator._create_seed)
    for convolution in (tf_keras.layers.Conv1D, tf_keras.layers.Conv2D, tf_keras.layers.Conv3D):
        convolution.__init__ = _without_groups(convolution.__init__)


def _from_the_graphs_seed(create: Callable[..., int]) -> Callable[..., int]:
    """Makes initializers without a seed use the graph's seed again, instead of Python's generator."""

    drawn: weakref.WeakKeyDictionary[Any, random.Random] = weakref.WeakKeyDictionary()

    def create_seed(self: Any, user_specified_seed: int | None) -> int:
        import tensorflow as tf

        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        if user_specified_seed is not None or graph is None or graph.seed is None:
            return create(self, user_specified_seed)
        return drawn.setdefault(graph, random.Random(graph.seed)).randint(1, 10**9)

    return create_seed


def _without_groups(init: Callable[..., None]) -> Callable[..., None]:
    """Accepts positional arguments in the order before TensorFlow 2.3, which had no `groups` before the activation."""

    @functools.wraps(init)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        if len(args) > 6 and (isinstance(args[6], bool) or not isinstance(args[6], int)):
            args = (*args[:6], 1, *args[6:])
        init(self, *args, **kwargs)

    return made


def _setter(name: str) -> Callable[[Any, Any], None]:
    def set_to_what_it_is(self: Any, value: Any) -> None:
        if value != getattr(self, name):
            raise AttributeError(
                f"{type(self).__name__}.{name} is {getattr(self, name)} by its policy and cannot become {value}; pass dtype= to the layer."
            )

    return set_to_what_it_is


def behave_as_v1() -> None:
    """Switches to TensorFlow 1's behaviour: graphs instead of eager execution, dimensions with .value, and so on."""
    import tensorflow as tf

    log = logging.getLogger("tensorflow")
    level = log.level
    log.setLevel(logging.ERROR)  # TensorFlow warns against these calls
    try:
        tf.compat.v1.disable_v2_behavior()
        # Variables stay resource variables: with version 1's, a loop's gradient that depends on their update (BatchNorm's,
        # before minimize) never runs in TensorFlow 2, and the step is skipped without an error.
        tf.compat.v1.enable_resource_variables()
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"this program is written for TensorFlow 1, but was already used eagerly: {error}.",
            "Import its parts of TensorFlow 1 before anything runs, or write tf.compat.v1.disable_v2_behavior() first.",
        ) from error
    finally:
        log.setLevel(level)
