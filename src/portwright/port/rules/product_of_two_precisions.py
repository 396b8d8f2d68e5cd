from __future__ import annotations

from portwright.port.finding import Edit
from portwright.port.rewrite import keyword, legal_import
from portwright.port.rule import File, Findings, Rule
from portwright.port.rules.einsum import matmul_for
from portwright.port.tree import is_method_call


class ProductOfTwoPrecisions(Rule):
    """Turns bmm into matmul, and einsum of two batched matrices into one that multiplies by matmul.

    ## Why
    The Cerebras backend computes layers in half precision and leaves data and parameters in single precision. matmul brings both
    sides of a product to one precision there; bmm and einsum are refused when they differ.

    ## Example
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return torch.bmm(x, self.turn(x))
    ```

    ## Instead
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return torch.matmul(x, self.turn(x))
    ```

    ## Safety
    Safe: of batches of matrices both are the same product, up to the order of its sums, and legal.einsum lets a size of 1
    stand for any as torch's does. What bmm refuses, such as two sizes of batches, may run. Unsafe where the receiver may be
    something else than a tensor. Other equations of einsum are left as they are.
    """

    code = "PW344"
    needs = ("one_precision_in_products",)
    safety = "safe"
    words = ("bmm", "einsum")
    cure = "Use matmul, or bring both sides to one dtype first."

    def find(self, file: File) -> Findings:
        message = "is refused where its sides differ in precision"
        for call in file.calls("torch.bmm"):
            if not file.flow.in_step(call) or keyword(call, "out") is not None or len(call.args) != 2:
                continue
            edits = []
            if is_method_call(call):
                edits = [file.replace(call.func, f"{file.segment(call.func.value)}.matmul")]
            yield self.report(file, call, f"torch.bmm {message}", edits)
        for call in file.methods("bmm"):
            is_plain = len(call.args) == 1 and not call.keywords
            if not (
                is_plain and file.flow.in_step(call) and file.flow.kind(call.func.value) in ("tensor", None)
            ):
                continue
            _, end = file.source.span(call.func)
            yield self.report(
                file, call, f".bmm {message}", [Edit(end - len("bmm"), end, "matmul")],
                safety="safe" if file.flow.is_tensor(call.func.value) else "unsafe",
            )  # fmt: skip
        for call in file.calls("torch.einsum"):
            if file.flow.in_step(call) and matmul_for(file, call) is not None:
                legal, imports = legal_import(file)
                edits = [file.replace(call.func, f"{legal}.einsum")]
                yield self.report(file, call, f"torch.einsum {message}", edits, imports)
