"""The inputs that a program was compiled for, as data, and the refusal of any others."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Dict, List

import torch

from portwright.emulate.poptorch._errors import AssertedError, refuse
from portwright.emulate.poptorch._logging import logger
from portwright.errors import suggest


def flattenTensorStructure(tensors, canonical_structure=None):
    """All tensors of nested lists, tuples and dicts; dicts in the order of the canonical structure."""
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    like = tensors if canonical_structure is None else canonical_structure
    if isinstance(tensors, dict):
        pairs = [(tensors[key], like[key]) for key in like]
    else:
        pairs = list(zip(tensors, like, strict=True)) if isinstance(tensors, (list, tuple)) else []
    return [tensor for value, other in pairs for tensor in flattenTensorStructure(value, other)]


def reconstructTensorStructure(structure, values):
    """The same structure with other tensors, in the order of flattening."""
    tensors = iter(values)
    return _map_leaves(structure, lambda leaf: next(tensors) if isinstance(leaf, torch.Tensor) else leaf)


def _map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same structure, with what `change` gives in the place of all that is no dict, list or tuple."""
    if isinstance(value, dict):
        return type(value)({key: _map_leaves(item, change) for key, item in value.items()})
    if not isinstance(value, (list, tuple)):
        return change(value)
    parts = [_map_leaves(item, change) for item in value]
    # a named tuple takes each
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


def _joined(batches: List[List[torch.Tensor]]) -> Iterator[torch.Tensor]:
    """The first tensors of all batches as one, then the second ones, and so on."""
    return map(torch.cat, zip(*batches, strict=True))


def combined_batch_generator(dataloader_iterator, num_batches_to_combine, drop_last=True):
    """Joins every `num_batches_to_combine` batches into one; fewer are left at the end, and dropped or joined."""
    held: list[list[torch.Tensor]] = []
    batch = None
    for batch in dataloader_iterator:
        held.append(flattenTensorStructure(batch))
        if len(held) == num_batches_to_combine:
            yield reconstructTensorStructure(batch, _joined(held))
            held = []
    if held and not drop_last:
        yield reconstructTensorStructure(batch, _joined(held))


_MANY = inspect.Parameter.VAR_POSITIONAL
_NAMED = inspect.Parameter.VAR_KEYWORD


@dataclass
class Args:
    """One call's arguments: `args` by position, named by `arg_names`, and `kwargs` that only go by name."""

    args: list[Any] = field(default_factory=list)
    arg_names: list[str] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)

    def append(self, value: Any, name: str) -> None:
        self.args.append(value)
        self.arg_names.append(name)


class ArgsParser:
    """Sorts positional, named and default arguments by the signature of a model or callable."""

    def __init__(self, model: Any):
        self._parameters = _parameters_of(model)
        self._warned_of_strides = False
        self._warned_of_dicts = False

    def __call__(self, args: Any, kwargs: Dict[str, Any], fast_path: bool = False) -> Args:
        self._refuse_unknown(args, kwargs)
        given = Args()
        rest = list(args)
        by_name = False  # behind *args, or a parameter that only goes by name
        for name, parameter in self._parameters.items():
            if parameter.kind == _MANY:
                for index, value in enumerate(rest):
                    given.append(value, f"*{name}[{index}]")
                rest, by_name = [], True
                continue
            if parameter.kind == _NAMED:
                for key in kwargs:
                    if key not in self._parameters or self._parameters[key].kind in (_MANY, _NAMED):
                        given.kwargs[key] = kwargs[key]
                continue
            by_name = by_name or parameter.kind == inspect.Parameter.KEYWORD_ONLY
            value = self._value_of(name, parameter, rest if not by_name else [], kwargs)
            if by_name:
                given.kwargs[name] = value
            else:
                given.append(value, name)
        if not fast_path:
            self._warn_of_dicts([*given.args, *given.kwargs.values()])
        whole = (given.args, given.kwargs)
        tensors = flattenTensorStructure(whole)
        if not all(map(_is_contiguous, tensors)):
            if not self._warned_of_strides:
                logger.warning("an input is not contiguous: it is copied at every call")
            self._warned_of_strides = True
            copies = [tensor if _is_contiguous(tensor) else tensor.contiguous() for tensor in tensors]
            given.args, given.kwargs = reconstructTensorStructure(whole, copies)
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
            raise refuse(f"the argument {name} of forward() is missing.")
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


_CURE = (
    "A compiled model keeps its inputs' number, shapes and types. Make every batch alike (drop_last=True), or wrap the "
    "model anew or destroy() it to compile for the new ones."
)
_INT32 = torch.iinfo(torch.int32)
_TAKEN = {
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
    torch.float16, torch.float32, torch.float64, torch.bfloat16,
}  # fmt: skip
_AS_FLOAT = {torch.float64, torch.bfloat16}


@dataclass(frozen=True)
class _Leaf:
    """What must stay of an argument that is no structure: of a tensor type and shape, of anything else all of it."""

    kind: str
    dtype: torch.dtype | None = None
    shape: list[int] | None = None
    value: Any = None

    @classmethod
    def of(cls, value: Any) -> _Leaf:
        if isinstance(value, torch.Tensor):
            return cls("tensor", value.dtype, list(value.shape))
        is_plain = value is None or isinstance(value, (bool, int, float, str))
        return cls(_type_name(value), value=value if is_plain else repr(value))

    def __str__(self) -> str:
        described = f"{self.dtype} {self.shape}" if self.kind == "tensor" else repr(self.value)
        return f"a tensor {described}" if self.kind == "tensor" else f"{self.kind} {described}"


@dataclass(frozen=True)
class Signature:
    """The arguments of a program, with a description in the place of each tensor and value."""

    names: list[str]
    positional: list[Any]
    named: dict[str, Any]

    @classmethod
    def of(cls, args: Args) -> Signature:
        return cls(list(args.arg_names), *_map_leaves([args.args, args.kwargs], _Leaf.of))

    def check(self, args: Args) -> None:
        """Refuses arguments that differ from these, saying what was expected and what came."""
        if len(args.args) != len(self.positional):
            raise refuse(
                f"Number of positional arguments mismatch: the model was compiled for {len(self.positional)} "
                f"({', '.join(self.names)}) and got {len(args.args)}. {_CURE}"
            )
        for name, expected, value in zip(self.names, self.positional, args.args, strict=True):
            _check(name, expected, value)
        _check_keys("the named arguments", self.named, args.kwargs)
        for name, expected in self.named.items():
            _check(name, expected, args.kwargs[name])

    def flatten(self, args: Args) -> list[torch.Tensor]:
        """The tensors of arguments that were checked, in the order of these: dicts and names may come in another."""
        tensors: list[torch.Tensor] = flattenTensorStructure(
            (args.args, args.kwargs), (self.positional, self.named)
        )
        return tensors


def to_device(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors of a call as an IPU takes them; what it cannot take is refused."""
    return [_to_device(index, tensor) for index, tensor in enumerate(tensors)]


def _to_device(index: int, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype not in _TAKEN or tensor.layout != torch.strided:
        raise refuse(
            f"input {index} is {tensor.dtype} ({tensor.layout}), which PopTorch does not take as an input."
        )
    if not tensor.numel():
        raise refuse(f"Zero-sized tensors are unsupported: input {index} has the shape {list(tensor.shape)}.")
    if tensor.device.type != "cpu":
        raise refuse(
            f"input {index} is on {tensor.device}. Hand over host tensors: PopTorch sends them to the IPU."
        )
    if tensor.dtype == torch.int64 and (int(tensor.max()) > _INT32.max or int(tensor.min()) < _INT32.min):
        raise refuse(
            f"input {index} is torch.int64 and has values from {int(tensor.min())} to {int(tensor.max())}: IPUs compute "
            "with 32-bit integers, and the rest of the bits is lost."
        )
    tensor = tensor.detach()
    return tensor.float() if tensor.dtype in _AS_FLOAT else tensor


def check_kinds(args: Any) -> None:
    """Refuses arrays that are no tensors: they would silently become constants of the program."""
    for name, value in [*zip(args.arg_names, args.args, strict=True), *args.kwargs.items()]:
        if not isinstance(value, torch.Tensor) and hasattr(value, "__array__"):
            raise refuse(f"{name} is a {_type_name(value)}. Inputs are tensors: torch.as_tensor({name}).")


def warn_requires_grad(tensors: Sequence[torch.Tensor]) -> None:
    if any(tensor.requires_grad for tensor in tensors):
        logger.warning(
            "an input has requires_grad=True: it is detached, there is no backward pass into inputs"
        )


def _check(name: str, expected: Any, value: Any) -> None:
    got: Any = value if isinstance(value, (dict, list, tuple)) else _Leaf.of(value)
    if type(expected) is not type(got) or (isinstance(got, _Leaf) and expected.kind != got.kind):
        raise refuse(
            f"Type mismatch for {name}: compiled for {_said(expected)} and got {_said(got)}. {_CURE}"
        )
    if isinstance(got, _Leaf):
        for what, one, other in (
            ("Data type", expected.dtype, got.dtype),
            ("Shape", expected.shape, got.shape),
        ):
            if one != other:
                raise refuse(f"{what} mismatch for {name}: compiled for {one} and got {other}. {_CURE}")
        if expected.value != got.value:
            raise refuse(
                f"Value mismatch for {name}: compiled for {expected.value!r}, which became a constant of the program, and got "
                f"{got.value!r}. {_CURE}"
            )
        return
    if isinstance(got, dict):
        _check_keys(name, expected, got)
    elif len(expected) != len(got):
        raise refuse(
            f"Length mismatch for {name}: compiled for {len(expected)} elements and got {len(got)}. {_CURE}"
        )
    for place in expected if isinstance(got, dict) else range(len(got)):
        _check(f"{name}[{place}]", expected[place], got[place])


def _check_keys(name: str, expected: dict[str, Any], got: dict[str, Any]) -> None:
    extra, missing = sorted(map(str, set(got) - set(expected))), sorted(map(str, set(expected) - set(got)))
    if extra or missing:
        parts = [f"Unexpected arguments: {', '.join(extra)}."] if extra else []
        parts += [f"Missing arguments: {', '.join(missing)}."] if missing else []
        raise refuse(f"Keys mismatch for {name}. {' '.join(parts)} {_CURE}")


def _said(described: Any) -> str:
    is_leaf = isinstance(described, _Leaf)
    return str(described) if is_leaf else f"{_type_name(described)} of {len(described)}"


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
