from __future__ import annotations

import ast
from collections.abc import Iterator

from portwright.port.devices import is_device, is_move, self_moves
from portwright.port.finding import Finding
from portwright.port.host_reads import short
from portwright.port.rewrite import remove_statement, swap_method, unwrap
from portwright.port.rule import File, Rule


class ToDevice(Rule):
    """Takes out .to(device).

    ## Why
    Targets place the model and its batches themselves. In a traced step a move to a host's device is refused.

    ## Example
    ```python
    device = torch.device("cpu")

    def evaluate(model, loader):
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            print(model(x) - y)
    ```

    ## Instead
    ```python
    def evaluate(model, loader):
        for x, y in loader:
            print(model(x) - y)
    ```

    ## Safety
    Safe: it moves tensors and changes none. A dtype given with it stays, and `.to(x.device)`, which follows another
    tensor, is not touched.
    """

    code = "PW504"
    name = "to-device"
    targets = ("csx", "ipu", "rdu")
    safety = "safe"
    words = (".to(",)
    cure = {
        "csx": "Build the model under `with backend.device:` and let the SDK's loader place the batches.",
        "ipu": "Leave placement to the executor that poptorch.trainingModel returns.",
        "rdu": "Leave placement to samba.session.",
    }

    def find(self, file: File) -> Iterator[Finding]:
        handled: set[ast.AST] = set()
        for statement in file.tree.all(ast.Assign):
            # `x, y = x.to(device), y.to(device)` goes as a whole.
            calls = self_moves(file, statement)
            if calls:
                handled.update(calls)
                yield self.report(
                    file,
                    statement,
                    "tensors are moved to a device by hand",
                    remove_statement(file, statement),
                )
        for call in file.methods("to"):
            if call in handled or not is_move(file, call) or not isinstance(call.func, ast.Attribute):
                continue
            rest = [a for a in call.args if not is_device(file, a)]
            rest_keywords = [k for k in call.keywords if k.arg not in ("device", "non_blocking")]
            if rest or rest_keywords:
                kept = ", ".join(file.segment(part) for part in [*rest, *rest_keywords])
                edits = swap_method(file, call, f"to({kept})")
            else:
                edits = unwrap(file, call, call.func.value)
            yield self.report(file, call, f"{short(file, call)} moves to a device by hand", edits)


RULE = ToDevice()
