from __future__ import annotations

import ast

from portwright.port.legal_form import LegalForm
from portwright.port.rewrite import argument, const
from portwright.port.rule import File


class ReflectingPad(LegalForm):
    """Puts legal forms in the place of reflection and replication padding.

    ## Why
    The Cerebras front end has no backward pass of it; padding with a constant it takes.

    ## Example
    ```python
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.pad = nn.ReflectionPad2d(1)
    ```

    ## Instead
    ```python
    from portwright.layers import legal

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.pad = legal.ReflectionPad2d(1)
    ```

    ## Safety
    Safe: slices put together, the same values in the same places.
    """

    code = "PW329"
    name = "reflecting-pad"
    words = ("ReflectionPad", "ReplicationPad", "pad(")
    reason = "it has no backward pass there"
    cure = "Use the form of portwright.layers.legal, which computes the same."
    layers = {
        "torch.nn.ReflectionPad1d": "ReflectionPad1d",
        "torch.nn.ReflectionPad2d": "ReflectionPad2d",
        "torch.nn.ReflectionPad3d": "ReflectionPad3d",
        "torch.nn.ReplicationPad1d": "ReplicationPad1d",
        "torch.nn.ReplicationPad2d": "ReplicationPad2d",
        "torch.nn.ReplicationPad3d": "ReplicationPad3d",
    }
    functions = {"torch.nn.functional.pad": "pad"}

    def needs(self, file: File, name: str, call: ast.Call | None, offset: int) -> bool | str:
        if not name.endswith(".pad"):
            return True
        mode = argument(call, 2, "mode") if call is not None else None
        return const(mode) in ("reflect", "replicate")


RULE = ReflectingPad()
