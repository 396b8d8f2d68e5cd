from __future__ import annotations

import ast

from portwright.port.rule import File, Findings, Rule
from portwright.port.switches import shows_text
from portwright.port.tree import FUNCTIONS, last_name


def _is_seldom(file: File, call: ast.Call) -> bool:
    """Whether a call runs only every so many steps, or as the loop ends."""
    if file.flow.is_gated(call):
        return True
    statement = file.tree.statement_of(call)
    block = file.tree.block_of(statement) if statement is not None else []
    region = file.flow.region_of(call)
    if isinstance(region, FUNCTIONS):
        return True  # outside a loop, only the caller decides how often it runs
    if block and block is not getattr(region, "body", None):
        return isinstance(block[-1], (ast.Break, ast.Return, ast.Raise))
    return False


class TextInStep(Rule):
    """Finds text that is printed or logged at each training step.

    ## Why
    Text at each step makes the host, not the device, set the pace; what it shows has to be read back first.

    ## Example
    ```python
    def train(model, loader, criterion, optimizer):
        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            print("loss", loss)
    ```

    ## Instead
    ```python
    def train(model, loader, criterion, optimizer):
        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            if step % 100 == 0:
                print("loss", loss)
    ```

    ## Safety
    Manual. Text under an `if` with a remainder (`step % 100`) is not reported.
    """

    code = "PW205"
    needs = ("no_text_in_step",)
    words = ("print(", "set_postfix", "set_description", "logger", "logging", "warnings")
    cure = "Print every so many steps only."

    def find(self, file: File) -> Findings:
        for call in file.tree.all(ast.Call):
            name = last_name(call.func)
            is_progress = name in ("set_postfix", "set_description", "set_postfix_str")
            if not (call.args or call.keywords) or not (is_progress or shows_text(file, call)):
                continue
            if file.flow.in_training_step(call) and not _is_seldom(file, call):
                yield self.report(file, call, f"text is made at each step: {name}()")
