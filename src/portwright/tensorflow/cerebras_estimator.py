"""Cerebras's Estimator: the same training, and a step that is compiled for the wafer instead of run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from portwright.tensorflow.estimator import Estimator
from portwright.tensorflow.mode_keys import ModeKeys
from portwright.tensorflow.run_config import RunConfig


class CerebrasEstimator(Estimator):
    """An Estimator with Cerebras's constructor and methods; it trains on the CPU or GPU of this machine."""

    _is_portwright = True

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: Any = None,
        compile_dir: Any = None,
        config: RunConfig | None = None,
        params: Mapping[str, Any] | None = None,
        warm_start_from: Any = None,
    ) -> None:
        super().__init__(model_fn, model_dir, config, params, warm_start_from)
        self._compile_dir = compile_dir

    def compile(
        self, input_fn: Callable[..., Any], validate_only: bool = False, mode: str = ModeKeys.TRAIN
    ) -> Any:
        """Matches and plans the step of `mode` for the wafer, without running it."""
        from portwright.tensorflow.planning.plan import compile_step

        return compile_step(self, input_fn, validate_only=validate_only, mode=mode)

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Any = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Any = None,
        use_cs: bool = True,
    ) -> CerebrasEstimator:
        super().train(input_fn, hooks, steps, max_steps, saving_listeners)
        return self

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Any = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
        use_cs: bool = False,
    ) -> dict[str, Any]:
        return super().evaluate(input_fn, steps, hooks, checkpoint_path, name)

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: Any = None,
        hooks: Any = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
        num_samples: int | None = None,
        use_cs: bool = False,
    ) -> Iterator[Any]:
        predictions = super().predict(input_fn, predict_keys, hooks, checkpoint_path, yield_single_examples)
        for count, prediction in enumerate(predictions):
            if num_samples is not None and count >= num_samples:
                return
            yield prediction
