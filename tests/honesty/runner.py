"""Compares what `check` says of the small programs, or of public ones, with what then happens.

    python tests/honesty/runner.py [--scratch DIR] [--only NAME ...] [--no-front-end]     # programs.toml: results.json
    python tests/honesty/runner.py --corpus DIR ...                                       # public.toml: public.json
    python tests/honesty/runner.py --said ...                  # what check says anew, where it comes to the same verdict

A verdict is held against the port, one validate step of the folder that it writes, the vendor's own front end or the emulator,
and against `verify` of the port, its evaluation too. `held` is false where check promised a run that failed, or where a port
that claims to leave nothing failed or computes something else. DIR has the public repositories, each unpacked in a folder of
its own name; what they lack here may be on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
TAUGHT = "taught_layout"
PROMISES = ("runs as it is", "runs after port")
SAID = ("files", "owners", "verdict", "reason")  # by check; the rest is tried
Results = dict[tuple[str, str], dict[str, Any]]
_LIMIT_SECONDS = 300


@dataclass
class Result:
    """One program on one target."""

    program: str
    target: str
    files: int  # that check looked at
    owners: list[str]
    verdict: str
    reason: str
    port: str = "not asked"  # written, refused, ...
    step: str = "not asked"  # one validate step of what the port wrote
    judge: str = "not asked"  # the vendor's front end, or the emulator
    proof: str = "not asked"  # whether verify finds steps and evaluation equal to the original's
    held: bool = True


def load(path: Path) -> list[dict[str, Any]]:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib  # type: ignore[no-redef, import-not-found, unused-ignore]
    with path.open("rb") as file:
        programs: list[dict[str, Any]] = tomllib.load(file)["program"]
    return programs


def copy_of(entry: str, scratch: Path, programs: Path = PROGRAMS) -> Path:
    """A fresh copy of the program's file or folder; the path of its entry there."""
    top = Path(entry).parts[0]
    folder = scratch / re.sub(r"\W", "_", entry)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if entry == TAUGHT:
        _portwright(["new", TAUGHT], folder)
        return folder / TAUGHT / "run.py"
    if (programs / top).is_dir():
        shutil.copytree(programs / top, folder / top, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(programs / entry, folder)
    return folder / entry


def check(entry: Path, targets: list[str]) -> dict[str, Any]:
    asked = [word for target in targets for word in ("--target", target)]
    said = _portwright(["check", entry.name, *asked, "--json"], entry.parent)
    if said.returncode not in (0, 1):
        raise RuntimeError(f"check of {entry.name} ended with {said.returncode}: {said.stderr[-400:]}")
    found: dict[str, Any] = json.loads(said.stdout)["entries"][0]
    return found


def rows(program: dict[str, Any], said: dict[str, Any], folder: Path) -> list[Result]:
    """What check said, one row a target, before anything else was tried."""
    owners = [owner["owner"] for owner in said["owners"]]
    reasons = [verdict["reasons"][:2] for verdict in said["verdicts"]]
    if "repository" in program:  # a rule may quote a line of it
        reasons = [[re.sub(r"(PW\d+) .*", r"\1", each) for each in some] for some in reasons]
    return [
        Result(
            program["entry"], verdict["target"], len(said["files"]), owners, verdict["verdict"],
            _one_line("; ".join(some), folder),
        )
        for verdict, some in zip(said["verdicts"], reasons, strict=True)
    ]  # fmt: skip


def say_again(program: dict[str, Any], scratch: Path, programs: Path, known: Results) -> None:
    """What was tried stands as long as the verdict is the same."""
    entry = copy_of(program["entry"], scratch, programs)
    for row in rows(program, check(entry, program.get("targets", ["csx"])), entry.parent):
        kept = known[row.program, row.target]
        if kept["verdict"] != row.verdict:
            raise SystemExit(
                f"{row.program} on {row.target}: {kept['verdict']} is {row.verdict} now: run it with --only"
            )
        kept.update({name: getattr(row, name) for name in SAID})


def run(program: dict[str, Any], scratch: Path, front_end: bool, programs: Path = PROGRAMS) -> list[Result]:
    entry = copy_of(program["entry"], scratch, programs)
    said = check(entry, program.get("targets", ["csx"]))
    found = rows(program, said, entry.parent)
    for result, verdict in zip(found, said["verdicts"], strict=True):
        fresh = copy_of(program["entry"], scratch, programs)
        _try(result, verdict["command"], fresh, program.get("args", ""), front_end)
        failed = "failed" in result.step + result.judge or result.proof.startswith("different")
        is_done = result.port in ("written", "needs none")
        result.held = not failed if is_done else result.verdict not in PROMISES
    return found


def _try(result: Result, command: str, entry: Path, args: str, front_end: bool) -> None:
    """What happens when somebody believes the verdict and types its command, or tries layout in spite of it."""
    target = result.target
    if result.verdict == "runs as it is":
        result.port = "needs none"
    elif target in ("csx", "ipu", "rdu"):
        command = command or f"portwright port {entry.name} --target {target} --style layout --out ported"
        how = _port(result, command, entry.parent)
        args += f" {how}" if how.startswith("-") else ""
        if result.port != "refused" and "--style layout" in command:
            _run_layout(result, entry, args, front_end)
            return
    if result.port in ("refused", "not asked"):
        return
    if any(owner.endswith("run()") for owner in result.owners):
        result.step = _validate(entry.parent, target, entry.parent)
    elif target == "cpu":
        result.step = _outcome(_python([entry.name, *shlex.split(args)], entry.parent))
    else:
        result.judge = _judge(result, entry, args, front_end)


def _port(result: Result, command: str, folder: Path) -> str:
    """How a branch is asked for, where the command adds one."""
    left, how = [], ""
    for each in command.split(" && "):
        ported = _portwright([*shlex.split(each)[1:], "--json"], folder)
        said = json.loads(ported.stdout) if ported.returncode in (0, 1) and ported.stdout else {}
        if not said.get("changed"):
            result.port = "refused"
            return ""
        left += [f for f in said["left"] if " && " not in command or f["safety"] != "safe"]
        asks = [
            f["cure"].removeprefix("Ask for it with ").rstrip(".")
            for f in said["fixed"]
            if f["code"] == "PW004"
        ]
        how = asks[0] if asks else how
    result.port = f"written, {len(left)} left" if left else "written"
    return how


def _run_layout(result: Result, entry: Path, args: str, front_end: bool) -> None:
    folder = entry.parent / "ported"
    result.step = _validate(folder, "cpu", entry.parent)
    if "failed" in result.step:
        return
    if result.target == "ipu" or (result.target == "csx" and front_end):
        result.judge = _validate(folder, result.target, entry.parent)
    run = "ported/run.py CPU --mode train --params ported/configs/params.yaml"
    proved = _portwright(
        ["verify", f"{entry.name} {args}".strip(), run, "--steps", "8", "--json"], entry.parent
    )
    try:
        said = json.loads(proved.stdout)
    except ValueError:
        result.proof = _outcome(proved)
        return
    reason = said["why_unsure"] or (said["first_difference"] or {}).get("reason", "")
    result.proof = said["verdict"] + (f": {_one_line(str(reason), entry.parent)}" if reason else "")


def _judge(result: Result, entry: Path, args: str, front_end: bool) -> str:
    """The emulator of an IPU or RDU; Cerebras's own front end."""
    target = result.target
    words = ["-m", "portwright.cli", "emulate", target, entry.name, *shlex.split(args)]
    if target == "rdu" and result.port != "needs none":  # the branch compiles, then runs what was compiled
        for options in (
            "--unlisted-ops=warn",
            "--unlisted-ops=warn --num-tiles 4",
        ):  # an odd batch takes the second
            compiled = _python(words, entry.parent, ACCELERATOR=target, RDU_COMMAND=f"compile {options}")
            if not compiled.returncode:
                break
        else:
            return "emulated: " + _outcome(compiled)
        unlisted = re.search(r"no public document shows these ops.*: (.*)", compiled.stderr)
        pef = next(entry.parent.rglob("*.pef"))
        ran = _python(words, entry.parent, ACCELERATOR=target, RDU_COMMAND=f"run --pef={pef}")
        told = f", in no public document: {unlisted.group(1)}" if unlisted else ""
        return "emulated: " + _outcome(ran) + told
    if target in ("ipu", "rdu"):
        return "emulated: " + _outcome(_python(words, entry.parent, ACCELERATOR=target))
    if target != "csx" or not front_end:
        return "not asked"
    from portwright.discover import get_target

    environment = get_target("csx").environment
    assert environment is not None
    if "Cerebras's own PyTorch API" in result.owners:  # it asks the front end by itself, and then a cluster
        tools = environment.folder / "bin"
        path = f"{tools}{os.pathsep}{os.environ['PATH']}"
        ran = _python([entry.name, *shlex.split(args)], entry.parent, tools / "python", PATH=path)
        return "lowered; no cluster to place it" if "mgmt_address" in ran.stderr else _outcome(ran)
    from portwright.verify.front_end import ask_front_end

    answer = ask_front_end(
        f"{entry.name} {args}".strip(), "csx", entry.parent, timeout_seconds=_LIMIT_SECONDS
    )
    if answer.accepted:
        return "accepted"
    return f"failed: {answer.stage}: {_one_line(answer.words, entry.parent)}"


def _validate(folder: Path, target: str, cwd: Path) -> str:
    """One step; from the script's own folder, where its data are."""
    run = str((folder / "run.py").relative_to(cwd))
    params = str((folder / "configs" / "params.yaml").relative_to(cwd))
    words = [run, target.upper(), "--mode", "train", "--params", params, "--validate_only"]
    return _outcome(_python([*words, *(["--emulate"] if target == "ipu" else [])], cwd))


def _outcome(ran: subprocess.CompletedProcess[str]) -> str:
    if ran.returncode == 0:
        return "ran"
    lines = [line for line in ran.stderr.strip().splitlines() if line.strip()]
    return f"failed: {_one_line(lines[-1] if lines else str(ran.returncode), Path.cwd())}"


def _one_line(text: str, folder: Path) -> str:
    text = re.sub(r"\S*/(?=[\w.]+\.py)", "", " ".join(text.replace(str(folder) + "/", "").split()))
    return text if len(text) <= 200 else text[:197] + "..."


def _portwright(words: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return _python(["-m", "portwright.cli", *words], cwd)


def _python(
    words: list[str], cwd: Path, python: Path = Path(sys.executable), **more: str
) -> subprocess.CompletedProcess[str]:
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1] / "src"), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        **more,
    }
    try:
        return subprocess.run(
            [str(python), "-W", "ignore", *words], cwd=cwd, env=env, capture_output=True, text=True,
            timeout=_LIMIT_SECONDS, stdin=subprocess.DEVNULL, errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 124, "", f"no end within {_LIMIT_SECONDS} s")


def _write(path: Path, listed: list[dict[str, Any]], results: Results) -> None:
    order = [(each["entry"], target) for each in listed for target in each.get("targets", ["csx"])]
    path.write_text(json.dumps([results[key] for key in order if key in results], indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--no-front-end", action="store_true")
    parser.add_argument("--said", action="store_true", help="try nothing, and keep what was tried")
    parser.add_argument("--corpus", type=Path, help="the folder of public repositories")
    options = parser.parse_args()
    scratch = (options.scratch or Path(tempfile.mkdtemp())).resolve()
    name, kept = ("public", "public") if options.corpus else ("programs", "results")
    listed, programs = load(HERE / f"{name}.toml"), (options.corpus or PROGRAMS).resolve()
    known = HERE / f"{kept}.json"
    found = json.loads(known.read_text()) if known.is_file() else []
    results: Results = {(row["program"], row["target"]): row for row in found}
    for program in listed:
        if options.only and program["entry"] not in options.only:
            continue
        if options.said:
            say_again(program, scratch, programs, results)
            continue
        for result in run(program, scratch, not options.no_front_end, programs):
            source = {name: program[name] for name in ("repository", "commit") if name in program}
            results[result.program, result.target] = source | asdict(result)
            print(" | ".join(str(value) for value in asdict(result).values()), flush=True)
        _write(known, listed, results)
    _write(known, listed, results)
    return 0 if all(row["held"] for row in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
