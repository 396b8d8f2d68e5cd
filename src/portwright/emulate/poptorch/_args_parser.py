"""The arguments of a model's call, in the order of its forward()."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Dict

import torch

from portwright.emulate.poptorch import _impl, _utils
from portwright.emulate.poptorch._errors import AssertedError, refuse
from portwright.emulate.poptorch._logging import logger
from portwright.errors import suggest

_CURE = (
    "A compiled model takes the inputs that it was compiled for: wrap the model anew, or call destroy() on the wrapped "
    "one, to compile it for others."
)
_MANY = inspect.Parameter.VAR_POSITIONAL
_NAMED = inspect.Parameter.VAR_KEYWORD


class ArgsParser:
    """Sorts positional, named and default arguments by the signature of a model or callable."""

    class Args:
        """One call's arguments: `args` by position, named by `arg_names`, and `kwargs` that only go by name."""

        def __init__(self) -> None:
            self._args: list[Any] = []
            self._arg_names: list[str] = []
            self._kwargs: dict[str, Any] = {}
            self.first_none: int | None = None

        @property
        def args(self) -> list[Any]:
            return self._args

        @property
        def arg_names(self) -> list[str]:
            return self._arg_names

        @property
        def kwargs(self) -> dict[str, Any]:
            return self._kwargs

        def appendArg(self, arg: Any, name: str) -> None:
            self._args.append(arg)
            self._arg_names.append(name)

        def setNamedArg(self, name: str, arg: Any) -> None:
            self._kwargs[name] = arg

        def popArg(self) -> None:
            self._args.pop()
            self._arg_names.pop()

        def clone(self) -> ArgsParser.Args:
            """A copy with containers of its own and the same tensors."""
            other = ArgsParser.Args()
            other._args, other._arg_names = list(self._args), list(self._arg_names)
            other._kwargs, other.first_none = dict(self._kwargs), self.first_none
            return other

        def validateInputs(self, inputs: ArgsParser.Args) -> None:
            """Refuses inputs that are not like these, for which the model was compiled."""
            if len(inputs.args) != len(self.args):
                raise _impl.createPoptorchError(
                    f"the model was compiled for {len(self.args)} positional arguments and got {len(inputs.args)}. {_CURE}"
                )
            for name, compiled, given in zip(self.arg_names, self.args, inputs.args, strict=True):
                _check_alike(name, compiled, given)
            _check_alike("the named arguments", self.kwargs, inputs.kwargs)

        def forEach(self, fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
            """Puts fn(tensor) in the place of every tensor."""
            self._args = _map_tensors(self._args, fn)
            self._kwargs = _map_tensors(self._kwargs, fn)

        def forEachTensorMatchedAtLeastOnce(
            self,
            condition: Callable[[torch.Tensor], bool],
            doOnTrue: Callable[[torch.Tensor], torch.Tensor] | None = None,
        ) -> bool:
            """Whether `condition` holds for a tensor; those are replaced by doOnTrue(tensor)."""
            matched = [condition(tensor) for tensor in self.asPackedFlatTuple()]
            if doOnTrue is not None and any(matched):
                self.forEach(lambda tensor: doOnTrue(tensor) if condition(tensor) else tensor)
            return any(matched)

        def asPackedFlatTuple(
            self, canonical_args: ArgsParser.Args | None = None
        ) -> tuple[torch.Tensor, ...]:
            """All tensors, in the order of these arguments or of the canonical ones (of dicts)."""
            like = (None, None) if canonical_args is None else (canonical_args.args, canonical_args.kwargs)
            positional = _utils.flattenTensorStructure(self._args, like[0])
            return (*positional, *_utils.flattenTensorStructure(self._kwargs, like[1]))

    def __init__(self, model: Any):
        self._parameters = _parameters_of(model)
        self._warned_of_strides = False
        self._warned_of_dicts = False

    def __call__(self, args: Any, kwargs: Dict[str, Any], fast_path: bool = False) -> Args:
        self._refuse_unknown(args, kwargs)
        given = ArgsParser.Args()
        rest = list(args)
        by_name = False  # behind *args, or a parameter that only goes by name
        for name, parameter in self._parameters.items():
            if parameter.kind == _MANY:
                for index, value in enumerate(rest):
                    given.appendArg(value, f"*{name}[{index}]")
                rest, by_name = [], True
                continue
            if parameter.kind == _NAMED:
                for key in kwargs:
                    if key not in self._parameters or self._parameters[key].kind in (_MANY, _NAMED):
                        given.setNamedArg(key, kwargs[key])
                continue
            by_name = by_name or parameter.kind == inspect.Parameter.KEYWORD_ONLY
            value = self._value_of(name, parameter, rest if not by_name else [], kwargs)
            if by_name:
                given.setNamedArg(name, value)
            else:
                given.appendArg(value, name)
        if not fast_path:
            self._warn_of_dicts([*given.args, *given.kwargs.values()])
        if given.forEachTensorMatchedAtLeastOnce(lambda t: not _is_contiguous(t), lambda t: t.contiguous()):
            if not self._warned_of_strides:
                logger.warning("an input is not contiguous: it is copied at every call")
            self._warned_of_strides = True
        return given

    def _value_of(
        self, name: str, parameter: inspect.Parameter, rest: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        if rest:
            if name in kwargs:
                raise refuse(f"the argument {name} was given by position and by name.", AssertedError)
            return rest.pop(0)
        if name in kwargs:
            return kwargs[name]
        if parameter.default is inspect.Parameter.empty:
            raise _impl.createPoptorchError(f"the argument {name} of forward() is missing.")
        return parameter.default

    def _refuse_unknown(self, args: Any, kwargs: dict[str, Any]) -> None:
        kinds = {parameter.kind for parameter in self._parameters.values()}
        names = [name for name, p in self._parameters.items() if p.kind not in (_MANY, _NAMED)]
        if _NAMED not in kinds:
            for name in kwargs:
                if name not in names:
                    raise refuse(
                        f"forward() has no parameter '{name}'. {suggest(name, names)}", AssertedError
                    )
        by_position = [n for n in names if self._parameters[n].kind != inspect.Parameter.KEYWORD_ONLY]
        if _MANY not in kinds and len(args) > len(by_position):
            raise refuse(
                f"forward() takes {len(by_position)} positional arguments ({', '.join(by_position)}) and got {len(args)}.",
                AssertedError,
            )

    def _warn_of_dicts(self, values: list[Any]) -> None:
        while values and not self._warned_of_dicts:
            value = values.pop()
            if isinstance(value, dict):
                self._warned_of_dicts = True
                logger.warning(
                    "a dict as an input is read by its keys when the model is compiled: keep its keys the same"
                )
            elif isinstance(value, (list, tuple)):
                values.extend(value)


def _parameters_of(model: Any) -> dict[str, inspect.Parameter]:
    if isinstance(model, _impl.OptimizerWrapper):
        model = model.model
    if isinstance(model, torch.nn.Module):
        model = model.forward
    elif not callable(model):
        raise TypeError(f"a model is callable, most often as a torch.nn.Module: {model!r} is not.")
    try:
        return dict(inspect.signature(model).parameters)
    except ValueError:  # a callable written in C may have no signature: anything goes
        return {"args": inspect.Parameter("args", _MANY), "kwargs": inspect.Parameter("kwargs", _NAMED)}


def _is_contiguous(tensor: torch.Tensor) -> bool:
    return tensor.layout != torch.strided or tensor.is_contiguous()


def _map_tensors(structure: Any, fn: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    tensors = [fn(tensor) for tensor in _utils.flattenTensorStructure(structure)]
    return _utils.reconstructTensorStructure(structure, tensors)


def _check_alike(name: str, compiled: Any, given: Any) -> None:
    def wrong(what: str, expected: Any, got: Any) -> Exception:
        return refuse(f"{what} mismatch for {name}: compiled for {expected} and got {got}. {_CURE}")

    if type(compiled) is not type(given):
        raise wrong("Type", type(compiled).__name__, type(given).__name__)
    if isinstance(compiled, torch.Tensor):
        if compiled.dtype != given.dtype:
            raise wrong("Data type", compiled.dtype, given.dtype)
        if compiled.shape != given.shape:
            raise wrong("Shape", list(compiled.shape), list(given.shape))
    elif _utils.getCustomParser(compiled) is not None:
        _check_alike(name, _utils.flattenTensorStructure(compiled), _utils.flattenTensorStructure(given))
    elif isinstance(compiled, dict):
        if set(compiled) != set(given):
            raise wrong("Keys", sorted(map(str, compiled)), sorted(map(str, given)))
        for key in compiled:
            _check_alike(f"{name}[{key}]", compiled[key], given[key])
    elif isinstance(compiled, (list, tuple)):
        if len(compiled) != len(given):
            raise wrong("Length", len(compiled), len(given))
        for index, item in enumerate(compiled):
            _check_alike(f"{name}[{index}]", item, given[index])
    elif compiled != given:
        raise wrong("Value", repr(compiled), repr(given))
