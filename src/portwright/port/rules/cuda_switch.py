from __future__ import annotations

import ast
from collections.abc import Iterator

from portwright.port.finding import Finding
from portwright.port.rewrite import remove_statement
from portwright.port.rule import File, Rule


class CudaSwitch(Rule):
    """Takes out switches of cuDNN and TF32.

    ## Why
    They choose among CUDA kernels, which nothing else has.

    ## Example
    ```python
    torch.backends.cudnn.benchmark = True
    print(torch.__version__)
    ```

    ## Instead
    ```python
    print(torch.__version__)
    ```

    ## Safety
    Safe: without CUDA they do nothing.
    """

    code = "PW506"
    name = "cuda-switch"
    targets = ("csx", "ipu", "rdu")
    safety = "safe"
    words = ("cudnn", "allow_tf32", "matmul_precision", "backends.cuda")
    cure = "Leave it out."

    def find(self, file: File) -> Iterator[Finding]:
        for statement in file.tree.all(ast.Assign):
            name = file.resolve(statement.targets[0]) or ""
            if (
                name.startswith(("torch.backends.cudnn.", "torch.backends.cuda."))
                and len(statement.targets) == 1
            ):
                yield self.report(
                    file, statement, f"{name} chooses among CUDA kernels", remove_statement(file, statement)
                )
        for call in file.calls(
            "torch.set_float32_matmul_precision", "torch.backends.cuda.", "torch.backends.cudnn."
        ):
            found = file.tree.statement_of(call)
            edits = (
                remove_statement(file, found) if isinstance(found, ast.Expr) and found.value is call else []
            )
            yield self.report(file, call, f"{file.resolve(call.func)} chooses among CUDA kernels", edits)


RULE = CudaSwitch()
