"""How much of a pipelined step is idle: our session on 2 and 4 CPU processes, against theory and torch's schedules used plainly.

With p processes and m micro-batches, filling and draining leaves a share of (p-1)/(m+p-1) of a step idle; with v pieces of
the model on each process (interleaved) it is (p-1)/(v*m+p-1); zero-bubble schedules come below both.

A block's work is a wait of fixed length, so that four processes do not compete for this machine's cores: what is measured is
the schedule, the sending and all that our session adds, and not how fast anything is computed. The waits are long, as a
hand-over takes about a millisecond on two crowded cores, and 16 micro-batches of two processes leave only 6% of a step
idle. A process is busy from the first to the last wait of a stage's pass over a micro-batch; all else between the first pass of
a step and the last one, on any process, is idle. The same share of the whole step, optimizer included, is beside it.

The same steps run in the same processes, in turn, without our session: torch.distributed.pipelining as its documentation
shows it. One process that does all the work is there for the gain of p processes.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from measure import Claim, Ratio, finish, paired_ratio, parse_arguments

WORKER = Path(__file__).parent / "peers" / "pipelining_ranks.py"
BLOCKS_A_PROCESS = 2  # so that a stage takes as long with 2 processes as with 4
PIECES_EACH = {"gpipe": 1, "1f1b": 1, "interleaved_1f1b": 2, "zbv_zero_bubble": 2}
MICRO_BATCHES = {
    "gpipe": (4, 8),
    "1f1b": (4, 8, 16),
    "interleaved_1f1b": (4, 8),
    "zbv_zero_bubble": (8,),
}
SPLITS_BACKWARD = (
    "zbv_zero_bubble",
)  # into the gradients of inputs and those of weights, which fill the gaps
Row = dict[str, Any]


def theory(num_processes: int, num_micro: int, pieces_each: int = 1) -> float:
    return (num_processes - 1) / (pieces_each * num_micro + num_processes - 1)


def run_processes(num_processes: int, setups: Sequence[dict[str, Any]]) -> list[Any]:
    """What each process measured, by rank."""
    with socket.create_server(("localhost", 0)) as listening:
        port = listening.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(num_processes):
            env = {**os.environ, "OMP_NUM_THREADS": "1"}
            if num_processes > 1:
                env |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank),
                        "WORLD_SIZE": str(num_processes), "LOCAL_WORLD_SIZE": str(num_processes)}  # fmt: skip
            command = [sys.executable, str(WORKER), folder, json.dumps(setups)]
            processes.append(subprocess.Popen(command, env=env))
        statuses = [process.wait() for process in processes]
        if any(statuses):
            raise SystemExit("a process failed; its message is above")
        return [json.loads((Path(folder) / f"rank{rank}.json").read_text()) for rank in range(num_processes)]


def busy_spans(row: Row, blocks_a_piece: int, splits: bool) -> Iterator[tuple[float, float]]:
    """Start and end of each pass of a stage over a micro-batch: a forward pass waits once a block, a backward pass twice."""
    for kind, run in groupby(row["spans"], key=lambda span: span[0]):
        waits = list(run)
        each = blocks_a_piece * (1 if kind == "F" or splits else 2)
        assert len(waits) % each == 0, f"{len(waits)} waits of kind {kind} in a row"
        for first in range(0, len(waits), each):
            yield waits[first][1], waits[first + each - 1][2]


def bubble_of(rows: Sequence[Row], setup: dict[str, Any], pieces_each: int) -> tuple[float, float]:
    """Idle share of one step over all processes, within the pipeline's own window and within the whole step."""
    splits = setup["schedule"] in SPLITS_BACKWARD
    blocks_a_piece = setup["blocks"] // (len(rows) * pieces_each)
    busy = [list(busy_spans(row, blocks_a_piece, splits)) for row in rows]
    expected = (3 if splits else 2) * setup["micro"] * pieces_each
    assert all(len(passes) == expected for passes in busy), [len(passes) for passes in busy]
    worked = sum(end - start for passes in busy for start, end in passes)
    window = max(passes[-1][1] for passes in busy) - min(passes[0][0] for passes in busy)
    step = max(row["end"] for row in rows) - min(row["start"] for row in rows)
    return 1 - worked / (len(rows) * window), 1 - worked / (len(rows) * step)


def spread(values: Sequence[float]) -> Ratio:
    """The median of repeated measurements and its interval."""
    return paired_ratio(values, [1.0] * len(values))


def measure(num_processes: int, setups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_rank = run_processes(num_processes, setups)
    measured = []
    for number, setup in enumerate(setups):
        pieces_each = PIECES_EACH[setup["schedule"]] if num_processes > 1 else 1
        row: dict[str, Any] = {
            "processes": num_processes,
            "schedule": setup["schedule"],
            "micro_batches": setup["micro"],
            "theory": None
            if setup["schedule"] in SPLITS_BACKWARD
            else theory(num_processes, setup["micro"], pieces_each),
        }
        for name in ("ours", "plain"):
            steps = list(zip(*(found[number]["rows"][name] for found in by_rank), strict=True))
            shares = [bubble_of(step, setup, pieces_each) for step in steps]
            row[name] = {
                "bubble": [inside for inside, _ in shares],
                "bubble_of_step": [whole for _, whole in shares],
                "step_seconds": [max(r["end"] for r in s) - min(r["start"] for r in s) for s in steps],
                "loss": [loss for r in steps[-1] for loss in r["losses"]][:1],
            }
        a, b = row["ours"]["loss"][0], row["plain"]["loss"][0]
        if abs(a - b) > 1e-5 * abs(b):
            raise SystemExit(f"our loss after the same steps is {a}, torch's {b}: not the same work")
        measured.append(row)
    return measured


def print_table(rows: Sequence[dict[str, Any]], alone: dict[int, float]) -> None:
    print(
        f"{'processes, schedule, m':<30}{'theory':>8}{'ours':>8}{'off':>8}{'of step':>9}{'plain':>8}{'ours/plain':>12}"
        f"{'gain':>7}"
    )
    for row in rows:
        p, m = row["processes"], row["micro_batches"]
        ours, plain, known = row["ours"], row["plain"], row["theory"]
        bubble = statistics.median(ours["bubble"])
        seconds = statistics.median(ours["step_seconds"])
        ratio = paired_ratio(ours["step_seconds"], plain["step_seconds"]).median
        off = (
            f"{known:>8.4f}{bubble:>8.4f}{bubble / known - 1:>+8.1%}"
            if known
            else f"{'':>8}{bubble:>8.4f}{'':>8}"
        )
        whole = alone[m] * p  # what one process takes for the work of p
        print(
            f"{p}, {row['schedule']}, {m}".ljust(30)
            + off
            + f"{statistics.median(ours['bubble_of_step']):>9.4f}{statistics.median(plain['bubble']):>8.4f}"
            f"{ratio:>12.3f}{whole / seconds:>7.2f}"
        )


def make_claims(rows: Sequence[dict[str, Any]]) -> list[Claim]:
    claims = []
    for key in dict.fromkeys((row["processes"], row["schedule"]) for row in rows):
        mine = [row for row in rows if (row["processes"], row["schedule"]) == key]
        if PIECES_EACH[key[1]] > 1:
            # Below the bubble of one piece each is what such a schedule is for.
            whole = [theory(row["processes"], row["micro_batches"]) for row in mine]
            shares = [
                spread([bubble / most for bubble in row["ours"]["bubble"]])
                for row, most in zip(mine, whole, strict=True)
            ]
            text = f"{key[0]} processes, {key[1]}: bubble to (p-1)/(m+p-1), worst of {len(mine)} m"
            claims.append(Claim(text, max(shares, key=lambda ratio: ratio.median), 0.85, at_least=False))
            continue
        off = [spread([bubble / row["theory"] for bubble in row["ours"]["bubble"]]) for row in mine]
        worst = max(off, key=lambda ratio: abs(ratio.median - 1))
        least, most = sorted((abs(worst.low - 1), abs(worst.high - 1)))
        text = f"{key[0]} processes, {key[1]}: bubble off (p-1)/(m+p-1), worst of {len(mine)} m"
        claims.append(
            Claim(text, Ratio(abs(worst.median - 1), least, most, worst.num_pairs), 0.10, at_least=False)
        )
    for num_processes in sorted({row["processes"] for row in rows}):
        mine = [row for row in rows if row["processes"] == num_processes]
        ours = [seconds for row in mine for seconds in row["ours"]["step_seconds"]]
        plain = [seconds for row in mine for seconds in row["plain"]["step_seconds"]]
        text = f"{num_processes} processes: a step's time, ours to torch's schedules used plainly"
        claims.append(Claim(text, paired_ratio(ours, plain), 1.02, at_least=False))
    return claims


def main() -> int:
    arguments = parse_arguments(__doc__)
    num_steps = 1 if arguments.quick else 3
    load = round(os.getloadavg()[0], 1)
    print(
        "Work is a wait of fixed length in every block: idle time is real, and no process waits for a core. "
        "Bubbles are of the schedule and of what is around it, not of computation."
    )
    rows: list[dict[str, Any]] = []
    for num_processes in (2, 4):
        setups = [
            {"schedule": schedule, "micro": num_micro, "blocks": BLOCKS_A_PROCESS * num_processes, "steps": num_steps}
            for schedule in PIECES_EACH
            for num_micro in (MICRO_BATCHES[schedule][:1] if arguments.quick else MICRO_BATCHES[schedule])
        ]  # fmt: skip
        rows += measure(num_processes, setups)
    # One process has no schedule to choose; a stage's work for all micro-batches is the unit.
    alone = measure(
        1,
        [
            {
                "schedule": "1f1b",
                "micro": num_micro,
                "blocks": BLOCKS_A_PROCESS,
                "steps": 2,
            }
            for num_micro in MICRO_BATCHES["1f1b"]
        ],
    )
    seconds_alone = {row["micro_batches"]: statistics.median(row["ours"]["step_seconds"]) for row in alone}
    print_table(rows, seconds_alone)
    figures = {
        "work": "a wait of 70 ms a block forward and 140 ms backward, 2 blocks a process; no computation to speak of",
        "load_average": load,
        "rows": rows,
        "one_process": alone,
    }
    import torch

    return finish(arguments, make_claims(rows), figures, torch=torch.__version__)


if __name__ == "__main__":
    raise SystemExit(main())
