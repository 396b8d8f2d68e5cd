"""The TensorBoard command of a run, and the ssh line that brings its page to one's own machine."""

from __future__ import annotations

import getpass
import os
import re
import shlex
import socket
from collections.abc import Callable, Mapping

_FIRST_PORT = 6006  # TensorBoard's own
_NUM_PORTS = 50


def tensorboard_lines(
    model_dir: str,
    *,
    is_local: bool,
    login_host: str | None,
    nodes: str = "",
    environ: Mapping[str, str] = os.environ,
    is_free: Callable[[int], bool] | None = None,
) -> list[tuple[str, str]]:
    """What to type, each with where to type it.

    TensorBoard reads files, so it runs wherever they are seen: here. `nodes` is where a running job is, for a folder that only the node has.
    """
    port = find_port(is_free or port_is_free)
    command = f"tensorboard --logdir {shlex.quote(model_dir)} --port {port}"
    page = f"http://localhost:{port}"
    user = _user(environ)
    if is_local and not environ.get("SSH_CONNECTION"):
        return [(f"here; then open {page}", command)]
    host = login_host or _this_host(environ)
    lines = [
        ("here", command),
        (f"on your own machine; then open {page}", f"ssh -L {port}:localhost:{port} {user}@{host}"),
    ]
    node = first_node(nodes)
    if node and not is_local:
        jump = f"ssh -J {user}@{host} -L {port}:localhost:{port} {user}@{node}"
        lines.append((f"or, with TensorBoard on the job's node {node}", jump))
    return lines


def first_node(nodes: str) -> str:
    """The first of a SLURM node list: sdf-1 of sdf-[1-2], r001 of r[001-003,007],x4; empty where there is none."""
    found = re.match(r"([^\[,\s]+)(?:\[([0-9]+)[^\]]*\]([^,\s]*))?", nodes.strip())
    if found is None or nodes.startswith("("):
        return ""
    return found[1] + (found[2] or "") + (found[3] or "")


def find_port(is_free: Callable[[int], bool]) -> int:
    """TensorBoard's port, or the next one that nobody uses here."""
    for port in range(_FIRST_PORT, _FIRST_PORT + _NUM_PORTS):
        if is_free(port):
            return port
    return _FIRST_PORT


def port_is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("localhost", port))
        except OSError:
            return False
    return True


def _user(environ: Mapping[str, str]) -> str:
    try:
        return environ.get("USER") or getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as in some containers
        return "USER"


def _this_host(environ: Mapping[str, str]) -> str:
    """As it was reached, where this is a session over ssh."""
    parts = environ.get("SSH_CONNECTION", "").split()
    return parts[2] if len(parts) == 4 else socket.gethostname()
