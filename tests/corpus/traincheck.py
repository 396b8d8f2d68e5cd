"""Counts the false alarms of `verify` on programs that train as they should, against themselves and against harmless rewrites.

    python tests/corpus/traincheck.py CORPUS --scratch DIR [--only NAME ...] [--rewrites NAME ...] [--steps N] [--json FILE]

CORPUS holds OrderLab/TrainCheck-Evaluation-Workloads unpacked as OWNER+NAME; PORTWRIGHT_CORPUS names it where the argument is
left out. No file there is written to. What cannot be run is counted as skipped, with its reason.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from corpus.runner import HERE, Failure, Project, command, environment, load, portwright, prepare

RESULTS = HERE / "traincheck.json"
NUM_STEPS = 10


@dataclass
class Verdict:
    """What `verify` said; `verdict` is equal, cannot tell, different (a false alarm), or skipped."""

    name: str
    rewrite: str
    verdict: str
    steps: int = 0
    says: str = ""
    seconds: float = 0.0


def rename_locals(tree: ast.Module) -> None:
    """Every variable of a function gets another name, where nothing but this function can see it."""
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        inside = [node for node in ast.walk(function) if node is not function]
        if any(
            isinstance(n, ast.FunctionDef | ast.Lambda | ast.ClassDef | ast.Global | ast.Nonlocal)
            for n in inside
        ):
            continue
        stored = {n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        arguments = {n.arg for n in inside if isinstance(n, ast.arg)}
        for node in inside:
            if isinstance(node, ast.Name) and node.id in stored - arguments:
                node.id = f"{node.id}_here"


def drop_prints(tree: ast.Module) -> None:
    """Lines that only print are gone; `pass` stands where a body would be empty."""
    for node in ast.walk(tree):
        for name in ("body", "orelse"):
            body = getattr(node, name, None)
            if isinstance(body, list):
                kept = [statement for statement in body if not _prints(statement)]
                setattr(node, name, kept or ([ast.Pass()] if body else []))


def _prints(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print"


def turn_imports(tree: ast.Module) -> None:
    """The imports at the top of the file stand in the opposite order; those of __future__ stay first."""
    places = [
        number
        for number, node in enumerate(tree.body)
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.module != "__future__")
    ]
    turned = [tree.body[number] for number in reversed(places)]
    for number, node in zip(places, turned, strict=True):
        tree.body[number] = node


EDITS: dict[str, Callable[[ast.Module], None]] = {
    "renamed variables": rename_locals,
    "no prints": drop_prints,
    "imports turned": turn_imports,
}
REWRITES = ("itself", "ported", *EDITS)


def rewrite(place: Path, project: Project, kind: str) -> None:
    """Makes the folder `ported` from `original`."""
    shutil.rmtree(place / "ported", ignore_errors=True)
    if kind == "ported":
        done = portwright(
            ["port", "original", "-t", "csx", "--out", "ported", "--json"], place, environment()
        )
        if done.returncode not in (0, 1):
            raise Failure(f"port ended with {done.returncode}: {done.stderr[-300:]}")
        return
    shutil.copytree(place / "original", place / "ported")
    if kind in EDITS:
        script = place / "ported" / project.script
        tree = ast.parse(script.read_text())
        EDITS[kind](tree)
        script.write_text(ast.unparse(tree) + "\n")


def judge(project: Project, place: Path, kind: str, steps: int) -> Verdict:
    started = time.monotonic()
    rewrite(place, project, kind)
    original = command(project, "original")
    other = (
        command(project, "ported")
        if kind == "ported"
        else original.replace("../../original/", "../../ported/")
    )
    words = ["verify", original, other, "--steps", steps, "--json"]
    words += ["--out", place / f"{kind.replace(' ', '-')}.json", "--timeout", 300]
    said = portwright(words, place / "work" / "here", environment(), 1800)
    if said.returncode not in (0, 1, 2) or not said.stdout:
        raise Failure(f"verify ended with {said.returncode}: {said.stderr[-300:]}")
    answer = json.loads(said.stdout)
    if "verdict" not in answer:
        raise Failure(f"verify says: {said.stderr[-300:] or said.stdout[-300:]}")
    reason = (answer["first_difference"] or {}).get("reason") or answer["why_unsure"] or ""
    if answer["verdict"] == "cannot tell" and not answer["steps"]:
        raise Failure(f"the program does not run here: {reason}")
    says = " ".join(reason.replace(str(place), ".").split())[:300]
    taken = round(time.monotonic() - started, 1)
    return Verdict(project.name, kind, answer["verdict"], answer["steps"], says, taken)


def table(known: dict[str, dict[str, object]]) -> str:
    """The verdicts as docs/verify.md has them."""
    lines = [f"| program | steps | {' | '.join(REWRITES)} |", "| --- " * (len(REWRITES) + 2) + "|"]
    for project in load("traincheck.toml"):
        rows = [known[f"{project.name} / {kind}"] for kind in REWRITES]
        verdicts = " | ".join(str(row["verdict"]) for row in rows)
        lines.append(f"| {project.name}: {project.kind} | {rows[0]['steps']} | {verdicts} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path, nargs="?", default=os.environ.get("PORTWRIGHT_CORPUS"))
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--rewrites", nargs="*", default=list(REWRITES), choices=REWRITES)
    parser.add_argument("--steps", type=int, default=NUM_STEPS)
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.corpus is None:
        parser.error("give the folder of the corpus, or PORTWRIGHT_CORPUS")
    known = json.loads(options.json.read_text()) if options.json.is_file() else {}
    for project in load("traincheck.toml"):
        if options.only and project.name not in options.only:
            continue
        for kind in options.rewrites:
            try:
                place = prepare(project, Path(options.corpus).resolve(), options.scratch.resolve())
                verdict = judge(project, place, kind, options.steps)
            except (Failure, OSError) as failure:
                verdict = Verdict(project.name, kind, "skipped", says=" ".join(str(failure).split())[:300])
            known[f"{project.name} / {kind}"] = asdict(verdict)
            options.json.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
            print(
                f"{verdict.name}, {kind}: {verdict.verdict}, {verdict.steps} steps, {verdict.seconds:.0f} s. {verdict.says}",
                flush=True,
            )
    counts = Counter(row["verdict"] for row in known.values())
    print(", ".join(f"{number} {verdict}" for verdict, number in sorted(counts.items())))
    return 1 if counts["different"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
