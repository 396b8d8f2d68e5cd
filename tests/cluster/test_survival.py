"""Must show 1: fc_mnist with 7 tasks in a container, whole and killed in every way, ends with the same weights.

All runs are in the cluster at the same time, as most of each is waiting: a case disturbs only its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from apptainer import UnavailableError, apptainer_folder
from slurm_cluster import SlurmCluster
from training_run import MAX_STEPS, WAIT_SECONDS, Place, TrainingRun, write_data, write_model

pytestmark = pytest.mark.timeout(1200)

# Seconds that a reader waits for a batch; six read at a time. What is disturbed must last for as long as it takes to see it.
READ_SECONDS = 0.4
LONGER = 1.3  # SLURM misses a node only after half a minute
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
Runs = tuple[TrainingRun, ...]


def whole(place: Place) -> Runs:
    """Undisturbed, with the whole chain."""
    run = place.start("whole", *WHOLE, _on(place, 1, 2))
    run.wait_done()
    return (run,)


def at_the_time_limit(place: Place) -> Runs:
    """The training needs more than the two minutes that the job has; a signal before their end makes it save."""
    run = place.start("limit", *WHOLE, "--time", "2", _on(place, 1, 2), read_seconds=LONGEST)
    run.wait_attempt(1)
    assert run.ended_by(1) == "requeue:signal"
    run.wait_done()
    return (run,)


def by_killed_tasks(place: Place) -> Runs:
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
    return (run,)


def by_preemption(place: Place) -> Runs:
    """A job of a higher partition wants the node."""
    run = place.start("preempted", *SHORT, "--partition", "low", _on(place, 2, 3), read_seconds=READ_SECONDS)
    wanted = f"--nodelist={place.cluster.names[2]}"
    high = place.cluster.submit("-p", "high", "--exclusive", wanted, "--output=/dev/null", "--wrap", "true")
    run.wait_attempt(1)
    assert run.ended_by(1) == "requeue:preempted"
    place.cluster.wait_state(high, {"COMPLETED"}, WAIT_SECONDS)
    run.wait_done()
    return (run,)


def by_a_lost_node(place: Place) -> Runs:
    """One run has workers there; the other all that it is, its script too."""
    with place.starting:
        runs = (
            place.submit("workers-node", *SHORT, _on(place, 1, 4), read_seconds=LONGER),
            place.submit("whole-node", *SHORT, "--nodes", "1", _on(place, 4), read_seconds=LONGER),
        )
        for run in runs:
            run.wait_step(1)
    place.cluster.node_down(place.cluster.names[3])
    for run in runs:
        run.wait_attempt(1)
    place.cluster.node_up(place.cluster.names[3])
    for run in runs:
        assert run.ended_by(1) == "node"
        run.wait_done()
    return runs


def in_apptainer(place: Place) -> Runs:
    """Undisturbed, by the program that most sites have."""
    run = place.start("apptainer", *SHORT, "--container", "apptainer", "--ntasks", "3", _on(place, 1, 2))
    run.wait_done()
    return (run,)


def _on(place: Place, *numbers: int) -> str:
    return f"--flag=--nodelist={','.join(place.cluster.names[number - 1] for number in numbers)}"


CASES: tuple[Callable[[Place], Runs], ...] = (
    at_the_time_limit, by_a_lost_node, by_killed_tasks, by_preemption, whole, in_apptainer
)  # fmt: skip
KILLED = [case.__name__ for case in CASES if case not in (whole, in_apptainer)]
Futures = dict[str, "Future[Runs]"]


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest,
    cluster: SlurmCluster,
    image: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Futures]:
    """Of the tests that were chosen, and the undisturbed one."""
    names = {item.name for item in request.session.items}
    folder = tmp_path_factory.mktemp("survival")
    site = folder / "test-cluster.toml"
    site.write_text(SITE.format(image=image))
    model, data = write_model(folder / "my model"), write_data(folder / "digits")
    wanted = [case for case in CASES if case is whole or any(f"[{case.__name__}]" in name for name in names)]
    apptainer = None
    if "test_apptainer_gives_the_same_weights" in names:
        with suppress(UnavailableError):  # told and counted by the test itself
            apptainer = apptainer_folder()
            wanted.append(in_apptainer)
    place = Place(cluster, site, model, data, folder, apptainer)
    with ThreadPoolExecutor(len(CASES)) as threads:
        yield {case.__name__: threads.submit(case, place) for case in wanted}


def test_from_submission_to_done(runs: Futures) -> None:
    (run,) = runs["whole"].result()
    ended = sorted(path.name for path in (run.folder / "steps").glob("*.done"))
    assert ended == ["compile.done", "eval.done", "train.done", "validate.done"]
    assert run.attempts() == []
    assert list(run.losses()) == list(range(1, MAX_STEPS + 1))
    manifest = json.loads((run.folder / "manifest.json").read_text())
    assert (manifest["container"], manifest["resources"]["ntasks"]) == ("ch-run", 7)
    assert "(6 of 6)" in (run.folder / "log.txt").read_text()  # all workers came


@pytest.mark.parametrize("case", KILLED)
def test_a_killed_run_ends_with_the_same_weights(case: str, runs: Futures) -> None:
    (undisturbed,) = runs["whole"].result()
    for run in runs[case].result():
        assert run.cluster.restarts(run.job) >= 1
        _check_same(run, undisturbed)


@pytest.mark.parametrize("case", ["at_the_time_limit", "by_preemption"])
def test_a_run_that_is_asked_to_save_goes_on_at_that_step(case: str, runs: Futures) -> None:
    (run,) = runs[case].result()
    stops = run.stops()
    assert stops, run.log()
    assert {name for name, _, _ in stops} == {"SIGUSR1" if case == "at_the_time_limit" else "SIGTERM"}
    assert all(stopped == resumed for _, stopped, resumed in stops), stops


def test_apptainer_gives_the_same_weights(runs: Futures, apptainer: Path) -> None:
    (undisturbed,), (run,) = runs["whole"].result(), runs["in_apptainer"].result()
    _check_same(run, undisturbed)


def _check_same(run: TrainingRun, undisturbed: TrainingRun) -> None:
    expected, received = undisturbed.tensors(), run.tensors()
    assert expected
    assert received.keys() == expected.keys()
    different = [name for name in expected if not torch.equal(expected[name], received[name])]
    assert not different, f"{run.folder.name}: {different}\n{run.log()}"
    assert run.losses() == undisturbed.losses()  # no step lost
