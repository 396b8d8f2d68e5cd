from __future__ import annotations

from portwright.port.rule import File, Findings, Rule


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

    A function marked `@cstorch.trace` is such a step for csx, and nothing is found there.

    ## Safety
    Manual here: it changes the structure of the script.
    """

    code = "PW401"
    needs = ("whole_step",)
    words = ("backward(",)
    cure = "Let the target's software run the whole step, or hand model and data to portwright.run()."

    def find(self, file: File) -> Findings:
        for calls in file.flow.step_regions.values():
            call = calls[0]
            decorators = getattr(file.tree.function_of(call), "decorator_list", ())
            given = [file.resolve(each) or "" for each in decorators]
            yield self.report(file, call, "this loop calls backward() itself", given=given)
