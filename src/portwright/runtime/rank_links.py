"""The connections over which the processes of a run hear of each other's end: one from every process to the first."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_CONNECT_SECONDS = 5.0  # for each address at which the first process may be
_WELCOME_SECONDS = 20.0
_SILENT_SECONDS = 180  # without any sign from a host's kernel, before the host counts as gone
_REAPED_SECONDS = 0.5  # to learn how a process has ended: its parent may look first
_LONGEST_LINE = 1 << 16


@dataclass(frozen=True)
class Card:
    """Who a process is; where `place` is equal, pids and loopback addresses mean the same."""

    rank: int
    host: str
    pid: int
    place: str

    def __str__(self) -> str:
        return f"process {self.rank} (host {self.host}, pid {self.pid})"


@dataclass(frozen=True)
class Door:
    """Where the first process listens; the token keeps strangers out."""

    addresses: tuple[str, ...]
    port: int
    token: str


class Link:
    """A connection that carries JSON objects, a line each."""

    def __init__(self, connection: socket.socket, rank: int | None = None) -> None:
        self.connection, self.rank = connection, rank  # None: has not said who it is
        self.has_ended = False  # in an orderly way: it said so
        self._unread = b""
        _keep_alive(connection)

    def send(self, message: Mapping[str, Any]) -> None:
        """What cannot be sent is dropped: reading tells that the other side is gone."""
        with contextlib.suppress(OSError):
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[Any] | None:
        """The messages that have come; None when the connection is closed. An OSError says that the other host is gone."""
        try:
            data = self.connection.recv(_LONGEST_LINE, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return []
        except (ConnectionResetError, BrokenPipeError):
            return None
        if not data:
            return None
        *lines, self._unread = (self._unread + data).split(b"\n")
        if len(self._unread) > _LONGEST_LINE:
            return None
        try:
            return [json.loads(line) for line in lines]
        except ValueError:  # not one of ours
            return None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            # Unread data would make the kernel reset the connection, which may overtake what was sent last.
            self.connection.setblocking(False)
            while self.connection.recv(_LONGEST_LINE):
                pass
        self.connection.close()


def own_card(rank: int) -> Card:
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts = [Path("/proc/sys/kernel/random/boot_id").read_text().strip()]
        parts += [str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("pid", "net")]
    return Card(rank, socket.gethostname(), os.getpid(), " ".join(parts))


def open_door(cards: Sequence[Card], master_address: str | None) -> tuple[socket.socket, Door]:
    """What the first process listens on; only from inside the machine, where all processes are there."""
    if len({card.place for card in cards}) == 1:
        addresses: tuple[str, ...] = ("127.0.0.1",)
        listening = socket.create_server(("127.0.0.1", 0), backlog=len(cards))
    else:
        names = (master_address, cards[0].host, socket.getfqdn())
        addresses = tuple(dict.fromkeys(name for name in names if name))
        try:
            listening = socket.create_server(
                ("::", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=len(cards)
            )
        except (OSError, ValueError):  # no IPv6, or not both with one socket
            listening = socket.create_server(("", 0), backlog=len(cards))
    listening.setblocking(False)
    return listening, Door(addresses, listening.getsockname()[1], secrets.token_hex(16))


def go_through(door: Door, card: Card) -> Link | str:
    """A link to the first process, or why there is none."""
    problems = []
    for address in door.addresses:
        try:
            connection = socket.create_connection((address, door.port), timeout=_CONNECT_SECONDS)
        except OSError as error:
            problems.append(f"{address}:{door.port}: {error.strerror or error}")
            continue
        connection.settimeout(_WELCOME_SECONDS)
        link = Link(connection, rank=0)
        link.send({"kind": "join", "token": door.token, **asdict(card)})
        try:
            answer = connection.recv(len(_WELCOME), socket.MSG_WAITALL)
        except OSError:
            answer = b""
        if answer == _WELCOME:
            connection.setblocking(True)
            return link
        connection.close()
        problems.append(f"{address}:{door.port}: somebody else answers")
    return "; ".join(problems)


_WELCOME = b'{"kind": "welcome"}\n'


def welcome(link: Link, message: Any, token: str) -> bool:
    """Whether a new connection is from one of the run's processes; it is told so."""
    is_ours = isinstance(message, dict) and message.get("kind") == "join" and message.get("token") == token
    if is_ours:
        link.rank = int(message["rank"])
        link.send({"kind": "welcome"})
    return is_ours


def how_it_ended(card: Card, own_place: str) -> str:
    """Signal or exit status of a process that has just ended, in brackets; nothing where that cannot be known."""
    if card.place != own_place:
        return ""
    deadline = time.monotonic() + _REAPED_SECONDS
    while time.monotonic() < deadline:
        try:
            # After the name, which may have brackets of its own; field 3 is the state, field 52 how it ended.
            fields = Path(f"/proc/{card.pid}/stat").read_text().rpartition(")")[2].split()
            state, code = fields[0], int(fields[49])
        except (OSError, ValueError, IndexError):
            return ""
        if code & 0x7F:
            number = code & 0x7F
            names = {int(known): known.name for known in signal.Signals}
            return f" (signal {number}{f', {names[number]}' if number in names else ''})"
        if code or state in "ZX":
            return f" (exit status {code >> 8})"
        time.sleep(0.01)
    return ""


def _keep_alive(connection: socket.socket) -> None:
    """The kernels of both hosts ask each other for signs of life; busy or stopped processes take no part in that."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": _SILENT_SECONDS // 3,
        "TCP_KEEPINTVL": _SILENT_SECONDS // 12,
        "TCP_KEEPCNT": 8,
        "TCP_USER_TIMEOUT": _SILENT_SECONDS * 1000,
        "TCP_NODELAY": 1,
    }
    for name, value in options.items():
        if hasattr(socket, name):  # macOS lacks some
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
