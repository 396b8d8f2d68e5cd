"""Ports drawn programs with one rule's safe rewrites and runs each before and after: everything that can be seen is compared.

PYTHONPATH=tests python -m audit.harness                    # as many programs as the test suite tries
PYTHONPATH=tests python -m audit.harness 2000 PW344 PW408   # so many for each of these rules
PYTHONPATH=tests python -m audit.harness 300 --write        # the counts of docs/honesty_audit.md; then `make docs`
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import linecache
import math
import random
import tempfile
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import unified_diff
from pathlib import Path
from typing import Any

import torch
from audit.programs import Draw, Piece, write
from torch import Tensor, nn

from portwright.discover import find_rules
from portwright.port.check import Selection
from portwright.port.patch import make_patch
from portwright.port.project import Project
from portwright.port.source import Source

HERE = Path("/nowhere")
RESULTS = Path(__file__).parent / "results.json"
HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Pattern:
    """How to draw a piece for a rule, and what its page allows: another order of sums, or more than torch takes."""

    draw: Callable[[Draw], Piece]
    rtol: float = 0.0  # 0 asks for the same bits
    takes_more: bool = False  # whether a program that raised may run after the rewrite


@dataclass
class Count:
    drawn: int = 0
    rewritten: int = 0
    ran: int = 0  # of the rewritten ones, those whose original raised nothing
    faults: list[str] = field(default_factory=list)


def audit(code: str, pattern: Pattern, num_programs: int, seed: int = 0) -> Count:
    """Programs drawn, rewritten and equal; a fault is the program before and after and what differs."""
    rule = next(r for r in find_rules().values() if r.code == code)
    selection = Selection((rule,), frozenset(rule.targets))
    count = Count()
    for number in range(num_programs):
        draw = Draw(f"{code} {seed} {number}")
        text = write(draw, pattern.draw(draw))
        source = Source(HERE / "x.py", text.encode())
        compile(text, f"<{code} {number}>", "exec", dont_inherit=True)
        count.drawn += 1
        after = make_patch(source, Project(HERE), selection, ("safe",)).after
        if after.data == source.data:
            continue
        count.rewritten += 1
        seen = [run(program) for program in (text, after.text)]
        count.ran += seen[0]["raised"] is None
        wrong = difference(*seen, pattern.rtol)
        if wrong and not (pattern.takes_more and seen[0]["raised"]):
            changed = "\n".join(unified_diff(text.split("\n"), after.text.split("\n"), n=0, lineterm=""))
            count.faults.append(f"==== {code}, program {number}: {wrong}\n{text}{changed}\n")
    return count


def run(program: str) -> dict[str, Any]:
    """What a program leaves: its names, what it printed and raised, and the state of the random numbers."""
    torch.manual_seed(0)
    random.seed(0)
    names: dict[str, Any] = {"__name__": "program"}
    printed, raised = io.StringIO(), None
    linecache.cache["<program>"] = (
        len(program),
        None,
        program.splitlines(keepends=True),
        "<program>",
    )  # torch.jit reads it
    with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
        warnings.simplefilter("ignore")
        try:
            exec(compile(program, "<program>", "exec", dont_inherit=True), names)
        except Exception as error:
            raised = type(error).__name__
    names = {name: value for name, value in names.items() if not name.startswith("__")}
    torch.set_default_dtype(torch.float32)
    return {
        "raised": raised,
        "printed": printed.getvalue(),
        "random state": torch.get_rng_state(),
        "names": names,
    }


def difference(before: dict[str, Any], after: dict[str, Any], rtol: float) -> str:
    """The first thing in which two runs differ; names that imports of ours added do not count.

    What is computed from a tensor of 16 bits cannot be nearer than those are.
    """
    added = after["names"].keys() - before["names"].keys()
    ours = {n for n in added if getattr(after["names"][n], "__name__", "").startswith("portwright")}
    after = {**after, "names": {n: v for n, v in after["names"].items() if n not in ours}}
    has_half = any(getattr(v, "dtype", None) in HALVES for v in before["names"].values())
    rtol = max(rtol, 1e-2) if rtol and has_half else rtol
    return _differ("", before, after, rtol, set())


def _differ(place: str, one: Any, other: Any, rtol: float, seen: set[tuple[int, int]]) -> str:
    one, other = (
        getattr(each, "_orig_mod", each) for each in (one, other)
    )  # its names are seen where it is asked
    if (id(one), id(other)) in seen:
        return ""
    seen.add((id(one), id(other)))
    if all(callable(each) and not isinstance(each, (type, nn.Module)) for each in (one, other)):
        return ""  # what they compute is seen where they are called
    if type(one).__name__ != type(other).__name__:
        return f"{place} is {type(one).__name__} {one!r}, then {type(other).__name__} {other!r}"
    if isinstance(one, Tensor):
        return _differ_tensors(place, one, other, rtol, seen)
    if isinstance(one, nn.Module):
        parts = [
            {"repr": repr(m), "state": m.state_dict(), "training": m.training, "gradients": [p.grad for p in m.parameters()]}
            for m in (one, other)
        ]  # fmt: skip
        return _differ(place, *parts, rtol, seen)
    if isinstance(one, dict):
        if list(one) != list(other):
            return f"{place} has the keys {list(one)}, then {list(other)}"
        return next((w for k in one if (w := _differ(f"{place}.{k}", one[k], other[k], rtol, seen))), "")
    if isinstance(one, (list, tuple, torch.Size)):
        if len(one) != len(other):
            return f"{place} has {len(one)} items, then {len(other)}"
        return next((w for i, (a, b) in enumerate(zip(one, other, strict=True)) if (w := _differ(f"{place}[{i}]", a, b, rtol, seen))), "")  # fmt: skip
    if isinstance(one, float):
        same = math.isclose(one, other, rel_tol=rtol, abs_tol=rtol) or (one != one and other != other)
        return "" if same else f"{place} is {one}, then {other}"
    if isinstance(one, type):
        return _differ(place, _public(one), _public(other), rtol, seen) if one.__module__ == "program" else ""
    if isinstance(one, (int, str, bytes, torch.dtype, torch.device, type(None))):
        return "" if one == other else f"{place} is {one!r}, then {other!r}"
    if isinstance(one, types.SimpleNamespace):
        return _differ(place, vars(one), vars(other), rtol, seen)
    return ""


def _public(owner: type) -> dict[str, Any]:
    return {name: value for name, value in vars(owner).items() if not name.startswith("__")}


def _differ_tensors(place: str, one: Tensor, other: Tensor, rtol: float, seen: Any) -> str:
    for what in ("dtype", "device", "shape", "layout"):
        if getattr(one, what) != getattr(other, what):
            return f"{place}.{what} is {getattr(one, what)}, then {getattr(other, what)}"
    if _has_gradient(one) != _has_gradient(other):
        return f"{place}.requires_grad is {one.requires_grad}, then {other.requires_grad}"
    a, b = (t.detach().to_dense().as_subclass(Tensor) for t in (one, other))
    if rtol and place.endswith(".grad"):  # a form may have a number where torch's gradient has none
        b = torch.where(a.isnan(), a, b)
    exact = not rtol or not (a.is_floating_point() or a.is_complex())
    equal = torch.allclose(a, b, rtol=0 if exact else rtol, atol=0 if exact else rtol, equal_nan=True) if a.dtype != torch.bool else torch.equal(a, b)  # fmt: skip
    if not equal:
        return f"{place} differs: {one}, then {other}"
    if one.is_leaf and _has_gradient(one):
        return _differ(f"{place}.grad", one.grad, other.grad, rtol, seen)
    return ""


def _has_gradient(tensor: Tensor) -> bool:
    """Views that were made under no_grad() say that they require a gradient if their base does, and pass none on."""
    return tensor.requires_grad and (tensor.grad_fn is not None or not tensor._is_view())


def all_patterns() -> dict[str, Pattern]:
    """Those of every file patterns*.py beside this one."""
    found: dict[str, Pattern] = {}
    for path in sorted(Path(__file__).parent.glob("patterns*.py")):
        found |= importlib.import_module(f"audit.{path.stem}").PATTERNS
    return found


def _audit_anyhow(code: str, num_programs: int) -> tuple[Count, str]:
    """A rule's counts, by whichever means it has here, and what was done."""
    if code in (patterns := all_patterns()):
        return audit(code, patterns[code], num_programs), "drawn around the pattern, run before and after"
    if code == "PW340":
        layers = importlib.import_module("unit.port.test_transformer_programs")
        with tempfile.TemporaryDirectory() as folder:
            for seed in range(num_programs):
                layers.check_program(seed, Path(folder))
        return Count(
            num_programs, num_programs, num_programs
        ), "models of torch's layers, a training step and an evaluation before and after"
    devices = importlib.import_module("audit.devices").audit_devices(num_programs * 3)
    return devices[code], "training scripts, run as with CUDA, as without, and as on a target"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("num_programs", nargs="?", type=int, default=12)
    asked.add_argument("codes", nargs="*", help="without any: every safe rule of PyTorch")
    asked.add_argument(
        "--write",
        action="store_true",
        help="write the counts into results.json, whose faults stay as they are",
    )
    arguments = asked.parse_args()
    safe = sorted(r.code for r in find_rules().values() if r.safety == "safe" and r.framework == "torch")
    results = {row["rule"]: row for row in json.loads(RESULTS.read_text())}
    for code in arguments.codes or safe:
        count, how = _audit_anyhow(code, arguments.num_programs)
        print(
            f"{code}: {count.drawn} drawn, {count.rewritten} rewritten, {count.ran} ran, {len(count.faults)} differ",
            flush=True,
        )
        print("\n".join(count.faults[:3]), end="")
        known = results.get(code, {"faults": []})
        results[code] = {
            "rule": code, "drawn": count.drawn, "rewritten": count.rewritten, "ran": count.ran, "how": how,
            "differ": len(count.faults), "faults": known["faults"],
        }  # fmt: skip
        if arguments.write:
            RESULTS.write_text(json.dumps([results[c] for c in sorted(results)], indent=1) + "\n")


if __name__ == "__main__":
    importlib.import_module("audit.harness").main()
