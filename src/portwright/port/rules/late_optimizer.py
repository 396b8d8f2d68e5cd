from __future__ import annotations

from collections.abc import Iterator

from portwright.port.executors import reaches
from portwright.port.finding import Finding
from portwright.port.rule import File, Rule


class LateOptimizer(Rule):
    """Finds an optimizer that is made after poptorch.trainingModel, and never given to it.

    ## Why
    The optimizer's settings are compiled into the step. One that is made later never reaches the device, whatever its
    schedule says.

    ## Example
    ```python
    import poptorch

    class Trainer:
        def build(self, net, device):
            self.net = poptorch.trainingModel(net, optimizer=torch.optim.SGD(net.parameters(), lr=1e-3))
            self.opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    ```

    ## Instead
    ```python
    import poptorch

    class Trainer:
        def build(self, net, device):
            self.opt = torch.optim.Adam(net.parameters(), lr=1e-2)
            self.net = poptorch.trainingModel(net, optimizer=self.opt)
    ```

    ## Safety
    Manual: which of the two optimizers is meant is yours to say.
    """

    code = "PW602"
    needs = ("poptorch_executor",)
    words = ("poptorch",)
    cure = "Give trainingModel the optimizer that you train with, or call setOptimizer(optimizer) after it is made and after each change."

    def find(self, file: File) -> Iterator[Finding]:
        wraps = file.calls("poptorch.trainingModel")
        if not wraps or file.methods("setOptimizer"):
            return
        for call in [*file.calls("torch.optim."), *file.calls("poptorch.optim.")]:
            name = file.resolve(call.func) or ""
            is_optimizer = "lr_scheduler" not in name and name.rpartition(".")[2][:1].isupper()
            if is_optimizer and not reaches(file, call, wraps):
                message = "this optimizer never reaches the device: trainingModel was given another, or none"
                yield self.report(file, call, message)
