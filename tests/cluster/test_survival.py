"""Must show 1: fc_mnist with 7 tasks in a container, whole and killed in every way, ends with the same weights.

All runs are in the cluster at the same time, as most of each is waiting: a case disturbs only its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from slurm_cluster import SlurmCluster
from training_run import MAX_STEPS, WAIT_SECONDS, Place, TrainingRun, write_data, write_model

pytestmark = pytest.mark.timeout(1200)

# Seconds that a reader waits for a batch; six read at a time. What is disturbed must last for as long as it takes to see it.
READ_SECONDS = 0.4
LONGER = 0.9  # SLURM misses a node only after half a minute
LONGEST = 1.5  # than the time limit
SITE = """
summary = "the tests' own cluster"
scheduler = "slurm"
target = "CPU"
tasks = "stream"

[job]
account = "none"
ntasks = 7
nodes = 2
time = "30"
grace_seconds = 20
max_retries = 10

[container]
kind = "ch-run"
image = "{image}"
"""
WHOLE = ("--steps", "validate,compile,train,eval")
SHORT = ("--steps", "train,eval")


def whole(place: Place) -> TrainingRun:
    """Undisturbed, with the whole chain."""
    run = place.start("whole", *WHOLE, _on(place, 1, 2))
    run.wait_done()
    return run


def at_the_time_limit(place: Place) -> TrainingRun:
    """The training needs more than the two minutes that the job has; a signal before their end makes it save."""
    run = place.start("limit", *WHOLE, "--time", "2", _on(place, 1, 2), read_seconds=LONGEST)
    run.wait_attempt(1)
    assert run.ended_by(1) == "requeue:signal"
    run.wait_done()
    return run


def by_killed_tasks(place: Place) -> TrainingRun:
    """First a worker, which the others make good; then the coordinator, then all of them by `scancel`."""
    run = place.start("tasks", *SHORT, _on(place, 1, 2), read_seconds=READ_SECONDS)
    run.kill_task(3)
    run.wait_step(run.newest() + 50)
    assert place.cluster.restarts(run.job) == 0, f"a dead worker ended the attempt\n{run.log()}"
    run.kill_task(0)
    run.wait_attempt(1)
    assert run.ended_by(1) == "retry:137"
    run.wait_step(run.newest() + 50)
    place.cluster.run("scancel", run.train_step())
    run.wait_attempt(2)
    run.wait_done()
    return run


def by_preemption(place: Place) -> TrainingRun:
    """A job of a higher partition wants the node."""
    run = place.start("preempted", *SHORT, "--partition", "low", _on(place, 2, 3), read_seconds=READ_SECONDS)
    wanted = f"--nodelist={place.cluster.names[2]}"
    high = place.cluster.submit("-p", "high", "--exclusive", wanted, "--output=/dev/null", "--wrap", "true")
    run.wait_attempt(1)
    assert run.ended_by(1) == "requeue:preempted"
    place.cluster.wait_state(high, {"COMPLETED"}, WAIT_SECONDS)
    run.wait_done()
    return run


def by_a_lost_node(place: Place) -> tuple[TrainingRun, TrainingRun]:
    """One run has workers there; the other all that it is, its script too."""
    with place.starting:
        runs = (
            place.start("workers-node", *SHORT, _on(place, 1, 4), read_seconds=LONGER),
            place.start("whole-node", *SHORT, "--nodes", "1", _on(place, 4), read_seconds=LONGER),
        )
    place.cluster.node_down(place.cluster.names[3])
    for run in runs:
        run.wait_attempt(1)
    place.cluster.node_up(place.cluster.names[3])
    for run in runs:
        assert run.ended_by(1) == "node"
        run.wait_done()
    return runs


def _on(place: Place, *numbers: int) -> str:
    return f"--flag=--nodelist={','.join(place.cluster.names[number - 1] for number in numbers)}"


CASES: tuple[Callable[[Place], TrainingRun | tuple[TrainingRun, ...]], ...] = (
    at_the_time_limit, by_a_lost_node, by_killed_tasks, by_preemption, whole
)  # fmt: skip
Futures = dict[str, "Future[TrainingRun | tuple[TrainingRun, ...]]"]


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest,
    cluster: SlurmCluster,
    image: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Futures]:
    """Of the tests that were chosen, and the undisturbed one."""
    chosen = " ".join(item.name for item in request.session.items)
    folder = tmp_path_factory.mktemp("survival")
    site = folder / "test-cluster.toml"
    site.write_text(SITE.format(image=image))
    model, data = write_model(folder / "my model"), write_data(folder / "digits")
    place = Place(cluster, site, model, data, folder)
    with ThreadPoolExecutor(len(CASES)) as threads:
        wanted = [case for case in CASES if case is whole or f"[{case.__name__}]" in chosen]
        yield {case.__name__: threads.submit(case, place) for case in wanted}


def test_from_submission_to_done(runs: Futures) -> None:
    run = runs["whole"].result()
    assert isinstance(run, TrainingRun)
    assert sorted(path.name for path in (run.folder / "steps").glob("*.done")) == [
        "compile.done", "eval.done", "train.done", "validate.done",
    ]  # fmt: skip
    assert run.attempts() == []
    assert list(run.losses()) == list(range(1, MAX_STEPS + 1))


@pytest.mark.parametrize("case", [case.__name__ for case in CASES if case is not whole])
def test_a_killed_run_ends_with_the_same_weights(case: str, runs: Futures) -> None:
    undisturbed = runs["whole"].result()
    assert isinstance(undisturbed, TrainingRun)
    done = runs[case].result()
    for run in done if isinstance(done, tuple) else (done,):
        assert run.cluster.restarts(run.job) >= 1
        expected, received = undisturbed.tensors(), run.tensors()
        assert received.keys() == expected.keys()
        different = [name for name in expected if not torch.equal(expected[name], received[name])]
        assert not different, f"{run.folder.name}: {different}\n{run.log()}"
        assert run.losses() == undisturbed.losses()  # no step lost
