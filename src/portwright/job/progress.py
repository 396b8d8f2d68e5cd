"""The progress of a run: a bar on a terminal, a line per update elsewhere."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from portwright.job.console import Console

if TYPE_CHECKING:
    import rich.console
    from rich.text import Text

_BAR_WIDTHS = (8, 40)
_NUM_RATE_POINTS = 16  # updates that the estimate of the remaining time is based on
_RATES = ("steps_per_second", "samples_per_second")
_SHORT_NAMES = {"learning_rate": "lr"}


class Progress:
    """Shows the progress of `kind` ("train", "eval") up to step `total`, which may be unknown.

    `update` only notes the numbers; a thread of the console draws them. Rates come from the values
    `steps_per_second` and `samples_per_second`, or else from the updates. `lines` False shows nothing where there is
    no terminal; `shown` False shows nothing anywhere.
    """

    def __init__(
        self,
        kind: str,
        total: int | None,
        console: Console,
        *,
        start: int = 0,
        shown: bool = True,
        lines: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kind, self._total, self._console = kind, total, console
        self._clock = clock
        shown = shown and console.shows_info
        self._draws = shown and console.is_terminal
        self._prints = shown and lines and not console.is_terminal
        self._step = start
        self._values: dict[str, float] = {}
        self._started = clock()
        self._stopped: float | None = None
        self._points: deque[tuple[float, int]] = deque([(self._started, start)], maxlen=_NUM_RATE_POINTS)
        if self._draws:
            console.pin(self)

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Notes that `step` steps are done; an empty `values` leaves the last ones standing."""
        if not (self._draws or self._prints):
            return
        self._step = step
        if values:
            self._values = dict(values)
        if len(self._points) == 2 and self._points[0][0] == self._started:
            self._points.popleft()  # the time to the first update includes compiling and warming up
        self._points.append((self._clock(), step))
        if self._prints:
            self._console.info("  ".join(self._fields_of_line()))

    def close(self) -> None:
        """Leaves the last state on the terminal; more calls do nothing."""
        if self._stopped is not None:
            return
        self._stopped = self._clock()
        if self._draws:
            self._console.unpin(self)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- what is shown -------------------------------------------------------------------------------------------

    def _fields_of_line(self) -> Iterator[str]:
        yield f"{self._kind} step {self._count()}"
        yield from self._shown_values()
        yield from self._shown_rates()
        if (seconds := self._seconds_left()) is not None:
            yield f"ETA {format_seconds(seconds)}"

    def __rich_console__(
        self, console: rich.console.Console, options: rich.console.ConsoleOptions
    ) -> Iterator[Text]:
        from rich.text import Text

        # One column is left free: some terminals wrap when the last one is written.
        width = max(1, options.max_width - 1)
        fields = self._fields_that_fit(width)
        used = sum(len(field) + 1 for field in fields)
        text = Text(fields[0], no_wrap=True, overflow="crop")
        room = min(_BAR_WIDTHS[1], width - used)
        if self._total and room >= _BAR_WIDTHS[0]:
            text.append(" ")
            done = min(1.0, self._step / self._total)
            hides_rest = console.no_color or console.color_system is None
            _append_bar(text, done, room, "= " if options.ascii_only else "━━", hides_rest)
        for field in fields[1:]:
            text.append(f" {field}")
        text.truncate(width)
        yield text

    def _fields_that_fit(self, width: int) -> list[str]:
        """What the line shows, in order; on a narrow terminal only what matters most."""
        values, rates = list(self._shown_values()), list(self._shown_rates())
        elapsed = f"in {format_seconds((self._stopped or self._clock()) - self._started)}"
        seconds = None if self._stopped is not None else self._seconds_left()
        times = [elapsed] if seconds is None else [f"ETA {format_seconds(seconds)}", elapsed]
        in_order = [*values, *rates, *times]
        by_weight = [*values[:1], *times[:1], *rates[:1], *values[1:2], *rates[1:], *times[1:], *values[2:]]
        head = f"{self._kind} {self._count()}"
        room = width - len(head) - (_BAR_WIDTHS[0] + 1 if self._total else 0)
        chosen = set()
        for field in by_weight:
            if len(field) + 1 > room:
                break
            room -= len(field) + 1
            chosen.add(field)
        return [head, *(field for field in in_order if field in chosen)]

    def _count(self) -> str:
        return str(self._step) if self._total is None else f"{self._step}/{self._total}"

    def _shown_values(self) -> Iterator[str]:
        shown = {_SHORT_NAMES.get(name, name): x for name, x in self._values.items() if name not in _RATES}
        for name in sorted(shown, key=lambda name: ["loss", "lr", name].index(name)):
            yield f"{name} {shown[name]:.2e}" if name == "lr" else f"{name} {format_value(shown[name])}"

    def _shown_rates(self) -> Iterator[str]:
        steps = self._values.get("steps_per_second", self._measured_rate())
        for rate, unit in ((steps, "step"), (self._values.get("samples_per_second"), "sample")):
            if rate is not None:
                yield format_rate(rate, unit)

    def _measured_rate(self) -> float | None:
        (first_time, first_step), (last_time, last_step) = self._points[0], self._points[-1]
        if last_step <= first_step or last_time <= first_time:
            return None
        return (last_step - first_step) / (last_time - first_time)

    def _seconds_left(self) -> float | None:
        rate = self._measured_rate()
        if self._total is None or rate is None:
            return None
        since_update = self._clock() - self._points[-1][0]
        return max(0.0, (self._total - self._step) / rate - since_update)


def _append_bar(text: Text, done: float, width: int, marks: str, hides_rest: bool) -> None:
    num_full = int(done * width)
    text.append(marks[0] * num_full, "bar.finished" if done >= 1 else "bar.complete")
    text.append((" " if hides_rest else marks[1]) * (width - num_full), "bar.back")


def format_seconds(seconds: float) -> str:
    """0:07, 12:34, 1:02:03 or 2d 3:04:05."""
    if not math.isfinite(seconds) or seconds >= 100 * 86400:
        return "over 99d"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def format_rate(rate: float, unit: str) -> str:
    """Three digits: 52.0k samples/s, 0.42 steps/s; a slow one the other way round: 12.5 s/step."""
    if not math.isfinite(rate) or rate <= 0:
        return f"0 {unit}s/s"
    if rate < 0.1:
        return f"{1 / rate:.3g} s/{unit}"
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if rate >= 0.9995 * factor:
            scaled = rate / factor
            return f"{scaled:.{2 if scaled < 9.995 else 1 if scaled < 99.95 else 0}f}{letter} {unit}s/s"
    return f"{rate:.{2 if rate < 9.995 else 1 if rate < 99.95 else 0}f} {unit}s/s"


def format_value(value: float) -> str:
    """Four decimals, or an exponent where they would say too little or too much."""
    if value == 0 or not math.isfinite(value):
        return f"{value:.4f}"
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e6 else f"{value:.3e}"
