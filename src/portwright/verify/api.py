"""Verify as one call: what the command line calls."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from portwright.discover import find_targets
from portwright.errors import UserError, suggest
from portwright.verify.blame import blame
from portwright.verify.command import parse_command
from portwright.verify.compare_exact import dropped
from portwright.verify.judge import DROPOUTS, DropoutChoice, Judgement, judge
from portwright.verify.launch import Recorder, Report, Runs
from portwright.verify.measure import NOISE_FACTOR, VAGUE
from portwright.verify.proof import Proof, find_place, worst_by_step, worst_of_all
from portwright.verify.proof_page import write_page
from portwright.verify.recording import Recording

MOST_STEPS = 10_000
HOOKED = ("poptorch",)  # emulated packages whose steps can be recorded: hooks_poptorch.py


def verify(
    original: str | Sequence[str],
    ported: str | Sequence[str],
    *,
    steps: int = 20,
    seed: int = 0,
    dropout: str = "auto",
    out: Path | None = None,
    html: Path | None = None,
    bisect: bool = False,
    timeout_seconds: float = 600,
    python: Path | None = None,
    folder: Path | None = None,
    report: Report | None = None,
    emulate: str | None = None,
) -> Proof:
    """Runs both commands unmodified under a recorder, and proves that their training steps compute the same, or says where they differ.

    A port that crashes is different; if the original crashes or cannot be recorded, the verdict is "cannot tell". `report` receives the progress of the runs. With
    `emulate` ("ipu") the port runs on that target's emulated package, and each step must run there.
    """
    if not 1 <= steps <= MOST_STEPS:
        raise UserError(f"--steps is {steps}.", f"Give a number from 1 to {MOST_STEPS}.")
    if dropout not in DROPOUTS:
        raise UserError(f"--dropout is '{dropout}'.", suggest(dropout, DROPOUTS))
    if timeout_seconds <= 0:
        raise UserError(f"--timeout is {timeout_seconds:g} seconds.", "Give a number above 0.")
    emulated = [t.name.lower() for t in find_targets().values() if t.emulator in HOOKED]
    if emulate is not None and emulate.lower() not in emulated:
        raise UserError(
            f"--emulate is '{emulate}', whose steps verify cannot look into.",
            suggest(emulate.lower(), emulated),
        )
    here = Path.cwd() if folder is None else folder
    for path in (out, html):
        if path is not None and path.is_dir():
            raise UserError(f"{path} is a folder.", "Give the name of a file to write.")
    for command in (original, ported):
        parse_command(command, here)  # reports a wrong command before the other one runs
    choice: DropoutChoice = dropout
    with tempfile.TemporaryDirectory(prefix="portwright-proof-") as scratch:
        options = Recorder(steps=steps, seed=seed, timeout_seconds=timeout_seconds, python=python)
        runs = Runs(original, ported, Path(scratch), options, report, here, emulate=(emulate or "").lower())
        judgement = judge(runs, choice)
        proof = make_proof(runs, judgement, here)
        if bisect:
            from portwright.verify.bisect import bisect_port

            proof.bisected = bisect_port(runs, judgement, choice, here)
            if proof.bisected and proof.bisected.get("rule") and proof.first_difference:
                rule, says = str(proof.bisected["rule"]), str(proof.bisected["says"])
                proof.first_difference = replace(proof.first_difference, rule=rule, rule_reason=says)
    if out is not None:
        proof.write(out)
    if html is not None:
        write_page(proof, html)
    return proof


def make_proof(runs: Runs, judgement: Judgement, folder: Path) -> Proof:
    """Turns a judgement into a proof: its numbers, and the conditions under which they were measured."""
    commands = {
        "original": parse_command(runs.original_command, folder).shown,
        "ported": parse_command(runs.ported_command, folder).shown,
    }
    scripts = {
        "original": _script(runs.original_command, folder),
        "ported": _script(runs.ported_command, folder),
    }
    comparison, difference = judgement.comparison, judgement.difference
    if difference is not None:
        difference = blame(difference, runs.ported_command, folder)
    proof = Proof(
        verdict="different" if difference else "cannot tell" if judgement.unsure else "equal",
        unsure=judgement.unsure,
        steps=comparison.steps if comparison else 0,
        asked_steps=runs.options.steps,
        first_difference=difference,
        commands=commands,
        losses={"original": [], "ported": []},
        settled_by=judgement.settled_by,
        seed=runs.options.seed,
        dropout=judgement.dropout,
        scripts=scripts,
        notes=list(judgement.notes),
    )
    if judgement.crash is not None and judgement.crash.tail:
        who = "port" if difference else "program"
        proof.notes.append(f"The end of what the {who} printed:\n{judgement.crash.tail}")
    if comparison is None:
        return proof
    original, ported = comparison.original, comparison.ported
    proof.versions = {"original": original.versions, "ported": ported.versions}
    proof.dropout_values = {f"{rate:g}": size for rate, size in dropped(original.steps[0].draws).items()}
    proof.losses["original"] = [list(s.losses) for s in original.steps]
    proof.nothing_ported = bool(original.sources) and original.sources == ported.sources
    largest = (judgement.in_float64 or comparison).largest_bound()
    if largest is not None and judgement.settled_by != "identical" and difference is None:
        proof.bound, proof.bound_quantity = largest
        if proof.equal:  # anything further apart would not have counted as equal
            proof.bound = min(proof.bound, VAGUE)
    proof.losses["ported"] = [list(s.losses) for s in ported.steps]
    proof.distances, proof.worst = worst_by_step(comparison), worst_of_all(comparison)
    if comparison.noise is not None:
        proof.noise = {"relative": comparison.noise.relative, "factor": NOISE_FACTOR}
    if judgement.in_float64 is not None:
        proof.float64 = worst_of_all(judgement.in_float64)
    proof.matches = [
        {
            "original": m.original,
            "ported": list(m.ported),
            "layout": m.layout,
            "by": m.by,
            "initial": m.initial,
        }
        for m in ported.matches
    ]
    proof.unmatched, proof.missing = list(ported.unmatched), list(ported.missing)
    proof.place = find_place(ported)
    proof.optimizers = {
        "original": _optimizers(original),
        "ported": _optimizers(ported),
    }
    proof.beyond_steps = [part.as_dict() for part in judgement.parts]
    proof.notes += _notes(original, ported, proof)
    return proof


def _optimizers(recording: Recording) -> list[str]:
    return sorted({s.optimizer or "by hand" for s in recording.steps})


def _notes(original: Recording, ported: Recording, proof: Proof) -> list[str]:
    notes = [f"original: {note}" for note in original.notes] + [f"port: {note}" for note in ported.notes]
    asked = original.run.get("asked_for_accelerator", ())
    if asked:
        notes.append(
            f"The original asks for an accelerator at {', '.join(asked[:3])}, and there is none here: what it does with one was "
            "not run."
        )
    if len(original.steps) < proof.asked_steps:
        notes.append(
            f"The original ended after {len(original.steps)} of the {proof.asked_steps} steps asked for: "
            "the proof is about those."
        )
        if len(ported.steps) > len(original.steps):
            notes.append("The port went on after the original had ended.")
    if proof.versions["original"].get("torch") != ported.versions.get("torch"):
        notes.append("The two scripts ran with different versions of torch.")
    quiet = [n for n in proof.missing if not any(n == m["original"] for m in proof.matches)]
    if quiet and proof.equal:
        notes.append(f"Not in the port, and never trained in the original: {', '.join(quiet[:5])}.")
    return notes


def _script(command: str | Sequence[str], folder: Path) -> dict[str, str]:
    """The file that a command runs and its checksum, or the name of its module."""
    words = parse_command(command, folder).words
    if words[0] == "-m":
        return {"module": words[1]}
    path = Path(folder, words[0])
    path = path / "__main__.py" if path.is_dir() else path
    return {"path": words[0], "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
