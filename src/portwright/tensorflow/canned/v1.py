"""The ready-made Estimators of tf.compat.v1.estimator: those of `estimators`, with a partitioner, and losses summed by default."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from portwright.tensorflow.canned import estimators, v1_model_fns

Kind = TypeVar("Kind", bound=type[estimators.ReadyMade])


def _of_version_1(partitioner: str = "", *, after_config: bool = False) -> Callable[[Kind], Kind]:
    """Gives a class TensorFlow 1's model functions, and the arguments of its base with a partitioner before or after `config`."""

    def change(kind: Any) -> Any:
        inherited = kind.__init__
        arguments = [
            argument.replace(default=tf.compat.v1.losses.Reduction.SUM)
            if argument.name == "loss_reduction"
            else argument
            for argument in inspect.signature(inherited).parameters.values()
        ]
        if partitioner:
            config = [argument.name for argument in arguments].index("config")
            added = inspect.Parameter(partitioner, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
            arguments.insert(config + after_config, added)
        signature = inspect.Signature(arguments)

        def __init__(*args: Any, **kwargs: Any) -> None:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given = bound.arguments
            estimator = given.pop("self")
            if partitioner:
                estimator._partitioner = (given.pop(partitioner),)
            inherited(estimator, **given)

        __init__.__signature__ = signature  # type: ignore[attr-defined]
        kind.__init__, kind._model_fns = __init__, v1_model_fns
        return kind

    return change


@_of_version_1("input_layer_partitioner")
class DNNEstimator(estimators.DNNEstimator):
    """Fully connected layers under a head of your choice."""


@_of_version_1("input_layer_partitioner")
class DNNClassifier(estimators.DNNClassifier):
    """Fully connected layers that tell classes apart."""


@_of_version_1("input_layer_partitioner")
class DNNRegressor(estimators.DNNRegressor):
    """Fully connected layers that predict numbers."""


@_of_version_1("partitioner", after_config=True)
class LinearEstimator(estimators.LinearEstimator):
    """A linear model under a head of your choice."""


@_of_version_1("partitioner", after_config=True)
class LinearClassifier(estimators.LinearClassifier):
    """A linear model that tells classes apart."""


@_of_version_1("partitioner", after_config=True)
class LinearRegressor(estimators.LinearRegressor):
    """A linear model that predicts numbers."""


@_of_version_1("input_layer_partitioner")
class DNNLinearCombinedEstimator(estimators.DNNLinearCombinedEstimator):
    """A linear model beside fully connected layers, under a head of your choice."""


@_of_version_1("input_layer_partitioner")
class DNNLinearCombinedClassifier(estimators.DNNLinearCombinedClassifier):
    """A linear model beside fully connected layers that tell classes apart."""


@_of_version_1("input_layer_partitioner")
class DNNLinearCombinedRegressor(estimators.DNNLinearCombinedRegressor):
    """A linear model beside fully connected layers that predict numbers."""


@_of_version_1()
class BaselineEstimator(estimators.BaselineEstimator):
    """A bias alone, under a head of your choice: what a model must beat."""


@_of_version_1()
class BaselineClassifier(estimators.BaselineClassifier):
    """The frequency of each class."""


@_of_version_1()
class BaselineRegressor(estimators.BaselineRegressor):
    """The mean of the labels."""
