"""A process that saves without pause is killed at random moments, again and again, in the same folder."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from portwright.job.rundir import RunDir
from portwright.runtime.checkpoint import find_last_good, list_checkpoints, read_checkpoint, verify_checkpoint

# Torch is imported once; each round is a fork that saves until it is killed. What it prints is on the disk.
SAVE_UNTIL_KILLED = """
import os, sys
from pathlib import Path
import torch
from portwright.job.rundir import RunDir
from portwright.runtime.checkpoint import CheckpointWriter, HostSnapshot, find_last_good

directory, keep = Path(sys.argv[1]), int(sys.argv[2])
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        with RunDir(directory).lock():
            last = find_last_good(directory, print)
            step = last.step if last else 0
            writer, snapshot = CheckpointWriter(directory, keep, print), HostSnapshot()
            state = [(f"model/{n}", torch.empty(30_000)) for n in range(20)] + [("optimizer/0/m", torch.empty(300_000))]
            os.write(1, b"start %d\\n" % os.getpid())
            while True:
                step += 1
                for _, tensor in state:
                    tensor.fill_(step)
                writer.save(step, snapshot.take(state), {"step": step})
                if step % 3:
                    writer.wait()
                    os.write(1, b"saved %d\\n" % step)  # in one piece: print may be killed between word and line end
    os.waitpid(pid, 0)
    os.write(1, b"dead\\n")
"""


@pytest.mark.parametrize("keep", [1, 3])
def test_kill_at_any_moment(tmp_path: Path, keep: int) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    saver = subprocess.Popen(
        [sys.executable, "-c", SAVE_UNTIL_KILLED, str(tmp_path), str(keep)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    assert saver.stdin is not None
    assert saver.stdout is not None
    try:
        _kill_and_look(saver, tmp_path, keep)
    finally:  # the fork too: left alone it would wait for a reader for ever, and we for it
        with contextlib.suppress(ProcessLookupError):
            os.killpg(saver.pid, signal.SIGKILL)
        saver.wait()
        for pipe in (saver.stdin, saver.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def _kill_and_look(saver: subprocess.Popen[str], tmp_path: Path, keep: int) -> None:
    assert saver.stdin is not None
    assert saver.stdout is not None
    torn_seen = 0
    for _ in range(12):
        print("go", file=saver.stdin, flush=True)
        started = saver.stdout.readline()
        assert started.startswith("start "), started
        pid = started.split()[1]
        lines = [saver.stdout.readline().split() for _ in range(2)]
        time.sleep(random.uniform(0, 0.04))
        os.kill(int(pid), signal.SIGKILL)
        while (line := saver.stdout.readline().split()) != ["dead"]:
            lines.append(line)
        reported = int(lines[-1][1])
        torn_seen += any(path.name.startswith(".tmp-") for path in tmp_path.iterdir())

        found = find_last_good(tmp_path, pytest.fail)  # any note would mean that a torn one has a name
        assert found is not None
        assert found.step >= reported
        assert all(verify_checkpoint(info.path) == [] for info in list_checkpoints(tmp_path))
        loaded = read_checkpoint(found.path)
        assert loaded.counters == {"step": found.step}
        assert all(torch.all(shard.tensor == found.step) for shard in loaded.shards)
    saver.stdin.close()
    saver.wait()
    with RunDir(tmp_path).lock():
        left = [path for path in tmp_path.iterdir() if path.name.startswith(".tmp-")]
    assert left == []
    assert (
        keep <= len(list_checkpoints(tmp_path)) <= keep + 1
    )  # killed between the new one and the old one's end
    assert torn_seen, "no kill fell into a write, so this test proved nothing"
