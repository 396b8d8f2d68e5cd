"""Hooks Portwright's own run(): gives it a scratch run directory and the original's order of batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from portwright.data import loader as loaders
from portwright.data.source import Numbered, Shared, Source
from portwright.data.split import count_samples
from portwright.discover import peek_target
from portwright.patched import in_place_of
from portwright.runtime import optimizer_state
from portwright.runtime.inputs import Inputs
from portwright.verify.launch import refuse
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

    portwright.job.command.hand_over_if_elsewhere = stay_local
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
