"""An optimizer of Keras as the `optimizer` section of params.yaml."""

from __future__ import annotations

import ast
from typing import Any

from portwright.port.keras_layout.anatomy import Literals, NotLiteralError
from portwright.port.keras_layout.script import RefusalError

# Each optimizer: its name here; and its arguments in Keras's order with our key and Keras's default, where we have the key.
_OPTIMIZERS: dict[str, tuple[str, list[tuple[str, str, Any]]]] = {
    "sgd": (
        "SGD",
        [("learning_rate", "learning_rate", 0.01), ("momentum", "momentum", 0.0), ("nesterov", "use_nesterov", False)],
    ),
    "adam": (
        "Adam",
        [
            ("learning_rate", "learning_rate", 0.001), ("beta_1", "beta1", 0.9), ("beta_2", "beta2", 0.999),
            ("epsilon", "eps", 1e-7), ("amsgrad", "amsgrad", False),
        ],
    ),
    "adamw": (
        "AdamW",
        [
            ("learning_rate", "learning_rate", 0.001), ("weight_decay", "weight_decay_rate", 0.004), ("beta_1", "beta1", 0.9),
            ("beta_2", "beta2", 0.999), ("epsilon", "eps", 1e-7), ("amsgrad", "amsgrad", False),
        ],
    ),
    "rmsprop": (
        "RMSprop",
        [
            ("learning_rate", "learning_rate", 0.001), ("rho", "alpha", 0.9), ("momentum", "momentum", 0.0),
            ("epsilon", "eps", 1e-7), ("centered", "centered", False),
        ],
    ),
    "adagrad": (
        "Adagrad",
        [
            ("learning_rate", "learning_rate", 0.001), ("initial_accumulator_value", "initial_accumulator_value", 0.1),
            ("epsilon", "eps", 1e-7),
        ],
    ),
    "adadelta": (
        "Adadelta",
        [("learning_rate", "learning_rate", 0.001), ("rho", "rho", 0.95), ("epsilon", "eps", 1e-7)],
    ),
    "adamax": (
        "Adamax",
        [
            ("learning_rate", "learning_rate", 0.001), ("beta_1", "beta1", 0.9), ("beta_2", "beta2", 0.999),
            ("epsilon", "eps", 1e-7),
        ],
    ),
}  # fmt: skip
_CLIPPING = {"global_clipnorm": "max_gradient_norm", "clipvalue": "max_gradient_value"}
_HARMLESS = ("name", "jit_compile", "ema_overwrite_frequency")


def optimizer_section(node: ast.expr, literals: Literals) -> dict[str, Any]:
    """The section; raises RefusalError where params.yaml has no word for it."""
    made = literals.expression(node)
    if isinstance(made, ast.Constant) and isinstance(made.value, str):
        name, call = made.value, None
    elif isinstance(made, ast.Call):
        name, call = ast.unparse(made.func).rpartition(".")[2], made
        if name == "get" and made.args:
            return optimizer_section(made.args[0], literals)
    else:
        name, call = ast.unparse(made).rpartition(".")[2], None  # a class, or what cannot be told
    if name.lower() not in _OPTIMIZERS:
        known = ", ".join(ours for ours, _ in _OPTIMIZERS.values())
        raise RefusalError(node, f"the optimizer is '{ast.unparse(made)}'", f"Use one of {known}.")
    ours, parameters = _OPTIMIZERS[name.lower()]
    section: dict[str, Any] = {"optimizer_type": ours}
    section.update({key: default for _, key, default in parameters})
    if call is None:
        return section
    keys = {theirs: key for theirs, key, _ in parameters} | {"lr": "learning_rate"}
    given = dict(zip([theirs for theirs, _, _ in parameters], call.args, strict=False))
    given.update({k.arg: k.value for k in call.keywords if k.arg is not None})
    if any(k.arg is None for k in call.keywords):
        raise RefusalError(call, "the optimizer's arguments come from a dict", "Write them out.")
    for argument, value in given.items():
        if argument == "learning_rate" or argument == "lr":
            section["learning_rate"] = _rate(value, literals)
        elif argument in keys or argument in _CLIPPING:
            section[keys.get(argument) or _CLIPPING[argument]] = _literal(value, literals, argument)
        elif argument == "weight_decay" and _is_nothing(value):
            continue
        elif argument not in _HARMLESS and not _is_nothing(value):
            raise RefusalError(
                call,
                f"the optimizer is given {argument}",
                "params.yaml has no key for it: leave it out, or write make_train_op's call in model.py by hand.",
            )
    return section


def _is_nothing(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value in (None, False)


def _literal(value: ast.expr, literals: Literals, what: str) -> Any:
    try:
        return literals.value(value)
    except NotLiteralError as error:
        raise RefusalError(value, f"{what} is computed: {error}", "Write the number.") from None


# Schedules: the keys of params.yaml for Keras's arguments, in its order, with defaults.
_SCHEDULES: dict[str, list[tuple[str, Any]]] = {
    "ExponentialDecay": [("initial_learning_rate", None), ("decay_steps", None), ("decay_rate", None), ("staircase", False)],
    "PolynomialDecay": [
        ("initial_learning_rate", None), ("decay_steps", None), ("end_learning_rate", 0.0001), ("power", 1.0), ("cycle", False),
    ],
    "CosineDecay": [("initial_learning_rate", None), ("decay_steps", None), ("alpha", 0.0)],
    "InverseTimeDecay": [("initial_learning_rate", None), ("decay_steps", None), ("decay_rate", None), ("staircase", False)],
    "PiecewiseConstantDecay": [("boundaries", None), ("values", None)],
}  # fmt: skip


def _rate(node: ast.expr, literals: Literals) -> Any:
    made = literals.expression(node)
    if not isinstance(made, ast.Call):
        value = _literal(made, literals, "learning_rate")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise RefusalError(node, f"learning_rate is {value!r}", "Give a number or a schedule.")
        return float(value)
    name = ast.unparse(made.func).rpartition(".")[2]
    if name not in _SCHEDULES:
        raise RefusalError(
            node, f"the learning rate is '{name}(...)'", f"Use a number, or one of {', '.join(_SCHEDULES)}."
        )
    order = _SCHEDULES[name]
    given = {argument: default for argument, default in order if default is not None}
    given |= {a: _literal(v, literals, a) for (a, _), v in zip(order, made.args, strict=False)}
    given |= {k.arg: _literal(k.value, literals, k.arg) for k in made.keywords if k.arg not in ("name", None)}
    missing = [argument for argument, _ in order if argument not in given]
    strange = [argument for argument in given if argument not in dict(order)]
    if missing or strange:
        raise RefusalError(
            made,
            f"{name}() {'lacks' if missing else 'is given'} {(missing or strange)[0]}",
            "See its documentation.",
        )
    steps = given.get("decay_steps")
    if isinstance(steps, float):
        given["decay_steps"] = steps = int(steps) if steps == int(steps) else steps
    match name:
        case "ExponentialDecay":
            return {"scheduler": "Exponential", **_renamed(given, decay_steps="total_iters")}
        case "PolynomialDecay":
            return {"scheduler": "Polynomial", **_renamed(given, decay_steps="total_iters")}
        case "CosineDecay":
            end = given["alpha"] * given["initial_learning_rate"]
            return {
                "scheduler": "CosineDecay",
                "initial_learning_rate": given["initial_learning_rate"],
                "total_iters": steps,
                "end_learning_rate": end,
            }
        case "InverseTimeDecay":
            named = _renamed(given, decay_steps="total_iters")
            return {"scheduler": "InverseExponentialTimeDecay", "step_exponent": 1, **named}
    # Keras keeps a rate up to and with the step of its boundary.
    return {
        "scheduler": "PiecewiseConstant",
        "learning_rates": given["values"],
        "milestones": [b + 1 for b in given["boundaries"]],
    }


def _renamed(given: dict[str, Any], **names: str) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in given.items()}
