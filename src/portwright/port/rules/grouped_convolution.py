from __future__ import annotations

import ast

from portwright.port.finding import Safety
from portwright.port.legal_form import LegalForm, is_grouped
from portwright.port.rewrite import has_star, is_constant, keyword
from portwright.port.rule import File


class GroupedConvolution(LegalForm):
    """Puts legal forms in the place of convolutions that may have several groups.

    ## Why
    The Cerebras front end lowers convolutions of one group only; depthwise ones have as many groups as channels.

    ## Example
    ```python
    class Net(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.depthwise = nn.Conv2d(width, width, 3, groups=width)
    ```

    ## Instead
    ```python
    from portwright.layers import legal

    class Net(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.depthwise = legal.Conv2d(width, width, 3, groups=width)
    ```

    ## Safety
    Safe: one convolution a group, with the same parameters, names and initial values. Unsafe in a
    file that compares types (`type(m) == nn.Conv2d`).
    """

    code = "PW321"
    name = "grouped-convolution"
    words = ("onv2d", "onv3d", "onvTranspose2d", "onvTranspose3d", "conv_transpose")
    reason = "convolutions of several groups are not lowered there"
    cure = "Use the form of portwright.layers.legal, which computes the same."
    layers = {f"torch.nn.{n}": n for n in ("Conv2d", "Conv3d", "ConvTranspose2d", "ConvTranspose3d")}
    functions = {
        f"{module}.{n}": n
        for n in ("conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d")
        for module in ("torch.nn.functional", "torch")
    }

    def needs(self, file: File, name: str, call: ast.Call | None, offset: int) -> bool | str:
        last = name.rpartition(".")[2]
        if call is not None and keyword(call, "groups") is None and has_star(call):
            return any(given.arg is None for given in call.keywords) and _passes_groups_on(file)
        return is_grouped(call, 7 if last.startswith("ConvTranspose") else 6)

    def safety_of(self, file: File, name: str) -> Safety:
        """Code that asks for exactly this class would not know its legal form; those of one group stay what they are."""
        asked = any(
            isinstance(outer, ast.Compare) for use in file.uses(name) for outer in file.tree.ancestors(use)
        )
        return "unsafe" if asked else "safe"


def _passes_groups_on(file: File) -> bool:
    """Whether a block of the file's own is given groups by name: where it hands on all that it is given, they are among it."""
    for call in file.tree.all(ast.Call):
        given = keyword(call, "groups")
        if given is None or is_constant(given.value, 1, None):
            continue
        if not (file.resolve(call.func) or "").startswith(("torch.", "portwright.")):
            return True
    return False


RULE = GroupedConvolution()
