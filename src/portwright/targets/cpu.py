"""This machine's processor, through torch; several processes communicate by gloo."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from portwright.extras import why_no_framework
from portwright.needs import TENSORFLOW_2, Answer
from portwright.target import Backend, ExecutionMode, Flag, Hardware, Target

_MODES: tuple[ExecutionMode, ...] = ("resident", "layer_pipelined", "weight_streaming")


def make_backend(flags: Mapping[str, Any], note: Callable[[str], None]) -> Backend:
    from portwright.runtime.backend import TorchBackend

    return TorchBackend("cpu", flags, note)


def hardware() -> Hardware:
    """This machine, as its operating system describes it; weights stream from the memory that a step uses too."""
    from portwright.runtime.streaming.host_memory import read_host_memory

    try:
        memory = read_host_memory().limit_bytes
    except (ValueError, OSError, AttributeError):  # not a POSIX system
        memory = 0
    return Hardware(
        name="this machine's processor",
        memory_bytes=memory,
        modes=_MODES,
        num_cores=os.cpu_count(),
        streaming_bytes=memory or None,
        sources={
            "memory_bytes": "the operating system",
            "num_cores": "the operating system",
            "streaming_bytes": "the operating system",
        },
    )


TARGET = Target(
    name="CPU",
    summary="this machine's processor",
    make_backend=make_backend,
    why_not=why_no_framework,
    flags=(Flag(("-cpu", "--cpu"), "without a target: CPU", is_switch=True, chooses=True),),
    hardware=hardware,
    executions=("resident", "pipelined", "streaming"),
    tensorflow_device="CPU",
    torch_device="cpu",
    device_types=("cpu",),
    needs={
        "tensorflow_2": TENSORFLOW_2,
        "no_float16_training": Answer(
            "refused", "a CPU trains in bfloat16 or float32", "torch's documentation of autocast"
        ),
    },
    aliases=("host", "processor"),
    preference=1,
)
