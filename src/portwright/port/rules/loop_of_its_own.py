from __future__ import annotations

from collections.abc import Iterator

from portwright.port.finding import Finding
from portwright.port.rule import File, Rule


class LoopOfItsOwn(Rule):
    """Finds training loops that call backward() themselves.

    ## Why
    These machines run a whole step, update included, as one compiled program. A loop in Python that drives its parts
    has nothing to drive.

    ## Example
    ```python
    def train(model, loader, criterion, optimizer):
        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    ```

    ## Instead
    ```python
    from portwright import run

    run(model_fn, train_data_fn)
    ```

    ## Safety
    Manual here: it changes the structure of the script.
    """

    code = "PW401"
    name = "loop-of-its-own"
    targets = ("csx", "ipu", "rdu")
    safety = "manual"
    words = ("backward(",)
    cure = {
        "csx": "Put forward, backward and step into one function marked @cstorch.trace, or hand model and data to portwright.run().",
        "ipu": "Return the loss from forward, wrap the model with poptorch.trainingModel(model, options, optimizer) and call that; it does backward and step.",
        "rdu": "Return loss and output from forward and call samba.session.run, which does all three.",
    }

    def find(self, file: File) -> Iterator[Finding]:
        for calls in file.flow.step_regions.values():
            call = calls[0]
            yield self.report(file, call, "this loop calls backward() itself")


RULE = LoopOfItsOwn()
