"""The command `portwright convert`: converts HuggingFace's checkpoints to ours, and back."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from portwright.errors import UserError, suggest
from portwright.huggingface.check import Checked
from portwright.huggingface.incoming import bring_in, read_huggingface, read_zoo
from portwright.huggingface.options import OnBytes, Options
from portwright.huggingface.outgoing import take_back
from portwright.huggingface.problems import show_shape
from portwright.job.sizes import show_bytes
from portwright.job.stdout import printing
from portwright.text.progress import ByteProgress

__all__ = ["Options", "bring_in", "convert_and_print", "take_back"]

_SOURCES = {"hf": read_huggingface, "huggingface": read_huggingface, "zoo": read_zoo}
_DESTINATIONS = ("hf", "huggingface")
_LARGE_BYTES = 200_000_000  # smaller conversions show no progress bar


def convert_and_print(given_from: str | None, given_to: str | None, options: Options, as_json: bool) -> bool:
    """Converts, prints what was made, and returns whether the check, if asked for, found both sides equal."""
    if (given_from is None) == (given_to is None):
        raise UserError("one of --from and --to is needed.", "Say --from hf, --from zoo or --to hf.")
    chosen, valid = (given_from, _SOURCES) if given_from is not None else (given_to or "", _DESTINATIONS)
    if chosen.lower() not in valid:
        raise UserError(f"unknown format '{chosen}'.", suggest(chosen, valid))
    if not (math.isfinite(options.tolerance) and options.tolerance >= 0):
        raise UserError(f"--tolerance is {options.tolerance}.", "Give a number from 0 on, such as 1e-4.")
    convert: Callable[[Options, OnBytes], dict[str, Any]] = take_back
    if given_from is not None:
        convert = partial(bring_in, read=_SOURCES[chosen.lower()])
    try:
        with ByteProgress(lines=False) as progress:
            done = 0

            def on_bytes(num_bytes: int, total: int) -> None:
                nonlocal done
                done += num_bytes
                if total >= _LARGE_BYTES and not as_json:
                    progress("writing", done, total)

            made = convert(options, on_bytes)
    except OSError as error:  # while reading; errors of writing are reported there
        raise UserError(
            f"Cannot read {error.filename or options.source}: {(error.strerror or str(error)).lower()}.",
            "Check the path and its permissions.",
        ) from error
    with printing():
        if as_json:
            print(json.dumps(_finite(made), indent=2, allow_nan=False))
        else:
            _print(made)
    return made.get("check", {"equal": True})["equal"] is True


def _finite(made: Mapping[str, Any]) -> dict[str, Any]:
    """The result with null for NaN and infinity, which JSON lacks."""
    check = made.get("check")
    if check is None:
        return dict(made)
    plain = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in check.items()
    }
    return {**made, "check": plain}


def _print(made: Mapping[str, Any]) -> None:
    for note in made["notes"]:
        print(f"note: {note}", file=sys.stderr)
    if "table" in made:
        print(_render_moves(made["table"]))
        return
    print(
        f"{made['model']}: {made['tensors']} tensors, {show_bytes(made['bytes'])}, written to {made['out']}"
    )
    if "checkpoint" in made:
        print(f"  portwright run {shlex.quote(made['out'])} CPU --mode eval")
        print(f"  checkpoint: {made['checkpoint']}")
    if "check" in made:
        values = {key: value for key, value in made["check"].items() if key != "equal"}
        print(f"  {Checked(**values)}")


def _render_moves(rows: Sequence[dict[str, object]]) -> str:
    """The table of tensors as text."""
    lines = []
    for row in rows:
        theirs: list[str] = row["theirs"]  # type: ignore[assignment]
        shapes: list[list[int]] = row["their_shapes"]  # type: ignore[assignment]
        left = f"{row['ours']} {show_shape(row['shape'])}"  # type: ignore[arg-type]
        right = " + ".join(f"{name} {show_shape(shape)}" for name, shape in zip(theirs, shapes, strict=True))
        lines.append(f"{left:<64} <-> {right}{' transposed' if row['transposed'] else ''}")
    return "\n".join(lines)
