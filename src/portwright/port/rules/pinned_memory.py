from __future__ import annotations

import ast

from portwright.port.places import is_written
from portwright.port.rewrite import is_constant, keyword, unwrap
from portwright.port.rule import File, Findings, Rule


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
    Safe: a pinned batch holds the same values in other pages of the host's memory. Left to you where the file defines a
    `pin_memory` of its own, which may do more, and where a pinned tensor is written in place, for pinning made a copy.
    """

    code = "PW102"
    needs = ("no_pinned_memory",)
    safety = "safe"
    words = ("pin_memory",)
    cure = "Set pin_memory=False: pages are pinned for a GPU's copies only."

    def find(self, file: File) -> Findings:
        is_own = any("pin_memory" in info.methods for info in file.tree.classes.values())
        for call in file.calls("torch.utils.data.DataLoader"):
            given = keyword(call, "pin_memory")
            if given is not None and is_constant(given.value, True):
                edits = [] if is_own else [file.replace(given.value, "False")]
                yield self.report(file, given.value, "pinned memory serves a GPU only", edits)
        for call in file.methods("pin_memory"):
            if not call.args and not call.keywords:
                edits = [] if is_own or is_written(file, call) else unwrap(file, call, call.func.value)
                yield self.report(file, call, "pinned memory serves a GPU only", edits)
        # Options gathered first and passed with **: `kwargs = {"num_workers": 1, "pin_memory": True}`.
        for table in file.tree.all(ast.Dict):
            for key, value in zip(table.keys, table.values, strict=True):
                if is_constant(key, "pin_memory") and is_constant(value, True):
                    edits = [] if is_own else [file.replace(value, "False")]
                    yield self.report(file, value, "pinned memory serves a GPU only", edits)
