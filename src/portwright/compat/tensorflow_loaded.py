"""What is given back to TensorFlow and Keras once they are loaded: parts that they dropped, and the ways of TensorFlow 1."""

from __future__ import annotations

import functools
import importlib
import logging
import random
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from portwright.errors import UserError


class AfterLoading(MetaPathFinder):
    """Calls a function with each of some modules as soon as it is loaded."""

    def __init__(self, then: Mapping[str, Callable[[Any], None]]) -> None:
        self._then = dict(then)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._then:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenLoader(spec.loader, self._then[fullname])
        return spec

    def install(self) -> None:
        for name, then in self._then.items():
            if name in sys.modules:
                then(sys.modules[name])
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        sys.meta_path.remove(self)


class _ThenLoader(Loader):
    def __init__(self, loader: Loader, then: Callable[[Any], None]) -> None:
        self._loader, self._then = loader, then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # where its source is, and the like

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._then(module)


def give_back_to_tensorflow(tensorflow: Any) -> None:
    """tf.estimator, also under tf.compat, and tf.compat.v1.contrib."""
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
    """absl.logging took flags such as --log_dir in 2019; scripts that are older define their own."""
    from absl import flags
    from absl import logging as absl_logging

    for flag in flags.FLAGS.flags_by_module_dict().get(absl_logging.__name__, []):
        flag.allow_override = True


def give_back_to_keras(tf_keras: Any) -> None:
    """Layers are again as before: their policy's types may be set, convolutions have no groups, a graph's seed counts."""
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
    """Initializers without a seed of their own draw from their graph's again, and not from Python's generator."""

    drawn: weakref.WeakKeyDictionary[Any, random.Random] = weakref.WeakKeyDictionary()

    def create_seed(self: Any, user_specified_seed: int | None) -> int:
        import tensorflow as tf

        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        if user_specified_seed is not None or graph is None or graph.seed is None:
            return create(self, user_specified_seed)
        return drawn.setdefault(graph, random.Random(graph.seed)).randint(1, 10**9)

    return create_seed


def _without_groups(init: Callable[..., None]) -> Callable[..., None]:
    """Lets a layer be made with arguments in the order of before 2.3, when there were no groups before the activation."""

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
    """Graphs instead of eager execution, dimensions with .value, and what else TensorFlow 1 did otherwise."""
    import tensorflow as tf

    log = logging.getLogger("tensorflow")
    level = log.level
    log.setLevel(logging.ERROR)  # it advises against what we ask for
    try:
        tf.compat.v1.disable_v2_behavior()
        # Version 1's own kind of variable is left out: in TensorFlow 2 a loop's gradient that waits for an update of
        # one (BatchNorm's, before minimize) never runs, and the step is skipped without a word.
        tf.compat.v1.enable_resource_variables()
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"this program is written for TensorFlow 1, but was already used eagerly: {error}.",
            "Import its parts of TensorFlow 1 before anything runs, or write tf.compat.v1.disable_v2_behavior() first.",
        ) from error
    finally:
        log.setLevel(level)
