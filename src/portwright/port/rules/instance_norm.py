from __future__ import annotations

from portwright.port.legal_form import LegalForm


class InstanceNorm(LegalForm):
    """Puts legal forms in the place of instance normalisation.

    ## Why
    Torch computes it as a batch norm without running statistics, which the Cerebras front end does not lower.

    ## Example
    ```python
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.InstanceNorm2d(16)
    ```

    ## Instead
    ```python
    from portwright.layers import legal

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = legal.InstanceNorm2d(16)
    ```

    ## Safety
    Safe: a group norm of one channel a group, with the same parameters and buffers.
    """

    code = "PW324"
    name = "instance-norm"
    words = ("nstanceNorm", "instance_norm")
    reason = "instance norm is not lowered there"
    cure = "Use the form of portwright.layers.legal, which computes the same."
    layers = {
        "torch.nn.InstanceNorm1d": "InstanceNorm1d",
        "torch.nn.InstanceNorm2d": "InstanceNorm2d",
        "torch.nn.InstanceNorm3d": "InstanceNorm3d",
    }
    functions = {"torch.nn.functional.instance_norm": "instance_norm"}


RULE = InstanceNorm()
