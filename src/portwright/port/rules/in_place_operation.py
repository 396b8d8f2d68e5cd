from __future__ import annotations

import ast

from portwright.port.finding import Edit
from portwright.port.rule import File, Findings, Rule
from portwright.port.tree import is_method_call, is_name, words

_KNOWN = words("""abs_ add_ addcdiv_ addcmul_ addmm_ ceil_ clamp_ clamp_max_ clamp_min_ cos_ cumsum_ div_ dropout_ elu_ erf_ exp_ expm1_
    floor_ gelu_ index_add_ index_copy_ index_fill_ leaky_relu_ lerp_ log_ log1p_ log2_ logical_and_ masked_fill_ masked_scatter_
    mul_ neg_ pow_ reciprocal_ relu_ relu6_ remainder_ round_ rsqrt_ scatter_ scatter_add_ selu_ sigmoid_ sign_ sin_ softmax_ sqrt_
    square_ squeeze_ sub_ t_ tanh_ transpose_ tril_ triu_ trunc_ unsqueeze_""")


class InPlaceOperation(Rule):
    """Finds operations in forward() that change a tensor in place.

    ## Why
    Tracers follow values, not memory. A change in place can be lost, or reach another name of the same tensor.

    ## Example
    ```python
    class Net(nn.Module):
        def forward(self, x):
            x.add_(1)
            return x
    ```

    ## Instead
    ```python
    class Net(nn.Module):
        def forward(self, x):
            x = x.add(1)
            return x
    ```

    ## Safety
    Unsafe: another name of the same tensor keeps the old values. Initialisation (`nn.init`, under no_grad, outside of
    forward) is not reported.
    """

    code = "PW301"
    needs = ("no_writes_in_place",)
    safety = "unsafe"
    words = ("_(",)
    cure = "Use the form without the underscore and assign its result."

    def find(self, file: File) -> Findings:
        for call in file.tree.all(ast.Call):
            if not is_method_call(call, *_KNOWN) or not file.flow.in_forward(call):
                continue
            receiver = call.func.value
            if file.resolve(call.func) is not None or file.flow.kind(receiver) not in ("tensor", None):
                continue
            if is_name(receiver, "self") or is_name(receiver, "cls"):
                continue
            (start, _), (_, end) = file.source.span(call), file.source.span(call.func)
            edits = [Edit(end - 1, end, "")]
            if file.tree.stands_alone(call):
                assigned = Edit(start, start, f"{file.segment(receiver)} = ")
                edits = [assigned, *edits] if isinstance(receiver, ast.Name) else []
            yield self.report(file, call, f"{call.func.attr}() changes a tensor in place", edits)
