"""Trace points of Graphcore's profiler, which is not there: as without it in the real package, they do nothing."""

from __future__ import annotations

from typing import Dict

from portwright.emulate.poptorch._refused import accepted

_NO_PROFILER = "the profiler's library (libpvti) is not there; the real package does nothing then, either."


class Channel:
    """A named channel of trace points."""

    @accepted(_NO_PROFILER)
    def __init__(self, name):
        self._name = name

    @accepted(_NO_PROFILER)
    def instrument(self, obj, *methods):
        """Gives the object back as it is."""
        return obj

    @accepted(_NO_PROFILER)
    def tracepoint(self, name):
        """A context that records nothing."""
        return _DummyTracepoint()


class _DummyTracepoint:
    def __enter__(self):
        pass

    def __exit__(self, type, value, traceback):
        pass


class _Channels:
    """The channels by name."""

    _channels: Dict[str, Channel] = {}

    @staticmethod
    def getOrCreate(name):
        return _Channels._channels.setdefault(name, Channel(name))
