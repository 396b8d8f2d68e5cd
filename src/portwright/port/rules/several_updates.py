from __future__ import annotations

import ast

from portwright.port.rule import File, Findings, Rule
from portwright.port.tree import is_method_call


def _is_other(file: File, node: ast.expr) -> bool:
    """Whether a value is a scheduler, scaler, profiler or the like, or was one before a library wrapped it."""
    name = file.segment(node)
    made = [a.value for a in file.tree.all(ast.Assign) if name in [file.segment(t) for t in a.targets]]
    if any(file.flow.kind(each) in ("scheduler", "scaler") for each in (node, *made)):
        return True
    text = name.lower()
    return any(
        word in text for word in ("sched", "scaler", "prof", "warm", "env", "stats", "progress", "bar")
    )


class SeveralUpdates(Rule):
    """Finds training steps with several losses or optimizers.

    ## Why
    A compiled step has one backward pass and one update.

    ## Example
    ```python
    def train(net, critic, loader, opt, opt_critic):
        for x in loader:
            loss_critic = critic(x).mean()
            loss_critic.backward()
            opt_critic.step()
            loss = net(x).mean()
            loss.backward()
            opt.step()
    ```

    ## Instead
    ```python
    def train(net, critic, loader, opt):
        for x in loader:
            loss = net(x).mean() + critic(x).mean()
            loss.backward()
            opt.step()
    ```

    ## Safety
    Manual: whether the losses may be added is a matter of your method.
    """

    code = "PW407"
    needs = ("one_update",)
    words = ("backward(",)
    cure = "Add the losses up to one, or compile a step for each optimizer; the two networks of a GAN become two compiled models that share weights."

    def find(self, file: File) -> Findings:
        for region, calls in file.flow.step_regions.items():
            optimizers = {
                file.segment(node.func.value)
                for node in ast.walk(region)
                if is_method_call(node, "step") and not _is_other(file, node.func.value)
            }
            if len(optimizers) > 1:
                named = ", ".join(sorted(optimizers))
                yield self.report(file, calls[0], f"this step makes {len(optimizers)} updates: {named}")
