"""Sets the number formats of params.yaml in the SDK."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from portwright.errors import UserError
from portwright.job.params import Params
from portwright.runtime.precision import resolve_precision

_HALF = {"fp16": "float16", "bf16": "bfloat16"}


def choose_precision(cstorch: Any, params: Params, note: Callable[[str], None], *, traces: bool) -> Any:
    """Sets the SDK's half-precision format; gives the autocast for its CPU backend, None where none is needed."""
    values, config = params.values, params.runconfig
    if not traces:
        precision = resolve_precision(values, config.precision, "cpu")
        for line in precision.notes:
            note(line)
        if precision.name == "fp64":
            raise UserError(
                "the Cerebras SDK has no float64.", "Set runconfig.precision to fp32, bf16 or fp16."
            )
        return precision.autocast
    # As for a GPU, where float16 is the usual half format as on the wafer.
    precision = resolve_precision(values, config.precision, "cuda")
    if precision.name == "fp64":
        raise UserError("a CS system has no float64.", "Set runconfig.precision to bf16 or fp16.")
    model = values.get("model")
    half = model.get("fp16_type") if isinstance(model, dict) and config.precision is None else None
    chosen = half or _HALF.get(precision.name)
    if chosen is None:
        note(
            "a CS system computes in mixed precision (float16 with float32 sums and weights); model.fp16_type names another half format."
        )
    else:
        cstorch.amp.set_half_dtype(chosen)
    level = config.precision_opt_level
    if level is not None:
        cstorch.backends.csx.precision.optimization_level = level
    return None
