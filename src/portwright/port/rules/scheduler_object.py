from __future__ import annotations

from portwright.port.rule import File, Findings, Rule


class SchedulerObject(Rule):
    """Finds learning-rate schedulers of torch.

    ## Why
    They change a number on the host. The compiled step has its own copy, which has to be told.

    ## Example
    ```python
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    ```

    ## Instead
    ```python
    schedule = {"scheduler": "Step", "step_size": 1}  # learning_rate in params.yaml
    ```

    ## Safety
    Manual: how the rate reaches the device differs between targets.
    """

    code = "PW403"
    needs = ("rate_as_schedule",)
    words = ("lr_scheduler",)
    cure = "Give the rate as a schedule, a function of the step, such as the schedule in params.yaml."

    def find(self, file: File) -> Findings:
        for call in file.calls("torch.optim.lr_scheduler."):
            name = (file.resolve(call.func) or "").rpartition(".")[2]
            if name[:1].isupper():
                yield self.report(file, call, f"{name} changes the learning rate on the host")
