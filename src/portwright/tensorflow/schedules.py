"""Learning rates as graph operations of the step, equal to portwright.job.schedules.

Everything is computed in float64, as Python does, and rounded once to float32.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from portwright.job import schedule_specs as kinds
from portwright.job.schedules import ScheduleSpec, read_specs

Rate = Callable[[Any, Any], Any]  # of a specification and a step in float64


def make_learning_rate(
    learning_rate: Any, global_step: Any = None, *, disable_lr_steps_reset: bool = False
) -> Any:
    """The learning rate of the current step as a float32 tensor.

    `learning_rate` is a number, a mapping with a `scheduler`, or a list of such mappings that run one after another, as
    in params.yaml. The first update uses the rate of step 0.
    """
    specs = read_specs(learning_rate)
    if global_step is None:
        global_step = tf.compat.v1.train.get_or_create_global_step()
    with tf.name_scope("learning_rate"):
        step = tf.cast(tf.convert_to_tensor(global_step), tf.float64)
        return tf.cast(_sequence(specs, step, not disable_lr_steps_reset), tf.float32)


def _sequence(specs: list[ScheduleSpec], step: Any, restart: bool) -> Any:
    starts = [0, *itertools.accumulate(spec.num_steps or 0 for spec in specs[:-1])]
    rate = None
    for spec, start in zip(specs, starts, strict=True):
        # The graph computes schedules that have not begun too; they must not be given a negative step.
        own = _RATES[type(spec)](spec, tf.maximum(step - start, 0.0) if restart and start else step)
        rate = own if rate is None else tf.where(step >= start, own, rate)
    return rate


def _f64(value: float) -> Any:
    return tf.constant(value, tf.float64)


def _power(base: float, exponent: Any) -> Any:
    return tf.pow(_f64(base), tf.cast(exponent, tf.float64))


def _cosine(first: Any, last: Any, progress: Any) -> Any:
    return last + (first - last) * (1 + tf.cos(math.pi * progress)) / 2


def _count_passed(milestones: list[int], step: Any) -> Any:
    """The number of milestones that a step has reached."""
    if not milestones:
        return _f64(0.0)
    return tf.reduce_sum(tf.cast(step >= tf.constant(milestones, tf.float64), tf.float64))


def _exponential(spec: kinds.Exponential, step: Any) -> Any:
    exponent = step / (spec.total_iters or 1)
    return spec.initial_learning_rate * _power(
        spec.decay_rate, tf.floor(exponent) if spec.staircase else exponent
    )


def _piecewise(spec: kinds.PiecewiseConstant, step: Any) -> Any:
    index = tf.cast(_count_passed(spec.milestones, step), tf.int32)
    return tf.gather(tf.constant(spec.learning_rates, tf.float64), index)


def _polynomial(spec: kinds.Linear, step: Any) -> Any:
    length: Any = _f64(spec.total_iters)
    if spec.cycle:
        length = tf.where(step > length, length * tf.math.ceil(step / length), length)
    left = 1 - tf.minimum(step / length, 1.0)
    if isinstance(spec, kinds.Polynomial):
        left = tf.pow(left, _f64(spec.power))
    return (spec.initial_learning_rate - spec.end_learning_rate) * left + spec.end_learning_rate


def _inverse_exponential(spec: kinds.InverseExponentialTimeDecay, step: Any) -> Any:
    progress = tf.pow(step, _f64(spec.step_exponent)) / spec.total_iters
    if spec.staircase:
        progress = tf.floor(progress)
    return spec.initial_learning_rate / (1.0 + spec.decay_rate * progress)


def _cosine_decay(spec: kinds.CosineDecay, step: Any) -> Any:
    progress = tf.minimum(step, spec.total_iters) / spec.total_iters
    return _cosine(spec.initial_learning_rate, spec.end_learning_rate, progress)


def _annealing(spec: kinds.CosineAnnealing, step: Any) -> Any:
    progress = tf.math.floormod(step, _f64(2 * spec.T_max)) / spec.T_max
    return _cosine(spec.initial_learning_rate, spec.eta_min, progress)


def _warm_restarts(spec: kinds.CosineAnnealingWarmRestarts, step: Any) -> Any:
    first = _f64(spec.T_0)
    if spec.T_mult == 1:
        return _cosine(spec.initial_learning_rate, spec.eta_min, tf.math.floormod(step, first) / first)
    # Descent n begins after T_0 * (m^n - 1) / (m - 1) steps. Float logarithms may miss by one at its edge.
    ratio = _f64(spec.T_mult)

    def start_of(descent: Any) -> Any:
        return tf.round(first * (tf.pow(ratio, descent) - 1) / (ratio - 1))

    descent = tf.floor(tf.math.log(step * (ratio - 1) / first + 1) / tf.math.log(ratio))
    descent = tf.where(step < start_of(descent), descent - 1, descent)
    descent = tf.where(step >= start_of(descent + 1), descent + 1, descent)
    length = first * tf.pow(ratio, descent)
    return _cosine(spec.initial_learning_rate, spec.eta_min, (step - start_of(descent)) / length)


def _lambda(spec: kinds.Lambda, step: Any) -> Any:
    # The graph calls the user's Python function. It is called once here, so that its errors are raised now.
    spec(0)

    def call(value: Any) -> Any:
        return np.float64(spec(int(value)))

    rate = tf.numpy_function(call, [step], tf.float64, stateful=False)
    rate.set_shape([])
    return rate


def _cyclic(spec: kinds.Cyclic, step: Any) -> Any:
    up, down = spec.step_size_up, spec.step_size_down or spec.step_size_up
    period = _f64(up + down)
    cycle, position = tf.math.floordiv(step, period), tf.math.floormod(step, period)
    height = tf.where(position <= up, position / up, (period - position) / down)
    if spec.mode == "triangular2":
        height = height * _power(0.5, cycle)
    elif spec.mode == "exp_range":
        height = height * _power(spec.gamma, step)
    return spec.base_lr + (spec.max_lr - spec.base_lr) * height


def _one_cycle(spec: kinds.OneCycle, step: Any) -> Any:
    rise, last = spec.pct_start * spec.total_steps, spec.total_steps - 1
    start_rate, lowest = spec.initial_learning_rate, spec.initial_learning_rate / spec.final_div_factor
    phases = [(rise - 1, start_rate, spec.max_lr), (last, spec.max_lr, lowest)]
    if spec.three_phase:
        phases[1:] = [(2 * rise - 2, spec.max_lr, start_rate), (last, start_rate, lowest)]
    starts = [0.0, *(end for end, _, _ in phases[:-1])]
    rate: Any = _f64(lowest)
    for start, (end, first_rate, last_rate) in reversed(list(zip(starts, phases, strict=True))):
        progress = (step - start) / (end - start) if end > start else _f64(1.0)
        if spec.anneal_strategy == "cos":
            own = _cosine(first_rate, last_rate, progress)
        else:
            own = first_rate + (last_rate - first_rate) * progress
        rate = tf.where(step <= end, own, rate)
    return rate


_RATES: dict[type[ScheduleSpec], Rate] = {
    kinds.Constant: lambda spec, step: _f64(spec.learning_rate),
    kinds.CosineAnnealing: _annealing,
    kinds.CosineAnnealingWarmRestarts: _warm_restarts,
    kinds.CosineDecay: _cosine_decay,
    kinds.Cyclic: _cyclic,
    kinds.Exponential: _exponential,
    kinds.InverseExponentialTimeDecay: _inverse_exponential,
    kinds.InverseSquareRootDecay: lambda spec, step: (
        spec.initial_learning_rate * spec.scale / tf.sqrt(tf.maximum(step, spec.warmup_steps))
    ),
    kinds.Lambda: _lambda,
    kinds.Linear: _polynomial,
    kinds.MultiStep: lambda spec, step: (
        spec.initial_learning_rate * _power(spec.gamma, _count_passed(spec.milestones, step))
    ),
    kinds.Multiplicative: lambda spec, step: spec.initial_learning_rate * _power(spec.coefficient, step),
    kinds.OneCycle: _one_cycle,
    kinds.PiecewiseConstant: _piecewise,
    kinds.Polynomial: _polynomial,
    kinds.Step: lambda spec, step: (
        spec.initial_learning_rate * _power(spec.gamma, tf.floor(step / spec.step_size))
    ),
}
