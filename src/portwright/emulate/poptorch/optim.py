"""The optimizers of PopTorch: torch's, with what the device adds to them.

The device never calls their Python code: it takes their numbers (`_optimizer_attributes`) and applies formulas of
its own (`_formulas`).
"""
# The vendor's signatures are kept word for word.
# mypy: disable-error-code="type-arg"

from __future__ import annotations

import functools
from typing import Any, Callable, ClassVar, Dict, Iterable, List, Optional, Tuple

import torch

from portwright.emulate.poptorch import _formulas
from portwright.emulate.poptorch._errors import AssertedError, StateError, refuse
from portwright.emulate.poptorch._logging import logger

FP16_MAX_NORM = 65500.0
"""LAMB's largest weight norm where none is given: about the largest half."""


class VariableAttributes:
    """Which numbers of an optimizer may change after compilation; the others are part of the program."""

    def __init__(self, variable_attributes: List[str], allowed_attributes: List[str]) -> None:
        self._variable_attributes = list(variable_attributes)
        self._allowed_attributes = list(allowed_attributes)

    def isConstant(self, attr: str) -> bool:
        return attr not in self._variable_attributes

    def markAsConstant(self, attr: str) -> None:
        self._known(attr)
        self._variable_attributes = [name for name in self._variable_attributes if name != attr]

    def markAsVariable(self, attr: str) -> None:
        self._known(attr)
        if attr not in self._variable_attributes:
            self._variable_attributes.append(attr)

    def _known(self, attr: str) -> None:
        if attr not in self._allowed_attributes:
            raise refuse(
                f"{attr!r} is no attribute of this optimizer. Valid: {', '.join(self._allowed_attributes)}.",
                AssertedError,
            )


class Optimizer:
    """What every optimizer of PopTorch has beside torch's: the state that lives on the device, kept under two keys."""

    _child_only: ClassVar[List[str]] = []  # the arguments that torch's have not
    _group_vars: ClassVar[List[str]] = []  # what a parameter group has for the device

    def __init__(self):
        self._state_dict: Dict[str, Any] = {"ipu_state": None, "ipu_param": None}
        self.ipu_state_is_dirty = False  # the device has to take the host's state over
        self.host_state_is_dirty = False  # the device has trained since the host's state was read

    def _start(
        self, construct: Callable[..., None], arguments: Dict[str, Any], own_numbers: Dict[str, Any]
    ) -> None:
        """What every constructor does with its locals().

        Numbers that were given may change later, the others are constants of the program. `construct` is torch's constructor, and
        `own_numbers` those of a parameter group that it has no argument for.
        """
        given = {name: value for name, value in arguments.items() if name != "self" and value is not None}
        Optimizer.__init__(self)
        unknown = {*self._child_only, *own_numbers}
        construct(self, **{name: value for name, value in given.items() if name not in unknown})
        torchs: Any = self
        for name, value in own_numbers.items():
            torchs.defaults[name] = given.get(name, value)
            for group in torchs.param_groups:
                group.setdefault(name, torchs.defaults[name])
        for name in self._child_only:
            if name not in self._group_vars:
                value = given.get(name, _WITHOUT_WORD.get(name))
                setattr(self, name, _accumulation_type(name, value) if name.endswith("_type") else value)
        self.variable_attrs = VariableAttributes(list(given), [*torchs.defaults, "loss_scaling"])

    def state_dict(self):
        return self.get_state_dict()

    def load_state_dict(self, state):
        _check_device_state(state)
        torch.optim.Optimizer.load_state_dict(self, state)  # type: ignore[arg-type]  # for schedulers: the groups' rates
        self.set_state_dict(state)

    def get_state_dict(self):
        """The device's state as it was last read, with torch's own entries so that schedulers work."""
        return {**self._state_dict, **torch.optim.Optimizer.state_dict(self)}  # type: ignore[arg-type]

    def set_state_dict(self, state):
        _check_device_state(state)
        self._state_dict = state
        self.ipu_state_is_dirty = True
        self.host_state_is_dirty = False

    def has_state(self):
        return all(self._state_dict.get(key) is not None for key in ("ipu_state", "ipu_param"))

    def __getstate__(self) -> Dict[str, Any]:
        """What copies and files keep: torch's own part (groups, defaults, state) and what PopTorch adds."""
        state: Dict[str, Any] = dict(torch.optim.Optimizer.__getstate__(self))  # type: ignore[arg-type]
        ours = ("variable_attrs", *self._child_only, "max_weight_norm", "_state_dict")
        state |= {name: value for name, value in vars(self).items() if name in ours}
        state["ipu_state_is_dirty"] = self.has_state()
        state["host_state_is_dirty"] = False
        return state


def _check_device_state(state: Any) -> None:
    if not state:
        raise refuse("there is nothing in the optimizer state that is to be loaded.", StateError)
    if "ipu_state" not in state or "ipu_param" not in state:
        raise refuse(
            f"an optimizer state with {', '.join(map(repr, state))} did not come from an IPU: only states of "
            "poptorch.optim, which have 'ipu_state' and 'ipu_param', can be loaded onto one.",
            StateError,
        )


_ACCUMULATORS = ["accum_type", "first_order_momentum_accum_type", "second_order_momentum_accum_type"]
# What an optimizer of PopTorch has beside torch's own arguments where its caller gives none; None is torch.float32.
_WITHOUT_WORD: Dict[str, Any] = {
    "loss_scaling": 1.0,
    "use_combined_accum": False,
    "use_tf_variant": False,
    "bias_correction": True,
    "max_grad_norm": float("inf"),
}


def _accumulation_type(name: str, dtype: Optional[torch.dtype]) -> torch.dtype:
    if dtype is None:
        return torch.float32
    if dtype not in (torch.float16, torch.float32):
        raise refuse(f"{name} must be torch.float32 or torch.float16, not {dtype}.", AssertedError)
    return dtype


class SGD(Optimizer, torch.optim.SGD):
    """Stochastic gradient descent with momentum; the velocity is a tensor of its own, or shared with the gradients' sum.

    `velocity_scaling` belongs to the shared variant (`use_combined_accum=True`), `accum_type` and
    `velocity_accum_type` to the other.
    """

    _child_only: ClassVar[List[str]] = [
        "loss_scaling",
        "velocity_scaling",
        "use_combined_accum",
        "accum_type",
        "velocity_accum_type",
        "max_grad_norm",
    ]
    _group_vars: ClassVar[List[str]] = [
        "lr",
        "momentum",
        "dampening",
        "weight_decay",
        "nesterov",
        "velocity_scaling",
    ]

    def __init__(
        self,
        params: Iterable,
        lr: float,
        momentum: Optional[float] = None,
        dampening: Optional[float] = None,
        weight_decay: Optional[float] = None,
        nesterov: Optional[bool] = None,
        maximize: Optional[bool] = None,
        foreach: Optional[bool] = None,
        differentiable: Optional[bool] = None,
        loss_scaling: Optional[float] = None,
        velocity_scaling: Optional[float] = None,
        use_combined_accum: Optional[bool] = None,
        accum_type: Optional[torch.dtype] = None,
        velocity_accum_type: Optional[torch.dtype] = None,
        max_grad_norm: Optional[float] = None,
    ) -> None:
        self._start(
            torch.optim.SGD.__init__, locals(), {"velocity_scaling": 1.0} if use_combined_accum else {}
        )
        if velocity_scaling is not None and not use_combined_accum:
            logger.warning(
                "velocity_scaling=%s has no effect without use_combined_accum=True: leave it out",
                velocity_scaling,
            )


class Adam(Optimizer, torch.optim.Adam):
    """torch's Adam with loss scaling, types of its accumulators, and clipping; there is no AMSGrad on the device."""

    _child_only: ClassVar[List[str]] = [
        "loss_scaling",
        *_ACCUMULATORS,
        "max_grad_norm",
    ]
    _group_vars: ClassVar[List[str]] = ["lr", "betas", "eps", "weight_decay", "amsgrad"]

    def __init__(
        self,
        params: Iterable,
        lr: Optional[float] = None,
        betas: Optional[Tuple[float, float]] = None,
        eps: Optional[float] = None,
        weight_decay: Optional[float] = None,
        amsgrad: Optional[bool] = None,
        foreach: Optional[bool] = None,
        maximize: Optional[bool] = None,
        capturable: Optional[bool] = None,
        differentiable: Optional[bool] = None,
        fused: Optional[bool] = None,
        loss_scaling: Optional[float] = None,
        accum_type: Optional[torch.dtype] = None,
        first_order_momentum_accum_type: Optional[torch.dtype] = None,
        second_order_momentum_accum_type: Optional[torch.dtype] = None,
        max_grad_norm: Optional[float] = None,
    ) -> None:
        self._start(torch.optim.Adam.__init__, locals(), {})


class AdamW(Optimizer, torch.optim.AdamW):
    """torch's AdamW with what `Adam` adds, and `bias_correction`; there is no AMSGrad on the device."""

    _child_only: ClassVar[List[str]] = [
        "loss_scaling",
        "bias_correction",
        *_ACCUMULATORS,
        "max_grad_norm",
    ]
    _group_vars: ClassVar[List[str]] = ["lr", "betas", "weight_decay", "eps", "amsgrad"]

    def __init__(
        self,
        params: Iterable,
        lr: Optional[float] = None,
        betas: Optional[Tuple[float, float]] = None,
        eps: Optional[float] = None,
        weight_decay: Optional[float] = None,
        amsgrad: Optional[bool] = None,
        maximize: Optional[bool] = None,
        foreach: Optional[bool] = None,
        capturable: Optional[bool] = None,
        differentiable: Optional[bool] = None,
        fused: Optional[bool] = None,
        loss_scaling: Optional[float] = None,
        bias_correction: Optional[bool] = None,
        accum_type: Optional[torch.dtype] = None,
        first_order_momentum_accum_type: Optional[torch.dtype] = None,
        second_order_momentum_accum_type: Optional[torch.dtype] = None,
        max_grad_norm: Optional[float] = None,
    ) -> None:
        self._start(torch.optim.AdamW.__init__, locals(), {})


class RMSprop(Optimizer, torch.optim.RMSprop):
    """torch's RMSprop, or with `use_tf_variant` TensorFlow's: it starts from ones, adds eps below the root, and keeps the rate in the momentum."""

    _child_only: ClassVar[List[str]] = [
        "loss_scaling",
        *_ACCUMULATORS,
        "use_tf_variant",
    ]
    _group_vars: ClassVar[List[str]] = ["lr", "momentum", "weight_decay", "alpha", "eps", "centered"]

    def __init__(
        self,
        params: Iterable,
        lr: Optional[float] = None,
        alpha: Optional[float] = None,
        eps: Optional[float] = None,
        weight_decay: Optional[float] = None,
        momentum: Optional[float] = None,
        centered: Optional[bool] = None,
        foreach: Optional[bool] = None,
        maximize: Optional[bool] = None,
        differentiable: Optional[bool] = None,
        loss_scaling: Optional[float] = None,
        accum_type: Optional[torch.dtype] = None,
        first_order_momentum_accum_type: Optional[torch.dtype] = None,
        second_order_momentum_accum_type: Optional[torch.dtype] = None,
        use_tf_variant: Optional[bool] = None,
    ) -> None:
        self._start(torch.optim.RMSprop.__init__, locals(), {})


_NUMBERS_OF_LAMB = {
    "lr": 1e-3,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 1e-2,
    "max_weight_norm": FP16_MAX_NORM,
}


class LAMB(Optimizer, torch.optim.Optimizer):
    """Adam's step for every weight, made as long as the weight (at most `max_weight_norm`); arXiv 1904.00962."""

    bias_correction: bool  # set by _start, as all of a class's own settings
    _child_only: ClassVar[List[str]] = [
        "loss_scaling",
        "bias_correction",
        *_ACCUMULATORS,
    ]
    _group_vars: ClassVar[List[str]] = ["lr", "weight_decay", "betas", "eps", "max_weight_norm"]

    def __init__(
        self,
        params: Iterable,
        lr: Optional[float] = None,
        betas: Tuple[float, float] = None,  # type: ignore[assignment]
        eps: Optional[float] = None,
        weight_decay: Optional[float] = None,
        bias_correction: Optional[bool] = None,
        loss_scaling: Optional[float] = None,
        max_weight_norm: Optional[float] = None,
        accum_type: Optional[torch.dtype] = None,
        first_order_momentum_accum_type: Optional[torch.dtype] = None,
        second_order_momentum_accum_type: Optional[torch.dtype] = None,
    ) -> None:
        self._start(
            functools.partial(torch.optim.Optimizer.__init__, defaults={}), locals(), _NUMBERS_OF_LAMB
        )
        self.max_weight_norm = self.defaults["max_weight_norm"]

    @torch.no_grad()
    def step(self, closure: Optional[Callable] = None) -> Optional[float]:  # type: ignore[override]
        """One step on the host, with gradients that the host computed."""
        loss: Optional[float] = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            values = _formulas.lamb_values(group)
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state.update(
                        step=torch.zeros(()),
                        exp_avg=torch.zeros_like(weight),
                        exp_avg_sq=torch.zeros_like(weight),
                    )
                slots = _formulas.Moments(state["exp_avg"], state["exp_avg_sq"], state["step"])
                _formulas.lamb(weight, weight.grad, values, slots, bias_correction=self.bias_correction)
        return loss
