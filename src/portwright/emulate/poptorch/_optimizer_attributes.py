"""What an optimizer is on the device: its kind, and numbers that are either constants of the program or may change.

An optimizer reaches the device as a dictionary: attributes of the whole (`accumType`, ...), then for the defaults and
for every parameter group `{name: (value, is_const)}` under PopART's names.
"""

from __future__ import annotations

import enum
import math
import numbers
from typing import Any

import torch

from portwright.emulate.poptorch import enums, optim, poptorch_core
from portwright.emulate.poptorch._errors import AssertedError, refuse
from portwright.emulate.poptorch._logging import logger

_AUTOMATIC = "automaticLossScalingSettings.enabled"


class ValueRefused(poptorch_core.Error, ValueError):
    """Where the real package raises a ValueError."""


class _OptimizerType(enum.IntEnum):
    SGD1 = 0
    SGD2 = 1
    ADAM = 2
    ADAMW = 3
    ADAMW_NO_BIAS = 4
    RMSPROP = 5
    RMSPROP_CENTERED = 6
    LAMB = 7
    LAMB_NO_BIAS = 8


_CLASSES: dict[_OptimizerType, Any] = {
    _OptimizerType.SGD1: optim.SGD,
    _OptimizerType.SGD2: optim.SGD,
    _OptimizerType.ADAM: optim.Adam,
    _OptimizerType.ADAMW: optim.AdamW,
    _OptimizerType.ADAMW_NO_BIAS: optim.AdamW,
    _OptimizerType.RMSPROP: optim.RMSprop,
    _OptimizerType.RMSPROP_CENTERED: optim.RMSprop,
    _OptimizerType.LAMB: optim.LAMB,
    _OptimizerType.LAMB_NO_BIAS: optim.LAMB,
}
_TORCH = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop)
_OURS = (optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.LAMB)


class OptimizerAttrTracker:
    """Remembers the attributes of the first optimizer, and says once of each later one that it has no effect."""

    def __init__(self, opts):
        self.log = logger.debug if opts._relax_optimizer_checks else logger.warning
        self.group_attributes: list[str] = []
        self.optim_attributes: list[str] = []
        self.record_attributes = True
        self.printed_msgs: list[str] = []
        self.type = "Unknown"

    def setType(self, optimizer_type):
        if not isinstance(optimizer_type, _OptimizerType):
            raise refuse(
                f"{optimizer_type!r} is no kind of optimizer. Valid: {_names(_OptimizerType)}.", AssertedError
            )
        self.type = optimizer_type.name

    def enableChecks(self):
        self.record_attributes = False

    def checkDefaultAttributes(self, provided):
        self._check(self.group_attributes, provided, "default")

    def checkGroupAttributes(self, provided, group):
        self._check(self.group_attributes, provided, f"attribute of group {group}")

    def checkOptimizerAttributes(self, provided):
        self._check(self.optim_attributes, provided, "attribute of the optimizer")

    def _check(self, known: list[str], provided: list[str], kind: str) -> None:
        new = [name for name in provided if name not in known]
        if self.record_attributes:
            known.extend(new)
            return
        message = (
            f"{', '.join(new)} ({kind}) came after {self.type} was compiled, and has no effect on the device"
        )
        if new and message not in self.printed_msgs:
            self.printed_msgs.append(message)
            self.log(message)


def convertOptimizerToDict(optimizer, attr_tracker, options, is_compiled):
    """The dictionary of an optimizer; half sums of gradients make `options` average them as they are added up."""
    attr_tracker.setType(_toPoptorchOptimizer(optimizer))
    if type(optimizer) not in (*_TORCH, *_OURS) and isinstance(optimizer, (*_TORCH, *_OURS)):
        logger.warning(
            "%s is derived from an optimizer that PopTorch knows: the device runs that one's formula, and no Python "
            "code of %s",
            type(optimizer).__name__,
            type(optimizer).__name__,
        )
    _settle_reduction(optimizer, options, is_compiled)
    automatic = bool(options._Popart.options.get(_AUTOMATIC, False))
    variable = getattr(optimizer, "variable_attrs", None)
    if variable is not None and automatic:
        variable.markAsVariable("loss_scaling")
    converted = describe(optimizer, automatic)
    attr_tracker.checkDefaultAttributes(list(optimizer.defaults))
    own = (
        "defaults",
        "state",
        "param_groups",
        "variable_attrs",
        "state_dict",
    )  # the last one set by the executor
    attr_tracker.checkOptimizerAttributes([name for name in vars(optimizer) if name not in own])
    for index, group in enumerate(optimizer.param_groups):
        attr_tracker.checkGroupAttributes([name for name in group if name != "params"], index)
    logger.debug("optimizer %s", converted)
    attr_tracker.enableChecks()
    return converted


def describe(optimizer: torch.optim.Optimizer, automatic_loss_scaling: bool = False) -> dict[str, Any]:
    """The dictionary alone, without a look at options or at attributes that have no effect."""
    kind = _toPoptorchOptimizer(optimizer)
    known = _toPoptorchClass(kind)
    readers = _readers(kind, getattr(optimizer, "variable_attrs", None), automatic_loss_scaling)
    described: dict[str, Any] = {"optimizer_type": kind}
    for name in known._child_only:
        if name not in known._group_vars and name not in known._child_vars:
            described.update(readers[name](optimizer))
    defaults = _read(readers, known._group_vars, optimizer.defaults)
    for name in known._child_vars:
        defaults.update(readers[name](optimizer))
    described["defaults"] = defaults
    described["groups"] = [_read(readers, known._group_vars, group) for group in optimizer.param_groups]
    return described


def _read(readers: dict[str, Any], names: list[str], group: dict[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = {}
    for name in names:
        read.update(readers[name](group))
    return read


def _settle_reduction(optimizer: Any, options: Any, is_compiled: bool) -> None:
    """Half sums would overflow if they were divided at the end: PopTorch averages them as they grow."""
    if getattr(optimizer, "accum_type", None) != torch.float16 or getattr(
        optimizer, "use_combined_accum", False
    ):
        return
    running = enums.MeanReductionStrategy.Running
    if not is_compiled:
        options._unfreeze()
        options.Training.setMeanAccumulationAndReplicationReductionStrategy(running)
        options._freeze()
    elif options.Training.meanAccumulationAndReplicationReductionStrategy != running:
        raise refuse(
            "an optimizer with accum_type=torch.float16 needs MeanReductionStrategy.Running, but the model is already "
            "compiled with another one. Give trainingModel() such an optimizer from the start.",
            ValueRefused,
        )


def _readers(kind: _OptimizerType, variable: Any, automatic: bool) -> dict[str, Any]:
    """A reader for every attribute there is, by the name that torch gives it."""

    def pair(is_const: Any) -> _ValueConstPairFormatter:
        return _ValueConstPairFormatter(variable, is_const)

    def always(_: Any) -> bool:
        return True

    def never(_: Any) -> bool:
        return False

    readers: dict[str, Any] = {
        "amsgrad": _refuse_amsgrad,
        "bias_correction": _nothing,  # told by the optimizer's kind, as are the next two
        "centered": _nothing,
        "use_combined_accum": _nothing,
    }
    for name in (
        "accum_type",
        "velocity_accum_type",
        "first_order_momentum_accum_type",
        "second_order_momentum_accum_type",
    ):
        _AttrReader(readers, name, _OptimizerGetter(torch.float32), _is_half)
    _AttrReader(readers, "use_tf_variant", _OptimizerGetter(False))
    _AttrReader(readers, "max_grad_norm", _OptimizerGetter(math.inf), _positive)
    _AttrReader(
        readers, "loss_scaling", _OptimizerGetter(1.0), pair(lambda value: value == 1.0 and not automatic)
    )
    _AttrReader(readers, "lr", _GroupGetter(), pair(never), new_name="learningRate")
    decay = 1e-2 if kind is _OptimizerType.ADAMW else 0.0  # torch's own defaults
    _AttrReader(readers, "weight_decay", _GroupGetter(), pair(_IsEqualTo(decay)))
    _AttrReader(readers, "momentum", _GroupGetter(), pair(_IsEqualTo(0.0)))
    _AttrReader(readers, "velocity_scaling", _GroupGetter(1.0), pair(_IsEqualTo(1.0)))
    _AttrReader(readers, "dampening", _GroupGetter(), pair(_IsEqualTo(0.0)))
    _AttrReader(readers, "eps", _GroupGetter(), pair(_IsEqualTo(1e-08)))
    _AttrReader(readers, "max_weight_norm", _GroupGetter(), pair(_IsEqualTo(optim.FP16_MAX_NORM)))
    _AttrReader(readers, "alpha", _GroupGetter(), pair(always))
    _AttrReader(readers, "nesterov", _GroupGetter(), pair(always))
    _BetaReader(readers, variable)
    return readers


def _nothing(_: Any) -> dict[str, Any]:
    return {}


def _refuse_amsgrad(group: dict[str, Any]) -> dict[str, Any]:
    if group["amsgrad"]:
        raise refuse("amsgrad=True: there is no AMSGrad on an IPU. Leave it False.", ValueRefused)
    return {}


def _is_half(dtype: Any, name: str) -> bool:
    if dtype not in (torch.float16, torch.float32):
        raise refuse(f"{name} must be torch.float16 or torch.float32, not {dtype}.", ValueRefused)
    return bool(dtype == torch.float16)


def _positive(value: Any, name: str) -> float:
    _assertIsNumber(value, name)
    if not value > 0:  # NaN too
        raise refuse(f"{name} must be larger than 0, not {value}.", ValueRefused)
    return float(value)


def _toPoptorchClass(optimizer_type):
    return _CLASSES[optimizer_type]


def _toPoptorchOptimizer(optimizer):
    """What the device runs for an optimizer of poptorch.optim or torch.optim, or for one derived from them."""
    if isinstance(optimizer, torch.optim.SGD):
        return _OptimizerType.SGD1 if getattr(optimizer, "use_combined_accum", False) else _OptimizerType.SGD2
    if isinstance(optimizer, torch.optim.AdamW):  # before Adam, which newer versions of torch derive it from
        corrected = getattr(optimizer, "bias_correction", True)
        return _OptimizerType.ADAMW if corrected else _OptimizerType.ADAMW_NO_BIAS
    if isinstance(optimizer, torch.optim.Adam):
        if any(group.get("decoupled_weight_decay") for group in optimizer.param_groups):
            raise refuse(
                "Adam with decoupled_weight_decay=True is unknown to PopTorch. Use AdamW, which is the same.",
                ValueRefused,
            )
        return _OptimizerType.ADAM
    if isinstance(optimizer, torch.optim.RMSprop):
        centered = {bool(group["centered"]) for group in optimizer.param_groups}
        if len(centered) > 1:
            raise refuse(
                "RMSprop on an IPU: 'centered' must be the same in every parameter group.", AssertedError
            )
        return _OptimizerType.RMSPROP_CENTERED if True in centered else _OptimizerType.RMSPROP
    if isinstance(optimizer, optim.LAMB):
        return _OptimizerType.LAMB if optimizer.bias_correction else _OptimizerType.LAMB_NO_BIAS
    raise refuse(
        f"PopTorch does not know the optimizer {type(optimizer).__name__}. It takes SGD, Adam, AdamW and RMSprop of "
        "poptorch.optim or torch.optim, and poptorch.optim.LAMB.",
        AssertedError,
    )


def _names(kinds: Any) -> str:
    return ", ".join(kind.name for kind in kinds)


def _toCamelCase(string):
    first, *others = string.split("_")
    return first + "".join(word.capitalize() for word in others)


def _assertIsNumber(value, name):
    if not isinstance(value, numbers.Number):
        raise refuse(f"{name} must be a number, not {value!r} ({type(value).__name__}).", AssertedError)


class _GroupGetter:
    """Takes an attribute from a parameter group."""

    def __init__(self, default_value=None):
        self.default_value = default_value

    def __call__(self, group, name):
        if not isinstance(group, dict):
            raise refuse(
                f"{name} belongs into a parameter group, which {type(group).__name__} is not.", AssertedError
            )
        return _found(group.get(name, self.default_value), name, "parameter group")


class _OptimizerGetter:
    """Takes an attribute from the optimizer itself."""

    def __init__(self, default_value=None):
        self.default_value = default_value

    def __call__(self, opt, name):
        if not isinstance(opt, torch.optim.Optimizer):
            raise refuse(f"{name} belongs to the whole optimizer, not into a parameter group.", AssertedError)
        return _found(getattr(opt, name, self.default_value), name, "optimizer")


def _found(value: Any, name: str, where: str) -> Any:
    if value is None:
        raise refuse(f"the {where} has no {name}, which the device needs.", AssertedError)
    return value


class _ValueConstPairFormatter:
    """Makes (value, is_const); without a word of the user (`variable_attrs`), the value says whether it is constant."""

    def __init__(self, variable_attrs, const_evaluator, value_validator=None):
        self.variable_attrs = variable_attrs
        self.const_evaluator = const_evaluator
        self.value_validator = value_validator or _assertIsNumber

    def __call__(self, value, name):
        self.value_validator(value, name)
        if self.variable_attrs is not None:
            return value, self.variable_attrs.isConstant(name)
        return value, self.const_evaluator(value)


class _IsEqualTo:
    def __init__(self, reference):
        self.reference = reference

    def __call__(self, value):
        return value == self.reference


class _AttrReader:
    """Reads one attribute and gives it PopART's name; puts itself among `readers`."""

    def __init__(self, readers, name, getter, formatter=None, new_name=None):
        self.name = name
        self.getter = getter
        self.formatter = formatter or (lambda value, _: value)
        self.new_name = new_name or _toCamelCase(name)
        readers[name] = self

    def __call__(self, params):
        return {self.new_name: self.formatter(self.getter(params, self.name), self.name)}


class _BetaReader(_AttrReader):
    """Reads Adam's pair, which PopART takes apart."""

    def __init__(self, attr_readers, variable_attrs):
        formatter = _ValueConstPairFormatter(variable_attrs, lambda _: True, _assert_pair)
        super().__init__(attr_readers, "betas", _GroupGetter(), formatter)

    def __call__(self, params):
        (beta1, beta2), is_const = super().__call__(params)["betas"]
        return {"beta1": (beta1, is_const), "beta2": (beta2, is_const)}


def _assert_pair(value: Any, name: str) -> None:
    if not isinstance(value, tuple) or len(value) != 2:
        raise refuse(f"{name} must be a pair of numbers, not {value!r}.", AssertedError)
    for index, one in enumerate(value):
        _assertIsNumber(one, f"{name}[{index}]")
