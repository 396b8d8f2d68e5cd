"""A model's step, traced once and then replayed: the user's Python runs while it is compiled, and never again.

Forward and backward are one graph. Gradients of the outputs are inputs of it, since a loss may be computed on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten

from portwright.emulate.sambaflow._refusal import SambaFlowError
from portwright.watching.random_states import untouched_rng

Call = Callable[[dict[str, Tensor], list[Tensor]], Any]
_CPU = torch.device("cpu")


class _OneHotWithoutLooking(TorchFunctionMode):
    """torch's own one_hot looks at the values to check them, and a trace has none to show."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch._C._nn.one_hot:
            input, num_classes = args[0], (*args[1:], kwargs.get("num_classes", -1))[0]
            if num_classes > 0:
                classes = torch.arange(num_classes, device=input.device, dtype=input.dtype)
                return (input.unsqueeze(-1) == classes).to(torch.int64)
        return func(*args, **kwargs)


class TracedStep:
    """The graph of a step for fixed shapes: forward alone, or where it trains forward and backward in one."""

    def __init__(
        self,
        call: Call,
        weights: Mapping[str, Tensor],
        inputs: Sequence[Tensor],
        *,
        trained: Sequence[str],
        graded_inputs: Sequence[int] = (),
        trains: bool,
    ) -> None:
        self._call, self.names = call, list(weights)
        self.trained, self.graded_inputs = list(trained), list(graded_inputs)
        copies = [weights[name].detach().clone() for name in self.names]
        given = [tensor.detach().clone() for tensor in inputs]
        self.differentiable: list[bool] = []
        self.outputs: list[Tensor] = []
        self._trains = trains
        with untouched_rng(_CPU):
            if trains:
                with torch.no_grad():
                    shapes = self._run_model([c.clone() for c in copies], [g.clone() for g in given])
                self._unit_grads = [torch.ones_like(output) for output in shapes]
                with torch.enable_grad(), _OneHotWithoutLooking():
                    self._graph = make_fx(lambda w, i, g: self._forward_and_backward(w, i, g))(
                        copies, given, self._unit_grads
                    )
            else:
                with torch.no_grad(), _OneHotWithoutLooking():
                    self._graph = make_fx(lambda w, i: self._forward_only(w, i))(copies, given)

    def _run_model(self, weights: list[Tensor], inputs: list[Tensor]) -> list[Tensor]:
        flat, _ = tree_flatten(self._call(dict(zip(self.names, weights, strict=True)), inputs))
        outputs = [value for value in flat if isinstance(value, Tensor)]
        if not outputs:
            raise SambaFlowError(
                "the model's forward returns no tensor.", "Return the loss, or (loss, outputs)."
            )
        return outputs

    def _forward_only(self, weights: list[Tensor], inputs: list[Tensor]) -> list[Tensor]:
        self.outputs = self._run_model(weights, inputs)
        return self.outputs

    def _forward_and_backward(
        self, weights: list[Tensor], inputs: list[Tensor], grads: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        trained = set(self.trained)
        weights = [
            tensor.detach().requires_grad_(name in trained)
            for name, tensor in zip(self.names, weights, strict=True)
        ]
        inputs = [
            tensor.detach().requires_grad_(index in self.graded_inputs) for index, tensor in enumerate(inputs)
        ]
        self.outputs = outputs = self._run_model(weights, inputs)
        self.differentiable = [output.requires_grad for output in outputs]
        roots = [output for output in outputs if output.requires_grad]
        if not roots:
            raise SambaFlowError(
                "no output of the model depends on a weight that is trained.",
                "Look for .detach(), torch.no_grad() or requires_grad=False, or compile for inference.",
            )
        wanted = [weights[self.names.index(name)] for name in self.trained]
        wanted += [inputs[index] for index in self.graded_inputs]
        found = torch.autograd.grad(
            roots,
            wanted,
            [grad for grad, output in zip(grads, outputs, strict=True) if output.requires_grad],
            allow_unused=True,
        )
        return [output.detach() for output in outputs], list(found)

    # -- running -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def forward(self, weights: Mapping[str, Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs alone; of a program that trains its gradients are computed too, and dropped."""
        if self._trains:
            return self.train(weights, inputs, self._unit_grads)[0]
        outputs: list[Tensor] = self._graph([weights[name] for name in self.names], list(inputs))
        return [output.clone() for output in outputs]

    @torch.no_grad()
    def train(
        self, weights: Mapping[str, Tensor], inputs: Sequence[Tensor], grads: Sequence[Tensor]
    ) -> tuple[list[Tensor], dict[str, Tensor | None], list[Tensor | None]]:
        """Outputs, gradients of the trained weights, and those of the inputs that wanted one."""
        outputs, found = self._graph([weights[name] for name in self.names], list(inputs), list(grads))
        by_name = dict(zip(self.trained, found[: len(self.trained)], strict=True))
        return [output.clone() for output in outputs], by_name, list(found[len(self.trained) :])

    # -- looking at the graph ------------------------------------------------------------------------------

    def list_ops(self) -> list[str]:
        """Every op with its literal arguments and where its inputs come from: equal lists are equal graphs."""
        graph = self._graph.graph
        numbers = {node: index for index, node in enumerate(graph.nodes)}

        def shown(value: Any) -> str:
            if isinstance(value, fx.Node):
                return f"%{numbers[value]}"
            if isinstance(value, list | tuple):
                return "[" + ", ".join(map(shown, value)) + "]"
            return repr(value)

        lines = []
        for node in graph.nodes:
            options = [f"{key}={shown(value)}" for key, value in node.kwargs.items()]
            target = str(node.target) if node.op == "call_function" else node.op
            lines.append(f"{target}({', '.join([*map(shown, node.args), *options])})")
        return lines

    def sinks(self) -> list[int]:
        """The differentiable outputs that no other output is computed from: the roots of backward, where none is named."""
        (listed,) = next(node for node in self._graph.graph.nodes if node.op == "output").args
        results = [_undetached(node) for node in tree_flatten(listed)[0][: len(self.outputs)]]
        flags = self.differentiable or [True] * len(results)
        behind = [_ancestors(node) for node in results]
        return [
            index
            for index, node in enumerate(results)
            if flags[index]
            and not any(node in behind[other] for other in range(len(results)) if other != index)
        ]


def _undetached(node: fx.Node) -> fx.Node:
    while node.op == "call_function" and node.target in (
        torch.ops.aten.detach.default,
        torch.ops.aten.alias.default,
    ):
        node = node.all_input_nodes[0]
    return node


def _ancestors(node: fx.Node) -> set[fx.Node]:
    seen: set[fx.Node] = set()
    waiting = list(node.all_input_nodes)
    while waiting:
        source = waiting.pop()
        if source not in seen:
            seen.add(source)
            waiting.extend(source.all_input_nodes)
    return seen
