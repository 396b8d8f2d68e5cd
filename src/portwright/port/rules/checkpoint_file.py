from __future__ import annotations

from portwright.port.places import device_safety
from portwright.port.rewrite import has_star, keyword, set_keyword
from portwright.port.rule import File, Findings, Rule


class CheckpointFile(Rule):
    """Loads checkpoints to the CPU, and finds saving in a training step.

    ## Why
    A checkpoint from a GPU asks for that GPU when it is loaded. While a step runs the newest weights are on the
    device, so what torch.save sees may be old.

    ## Example
    ```python
    state = torch.load("model.pt")
    ```

    ## Instead
    ```python
    state = torch.load("model.pt", map_location="cpu")
    ```

    ## Safety
    Safe: loading to the CPU changes no value, and the port has no other device that the tensors would have to meet; a
    load_state_dict copies them to where the model lies. Unsafe where the file sets something by the type of a device
    (PW508 names it), since its devices then stay. Saving inside a training loop is left to you.
    """

    code = "PW507"
    needs = ("checkpoints_by_target",)
    safety = "safe"
    words = ("torch.load", "torch.save", "load(", "save(")
    cure = 'Load with map_location="cpu"; fetch the weights from the device before saving.'

    def find(self, file: File) -> Findings:
        safety = device_safety(file)
        for call in file.calls("torch.load"):
            if has_star(call) or len(call.args) > 1 or keyword(call, "map_location") is not None:
                continue
            edits = set_keyword(file, call, "map_location", '"cpu"')
            yield self.report(
                file, call, "this checkpoint asks for the device it was saved from", edits, safety=safety
            )
        for call in file.calls("torch.save"):
            if file.flow.in_training_step(call):
                yield self.report(file, call, "weights are saved while the device holds the newest ones")
