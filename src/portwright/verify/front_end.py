"""Asks a vendor's own compiler front end whether it accepts the training step of an unmodified user script.

The script runs on the CPU in the vendor's environment up to its first update; the step that it made is then traced and
lowered there. This module imports neither torch nor the vendor's software.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

from portwright.discover import find_target, find_targets, peek_target, suggest_target
from portwright.errors import UnsupportedError, UserError
from portwright.job.vendor_env import Known, VendorEnvironment, explain_missing, find_usable, make_env
from portwright.verify.command import Command, parse_command

_MOST_OPTIMIZERS = 4
# Modules whose pip package has another name.
_DISTRIBUTIONS = {
    "cv2": "opencv-python-headless",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "yaml": "pyyaml",
    "bs4": "beautifulsoup4",
    "dateutil": "python-dateutil",
    "pytorch_lightning": "pytorch-lightning",
}


@dataclass(frozen=True)
class FrontEndVerdict:
    """A vendor front end's verdict on a training step; `accepted` means lowered, not placed on a machine."""

    target: str
    accepted: bool
    sdk: str  # version of the vendor's software
    stage: str  # build, loader, forward, backward, update, lowering
    words: str  # of the front end's first error, after file:line of the user's code if known
    ops: int
    cirh_bytes: int
    asked: str  # which parts of the step were asked about
    op: str = ""
    module: str = ""  # its path in the script's model
    file: str = ""
    line: int = 0
    cure: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.accepted

    @property
    def says(self) -> str:
        """One line for a person."""
        title = f"{self.target.upper()}'s own (SDK {self.sdk})"
        if self.accepted:
            return f"{title} accepts {self.asked}: {self.ops} ops, lowered and not placed on a machine"
        return f"{title} refuses, {self.stage}: {self.words} (asked: {self.asked})"

    def as_dict(self) -> dict[str, Any]:
        """The JSON form for a proof."""
        rows = {name: value for name, value in asdict(self).items() if name != "details"}
        return {"says": self.says, **rows}


def ask_front_end(
    command: str | Sequence[str],
    target: str | None = None,
    folder: Path | None = None,
    python_path: Sequence[Path] = (),
    timeout_seconds: float = 600.0,
) -> FrontEndVerdict:
    """The verdict of a target's front end (default: the first available) on `command`, run from `folder` (default: here) with `python_path` before its import path.

    A `run.py TARGET ...` of Portwright's own is asked with its --validate_only. A script that crashes, never trains or imports
    what the vendor's environment lacks is a UserError.
    """
    name, environment, known = _find_environment(target or _askable()[0])
    folder = Path.cwd() if folder is None else folder
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder} to run in.", "Give one that exists.")
    parsed = parse_command(command, folder)
    runner = _Runner(name, environment, known, folder, tuple(python_path), timeout_seconds)
    if peek_target(parsed.words[1:]) is not None and Path(parsed.words[0]).name == "run.py":
        return _ask_layout(parsed, runner)
    verdict, num_optimizers = _ask_script(parsed, runner, 0)
    if verdict.stage == "loader":
        return _with_rest(verdict, _ask_script(parsed, runner, 0, captures_odd=True)[0])
    for number in range(1, min(num_optimizers, _MOST_OPTIMIZERS)):
        if not verdict.accepted:
            break
        try:
            other, _ = _ask_script(parsed, runner, number)
        except _NoTraining:
            skipped = f"{verdict.asked}; optimizer {number + 1} of {num_optimizers} was not seen to update"
            verdict = replace(verdict, asked=skipped)
            continue
        verdict = replace(
            other,
            ops=verdict.ops + other.ops,
            cirh_bytes=verdict.cirh_bytes + other.cirh_bytes,
            asked=f"{verdict.asked}; and {other.asked}",
        )
    if verdict.accepted and num_optimizers > _MOST_OPTIMIZERS:
        more = f"{verdict.asked}; only the first {_MOST_OPTIMIZERS} of {num_optimizers} optimizers"
        verdict = replace(verdict, asked=more)
    return verdict


def require_front_end(target: str) -> None:
    """Raises the error of `ask_front_end` for a target without a front end, or whose software is not installed."""
    _find_environment(target)


class _NoTraining(UserError):
    pass


@dataclass(frozen=True)
class _Runner:
    target: str
    environment: VendorEnvironment
    known: Known
    folder: Path
    python_path: tuple[Path, ...]
    timeout_seconds: float

    def run(self, words: Sequence[str], command: Command) -> tuple[int, str, str]:
        """Runs python of the vendor's environment, and returns status, stdout and stderr."""
        env = make_env(self.environment, {**os.environ, **command.environment})
        lent = [str(path.absolute()) for path in self.python_path]
        env["PYTHONPATH"] = os.pathsep.join([*lent, *filter(None, [env.get("PYTHONPATH", "")])])
        env["PYTHONUNBUFFERED"] = "1"
        process = subprocess.Popen(
            [str(self.known.python), *command.python_flags, *words],
            cwd=self.folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            output, errors = process.communicate(timeout=self.timeout_seconds)
        except subprocess.TimeoutExpired as error:
            raise UserError(
                f"'{command.shown}' gave no training step to ask about within {self.timeout_seconds:g} s.",
                "Give a command that trains at once on little data, or more time.",
            ) from error
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # kills its child processes too
            process.wait()
        return process.returncode, output.decode("utf-8", "replace"), errors.decode("utf-8", "replace")


def _find_environment(target: str) -> tuple[str, VendorEnvironment, Known]:
    found = find_target(target)
    if found is None:
        names = [name.lower() for name in find_targets()]
        raise UserError(f"'{target}' is no target.", suggest_target(target, names))
    if found.environment is None or not _can_ask(found.name.lower()):
        raise UnsupportedError(
            f"{found.name} has no front end that can be asked about a script.",
            f"Use --front-end {' or '.join(_askable())}.",
        )
    known = find_usable(found.environment)
    if known is None:
        reason = explain_missing(found.environment) or f"{found.environment.title} is not installed here."
        raise UnsupportedError(reason, found.environment.cure)
    return found.name.lower(), found.environment, known


def _askable() -> list[str]:
    return [name.lower() for name in find_targets() if _can_ask(name.lower())]


def _can_ask(name: str) -> bool:
    try:
        return importlib.util.find_spec(f"portwright.targets.{name}.script_step") is not None
    except ModuleNotFoundError:  # the target is one file
        return False


def _with_rest(verdict: FrontEndVerdict, rest: FrontEndVerdict) -> FrontEndVerdict:
    """Adds the verdict on the rest of the step to one that refused the batch already."""
    if rest.stage == "loader":
        return verdict
    outcome = f"accepted, {rest.ops} ops" if rest.accepted else f"refused, {rest.stage}: {rest.words}"
    return replace(
        verdict,
        words=f"{verdict.words} With such tensors captured, the rest of the step is {outcome}",
        details={**verdict.details, "rest": rest.as_dict()},
    )


def _ask_script(
    command: Command, runner: _Runner, number: int, *, captures_odd: bool = False
) -> tuple[FrontEndVerdict, int]:
    with tempfile.TemporaryDirectory(prefix="portwright-front-end-") as scratch:
        answer = Path(scratch) / "answer.json"
        words = ["-m", f"portwright.targets.{runner.target}.script_step"]
        words += ["--answer", str(answer), "--update", str(number)]
        words += ["--capture-odd"] if captures_odd else []
        words += ["--", *command.words]
        status, output, errors = runner.run(words, command)
        if not answer.is_file():
            raise _crash(command, _last_line(errors, output), f"status {status}")
        document = json.loads(answer.read_text(encoding="utf-8"))
    failed = document.get("failed")
    if failed is not None:
        if str(document.get("words", "")).startswith("SystemExit"):  # the printed output has the reason
            document["words"] = _last_line(output, errors)
        raise _explain(failed, document, command, runner)
    return _verdict(document, runner), int(document["num_optimizers"])


def _verdict(document: Mapping[str, Any], runner: _Runner) -> FrontEndVerdict:
    file, line = _shown(document.get("file") or "", runner.folder), int(document.get("line") or 0)
    words = str(document["words"])
    return FrontEndVerdict(
        runner.target,
        bool(document["accepted"]),
        str(document["sdk"]),
        str(document["stage"]),
        f"{file}:{line}: {words}" if file else words,
        int(document["ops"]),
        int(document["cirh_bytes"]),
        _asked(document),
        str(document.get("op") or ""),
        str(document.get("module") or ""),
        file,
        line,
        str(document.get("cure") or ""),
        document,
    )


def _shown(file: str, folder: Path) -> str:
    """The path relative to the user's folder, if it lies inside."""
    whole, root = Path(file), folder.resolve()
    return str(whole.relative_to(root)) if file and whole.is_relative_to(root) else file


def _asked(document: Mapping[str, Any]) -> str:
    modules = ", ".join(document["modules"]) or "no module"
    parts = [f"the script's own step: {modules}, its loss, backward, {document['optimizer'] or 'the update'}"]
    if document["num_constants"]:
        parts.append(
            f"{document['num_constants']} tensor(s) that the loader cannot feed captured as constants"
        )
    if document["num_reads"]:
        parts.append("values that the loop reads, for its log, left out")
    return "; ".join([*parts, *document["notes"]])


def _explain(failed: str, document: Mapping[str, Any], command: Command, runner: _Runner) -> UserError:
    words = str(document.get("words", ""))
    if failed == "no training":
        return _NoTraining(
            f"'{command.shown}' ended without an update of weights that could be asked about.",
            "Give the command that trains.",
        )
    if failed == "no module":
        module = str(document["module"]).partition(".")[0]
        package = _DISTRIBUTIONS.get(module) or next(
            iter(packages_distributions().get(module, ())), "PACKAGE"
        )
        title, python = runner.environment.title, runner.known.python
        # Without naming the installed torch, pip would install a newer one.
        cure = f"Install it there: {python} -m pip install {package} torch=={_torch_of(python)}"
        if package == "PACKAGE":
            cure += f", with the package that the script's README or requirements name: one called '{module}' can be somebody else's."
        return UserError(f"'{command.shown}' imports {module}, which the environment of {title} lacks.", cure)
    if failed == "not asked":
        return UserError(f"'{command.shown}': {words}", str(document.get("cure", "")))
    error = _crash(command, words, "an error")
    if "module 'torch" in words and "has no attribute" in words:
        version = _torch_of(runner.known.python)
        error.cure = f"{runner.environment.title} brings torch {version}: take what that version has."
    return error


def _torch_of(python: Path) -> str:
    folders = sorted(python.parent.parent.glob("lib/python*/site-packages/torch-*.dist-info"))
    return folders[0].name.removesuffix(".dist-info").removeprefix("torch-") if folders else "2.4.0"


def _crash(command: Command, words: str, how: str) -> UserError:
    return UserError(
        f"'{command.shown}' ended with {how} before its first update could be asked about: {words}",
        "Run it alone on the CPU from the same folder, and mend it first.",
    )


def _last_line(*texts: str) -> str:
    lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"


def _ask_layout(command: Command, runner: _Runner) -> FrontEndVerdict:
    """Asks about a project in Portwright's layout through its run.py with --validate_only."""
    script, _, *rest = command.words
    flags = [word for word in rest if word not in ("--validate_only", "--json")]
    asked = f"the step of {command.shown}, through run.py {runner.target.upper()} --validate_only"
    with tempfile.TemporaryDirectory(prefix="portwright-front-end-") as scratch:
        words = [script, runner.target.upper(), *_without_model_dir(flags), "--model_dir", scratch]
        dump = runner.folder / "ltc_unsupported.graph"  # the SDK writes it to the working directory
        was_there = dump.exists()
        _, output, errors = runner.run([*words, "--validate_only", "--json"], command)
        if not was_there:
            dump.unlink(missing_ok=True)
        try:
            document = json.loads(output)
        except ValueError:
            raise _crash(command, _last_line(output, errors), "no answer") from None
        validated = document.get("validated") or {}
        size = Path(validated["cirh"]).stat().st_size if validated.get("accepted") else 0
    if not validated:
        message, cure = document.get("error", output.strip()), document.get("cure", "")
        raise UserError(f"'{command.shown}' could not be asked about: {message}", str(cure))
    empty = {"modules": [], "optimizer": "", "num_constants": 0, "num_reads": 0, "notes": []}
    if validated["accepted"]:
        found = {"stage": "lowering", "words": "", "ops": sum(validated["cirh_ops"].values())}
    else:
        refused = validated["refused"][0]
        found = {**refused, "stage": refused["phase"], "words": refused["reason"], "ops": 0}
    verdict = _verdict(
        {**empty, **found, "accepted": validated["accepted"], "sdk": validated["sdk"], "cirh_bytes": size},
        runner,
    )
    return replace(verdict, asked=asked, details=validated)


def _without_model_dir(words: Sequence[str]) -> list[str]:
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in ("--model_dir", "-o"):
            skip = True
        elif not word.startswith("--model_dir="):
            kept.append(word)
    return kept
