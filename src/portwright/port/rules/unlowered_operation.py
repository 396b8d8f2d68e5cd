from __future__ import annotations

from portwright.port.rule import File, Findings, Rule

_NAMES = """
svd inverse pinverse cholesky cholesky_solve eig symeig qr lu matrix_exp det slogdet logdet complex polar
view_as_complex view_as_real stft istft nn.functional.ctc_loss nn.CTCLoss
"""
_REFUSED = tuple(f"torch.{name}" for name in _NAMES.split())
_SIGNS = "fft svd inverse cholesky linalg ctc CTCLoss complex unique pinverse eig matrix_exp cdouble stft"
_TAKEN = frozenset(
    {"torch.linalg.norm", "torch.linalg.vector_norm", "torch.linalg.cross", "torch.linalg.matmul"}
)


class UnloweredOperation(Rule):
    """Finds operations in a step for which the Cerebras front end has no kernel and no equal form is known.

    ## Why
    The front end was asked with each of them and refused.

    ## Example
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return torch.fft.rfft(x).abs()
    ```

    ## Instead
    ```python
    from portwright.layers import legal

    class Net(nn.Module):
        def forward(self, x):
            return legal.magnitude(*legal.rfft_parts(x))
    ```

    ## Safety
    Manual: real and imaginary parts become two tensors.
    """

    code = "PW315"
    needs = ("known_operations",)
    words = tuple(_SIGNS.split())
    cure = "Compute it on the host before the step, or replace it: legal.rfft_parts, legal.fft_parts and legal.stft_parts do small transforms by fixed matrices."

    def find(self, file: File) -> Findings:
        for call in file.calls("torch.fft.", "torch.linalg.", *_REFUSED):
            name = file.resolve(call.func) or ""
            if name not in _TAKEN and (file.flow.in_step(call) or name.startswith("torch.nn.C")):
                yield self.report(file, call, f"{name} is not lowered there")
