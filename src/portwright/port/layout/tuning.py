"""The optimizer and its schedule as the section `optimizer` of params.yaml describes them."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from portwright.port.layout.anatomy import (
    Anatomy,
    kind_of,
    made_by,
    optimizer_call,
    runs_with_update,
    unwrap_iterable,
)
from portwright.port.layout.program import Frame, Given, Item, Line, Loop, Var, flatten
from portwright.port.layout.values import UnknownError

# Parameters of torch.optim's classes after `params`, in order, with the defaults of torch 2.4 to 2.13.
_ADAM = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False}
TORCH_OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 1e-3, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False},
    "Adam": _ADAM,
    "AdamW": {**_ADAM, "weight_decay": 1e-2},
    "Adamax": {"lr": 2e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0},
    "NAdam": {"lr": 2e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "momentum_decay": 4e-3},
    "RAdam": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0},
    "RMSprop": {
        "lr": 1e-2,
        "alpha": 0.99,
        "eps": 1e-8,
        "weight_decay": 0.0,
        "momentum": 0.0,
        "centered": False,
    },
    "Adagrad": {
        "lr": 1e-2,
        "lr_decay": 0.0,
        "weight_decay": 0.0,
        "initial_accumulator_value": 0.0,
        "eps": 1e-10,
    },
    "Adadelta": {"lr": 1.0, "rho": 0.9, "eps": 1e-6, "weight_decay": 0.0},
    "ASGD": {"lr": 1e-2, "lambd": 1e-4, "alpha": 0.75, "t0": 1e6, "weight_decay": 0.0},
    "Rprop": {"lr": 1e-2, "etas": (0.5, 1.2), "step_sizes": (1e-6, 50.0)},
}
_KEYS = {"lr": "learning_rate", "weight_decay": "weight_decay_rate", "nesterov": "use_nesterov"}
# These choose how the same numbers are computed.
_NO_EFFECT = frozenset(
    {"foreach", "fused", "capturable", "differentiable", "decoupled_weight_decay", "params"}
)
_IN_EPOCHS = {"Step": "step_size", "Exponential": "total_iters", "MultiStep": "milestones"}


@dataclass
class Problem:
    """What params.yaml has no place for, and where it stands."""

    message: str
    cure: str
    node: ast.AST
    frame: Frame


@dataclass
class Tuning:
    """The section, what set_defaults has to add to it, and what could not be said."""

    section: dict[str, Any] = field(default_factory=dict)
    comments: dict[str, str] = field(default_factory=dict)
    # to be run in set_defaults, which takes the rates from it
    scheduler: tuple[ast.Call, Frame] | None = None
    per_epoch: bool = False
    in_epochs: str | None = None  # the key of the schedule that counts epochs
    own_optimizer: bool = False  # kept as code, in get_optimizer()
    # what the optimizer is given, and the section's key for it
    told: dict[ast.AST, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def describe(anatomy: Anatomy) -> Tuning:
    tuning = Tuning()
    assert anatomy.optimizer is not None
    call, frame, _ = optimizer_call(anatomy, anatomy.optimizer)
    _describe_optimizer(anatomy, tuning, call, frame)
    _describe_loop(anatomy, tuning)
    if anatomy.scheduler is not None:
        made = optimizer_call(anatomy, anatomy.scheduler)
        if tuning.own_optimizer:
            kind = made_by(made[0], made[1]).rpartition(".")[2] or "the scheduler"
            tuning.problems.append(
                Problem(
                    f"{kind} is lost: run() leaves the learning rates of get_optimizer() as they are",
                    "Give all parameters one rate, so that params.yaml can describe optimizer and schedule, or use --style in-place.",
                    made[0],
                    made[1],
                )
            )
        else:
            _describe_scheduler(anatomy, tuning, made[0], made[1])
    return tuning


def _describe_optimizer(anatomy: Anatomy, tuning: Tuning, call: ast.Call, frame: Frame) -> None:
    assert anatomy.optimizer is not None
    name = kind_of(anatomy, anatomy.optimizer).rpartition(".")[2]
    tuning.section["optimizer_type"] = name
    if name not in TORCH_OPTIMIZERS:
        tuning.own_optimizer = True
        tuning.problems.append(
            Problem(
                f"params.yaml has no torch.optim.{name}",
                "It is kept in get_optimizer() of model.py.",
                call,
                frame,
            )
        )
    defaults = TORCH_OPTIMIZERS.get(name, {"lr": 1e-3})
    given: dict[str, ast.expr] = dict(zip(defaults, call.args[1:], strict=False))
    for keyword in call.keywords:
        if keyword.arg is None:
            _spread(anatomy, given, keyword.value, frame, tuning, call)
        else:
            given[keyword.arg] = keyword.value
    options = dict(defaults)
    for key, node in given.items():
        if key in _NO_EFFECT:
            continue
        value = anatomy.values.try_evaluate(node, frame, default=...)
        if key == "maximize" and value is False:
            continue
        if value is ...:
            message = f"the optimizer's {key} is known only when the script runs: {frame.unit.text(node)}"
            tuning.problems.append(
                Problem(message, f"Set optimizer.{_KEYS.get(key, key)} in configs/params.yaml.", node, frame)
            )
            continue
        if key not in defaults and key != "maximize":
            tuning.problems.append(
                Problem(
                    f"params.yaml has no '{key}' of {name}",
                    "Leave it out, or return the optimizer from get_optimizer().",
                    node,
                    frame,
                )
            )
            continue
        options[key] = value
        tuning.told[node] = _KEYS.get(key, key)
    groups = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "params"), None)
    decayed = _decay_groups(anatomy, groups, frame) if groups is not None else None
    if decayed is not None:
        options["weight_decay"] = decayed[0]
    elif groups is not None and not _is_all_parameters(anatomy, groups, frame):
        tuning.own_optimizer = True
        tuning.problems.append(
            Problem(
                "the optimizer gets groups or a part of the parameters, which params.yaml cannot say",
                "They are kept in get_optimizer() of model.py, which CPU and GPU use; for a target that makes its own optimizer, "
                "say it with optimizer.exclude_from_weight_decay or requires_grad, and remove get_optimizer().",
                call,
                frame,
            )
        )
    for key, value in options.items():
        if key == "lr" or key not in defaults or value != defaults[key] or key in ("eps", "betas"):
            tuning.section[_KEYS.get(key, key)] = list(value) if isinstance(value, tuple) else value
    if options.get("weight_decay"):
        tuning.section["weight_decay_rate"] = options["weight_decay"]
        tuning.section["exclude_from_weight_decay"] = []
        tuning.comments["exclude_from_weight_decay"] = (
            "as in torch.optim: everything decays, biases and norms too"
        )
        if decayed is not None:
            tuning.section["exclude_from_weight_decay"] = decayed[1]
            tuning.comments["exclude_from_weight_decay"] = (
                "beside biases and norms, as the script's parameter groups have it"
            )


def _spread(
    anatomy: Anatomy, given: dict[str, ast.expr], node: ast.expr, frame: Frame, tuning: Tuning, call: ast.Call
) -> None:
    value = anatomy.values.try_evaluate(node, frame, default=...)
    if isinstance(value, dict):
        given.update({str(k): ast.Constant(v) for k, v in value.items()})
    else:
        tuning.problems.append(
            Problem(
                "the optimizer's settings come in a ** that only a run would tell",
                "Write them in configs/params.yaml.",
                call,
                frame,
            )
        )


def _is_all_parameters(anatomy: Anatomy, node: ast.expr, frame: Frame) -> bool:
    """`model.parameters()`, also where frozen ones are filtered out, which run() does by itself."""
    ref = anatomy.program.reference(node, frame)
    found = anatomy.values.value_of(ref) if isinstance(ref, Var) else None
    if found is not None:
        return _is_all_parameters(anatomy, *found)
    if isinstance(ref, Given) and ref.expr is not node:
        return _is_all_parameters(anatomy, ref.expr, ref.frame)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "parameters":
        return anatomy.program.reference(node.func.value, frame) == anatomy.model
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("list", "filter"):
        text = frame.unit.text(node)
        return _is_all_parameters(anatomy, node.args[-1], frame) and (
            node.func.id == "list" or "requires_grad" in text
        )
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)) and len(node.generators) == 1:
        tests = node.generators[0].ifs
        plain = all("requires_grad" in frame.unit.text(t) and isinstance(t, ast.Attribute) for t in tests)
        return (
            isinstance(node.elt, ast.Name)
            and plain
            and _is_all_parameters(anatomy, node.generators[0].iter, frame)
        )
    return False


def _decay_groups(anatomy: Anatomy, node: ast.expr, frame: Frame) -> tuple[float, list[str] | None] | None:
    """The usual two groups, with and without weight decay: the decay, and the parts of names that have none.

    Told apart by dimensions, or by `bias` and `norm` in names, they are the groups that run() makes by itself.
    """
    ref = anatomy.program.reference(node, frame)
    found = anatomy.values.value_of(ref) if isinstance(ref, Var) else None
    if found is not None:
        node, frame = found
    if not isinstance(node, ast.List) or len(node.elts) != 2:
        return None
    decays: list[float] = []
    tests: list[tuple[ast.AST, Frame]] = []
    for group in node.elts:
        if not isinstance(group, ast.Dict):
            return None
        parts = {
            k.value: v for k, v in zip(group.keys, group.values, strict=True) if isinstance(k, ast.Constant)
        }
        if parts.keys() != {"params", "weight_decay"}:
            return None
        decays.append(anatomy.values.try_evaluate(parts["weight_decay"], frame, default=-1.0))
        tests += _membership(anatomy, parts["params"], frame)
    if len(decays) != 2 or min(decays) != 0 or max(decays) <= 0 or not tests:
        return None
    texts = [origin.unit.text(test) for test, origin in tests]
    if all("dim" in text for text in texts):
        return max(decays), None
    words: set[str] = set()
    for test, origin in tests:
        for each in ast.walk(test):
            value = (
                anatomy.values.try_evaluate(each, origin)
                if isinstance(each, (ast.Name, ast.Constant, ast.List, ast.Tuple))
                else None
            )
            words |= (
                {value}
                if isinstance(value, str)
                else {v for v in value if isinstance(v, str)}
                if isinstance(value, (list, tuple))
                else set()
            )
    return (max(decays), sorted(words)) if words else None


def _membership(anatomy: Anatomy, node: ast.expr, frame: Frame) -> list[tuple[ast.AST, Frame]]:
    """The conditions that decide which parameters are in a group."""
    ref = anatomy.program.reference(node, frame)
    if isinstance(ref, Var):
        found = anatomy.values.value_of(ref)
        if found is None:
            return []
        if isinstance(found[0], ast.List) and not found[0].elts:  # filled by a loop
            loops = [
                line
                for line in anatomy.setup
                if isinstance(line.node, ast.For) and "append" in line.frame.unit.text(line.node)
            ]
            return [
                (n.test, line.frame)
                for line in loops
                for n in ast.walk(line.node)
                if isinstance(n, ast.If) and "requires_grad" not in line.frame.unit.text(n.test)
            ]
        return _membership(anatomy, *found)
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)) and len(node.generators) == 1:
        return [(test, frame) for test in node.generators[0].ifs]
    return []


# -- what the loop does beside the update ---------------------------------------------------------------------------------


def _describe_loop(anatomy: Anatomy, tuning: Tuning) -> None:
    for item in flatten(anatomy.after_step):
        if not isinstance(item, Line):
            continue
        for call in (n for n in ast.walk(item.node) if isinstance(n, ast.Call)):
            name = item.frame.unit.names.resolve(call.func) or ""
            if (
                name.startswith("torch.nn.utils.clip_grad")
                and runs_with_update(anatomy, item, call) is not False
            ):
                _describe_clipping(anatomy, tuning, name, call, item)


def _describe_clipping(anatomy: Anatomy, tuning: Tuning, name: str, call: ast.Call, item: Line) -> None:
    by_value, frame = "value" in name, item.frame
    names = ["parameters", "clip_value" if by_value else "max_norm", "norm_type"]
    given = dict(zip(names, call.args, strict=False)) | {k.arg: k.value for k in call.keywords if k.arg}
    limit = anatomy.values.try_evaluate(given.get(names[1]), frame, default=...)
    kind = anatomy.values.try_evaluate(given.get("norm_type"), frame, default=2.0)
    what = frame.unit.text(call)
    if runs_with_update(anatomy, item, call) is None:
        what += ", which a condition decides on"
    whole = given.get("parameters")
    is_whole = whole is not None and _is_all_parameters(anatomy, whole, frame)
    if limit is ... or kind not in (2, 2.0) or not is_whole or what != frame.unit.text(call):
        tuning.problems.append(
            Problem(
                f"params.yaml cannot say {what}",
                "Set optimizer.max_gradient_norm, which takes the 2-norm of all parameters, at each update.",
                call,
                frame,
            )
        )
    elif limit:
        tuning.section["max_gradient_value" if by_value else "max_gradient_norm"] = limit


# -- schedules --------------------------------------------------------------------------------------------------------------


def _describe_scheduler(anatomy: Anatomy, tuning: Tuning, call: ast.Call, frame: Frame) -> None:
    kind = made_by(call, frame).rpartition(".")[2]
    steps = list(_scheduler_steps(anatomy))
    problem: str | None = None
    if kind == "ReduceLROnPlateau":
        problem = "the learning rate follows a metric of the evaluation, and run()'s follows the step alone"
    elif len(steps) != 1 or steps[0][1] == "now and then":
        problem = "the scheduler is stepped now and then, or in several places"
    elif steps[0][0].args or steps[0][0].keywords:
        problem = "the scheduler is told where it is"
    elif "OneCycle" in kind or "Cyclic" in kind:
        cycles = next((k.value for k in call.keywords if k.arg == "cycle_momentum"), None)
        if anatomy.values.try_evaluate(cycles, frame, default=True) is not False:
            tuning.problems.append(
                Problem(
                    f"{kind} changes the momentum with the learning rate, and run() changes the learning rate alone",
                    "Give it cycle_momentum=False, and look at the results.",
                    call,
                    frame,
                )
            )
    if problem is not None:
        rate = tuning.section.get("learning_rate")
        tuning.problems.append(
            Problem(
                problem,
                f"Choose a schedule for optimizer.learning_rate; it stays at {rate} until then.",
                call,
                frame,
            )
        )
        return
    tuning.per_epoch = steps[0][1] == "epoch"
    early = steps[0][1] == "before"
    spec = None if early else _as_spec(anatomy, tuning, kind, call, frame)
    if spec is None:
        tuning.scheduler = (call, frame)
        tuning.per_epoch = tuning.per_epoch or early
        if early:
            tuning.problems.append(
                Problem(
                    "the scheduler is stepped before the epoch's first update",
                    "Step it after the epoch: torch warns of this, too.",
                    call,
                    frame,
                )
            )
        tuning.comments["learning_rate"] = f"to begin with: set_defaults in utils.py asks {kind} for the rest"
        return
    rate = tuning.section["learning_rate"]
    tuning.section["learning_rate"] = {
        "scheduler": spec.pop("scheduler"),
        "initial_learning_rate": rate,
        **spec,
    }


def _scheduler_steps(anatomy: Anatomy) -> list[tuple[ast.Call, str]]:
    found = []
    before = [line for line in anatomy.setup if line in anatomy.setup_of_epoch]
    places: list[tuple[str, list[Item]]] = [
        ("before", list(before)), ("step", [*anatomy.step, *anatomy.after_step]), ("epoch", anatomy.after_epoch),
    ]  # fmt: skip
    for where, items in places:
        for item in items:
            if isinstance(item, Loop):
                continue
            for call in (n for n in ast.walk(item.node) if isinstance(n, ast.Call)):
                if (
                    isinstance(call.func, ast.Attribute)
                    and call.func.attr == "step"
                    and anatomy.program.reference(call.func.value, item.frame) == anatomy.scheduler
                ):
                    # Beside the update in its own block: once an update.
                    plain = isinstance(item.node, ast.Expr) or _updates(anatomy, item)
                    place = where if anatomy.epoch_loop is not None or where != "epoch" else "step"
                    found.append((call, place if plain else "now and then"))
    return found


def _updates(anatomy: Anatomy, item: Item) -> bool:
    return isinstance(item.node, ast.If) and any(
        isinstance(n, ast.Attribute)
        and n.attr == "step"
        and anatomy.program.reference(n.value, item.frame) == anatomy.optimizer
        for n in ast.walk(item.node)
    )


def _as_spec(
    anatomy: Anatomy, tuning: Tuning, kind: str, call: ast.Call, frame: Frame
) -> dict[str, Any] | None:
    """A schedule of params.yaml that gives exactly these rates; None where only the scheduler itself can tell."""
    names = {
        "StepLR": ["optimizer", "step_size", "gamma"],
        "MultiStepLR": ["optimizer", "milestones", "gamma"],
        "ExponentialLR": ["optimizer", "gamma"],
        "CosineAnnealingLR": ["optimizer", "T_max", "eta_min"],
    }.get(kind)
    if names is None or (kind == "CosineAnnealingLR" and tuning.per_epoch):
        return None
    given = dict(zip(names, call.args, strict=False)) | {k.arg: k.value for k in call.keywords if k.arg}
    known: dict[str, Any] = {"gamma": 0.1, "eta_min": 0.0}
    for name, node in given.items():
        if name in ("optimizer", "verbose"):
            continue
        if name not in names:
            return None
        try:
            known[name] = anatomy.values.evaluate(node, frame)
        except UnknownError:
            return None
    match kind:
        case "StepLR":
            spec = {"scheduler": "Step", "gamma": known["gamma"], "step_size": known.get("step_size")}
        case "MultiStepLR":
            stones = known.get("milestones")
            if not isinstance(stones, (list, tuple)) or list(stones) != sorted(stones):
                return None
            spec = {"scheduler": "MultiStep", "gamma": known["gamma"], "milestones": list(stones)}
        case "ExponentialLR":
            spec = {
                "scheduler": "Exponential",
                "decay_rate": known["gamma"],
                "staircase": True,
                "total_iters": 1,
            }
        case _:
            spec = {"scheduler": "CosineAnnealing", "T_max": known.get("T_max"), "eta_min": known["eta_min"]}
    if any(value is None for value in spec.values()):
        return None
    if tuning.per_epoch:
        tuning.in_epochs = _IN_EPOCHS[str(spec["scheduler"])]
    return spec


# -- length -----------------------------------------------------------------------------------------------------------------


def count_rounds(anatomy: Anatomy, loop: Loop) -> int | None:
    """How often a `for ... in range(...)` goes round, where that can be told."""
    if not isinstance(loop.node, ast.For):
        return None
    node, frame, _ = unwrap_iterable(anatomy, loop.node.iter, loop.frame)
    name = frame.unit.names.resolve(node.func) if isinstance(node, ast.Call) else None
    if not isinstance(node, ast.Call) or not (
        (isinstance(node.func, ast.Name) and node.func.id in ("range", "trange"))
        or (name or "").endswith("trange")
    ):
        return None
    try:
        return len(range(*(int(anatomy.values.evaluate(a, frame)) for a in node.args)))
    except (UnknownError, TypeError, ValueError):
        return None
