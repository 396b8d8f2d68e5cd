"""The frozen program of a step: traced once, replayed at each call without the user's Python, as on an IPU."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from portwright.emulate.poptorch import _program_file
from portwright.emulate.poptorch._impl import createPoptorchError
from portwright.emulate.poptorch._partials import choose_target
from portwright.emulate.poptorch._program_code import Forward, Observe, build
from portwright.emulate.poptorch._program_failure import explain
from portwright.emulate.poptorch._program_graph import Given, Layout, Op, Parts, ProgramNode
from portwright.emulate.poptorch._program_structure import rebuild
from portwright.emulate.poptorch._program_trace import trace


class Program:
    """One step of a model: outputs, and when it trains the gradients of its loss, from weights and inputs.

    Made by `trace`, or read by `from_file_parts`. `outputs_structure` is plain data; `rebuild(flat)` gives the model's result.
    `written` are the names of the weights that a run changes in place (running statistics). `tied` says of a weight that is
    the same tensor as an earlier one the name of that one: it is read and changed under that name, and has no gradient of its own.
    """

    def __init__(self, parts: Parts) -> None:
        self.outputs_structure = parts.outputs_structure
        self.training = parts.training
        self.partials = parts.partials
        self.tied = dict(parts.tied)
        self.written = parts.written
        self._parts = parts
        self._needs_offset = any(map(_names_offset, parts.ops))
        self._forward = self._build(None)
        self._observed: tuple[Observe, Forward] | None = None

    @classmethod
    def trace(
        cls,
        call: Callable[[dict[str, Tensor], list[Tensor]], Any],
        weights: Mapping[str, Tensor],
        inputs: Sequence[Tensor],
        *,
        training: bool,
        find_loss: Callable[[Any], Tensor],
        trained: Collection[str],
        tag: Callable[[], Any] | None = None,
        partials: torch.dtype | None = None,
    ) -> Program:
        """Runs `call(weights, inputs)` once, and keeps its ops; weights, inputs and torch's generator are as before afterwards.

        With `training`, the gradient of `find_loss(result)` for the weights in `trained` is part of the program. `tag` is asked
        at each op, of the gradients, too; without it, the block of poptorch (`_placement.current_block`). `partials` is the type
        that products of half tensors are added up in; None leaves it to torch.
        """
        return cls(
            trace(
                call,
                weights,
                inputs,
                training=training,
                find_loss=find_loss,
                trained=trained,
                tag=tag,
                partials=partials,
            )
        )

    def run(
        self, weights: Mapping[str, Tensor], inputs: Sequence[Tensor], observe: Observe | None = None
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        """The tensors of the result, and the gradients by name; a trained weight that the loss does not depend on has none.

        Nothing that is returned shares memory with weights or inputs. Inputs are never changed, weights as `written` says.
        `observe` is shown what each op of the backward pass gives that is no view.
        """
        given = [self._bind(ref, layout, weights, inputs) for ref, layout in self._parts.layouts.items()]
        with ExitStack() as stack:
            if torch.is_inference_mode_enabled():
                stack.enter_context(torch.inference_mode(False))
            # The ops were recorded below autograd; some kernels look at the mode all the same (oneDNN's LSTM keeps its workspace).
            stack.enter_context(torch.set_grad_enabled(self.training))
            stack.enter_context(torch._C._AutoDispatchBelowAutograd())
            if torch.is_autocast_enabled("cpu"):  # its casts are in the program
                stack.enter_context(torch.autocast("cpu", enabled=False))
            try:
                results = self._function(observe)(*given)
            except (IndexError, RuntimeError, FloatingPointError) as error:
                explained = explain(error, self._parts.nodes)
                if explained is error:
                    raise
                raise explained from error
        for ref, tensor in zip(self._parts.layouts, given, strict=True):
            if ref.kind == "weight" and ref.key in self.written and tensor is not weights[ref.key]:
                weights[ref.key].detach().copy_(tensor)  # had other strides than the program's
        num_outputs = len(self._parts.outputs)
        return results[:num_outputs], dict(zip(self._parts.gradients, results[num_outputs:], strict=True))

    def _build(self, observe: Observe | None) -> Forward:
        parts = self._parts
        return build(
            parts.ops,
            list(parts.layouts),
            [*parts.outputs, *parts.gradients.values()],
            lambda target: choose_target(target, parts.partials),
            observe,
            frozenset(
                number
                for number, node in enumerate(parts.nodes)
                if observe is not None and node.is_backward and node.output_bytes
            ),
        )

    def _function(self, observe: Observe | None) -> Forward:
        if observe is None:
            return self._forward
        if self._observed is None or self._observed[0] != observe:
            self._observed = observe, self._build(observe)
        return self._observed[1]

    def rebuild(self, flat: Sequence[Any]) -> Any:
        """The model's result with these in the places of its tensors."""
        return rebuild(self.outputs_structure, flat)

    def nodes(self) -> list[ProgramNode]:
        """Each op in order, with its tag, its source and the memory it takes."""
        return list(self._parts.nodes)

    def to_file_parts(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The program as JSON data, and the tensors that belong to it."""
        return _program_file.write(self._parts)

    @classmethod
    def from_file_parts(cls, data: Any, tensors: Mapping[str, Tensor]) -> Program:
        """The program that `to_file_parts` gave; refuses what it does not know, and runs nothing but ops of torch."""
        parts = _program_file.read(data, tensors)
        try:
            return cls(parts)
        except KeyError as error:
            raise createPoptorchError(
                f"the compiled program uses {error}, which no op of it gives."
            ) from error

    def _bind(
        self, ref: Given, layout: Layout, weights: Mapping[str, Tensor], inputs: Sequence[Tensor]
    ) -> Tensor:
        if ref.kind == "constant":
            return self._parts.constants[ref.key]
        try:
            tensor = weights[ref.key] if ref.kind == "weight" else inputs[int(ref.key)]
        except (KeyError, IndexError):
            there = f"{len(inputs)} inputs" if ref.kind == "input" else f"{len(weights)} weights"
            raise createPoptorchError(
                f"the {ref.kind} {ref.key} of the compiled program is missing from the {there} given to it."
            ) from None
        if tensor.shape != layout.shape or tensor.dtype != layout.dtype:
            raise createPoptorchError(
                f"the {ref.kind} {ref.key} is a {tensor.dtype} of shape {tuple(tensor.shape)}, and the program was compiled for "
                f"a {layout.dtype} of shape {layout.shape}: shapes are fixed when the model is compiled."
            )
        if tensor.stride() == layout.stride and (
            not self._needs_offset or tensor.storage_offset() == layout.offset
        ):
            return tensor
        size = layout.offset + 1 + sum((n - 1) * s for n, s in zip(layout.shape, layout.stride, strict=True))
        memory = torch.empty(size if tensor.numel() else 0, dtype=layout.dtype)
        laid = memory.as_strided(layout.shape, layout.stride, layout.offset if tensor.numel() else 0)
        with torch.no_grad():
            return laid.copy_(tensor)


def _names_offset(op: Op) -> bool:
    """Whether the op names a place in memory by its distance from the beginning, which a view of a larger tensor shifts."""
    return "as_strided" in str(op.target) and (
        len(op.args) > 3 or op.kwargs.get("storage_offset") is not None
    )
