"""`modelzoo.common.pytorch.PyTorchBaseModel`, with the methods that subclasses written for release 1.6 use."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from portwright import base_model
from portwright.compat.modelzoo_cb_model import modes
from portwright.errors import UserError

# Methods whose work Portwright does itself: an override in a subclass would never be called.
_NOT_CALLED = {
    "_configure_lr_scheduler": "Describe the learning rate in params.yaml (optimizer.learning_rate).",
    "get_lr_scheduler": "Describe the learning rate in params.yaml (optimizer.learning_rate).",
    "get_state": "Keep what a checkpoint is to hold in parameters and buffers of the model.",
    "set_state": "Keep what a checkpoint is to hold in parameters and buffers of the model.",
}


class PyTorchBaseModel(base_model.PyTorchBaseModel):
    """A model and its loss, as release 1.6 has it: `_post_device_transfer`, `mode`, `mixed_precision` and modes.

    The optimizer is the one that params.yaml describes, unless the subclass brings its own by `_configure_optimizer`
    or `get_optimizer`.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__call__" in cls.__dict__:
            setattr(cls, "__call__", _with_own_batch(cls.__call__))  # noqa: B010 - mypy cannot see a method replaced

    def __init__(
        self,
        params: dict[str, Any],
        model: nn.Module | Callable[..., nn.Module] | None = None,
        device: torch.device | str | None = None,
        *,
        model_fn: Callable[..., nn.Module] | None = None,
    ) -> None:
        super().__init__(params, model, device, model_fn=model_fn)
        self._post_device_transfer()
        for name, cure in _NOT_CALLED.items():
            if self._overrides(name):
                raise UserError(f"{type(self).__name__} overrides {name}, which is never called here.", cure)
        self.mode: str = params["runconfig"].get("mode", modes.TRAIN)
        self.mixed_precision = bool(params["model"].get("mixed_precision", False))
        self.allow_multireplica = params["model"].get("allow_multireplica", True) and self.mode == modes.TRAIN
        if not self.supports_mode(self.mode):
            raise UserError(
                f"{type(self).__name__} does not support mode {self.mode}.",
                f"It supports {', '.join(self.supported_non_cs_modes)}.",
            )
        if self._overrides("trainable_named_parameters"):
            trained = {id(parameter) for _, parameter in self.trainable_named_parameters()}
            for parameter in self.model.parameters():
                if id(parameter) not in trained:
                    parameter.requires_grad_(False)
        self.lr_scheduler = None
        self.optimizer: torch.optim.Optimizer | None = None
        if self.mode in (modes.TRAIN, modes.TRAIN_AND_EVAL) and self._overrides("_configure_optimizer"):
            self.optimizer = self._configure_optimizer(params["optimizer"])

    def train(self) -> None:
        super().train()
        self.mode = modes.TRAIN

    def eval(self) -> None:
        super().eval()
        self.mode = modes.EVAL

    @property
    def supported_cs_modes(self) -> tuple[str, ...]:
        return modes.TRAIN, modes.EVAL

    @property
    def supported_non_cs_modes(self) -> tuple[str, ...]:
        """The modes that this model can run in; for subclasses to narrow."""
        return modes.TRAIN, modes.EVAL, modes.TRAIN_AND_EVAL, "eval_all", "predict"

    def supports_mode(self, mode: str) -> bool:
        # eval_all is later than 1.6: a model that evaluates can do so for each checkpoint.
        return mode in self.supported_non_cs_modes or (
            mode == "eval_all" and modes.EVAL in self.supported_non_cs_modes
        )

    @property
    def duplicate_params_map(self) -> Mapping[str, set[str]]:
        """For each name of a shared tensor: all names of that tensor."""
        names: dict[int, set[str]] = {}
        for members in (self.model.named_parameters, self.model.named_buffers):
            for name, tensor in members(remove_duplicate=False):
                names.setdefault(id(tensor), set()).add(name)
        return {name: shared for shared in names.values() if len(shared) > 1 for name in shared}

    def _post_device_transfer(self) -> None:
        """For subclasses: what to do once the model is on its device, such as tying weights."""

    def trainable_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """For subclasses: the parameters to train, by name."""
        return self.model.named_parameters()

    def _configure_optimizer(self, oparams: dict[str, Any]) -> torch.optim.Optimizer:
        """Makes the optimizer that `oparams` describe; for subclasses to override."""
        from portwright.job.optimizer import optimizer_schema
        from portwright.runtime.optimizers import make_optimizer

        schema = optimizer_schema(oparams.get("optimizer_type"))
        return make_optimizer(self.model, schema.model_validate(oparams))

    def get_optimizer(self) -> torch.optim.Optimizer | None:
        return self.optimizer

    def _overrides(self, name: str) -> bool:
        return getattr(type(self), name, None) is not getattr(PyTorchBaseModel, name, None)


def _with_own_batch(call: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Gives a model a copy of the batch: the zoo's models remove keys from it, and the session may read it again."""

    @functools.wraps(call)
    def with_own_batch(self: Any, data: Any) -> Any:
        return call(self, dict(data) if isinstance(data, dict) else data)

    return with_own_batch
