"""Noticing that another process of a training is gone: a collective op would wait for it without end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType

_PERIOD_SECONDS = 1.0
_MISSES = 3  # in a row, before a process counts as gone


class PeerWatch(AbstractContextManager["PeerWatch"]):
    """Knocks at the other processes' ports while a training waits for them; `on_death` is called once, in a thread."""

    def __init__(self, peers: Sequence[tuple[str, str]], on_death: Callable[[], None]) -> None:
        self._peers, self._on_death = list(peers), on_death
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="portwright-peers", daemon=True)
        self.dead = ""  # name and address of the process that is gone

    def __enter__(self) -> PeerWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        misses = dict.fromkeys(self._peers, 0)
        while not self._stopped.wait(_PERIOD_SECONDS):
            for peer in self._peers:
                misses[peer] = 0 if _answers(peer[1]) else misses[peer] + 1
                if misses[peer] >= _MISSES:
                    self.dead = f"{peer[0]} at {peer[1]}"
                    self._on_death()
                    return


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=2):
            return True
    except OSError:
        return False
