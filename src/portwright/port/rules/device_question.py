from __future__ import annotations

from portwright.port.rule import File, Findings, Rule
from portwright.port.switches import behind, device_questions, split


class DeviceQuestion(Rule):
    """Finds settings that depend on the type of a device: `device.type == "cuda"`, `x.is_cuda`.

    ## Why
    The port's device on the host is the CPU, so that the answer changes, and with it what is set there: workers,
    precision, the size of a batch.

    ## Example
    ```python
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    optimizer = torch.optim.Adam(weights, fused=device.type == "cuda")
    ```

    ## Instead
    ```python
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    optimizer = torch.optim.Adam(weights, fused=torch.cuda.is_available())
    ```

    ## Safety
    Safe where the device was chosen once, by a condition that can be asked here too: the names in it are bound once,
    and it calls nothing but what asks for a device. The setting then follows the machine as before, while the device
    becomes the CPU. Elsewhere unsafe: the question gets the answer that it has on the accelerator, and the settings
    which the accelerator had stay in force. Until then all rewrites of devices in the file are unsafe. Questions
    behind which only devices, pinned memory, switches of CUDA and text stand are not reported.
    """

    code = "PW508"
    needs = ("host_is_cpu",)
    safety = "safe"
    words = ("cuda", "cpu", "mps", "xpu")
    cure = "Write down the settings that are to hold on the target, without the question."

    def find(self, file: File) -> Findings:
        for question in file.once(device_questions):
            condition = split(file, question)
            answer = condition or (None if question.answer is None else str(question.answer))
            yield self.report(
                file,
                question.node,
                f"{file.short(question.node)} decides more than the device: {behind(file, question.node).describe(file)}",
                [file.replace(question.node, answer)] if answer else [],
                safety="safe" if condition else "unsafe",
            )
