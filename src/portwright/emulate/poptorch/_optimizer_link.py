"""The user's optimizer and its counterpart on the device: what passes between them, and when."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

import torch

from portwright.emulate.poptorch import _optimizer_attributes, optim
from portwright.emulate.poptorch._errors import refuse
from portwright.emulate.poptorch._logging import logger
from portwright.emulate.poptorch._update import UpdateRule, is_automatic, make_update

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
        return make_update(
            self.optimizer,
            names,
            automatic_loss_scaling=is_automatic(self._options),
            settings=self._options._Popart.options,
        )

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
