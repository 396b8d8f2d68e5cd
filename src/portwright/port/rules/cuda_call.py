from __future__ import annotations

import ast
from collections.abc import Iterator

from portwright.port.devices import is_device_choice
from portwright.port.finding import Edit, Finding
from portwright.port.rewrite import remove_statement
from portwright.port.rule import File, Rule

_IDLE = frozenset(
    [
        "manual_seed",
        "manual_seed_all",
        "seed",
        "seed_all",
        "synchronize",
        "empty_cache",
        "set_device",
        "init",
        "ipc_collect",
        "reset_peak_memory_stats",
        "reset_max_memory_allocated",
    ]
)


def _is_demand(file: File, call: ast.Call) -> bool:
    """Whether a script refuses to run without CUDA: then a person has to decide."""
    statement = file.tree.statement_of(call)
    if isinstance(statement, ast.Assert):
        return True
    if not isinstance(statement, ast.If) or not isinstance(file.tree.parents.get(call), ast.UnaryOp):
        return False
    last = statement.body[-1]
    return isinstance(last, ast.Raise) or (isinstance(last, ast.Expr) and "exit" in file.segment(last))


class CudaCall(Rule):
    """Takes out calls that speak to CUDA: seeds, synchronisation, caches, and questions whether it is there.

    ## Why
    There is no CUDA device on the host of an accelerator. What only prepares one has nothing to prepare.

    ## Example
    ```python
    torch.cuda.manual_seed(1)
    use_cuda = torch.cuda.is_available()
    ```

    ## Instead
    ```python
    use_cuda = False
    ```

    ## Safety
    Safe: seeding, synchronising and emptying caches do nothing without CUDA, and is_available() is False there, so
    the script takes its own way for the CPU. Memory figures,
    events and streams are left to you, and so is a script that refuses to run without CUDA.
    """

    code = "PW501"
    name = "cuda-call"
    targets = ("csx", "ipu", "rdu")
    safety = "safe"
    words = ("torch.cuda", "torch.accelerator", "cuda.")
    cure = {
        "csx": 'Ask the backend instead (cstorch.backend("CSX")), or leave it out.',
        "ipu": "Use poptorch.Options instead, or leave it out.",
        "rdu": "Ask samba.session instead, or leave it out.",
    }

    def find(self, file: File) -> Iterator[Finding]:
        for call in file.calls("torch.cuda.", "torch.accelerator."):
            name = file.resolve(call.func) or ""
            last = name.rpartition(".")[2]
            if ".amp." in name:
                continue
            statement = file.tree.statement_of(call)
            edits: list[Edit] = []
            if last in _IDLE and isinstance(statement, ast.Expr) and statement.value is call:
                edits = remove_statement(file, statement)
            elif last == "is_available":
                if is_device_choice(file, call):
                    continue
                edits = [] if _is_demand(file, call) else [file.replace(call, "False")]
            elif last == "is_bf16_supported" and not call.args:
                edits = [file.replace(call, "False")]
            elif last == "device_count" and isinstance(file.tree.parents.get(call), ast.Compare):
                edits = [file.replace(call, "0")]
            elif last == "current_accelerator" and isinstance(call.func, ast.Attribute):
                torch_name = file.segment(call.func).partition(".")[0]
                edits = [file.replace(call, f'{torch_name}.device("cpu")')] if torch_name == "torch" else []
            yield self.report(file, call, f"{name} speaks to CUDA", edits)


RULE = CudaCall()
