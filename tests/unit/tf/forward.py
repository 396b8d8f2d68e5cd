"""Runs a model_fn, or a network, with given weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf


def run_with(weights: Mapping[str, Any], build: Callable[[], Any]) -> Any:
    """Builds in a graph of its own, gives every variable its weight, and returns the values of what was built."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        fetches = build()
        variables = {v.name.removesuffix(":0"): v for v in tf.compat.v1.global_variables()}
        assert sorted(variables) == sorted(weights)
        for name, variable in variables.items():
            assert tuple(variable.shape) == weights[name].shape, name
        initializers = {name: variable.initializer for name, variable in variables.items()}
        session.run(initializers, {op.inputs[1]: weights[name] for name, op in initializers.items()})
        return session.run(fetches)


def random_weights(build: Callable[[], Any], seed: int = 0) -> dict[str, Any]:
    """Weights of the variables that `build` makes, none of them at a value that hides an error."""
    random = np.random.default_rng(seed)
    with tf.Graph().as_default():
        build()
        variables = tf.compat.v1.global_variables()
        return {
            v.name.removesuffix(":0"): random.normal(0, 0.3, v.shape.as_list()).astype(np.float32)
            + (1.0 if v.name.endswith("gamma:0") else 0.0)
            for v in variables
        }
