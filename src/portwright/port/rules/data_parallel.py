from __future__ import annotations

from portwright.port.rewrite import unwrap
from portwright.port.rule import File, Findings, Rule


class DataParallel(Rule):
    """Finds torch's data parallelism and process groups; takes off DataParallel and DistributedDataParallel.

    ## Why
    They spread a step over CUDA devices. These targets replicate a compiled step themselves.

    ## Example
    ```python
    model = nn.DataParallel(torch.nn.Linear(2, 2))
    ```

    ## Instead
    ```python
    model = torch.nn.Linear(2, 2)
    ```

    ## Safety
    Unsafe: names in checkpoints lose `module.`, and each process used to see a batch of its own. Files that use
    `.module` are left to you, and so are process groups.
    """

    code = "PW505"
    needs = ("replicated_by_target",)
    safety = "unsafe"
    words = ("DataParallel", "distributed", "DDP", "fsdp", "FullyShard")
    cure = "Leave it out and let the target replicate the step; keep the global batch."

    def find(self, file: File) -> Findings:
        for call in file.calls("torch.nn.parallel.DataParallel", "torch.nn.parallel.DistributedDataParallel"):
            peels = bool(file.attributes("module"))
            edits = unwrap(file, call, call.args[0]) if call.args and not peels else []
            name = (file.resolve(call.func) or "").rpartition(".")[2]
            yield self.report(file, call, f"{name} spreads over CUDA devices", edits)
        for call in file.calls(
            "torch.distributed.init_process_group",
            "torch.distributed.fsdp.FullyShardedDataParallel",
            "torch.multiprocessing.spawn",
        ):
            yield self.report(
                file, call, f"{file.resolve(call.func)} starts or joins processes for CUDA devices"
            )
