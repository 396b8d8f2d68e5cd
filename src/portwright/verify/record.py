"""The process in which a training script runs while it is recorded; `launch.record` starts it."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

import portwright
from portwright.discover import peek_target
from portwright.emulate import PACKAGES, is_emulated, lend
from portwright.job.main_script import run_as_main
from portwright.verify.hooks import install, is_users
from portwright.verify.hooks_dtype import compute_in_float64, widen
from portwright.verify.hooks_poptorch import count_real, record_emulated, record_when_loaded
from portwright.verify.hooks_portwright import hook_portwright, hook_processes, hook_saving
from portwright.verify.launch import FAILED_AT, PROGRESS, refuse
from portwright.verify.record_data import Loading, hook_loaders
from portwright.verify.record_links import Links
from portwright.verify.record_names import Names
from portwright.verify.record_rest import speed_up_clocks
from portwright.verify.record_run import describe_run, describe_schedulers, hook_run
from portwright.verify.record_seeds import Streams
from portwright.verify.record_steps import Watch
from portwright.verify.recording import Recording, Tensor

_OTHER_FRAMEWORKS = {"tensorflow": "TensorFlow", "jax": "JAX", "mxnet": "MXNet", "paddle": "PaddlePaddle"}


def main() -> NoReturn:
    options, words = _parse(sys.argv[1:])
    options.folder = Path.cwd()  # the script may change the working directory
    _make_deterministic()
    streams = Streams(options.seed)
    links = Links(streams, options.against, options.perturb)
    watch = Watch(Names(), streams, links, lambda: _step_done(watch, options, words, loading), options.steps)
    install(watch, options.dropout == "off")
    loading = hook_loaders(watch, widen if options.dtype == "float64" else None)
    _watch_vendor(watch, options)
    hook_run(watch)
    hook_portwright(watch, options.scratch)
    hook_processes(watch)
    hook_saving(watch, options.scratch)
    if options.dtype == "float64":
        compute_in_float64()
    watch.rest.hook_printing()
    if options.perturb:
        speed_up_clocks()
    streams.start("process")
    streams.guard_seeding()
    (options.into / PROGRESS).write_text("0")
    status, ended = 0, "script ended"
    ours = set(sys.modules)
    try:
        run_as_main(words)
    except SystemExit as stop:
        status, ended = _exit_status(stop), f"script ended with {stop.code!r}"
        if status:
            _note_line(stop.__cause__ or stop, options.into)
    except BaseException as error:
        status, ended = 1, f"{type(error).__name__}: {error}"
        _note_line(error, options.into)
        _print_error(error)
    if watch.rest.is_on:
        watch.rest.failure, watch.rest.is_over = ended if status else "", True
        _finish(watch, options, words, "steps", 0, loading)
    watch.end_script()
    if not watch.steps and not status:
        sys.stdout.flush()
        if watch.num_processes:
            refuse(
                f"the script started {watch.num_processes} process(es) and updated no weight in its own.",
                "Give a command that trains in one process.",
            )
        if watch.vendor_calls:
            counted = ", ".join(f"{number} calls of {name}" for name, number in watch.vendor_calls.items())
            refuse(
                f"the script trained on a vendor's device ({counted}), where a recorder on the host sees no step.",
                "Verify under the vendor's rules instead: portwright verify ... --emulate ipu.",
            )
        others = [title for name, title in _OTHER_FRAMEWORKS.items() if name in set(sys.modules) - ours]
        if others:
            refuse(
                f"it imports {' and '.join(others)} and updated no weight of PyTorch; {others[0]} is not recorded, and "
                "verify compares PyTorch programs.",
                "Compare the losses that both programs print.",
            )
    _finish(watch, options, words, ended, status, loading)


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
    """Loads the emulator that was asked for and records its steps; else counts the steps of a vendor's real package."""
    if not options.emulate:
        count_real(watch)
        record_when_loaded(watch)
        return
    if options.dtype == "float64":
        refuse("an IPU has no float64.", "Nothing: what float64 would have settled stays open.")
    lend("poptorch")
    record_emulated(watch)


def _make_deterministic() -> None:
    """Fixes one thread and deterministic algorithms, even if the script sets others."""
    torch.set_num_threads(1)
    torch.set_num_threads = lambda nthreads: None
    choose = torch.use_deterministic_algorithms
    torch.use_deterministic_algorithms = lambda mode, *, warn_only=True: choose(True, warn_only=True)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _step_done(watch: Watch, options: argparse.Namespace, words: list[str], loading: Loading) -> None:
    (options.into / PROGRESS).write_text(str(len(watch.steps)))
    if len(watch.steps) < options.steps:
        return
    # these steps come from no loop of the script, whose epochs could be shortened
    if watch.inputs is not None or options.emulate or watch.vendor_calls:
        _finish(watch, options, words, "steps", 0, loading)
    watch.schedules = describe_schedulers(watch.schedulers)
    watch.rest.failure = "the process ended without a word"  # overwritten if the process goes on
    _write(watch, options, words, "steps", None)
    watch.is_paused, watch.rest.failure = False, ""
    watch.rest.begin(lambda: _finish(watch, options, words, "steps", 0, loading))


def _exit_status(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF
    print(stop.code, file=sys.stderr)
    return 1


def _print_error(error: BaseException) -> None:
    """Prints the traceback without the recorder's frames."""
    shown = error.__traceback__
    while shown is not None and "/portwright/verify/" in shown.tb_frame.f_code.co_filename:
        shown = shown.tb_next
    traceback.print_exception(type(error), error, shown)


def _note_line(error: BaseException, into: Path) -> None:
    """Writes down the innermost line of the user's code in the traceback."""
    lines = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if is_users(frame.filename)
    ]
    if isinstance(error, SyntaxError) and error.filename:
        lines.append(f"{error.filename}:{error.lineno}")
    if lines:
        (into / FAILED_AT).write_text(lines[-1], encoding="utf-8")


def _finish(
    watch: Watch, options: argparse.Namespace, words: list[str], ended: str, status: int, loading: Loading
) -> NoReturn:
    """Writes the recording and ends the process at once, so that no exit handler of the script runs."""
    try:
        if watch.steps:
            _write(watch, options, words, ended, loading)
    except BaseException:
        traceback.print_exc()
        status = status or 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _write(
    watch: Watch, options: argparse.Namespace, words: list[str], ended: str, loading: Loading | None
) -> None:
    """Writes the recording; `loading` is None if the script goes on afterwards, and then the state of its loaders is left alone."""
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
        versions={
            "python": ".".join(map(str, sys.version_info[:3])),
            "torch": str(torch.__version__),
            "numpy": np.__version__,
            "portwright": portwright.__version__,
        },
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
        sources=_project_sources(),
        run=describe_run(watch, loading.at if loading else None, options.against),
        ended=ended,
        notes=[*watch.notes, *links.notes(watch.is_trained)],
        arrays={**{f"initial/{name}": sketch for name, sketch in links.sketches.items()}, **watch.arrays},
    )
    save_file(links.initial, options.into / "initial.safetensors")
    recording.save(options.into)


def _project_sources() -> list[str]:
    """Checksums of the user's files that were imported: equal lists mean that nothing was ported."""
    files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    ours = str(Path(portwright.__file__).parent)
    found = [Path(f) for f in files if f.endswith(".py") and not f.startswith(ours) and is_users(f)]
    return sorted(hashlib.sha256(file.read_bytes()).hexdigest() for file in found if file.is_file())


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


if __name__ == "__main__":
    main()
