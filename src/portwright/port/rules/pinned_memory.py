from __future__ import annotations

import ast
from collections.abc import Iterator

from portwright.port.finding import Finding
from portwright.port.rewrite import is_constant, keyword, unwrap
from portwright.port.rule import File, Rule


class PinnedMemory(Rule):
    """Turns off pinned memory in loaders.

    ## Why
    Pinning serves copies to a CUDA device. Elsewhere it costs a thread and memory, and without CUDA torch warns at
    each epoch.

    ## Example
    ```python
    from torch.utils.data import DataLoader

    loader = DataLoader(dataset, batch_size=8, drop_last=True, pin_memory=True)
    ```

    ## Instead
    ```python
    from torch.utils.data import DataLoader

    loader = DataLoader(dataset, batch_size=8, drop_last=True, pin_memory=False)
    ```

    ## Safety
    Safe: where the batches lie in the host's memory does not change them.
    """

    code = "PW102"
    name = "pinned-memory"
    targets = ("csx", "ipu", "rdu")
    safety = "safe"
    words = ("pin_memory",)
    cure = "Set pin_memory=False: pages are pinned for a GPU's copies only."

    def find(self, file: File) -> Iterator[Finding]:
        for call in file.calls("torch.utils.data.DataLoader"):
            given = keyword(call, "pin_memory")
            if given is not None and is_constant(given.value, True):
                yield self.report(
                    file, given.value, "pinned memory serves a GPU only", [file.replace(given.value, "False")]
                )
        for call in file.methods("pin_memory"):
            if not call.args and not call.keywords and isinstance(call.func, ast.Attribute):
                yield self.report(
                    file, call, "pinned memory serves a GPU only", unwrap(file, call, call.func.value)
                )
        # Options gathered first and passed with **: `kwargs = {"num_workers": 1, "pin_memory": True}`.
        for table in file.tree.all(ast.Dict):
            for key, value in zip(table.keys, table.values, strict=True):
                if is_constant(key, "pin_memory") and is_constant(value, True):
                    yield self.report(
                        file, value, "pinned memory serves a GPU only", [file.replace(value, "False")]
                    )


RULE = PinnedMemory()
