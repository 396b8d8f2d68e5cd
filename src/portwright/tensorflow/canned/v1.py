"""The ready-made Estimators of tf.compat.v1.estimator: those of `estimators`, with a partitioner, and losses summed by default."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from portwright.tensorflow.canned.head import Head
from portwright.tensorflow.canned.model_fns import make_combined_parts
from portwright.tensorflow.canned.networks import Dnn, Linear, check_columns
from portwright.tensorflow.canned.v1_heads import V1RegressionHead
from portwright.tensorflow.canned.v1_model_fns import (
    v1_baseline_model_fn,
    v1_class_head,
    v1_combined_model_fn,
    v1_dnn_model_fn,
    v1_linear_model_fn,
)
from portwright.tensorflow.estimator import Estimator

_SUM = tf.compat.v1.losses.Reduction.SUM
Activation = Callable[[Any], Any]


class DNNEstimator(Estimator):
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
        input_layer_partitioner: Any = None,
        config: Any = None,
        warm_start_from: Any = None,
        batch_norm: bool = False,
    ) -> None:
        dnn = Dnn(hidden_units, check_columns(feature_columns), activation_fn, dropout, batch_norm)
        model_fn = v1_dnn_model_fn(head, dnn, optimizer, input_layer_partitioner)
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
        input_layer_partitioner: Any = None,
        config: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = _SUM,
        batch_norm: bool = False,
    ) -> None:
        head = v1_class_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        super().__init__(
            head,
            hidden_units,
            feature_columns,
            model_dir,
            optimizer,
            activation_fn,
            dropout,
            input_layer_partitioner,
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
        input_layer_partitioner: Any = None,
        config: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = _SUM,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(
            V1RegressionHead(label_dimension, weight_column, loss_reduction),
            hidden_units,
            feature_columns,
            model_dir,
            optimizer,
            activation_fn,
            dropout,
            input_layer_partitioner,
            config,
            warm_start_from,
            batch_norm,
        )


class LinearEstimator(Estimator):
    """A linear model under a head of your choice."""

    def __init__(
        self,
        head: Head,
        feature_columns: Any,
        model_dir: Any = None,
        optimizer: Any = "Ftrl",
        config: Any = None,
        partitioner: Any = None,
        sparse_combiner: str = "sum",
        warm_start_from: Any = None,
    ) -> None:
        linear = Linear(check_columns(feature_columns), sparse_combiner)
        model_fn = v1_linear_model_fn(head, linear, optimizer, partitioner)
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
        partitioner: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = _SUM,
        sparse_combiner: str = "sum",
    ) -> None:
        head = v1_class_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        super().__init__(
            head, feature_columns, model_dir, optimizer, config, partitioner, sparse_combiner, warm_start_from
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
        partitioner: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = _SUM,
        sparse_combiner: str = "sum",
    ) -> None:
        head = V1RegressionHead(label_dimension, weight_column, loss_reduction)
        super().__init__(
            head, feature_columns, model_dir, optimizer, config, partitioner, sparse_combiner, warm_start_from
        )


class _Combined(Estimator):
    def __init__(
        self, head: Head, parts: Any, optimizers: tuple[Any, Any], partitioner: Any, **options: Any
    ) -> None:
        linear, dnn = parts
        super().__init__(
            v1_combined_model_fn(head, linear, optimizers[0], dnn, optimizers[1], partitioner), **options
        )


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
        input_layer_partitioner: Any = None,
        config: Any = None,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        parts = make_combined_parts(
            linear_feature_columns,
            linear_sparse_combiner,
            dnn_feature_columns,
            dnn_hidden_units,
            dnn_activation_fn,
            dnn_dropout,
            batch_norm,
        )
        super().__init__(
            head,
            parts,
            (linear_optimizer, dnn_optimizer),
            input_layer_partitioner,
            model_dir=model_dir,
            config=config,
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
        input_layer_partitioner: Any = None,
        config: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = _SUM,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        parts = make_combined_parts(
            linear_feature_columns,
            linear_sparse_combiner,
            dnn_feature_columns,
            dnn_hidden_units,
            dnn_activation_fn,
            dnn_dropout,
            batch_norm,
        )
        super().__init__(
            v1_class_head(n_classes, weight_column, label_vocabulary, loss_reduction),
            parts,
            (linear_optimizer, dnn_optimizer),
            input_layer_partitioner,
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
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
        input_layer_partitioner: Any = None,
        config: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = _SUM,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        parts = make_combined_parts(
            linear_feature_columns,
            linear_sparse_combiner,
            dnn_feature_columns,
            dnn_hidden_units,
            dnn_activation_fn,
            dnn_dropout,
            batch_norm,
        )
        super().__init__(
            V1RegressionHead(label_dimension, weight_column, loss_reduction),
            parts,
            (linear_optimizer, dnn_optimizer),
            input_layer_partitioner,
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )


class BaselineEstimator(Estimator):
    """A bias alone, under a head of your choice: what a model must beat."""

    def __init__(
        self, head: Head, model_dir: Any = None, optimizer: Any = "Ftrl", config: Any = None
    ) -> None:
        super().__init__(v1_baseline_model_fn(head, optimizer, None), model_dir, config)


class BaselineClassifier(Estimator):
    """The frequency of each class."""

    def __init__(
        self,
        model_dir: Any = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Any = None,
        optimizer: Any = "Ftrl",
        config: Any = None,
        loss_reduction: str = _SUM,
    ) -> None:
        head = v1_class_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        super().__init__(v1_baseline_model_fn(head, optimizer, weight_column), model_dir, config)


class BaselineRegressor(Estimator):
    """The mean of the labels."""

    def __init__(
        self,
        model_dir: Any = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: Any = None,
        loss_reduction: str = _SUM,
    ) -> None:
        head = V1RegressionHead(label_dimension, weight_column, loss_reduction)
        super().__init__(v1_baseline_model_fn(head, optimizer, weight_column), model_dir, config)
