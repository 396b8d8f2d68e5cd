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

_WITHOUT_CUDA = {"is_bf16_supported": "False", "device_count": "0"}  # what they answer where there is no CUDA


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
    events and streams are left to you.
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
                edits = [file.replace(call, "False")]
            elif last in _WITHOUT_CUDA and not call.args:
                edits = [file.replace(call, _WITHOUT_CUDA[last])]
            elif last == "current_accelerator" and isinstance(call.func, ast.Attribute):
                torch_name = file.segment(call.func).partition(".")[0]
                edits = [file.replace(call, f'{torch_name}.device("cpu")')] if torch_name == "torch" else []
            yield self.report(file, call, f"{name} speaks to CUDA", edits)


RULE = CudaCall()
