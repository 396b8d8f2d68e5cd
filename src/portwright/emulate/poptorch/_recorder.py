"""Records the ops of one step below autograd, once, for all who ask: the program, the table of the IPU, placement and memory.

torch's make_fx records the same ops, but keeps a user's constants by reference and knows neither blocks nor the lines of gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from portwright.emulate.poptorch._logging import logger
from portwright.emulate.poptorch._program import (
    Given,
    Op,
    Ref,
    Value,
    get_random_state,
    set_random_state,
    written_arguments,
)
from portwright.graph.capturing.hosts import tensors_in

if TYPE_CHECKING:
    from portwright.emulate.poptorch._watch import Watch

aten = torch.ops.aten

# Their answers tell of shapes and kinds, never of values.
_OF_METADATA = {
    *("is_same_size", "is_pinned", "is_contiguous", "result_type", "can_cast", "is_set_to", "is_complex"),
    *("_has_same_storage_numel", "_has_compatible_shallow_copy_type"),
}
_UNSET = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}
_QUIET = {torch.ops.prim.device.default} if hasattr(torch.ops.prim, "device") else set()


@dataclass
class Memory:
    """One allocation, which several tensors may be views of."""

    number: int
    weak: StorageWeakRef  # as long as it is held, no other allocation has the same address
    owners: list[Given] = field(default_factory=list)  # none where an op of the step has made it
    is_written: bool = False
    held: Tensor | None = None  # of an owner
    before: torch.UntypedStorage | None = None  # an owner's values before the trace wrote into them


class Memories:
    """The memory behind the tensors of a trace, and who owns it."""

    def __init__(self) -> None:
        self._by_address: dict[int, Memory] = {}
        self._num_copies = 0

    def find(self, tensor: Tensor) -> Memory | None:
        return self._by_address.get(tensor.untyped_storage()._cdata)

    def add(self, tensor: Tensor) -> Memory:
        storage = tensor.untyped_storage()
        memory = Memory(len(self._by_address), StorageWeakRef(storage))
        self._by_address[storage._cdata] = memory
        return memory

    def number(self) -> int:
        """That of memory which no tensor of the trace is in: a copy that only the program makes."""
        self._num_copies += 1
        return -self._num_copies

    def own(self, tensor: Tensor, owner: Given) -> Memory:
        memory = self.find(tensor) or self.add(tensor)
        memory.owners.append(owner)
        memory.held = tensor
        return memory

    def write(self, memory: Memory) -> None:
        """To be called before the write: what an owner has there is kept."""
        memory.is_written = True
        if memory.held is not None and memory.before is None:
            with torch._C._DisableTorchDispatch():
                memory.before = memory.held.untyped_storage().clone()

    def written(self) -> dict[Given, Memory]:
        """The owners whose memory is written."""
        return {
            owner: memory
            for memory in self._by_address.values()
            if memory.is_written
            for owner in memory.owners
        }

    def undo(self) -> None:
        """Gives the owners back what they had."""
        with torch._C._DisableTorchDispatch():
            for memory in self._by_address.values():
                if memory.before is not None and memory.held is not None:
                    memory.held.untyped_storage().copy_(memory.before)


class Recorder(TorchDispatchMode):
    """The ops of what runs inside, and the constants that it used."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.ops: list[Op] = []
        self.constants: dict[str, Tensor] = {}
        self.memories = Memories()
        self.is_backward = False
        self._watch = watch
        self._refs: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._unset: set[int] = set()  # memories that an op allocated without values
        # Leaves that are no weights, and their gradients.
        self._foreign: list[tuple[Tensor, Tensor | None]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler, which takes seconds and has no part in this

    def give(self, tensor: Tensor, ref: Given) -> None:
        """Says that a tensor is a weight or an input of the step."""
        self._refs[tensor] = ref
        self.memories.own(tensor, ref)

    def ref(self, tensor: Tensor) -> Ref:
        found: Ref | None = self._refs.get(tensor)
        return self._take_constant(tensor) if found is None else found

    def undo(self) -> None:
        """Puts back what the step wrote into tensors of others, and gradients of leaves that are no weights."""
        self.memories.undo()
        for leaf, gradient in self._foreign:
            leaf.grad = gradient

    def _refuse(self, what: str, cure: str) -> Exception:
        return self._watch.refuse_here(f"{what}. {cure}")

    def add_copy(self, tensor: Tensor, kwargs: Mapping[str, Any]) -> tuple[Value, int]:
        """Puts a copy of a tensor behind the ops that are recorded; gives it and the number of its memory."""
        number = self.memories.number()
        copy = self._append(
            aten.clone.default, (self.ref(tensor),), kwargs, allocates={number}, reads=self._read([tensor])
        )
        return Value(copy), number

    def record_get_state(self) -> Tensor:
        """In the place of torch.get_rng_state: each run has a state of its own."""
        state = get_random_state()
        with torch._C.DisableTorchFunction():
            self._refs[state] = Value(self._append(get_random_state, (), {}))
            self.memories.add(state)
        return state

    def record_set_state(self, state: Tensor) -> None:
        """In the place of torch.set_rng_state."""
        with torch._C.DisableTorchFunction():
            self._append(set_random_state, (self.ref(state),), {})
        set_random_state(state)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        watch = self._watch
        if watch.is_paused or func in _QUIET:
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunction():  # what we ask of tensors is not for those who watch functions
            if _gives_tensors(func) and _is_composite(func):
                with self:  # reached whole only where autograd is off altogether
                    return func.decompose(*args, **kwargs)
            tensors = tensors_in((*args, *kwargs.values()))
            self._check_kinds(func, tensors)
            is_device = watch.judge(func, args, kwargs, tensors)
            if func is aten.detach.default:  # autograd makes many, and without it they are the tensor itself
                ref = self.ref(args[0])
                result = func(*args, **kwargs)
                self._refs[result] = ref
            elif _gives_tensors(func) or not func._schema.returns:
                result = self._record(func, args, kwargs, tensors)
            elif func._opname in _OF_METADATA or watch.is_readable(tensors):
                return func(*args, **kwargs)
            else:
                raise watch.refuse_read(str(func))
            watch.note(func, args, kwargs, tensors, result, is_device)
            return result

    def _record(self, func: Any, args: Any, kwargs: Any, tensors: Sequence[Tensor]) -> Any:
        changes_shape = torch.Tag.inplace_view in func.tags
        if changes_shape:  # of a handle of its own: others of the same tensor keep their shape
            self._refs[args[0]] = Value(self._append(aten.alias.default, (self.ref(args[0]),), {}))
        read = self._read(tensors)
        written = written_arguments(func, args, kwargs)
        with self._reading_unset(func, tensors, written):
            arguments, named = self._refer(args), self._refer(kwargs)
        writes = [] if changes_shape else self._read(written)
        for memory in writes:
            if len(memory.owners) > 1 and memory.owners[0].kind == "constant":
                raise self._refuse(
                    f"{func} writes into a tensor that shares its memory with another one, and neither is a parameter or buffer",
                    "Register it as a buffer",
                )
            self.memories.write(memory)
        result = func(*args, **kwargs)
        allocates: set[int] = set()
        number = len(self.ops)
        given = {id(tensor) for tensor in tensors}
        for path, tensor in _paths(result):
            self._check_kinds(func, [tensor])
            if id(tensor) in given:
                continue  # an op in place gives its argument again
            self._refs[tensor] = Value(number, path)
            if self.memories.find(tensor) is None:
                memory = self.memories.add(tensor)
                if func._opname in _UNSET:
                    self._unset.add(memory.number)
                allocates.add(memory.number)
        self._append(func, arguments, named, allocates, read, writes)
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
        allocates: set[int] | frozenset[int] = frozenset(),
        reads: Sequence[Memory] = (),
        writes: Sequence[Memory] = (),
    ) -> int:
        self.ops.append(
            Op(
                target,
                args,
                kwargs,
                str(self._watch.place_here() or ""),
                self.is_backward,
                frozenset(allocates),
                frozenset(memory.number for memory in reads),
                frozenset(memory.number for memory in writes),
                lasts=any(memory.owners for memory in writes),
            )
        )
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
            raise self._refuse(
                "random numbers are drawn from a torch.Generator of its own, which an IPU does not have",
                "Leave generator= out; options.randomSeed gives the seed",
            )
        return thing

    def _take_constant(self, tensor: Tensor) -> Ref:
        """Takes in a tensor that no op of the step has made: the values it has now are those of every run."""
        memory = self.memories.find(tensor)
        is_theirs = memory is None or (memory.owners and all(o.kind == "constant" for o in memory.owners))
        if not is_theirs or (memory is not None and memory.is_written):
            raise self._refuse(
                "a tensor of the step comes back by a way that cannot be followed (copy.deepcopy, a storage, NumPy, DLPack)",
                "Keep to functions of torch",
            )
        if self.is_backward and tensor.requires_grad:
            raise self._refuse(
                "the gradients read a parameter behind the forward pass, where it is the host's and not the program's",
                "Use it in forward, and save it there (ctx.save_for_backward)",
            )
        ref = self._keep(tensor)
        self._refs[tensor] = ref
        self.memories.own(tensor, ref)
        if tensor.requires_grad and tensor.is_leaf:
            self._foreign.append((tensor, tensor.grad))
            logger.warning(
                "%s: a parameter of shape %s is none of the model's own: it is a constant of the program, and is not trained",
                self._watch.place_here() or "the model",
                tuple(tensor.shape),
            )
        return ref

    def _check_kinds(self, func: Any, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            has_own_rules = type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__
            if tensor.layout != torch.strided or has_own_rules or tensor.is_quantized:
                kind = type(tensor).__name__ if has_own_rules else f"tensor of layout {tensor.layout}"
                kind = "quantized tensor" if tensor.is_quantized else kind
                raise self._refuse(f"{func} uses a {kind}, which an IPU does not have", "Use a dense tensor")


def _paths(result: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Tensor]]:
    if isinstance(result, Tensor):
        yield path, result
    elif isinstance(result, list | tuple):
        for number, item in enumerate(result):
            yield from _paths(item, (*path, number))


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
