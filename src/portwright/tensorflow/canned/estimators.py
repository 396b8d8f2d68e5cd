"""The ready-made Estimators of tf.estimator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from portwright.tensorflow.arguments import BadValue
from portwright.tensorflow.canned import model_fns
from portwright.tensorflow.canned.head import Head
from portwright.tensorflow.canned.networks import Dnn, Linear, check_columns
from portwright.tensorflow.estimator import Estimator

_MEAN = "sum_over_batch_size"
Activation = Callable[[Any], Any]


class ReadyMade(Estimator):
    """The base class of ready-made Estimators."""

    _model_fns: Any = model_fns  # what makes heads and model functions: another module for TensorFlow 1
    _partitioner: tuple[Any, ...] = ()  # the last argument of TensorFlow 1's model functions


class DNNEstimator(ReadyMade):
    """Fully connected layers under a head of your choice."""

    def __init__(
        self,
        head: Head,
        hidden_units: Sequence[int],
        feature_columns: Any,
        model_dir: Any = None,
        optimizer: Any = "Adagrad",
        activation_fn: Activation = tf.nn.relu,
        dropout: float | None = None,
        config: Any = None,
        warm_start_from: Any = None,
        batch_norm: bool = False,
    ) -> None:
        dnn = Dnn(hidden_units, check_columns(feature_columns), activation_fn, dropout, batch_norm)
        model_fn = self._model_fns.dnn_model_fn(head, dnn, optimizer, *self._partitioner)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class DNNClassifier(DNNEstimator):
    """Fully connected layers that tell classes apart."""

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Any,
        model_dir: Any = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Any = None,
        optimizer: Any = "Adagrad",
        activation_fn: Activation = tf.nn.relu,
        dropout: float | None = None,
        config: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = _MEAN,
        batch_norm: bool = False,
    ) -> None:
        head = self._model_fns.class_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        super().__init__(
            head,
            hidden_units,
            feature_columns,
            model_dir,
            optimizer,
            activation_fn,
            dropout,
            config,
            warm_start_from,
            batch_norm,
        )


class DNNRegressor(DNNEstimator):
    """Fully connected layers that predict numbers."""

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Any,
        model_dir: Any = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Adagrad",
        activation_fn: Activation = tf.nn.relu,
        dropout: float | None = None,
        config: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = _MEAN,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(
            self._model_fns.regression_head(label_dimension, weight_column, loss_reduction),
            hidden_units,
            feature_columns,
            model_dir,
            optimizer,
            activation_fn,
            dropout,
            config,
            warm_start_from,
            batch_norm,
        )


class LinearEstimator(ReadyMade):
    """A linear model under a head of your choice."""

    def __init__(
        self,
        head: Head,
        feature_columns: Any,
        model_dir: Any = None,
        optimizer: Any = "Ftrl",
        config: Any = None,
        sparse_combiner: str = "sum",
        warm_start_from: Any = None,
    ) -> None:
        linear = Linear(check_columns(feature_columns), sparse_combiner)
        model_fn = self._model_fns.linear_model_fn(head, linear, optimizer, *self._partitioner)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class LinearClassifier(LinearEstimator):
    """A linear model that tells classes apart."""

    def __init__(
        self,
        feature_columns: Any,
        model_dir: Any = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Any = None,
        optimizer: Any = "Ftrl",
        config: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = _MEAN,
        sparse_combiner: str = "sum",
    ) -> None:
        head = self._model_fns.class_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        super().__init__(
            head, feature_columns, model_dir, optimizer, config, sparse_combiner, warm_start_from
        )


class LinearRegressor(LinearEstimator):
    """A linear model that predicts numbers."""

    def __init__(
        self,
        feature_columns: Any,
        model_dir: Any = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = _MEAN,
        sparse_combiner: str = "sum",
    ) -> None:
        head = self._model_fns.regression_head(label_dimension, weight_column, loss_reduction)
        super().__init__(
            head, feature_columns, model_dir, optimizer, config, sparse_combiner, warm_start_from
        )


class _Combined(ReadyMade):
    def __init__(
        self,
        head: Head,
        model_dir: Any,
        linear_columns: Any,
        linear_optimizer: Any,
        dnn_columns: Any,
        dnn_optimizer: Any,
        hidden_units: Any,
        activation_fn: Activation,
        dropout: float | None,
        config: Any,
        batch_norm: bool,
        sparse_combiner: str,
        warm_start_from: Any = None,
    ) -> None:
        """Each part is made if columns are given for it."""
        check_columns(
            [*(linear_columns or ()), *(dnn_columns or ())], "linear_feature_columns and dnn_feature_columns"
        )
        if dnn_columns and not hidden_units:
            raise BadValue(
                f"dnn_hidden_units is {hidden_units!r}.", "With dnn_feature_columns give the layers' widths."
            )
        linear = Linear(list(linear_columns), sparse_combiner) if linear_columns else None
        dnn = None
        if dnn_columns:
            dnn = Dnn(hidden_units, list(dnn_columns), activation_fn, dropout, batch_norm)
        model_fn = self._model_fns.combined_model_fn(
            head, linear, linear_optimizer, dnn, dnn_optimizer, *self._partitioner
        )
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class DNNLinearCombinedEstimator(_Combined):
    """A linear model beside fully connected layers, under a head of your choice."""

    def __init__(
        self,
        head: Head,
        model_dir: Any = None,
        linear_feature_columns: Any = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Any = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Activation = tf.nn.relu,
        dnn_dropout: float | None = None,
        config: Any = None,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        super().__init__(
            head,
            model_dir,
            linear_feature_columns,
            linear_optimizer,
            dnn_feature_columns,
            dnn_optimizer,
            dnn_hidden_units,
            dnn_activation_fn,
            dnn_dropout,
            config,
            batch_norm,
            linear_sparse_combiner,
        )


class DNNLinearCombinedClassifier(_Combined):
    """A linear model beside fully connected layers that tell classes apart."""

    def __init__(
        self,
        model_dir: Any = None,
        linear_feature_columns: Any = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Any = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Activation = tf.nn.relu,
        dnn_dropout: float | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Any = None,
        config: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = _MEAN,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        super().__init__(
            self._model_fns.class_head(n_classes, weight_column, label_vocabulary, loss_reduction),
            model_dir,
            linear_feature_columns,
            linear_optimizer,
            dnn_feature_columns,
            dnn_optimizer,
            dnn_hidden_units,
            dnn_activation_fn,
            dnn_dropout,
            config,
            batch_norm,
            linear_sparse_combiner,
            warm_start_from,
        )


class DNNLinearCombinedRegressor(_Combined):
    """A linear model beside fully connected layers that predict numbers."""

    def __init__(
        self,
        model_dir: Any = None,
        linear_feature_columns: Any = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Any = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Activation = tf.nn.relu,
        dnn_dropout: float | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        config: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = _MEAN,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        super().__init__(
            self._model_fns.regression_head(label_dimension, weight_column, loss_reduction),
            model_dir,
            linear_feature_columns,
            linear_optimizer,
            dnn_feature_columns,
            dnn_optimizer,
            dnn_hidden_units,
            dnn_activation_fn,
            dnn_dropout,
            config,
            batch_norm,
            linear_sparse_combiner,
            warm_start_from,
        )


class BaselineEstimator(ReadyMade):
    """A bias alone, under a head of your choice: what a model must beat."""

    def __init__(
        self, head: Head, model_dir: Any = None, optimizer: Any = "Ftrl", config: Any = None
    ) -> None:
        super().__init__(self._model_fns.baseline_model_fn(head, optimizer, None), model_dir, config)


class BaselineClassifier(ReadyMade):
    """The frequency of each class."""

    def __init__(
        self,
        model_dir: Any = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Any = None,
        optimizer: Any = "Ftrl",
        config: Any = None,
        loss_reduction: str = _MEAN,
    ) -> None:
        head = self._model_fns.class_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        super().__init__(self._model_fns.baseline_model_fn(head, optimizer, weight_column), model_dir, config)


class BaselineRegressor(ReadyMade):
    """The mean of the labels."""

    def __init__(
        self,
        model_dir: Any = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: Any = None,
        loss_reduction: str = _MEAN,
    ) -> None:
        head = self._model_fns.regression_head(label_dimension, weight_column, loss_reduction)
        super().__init__(self._model_fns.baseline_model_fn(head, optimizer, weight_column), model_dir, config)
