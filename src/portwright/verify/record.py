"""The process in which a training script runs while it is recorded; `launch.record` starts it."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

import portwright
from portwright.discover import peek_target
from portwright.emulate import PACKAGES, is_emulated, lend
from portwright.verify.hooks import install
from portwright.verify.hooks_dtype import hook_float64, widen
from portwright.verify.hooks_float64 import compute_in_float64
from portwright.verify.hooks_poptorch import count_real, record_emulated, when_lent
from portwright.verify.hooks_portwright import hook_portwright
from portwright.verify.hooks_process import hook_processes, hook_saving
from portwright.verify.launch import NEVER_TRAINED, PROGRESS
from portwright.verify.record_data import hook_loaders
from portwright.verify.record_links import Links
from portwright.verify.record_names import Names
from portwright.verify.record_refusal import refuse
from portwright.verify.record_script import run_as_main
from portwright.verify.record_seeds import Streams
from portwright.verify.record_steps import Watch
from portwright.verify.recording import Recording, Tensor


def main() -> NoReturn:
    options, words = _parse(sys.argv[1:])
    options.folder = Path.cwd()  # the script may go elsewhere
    _settle_torch()
    streams = Streams(options.seed)
    links = Links(streams, options.against, options.perturb)
    watch = Watch(Names(), streams, links, lambda: _step_done(watch, options, words), options.steps)
    install(watch, options.dropout == "off")
    hook_loaders(watch, widen if options.dtype == "float64" else None)
    _watch_vendor(watch, options)
    hook_portwright(options.scratch)
    hook_processes(watch)
    hook_saving(watch, options.scratch)
    if options.dtype == "float64":
        compute_in_float64()
    if options.dtype == "float64":
        hook_float64()
    streams.start("process")
    streams.guard_seeding()
    (options.into / PROGRESS).write_text("0")
    status, ended = 0, "script ended"
    try:
        run_as_main(words)
    except SystemExit as stop:
        status, ended = _exit_status(stop), f"script ended with {stop.code!r}"
    except BaseException as error:
        status, ended = 1, f"{type(error).__name__}: {error}"
        _print_error(error)
    watch.end_script()
    if not watch.steps and not status:
        sys.stdout.flush()
        if watch.num_processes:
            refuse(
                f"the script started {watch.num_processes} process(es) and updated no weight in its own.",
                "Give a command that trains in one process.",
            )
        if watch.vendor_calls:
            refuse(
                f"the script trained on a vendor's device ({_counted(watch.vendor_calls)}), where a recorder on the host sees no step.",
                "Verify under the vendor's rules instead: portwright verify ... --emulate ipu.",
            )
        print(NEVER_TRAINED, file=sys.stderr)
        status = 1
    _finish(watch, options, words, ended, status)


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    cut = list(argv).index("--")
    parser = argparse.ArgumentParser(prog="portwright.verify.record")
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dropout", choices=("drawn", "off"), default="drawn")
    parser.add_argument("--perturb", type=float, default=0.0)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--dtype", choices=("as written", "float64"), default="as written")
    parser.add_argument("--emulate", default="")
    return parser.parse_args(argv[:cut]), list(argv[cut + 1 :])


def _watch_vendor(watch: Watch, options: argparse.Namespace) -> None:
    """Lends the emulator that was asked for, and records its steps; else counts those of a vendor's real package."""
    if not options.emulate:
        count_real(watch)
        when_lent(watch)
        return
    if options.dtype == "float64":
        refuse("an IPU has no float64.", "Nothing: what float64 would have settled stays open.")
    lend("poptorch")
    record_emulated(watch)


def _settle_torch() -> None:
    """One thread and the algorithms that repeat, whatever the script says later."""
    torch.set_num_threads(1)
    torch.set_num_threads = lambda nthreads: None
    choose = torch.use_deterministic_algorithms
    torch.use_deterministic_algorithms = lambda mode, *, warn_only=True: choose(True, warn_only=True)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _step_done(watch: Watch, options: argparse.Namespace, words: list[str]) -> None:
    (options.into / PROGRESS).write_text(str(len(watch.steps)))
    if len(watch.steps) >= options.steps:
        _finish(watch, options, words, "steps", 0)


def _exit_status(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF
    print(stop.code, file=sys.stderr)
    return 1


def _print_error(error: BaseException) -> None:
    """The script's own frames, as the interpreter would show them."""
    shown = error.__traceback__
    while shown is not None and "/portwright/verify/" in shown.tb_frame.f_code.co_filename:
        shown = shown.tb_next
    traceback.print_exception(type(error), error, shown)


def _finish(watch: Watch, options: argparse.Namespace, words: list[str], ended: str, status: int) -> NoReturn:
    """Writes the recording and ends the process at once, so that no handler of the script's can go on."""
    try:
        if watch.steps:
            _write(watch, options, words, ended)
    except BaseException:
        traceback.print_exc()
        status = status or 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _write(watch: Watch, options: argparse.Namespace, words: list[str], ended: str) -> None:
    from safetensors.torch import save_file

    watch.is_paused = True
    links = watch.links
    tensors = []
    for named in watch.names.tensors.values():
        values = links.initial[named.name]
        numbers = values.to(torch.float64) if not values.is_complex() else torch.view_as_real(values)
        tensors.append(
            Tensor(
                name=named.name,
                shape=tuple(values.shape),
                dtype=str(values.dtype).removeprefix("torch."),
                kind=named.kind,  # type: ignore[arg-type]
                mean=float(numbers.mean()) if numbers.numel() else 0.0,
                deviation=float(numbers.std(correction=0)) if numbers.numel() else 0.0,
                trained=watch.is_trained(named),
                owner="" if named.owner is None else type(named.owner).__name__,
                aliases=tuple(named.aliases),
                called=watch.called.get(id(named.owner), -1),
            )
        )
    target = peek_target(words[1:]) if words[0] != "-m" else peek_target(words[2:])
    recording = Recording(
        command=words,
        folder=str(options.folder),
        seed=options.seed,
        asked_steps=options.steps,
        versions=_versions(),
        tensors=tensors,
        steps=watch.steps,
        matches=links.matches,
        unmatched=links.unmatched(watch.is_trained),
        missing=links.missing(),
        target=options.emulate.upper() or (target.name if target is not None else ""),
        ran_on=_where(watch),
        dropout=options.dropout,
        dtype=options.dtype,
        perturbed=options.perturb,
        ended=ended,
        notes=[*watch.notes, *links.notes(watch.is_trained)],
        arrays={**{f"initial/{name}": sketch for name, sketch in links.sketches.items()}, **watch.arrays},
    )
    save_file(links.initial, options.into / "initial.safetensors")
    recording.save(options.into)


def _versions() -> dict[str, str]:
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "portwright": portwright.__version__,
    }


def _where(watch: Watch) -> dict[str, Any]:
    devices = sorted({device for step in watch.steps for device in step.devices})
    vendors = [
        name for name in ("cerebras.pytorch", "poptorch", "torch_xla", "sambaflow") if name in sys.modules
    ]
    ran_on = {"devices": devices, "vendor_modules": vendors, "python": sys.executable}
    if watch.vendor_calls:
        ran_on["vendor_calls"] = dict(watch.vendor_calls)
    emulated = {
        name: PACKAGES[name] for name in vendors if name in PACKAGES and is_emulated(sys.modules[name])
    }
    if emulated:
        ran_on["emulated"] = emulated
    return ran_on


def _counted(calls: Mapping[str, int]) -> str:
    return ", ".join(f"{number} calls of {name}" for name, number in calls.items())


if __name__ == "__main__":
    main()
