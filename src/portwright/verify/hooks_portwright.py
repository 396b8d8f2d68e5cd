"""Portwright's own run() and loader under the recorder: a scratch run directory, and the batches that the original sees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from portwright.data import loader as loaders
from portwright.data.source import Numbered, Shared, Source
from portwright.data.split import count_samples
from portwright.verify.record_refusal import refuse


class _AsWritten:
    """The batches of a user's DataLoader as iterating over it gives them, in place of the resumable order."""

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


def hook_portwright(scratch: Path) -> None:
    opened = loaders.open_source

    def open_source(data: Any, shared: Shared) -> Any:
        source = opened(data, shared)
        return _AsWritten(data, source) if isinstance(data, DataLoader) else source

    loaders.open_source = open_source
    import portwright.job.command
    import portwright.runtime.run

    command: Any = portwright.job.command
    run: Any = portwright.runtime.run

    def stay_here(environment: Any, words: Sequence[str], note: Any) -> None:
        if environment is None or environment.is_here():
            return
        refuse(
            f"the target {environment.target.upper()} runs in an environment of its own ({environment.title}), where a "
            "recorder that stands in this one sees nothing.",
            "Verify the port on the CPU: python run.py CPU --mode train ...",
        )

    command.hand_over_if_elsewhere = stay_here
    run.go_where_the_target_is = _check_first(run.go_where_the_target_is, stay_here)
    run.find_model_dir = lambda arguments, params: scratch / "model_dir"


def _check_first(go: Any, stay_here: Any) -> Any:
    """The command line as a whole is the recorder's, so that run() would take itself for a call inside a program."""

    def check(argv: Sequence[str]) -> None:
        from portwright.discover import peek_target

        target = peek_target(argv)
        if target is not None:
            if target.name == "CSX" and "--on_cpu" not in argv and "--on-cpu" not in argv:
                refuse(
                    "on CSX a step runs on the system, where its weights and gradients cannot be read step by step.",
                    "Verify with --on_cpu, or on the CPU: python run.py CPU --mode train ...",
                )
            stay_here(target.environment, argv, None)
        go(argv)

    return check
