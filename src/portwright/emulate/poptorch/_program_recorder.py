"""Records the ops of one step below autograd, and refuses what would freeze a value of this one run.

torch's make_fx records the same ops, but keeps a user's constants by reference, knows neither blocks nor the lines of gradients,
and lets values out unseen (numpy(), tolist(), x.data = y): a program that never runs Python again must refuse these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from portwright.emulate.poptorch._impl import createPoptorchError
from portwright.emulate.poptorch._logging import logger
from portwright.emulate.poptorch._program_graph import (
    Given,
    Op,
    Ref,
    Value,
    get_random_state,
    set_random_state,
    written_arguments,
)
from portwright.emulate.poptorch._program_memory import Memories, Memory
from portwright.emulate.poptorch._program_source import Source, Sources

aten = torch.ops.aten

# Their answers tell of shapes and kinds, never of values.
_OF_METADATA = {
    *("is_same_size", "is_pinned", "is_contiguous", "result_type", "can_cast", "is_set_to", "is_complex"),
    *("_has_same_storage_numel", "_has_compatible_shallow_copy_type"),
}
# These read sizes out of the values of an argument, and their tags do not say so.
_SIZES_IN_ARGUMENT = {"_pack_padded_sequence": 1, "_pad_packed_sequence": 1}
_OTHER_MEMORY = {"resize_", "resize_as_", "set_", "resize", "_resize_output_"}
_UNSET = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}


class Recorder(TorchDispatchMode):
    """The ops of what runs inside, and the constants that it used."""

    def __init__(self, sources: Sources, tag: Callable[[], Any], is_paused: Callable[[], bool]) -> None:
        super().__init__()
        self.ops: list[Op] = []
        self.constants: dict[str, Tensor] = {}
        self.memories = Memories()
        self.is_backward = False
        self._sources = sources
        self._tag = tag
        self.is_paused = is_paused  # while the host computes something of its own
        self._refs: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._unset: set[int] = set()  # memories that an op allocated without values
        self._foreign: list[
            tuple[Tensor, Tensor | None]
        ] = []  # leaves that are no weights, and their gradients

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler, which takes seconds and has no part in this

    def give(self, tensor: Tensor, ref: Given) -> None:
        """Says that a tensor is a weight or an input of the step."""
        self._refs[tensor] = ref
        self.memories.own(tensor, ref, is_fixed=False)

    def ref(self, tensor: Tensor) -> Ref:
        found: Ref | None = self._refs.get(tensor)
        return self._take_constant(tensor) if found is None else found

    def is_fixed(self, tensor: Tensor) -> bool:
        """Whether the tensor has the same values in every run."""
        with torch._C.DisableTorchFunction():
            memory = self.memories.find(tensor)
        return True if memory is None else memory.is_fixed

    def undo(self) -> None:
        """Puts back what the step wrote into tensors of others, and gradients of leaves that are no weights."""
        self.memories.undo()
        for leaf, gradient in self._foreign:
            leaf.grad = gradient

    def refuse(self, what: str, cure: str) -> Exception:
        line = self._sources.find(self.is_backward).line
        error: Exception = createPoptorchError(f"{line or 'the model'}: {what}. {cure}.")
        return error

    def refuse_value(self, what: str) -> Exception:
        return self.refuse(
            f"{what} reads a value that the step computes, and Python runs once, when the model is compiled: the value of that "
            "one run would be in every later one",
            "Stay in tensors (torch.where, torch.index_select, masks), or return the tensor and look at it outside of the model",
        )

    def add_copy(self, tensor: Tensor, kwargs: Mapping[str, Any]) -> tuple[Value, int]:
        """Puts a copy of a tensor behind the ops that are recorded; gives it and the number of its memory."""
        number = self.memories.number()
        source = self._sources.find(self.is_backward)
        allocates, read = {number: tensor.nbytes}, self._read([tensor])
        copy = self._append(aten.clone.default, (self.ref(tensor),), kwargs, source, allocates, read)
        return Value(copy), number

    def _add_call(self, target: Any, args: tuple[Any, ...] = ()) -> int:
        return self._append(target, args, {}, self._sources.find(self.is_backward))

    def record_get_state(self) -> Tensor:
        """In the place of torch.get_rng_state: each run has a state of its own."""
        state = get_random_state()
        with torch._C.DisableTorchFunction():
            self._refs[state] = Value(self._add_call(get_random_state))
            self.memories.add(state, is_fixed=False)
        return state

    def record_set_state(self, state: Tensor) -> None:
        """In the place of torch.set_rng_state."""
        with torch._C.DisableTorchFunction():
            self._add_call(set_random_state, (self.ref(state),))
        set_random_state(state)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.is_paused():
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunction():  # what we ask of tensors is not for those who watch functions
            tensors = list(tensors_in((args, kwargs)))
            if func is aten.detach.default:  # autograd makes many, and without it they are the tensor itself
                ref = self.ref(args[0])
                result = func(*args, **kwargs)
                self._refs[result] = ref
                return result
            self._check_kinds(func, tensors)
            self._check_sizes(func, args, kwargs, tensors)
            if not _gives_tensors(func):
                return self._answer(func, args, kwargs, tensors)
            if not _is_composite(func):
                return self._record(func, args, kwargs, tensors)
            with self:  # reached whole only where autograd is off altogether
                return func.decompose(*args, **kwargs)

    def _record(self, func: Any, args: Any, kwargs: Any, tensors: Sequence[Tensor]) -> Any:
        source = self._sources.find(self.is_backward)
        changes_shape = torch.Tag.inplace_view in func.tags
        if changes_shape:  # of a handle of its own: others of the same tensor keep their shape
            self._refs[args[0]] = Value(self._append(aten.alias.default, (self.ref(args[0]),), {}, source))
        read = self._read(tensors)
        written = written_arguments(func, args, kwargs)
        with self._reading_unset(func, tensors, written):
            arguments, named = self._refer(args), self._refer(kwargs)
        is_fixed = all(memory.is_fixed for memory in read) and _is_fixed_function(func)
        writes = [] if changes_shape else self._read(written)
        for memory in writes:
            if len(memory.owners) > 1 and memory.owners[0].kind == "constant":
                raise self.refuse(
                    f"{func} writes into a tensor that shares its memory with another one, and neither is a parameter or buffer",
                    "Register it as a buffer",
                )
            self.memories.write(memory, is_fixed=is_fixed)
        result = func(*args, **kwargs)
        allocates: dict[int, int] = {}
        number = len(self.ops)
        given = {id(tensor) for tensor in tensors}
        for path, tensor in _paths(result):
            self._check_kinds(func, [tensor])
            if id(tensor) in given:
                continue  # an op in place gives its argument again
            self._refs[tensor] = Value(number, path)
            if self.memories.find(tensor) is None:
                memory = self.memories.add(tensor, is_fixed=is_fixed)
                if func._opname in _UNSET:
                    self._unset.add(memory.number)
                allocates[memory.number] = min(tensor.nbytes, tensor.untyped_storage().nbytes())
        self._append(func, arguments, named, source, allocates, read, writes)
        if changes_shape:
            self.ops[number] = replace(self.ops[number], lasts=True)  # for its handle, which later ops read
        return result

    @contextmanager
    def _reading_unset(self, func: Any, tensors: Sequence[Tensor], written: Sequence[Any]) -> Iterator[None]:
        """Takes memory that no op has filled for a constant: torch's own code has (lengths given as numbers to ctc_loss)."""
        refs: list[tuple[Tensor, Ref]] = []
        if self._unset and not _is_view(func):
            for tensor in tensors:
                memory = self.memories.find(tensor)
                is_unset = memory is not None and memory.number in self._unset and not memory.is_written
                if is_unset and not any(tensor is other for other in written):
                    refs.append((tensor, self.ref(tensor)))
        for tensor, _ in refs:
            self._refs[tensor] = self._keep(tensor)
        yield
        for tensor, ref in refs:
            self._refs[tensor] = ref

    def _keep(self, tensor: Tensor) -> Given:
        """A constant with the values that a tensor has now."""
        name = f"constant_{len(self.constants)}"
        with torch._C._DisableTorchDispatch():
            self.constants[name] = tensor.detach().resolve_conj().resolve_neg().clone()
        return Given("constant", name)

    def _append(
        self,
        target: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        source: Source,
        allocates: Mapping[int, int] | None = None,
        reads: Sequence[Memory] = (),
        writes: Sequence[Memory] = (),
    ) -> int:
        op = Op(target, args, kwargs, source.line, source.module, self._tag(), self.is_backward)
        numbers = tuple(dict.fromkeys(memory.number for memory in reads))
        written = tuple(dict.fromkeys(memory.number for memory in writes))
        lasts = any(memory.owners for memory in writes)
        self.ops.append(replace(op, allocates=allocates or {}, reads=numbers, writes=written, lasts=lasts))
        return len(self.ops) - 1

    def _read(self, tensors: Sequence[Tensor]) -> list[Memory]:
        return [memory for memory in map(self.memories.find, tensors) if memory is not None]

    def _refer(self, thing: Any) -> Any:
        if isinstance(thing, Tensor):
            return self.ref(thing)
        if isinstance(thing, list | tuple):
            return type(thing)([self._refer(item) for item in thing])
        if isinstance(thing, dict):
            return {key: self._refer(item) for key, item in thing.items()}
        if isinstance(thing, torch.Generator):
            raise self.refuse(
                "random numbers are drawn from a torch.Generator of its own, which an IPU does not have",
                "Leave generator= out; options.randomSeed gives the seed",
            )
        return thing

    def _take_constant(self, tensor: Tensor) -> Ref:
        """Takes in a tensor that no op of the step has made: the values it has now are those of every run."""
        memory = self.memories.find(tensor)
        if memory is not None and (not memory.is_fixed or memory.is_written or not memory.owners):
            raise self.refuse(
                "a tensor of the step comes back by a way that cannot be followed (copy.deepcopy, a storage, NumPy, DLPack)",
                "Keep to functions of torch",
            )
        if self.is_backward and tensor.requires_grad:
            raise self.refuse(
                "the gradients read a parameter behind the forward pass, where it is the host's and not the program's",
                "Use it in forward, and save it there (ctx.save_for_backward)",
            )
        ref = self._keep(tensor)
        self._refs[tensor] = ref
        self.memories.own(tensor, ref, is_fixed=True)
        if tensor.requires_grad and tensor.is_leaf:
            self._foreign.append((tensor, tensor.grad))
            logger.warning(
                "%s: a parameter of shape %s is none of the model's own: it is a constant of the program, and is not trained",
                self._sources.find(self.is_backward).line or "the model",
                tuple(tensor.shape),
            )
        return ref

    def _answer(self, func: Any, args: Any, kwargs: Any, tensors: Sequence[Tensor]) -> Any:
        """An op that gives a Python value, or nothing."""
        if not func._schema.returns:
            return self._record(func, args, kwargs, tensors)
        if func._opname not in _OF_METADATA and not all(map(self.is_fixed, tensors)):
            raise self.refuse_value(_spoken(func))
        return func(*args, **kwargs)

    def _check_kinds(self, func: Any, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            has_own_rules = type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__
            if tensor.layout != torch.strided or has_own_rules or tensor.is_quantized:
                kind = type(tensor).__name__ if has_own_rules else f"tensor of layout {tensor.layout}"
                kind = "quantized tensor" if tensor.is_quantized else kind
                raise self.refuse(f"{func} uses a {kind}, which an IPU does not have", "Use a dense tensor")

    def _check_sizes(self, func: Any, args: Any, kwargs: Any, tensors: Sequence[Tensor]) -> None:
        name = func._opname
        if name in _OTHER_MEMORY and not all(map(self.is_fixed, tensors)):
            raise self.refuse(f"{func} gives a tensor other memory, which an IPU cannot", "Make a new tensor")
        deciding: Sequence[Tensor] = ()
        if name in _SIZES_IN_ARGUMENT:
            deciding = list(tensors_in(args[_SIZES_IN_ARGUMENT[name]]))
        elif torch.Tag.dynamic_output_shape in func.tags:
            deciding = tensors
            if name == "index":
                deciding = [i for i in tensors_in(args[1]) if i.dtype in (torch.bool, torch.uint8)]
            elif _is_size_given(name, args, kwargs):
                deciding = ()
        if not all(map(self.is_fixed, deciding)):
            raise self.refuse(
                f"the size of what {_spoken(func)} gives depends on values that the step computes, and all sizes are fixed when "
                "the model is compiled",
                "Use a mask of fixed size (torch.where, multiplication by the mask) instead",
            )


def tensors_in(thing: Any) -> Iterator[Tensor]:
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, list | tuple):
        for item in thing:
            yield from tensors_in(item)
    elif isinstance(thing, dict):
        for item in thing.values():
            yield from tensors_in(item)


def _paths(result: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Tensor]]:
    if isinstance(result, Tensor):
        yield path, result
    elif isinstance(result, list | tuple):
        for number, item in enumerate(result):
            yield from _paths(item, (*path, number))


def _is_size_given(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    if name == "_ctc_loss":
        return True  # only its own gradient sees the part whose size varies
    if name == "bincount":
        return bool(kwargs.get("minlength") or (len(args) > 2 and args[2]))
    return name == "repeat_interleave" and kwargs.get("output_size") is not None


def _spoken(func: Any) -> str:
    name = {"_local_scalar_dense": "item"}.get(func._opname, func._opname)
    return {
        "item": ".item(), float(), int(), bool(), or an `if`, index or range over a tensor",
        "index": "indexing by a boolean mask",
    }.get(name, str(func))


@cache
def _gives_tensors(func: Any) -> bool:
    return any("Tensor" in str(returned.type) for returned in func._schema.returns)


@cache
def _is_view(func: Any) -> bool:
    return any(returned.alias_info is not None for returned in func._schema.returns)


@cache
def _is_composite(func: Any) -> bool:
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key))


@cache
def _is_fixed_function(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded not in func.tags and func._opname not in _UNSET
