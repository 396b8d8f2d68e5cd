from __future__ import annotations

from portwright.port.rule import File, Findings, Rule


class VisionLibraryModel(Rule):
    """Finds models taken from torchvision or timm.

    ## Why
    The library's source is outside of your project, so nothing in it can be rewritten, and its version at the site
    decides what runs. Their datasets and transforms run on the host and are fine.

    ## Example
    ```python
    import torchvision.models as models

    model = models.resnet18()
    ```

    ## Instead
    ```python
    from resnet import resnet18

    model = resnet18()
    ```

    ## Safety
    Manual: the file has to be copied, with its licence.
    """

    code = "PW109"
    needs = ("own_sources",)
    words = ("torchvision", "timm")
    cure = "Copy the model's definition into your project (or take one from portwright), so that it can be ported like your own code."

    def find(self, file: File) -> Findings:
        for call in file.calls("torchvision.models.", "timm."):
            name = file.resolve(call.func) or ""
            last = name.rpartition(".")[2]
            is_made = last[:1].isupper() or last == "create_model" or name.startswith("torchvision.")
            if is_made and not last.endswith(("_", "_Weights")):
                yield self.report(file, call, f"the model '{last}' is defined outside of the project")
