"""Decides what `check` answers for one entry script and one target: a verdict, its reasons, and a command."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from portwright.discover import find_rules, find_target, find_targets
from portwright.port.check import RULE_FAILED, UNREADABLE, Selection
from portwright.port.files import show
from portwright.port.finding import Finding
from portwright.port.look import Look
from portwright.port.owners import KERAS_FIT, SCRIPT, Owner
from portwright.port.report import manual_minutes
from portwright.target import Target

Answer = Literal["runs as it is", "runs after port", "needs a person", "cannot tell"]
AS_IT_IS: Answer = "runs as it is"
AFTER_PORT: Answer = "runs after port"
PERSON: Answer = "needs a person"
CANNOT_TELL: Answer = "cannot tell"
_MOST_REASONS = 3


@dataclass(frozen=True)
class Verdict:
    """The answer for one entry and one target.

    - runs as it is: the target runs the loop of this owner, every file was read, and there is no finding for the target.
    - runs after port: a plan of a `port` style rewrites every finding.
      Neither means that the target supports every operation of a step; the reasons say so.
    - needs a person: an owner that no style can port, a refusal, or findings that the port leaves.
    - cannot tell: some file was not read, there are no rules for the target, or no training loop was found.

    Known obstacles go before gaps in what was read.
    """

    target: str
    answer: Answer
    reasons: tuple[str, ...]
    command: str = ""
    fixed: int | None = None  # number of findings that the port rewrites; None without a port
    left: int | None = None  # number that it leaves
    minutes: int | None = None  # rough guess of manual work on these

    def as_dict(self) -> dict[str, Any]:
        row = {"target": self.target, "verdict": self.answer, "reasons": list(self.reasons)}
        return row | {name: getattr(self, name) for name in ("command", "fixed", "left", "minutes")}


@dataclass(frozen=True)
class Plan:
    """What one style of `port` would do; nothing is written."""

    command: str
    refusal: str = ""
    fixed: int = 0
    left: tuple[Finding, ...] = ()


def decide(
    look: Look,
    target: str,
    findings: Sequence[Finding],
    selection: Selection,
    ask: Callable[[Look, str, str], Plan],
) -> Verdict:
    """The verdict; if the loop can be ported, `ask` plans a style: in-place, layout or branches."""

    plan = partial(ask, look, target)
    machine = find_target(target)
    plain = machine.torch_device if machine is not None else None
    about = [f for f in findings if target in f.targets and f.code not in (UNREADABLE, RULE_FAILED)]
    gaps = _gaps(look, target, findings, selection, plain)
    if not plain and not any(target in rule.targets for rule in find_rules().values()):
        return Verdict(
            target, CANNOT_TELL, (f"Portwright has no rules for {target}: nothing was asked", *gaps)
        )
    owners = [owner for owner, _ in look.owners]
    if foreign := strangers(look, target):
        if owners and owners[0].framework == "tensorflow" and KERAS_FIT in owners and machine is not None:
            layout = plan("layout")
            more = (
                f"`--style layout` refuses: {layout.refusal}"
                if layout.refusal
                else f"`{layout.command}` writes it for the CPU and for `plan`"
            )
            foreign = {owner: f"{reason}. {more}" for owner, reason in foreign.items()}
        return Verdict(target, PERSON, (*foreign.values(), *gaps))
    native = [owner for owner in owners if _is_taken(owner, machine)]
    if native:
        if plain and (reason := _wrong_device(look, plain, native)):
            return Verdict(target, PERSON, (reason, *gaps))
        return _decide_by_findings(look, target, about, gaps, native[0], selection, plan)
    if not owners:
        blocking = [f for f in about if f.safety != "safe"]
        loops = [f for f in about if f.code == "PW401"]
        nobody = f"no training loop was found in {_files(look)}: pass the script that trains"
        if loops:
            nobody = f"running {show(look.entry)} does not lead to the training loop ({_at(loops[0])}): pass the script that calls it"
        if blocking:
            return Verdict(target, PERSON, (nobody, *_places(blocking), *gaps))
        return Verdict(target, CANNOT_TELL, (*gaps, nobody))
    asked = {style: plan(style) for style in ("branches", "layout")}
    able = sorted((p for p in asked.values() if p.command), key=lambda p: len(p.left))
    if able:
        return _decide_by_plan(target, able[0], gaps)
    refused = [f"`--style {style}` refuses: {p.refusal}" for style, p in asked.items() if p.refusal]
    return Verdict(target, PERSON, (*refused, *gaps))


def _is_taken(owner: Owner, machine: Target | None) -> bool:
    """Whether a target runs the owner's loop as it is."""
    if owner.is_run or machine is None:
        return owner.is_run
    if owner.package:
        return owner.package == machine.package
    return machine.torch_device is not None and owner.framework != "jax"


def has_style(owner: Owner, owners: Iterable[Owner]) -> bool:
    """Whether a style of `port` can port the loop, also that of a script with a vendor's branch."""
    return owner.is_ported or (owner.package != "" and SCRIPT in owners)


def strangers(look: Look, target: str) -> dict[Owner, str]:
    """Owners whose loop the target does not run and no style of `port` can port, each with the reason."""
    machine = find_target(target)
    owners = [owner for owner, _ in look.owners]
    is_tensorflow = bool(owners) and all(owner.framework == "tensorflow" for owner in owners)
    if is_tensorflow and machine is not None and machine.tensorflow_device is None:
        able = " and ".join(
            t.name.lower() for t in find_targets().values() if t.tensorflow_device is not None
        )
        why = f"TensorFlow does not train on {target}: {machine.no_tensorflow}; {able} train it"
        return {owners[0]: f"{_owns(look, owners[0])}, and {why}"}
    is_plain = machine is not None and machine.torch_device is not None
    why = (
        f"it asks for other software than {target}'s"
        if is_plain
        else "no style of `portwright port` takes it over"
    )
    return {
        owner: f"{_owns(look, owner)}, and {why}"
        for owner in owners
        if not _is_taken(owner, machine) and not has_style(owner, owners)
    }


def _wrong_device(look: Look, device: str, owners: Sequence[Owner]) -> str:
    """Why the device that the script names is wrong for a target on which torch itself runs; "" if it is not."""
    if device == "cpu":
        return f"it asks for a GPU whether there is one or not ({look.uses_gpu})" if look.uses_gpu else ""
    if not look.names_device and all(owner is SCRIPT for owner in owners):
        return "no line names a GPU or a device, so that it trains on the CPU"
    return ""


def _decide_by_findings(
    look: Look, target: str, about: Sequence[Finding], gaps: Sequence[str], owner: Owner, selection: Selection,
    plan: Callable[[str], Plan],
) -> Verdict:  # fmt: skip
    """The verdict for a target that runs the loop: only findings decide."""
    if about:
        return _decide_by_plan(target, plan("in-place"), gaps)
    if gaps:
        return Verdict(target, CANNOT_TELL, tuple(gaps))
    ignored = f"; ignored, as you say: {', '.join(sorted(selection.ignored))}" if selection.ignored else ""
    return Verdict(
        target, AS_IT_IS, (f"{_owns(look, owner)}, which {target} takes{ignored}", *_caveat(target))
    )


def _decide_by_plan(target: str, plan: Plan, gaps: Sequence[str]) -> Verdict:
    numbers = {"fixed": plan.fixed, "left": len(plan.left), "minutes": manual_minutes(plan.left)}
    if plan.left:
        return Verdict(target, PERSON, (*_places(plan.left), *gaps), plan.command, **numbers)
    if gaps:
        return Verdict(target, CANNOT_TELL, tuple(gaps), plan.command)
    return Verdict(target, AFTER_PORT, _caveat(target), plan.command, **numbers)


def _caveat(target: str) -> tuple[str, ...]:
    """A reason which says that operations were not checked, for targets that support only some."""
    machine = find_target(target)
    is_all = machine is None or machine.kernels is None
    return (
        ()
        if is_all
        else (f"whether {target} takes each operation of a step was not asked (`portwright plan` asks)",)
    )


def _gaps(
    look: Look, target: str, findings: Sequence[Finding], selection: Selection, plain: str | None
) -> list[str]:
    """What was not read or checked, so that a good verdict is impossible."""
    found = [f"{_at(f)}: {f.message}" for f in findings if f.code in (UNREADABLE, RULE_FAILED)]
    found += [f"{what} was not followed ({place}): {why}" for what, why, place in look.not_followed]
    if plain:
        return found
    every = find_rules().values()
    own = [rule for rule in every if target in rule.targets]
    used = {owner.framework for owner, _ in look.owners}
    missing = sorted({r.group() for r in every if r.framework in used} - {r.group() for r in own})
    if missing:
        found.append(f"Portwright's rules for {target} say nothing of {', '.join(missing)}")
    asked = {rule.code for rule in selection.rules}
    unasked = [rule.code for rule in own if rule.code not in asked and rule.code not in selection.ignored]
    if unasked:
        found.append(f"{len(unasked)} of {len(own)} rules for {target} were not selected")
    return found


def _owns(look: Look, owner: Owner) -> str:
    place = next(place for each, place in look.owners if each is owner)
    return f"{owner.name} owns the training loop ({place})"


def _places(findings: Sequence[Finding]) -> list[str]:
    lines = [
        f"{_at(f)}: {f.code} {f.message}{' (--unsafe rewrites it)' if f.safety == 'unsafe' else ''}"
        for f in findings
    ]
    rest = len(lines) - _MOST_REASONS
    return lines if rest <= 0 else [*lines[:_MOST_REASONS], f"and {rest} more"]


def _at(finding: Finding) -> str:
    return f"{show(finding.path)}:{finding.line}"


def _files(look: Look) -> str:
    return show(look.entry) if len(look.files) == 1 else f"{show(look.entry)} and what it imports"
