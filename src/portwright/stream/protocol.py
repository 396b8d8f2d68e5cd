"""What coordinator and workers say to each other: messages on one gRPC stream a worker, and how both prove that they know the key.

    coordinator                                    worker
    CHALLENGE nonce, proof                 ◀──     opens the stream; name, host, session and its nonce as metadata
                                           ◀──     proof
    WELCOME                                ──▶
    ORDER ticket, body  (a few in flight)  ──▶     DEADLY_ORDER: the same, where a worker has ended at it before
                                           ◀──     BEGUN ticket, of a DEADLY_ORDER
                                           ◀──     BUSY, now and then while an order takes long and gets on
                                           ◀──     RESULT ticket, length, samples, seconds, first bytes; MORE bytes ...
                                           ◀──     FAILED ticket, JSON
    GOODBYE                                ──▶

The key itself is never sent: each side shows an HMAC over both nonces.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from typing import Any, Final

from portwright.errors import UserError

# Read by gRPC when it is loaded or first used. Its fork handlers print a warning at every fork, and processes that are
# forked from ours (a DataLoader's) never use gRPC; its own log is noise beside the notes; compute nodes' names are in
# /etc/hosts or whatever else libc knows, and not always in DNS.
for _name, _value in (
    ("GRPC_ENABLE_FORK_SUPPORT", "0"),
    ("GRPC_VERBOSITY", "NONE"),
    ("GRPC_DNS_RESOLVER", "native"),
):
    os.environ.setdefault(_name, _value)

METHOD: Final = "/portwright.Stream/Work"
PIECE_BYTES: Final = 1 << 20  # of a result a message: the fastest of the sizes tried, see docs/benchmarks.md

CHALLENGE, WELCOME, ORDER, DEADLY_ORDER, GOODBYE = b"C", b"W", b"O", b"D", b"G"
RESULT, MORE, FAILED, BEGUN, BUSY = b"R", b"M", b"F", b"N", b"B"
TICKET: Final = struct.Struct("<cQ")
RESULT_HEAD: Final = struct.Struct("<cQQQd")  # kind, ticket, bytes of the whole, samples, seconds at work
NONCE_BYTES: Final = 32

PING_MS, PING_TIMEOUT_MS = 10_000, 20_000  # a node that is gone without a word is noticed after their sum
COMMON_OPTIONS: Final[tuple[tuple[str, Any], ...]] = (
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", PING_MS),
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),  # newer versions read this one too
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
SERVER_OPTIONS: Final = (
    *COMMON_OPTIONS,
    ("grpc.so_reuseport", 0),  # else a second coordinator on the same port would get half of the workers
    ("grpc.max_receive_message_length", PIECE_BYTES + (1 << 16)),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", PING_MS // 2),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", PING_MS // 2),
)
CLIENT_OPTIONS: Final = (
    *COMMON_OPTIONS,
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),  # the nodes of a job talk to each other, whatever http_proxy says
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


def prove(key: str, side: bytes, worker_nonce: bytes, coordinator_nonce: bytes) -> bytes:
    """What `side` sends to prove that it has the key."""
    return hmac.new(key.encode(), side + worker_nonce + coordinator_nonce, hashlib.sha256).digest()


def is_proof(shown: bytes, key: str, side: bytes, worker_nonce: bytes, coordinator_nonce: bytes) -> bool:
    return hmac.compare_digest(shown, prove(key, side, worker_nonce, coordinator_nonce))


def split_address(address: str) -> tuple[str, int]:
    """Splits host:port; an IPv6 host is in brackets."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UserError(f"The address {address!r} is not host:port.", "Give one such as node-1:23111.")
    return host, int(port)
