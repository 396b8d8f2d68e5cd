"""The optimizer on the device: its numbers as they were compiled, its state, and the update of the weights.

An `UpdateRule` is an optimizer compiled; from then on only what `set` is given counts, as it is with `setOptimizer`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from types import MappingProxyType, MethodType
from typing import Any

import torch
from torch import Tensor

from portwright.emulate.poptorch import _formulas, _optimizer_attributes, optim
from portwright.emulate.poptorch._errors import refuse
from portwright.emulate.poptorch._logging import logger
from portwright.emulate.poptorch._optimizer_attributes import (
    _OptimizerType,
    check_replacement,
    check_values,
    describe,
    is_automatic,
)

FACTOR = "lossScaleUpdateFactor"
"""What the loss scaling of the optimizer is multiplied by: a part of the device's optimizer state."""
FINAL = "finalLossScale"
"""The product of both, which anchorTensor() can ask for."""
_SETTINGS = "automaticLossScalingSettings."


class LossScaling:
    """Counts the gradients of one update, and says then how the factor goes on."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        largest = torch.finfo(torch.float16).max
        self._edge = largest * _proportion(settings, "binEdgeLocation", 0.125)
        self._threshold = _proportion(settings, "thresholdUpperCountProportion", 1e-7)
        self._period = int(settings.get(f"{_SETTINGS}updatePeriod", 1))
        if self._period < 1:
            raise refuse(
                f"PopART's setting '{_SETTINGS}updatePeriod' is {self._period}, and must be 1 or more."
            )
        self._num_updates = 0
        self._num_all = self._num_large = 0

    def observe(self, results: Any) -> None:
        """Takes what one op of the backward pass gave."""
        for tensor in results if isinstance(results, list | tuple) else (results,):
            if isinstance(tensor, Tensor) and tensor.dtype == torch.float16:
                self._num_all += tensor.numel()
                self._num_large += int((tensor.abs() > self._edge).sum())  # nan counts as small, as there

    def check(self) -> None:
        """Refuses a model without a half gradient before its first update, as PopART does when it compiles."""
        if not self._num_all:
            raise refuse(
                "Options.Training.setAutomaticLossScaling(True): no gradient of the model is half, so that PopART finds none to "
                "watch. Leave it out, float32 needs no loss scaling; or make the model half: model.half()."
            )

    def update(self, factor: Tensor) -> None:
        """Doubles or halves the factor, and starts counting anew."""
        if self._num_updates % self._period == 0:
            factor.mul_(0.5 if self._num_large > self._threshold * self._num_all else 2.0)
        self._num_updates += 1
        self._num_all = self._num_large = 0


def check_trains(options: Any, training: bool) -> None:
    """Refuses it for an inference model, as PopART does."""
    if is_automatic(options._Popart.options) and not training:
        raise refuse(
            "Options.Training.setAutomaticLossScaling(True) is only for training, and PopART compiles no inferenceModel "
            "with it. Give the inferenceModel options of its own."
        )


def _proportion(settings: Mapping[str, Any], name: str, default: float) -> float:
    value = float(settings.get(f"{_SETTINGS}{name}", default))
    if not 0 <= value <= 1:
        raise refuse(f"PopART's setting '{_SETTINGS}{name}' is {value}, and must be from 0 to 1.")
    return value


_DEFAULTS = -1  # in place of a group's number: weights that are in no group
_SPECIFIC = "___specific___"
_LOSS_SCALING = "lossScaling_FLOAT"
_PRODUCTS = (
    "scaledLearningRate0",
    "weightDecayScaleFactor0",
)  # what the device has of SGD without a velocity
_ADAMS = (_OptimizerType.ADAM, _OptimizerType.ADAMW, _OptimizerType.ADAMW_NO_BIAS)
_LAMBS = (_OptimizerType.LAMB, _OptimizerType.LAMB_NO_BIAS)
_WITHOUT_STEP = (_OptimizerType.ADAMW_NO_BIAS, _OptimizerType.LAMB_NO_BIAS)


class UpdateRule:
    """What the device does to its weights with the gradients of one or more micro-batches.

    `names` says what each tensor of the host is called; `settings` are PopART's, by name.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        names: Mapping[Tensor, str],
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._automatic = is_automatic(settings)
        self._description = describe(optimizer, self._automatic)
        check_values(self._description)
        self._names = {id(tensor): name for tensor, name in names.items()}
        self._places = {tensor.data_ptr(): name for tensor, name in names.items() if tensor.numel()}
        self._tensors = list(names)  # alive, since their ids are keys
        self._trained = {name: tensor.detach() for tensor, name in names.items() if tensor.requires_grad}
        groups = self._find_groups(optimizer)
        if isinstance(groups, Tensor):
            raise refuse(
                f"the optimizer holds a tensor of shape {tuple(groups.shape)} that is no parameter of the model. Make "
                "the optimizer from the parameters of the model that is wrapped."
            )
        self._group_of = groups
        self._slots: dict[str, Tensor] = {}
        self._written: dict[str, float] = {}  # numbers that `write` has put in the place of the optimizer's
        for name, weight in self._trained.items():
            self._make_slots(name, weight)
        self.scaling: LossScaling | None = None
        """Where the loss scale is automatic: whoever runs the backward pass shows it what comes out."""
        if self._automatic:
            self.scaling = LossScaling(settings)
            self._slots[FACTOR] = torch.ones(())
        self._say_what_differs(optimizer)

    @property
    def loss_scale(self) -> float:
        """What the gradient of the loss is multiplied by before the backward pass; `apply` takes it out again."""
        return self._optimizers_scale * (1.0 if self.scaling is None else self._slots[FACTOR].item())

    @property
    def _optimizers_scale(self) -> float:
        return self._written.get(_LOSS_SCALING, float(self._description["defaults"]["lossScaling"][0]))

    @property
    def accum_type(self) -> torch.dtype:
        """The type in which gradients of several micro-batches are added up (the weight's own for combined SGD)."""
        return torch.float16 if self._description["accumType"] else torch.float32

    @torch.no_grad()
    def apply(self, weights: Mapping[str, Tensor], grads: Mapping[str, Tensor]) -> None:
        """Changes the weights in place, once, by gradients that still carry `loss_scale`."""
        missing = sorted(set(grads) - (set(weights) & set(self._trained)))
        if missing:
            raise refuse(
                f"there are gradients for {', '.join(missing)}, which are no weights that the device trains."
            )
        if self.scaling is not None:
            self.scaling.check()
        factor = 1.0
        if "maxGradNorm" in self._description:
            largest = self._description["maxGradNorm"] * abs(self.loss_scale)
            factor = _formulas.clip_factor(list(grads.values()), largest)
        for name, gradient in grads.items():
            self._update(name, weights[name], gradient.float() * factor if factor != 1.0 else gradient)
        if self.scaling is not None:
            self.scaling.update(self._slots[FACTOR])

    def set(self, optimizer: torch.optim.Optimizer) -> None:
        """Takes over the numbers of an optimizer that are variable; any other that changed is an error."""
        new = describe(optimizer, self._automatic)
        check_replacement(self._description, new, optimizer)
        check_values(new)
        groups = self._find_groups(optimizer)
        if not isinstance(groups, Tensor) and groups != self._group_of:  # a copied optimizer counts by place
            raise refuse(
                "setOptimizer() got an optimizer whose parameter groups hold other weights than those of the compiled "
                "one. Keep the weights in the groups they were compiled with, and change the groups' values."
            )
        if new != self._description:  # only what has changed is sent
            self._written.clear()
        self._description = new

    def state(self) -> dict[str, Tensor]:
        """Copies of what the device remembers of each weight, under PopART's names."""
        return {name: slot.clone() for name, slot in self._slots.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes a state over, all of it or none; what it does not name stays as it is."""
        for name, value in state.items():
            if name not in self._slots:
                known = ", ".join(self._slots) or "none, this optimizer has no state"
                raise refuse(f"the optimizer state has {name}, which the device does not. It has: {known}.")
            if value.shape != self._slots[name].shape:
                raise refuse(
                    f"the optimizer state has {name} of shape {tuple(value.shape)}, the device of shape "
                    f"{tuple(self._slots[name].shape)}. Load the state of the same model."
                )
        for name, value in state.items():
            self._slots[name].copy_(value)

    def params(self) -> dict[str, Tensor]:
        """The numbers that may change, as the device has them: one for every weight, under PopART's names."""
        found: dict[str, Tensor] = {}
        for name in self._trained:
            for number, (value, is_const) in self._device_values(name).items():
                if not is_const:
                    found[f"{number}{_SPECIFIC}{name}"] = torch.tensor(value, dtype=torch.float32)
        value, is_const = self._description["defaults"]["lossScaling"]
        if not is_const:
            found[_LOSS_SCALING] = torch.tensor(value, dtype=torch.float32)
        return found | {name: torch.tensor(written) for name, written in self._written.items()}

    def write(self, params: Mapping[str, Tensor]) -> None:
        """Takes numbers over as the device has them, under the names of `params`, until `set` brings others.

        Those of constants, which the device has no place for, are passed over, as PopTorch does.
        """
        known = self.params()
        for name, value in params.items():
            if name in known and value.numel() != 1:
                raise refuse(
                    f"the optimizer state has {name} of shape {tuple(value.shape)}, which is one number on the device."
                )
        self._written.update({name: float(value) for name, value in params.items() if name in known})

    def numbers(self) -> dict[str, Tensor]:
        """All numbers of the update that can be anchored: `params`, and the loss scale where it changes by itself."""
        return {**self.params(), **({} if self.scaling is None else {FINAL: torch.tensor(self.loss_scale)})}

    def _update(self, name: str, weight: Tensor, gradient: Tensor) -> None:
        kind, values = self._description["optimizer_type"], self._values(name)
        if kind in (_OptimizerType.SGD1, _OptimizerType.SGD2):
            velocity = self._slots.get(_velocity_name(kind, name))
            if velocity is None:
                products = [self._written.get(f"{product}{_SPECIFIC}{name}") for product in _PRODUCTS]
                if any(product is not None for product in products):
                    known = self._device_values(name)
                    rate, decay = (
                        known[product][0] if written is None else written
                        for product, written in zip(_PRODUCTS, products, strict=True)
                    )
                    rate *= self._optimizers_scale / self.loss_scale
                    _formulas.sgd_of_products(weight, gradient, rate, decay)
                    return
                _formulas.sgd(weight, gradient, values, self.loss_scale)
                return
            formula = _formulas.sgd_combined if kind is _OptimizerType.SGD1 else _formulas.sgd_separate
            nesterov = bool(values["nesterov"]) and values["momentum"] > 0
            formula(weight, gradient, values, velocity, self.loss_scale, nesterov)
            return
        if self.loss_scale != 1.0:
            gradient = gradient.float() / self.loss_scale
        slot = self._slots.get
        if kind in (_OptimizerType.RMSPROP, _OptimizerType.RMSPROP_CENTERED):
            averages = _formulas.Averages(
                self._slots[f"Accl1___{name}"], slot(f"Accl2___{name}"), slot(f"Accl3___{name}")
            )
            tensorflow = self._description["useTfVariant"]
            _formulas.rmsprop(weight, gradient, values, averages, tensorflow=tensorflow)
            return
        moments = _formulas.Moments(
            self._slots[f"Accl1___{name}"], self._slots[f"Accl2___{name}"], slot(f"Step___{name}")
        )
        if kind in _LAMBS:
            _formulas.lamb(weight, gradient, values, moments, bias_correction=kind is _OptimizerType.LAMB)
        else:
            _formulas.adam(weight, gradient, values, moments, decoupled=kind is not _OptimizerType.ADAM)

    def _make_slots(self, name: str, weight: Tensor) -> None:
        kind, numbers = self._description["optimizer_type"], self._numbers(name)

        def zeros(half: bool) -> Tensor:
            return torch.zeros_like(weight, dtype=torch.float16 if half else torch.float32)

        if kind is _OptimizerType.SGD1 and _is_used(numbers["momentum"]):
            start = _formulas.sgd_combined_start(weight, self._values(name))
            self._slots[_velocity_name(kind, name)] = start
        elif kind is _OptimizerType.SGD2 and _is_used(numbers["momentum"]):
            self._slots[_velocity_name(kind, name)] = zeros(self._description["velocityAccumType"])
        elif kind in (_OptimizerType.RMSPROP, _OptimizerType.RMSPROP_CENTERED):
            square = zeros(self._description["firstOrderMomentumAccumType"])
            self._slots[f"Accl1___{name}"] = square.fill_(1) if self._description["useTfVariant"] else square
            if kind is _OptimizerType.RMSPROP_CENTERED:
                self._slots[f"Accl2___{name}"] = zeros(self._description["secondOrderMomentumAccumType"])
            if _is_used(numbers["momentum"]):
                self._slots[f"Accl3___{name}"] = zeros(False)
        elif kind in (*_ADAMS, *_LAMBS):
            self._slots[f"Accl1___{name}"] = zeros(self._description["firstOrderMomentumAccumType"])
            self._slots[f"Accl2___{name}"] = zeros(self._description["secondOrderMomentumAccumType"])
            if kind not in _WITHOUT_STEP:
                self._slots[f"Step___{name}"] = torch.zeros(())

    def _find_groups(self, optimizer: torch.optim.Optimizer) -> dict[str, int] | Tensor:
        """The number of every weight's group, or the first tensor in them that is no weight of the model."""
        found = dict.fromkeys(self._trained, _DEFAULTS)
        for index, group in enumerate(optimizer.param_groups):
            for tensor in group["params"]:
                name = self._names.get(id(tensor)) or self._places.get(tensor.data_ptr())
                if name is None:
                    assert isinstance(tensor, Tensor)
                    return tensor
                found[name] = index
        return found

    def _numbers(self, name: str) -> dict[str, tuple[float, bool]]:
        index = self._group_of[name]
        groups: list[dict[str, tuple[float, bool]]] = self._description["groups"]
        numbers = dict(self._description["defaults"] if index == _DEFAULTS else groups[index])
        # PopTorch has the velocity scaled like the loss
        if self._description["optimizer_type"] is _OptimizerType.SGD2:
            numbers["velocityScaling"] = self._description["defaults"]["lossScaling"]
        for number, (_, is_const) in numbers.items():
            written = self._written.get(f"{number}{_SPECIFIC}{name}")
            if written is not None:
                numbers[number] = (written, is_const)
        return numbers

    def _values(self, name: str) -> dict[str, float]:
        return {number: float(value) for number, (value, _) in self._numbers(name).items()}

    def _device_values(self, name: str) -> dict[str, tuple[float, bool]]:
        """The numbers of one weight as the device has them: SGD without a velocity knows two products of them only."""
        numbers = self._numbers(name)
        numbers.pop("lossScaling", None)
        kind = self._description["optimizer_type"]
        if (
            kind not in (_OptimizerType.SGD1, _OptimizerType.SGD2)
            or _velocity_name(kind, name) in self._slots
        ):
            return numbers
        (rate, rate_const), (decay, decay_const) = numbers["learningRate"], numbers["weightDecay"]
        kept, scale_const = 1 - numbers["dampening"][0], self._description["defaults"]["lossScaling"][1]
        is_const = rate_const and numbers["dampening"][1]
        return {
            _PRODUCTS[0]: (rate * kept / self._optimizers_scale, is_const and scale_const),
            _PRODUCTS[1]: (1 - rate * kept * decay, is_const and decay_const),
        }

    def _say_what_differs(self, optimizer: torch.optim.Optimizer) -> None:
        """One line each for what does not work as the optimizer's words let one expect."""
        outside = [name for name, group in self._group_of.items() if group == _DEFAULTS]
        if outside:
            logger.warning(
                "%s: in no parameter group, so the device trains them with the optimizer's defaults; set "
                "requires_grad=False on weights that are not to be trained",
                ", ".join(outside),
            )
        if any(group.get("maximize") for group in optimizer.param_groups):
            logger.warning(
                "maximize=True has no effect on the device, which minimises the loss: negate the loss instead"
            )
        kind = self._description["optimizer_type"]
        if kind in (_OptimizerType.SGD1, _OptimizerType.SGD2) and any(
            self._numbers(name)["dampening"][0] for name in self._trained
        ):
            logger.warning(
                "dampening counts from the first update and without momentum too on the device; torch's SGD leaves it out there"
            )
        if kind is _OptimizerType.ADAMW_NO_BIAS:
            logger.warning(
                "AdamW(bias_correction=False) is emulated as documented; the published sources of PopTorch 3.4 compile "
                "the one with bias correction"
            )


def _velocity_name(kind: _OptimizerType, name: str) -> str:
    return f"Accl___{name}" if kind is _OptimizerType.SGD1 else f"Accl1___{name}"


def _is_used(number: tuple[float, bool]) -> bool:
    value, is_const = number
    return not is_const or value != 0.0


_STATE_DICT = "state_dict"  # a method of the class that an optimizer on a device has one of its own for


class OptimizerLink:
    """Holds the optimizer that was handed over last; `rule` is there once the model is compiled."""

    def __init__(self, optimizer: Any, options: Any, model: torch.nn.Module) -> None:
        self._options = options
        self._tracker = _optimizer_attributes.OptimizerAttrTracker(options)
        self.rule: UpdateRule | None = None
        self._sent: list[dict[str, Any]] = []  # the numbers of each group as the device has them
        self.optimizer: torch.optim.Optimizer = _checked(optimizer, "trainingModel()")
        _check_parameters(self.optimizer, model)
        self._check_kind(self.optimizer)
        self._take(self.optimizer)

    def compile(self, parameters: Mapping[str, torch.Tensor]) -> UpdateRule:
        """Makes the device's rule from the optimizer's values as they are now."""
        names = {tensor: name for name, tensor in parameters.items()}
        self._sent = _numbers(self.optimizer)
        return UpdateRule(self.optimizer, names, self._options._Popart.options)

    def set(self, optimizer: Any) -> None:
        """setOptimizer(): variable values go to the device; a changed constant is refused and changes nothing."""
        optimizer = _checked(optimizer, "setOptimizer()")
        self._check_kind(optimizer)
        if self.rule is not None:
            self.rule.set(optimizer)
        previous = self.optimizer
        if previous is not optimizer:
            self.read_state()
            if isinstance(previous, optim.Optimizer):  # it keeps its last state, and asks this device no more
                setattr(previous, _STATE_DICT, previous.get_state_dict)
            if isinstance(optimizer, optim.Optimizer) and self.rule is not None:
                optimizer.ipu_state_is_dirty = True
        self._take(optimizer)
        self._sent = _numbers(optimizer)

    def warn_unsent(self) -> None:
        """Says once that the user's optimizer has other numbers than the device."""
        for index, (sent, now) in enumerate(zip(self._sent, _numbers(self.optimizer), strict=False)):
            changed = [name for name in sent if now.get(name, sent[name]) != sent[name]]
            if changed:
                told = ", ".join(f"{name} is {now[name]} and {sent[name]} on the device" for name in changed)
                logger.warning(
                    "group %d of the optimizer: %s. Only setOptimizer(optimizer) sends what has changed",
                    index,
                    told,
                )
                self._sent = []
                return

    def _check_kind(self, optimizer: torch.optim.Optimizer) -> None:
        is_compiled = self.rule is not None
        _optimizer_attributes.convertOptimizerToDict(optimizer, self._tracker, self._options, is_compiled)

    def _take(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        if isinstance(optimizer, optim.Optimizer):
            setattr(optimizer, _STATE_DICT, MethodType(_state_of(weakref.ref(self)), optimizer))

    def attach(self) -> None:
        """A device is taken: a state that was loaded goes there, otherwise the host's is to be read from there."""
        optimizer = self.optimizer
        if not isinstance(optimizer, optim.Optimizer):
            return
        if optimizer.ipu_state_is_dirty and optimizer.has_state():
            self.write_state()
        else:
            optimizer.host_state_is_dirty = True
            optimizer.ipu_state_is_dirty = False

    def read_state(self) -> None:
        """The device's state goes into an optimizer of poptorch.optim; torch's own have no place for it."""
        optimizer = self.optimizer
        if (
            not isinstance(optimizer, optim.Optimizer)
            or self.rule is None
            or not optimizer.host_state_is_dirty
        ):
            return
        torchs = torch.optim.Optimizer.state_dict(optimizer)  # what schedulers need
        optimizer.set_state_dict({"ipu_state": self.rule.state(), "ipu_param": self.rule.params(), **torchs})
        optimizer.ipu_state_is_dirty = False

    def write_state(self) -> None:
        """A state that the user has loaded since the last run goes to the device, with the values it came with."""
        optimizer = self.optimizer
        if (
            not isinstance(optimizer, optim.Optimizer)
            or self.rule is None
            or not optimizer.ipu_state_is_dirty
        ):
            return
        if optimizer.has_state():
            self.rule.set(optimizer)
            self._sent = _numbers(optimizer)
            state = optimizer.get_state_dict()
            self.rule.load(state["ipu_state"])
            self.rule.write(state["ipu_param"])
        optimizer.ipu_state_is_dirty = False

    def note_trained(self) -> None:
        if isinstance(self.optimizer, optim.Optimizer):
            self.optimizer.host_state_is_dirty = True


def scales_loss(rule: UpdateRule | None) -> bool:
    """Whether the program has to multiply its loss: by a factor other than 1, or one that may change."""
    return rule is not None and (rule.loss_scale != 1.0 or "lossScaling_FLOAT" in rule.params())


def _checked(optimizer: Any, where: str) -> torch.optim.Optimizer:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise refuse(
            f"{where} got {optimizer!r} as optimizer. Hand over one of poptorch.optim or torch.optim."
        )
    return optimizer


def _check_parameters(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
    own = {id(parameter) for parameter in model.parameters()}
    for index, group in enumerate(optimizer.param_groups):
        for tensor in group["params"]:
            if id(tensor) not in own:
                raise refuse(
                    f"group {index} of the optimizer holds a tensor of shape {list(tensor.shape)} that is no parameter of "
                    f"{type(model).__name__}. Make the optimizer from the parameters of the model that is wrapped."
                )


def _state_of(link: weakref.ref[OptimizerLink]) -> Callable[[Any], dict[str, Any]]:
    """The state_dict() of an optimizer whose state is on a device: it is read from there first."""

    def state_dict(optimizer: Any) -> dict[str, Any]:
        mine = link()
        if mine is not None and mine.optimizer is optimizer:
            mine.read_state()
        state: dict[str, Any] = optimizer.get_state_dict()
        return state

    return state_dict


def _numbers(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [
        {
            name: float(value) if isinstance(value, torch.Tensor) else value
            for name, value in group.items()
            if isinstance(value, (int, float, tuple))
            or (isinstance(value, torch.Tensor) and value.numel() == 1)
        }
        for group in optimizer.param_groups
    ]
