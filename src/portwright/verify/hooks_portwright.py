"""Hooks what surrounds the training of a recorded script: Portwright's own run(), further processes, and saved files."""

from __future__ import annotations

import multiprocessing.process
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as torch_processes
from torch.utils.data import DataLoader

from portwright.data import loader as loaders
from portwright.data.source import Numbered, Shared, Source
from portwright.data.split import count_samples
from portwright.discover import peek_target
from portwright.patched import in_place_of
from portwright.runtime import optimizer_state
from portwright.runtime.inputs import Inputs
from portwright.verify.launch import refuse
from portwright.verify.record_run import describe_saved
from portwright.verify.record_steps import Watch


class _PlainOrder:
    """Reads a user's DataLoader by plain iteration, in place of run()'s resumable order."""

    def __init__(self, data: DataLoader[Any], source: Source) -> None:
        self._data, self._source = data, source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def read(self, epoch: int, start: int) -> Iterator[Numbered]:
        batch_sampler = self._data.batch_sampler
        for sampler in (self._data.sampler, batch_sampler, getattr(batch_sampler, "sampler", None)):
            if callable(getattr(sampler, "set_epoch", None)):
                sampler.set_epoch(epoch)  # type: ignore[union-attr]
        for number, batch in enumerate(self._data):
            size = count_samples(batch) or 1
            if number >= start:
                yield number, batch, (size, size)

    def reread(self, epoch: int, number: int) -> Any | None:
        return None


def hook_portwright(watch: Watch, scratch: Path) -> None:
    _keep_inputs(watch)
    _leave_out_stand_ins(watch)

    @in_place_of(loaders, "open_source")
    def open_source(opened: Any, data: Any, shared: Shared) -> Any:
        source = opened(data, shared)
        return _PlainOrder(data, source) if isinstance(data, DataLoader) else source

    import portwright.job.command
    import portwright.runtime.run

    command: Any = portwright.job.command
    run: Any = portwright.runtime.run

    def stay_local(environment: Any, words: Sequence[str], note: Any) -> None:
        if environment is None or environment.is_here():
            return
        refuse(
            f"the target {environment.target.upper()} runs in an environment of its own ({environment.title}), where a "
            "recorder that stands in this one sees nothing.",
            "Verify the port on the CPU: python run.py CPU --mode train ...",
        )

    # The target is checked here: the command line is the recorder's, so run() takes itself for a call inside a program.
    @in_place_of(run, "continue_in_target_environment")
    def check_target(go: Any, argv: Sequence[str]) -> None:
        target = peek_target(argv)
        if target is not None:
            on_host = [name for flag in target.flags if flag.runs_on_host for name in flag.names]
            if on_host and not set(on_host).intersection(argv):
                refuse(
                    f"on {target.name} a step runs on the system, where its weights and gradients cannot be read step by step.",
                    f"Verify with {on_host[0]}, or on the CPU: python run.py CPU --mode train ...",
                )
            stay_local(target.environment, argv, None)
        go(argv)

    command.hand_over_if_elsewhere = stay_local
    run.find_model_dir = lambda arguments, params: scratch / "model_dir"


def _keep_inputs(watch: Watch) -> None:
    """Keeps the inputs of the run, to read its evaluation data and learning rates after the steps."""

    @in_place_of(Inputs, "__init__")
    def kept_init(made: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        watch.inputs = self


def _leave_out_stand_ins(watch: Watch) -> None:
    """Pauses recording during the step on stand-in tensors by which a checkpoint learns the optimizer's state."""

    @in_place_of(optimizer_state, "_step_on_stand_in")
    def unseen_step(step: Any, *args: Any) -> Any:
        before, watch.is_paused = watch.is_paused, True
        try:
            return step(*args)
        finally:
            watch.is_paused = before


def hook_processes(watch: Watch) -> None:
    """Replaces spawning one training process by a call; nothing is recorded in other child processes."""

    def pause() -> None:
        watch.is_paused = True

    os.register_at_fork(after_in_child=pause)

    @in_place_of(multiprocessing.process.BaseProcess, "start")
    def counted_start(start: Any, self: Any) -> Any:
        watch.num_processes += 1
        return start(self)

    def spawn(fn: Any, args: Any = (), nprocs: int = 1, join: bool = True, *_: Any, **__: Any) -> None:
        if nprocs != 1:
            refuse(
                f"the script spawns {nprocs} processes to train in, and a recording follows one.",
                "Let it train in one process, without torch.multiprocessing.spawn.",
            )
        fn(0, *args)

    torch_processes.spawn = spawn  # type: ignore[attr-defined]


def hook_saving(watch: Watch, scratch: Path) -> None:
    """Redirects saved files to a scratch folder, so that a recording overwrites no checkpoint."""
    saved: dict[str, Path] = {}

    @in_place_of(torch, "save")
    def save_aside(save: Any, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(f, str | os.PathLike):
            path = str(Path(f).resolve())
            if path not in saved:
                saved[path] = scratch / f"saved_{len(saved)}"
                if not watch.rest.is_on:
                    watch.notes.append(f"{os.fspath(f)} was not written: a recording saves nothing.")
            f = saved[path]
        keys = describe_saved(obj)
        if keys not in watch.saved:
            watch.saved.append(keys)
        save(obj, f, *args, **kwargs)

    @in_place_of(torch, "load")
    def load_aside(load: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(f, str | os.PathLike):
            f = saved.get(str(Path(f).resolve()), f)
        return load(f, *args, **kwargs)
