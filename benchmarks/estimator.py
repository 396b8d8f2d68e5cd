"""Steps a second of the real tf.estimator (TensorFlow 2.15, in its own environment: make test-estimator makes it) and of ours, one after the other.

A 784-128-128-128-10 MLP at batch 64, where the loop is what costs, and a BERT of two layers of width 128 at 8 x 64 tokens, where the mathematics is. Both as
users write them: Keras layers, v1 optimizers, tf.data with shuffle and prefetch, summaries and step counting as by default. Each process stays up and
trains when asked. The other rows say what an option adds to our default: XLA, several steps a call, reading ahead in a pipeline without prefetch ("late").
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from measure import Claim, finish, interleave, paired_ratio, parse_arguments

WORKER = Path(__file__).parent / "peers" / "estimator_worker.py"
WORKLOADS: dict[str, dict[str, dict[str, Any]]] = {  # and what is varied in each
    "mlp": {"xla": {"xla": True}},
    "bert": {"xla": {"xla": True}},
    "late": {"prefetch appended": {"prefetch": True}},
}
STEPS_A_CALL = 10


class Worker:
    """A process that trains when asked."""

    def __init__(self, python: str, which: str) -> None:
        self._process = subprocess.Popen(
            [python, str(WORKER), which], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.version: str = self._read()["tensorflow"]

    def __call__(self, workload: str, **options: Any) -> float:
        """Milliseconds a step."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"workload": workload, "options": options}) + "\n")
        self._process.stdin.flush()
        return float(self._read())

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit("a worker of the benchmark has ended; its message is above")
        return json.loads(line)


def find_real() -> str:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    envs = Path(os.environ.get("PORTWRIGHT_ENVS", cache / "portwright" / "envs"))
    python = os.environ.get("PORTWRIGHT_TF_ESTIMATOR", str(envs / "tf-2.15.1" / "bin" / "python"))
    if not Path(python).is_file():
        sys.exit(
            f"there is no {python}; 'make test-estimator' makes the environment of the real tf.estimator"
        )
    return python


def _measure_bundling(ours: Worker, rounds: int) -> dict[str, Any]:
    contestants = {
        f"{count} steps a call": partial(ours, "bundle", steps_a_call=count) for count in (1, STEPS_A_CALL)
    }
    one, several = contestants
    times = interleave(contestants, rounds)
    added = paired_ratio(times[one], times[several])
    print(f"bundle: {several} over one, {added}")
    figures: dict[str, Any] = {name: {"ms_per_step": values} for name, values in times.items()}
    figures[several]["steps_per_second_over_one"] = asdict(added)
    return figures


def main() -> int:
    arguments = parse_arguments(__doc__)
    rounds = 2 if arguments.quick else 7
    real, ours = Worker(find_real(), "real"), Worker(sys.executable, "ours")
    claims, figures = [], {}
    for workload, variants in WORKLOADS.items():
        contestants = {"tf.estimator": partial(real, workload), "ours": partial(ours, workload)}
        for name, options in variants.items():
            contestants[f"ours, {name}"] = partial(ours, workload, **options)
        times = interleave(contestants, rounds)
        figures[workload] = {name: {"ms_per_step": values} for name, values in times.items()}
        faster = paired_ratio(times["tf.estimator"], times["ours"])
        claims.append(Claim(f"{workload}: our steps a second over tf.estimator's", faster, 1.0))
        for name in variants:
            added = paired_ratio(times["ours"], times[f"ours, {name}"])
            figures[workload][f"ours, {name}"]["steps_per_second_over_our_default"] = asdict(added)
            print(f"{workload}: {name} over our default, {added}")
    figures["bundle"] = _measure_bundling(ours, rounds)
    return finish(arguments, claims, figures, tensorflow=ours.version, peer_tensorflow=real.version)


if __name__ == "__main__":
    sys.exit(main())
