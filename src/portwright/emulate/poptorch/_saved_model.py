"""A model of which only the names, weights and the signature of forward() are left: what poptorch.load() wraps."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from portwright.emulate.poptorch import _impl
from portwright.emulate.poptorch._errors import refuse
from portwright.emulate.poptorch._saved_options import decode, encode


def describe_model(model: torch.nn.Module) -> dict[str, Any]:
    """What is kept of a model beside its tensors: which are parameters, which are the same, how it is called."""
    first: dict[int, str] = {}
    for name, tensor in tensors_of(model).items():
        first.setdefault(id(tensor), name)
    persistent = set(model.state_dict(keep_vars=True))
    parameters = model.named_parameters(remove_duplicate=False)
    buffers = model.named_buffers(remove_duplicate=False)
    user_class = type(model).__bases__[0] if _impl.isWrapped(model) else type(model)
    return {
        "class": user_class.__name__,
        "parameters": [[name, first[id(tensor)], tensor.requires_grad] for name, tensor in parameters],
        "buffers": [[name, first[id(tensor)], name in persistent] for name, tensor in buffers],
        "training": model.training,
        "forward": [_parameter_to_json(one) for one in inspect.signature(model.forward).parameters.values()],
    }


def tensors_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


class SavedModel(torch.nn.Module):
    """Holds a saved model's weights under their names; its forward() is in the compiled program only."""

    def __init__(self, description: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        made: dict[str, torch.nn.Parameter] = {}
        for name, first, is_trained in description["parameters"]:
            if first not in made:
                made[first] = torch.nn.Parameter(tensors[first], requires_grad=is_trained)
            home, last = self._home(name)
            home.register_parameter(last, made[first])
        for name, first, is_persistent in description["buffers"]:
            home, last = self._home(name)
            home.register_buffer(last, made.get(first, tensors[first]), persistent=is_persistent)
        self.train(description["training"])
        self._saved_class = str(description["class"])
        self.forward = _Forward(self._saved_class, description["forward"])

    def _home(self, name: str) -> tuple[torch.nn.Module, str]:
        """The module that a dotted name is in, made where there is none yet."""
        *path, last = name.split(".")
        home: torch.nn.Module = self
        for part in path:
            child = home._modules.get(part)
            if child is None:
                child = torch.nn.Module()
                home.add_module(part, child)
            home = child
        return home, last

    def _get_name(self) -> str:
        return f"{self._saved_class} (loaded)"


class _Forward:
    """In the place of forward(): has its signature, by which arguments are sorted, and nothing to run."""

    def __init__(self, class_name: str, parameters: list[Any]) -> None:
        self._class_name = class_name
        self._parameters = parameters
        self.__signature__ = inspect.Signature([_parameter_from_json(one) for one in parameters])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise refuse(
            f"the file holds the compiled program of {self._class_name}, not its Python code: it runs through the executor only. "
            f"Make a {self._class_name} and load_state_dict() to run it on the host."
        )


def _parameter_to_json(parameter: inspect.Parameter) -> dict[str, Any]:
    saved: dict[str, Any] = {"name": parameter.name, "kind": parameter.kind.name}
    if parameter.default is not inspect.Parameter.empty:
        try:
            saved["default"] = encode(parameter.default)
        except TypeError:
            saved["default"] = repr(parameter.default)  # as the signature of the inputs says it
    return saved


def _parameter_from_json(data: Any) -> inspect.Parameter:
    default = decode(data["default"]) if "default" in data else inspect.Parameter.empty
    return inspect.Parameter(data["name"], inspect._ParameterKind[data["kind"]], default=default)
