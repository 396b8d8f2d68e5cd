"""Hooks further processes and saved files of a recorded script."""

from __future__ import annotations

import multiprocessing.process
import os
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as torch_processes

from portwright.patched import in_place_of
from portwright.verify.launch import refuse
from portwright.verify.record_run import describe_saved
from portwright.verify.record_steps import Watch


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
