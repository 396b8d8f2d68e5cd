"""sambaflow.samba.utils: what scripts are made of."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from portwright.emulate.sambaflow._refusal import SambaFlowError, not_emulated
from portwright.emulate.sambaflow.samba.sambatensor import SambaTensor, to_torch
from portwright.emulate.sambaflow.samba.session import session
from portwright.errors import suggest

trace_multigraph = not_emulated("samba.utils.trace_multigraph")
measure_sections = not_emulated("samba.utils.measure_sections")
create_mac_resource_report = not_emulated("samba.utils.create_mac_resource_report")


class SNType(Enum):
    """The element types that the device knows."""

    FLOAT32 = torch.float32
    BFLOAT16 = torch.bfloat16
    INT64 = torch.int64
    INT32 = torch.int32
    INT16 = torch.int16
    BOOL = torch.bool


def set_seed(seed: int) -> None:
    """Seeds Python's, numpy's and torch's generators."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def get_file_dir(file: str) -> str:
    return str(Path(file).resolve().parent)


def get_rank() -> int:
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def get_world_size() -> int:
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


def is_main_process() -> bool:
    return get_rank() == 0


def parse_dtype(name: str | torch.dtype) -> torch.dtype:
    if isinstance(name, torch.dtype):
        return name
    known = {str(kind.value).removeprefix("torch."): kind.value for kind in SNType} | {
        "bf16": torch.bfloat16,
        "fp32": torch.float32,
    }
    if name not in known:
        raise SambaFlowError(f"unknown type '{name}'.", suggest(name, known))
    found: torch.dtype = known[name]
    return found


def trace_graph(
    model: nn.Module,
    inputs: Any,
    optim: Any = None,
    init_output_grads: bool = True,
    loss_indices: Sequence[Any] | None = None,
    pef: str = "",
    mapping: str = "section",
    data_parallel_mode: str = "normal",
    transfer_device: bool = True,
    config_dict: Mapping[str, Any] | None = None,
) -> tuple[SambaTensor, ...]:
    """Checks that the model is what the PEF was compiled from, moves its weights to the device, and gives its outputs' tensors.

    `config_dict` is how older scripts hand over the PEF.
    """
    if mapping != "section":
        raise SambaFlowError(
            f"mapping='{mapping}' is not emulated by Portwright: sections alone are.",
            "Leave it at 'section'.",
        )
    if data_parallel_mode != "normal":
        raise SambaFlowError(
            f"data_parallel_mode='{data_parallel_mode}' is not emulated by Portwright: one process is one RDU here.",
            "Leave it at 'normal'.",
        )
    return session._trace(
        model,
        inputs,
        optim,
        pef=pef or str((config_dict or {}).get("pef") or ""),
        init_output_grads=init_output_grads,
        loss_indices=loss_indices,
    )


def init_output_grads(
    output_tensors: Sequence[SambaTensor],
    unspecified_tensor_grad: Sequence[str] = (),
    customized_tensors_dict: Mapping[str, Tensor] | None = None,
    is_variable_batch_size: bool = False,
) -> None:
    """Sets where backward starts: the gradients given by name, ones for those named without."""
    if is_variable_batch_size:
        raise SambaFlowError(
            "is_variable_batch_size=True is not emulated by Portwright.", "Compile for one size."
        )
    given = customized_tensors_dict or {}
    names = [tensor.sn_name for tensor in output_tensors]
    for name in [*unspecified_tensor_grad, *given]:
        if name not in names:
            raise SambaFlowError(f"no output is named '{name}'.", suggest(name, [str(n) for n in names]))
    for tensor in output_tensors:
        if tensor.sn_name in given:
            tensor.sn_grad = to_torch(given[str(tensor.sn_name)])
        elif tensor.sn_name in unspecified_tensor_grad:
            tensor.sn_grad = torch.ones_like(to_torch(tensor))


def assert_close(
    first: Tensor,
    second: Tensor,
    name: str = "",
    threshold: float = 1e-3,
    visualize: bool = False,
    **options: Any,
) -> None:
    """Fails where two tensors differ by more than `threshold` anywhere."""
    one, other = to_torch(first).detach().float(), to_torch(second).detach().float()
    if one.shape != other.shape:
        raise AssertionError(f"{name}: shapes {list(one.shape)} and {list(other.shape)}")
    largest = float((one - other).abs().max()) if one.numel() else 0.0
    if not largest <= threshold:
        raise AssertionError(f"{name}: the largest difference is {largest:.6g}, more than {threshold:.6g}")


def measure_performance(
    model: nn.Module,
    inputs: Any,
    batch_size: int | None = None,
    n_chips: int | None = None,
    inference: bool = False,
    run_graph_only: bool = False,
    n_iterations: int = 100,
    **options: Any,
) -> None:
    """Runs the program so often; it says nothing about speed, since none of an RDU's was seen."""
    for _ in range(n_iterations):
        session.run(inputs)
    print(
        f"emulated: {n_iterations} iteration(s) were run on this machine's CPU; their times say nothing about an RDU."
    )
