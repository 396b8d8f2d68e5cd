from __future__ import annotations

import ast
from collections.abc import Iterator

from portwright.port.devices import is_cuda, is_device_test, names_device, quote
from portwright.port.finding import Finding
from portwright.port.rewrite import is_constant
from portwright.port.rule import File, Rule


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
    Safe: where something is computed changes, what is computed does not. Comparisons with 'cuda' are not touched.
    """

    code = "PW503"
    name = "cuda-literal"
    targets = ("csx", "ipu", "rdu")
    safety = "safe"
    words = ("cuda",)
    cure = {
        "csx": "Name the host's device, 'cpu'; the backend owns the other.",
        "ipu": "Name the host's device, 'cpu'; the executor owns the other.",
        "rdu": "Name the host's device, 'cpu'; the session owns the other.",
    }

    def find(self, file: File) -> Iterator[Finding]:
        for choice in file.tree.all(ast.IfExp):
            if (
                is_cuda(choice.body)
                and is_constant(choice.orelse, "cpu")
                and is_device_test(file, choice.test)
            ):
                yield self.report(
                    file,
                    choice,
                    "a device is chosen that is not there",
                    [file.replace(choice, quote(file, choice.body, "cpu"))],
                )
        for node in file.tree.all(ast.Constant):
            if is_cuda(node) and names_device(file, node):
                yield self.report(
                    file,
                    node,
                    f"the device {file.segment(node)} is not there",
                    [file.replace(node, quote(file, node, "cpu"))],
                )


RULE = CudaLiteral()
