from __future__ import annotations

import ast

from portwright.port.rewrite import remove_statement
from portwright.port.rule import File, Findings, Rule
from portwright.port.switches import is_pure


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
    Safe for settings of cuDNN and of CUDA's matmul: they choose kernels on CUDA, the port runs none there, and nothing
    else reads them. The value that is set must call nothing, and the file must not read the setting. Unsafe for
    set_float32_matmul_precision and the choice of attention kernels (torch.backends.cuda.enable_flash_sdp): torch
    follows those on a CPU too, in bfloat16 where the CPU has it.
    """

    code = "PW506"
    needs = ("no_cuda_switches",)
    safety = "safe"
    words = ("cudnn", "allow_tf32", "matmul_precision", "backends.cuda")
    cure = "Leave it out."

    def find(self, file: File) -> Findings:
        for statement in file.tree.all(ast.Assign):
            target = statement.targets[0]
            name = file.resolve(target) or ""
            if (
                name.startswith(("torch.backends.cudnn.", "torch.backends.cuda."))
                and isinstance(target, ast.Attribute)
                and len(statement.targets) == 1
            ):
                is_read = any(
                    isinstance(node.ctx, ast.Load) and file.resolve(node) == name
                    for node in file.attributes(target.attr)
                )
                edits = (
                    [] if is_read or not is_pure(file, statement.value) else remove_statement(file, statement)
                )
                yield self.report(file, statement, f"{name} chooses among CUDA kernels", edits)
        for call in file.calls(
            "torch.set_float32_matmul_precision", "torch.backends.cuda.", "torch.backends.cudnn."
        ):
            found = file.tree.statement_of(call)
            pure = file.tree.stands_alone(call) and all(
                is_pure(file, part) for part in (*call.args, *call.keywords)
            )
            yield self.report(
                file,
                call,
                f"{file.resolve(call.func)} chooses among kernels, a CPU's too",
                remove_statement(file, found) if pure and found is not None else [],
                safety="unsafe",
            )
