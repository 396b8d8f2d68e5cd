from __future__ import annotations

from portwright.port.rule import File, Findings, Rule
from portwright.port.tree import last_name

_NAMES = (
    "rand",
    "randn",
    "rand_like",
    "randn_like",
    "randint",
    "randint_like",
    "bernoulli",
    "normal",
    "randperm",
)
_MAKERS = [f"torch.{name}" for name in _NAMES]


class RandomInForward(Rule):
    """Finds random numbers drawn in forward(), by torch, numpy or Python.

    ## Why
    Each device draws other numbers from the same seed, so two runs with noise of their own cannot be compared step by
    step. What Python or numpy draws is a plain number: a traced step keeps the first one for ever.

    ## Example
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return x + torch.randn_like(x)
    ```

    ## Instead
    ```python
    class Net(nn.Module):
        def forward(self, x, noise):
            return x + noise
    ```

    ## Safety
    Manual. Plain dropout is not reported; proofs turn it off.
    """

    code = "PW319"
    needs = ("no_draws_in_step",)
    words = ("rand", "bernoulli", "normal(", "Dropout2d", "AlphaDropout")
    cure = "Pass the noise in as an input of the step, seeded on the host, so that a port can be proven equal; keep it on the device once it is."

    def find(self, file: File) -> Findings:
        for call in [*file.calls(*_MAKERS), *file.methods("bernoulli_", "normal_", "uniform_")]:
            if file.flow.in_forward(call):
                yield self.report(file, call, f"{last_name(call.func)}() draws random numbers in forward()")
        for call in file.calls("random.", "numpy.random."):
            if file.flow.in_forward(call):
                message = f"{file.resolve(call.func)}() is drawn in forward(): a traced step keeps one value for ever"
                yield self.report(file, call, message)
