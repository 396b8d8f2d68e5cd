"""Copies, checks, ports, verifies and lowers the projects of projects.toml, each in a folder of its own.

    python tests/corpus/runner.py CORPUS --scratch DIR [--only NAME ...] [--json results.json] [--packages DIR]

CORPUS holds the unpacked repositories as OWNER+NAME. No file there is written to.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NUM_STEPS = 20
_FRONT_END_SECONDS = 400
_LARGEST_BYTES = 2_000_000
_SKIPPED_FOLDERS = {".git", "images", "imgs", "docs", "assets", "thumbnails"}


@dataclass(frozen=True)
class Project:
    """One entry of projects.toml."""

    name: str
    kind: str
    repository: str
    commit: str
    path: str = "."
    script: str = ""
    driver: str = ""
    args: str = ""
    data: str = ""
    cwd: str = ""
    search: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    no_cuda: bool = False
    old_names: bool = False
    no_graph: bool = False
    one_gpu: bool = False
    env: str = ""
    smaller: Mapping[str, str] = field(default_factory=dict)  # literals that no option sets, for both copies

    @property
    def folder(self) -> str:
        return self.repository.replace("/", "+")

    @property
    def start(self) -> str:
        """The file that is run, in the project's folder; a driver is put there."""
        return self.script or f"driver_{self.driver}"

    def missing(self, packages: Path | None) -> list[str]:
        return [
            name
            for name in self.needs
            if importlib.util.find_spec(name) is None
            and not (packages is not None and (packages / name).is_dir())
        ]


@dataclass
class Result:
    """What became of a project; None stands for what was not asked."""

    name: str
    check: str = ""  # the verdict of `check` on what is run
    check_reason: str = ""
    findings: int = 0
    fixed: int = 0
    left: int = 0
    second_port_changes: int | None = None
    compiles: bool | None = None
    verdict: str = ""  # of `verify`: equal, different or cannot tell
    steps: int = 0
    difference: str = ""
    accepted_before: bool | None = None
    words_before: str = ""
    accepted_after: bool | None = None
    words_after: str = ""
    left_codes: list[str] = field(default_factory=list)
    failure: str = ""
    seconds: float = 0.0

    @property
    def verified(self) -> bool:
        return self.verdict == "equal"


def load(name: str = "projects.toml") -> list[Project]:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib  # type: ignore[no-redef, import-not-found, unused-ignore]
    with (HERE / name).open("rb") as file:
        entries: list[dict[str, Any]] = tomllib.load(file)["project"]
    for entry in entries:
        lists = {key: tuple(value) for key, value in entry.items() if isinstance(value, list)}
        entry.update(lists)
    return [Project(**entry) for entry in entries]


def environment(packages: Path | None = None) -> dict[str, str]:
    source = HERE.parents[1] / "src"
    paths = [source, HERE / "search_last", *([packages] if packages else [])]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def prepare(project: Project, corpus: Path, scratch: Path) -> Path:
    """Makes a fresh folder: original/ with the project's files, work/here/ with its data, where commands run."""
    place = scratch / project.name
    shutil.rmtree(place, ignore_errors=True)
    source, original = corpus / project.folder / project.path, place / "original"
    for path in _files(source):
        target = original / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    if project.driver:
        shutil.copyfile(HERE / "drivers" / project.driver, original / project.start)
    for old, new in project.smaller.items():
        script = original / project.start
        text = script.read_text()
        if old not in text:
            raise Failure(f"{project.start} has no {old}")
        script.write_text(text.replace(old, new))
    work = place / "work" / "here"
    work.mkdir(parents=True)
    if project.data:
        generate = "import sys, pathlib, data; getattr(data, sys.argv[1])(*map(pathlib.Path, sys.argv[2:]))"
        env = environment() | {"PYTHONPATH": os.pathsep.join(map(str, (HERE, HERE / "search_last")))}
        made = _call([sys.executable, "-c", generate, project.data, work, original], place, env, 120)
        if made.returncode:
            raise Failure(f"no data: {made.stderr[-300:]}")
    return place


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or path.name in _SKIPPED_FOLDERS:
            continue
        if path.is_dir():
            yield from _files(path)
        elif path.stat().st_size <= _LARGEST_BYTES:
            yield path


def command(project: Project, copy: str) -> str:
    """The command of the original or of the port, as it is given in work/here."""
    root = f"../../{copy}"
    script = f"{root}/{project.start}"
    options = []
    if project.cwd == "script":
        options += ["--cwd", str(Path(script).parent)]
    for path in project.search:
        options += ["--path", str(Path(root) / path)]
    options += ["--no-cuda"] if project.no_cuda and copy == "original" else []
    options += ["--old-names"] if project.old_names else []
    options += ["--no-graph"] if project.no_graph else []
    options += ["--one-gpu"] if project.one_gpu else []
    start = shlex.join([str(HERE / "launch.py"), *options, "--", script]) if options else script
    return f"{project.env} {start} {project.args}".strip()


def _call(
    words: Sequence[Any], cwd: Path, env: Mapping[str, str], limit_seconds: float
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [str(word) for word in words], cwd=cwd, env=dict(env), capture_output=True, text=True,
            timeout=limit_seconds, errors="replace", stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        out = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else late.stdout or ""
        return subprocess.CompletedProcess(words, 124, out, f"no end within {limit_seconds:g} s")


def portwright(
    arguments: Sequence[Any], cwd: Path, env: Mapping[str, str], limit_seconds: float = 600
) -> subprocess.CompletedProcess[str]:
    return _call([sys.executable, "-m", "portwright.cli", *arguments], cwd, env, limit_seconds)


def ask_verdict(project: Project, place: Path, env: Mapping[str, str], result: Result) -> None:
    """What `check` says of the file that is run."""
    said = portwright(["check", f"original/{project.start}", "-t", "csx", "--json"], place, env)
    if said.returncode not in (0, 1) or not said.stdout:
        raise Failure(f"check ended with {said.returncode}: {said.stderr[-400:]}")
    (entry,) = json.loads(said.stdout)["entries"]
    (verdict,) = entry["verdicts"]
    result.check, result.check_reason = verdict["verdict"], _words("; ".join(verdict["reasons"][:1]), place)


def check_and_port(place: Path, env: Mapping[str, str], result: Result) -> None:
    """check, port --out, port again, compile. A crash is a failure; findings are not."""
    checked = portwright(["check", "original", "-t", "csx", "--json"], place, env)
    if checked.returncode not in (0, 1) or not checked.stdout:
        raise Failure(f"check ended with {checked.returncode}: {checked.stderr[-400:]}")
    result.findings = len(json.loads(checked.stdout)["findings"])
    ported = portwright(["port", "original", "-t", "csx", "--out", "ported", "--json"], place, env)
    if ported.returncode not in (0, 1) or not ported.stdout:
        raise Failure(f"port ended with {ported.returncode}: {ported.stderr[-400:]}")
    answer = json.loads(ported.stdout)
    result.fixed, result.left = len(answer["fixed"]), len(answer["left"])
    result.left_codes = sorted({finding["code"] for finding in answer["left"]})
    again = portwright(["port", "ported", "-t", "csx", "--json"], place, env)
    if again.returncode not in (0, 1) or not again.stdout:
        raise Failure(f"a second port ended with {again.returncode}: {again.stderr[-400:]}")
    result.second_port_changes = len(json.loads(again.stdout)["changed"])
    result.compiles = _compile(place, env)


_COMPILES = """
import pathlib, sys
def compiles(path):
    try:
        compile(path.read_bytes(), str(path), "exec")
        return True
    except (SyntaxError, ValueError):
        return False
top = pathlib.Path(sys.argv[1])
print(sorted(str(p.relative_to(top)) for p in top.rglob("*.py") if not compiles(p)))
"""


def _compile(place: Path, env: Mapping[str, str]) -> bool:
    """Whether every file compiles that did before; some projects hold files of Python 2."""
    words = [sys.executable, "-W", "ignore", "-c", _COMPILES]
    return len({_call([*words, name], place, env, 60).stdout for name in ("original", "ported")}) == 1


def verify(project: Project, place: Path, env: Mapping[str, str], result: Result) -> None:
    """The proof goes to proof.json beside the copies; what the original needs is in its own command."""
    arguments = ["verify", command(project, "original"), command(project, "ported"), "--steps", NUM_STEPS]
    arguments += ["--out", place / "proof.json", "--json"]
    said = portwright(arguments, place / "work" / "here", env, 900)
    if said.returncode not in (0, 1):
        raise Failure(f"verify ended with {said.returncode}: {said.stderr.strip()[-400:]}")
    answer = json.loads(said.stdout)
    result.verdict, result.steps = str(answer["verdict"]), int(answer["steps"])
    if not result.verified:
        reason = (answer["first_difference"] or {}).get("reason") or answer["why_unsure"]
        result.difference = _words(str(reason), place)


def ask(project: Project, place: Path, packages: Path | None, copy: str) -> tuple[bool | None, str]:
    """Whether the real front end takes the first step of a copy's own script, and what it said; None where it was not asked."""
    from portwright.errors import UserError
    from portwright.verify.front_end import ask_front_end

    saved = dict(os.environ)
    os.environ.update(environment(packages))
    try:
        verdict = ask_front_end(
            command(project, copy), "csx", place / "work" / "here", timeout_seconds=_FRONT_END_SECONDS
        )
    except UserError as error:
        return None, _words(f"not asked: {error}", place)
    finally:
        os.environ.clear()
        os.environ.update(saved)
    return verdict.accepted, "" if verdict.accepted else _words(f"{verdict.stage}: {verdict.words}", place)


def ask_both(
    project: Project, place: Path, packages: Path | None, result: Result, before: Result | None
) -> None:
    if before is not None and before.accepted_before is not None:
        result.accepted_before, result.words_before = before.accepted_before, before.words_before
    else:
        result.accepted_before, result.words_before = ask(project, place, packages, "original")
    result.accepted_after, result.words_after = ask(project, place, packages, "ported")


def _words(text: str, place: Path) -> str:
    """One line, without the paths of this machine."""
    text = re.sub(r"\S*/site-packages/", "", text.replace(str(place) + "/", "").replace("../../", ""))
    line = " ".join(text.split())
    return line if len(line) <= 300 else line[:297] + "..."


def run(
    project: Project,
    corpus: Path,
    scratch: Path,
    packages: Path | None,
    front_end: bool,
    before: Result | None = None,
) -> Result:
    """Everything about one project. What must not happen is `failure`; a refusal or a difference is a result.

    `before` is an earlier result, from which the front end's word on the original is taken, which no port changes.
    """
    result, started = Result(project.name), time.monotonic()
    env = environment(packages)
    try:
        place = prepare(project, corpus, scratch)
        ask_verdict(project, place, env, result)
        check_and_port(place, env, result)
        verify(project, place, env, result)
        if front_end:
            ask_both(project, place, packages, result, before)
    except Failure as failure:
        result.failure = _words(str(failure), scratch / project.name)
    result.seconds = round(time.monotonic() - started, 1)
    return result


def _when() -> dict[str, str]:
    """The day, and the commit of what is run."""
    commit = _call(["git", "rev-parse", "--short", "HEAD"], HERE, os.environ, 60).stdout.strip()
    return {"commit": commit, "date": time.strftime("%Y-%m-%d")}


class Failure(Exception):
    """Something that must not happen, whatever the project."""


def has_front_end() -> bool:
    from portwright.discover import find_targets
    from portwright.job.vendor_env import find_usable

    environment = find_targets()["CSX"].environment
    return environment is not None and find_usable(environment) is not None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--reuse-before", action="store_true", help="do not ask about originals again")
    parser.add_argument(
        "--ask-again", action="store_true", help="only ask the front end, about what is there"
    )
    parser.add_argument("--packages", type=Path, help="a folder of packages that the projects need")
    parser.add_argument("--json", type=Path, default=HERE / "results.json")
    options = parser.parse_args()
    corpus, scratch = options.corpus.resolve(), options.scratch.resolve()
    packages = options.packages.resolve() if options.packages else None
    front_end = has_front_end()
    known = json.loads(options.json.read_text())["projects"] if options.json.is_file() else {}
    for project in load():
        if options.only and project.name not in options.only:
            continue
        if not (corpus / project.folder).is_dir() or project.missing(packages):
            print(f"{project.name}: not here", flush=True)
            continue
        before = Result(**known[project.name]) if options.reuse_before and project.name in known else None
        if options.ask_again:
            result = Result(**known[project.name])
            ask_both(project, scratch / project.name, packages, result, before)
        else:
            result = run(project, corpus, scratch, packages, front_end, before)
        known[project.name] = asdict(result)
        options.json.write_text(
            json.dumps({**_when(), "steps": NUM_STEPS, "projects": known}, indent=1, sort_keys=True) + "\n"
        )
        print(
            f"{project.name}: {result.failure or ''} check: {result.check}, verify: {result.verdict} {result.difference}"
            f" accepted {result.accepted_before} -> {result.accepted_after} {result.words_after}"
            f" ({result.seconds:.0f} s)",
            flush=True,
        )
    return 1 if any(each["failure"] for each in known.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
