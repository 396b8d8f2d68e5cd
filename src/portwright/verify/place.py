"""Compares where the steps of a port really ran with the target that its command asked for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from portwright.discover import find_targets
from portwright.verify.recording import Recording


@dataclass
class Place:
    """Where the steps ran; `on_target` is None where the command named no target."""

    target: str = ""
    on_target: bool | None = None
    ran_on: dict[str, Any] = field(default_factory=dict)
    says: str = ""


def find_place(ported: Recording) -> Place:
    """Finds where the steps ran, with one sentence on what the proof is worth there."""
    devices = sorted({device.partition(":")[0] for step in ported.steps for device in step.devices})
    ran_on: dict[str, Any] = {"devices": devices, **ported.ran_on}
    target = ported.target.upper()
    if not target and ported.ran_on.get("vendor_calls"):
        lent = ported.ran_on.get("emulated") or ()
        target = next((t.name for t in find_targets().values() if t.emulator in lent), "")
    shown = _words(devices)
    if not target:
        return Place(
            "",
            None,
            ran_on,
            f"Both scripts ran on this machine's {shown}: the proof is about what they compute there.",
        )
    known = find_targets().get(target)
    if known is not None and known.device_types:
        is_there = bool(devices) and set(devices) <= set(known.device_types)
        says = (
            f"The port's steps ran on {shown}, as its command asks ({target})."
            if is_there
            else f"The command asks for {target}, and the port's steps ran on {shown}: this proves nothing about {target}."
        )
        return Place(target, is_there, ran_on, says)
    if ported.ran_on.get("emulated"):
        return _emulated(ported, target, ran_on)
    calls = list(ported.ran_on.get("vendor_calls") or [])
    if not calls and any(device != "cpu" for device in devices):
        calls = list(ported.ran_on.get("vendor_modules") or [])
    if calls:
        names = _words(str(call) for call in calls)
        return Place(
            target,
            True,
            ran_on,
            f"The port's steps went through the vendor's software for {target}: {names}.",
        )
    return Place(
        target,
        False,
        ran_on,
        f"The command asks for {target}, and its steps ran on {shown} without a call of the vendor's software: "
        f"this proves nothing about {target}.",
    )


def _emulated(ported: Recording, target: str, ran_on: dict[str, Any]) -> Place:
    """The place of an emulated port, whose executor must have made every step."""
    title = _words(ported.ran_on["emulated"].values())
    made = sum((ported.ran_on.get("vendor_calls") or {}).values())
    if made >= len(ported.steps) > 0:
        says = f"The port's steps ran under the rules of {title}, emulated on this machine's CPU: no {target} was used."
        return Place(target, True, ran_on, says)
    says = (
        f"Of the port's {len(ported.steps)} steps, {made} went through the executor of {title} (emulated), the others ran on the "
        f"host: this proves nothing about {target}."
    )
    return Place(target, False, ran_on, says)


def _words(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(n.upper() if n == "cpu" else n for n in listed[:5]) if listed else "an unknown device"
