from __future__ import annotations

import ast

from portwright.port.places import device_safety, named_devices, tensor_at_hand
from portwright.port.rule import File, Findings, Rule


class CudaLiteral(Rule):
    """Replaces the device "cuda" by "cpu".

    ## Why
    What is left to run on the host runs on its CPU; the accelerator is reached through its own API and not by a torch
    device.

    ## Example
    ```python
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ```

    ## Instead
    ```python
    device = torch.device("cpu")
    ```

    ## Safety
    Safe: the port has one device on the host, and what is computed there is what the original computes on its CPU. A
    choice between an accelerator and the CPU becomes the CPU; its condition must call nothing but what asks for a
    device. In a step, `device="cuda"`, or such a choice, becomes the device of a tensor at hand, or is left to you.

    Unsafe where the file sets something by the type of a device (PW508 names it), for the setting would change with
    the device.
    """

    code = "PW503"
    needs = ("host_is_cpu",)
    safety = "safe"
    words = ("cuda", "accelerator", "mps", "xpu")
    cure = "Name the host's device, 'cpu'; the target owns the other."

    def find(self, file: File) -> Findings:
        for node, message, host in named_devices(file):
            device: str | None = host
            parent = file.tree.parents[node]
            if file.flow.in_step(node):
                if isinstance(parent, ast.Call) and file.resolve(parent.func) is None:
                    continue  # a move in a step is PW504's
                if isinstance(parent, ast.keyword) and parent.arg == "device":
                    beside = tensor_at_hand(file, node)
                    in_function = (
                        file.flow.in_forward(node) or file.tree.function_of(node) in file.flow.step_functions
                    )
                    device = f"{beside}.device" if beside else None if in_function else host
            edits = [file.replace(node, device)] if device else []
            yield self.report(file, node, message, edits, safety=device_safety(file))
