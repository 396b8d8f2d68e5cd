"""From the `optimizer` section of params.yaml to a train op: `make_train_op(loss, params["optimizer"])`.

The results equal those of Portwright's PyTorch optimizers: the same keys and schedules, and the same updates from the
same gradients.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from portwright.errors import UserError, suggest
from portwright.job import optimizer as job
from portwright.job.optimizer import OPTIMIZERS, OptimizerParams
from portwright.job.problems import check_model, raise_problems
from portwright.tensorflow.gradients import (
    Accumulation,
    LossScale,
    add_up,
    check_replicas,
    clip_gradients,
    decay_rates,
    gradient_norm,
    name_of,
    num_replicas,
    share,
    values_of,
    with_values,
    without_duplicates,
)
from portwright.tensorflow.optimizer_rules import (
    SGD,
    Adafactor,
    Adagrad,
    Adam,
    AdamW,
    Lamb,
    Lion,
    Momentum,
    RMSprop,
)
from portwright.tensorflow.schedules import make_learning_rate

v1 = tf.compat.v1

LEARNING_RATE = "portwright_learning_rate"  # a graph collection: the learning rate of each train op, for logs
SUPPORTED = ("Adafactor", "Adagrad", "Adam", "AdamW", "Lamb", "Lion", "RMSprop", "SGD")

# Names that TensorFlow code uses for settings of SGD.
_OF_SGD: dict[str, dict[str, Any]] = {
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "use_nesterov": True},
}
_SPELLINGS = {  # the TensorFlow model zoo's keys
    "rmsprop_decay": "alpha",
    "rmsprop_momentum": "momentum",
    "use_bias_correction": "correct_bias",
}


def read_optimizer(params: Mapping[str, Any] | OptimizerParams) -> OptimizerParams:
    """Checks the keys of an `optimizer` section.

    It accepts the names of Portwright's PyTorch optimizers, `momentum` and `nesterov` (SGD with a momentum of 0.9), and
    the TensorFlow model zoo's spellings of keys.
    """
    if isinstance(params, OptimizerParams):
        return params
    if not isinstance(params, Mapping):
        raise UserError(
            f"The optimizer is {params!r}, of type {type(params).__name__}.", "Give the optimizer section."
        )
    values = with_known_names(params)
    kind = values.get("optimizer_type", job.DEFAULT_OPTIMIZER)
    name = kind.strip().lower() if isinstance(kind, str) else ""
    schemas = {known.lower(): OPTIMIZERS[known] for known in SUPPORTED}
    if name not in schemas:
        valid = {known.lower(): known for known in (*SUPPORTED, *_OF_SGD)}
        near = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
        raise UserError(
            f"optimizer.optimizer_type is {kind!r}, which TensorFlow runs do not have.",
            suggest(valid[near[0]] if near else str(kind), valid.values()),
        )
    spec, problems = check_model(schemas[name], values, ("optimizer",))
    raise_problems(problems)
    assert spec is not None
    return spec


def with_known_names(section: Mapping[str, Any]) -> dict[str, Any]:
    """The section with the names that both frameworks share; unknown names stay, and the check of the section refuses them."""
    values = dict(section)
    kind = values.get("optimizer_type", job.DEFAULT_OPTIMIZER)
    name = kind.strip().lower() if isinstance(kind, str) else ""
    if name in _OF_SGD:
        values = {**_OF_SGD[name], **values, "optimizer_type": "SGD"}
        name = "sgd"
    schema = next((schema for known, schema in OPTIMIZERS.items() if known.lower() == name), None)
    for spelling, key in _SPELLINGS.items():
        if schema is not None and spelling in values and key in schema.model_fields:
            values.setdefault(key, values.pop(spelling))
    if values.get("loss_scaling_factor") == "tf_dynamic":
        values["loss_scaling_factor"] = "dynamic"
    return values


def make_optimizer(
    params: Mapping[str, Any] | OptimizerParams,
    learning_rate: Any = None,
    *,
    var_list: Sequence[Any] | None = None,
) -> Any:
    """A tf.compat.v1.train.Optimizer from an `optimizer` section, for code that computes and applies gradients itself.

    Clipping, loss scaling and accumulation are make_train_op's. `learning_rate` is that of the section unless given.
    """
    spec = read_optimizer(params)
    if learning_rate is None:
        learning_rate = _learning_rate(spec, None)
    optimizer = _make_rule(spec, learning_rate)
    variables = v1.trainable_variables() if var_list is None else list(var_list)
    optimizer.decay_rates = decay_rates(variables, spec.weight_decay_rate, spec.exclude_from_weight_decay)
    return optimizer


def make_train_op(
    loss: Any,
    optimizer_params: Mapping[str, Any] | OptimizerParams,
    *,
    var_list: Sequence[Any] | None = None,
    global_step: Any = None,
    update_ops: Sequence[Any] | None = None,
    advance: bool = True,
) -> Any:
    """The operation that makes one training step: gradients, loss scaling, accumulation, clipping, update, global_step.

    `optimizer_params` is the `optimizer` section of params.yaml. `var_list` restricts training to some variables, given
    as such or as regular expressions that their names contain. `update_ops` run with every batch; unless given they
    are those of the UPDATE_OPS collection. global_step counts updates, also those skipped after an overflow; of several
    train ops in one graph, all but one are made with `advance=False`, and do not change it.
    """
    spec = read_optimizer(optimizer_params)
    check_replicas(spec)
    _check_loss(loss)
    global_step = v1.train.get_or_create_global_step() if global_step is None else global_step
    variables = choose_variables(var_list)
    learning_rate = _learning_rate(spec, global_step)
    v1.add_to_collection(LEARNING_RATE, learning_rate)
    optimizer = make_optimizer(spec, learning_rate, var_list=variables)
    scale = None if spec.loss_scaling_factor == 1.0 else LossScale(spec)
    wide = tf.cast(tf.reshape(loss, []), tf.float32)
    pairs = optimizer.compute_gradients(wide if scale is None else wide * scale.factor, variables)
    pairs = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
    if not pairs:
        raise UserError(
            "The loss depends on no trainable variable.",
            "Look for tf.stop_gradient, for integer or NumPy operations, and at var_list.",
        )
    gradients, trained = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
    # The slots are made outside of the branches below and of the control dependencies before the train op.
    with tf.init_scope():
        optimizer._create_slots(trained)
    accumulation = None
    if spec.grad_accum_steps > 1:
        accumulation = Accumulation(optimizer, trained, spec.grad_accum_steps)
    if scale is not None:
        gradients = [
            with_values(g, values_of(g) / tf.cast(scale.factor, values_of(g).dtype)) for g in gradients
        ]
    if spec.log_summaries:
        v1.summary.scalar("train/lr", learning_rate)
        if scale is not None:
            v1.summary.scalar("train/loss_scale", scale.factor)
            v1.summary.scalar("train/skipped_updates", scale.num_skipped)

    def update(gradients: list[Any], *, logs: bool = False) -> Any:
        counter = global_step if advance else None
        return _update(optimizer, spec, gradients, trained, counter, scale, logs=logs)

    updates = v1.get_collection(v1.GraphKeys.UPDATE_OPS) if update_ops is None else list(update_ops)
    with tf.control_dependencies(updates):
        if accumulation is not None:
            step = accumulation.add(gradients, update)
        else:
            step = update(gradients, logs=spec.log_summaries)
        return tf.group(step, *updates, name="train_op")


def choose_variables(var_list: Sequence[Any] | None) -> list[Any]:
    """The variables to train: all trainable ones, those given, or those whose names contain a regular expression."""
    trainable = v1.trainable_variables()
    if var_list is None:
        chosen = trainable
    elif isinstance(var_list, str):
        raise UserError(f"var_list is the text {var_list!r}.", "Give a list of variables or expressions.")
    else:
        chosen = []
        for item in var_list:
            if not isinstance(item, str):
                # Mixed precision wraps the variable in another object.
                chosen.append(getattr(item, "_variable", item))
                continue
            found = [variable for variable in trainable if re.search(item, name_of(variable))]
            if not found:
                names = [name_of(variable) for variable in trainable]
                raise UserError(f"var_list has {item!r}, which is in no name.", suggest(item, names))
            chosen += found
    unique = {name_of(variable): variable for variable in chosen}
    if not unique:
        raise UserError("There is no variable to train.", "Build the model first, or look at var_list.")
    return list(unique.values())


def _update(
    optimizer: Any,
    spec: OptimizerParams,
    gradients: list[Any],
    variables: list[Any],
    global_step: Any,
    scale: LossScale | None,
    *,
    logs: bool,
) -> Any:
    """One update from the gradients of the whole batch."""
    norm = None
    clips = spec.max_gradient_norm is not None or spec.max_gradient_value is not None
    is_shared = (clips or logs) and num_replicas() > 1
    if is_shared:
        gradients = add_up(gradients, variables)
    if logs or clips:
        gradients = [without_duplicates(gradient) for gradient in gradients]
    if logs or spec.max_gradient_norm is not None:
        norm = gradient_norm(gradients)
    if logs:
        v1.summary.scalar("train/unclipped_grad_norm", norm)

    def apply() -> Any:
        clipped = clip_gradients(gradients, spec.max_gradient_norm, spec.max_gradient_value, norm)
        clipped = share(clipped) if is_shared else clipped
        return optimizer.apply_gradients(list(zip(clipped, variables, strict=True)))

    applied = apply() if scale is None else _if_finite(gradients, apply, scale)
    if global_step is None:
        return applied
    with tf.control_dependencies([applied]):
        return v1.assign_add(global_step, tf.ones([], global_step.dtype.base_dtype))


def _if_finite(gradients: list[Any], apply: Callable[[], Any], scale: LossScale) -> Any:
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(values_of(gradient))) for gradient in gradients])

    def go() -> Any:
        with tf.control_dependencies([apply(), scale.after_finite()]):
            return tf.constant(True)

    def skip() -> Any:
        with tf.control_dependencies([scale.after_overflow()]):
            return tf.constant(False)

    return tf.cond(finite, go, skip)


def _learning_rate(spec: OptimizerParams, global_step: Any) -> Any:
    if isinstance(spec, job.AdafactorParams) and spec.relative_step:
        return tf.constant(1.0)  # Adafactor sets the rate itself
    return make_learning_rate(
        spec.learning_rate, global_step, disable_lr_steps_reset=spec.disable_lr_steps_reset
    )


def _check_loss(loss: Any) -> None:
    if tf.executing_eagerly():
        raise UserError(
            "make_train_op was called outside of a graph.",
            "Call it in a model_fn, or `with tf.Graph().as_default()`.",
        )
    if not tf.is_tensor(loss) or not loss.dtype.is_floating or loss.shape.num_elements() not in (1, None):
        shape = loss.shape if tf.is_tensor(loss) else type(loss).__name__
        raise UserError(
            f"The loss is {shape}, and must be one floating-point number.",
            "Reduce it: tf.reduce_mean(losses).",
        )


_RULES: dict[type[OptimizerParams], Any] = {
    job.AdafactorParams: Adafactor,
    job.AdagradParams: Adagrad,
    job.AdamParams: Adam,
    job.AdamWParams: AdamW,
    job.LambParams: Lamb,
    job.LionParams: Lion,
    job.RMSpropParams: RMSprop,
    job.SGDParams: Momentum,
}


def _make_rule(spec: OptimizerParams, learning_rate: Any) -> Any:
    """Makes the optimizer of a section; each rule's arguments have the names of the section's keys."""
    if type(spec) not in _RULES:
        raise UserError(
            f"{spec.optimizer_type} is not among the optimizers of TensorFlow runs.",
            suggest(spec.optimizer_type, SUPPORTED),
        )
    rule = SGD if isinstance(spec, job.SGDParams) and spec.momentum == 0 else _RULES[type(spec)]
    names = inspect.signature(rule).parameters.keys() - {"learning_rate"}
    return rule(learning_rate, **{name: getattr(spec, name) for name in names})
