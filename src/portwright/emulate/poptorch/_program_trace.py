"""The one trace of a step: forward and gradients, as a Program."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch.utils._pytree import tree_leaves

from portwright.emulate.poptorch._errors import refuse
from portwright.emulate.poptorch._program import (
    Given,
    Layout,
    Op,
    Program,
    Ref,
    Value,
    get_random_state,
    map_refs,
    prune,
    refs_in,
    set_random_state,
)
from portwright.emulate.poptorch._recorder import Recorder
from portwright.emulate.poptorch._watch import current
from portwright.patched import patched

if TYPE_CHECKING:
    from portwright.emulate.poptorch._watch import Watch

aten = torch.ops.aten


def trace(
    call: Callable[[dict[str, Tensor], list[Tensor]], Any],
    weights: Mapping[str, Tensor],
    inputs: Sequence[Tensor],
    *,
    training: bool,
    find_loss: Callable[[Any], Tensor],
    trained: Collection[str],
) -> Program:
    """Runs `call(weights, inputs)` once, and keeps its ops; weights, inputs and torch's generator are as before afterwards.

    With `training`, the gradient of `find_loss(result)` for the weights in `trained` is part of the program. It is called inside of
    `watching`, whose watch is shown each op.
    """
    unknown = sorted(set(trained) - set(weights))
    if unknown:
        raise refuse(f"{', '.join(unknown)} cannot be trained: no weight of the model has that name.")
    watch = current()
    assert watch is not None, "a model is traced inside of watching()"
    recorder = Recorder(watch)
    tied = _find_tied(weights)
    with torch.inference_mode(False), _restoring(recorder):
        given = _Givens(recorder, weights, inputs, tied, trained if training else ())
        with (
            torch.set_grad_enabled(training),
            _following_random_states(recorder, watch),
            recorder,
        ):
            result = call(given.weights, given.inputs)
            tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
            gradients = {}
            if training and given.leaves:
                loss = find_loss(result)
                recorder.is_backward = True
                gradients = _differentiate(loss, given.leaves)
    with torch._C.DisableTorchFunction():
        return _finish(recorder, given, tensors, gradients, tied, training)


def _finish(
    recorder: Recorder,
    given: _Givens,
    tensors: Sequence[Tensor],
    gradients: Mapping[str, Tensor],
    tied: Mapping[str, str],
    training: bool,
) -> Program:
    taken = _Results(recorder)
    outputs = [taken.take(tensor) for tensor in tensors]
    taken_gradients = {name: taken.take(gradient, given.leaves[name]) for name, gradient in gradients.items()}
    ops, (outputs, taken_gradients) = _protect(recorder, (outputs, taken_gradients))
    ops, (outputs, taken_gradients) = prune(ops, (outputs, taken_gradients), taken.memories)
    used = set(refs_in([(op.args, op.kwargs) for op in ops])) | set(refs_in((outputs, taken_gradients)))
    layouts = {ref: layout for ref, layout in given.layouts.items() if ref in used}
    constants = {name: t for name, t in recorder.constants.items() if Given("constant", name) in used}
    layouts |= {Given("constant", name): Layout.of(tensor) for name, tensor in constants.items()}
    return Program(
        ops=ops,
        layouts=layouts,
        constants=constants,
        outputs=outputs,
        gradients=taken_gradients,
        tied=tied,
        written=frozenset(ref.key for ref in recorder.memories.written() if ref.kind == "weight"),
        training=training,
    )


class _Givens:
    """The weights and inputs as the model gets them: tensors of their own on the same memory."""

    def __init__(
        self,
        recorder: Recorder,
        weights: Mapping[str, Tensor],
        inputs: Sequence[Tensor],
        tied: Mapping[str, str],
        trained: Collection[str],
    ) -> None:
        self.layouts: dict[Given, Layout] = {}
        self.weights: dict[str, Tensor] = {}
        self.inputs: list[Tensor] = []
        self.leaves: dict[str, Tensor] = {}  # those that have gradients, by the first trained name
        self._recorder = recorder
        first_trained = {tied.get(name, name): name for name in reversed(list(weights)) if name in trained}
        for name, tensor in weights.items():
            if name in tied:
                self.weights[name] = self.weights[tied[name]]
                continue
            mine = self._make(tensor, Given("weight", name))
            if name in first_trained:
                if not (mine.is_floating_point() or mine.is_complex()):
                    raise refuse(f"{name} cannot be trained: it is a tensor of {mine.dtype}.")
                self.leaves[first_trained[name]] = mine.requires_grad_()
            self.weights[name] = mine
        for number, tensor in enumerate(inputs):
            self.inputs.append(self._make(_alone(tensor), Given("input", str(number))))

    def _make(self, tensor: Tensor, ref: Given) -> Tensor:
        mine = tensor.clone() if tensor.is_inference() else tensor.detach()
        self._recorder.give(mine, ref)
        self.layouts[ref] = Layout.of(mine)
        return mine


class _Results:
    """What leaves the step: each tensor in memory of its own."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.memories: set[int] = set()  # that of each

    def take(self, tensor: Tensor, like: Tensor | None = None) -> Ref:
        """The ref of an output, or of a gradient of the leaf `like`."""
        ref = self._recorder.ref(tensor)
        memory = self._recorder.memories.find(tensor)
        is_copied = memory is None or bool(memory.owners)
        kwargs: dict[str, Any] = {}
        if like is not None:  # an optimizer may write into it
            is_copied = is_copied or (memory is not None and memory.number in self.memories)
            if like.is_contiguous() and not tensor.is_contiguous():
                is_copied, kwargs = True, {"memory_format": torch.contiguous_format}
        if not is_copied and memory is not None:
            self.memories.add(memory.number)
            return ref
        self._recorder.is_backward = like is not None
        copy, number = self._recorder.add_copy(tensor, kwargs)
        self.memories.add(number)
        return copy


def _find_tied(weights: Mapping[str, Tensor]) -> dict[str, str]:
    first: dict[Any, str] = {}
    tied: dict[str, str] = {}
    for name, tensor in weights.items():
        place = (
            (tensor.untyped_storage()._cdata, tensor.dtype, *Layout.of(tensor))
            if tensor.numel()
            else id(tensor)
        )
        before = first.setdefault(place, name)
        if before != name:
            tied[name] = before
    return tied


def _alone(tensor: Tensor) -> Tensor:
    """The tensor, or a copy where its memory holds more or less than its elements (slices, expanded ones)."""
    if tensor.untyped_storage().nbytes() != tensor.nbytes:
        return tensor.clone()
    step = 1
    for stride, size in sorted(
        (stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1
    ):
        if stride != step:
            return tensor.clone(memory_format=torch.contiguous_format)
        step *= size
    return tensor


def _differentiate(loss: Tensor, leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
    caught: dict[str, list[Tensor]] = {name: [] for name in leaves}
    hooks = [leaf.register_hook(caught[name].append) for name, leaf in leaves.items()]
    try:
        torch.autograd.backward([loss])
    finally:
        for hook in hooks:
            hook.remove()
    found = {}
    for name, leaf in leaves.items():
        if len(caught[name]) == 1:
            found[name] = caught[name][0]
        elif leaf.grad is not None:  # came in parts: torch.utils.checkpoint differentiates on its own
            found[name] = leaf.grad
        leaf.grad = None
    return found


def _protect(recorder: Recorder, results: Any) -> tuple[list[Op], Any]:
    """Has inputs and constants that the step writes into copied first: a run leaves them as they are."""
    changed = {ref: memory for ref, memory in recorder.memories.written().items() if ref.kind != "weight"}
    if not changed:
        return recorder.ops, results
    copies = {ref: Value(number) for number, ref in enumerate(changed)}

    def move(ref: Ref) -> Ref:
        return Value(ref.op + len(changed), ref.path) if isinstance(ref, Value) else copies.get(ref, ref)

    first = [
        Op(aten.clone.default, (ref,), {}, allocates=frozenset((m.number,))) for ref, m in changed.items()
    ]
    moved = [
        replace(op, args=map_refs(op.args, move), kwargs=map_refs(op.kwargs, move)) for op in recorder.ops
    ]
    return first + moved, map_refs(results, move)


@contextmanager
def _restoring(recorder: Recorder) -> Iterator[None]:
    """Puts back what a trace changes: torch's generator, weights, inputs and constants."""
    state = get_random_state()
    try:
        yield
    finally:
        set_random_state(state)
        with torch._C.DisableTorchFunction():
            recorder.undo()


class _Kept:
    """torch.utils.checkpoint(use_reentrant=True) that keeps everything."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        return function(*args)


def _keep(*args: Any, **kwargs: Any) -> Iterator[None]:
    """What torch.utils.checkpoint does around a function whose values are kept: nothing."""
    yield


@contextmanager
def _following_random_states(recorder: Recorder, watch: Watch) -> Iterator[None]:
    """Has the states of torch's generator recorded that a model asks for and goes back to, and no part of it run twice."""

    def in_its_place(home: Any, name: str, new: Callable[..., Any]) -> None:
        if hasattr(home, name):  # parts of torch that are not public come and go
            stack.enter_context(patched(home, name, new))

    transformer = importlib.import_module("torch.nn.modules.transformer")
    look = getattr(transformer, "_detect_is_causal_mask", None)

    def detect_is_causal(mask: Any, is_causal: Any = None, size: Any = None) -> bool:
        # Only a hint that lets torch leave the mask out; it compares the mask's values, which may be known at each run only.
        if is_causal is None and isinstance(mask, Tensor) and watch.residence.has(mask):
            return False
        return bool(look(mask, is_causal, size))  # type: ignore[misc]

    with ExitStack() as stack:
        in_its_place(transformer, "_detect_is_causal_mask", detect_is_causal)
        # Recomputation changes no result, and would run the user's Python again behind the forward pass, on the host's weights.
        in_its_place(torch.utils.checkpoint, "CheckpointFunction", _Kept)
        in_its_place(torch.utils.checkpoint, "_checkpoint_without_reentrant_generator", _keep)
        stack.enter_context(patched(torch, "get_rng_state", recorder.record_get_state))
        stack.enter_context(patched(torch, "set_rng_state", recorder.record_set_state))
        yield
