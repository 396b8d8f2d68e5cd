from __future__ import annotations

from portwright.port.rewrite import is_constant, keyword
from portwright.port.rule import File, Findings, Rule


class CustomGradient(Rule):
    """Finds custom autograd functions, and gradients of gradients.

    ## Why
    Backward passes written in Python are not seen by the targets' tracers. The Cerebras front end takes second
    derivatives; the others are not known to.

    ## Example
    ```python
    class Clip(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clamp(-1, 1)

        @staticmethod
        def backward(ctx, gradient):
            return gradient
    ```

    ## Instead
    ```python
    def clip(x):
        return x + (x.clamp(-1, 1) - x).detach()
    ```

    ## Safety
    Manual: a gradient cannot be rewritten without knowing what it stands for.
    """

    code = "PW318"
    needs = ("traced_gradients", "first_derivatives")
    words = ("autograd", "create_graph")
    cure = "Write the function in differentiable operations."

    def find(self, file: File) -> Findings:
        for info in file.tree.classes.values():
            if "torch.autograd.Function" in file.names.bases_of(info.node):
                yield self.report(file, info.node, f"the gradient of '{info.node.name}' is written in Python")
        for call in file.calls("torch.autograd.grad"):
            yield self.report(file, call, "gradients are taken by hand", needs=("first_derivatives",))
        for call in file.flow.backward_calls:
            given = keyword(call, "create_graph")
            if given is not None and is_constant(given.value, True):
                yield self.report(
                    file, call, "gradients of gradients are taken", needs=("first_derivatives",)
                )
