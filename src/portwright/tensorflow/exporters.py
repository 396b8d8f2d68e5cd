"""Exporters for train_and_evaluate: after each evaluation, after the best so far, or at the end of training."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from portwright.tensorflow.arguments import BadValue, argument_names
from portwright.tensorflow.early_stopping import read_scalars

if TYPE_CHECKING:
    from portwright.tensorflow.estimator import Estimator

v1 = tf.compat.v1

Metrics = Mapping[str, Any]
_COMPARED = {"best_eval_result", "current_eval_result"}


class Exporter(abc.ABC):
    """The base class of exporters for EvalSpec."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The folder under `model_dir`/export."""

    @abc.abstractmethod
    def export(
        self,
        estimator: Estimator,
        export_path: str,
        checkpoint_path: str,
        eval_result: Metrics,
        is_the_final_export: bool,
    ) -> Any:
        """Exports if an export is due; returns its path, or None."""


class _SavedModelExporter(Exporter):
    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Any,
        assets_extra: Any = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        if exports_to_keep is not None and exports_to_keep <= 0:
            raise BadValue(
                f"exports_to_keep is {exports_to_keep}.", "Give a positive number, or None to keep all."
            )
        self._name = name
        self._receiver_fn = serving_input_receiver_fn
        self._assets_extra = assets_extra
        self._as_text = as_text
        self._exports_to_keep = exports_to_keep

    @property
    def name(self) -> str:
        return self._name

    def export(
        self,
        estimator: Estimator,
        export_path: str,
        checkpoint_path: str,
        eval_result: Metrics,
        is_the_final_export: bool,
    ) -> Any:
        written = estimator.export_saved_model(
            export_path,
            self._receiver_fn,
            assets_extra=self._assets_extra,
            as_text=self._as_text,
            checkpoint_path=checkpoint_path,
        )
        self._remove_old(export_path)
        return written

    def _remove_old(self, export_path: str) -> None:
        if self._exports_to_keep is None:
            return
        entries = [entry.rstrip("/") for entry in tf.io.gfile.listdir(export_path)]
        exports = sorted((entry for entry in entries if len(entry) == 10 and entry.isdigit()), key=int)
        for old in exports[: -self._exports_to_keep]:
            try:
                tf.io.gfile.rmtree(tf.io.gfile.join(export_path, old))
            except tf.errors.NotFoundError:
                v1.logging.warning("%s was removed by another process", old)


class FinalExporter(_SavedModelExporter):
    """Exports once, when training has reached max_steps."""

    def __init__(
        self, name: str, serving_input_receiver_fn: Any, assets_extra: Any = None, as_text: bool = False
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep=None)

    def export(
        self,
        estimator: Estimator,
        export_path: str,
        checkpoint_path: str,
        eval_result: Metrics,
        is_the_final_export: bool,
    ) -> Any:
        if is_the_final_export:
            return super().export(estimator, export_path, checkpoint_path, eval_result, is_the_final_export)
        return None


class LatestExporter(_SavedModelExporter):
    """Exports after every evaluation, and keeps the last `exports_to_keep`."""


def loss_smaller(best_eval_result: Metrics, current_eval_result: Metrics) -> bool:
    """Whether the current loss is below the best one."""
    for which, result in (
        ("best_eval_result", best_eval_result),
        ("current_eval_result", current_eval_result),
    ):
        if not result or "loss" not in result:
            raise BadValue(
                f"{which} has no loss: {dict(result or {})}.", "Give BestExporter a compare_fn of your own."
            )
    return bool(best_eval_result["loss"] > current_eval_result["loss"])


class BestExporter(_SavedModelExporter):
    """Exports when `compare_fn` finds an evaluation better than all earlier ones, including those in the event files."""

    def __init__(
        self,
        name: str = "best_exporter",
        serving_input_receiver_fn: Any = None,
        event_file_pattern: str | None = "eval/*.tfevents.*",
        compare_fn: Callable[..., bool] = loss_smaller,
        assets_extra: Any = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep)
        if not callable(compare_fn) or set(argument_names(compare_fn)) != _COMPARED:
            raise BadValue(
                f"compare_fn is {compare_fn!r}.",
                "Give a function of best_eval_result and current_eval_result.",
            )
        self._compare_fn = compare_fn
        self._event_file_pattern = event_file_pattern
        self._model_dir: str | None = None
        self._best: Metrics | None = None
        self._has_exported = False

    def export(
        self,
        estimator: Estimator,
        export_path: str,
        checkpoint_path: str,
        eval_result: Metrics,
        is_the_final_export: bool,
    ) -> Any:
        if self._event_file_pattern and self._model_dir != estimator.model_dir:
            self._model_dir = str(estimator.model_dir)
            self._best = self._best_so_far(tf.io.gfile.join(self._model_dir, self._event_file_pattern))
        # A process always exports its first evaluation: the best one in the event files may be that evaluation itself.
        if self._best is not None and self._has_exported and not self._is_better(self._best, eval_result):
            return None
        self._best = eval_result
        written = super().export(estimator, export_path, checkpoint_path, eval_result, is_the_final_export)
        self._has_exported = True
        return written

    def _is_better(self, best: Metrics, current: Metrics) -> bool:
        return self._compare_fn(best_eval_result=best, current_eval_result=current)

    def _best_so_far(self, pattern: str) -> Metrics | None:
        best: Metrics | None = None
        for _, values in read_scalars(pattern):
            if best is None or self._is_better(best, values):
                best = values
        return best
