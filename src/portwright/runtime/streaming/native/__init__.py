"""The CPU's optimizer step in C, compiled at first use: what a processor can do is known only on the machine itself."""

from portwright.runtime.streaming.native.adam import (
    NativeAdam,
    default_threads,
    load_native,
    torch_tail,
    usable_cores,
)
from portwright.runtime.streaming.native.bandwidth import Bandwidth, measure_bandwidth

__all__ = [
    "Bandwidth",
    "NativeAdam",
    "default_threads",
    "load_native",
    "measure_bandwidth",
    "torch_tail",
    "usable_cores",
]
