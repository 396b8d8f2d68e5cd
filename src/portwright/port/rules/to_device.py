from __future__ import annotations

import ast

from portwright.port.devices import is_device, is_move, self_moves
from portwright.port.places import device_safety, is_idle_move, keeps_original, settle_move
from portwright.port.rewrite import remove_statement
from portwright.port.rule import File, Findings, Rule


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
    Safe for a model and for the batches of a loader: the target places them, and on the host all lies together. Outside
    of a step the port has no other device, so that nothing needs to move. In a step, what the script makes on the host
    goes to the device of a tensor at hand; where none can be seen, the call is left to you. `.to(x.device)` and a device
    that a caller gives are not touched, for they may follow a tensor. A dtype given with it stays. It is left where the
    moved tensor is written in place, for the move made a copy, and in a step where it copies to the CPU. Unsafe where
    the file sets something by the type of a device (PW508 names it), and where one move is left and would still go to
    an accelerator: all are taken away, or none. So it is in files that call each other: one that has to stay holds the others.
    """

    code = "PW504"
    needs = ("placed_by_target",)
    safety = "safe"
    words = (".to(",)
    cure = "Leave placement to the target."

    def find(self, file: File) -> Findings:
        safety = device_safety(file)
        handled: set[ast.AST] = set()
        for statement in file.tree.all(ast.Assign):
            # `x, y = x.to(device), y.to(device)` is removed as a whole.
            calls = self_moves(file, statement)
            if len(calls) > 1 and all(is_idle_move(file, c) for c in calls):
                handled.update(calls)
                edits = remove_statement(file, statement)
                yield self.report(
                    file, statement, "tensors are moved to a device by hand", edits, safety=safety
                )
        for call in file.methods("to"):
            if call in handled or not is_move(file, call):
                continue
            rest = [a for a in call.args if not is_device(file, a)]
            rest_keywords = [k for k in call.keywords if k.arg not in ("device", "non_blocking")]
            kept = ", ".join(file.segment(part) for part in [*rest, *rest_keywords])
            settled = settle_move(file, call, kept)
            if settled is not None:
                is_copy = keeps_original(file, call)
                why = ": only there is it a copy, which is written in place" if is_copy else " by hand"
                message = f"{file.short(call)} moves to a device{why}"
                yield self.report(file, call, message, settled, safety=safety)
