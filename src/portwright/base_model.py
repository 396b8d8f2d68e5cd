"""How a user's model is held: PyTorchBaseModel of the taught workflow, or a plain nn.Module that gives a loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from portwright.errors import UserError


class PyTorchBaseModel:
    """A model and its loss: `__call__(data)` returns the loss of one batch.

    It is not an nn.Module, so `self.model` may be assigned before `super().__init__()`. Two signatures:
    `(params, model, device)` and `(params, model_fn, device=None)`, where model_fn makes the nn.Module.
    Define `predict(data)` to use `--mode predict`, and `get_optimizer()` to bring your own optimizer.
    """

    model: nn.Module

    def __init__(
        self,
        params: dict[str, Any],
        model: nn.Module | Callable[..., nn.Module] | None = None,
        device: torch.device | str | None = None,
        *,
        model_fn: Callable[..., nn.Module] | None = None,
    ) -> None:
        made = model if model is not None else model_fn
        if made is None:
            made = getattr(self, "model", None)
        if made is not None and not isinstance(made, nn.Module):
            made = _call_factory(made, params)
        if not isinstance(made, nn.Module):
            raise UserError(
                f"{type(self).__name__}: the model given to PyTorchBaseModel is {type(made).__name__}, not an nn.Module.",
                "Call super().__init__(params=params, model=self.model, device=device).",
            )
        self.params = params
        self.device = torch.device(device) if device is not None else None
        self.model = made.to(self.device) if self.device is not None else made

    def __call__(self, data: Any) -> torch.Tensor:
        raise UserError(
            f"{type(self).__name__} has no __call__.",
            "Define __call__(self, data): compute the loss of one batch and return it.",
        )

    def train(self) -> None:
        self.model.train()

    def eval(self) -> None:
        self.model.eval()

    def get_optimizer(self) -> torch.optim.Optimizer | None:
        """An optimizer of the user's own; None takes the one that params.yaml describes."""
        return None

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.model.parameters()

    def state_dict(self) -> dict[str, Any]:
        return self.model.state_dict()


class LossModule(nn.Module):
    """One view of every kind of user model: called with a batch, it gives (loss, outputs).

    It is what gets wrapped for distribution; `net` holds the parameters under their canonical names, and `call` is the
    same as calling the module, without the module around it.
    """

    def __init__(self, user_model: Any) -> None:
        super().__init__()
        if isinstance(user_model, PyTorchBaseModel) or (
            not isinstance(user_model, nn.Module)
            and isinstance(getattr(user_model, "model", None), nn.Module)
        ):
            if not isinstance(getattr(user_model, "model", None), nn.Module):
                raise UserError(
                    f"{type(user_model).__name__} has no self.model.",
                    "Call super().__init__(params=params, model=self.model, device=device) in its __init__.",
                )
            self.net: nn.Module = user_model.model
            _refuse_weights_outside(user_model)
            self.call: Callable[[Any], Any] = user_model
        elif isinstance(user_model, nn.Module):
            self.net = user_model
            self.call = _spread(user_model)
        else:
            raise UserError(
                f"model_fn returned {type(user_model).__name__}.",
                "Return a PyTorchBaseModel, or an nn.Module whose forward returns the loss.",
            )
        # Through __dict__, so that nn.Module does not register the user's model a second time.
        self.__dict__["user_model"] = user_model

    def forward(self, batch: Any) -> Any:
        return self.call(batch)

    def train(self, mode: bool = True) -> LossModule:
        super().train(mode)
        user = self.__dict__["user_model"]
        if not isinstance(user, nn.Module):
            switch = getattr(user, "train" if mode else "eval", None)
            if switch is not None:
                switch()
        return self

    def predict(self, batch: Any) -> Any:
        """What the model predicts for a batch, without a loss where the user's model can do that."""
        predict = getattr(self.__dict__["user_model"], "predict", None)
        if predict is not None:
            return predict(batch)
        _, outputs = split_loss(self(batch))
        if outputs is None:
            raise UserError(
                f"{type(self.__dict__['user_model']).__name__} returns a loss and nothing else, so there is nothing to predict.",
                "Define predict(self, data), or return (loss, outputs).",
            )
        return outputs

    def own_optimizer(self) -> torch.optim.Optimizer | None:
        make = getattr(self.__dict__["user_model"], "get_optimizer", None)
        made = make() if make is not None else None
        if made is not None and not isinstance(made, torch.optim.Optimizer):
            raise UserError(
                f"get_optimizer returned {type(made).__name__}, not a torch.optim.Optimizer.",
                "Return an optimizer, or None to use the one of params.yaml.",
            )
        return made


def make_model(
    model_fn: Callable[..., Any], params: dict[str, Any], device: torch.device | str | None
) -> LossModule:
    """Calls `model_fn(params)` or `model_fn(params, device)`, by its signature."""
    try:
        parameters = list(inspect.signature(model_fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    named = {p.name for p in parameters}
    if isinstance(model_fn, nn.Module | PyTorchBaseModel):
        raise UserError(
            f"run() got a model ({type(model_fn).__name__}) as model_fn.",
            "Pass the class, or a function that makes it from params, so that the target can make it where it belongs.",
        )
    if not positional and not variadic and inspect.isfunction(model_fn):
        made = model_fn()
    elif "device" in named:
        made = model_fn(params, device=device)
    elif (len(positional) > 1 and positional[1].default is inspect.Parameter.empty) or (
        variadic and not positional
    ):
        made = model_fn(params, device)
    else:
        made = model_fn(params)
    return LossModule(made)


def split_loss(result: Any) -> tuple[torch.Tensor, Any]:
    """Takes the loss out of what a model returned: a loss, (loss, outputs...), {"loss": ...} or an object with .loss."""
    outputs: Any = None
    loss = result
    if isinstance(result, torch.Tensor):
        pass
    elif isinstance(result, Mapping):
        loss = result.get("loss")
        outputs = {k: v for k, v in result.items() if k != "loss"} or None
    elif isinstance(result, tuple | list) and result:
        loss = result[0]
        rest = tuple(result[1:])
        outputs = (rest[0] if len(rest) == 1 else rest) if rest else None
    elif hasattr(result, "loss"):
        loss = result.loss
        outputs = getattr(result, "logits", None)
    if not isinstance(loss, torch.Tensor):
        raise UserError(
            f"the model returned {type(result).__name__} with no loss in it.",
            'Return the loss, (loss, outputs), or a dict with the key "loss".',
        )
    if loss.ndim and loss.numel() != 1:
        raise UserError(
            f"the model returned a loss of shape {tuple(loss.shape)}.",
            "Reduce it to one number, for instance with .mean().",
        )
    return (loss.reshape(()) if loss.ndim else loss), outputs


def _refuse_weights_outside(user_model: Any) -> None:
    """Optimizer and checkpoints know self.model alone: a weight beside it would stay as it is, and nobody would notice."""
    known = {id(parameter) for parameter in user_model.model.parameters()}
    for name, value in vars(user_model).items():
        if name != "model" and isinstance(value, nn.Module):
            num_outside = sum(p.numel() for p in value.parameters() if p.requires_grad and id(p) not in known)
            if num_outside:
                raise UserError(
                    f"self.{name} of {type(user_model).__name__} has {num_outside} weights outside self.model, which would be "
                    "neither trained nor saved.",
                    f"Make {name} a part of the module that is self.model, or freeze it with requires_grad_(False).",
                )


def _call_factory(factory: Callable[..., Any], params: dict[str, Any]) -> Any:
    try:
        takes_params = bool(inspect.signature(factory).parameters)
    except (TypeError, ValueError):
        takes_params = True
    return factory(params) if takes_params else factory()


def _spread(module: nn.Module) -> Callable[[Any], Any]:
    """Hands a batch to forward as its signature wants it: whole, or spread over its arguments."""
    declared = list(inspect.signature(module.forward).parameters.values())
    parameters = [p for p in declared if p.kind is not p.VAR_KEYWORD]
    takes_any_name = len(declared) > len(parameters)
    names = {p.name for p in parameters}
    takes_many = len(parameters) > 1 or any(p.kind is p.VAR_POSITIONAL for p in parameters)
    required = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]

    def call(batch: Any) -> Any:
        if isinstance(batch, Mapping) and (takes_any_name or (takes_many and set(batch) <= names)):
            return module(**batch)
        if isinstance(batch, Mapping) and len(required) > 1:
            raise UserError(
                f"the batch has the keys {', '.join(map(str, batch))}, and {type(module).__name__}.forward takes {', '.join(names)}.",
                "Name the batch's keys after forward's arguments, or let forward take the whole batch.",
            )
        if (
            isinstance(batch, tuple | list)
            and takes_many
            and (len(required) != 1 or len(batch) <= len(parameters))
        ):
            return module(*batch)
        return module(batch)

    return call
