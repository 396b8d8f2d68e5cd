"""The CPU's optimizer step in C: compiled at first use, because what it may use is known only on the machine itself."""

from portwright.runtime.streaming.native.adam import NativeAdam, default_threads, load_native

__all__ = ["NativeAdam", "default_threads", "load_native"]
