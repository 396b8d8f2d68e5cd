from __future__ import annotations

from portwright.port.rule import File, Findings, Rule


class SamplingInStep(Rule):
    """Finds draws from a distribution over classes in a model or step.

    ## Why
    multinomial is not lowered for these targets, and what it draws is needed on the host to go on.

    ## Example
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return torch.multinomial(F.softmax(x, dim=-1), 1)
    ```

    ## Instead
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return F.softmax(x, dim=-1)
    ```

    ## Safety
    Manual: the draw moves to whoever calls the model. Methods that only generate text on the host are not reported.
    """

    code = "PW209"
    needs = ("no_draws_in_step",)
    words = ("multinomial", "Categorical")
    cure = "Return the probabilities and sample on the host."

    def find(self, file: File) -> Findings:
        for call in file.operations("multinomial"):
            if file.flow.in_step(call):
                yield self.report(file, call, "classes are drawn in the step")
