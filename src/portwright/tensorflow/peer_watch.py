"""Detects that another process of a training has died: a collective op would wait for it forever."""

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
_GRACE_SECONDS = 8.0  # in which a training may end by itself
_MAX_MISSES = 3  # failed connections in a row after which a process counts as dead


class ConnectionBroken(UserError):
    """A call between two processes failed."""


_BROKEN = (  # errors of a call to a process that dies during the call
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.InternalError,
    tf.errors.DeadlineExceededError,
    ConnectionBroken,
)


class PeerWatch(AbstractContextManager["PeerWatch"]):
    """Connects to the other processes' ports during a training; once one is dead, a thread calls `on_death` until the training ends."""

    def __init__(self, peers: Sequence[tuple[str, str]], on_death: Callable[[], None]) -> None:
        self._peers, self._on_death = list(peers), on_death
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="portwright-peers", daemon=True)
        self.dead = ""  # name and address of the dead process

    def __enter__(self) -> PeerWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def find_dead(self) -> str:
        """The dead process, if any, after a call has failed; waits until enough connections have failed to tell."""
        deadline = time.monotonic() + 2 * _MAX_MISSES * _PERIOD_SECONDS
        while not self.dead and time.monotonic() < deadline:
            time.sleep(0.1)
        return self.dead

    def _watch(self) -> None:
        misses = dict.fromkeys(self._peers, 0)
        while not self._stopped.wait(_PERIOD_SECONDS):
            for peer in self._peers:
                misses[peer] = 0 if answers(peer[1]) else misses[peer] + 1
                if misses[peer] >= _MAX_MISSES:
                    self.dead = f"{peer[0]} at {peer[1]}"
                    self._wake_training()
                    return

    def _wake_training(self) -> None:
        """Calls `on_death` repeatedly: a training that is just making a new session would wait in that one."""
        deadline = time.monotonic() + _GRACE_SECONDS
        while not self._stopped.is_set():
            # In a thread: closing a session may wait for the very call that it should end.
            threading.Thread(target=self._on_death, daemon=True).start()
            if time.monotonic() > deadline:
                # Before the first step TensorFlow retries a dead chief forever, and only the end of the process stops that.
                sys.stderr.write(f"error: {gone(self.dead)}\n")
                sys.stderr.flush()
                os._exit(int(ExitStatus.USAGE))
            self._stopped.wait(_PERIOD_SECONDS)


@contextmanager
def watching_peers(peers: Sequence[tuple[str, str]], find_session: Callable[[], Any]) -> Iterator[None]:
    """When another process dies, closes the session, so that the block ends with an error that names that process."""

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
    """Whether a process listens at the address."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=2):
            return True
    except OSError:
        return False
