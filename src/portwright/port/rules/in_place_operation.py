from __future__ import annotations

import ast
from collections.abc import Iterator

from portwright.port.finding import Finding
from portwright.port.rewrite import drop_underscore, insert_before
from portwright.port.rule import File, Rule

_KNOWN = frozenset(
    [
        "abs_",
        "add_",
        "addcdiv_",
        "addcmul_",
        "addmm_",
        "bernoulli_",
        "ceil_",
        "clamp_",
        "clamp_max_",
        "clamp_min_",
        "copy_",
        "cos_",
        "cumsum_",
        "div_",
        "dropout_",
        "elu_",
        "erf_",
        "exp_",
        "expm1_",
        "fill_",
        "floor_",
        "gelu_",
        "index_add_",
        "index_copy_",
        "index_fill_",
        "leaky_relu_",
        "lerp_",
        "log_",
        "log1p_",
        "log2_",
        "logical_and_",
        "masked_fill_",
        "masked_scatter_",
        "mul_",
        "neg_",
        "normal_",
        "pow_",
        "put_",
        "reciprocal_",
        "relu_",
        "relu6_",
        "remainder_",
        "round_",
        "rsqrt_",
        "scatter_",
        "scatter_add_",
        "selu_",
        "sigmoid_",
        "sign_",
        "sin_",
        "softmax_",
        "sqrt_",
        "square_",
        "squeeze_",
        "sub_",
        "t_",
        "tanh_",
        "transpose_",
        "tril_",
        "triu_",
        "trunc_",
        "uniform_",
        "unsqueeze_",
        "zero_",
    ]
)
_WITHOUT_PLAIN_FORM = frozenset({"zero_", "fill_", "normal_", "uniform_", "copy_", "bernoulli_", "put_"})


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

    def find(self, file: File) -> Iterator[Finding]:
        for call in [*file.tree.all(ast.Call)]:
            if (
                not isinstance(call.func, ast.Attribute)
                or not (call.func.attr in _KNOWN and call.func.attr not in _WITHOUT_PLAIN_FORM)
                or not file.flow.in_forward(call)
            ):
                continue
            if file.resolve(call.func) is not None or file.flow.kind(call.func.value) not in ("tensor", None):
                continue
            if isinstance(call.func.value, ast.Name) and call.func.value.id in ("self", "cls"):
                continue
            plain = drop_underscore(file, call)
            statement = file.tree.statement_of(call)
            if isinstance(statement, ast.Expr) and statement.value is call:
                receiver = call.func.value
                edits = (
                    [insert_before(file, call, f"{file.segment(receiver)} = "), *plain]
                    if isinstance(receiver, ast.Name)
                    else []
                )
            else:
                edits = plain
            yield self.report(file, call, f"{call.func.attr}() changes a tensor in place", edits)
