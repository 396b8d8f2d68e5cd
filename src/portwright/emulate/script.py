"""`portwright emulate`: a script that imports a vendor's package, run as it is with the emulator lent."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from portwright.discover import find_target, find_targets, get_target, suggest_target
from portwright.emulate import CHILD_NOTE, PACKAGES, lend
from portwright.errors import ExitStatus, UserError, suggest

COPIES_VARIABLE = "PORTWRIGHT_POPTORCH_COPIES"
COPIES = ("explicit", "implicit")
_OURS = str(Path(__file__).parents[1])
_MODELS = str(Path(_OURS) / "models")
_CHILDREN = str(Path(__file__).parent / "for_children")


_LOST = {
    "poptorch": "Call what trainingModel() returned; .to(), .cuda() or an assignment may have put the bare model in its place.",
    "sambaflow": "Train with samba.session.run(); calling the model trains on the host.",
}
_NEVER = {
    "poptorch": "Make one with poptorch.trainingModel() or inferenceModel(), and call it.",
    "sambaflow": "Trace the model and call samba.session.run(), or compile it with samba.session.compile().",
}


class _Ended(NamedTuple):
    """How the script ended: its exit status, and the exception that ended it, if one did."""

    status: int
    failure: BaseException | None = None


def emulate_script(
    target: str,
    words: Sequence[str],
    *,
    copies: str | None = None,
    json_path: Path | None = None,
) -> int:
    """Runs `SCRIPT ARGS` or `-m MODULE ARGS`, tells what it made on stderr, and gives the exit status.

    That of the script, or 1 where it ended well but never used an executor, or made one for training that it never
    called: then nothing ran, or nothing was trained, under the vendor's rules, whatever the script printed.
    """
    package = _package_of(target)
    _check(words, package, copies, json_path)
    if copies is not None:
        os.environ[COPIES_VARIABLE] = copies
    # Processes that the script starts anew find the emulator by its name: subprocess asks the environment, and
    # multiprocessing takes this process's path over.
    paths = [_CHILDREN, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    sys.path.insert(0, _CHILDREN)
    with TemporaryDirectory() as folder:
        # Of a process that the script starts only this is seen: whether it made an executor.
        note = os.environ[CHILD_NOTE] = str(Path(folder) / "made")
        return _emulate(package, target, words, json_path, Path(note))


def _emulate(package: str, target: str, words: Sequence[str], json_path: Path | None, note: Path) -> int:
    from portwright.emulate.ledger import LEDGERS

    lend(package)
    title, name = PACKAGES[package], get_target(target).name
    _say(f"emulated: the rules of {title} on this machine's CPU; no {name} is used, and times say nothing.")
    ended = _run(words)
    ledger = LEDGERS[package]
    executors = [made.as_json() for made in ledger.executors]
    status = ended.status
    for executor in executors:
        _say(_describe(executor))
    # A script that failed may not have come to the call.
    all_unused = ledger.unused_executors() if status == 0 else []
    unused = [made for made in all_unused if made.kind == "training"]
    ran = len(all_unused) < len(executors) or (not executors and note.exists())
    if not ran and not unused:
        what = "called none of the executors that it made" if executors else "made no executor"
        line = f"the script {what} of {title}, so nothing ran under its rules."
        if status == 0:
            print(f"error: {line} {_NEVER[package]}", file=sys.stderr)
            status = int(ExitStatus.FINDINGS)
        else:
            _say(line)
    for made in unused:
        print(
            f"error: {made.where}: the training executor of {made.model} was made and never called, so nothing was trained under "
            f"the vendor's rules. {_LOST[package]}",
            file=sys.stderr,
        )
        status = int(ExitStatus.FINDINGS)
    if json_path is not None:
        _write(json_path, package, list(words), status, executors, ledger, ended)
    return status


def _package_of(target: str) -> str:
    found = find_target(target)
    if found is None or found.emulator is None:
        emulated = [t.name.lower() for t in find_targets().values() if t.emulator is not None]
        raise UserError(f"there is no emulator of '{target}'.", suggest_target(target, emulated))
    return found.emulator


def _check(words: Sequence[str], package: str, copies: str | None, json_path: Path | None) -> None:
    if copies is not None and copies not in COPIES:
        raise UserError(f"--copies is '{copies}'.", suggest(copies, COPIES))
    if copies is not None and package != "poptorch":
        raise UserError(f"--copies {copies} is for ipu alone.", "Leave it out.")
    if not words or words == ["-m"]:
        raise UserError("no script is given.", "Write portwright emulate ipu train.py, or -m package.train.")
    if words[0] == "-m":
        return
    path = Path(words[0])
    if path.is_dir() and not (path / "__main__.py").is_file():
        raise UserError(f"'{path}' is a folder without a __main__.py.", "Name the script itself.")
    if not path.exists():
        near = [str(p) for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise UserError(f"there is no script '{path}'.", suggest(str(path), near) if near else "Name a file.")
    if json_path is not None and json_path.is_dir():
        raise UserError(f"--json is '{json_path}', a folder.", "Name a file.")


def _run(words: Sequence[str]) -> _Ended:
    from portwright.job.main_script import run_as_main

    try:
        run_as_main(list(words))
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return _Ended(int(stop.code or 0) & 0xFF)
        print(stop.code, file=sys.stderr)
        return _Ended(1)
    except KeyboardInterrupt as stop:
        return _Ended(int(ExitStatus.INTERRUPTED), stop)
    except BaseException as error:
        with suppress(Exception):
            sys.stdout.flush()
        print_readable(error)
        return _Ended(1, error)
    return _Ended(0)


def print_readable(error: BaseException) -> None:
    """A traceback of the user's own lines: without ours, and without what torch does below them."""
    shown = traceback.TracebackException.from_exception(error)
    _cut(shown, set())
    for line in shown.format():
        sys.stderr.write(line)


def _cut(shown: traceback.TracebackException, seen: set[int]) -> None:
    if id(shown) in seen:
        return
    seen.add(id(shown))
    kept, is_below_ours = [], False
    for frame in shown.stack:
        is_ours = frame.filename.startswith(_OURS) and not frame.filename.startswith(_MODELS)
        is_library = any(frame.filename.startswith(folder) for folder in _library_folders())
        if not is_ours and not (is_library and is_below_ours) and not frame.filename.startswith("<frozen"):
            kept.append(frame)
        # The first frames, of how the script is started, are ours too, and nothing is below them yet.
        is_below_ours |= is_ours and bool(kept)
    # A script that does not parse has no line that ran: what Python shows of it is enough.
    shown.stack[:] = kept if getattr(shown, "msg", None) else kept or shown.stack
    for other in (shown.__cause__, shown.__context__):
        if other is not None:
            _cut(other, seen)


def _library_folders() -> Iterator[str]:
    torch = sys.modules.get("torch")
    if torch is not None and getattr(torch, "__file__", None):
        yield str(Path(str(torch.__file__)).parent)
    yield sysconfig.get_path("stdlib")


def _describe(made: dict[str, Any]) -> str:
    more = []
    if made.get("device_iterations") is not None:
        more.append(_count(made["calls"] * made["device_iterations"], "device iteration"))
    memory = made.get("memory") or {"ipus": []}
    for ipu in memory["ipus"]:
        more.append(
            f"IPU {ipu['ipu']}: {_size(ipu['total'])} of {_size(memory['capacity_bytes'])}, estimated"
        )
    detail = f" ({'; '.join(more)})" if more else ""
    return f"{made['where']}: {made['kind']} of {made['model']}: {_count(made['calls'], 'call')}{detail}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _size(num_bytes: int) -> str:
    for factor, unit in ((1e6, "MB"), (1e3, "kB")):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.3g} {unit}"
    return f"{num_bytes} B"


def _write(
    path: Path,
    package: str,
    words: list[str],
    status: int,
    executors: list[dict[str, Any]],
    ledger: Any,
    ended: _Ended,
) -> None:
    from portwright.job.atomic import atomic_write_text

    document: dict[str, Any] = {
        "emulated": PACKAGES[package],
        "command": words,
        "status": status,
        "script_status": ended.status,
        "error": None if ended.failure is None else f"{type(ended.failure).__name__}: {ended.failure}",
        "executors": executors,
        "calls": ledger.call_counts(),
        "unused": [made.as_json() for made in ledger.unused_executors()],
    }
    atomic_write_text(path, json.dumps(document, indent=2, default=str) + "\n")


def _say(line: str) -> None:
    print(f"portwright: {line}", file=sys.stderr, flush=True)
