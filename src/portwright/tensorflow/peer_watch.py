"""Noticing that another process of a training is gone: a collective op would wait for it without end."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any

import tensorflow as tf

from portwright.errors import ExitStatus, UserError

_PERIOD_SECONDS = 1.0
_GRACE_SECONDS = 8.0  # for a training to end by itself
_MISSES = 3  # in a row, before a process counts as gone


class ConnectionBroken(UserError):
    """A call between two processes failed, whoever is to blame for it."""


_BROKEN = (  # what a call of a process that dies just then ends with
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.InternalError,
    tf.errors.DeadlineExceededError,
    ConnectionBroken,
)


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

    def find_dead(self) -> str:
        """Who is gone, when a call has just failed: to be sure of it takes some knocks."""
        deadline = time.monotonic() + 2 * _MISSES * _PERIOD_SECONDS
        while not self.dead and time.monotonic() < deadline:
            time.sleep(0.1)
        return self.dead

    def _watch(self) -> None:
        misses = dict.fromkeys(self._peers, 0)
        while not self._stopped.wait(_PERIOD_SECONDS):
            for peer in self._peers:
                misses[peer] = 0 if answers(peer[1]) else misses[peer] + 1
                if misses[peer] >= _MISSES:
                    self.dead = f"{peer[0]} at {peer[1]}"
                    self._end()
                    return

    def _end(self) -> None:
        """Gets the training out of its waiting, again and again: a session may just be made anew."""
        deadline = time.monotonic() + _GRACE_SECONDS
        while not self._stopped.is_set():
            # In a thread, as to close a session may wait for the very call that it is to end.
            threading.Thread(target=self._on_death, daemon=True).start()
            if time.monotonic() > deadline:
                # TensorFlow looks for a lost leader without end where a step has not begun, and nothing else ends that.
                sys.stderr.write(f"error: {gone(self.dead)}\n")
                sys.stderr.flush()
                os._exit(int(ExitStatus.USAGE))
            self._stopped.wait(_PERIOD_SECONDS)


@contextmanager
def watching_peers(peers: Sequence[tuple[str, str]], find_session: Callable[[], Any]) -> Iterator[None]:
    """Ends the block with an error that names the process which is gone, by closing the session that waits for it."""

    def close() -> None:
        session = find_session()
        if session is not None:
            session.close()

    with PeerWatch(peers, close) as watch:
        try:
            yield
        except Exception as error:
            if not watch.dead and not (isinstance(error, _BROKEN) and watch.find_dead()):
                raise
            raise gone(watch.dead) from error


def gone(who: str) -> UserError:
    return UserError(
        f"{who} is gone; training stops.",
        "Its own output says why. The same command in every process goes on from the last checkpoint.",
    )


def answers(address: str) -> bool:
    """Whether somebody listens there."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=2):
            return True
    except OSError:
        return False
