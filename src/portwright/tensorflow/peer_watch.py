"""Noticing that another process of a training is gone: a collective op would wait for it without end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any

from portwright.errors import UserError
from portwright.tensorflow.processes import Processes, answers

_PERIOD_SECONDS = 1.0
_MISSES = 3  # in a row, before a process counts as gone


class PeerWatch(AbstractContextManager["PeerWatch"]):
    """Knocks at the other processes' ports while a training waits for them; `on_death` is called in a thread, until the training has ended."""

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
                misses[peer] = 0 if answers(peer[1]) else misses[peer] + 1
                if misses[peer] >= _MISSES:
                    self.dead = f"{peer[0]} at {peer[1]}"
                    while not self._stopped.is_set():  # a session that was being made anew is closed then
                        self._on_death()
                        self._stopped.wait(_PERIOD_SECONDS)
                    return


@contextmanager
def watching_peers(processes: Processes, session: Any) -> Iterator[None]:
    """Ends the block with an error that names the process which is gone."""

    def close() -> None:
        inner = session._tf_sess()
        if inner is not None:
            inner.close()

    with PeerWatch(processes.peers, close) as watch:
        try:
            yield
        except Exception as error:
            if not watch.dead:
                raise
            raise UserError(
                f"{watch.dead} is gone; training stops.",
                "Its own output says why. The same command in every process goes on from the last checkpoint.",
            ) from error
