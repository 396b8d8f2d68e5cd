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
from training_run import MAX_STEPS, Place, TrainingRun, write_model

pytestmark = pytest.mark.timeout(1200)

# About a quarter of a second a batch, by six readers: some twenty seconds in which a run can be met.
READ_SECONDS = 0.25
SITE = """
summary = "the tests' own cluster"
scheduler = "slurm"
target = "CPU"
tasks = "stream"

[job]
account = "none"
ntasks = 7
time = "30"
max_retries = 10

[container]
kind = "ch-run"
image = "{image}"
"""


def whole(place: Place) -> TrainingRun:
    """Undisturbed, with the whole chain."""
    run = place.submit(
        "whole", "--steps", "validate,compile,train,eval", "--nodes", "2", "--flag", _on(place, 1, 2)
    )
    run.wait_done()
    return run


def at_the_time_limit(place: Place) -> TrainingRun:
    """The training needs more than the minute that the job has; a signal before its end makes it save."""
    words = (
        "--steps",
        "validate,compile,train,eval",
        "--nodes",
        "2",
        "--time",
        "1",
        "--flag",
        _on(place, 1, 2),
    )
    run = place.submit("limit", *words, read_seconds=1.2)
    run.wait_attempt(1)
    run.wait_done()
    return run


def by_killed_tasks(place: Place) -> TrainingRun:
    """First a worker, which the others make good; then the coordinator, which ends the attempt."""
    run = place.submit(
        "tasks",
        "--steps",
        "train,eval",
        "--nodes",
        "2",
        "--flag",
        _on(place, 1, 2),
        read_seconds=READ_SECONDS,
    )
    run.wait_step(50)
    run.kill_task(3)
    run.wait_step(run.newest() + 50)
    assert place.cluster.restarts(run.job) == 0, f"a dead worker ended the attempt\n{run.log()}"
    run.kill_task(0)
    run.wait_attempt(1)
    run.wait_done()
    return run


def by_scancel_of_the_step(place: Place) -> TrainingRun:
    run = place.submit(
        "step", "--steps", "train,eval", "--nodes", "2", "--flag", _on(place, 1, 2), read_seconds=READ_SECONDS
    )
    run.wait_step(50)
    place.cluster.run("scancel", run.train_step())
    run.wait_attempt(1)
    run.wait_done()
    return run


def by_preemption(place: Place) -> TrainingRun:
    """A job of a higher partition wants the node."""
    words = ("--steps", "train,eval", "--nodes", "2", "--partition", "low", "--flag", _on(place, 2, 3))
    run = place.submit("preempted", *words, read_seconds=READ_SECONDS)
    run.wait_step(50)
    high = place.cluster.submit(
        "-p", "high", "--exclusive", _on(place, 3), "--output=/dev/null", "--wrap", "true"
    )
    run.wait_attempt(1)
    place.cluster.wait_state(high, {"COMPLETED"})
    run.wait_done()
    return run


def by_a_lost_node(place: Place) -> tuple[TrainingRun, TrainingRun]:
    """One run has its workers there; the other all that it is, its script too."""
    words = ("--steps", "train,eval")
    runs = (
        place.submit(
            "workers-node", *words, "--nodes", "2", "--flag", _on(place, 1, 4), read_seconds=READ_SECONDS
        ),
        place.submit(
            "whole-node", *words, "--nodes", "1", "--flag", _on(place, 4), read_seconds=READ_SECONDS
        ),
    )
    for run in runs:
        run.wait_step(50)
    place.cluster.node_down(place.cluster.names[3])
    for run in runs:
        run.wait_attempt(1)
    place.cluster.node_up(place.cluster.names[3])
    for run in runs:
        run.wait_done()
    return runs


def _on(place: Place, *numbers: int) -> str:
    return f"--nodelist={','.join(place.cluster.names[number - 1] for number in numbers)}"


CASES: tuple[Callable[[Place], TrainingRun | tuple[TrainingRun, ...]], ...] = (
    whole, at_the_time_limit, by_a_lost_node, by_preemption, by_killed_tasks, by_scancel_of_the_step
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
    place = Place(cluster, site, write_model(folder / "mymodel"), folder)
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
