"""Several heads on one model, each with its own labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.saved_model.model_utils.export_output import PredictOutput

from portwright.tensorflow.arguments import BadType, BadValue
from portwright.tensorflow.canned.head import DEFAULT_KEY, Head, add_regularization

v1 = tf.compat.v1


class MultiHead(Head):
    """Adds the losses of its heads up, weighted by `head_weights`; logits are split among them in order."""

    def __init__(self, heads: Sequence[Head], head_weights: Sequence[float] | None = None) -> None:
        if not heads:
            raise BadValue(f"heads is {heads!r}.", "Give one head or more.")
        if head_weights and len(head_weights) != len(heads):
            raise BadValue(
                f"There are {len(heads)} heads and {len(head_weights)} weights.", "Give one weight a head."
            )
        names = [head.name for head in heads]
        if not all(names) or len(set(names)) != len(names):
            raise BadValue(f"The heads are named {names}.", "Give each a name of its own.")
        self._heads: dict[str, Head] = {str(head.name): head for head in heads}
        self._weights = dict(zip(self._heads, head_weights, strict=True)) if head_weights else {}

    @property
    def name(self) -> str:
        return "_".join(self._heads)

    @property
    def logits_dimension(self) -> int:
        return sum(head.logits_dimension for head in self._heads.values())

    @property
    def loss_reduction(self) -> str:
        found = {head.loss_reduction for head in self._heads.values()}
        if len(found) != 1:
            raise BadValue(
                f"The heads reduce their losses by {', '.join(sorted(found))}.", "Give all the same one."
            )
        return found.pop()

    def loss(
        self,
        labels: Any,
        logits: Any,
        features: Any = None,
        mode: str | None = None,
        regularization_losses: Any = None,
    ) -> Any:
        parts = self._parts(logits)
        labels = self._check_labels(labels)
        losses = [
            head.loss(labels[name], parts[name], features, mode) * self._weights.get(name, 1.0)
            for name, head in self._heads.items()
        ]
        return add_regularization(tf.add_n(losses), regularization_losses)

    def predictions(self, logits: Any, keys: Sequence[str] | None = None) -> dict[Any, Any]:
        """Predictions by (name of the head, name of the prediction)."""
        parts = self._parts(logits)
        found = {name: head.predictions(parts[name]) for name, head in self._heads.items()}
        return {(name, key): value for name, values in found.items() for key, value in values.items()}

    def metrics(self, regularization_losses: Any = None) -> dict[str, Any]:
        made = {f"loss/{name}": tf.keras.metrics.Mean(name=f"loss_{name}") for name in self._heads}
        if regularization_losses is not None:
            made[self._key("regularization_loss")] = tf.keras.metrics.Mean(name="regularization_loss")
        return made

    def update_metrics(  # type: ignore[override]  # the real heads take no mode either
        self,
        eval_metrics: dict[str, Any],
        features: Any,
        logits: Any,
        labels: Any,
        regularization_losses: Any = None,
    ) -> dict[str, Any]:
        parts = self._parts(logits)
        labels = self._check_labels(labels)
        if regularization_losses is not None:
            eval_metrics[self._key("regularization_loss")].update_state(tf.add_n(regularization_losses))
        for name, head in self._heads.items():
            eval_metrics[f"loss/{name}"].update_state(head.loss(labels[name], parts[name], features))
            eval_metrics.update(
                head.update_metrics(head.metrics(), features, parts[name], labels[name]) or {}
            )
        return eval_metrics

    def _train_op(self, loss: Any, optimizer: Any, variables: Any, train_op_fn: Any, update_ops: Any) -> Any:
        # Each of tf.estimator's heads opens the scope "training", so that slots lie in training_2 under two heads; checkpoints need that.
        for _ in self._heads:
            with tf.name_scope(""), tf.name_scope("training"):
                pass
        return super()._train_op(loss, optimizer, variables, train_op_fn, update_ops)

    def _more_summaries(self, features: Any, logits: Any, labels: Any) -> dict[str, Any]:
        parts = self._parts(logits)
        return {
            f"loss/{name}": head.loss(labels[name], parts[name], features)
            for name, head in self._heads.items()
        }

    def _summary_key(self, name: str) -> str:
        return name

    def _parts(self, logits: Any) -> Mapping[str, Any]:
        if isinstance(logits, Mapping):
            if missing := [name for name in self._heads if name not in logits]:
                raise BadValue(
                    f"There are no logits for {', '.join(missing)}.", "Give logits for every head."
                )
            return logits
        logits = tf.convert_to_tensor(logits)
        if logits.shape[-1] not in (None, self.logits_dimension):
            each = ", ".join(f"{name} {head.logits_dimension}" for name, head in self._heads.items())
            raise BadValue(
                f"The logits have shape {logits.shape}.", f"The heads need {self.logits_dimension}: {each}."
            )
        sizes = [head.logits_dimension for head in self._heads.values()]
        return dict(zip(self._heads, tf.split(logits, sizes, axis=-1), strict=True))

    def _check_labels(self, labels: Any) -> Mapping[str, Any]:
        if not isinstance(labels, Mapping):
            raise BadType(
                f"The labels are a {type(labels).__name__}.", "Give a dict with labels for every head."
            )
        if missing := [name for name in self._heads if name not in labels]:
            raise BadValue(
                f"There are no labels for {', '.join(missing)}.", f"There are: {', '.join(map(str, labels))}."
            )
        return labels

    def _export_outputs(self, logits: Any, predictions: Any) -> Any:
        parts = self._parts(logits)
        outputs: dict[str, Any] = {}
        together: dict[str, Any] = {}
        for name, head in self._heads.items():
            own = head.predictions(parts[name])
            given = head._export_outputs(parts[name], own) or {DEFAULT_KEY: PredictOutput(own)}
            for key, output in given.items():
                outputs[name if key == DEFAULT_KEY else f"{name}/{key}"] = output
            outputs.setdefault(DEFAULT_KEY, given[DEFAULT_KEY])
            together |= {f"{name}/{key}": value for key, value in own.items()}
        return {**outputs, "predict": PredictOutput(together)}
