from __future__ import annotations

from portwright.port.rewrite import is_constant, keyword
from portwright.port.rule import File, Findings, Rule


class SortingInStep(Rule):
    """Finds topk that asks for unsorted results, and for rdu any sorting in a step.

    ## Why
    PopTorch implements topk with sorted results alone; for the RDU no public list of operations names sorting.

    ## Example
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return torch.topk(x, 5, sorted=False).values
    ```

    ## Instead
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return torch.topk(x, 5, sorted=True).values
    ```

    ## Safety
    Unsafe for ipu: the same elements, but in another order than torch gave them on the machine at hand, which code can
    see. For rdu it is left to you.
    """

    code = "PW316"
    needs = ("sorted_topk", "no_sorting")
    safety = "unsafe"
    words = ("topk(", "argsort(", "sort(")
    cure = "Sort on the host, after the step."

    def find(self, file: File) -> Findings:
        for call in file.operations("topk"):
            given = keyword(call, "sorted")
            if given is not None and is_constant(given.value, False) and file.flow.in_step(call):
                edits = [file.replace(given.value, "True")]
                yield self.report(file, call, "topk gives sorted results only", edits, needs=("sorted_topk",))
        for call in [
            *file.calls("torch.topk", "torch.sort", "torch.argsort"),
            *file.methods("topk", "argsort"),
        ]:
            if file.flow.in_step(call):
                message = "sorting is on no public list of this target's operations"
                yield self.report(file, call, message, needs=("no_sorting",))
