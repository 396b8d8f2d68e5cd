from __future__ import annotations

import ast

from portwright.port.executors import is_guarded
from portwright.port.rule import File, Findings, Rule


def _is_optimizer(file: File, node: ast.expr) -> bool:
    return file.flow.kind(node) == "optimizer" or "opt" in file.segment(node).lower()


class BackwardBesideExecutor(Rule):
    """Finds backward(), step() and zero_grad() in a file that wraps its model with poptorch.trainingModel.

    ## Why
    The executor runs the whole step on the IPU. A backward() on the host has no graph to go through; PopTorch forbids
    it.

    ## Example
    ```python
    import poptorch

    def train(net, loader, opt):
        net = poptorch.trainingModel(net, optimizer=opt)
        for x, y in loader:
            out, loss = net(x, y)
            loss.backward()
            opt.step()
    ```

    ## Instead
    ```python
    import poptorch

    def train(net, loader, opt):
        net = poptorch.trainingModel(net, optimizer=opt)
        for x, y in loader:
            out, loss = net(x, y)
    ```

    ## Safety
    Manual: in a script that also trains without an IPU they belong under a condition.
    """

    code = "PW603"
    needs = ("poptorch_executor",)
    words = ("poptorch",)
    cure = "Leave out backward(), step() and zero_grad(): calling the executor does them."

    def find(self, file: File) -> Findings:
        if not file.calls("poptorch.trainingModel"):
            return
        for call in file.flow.backward_calls:
            if not is_guarded(file, call):
                yield self.report(file, call, "backward() is left in a loop that the executor runs")
        for region in file.flow.step_regions:
            for call in [*file.methods("step"), *file.methods("zero_grad")]:
                if (
                    file.tree.is_within(call, region)
                    and not is_guarded(file, call)
                    and _is_optimizer(file, call.func.value)
                ):
                    yield self.report(
                        file, call, f"{call.func.attr}() is left in a loop that the executor runs"
                    )
