from __future__ import annotations

from portwright.port.places import device_safety, settle_move
from portwright.port.rule import File, Findings, Rule


class CudaMethod(Rule):
    """Takes out .cuda().

    ## Why
    There is no CUDA device on the host of an accelerator.

    ## Example
    ```python
    model = torch.nn.Linear(2, 2)
    model.cuda()
    ```

    ## Instead
    ```python
    model = torch.nn.Linear(2, 2)
    ```

    ## Safety
    Safe for a model and for the batches of a loader: the target places them, and on the host all lies together. Outside
    of a step the port has no other device, so that nothing needs to move. In a step, what the script makes on the host
    goes to the device of a tensor at hand; where none can be seen, the call is left to you. It is also left where the
    moved tensor is written in place, for the move made a copy. Unsafe where the file sets something by the type of a
    device (PW508 names it), and where one move is left and would still go to an accelerator, in files
    that call each other too.
    """

    code = "PW502"
    needs = ("placed_by_target",)
    safety = "safe"
    words = (".cuda(",)
    cure = "Leave placement to the target."

    def find(self, file: File) -> Findings:
        safety = device_safety(file)
        for call in file.methods("cuda"):
            if len(call.args) < 2 and file.flow.kind(call.func.value) != "executor":
                edits = settle_move(file, call) or []
                yield self.report(file, call, ".cuda() needs a CUDA device", edits, safety=safety)
