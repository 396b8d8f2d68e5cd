"""Workers and coordinators that die, freeze or are strangers: real processes, real signals."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator

import numpy as np
import pytest
from stream_fleet import KEY, Fleet, handle, order, orders, read_until, start_process, wait_for_workers

from portwright.stream import protocol, schedule
from portwright.stream.pool import DeadlyOrderError, Pool, WorkFailed
from portwright.stream.wire import unpack


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def pool(notes: list[str]) -> Iterator[Pool]:
    with Pool("127.0.0.1:0", KEY, expected=6, note=notes.append) as pool:
        yield pool


@pytest.fixture
def fleet(pool: Pool) -> Iterator[Fleet]:
    fleet = Fleet(pool.address)
    yield fleet
    fleet.stop()


def test_100k_samples_each_exactly_once_and_in_order_while_workers_are_killed(
    pool: Pool, fleet: Fleet
) -> None:
    rng = random.Random()
    names = [f"w{number}" for number in range(6)]
    fleet.start(*names)
    wait_for_workers(pool, 6)
    kills = dict.fromkeys(rng.sample(range(20, 900), 3))
    got: list[np.ndarray] = []
    for number, result in enumerate(pool.map(orders(100_000, 100), 24, None)):
        got.append(unpack(result)[0]["numbers"])
        if number in kills:
            kills[number] = names.pop(rng.randrange(len(names)))
            fleet.kill(kills[number])
            if len(names) == 4:
                fleet.start("late")
    assert np.array_equal(np.concatenate(got), np.arange(100_000)), kills
    assert sum(count.samples for count in pool.counts()) == 100_000, kills


def test_orders_of_the_dead_are_done_by_others_in_turn(pool: Pool, fleet: Fleet, notes: list[str]) -> None:
    fleet.start("a", "b")
    wait_for_workers(pool, 2)
    asked = (order(n, n + 1, lane=n % 2, sleep=0.01) for n in range(80))
    done_by: dict[int, list[str]] = {0: [], 1: []}
    for number, result in enumerate(pool.map(asked, 8, None)):
        batch, about = unpack(result)
        assert batch["numbers"].tolist() == [number]
        done_by[number % 2].append(about["name"])
        if number == 30:
            fleet.kill("a")
    for names in done_by.values():
        assert names == sorted(names), "a lane moves once"
    assert {names[0] for names in done_by.values()} == {"a", "b"}
    assert {names[-1] for names in done_by.values()} == {"b"}
    assert any("Worker a is gone" in note for note in notes)
    assert {count.name: count.alive for count in pool.counts()} == {"a": False, "b": True}


@pytest.mark.parametrize("lanes", [False, True])
def test_a_frozen_worker_does_not_stop_the_epoch(
    pool: Pool, fleet: Fleet, notes: list[str], lanes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "BYPASS_SECONDS", 0.4)
    monkeypatch.setattr(schedule, "BACKUP_SECONDS", 100.0)  # so that it is silence by which it is gone around
    fleet.start("a", "b")
    wait_for_workers(pool, 2)
    asked = (order(n, n + 1, lane=n % 2 if lanes else None, sleep=0.002) for n in range(200))
    got = []
    for number, result in enumerate(pool.map(asked, 8, None)):
        got += unpack(result)[0]["numbers"].tolist()
        if number == 20:
            fleet.send("a", signal.SIGSTOP)
        if number == 100:
            fleet.send("a", signal.SIGCONT)
    assert got == list(range(200))
    assert any("Worker a is silent" in note for note in notes)
    assert sum(count.samples for count in pool.counts()) == 200, "what the frozen one sends later is dropped"
    before = {count.name: count.batches for count in pool.counts()}
    assert len(list(pool.map(orders(100, sleep=0.002), 8, None))) == 100
    assert all(count.batches > before[count.name] for count in pool.counts()), "it works again"


@pytest.mark.parametrize("how", [{"busy": 30}, {"opens": 60}])
def test_a_worker_that_gets_on_keeps_its_lanes(
    pool: Pool, fleet: Fleet, notes: list[str], how: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "BYPASS_SECONDS", 0.6)
    monkeypatch.setattr(schedule, "BYPASS_TIMES", 1.0)
    fleet.start("a", "b")
    wait_for_workers(pool, 2)
    asked = [order(n, n + 1, lane=n % 2, sleep=0.01, **(how if n == 20 else {})) for n in range(40)]
    owners: dict[int, set[str]] = {0: set(), 1: set()}
    for number, result in enumerate(pool.map(iter(asked), 8, None)):
        owners[number % 2].add(unpack(result)[1]["name"])
    assert [len(names) for names in owners.values()] == [1, 1], notes
    assert not any("is silent" in note for note in notes)


def test_one_that_only_says_that_it_is_busy_is_gone_around_in_the_end(
    pool: Pool, fleet: Fleet, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "BYPASS_SECONDS", 0.6)
    monkeypatch.setattr(schedule, "BYPASS_TIMES", 1.0)
    fleet.start("a", "b")
    wait_for_workers(pool, 2)
    asked = [order(n, n + 1, lane=n % 2, sleep=0.01, **({"opens": 0} if n == 20 else {})) for n in range(22)]
    assert len(list(pool.map(iter(asked), 8, None))) == 22
    assert any("is silent" in note for note in notes)


def test_a_worker_that_answers_no_ping_is_gone_and_may_come_back(
    notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = [(name, 1000 if value in (10_000, 20_000) else value) for name, value in protocol.SERVER_OPTIONS]
    assert sum(value == 1000 for _, value in quick) == 3
    monkeypatch.setattr(protocol, "SERVER_OPTIONS", quick)
    with Pool("127.0.0.1:0", KEY, expected=1, note=notes.append) as pool:
        fleet = Fleet(pool.address)
        fleet.start("a")
        wait_for_workers(pool, 1)
        fleet.send("a", signal.SIGSTOP)
        wait_for_workers(pool, 0)
        fleet.send("a", signal.SIGCONT)
        assert numbers(pool, 20) == list(range(20))
        fleet.stop()
    assert any("Worker a is gone: its connection ended" in note for note in notes)


def test_all_dead_then_one_comes_back(fleet: Fleet, notes: list[str]) -> None:
    with Pool("127.0.0.1:0", KEY, expected=2, note=notes.append, patience=0.3) as pool:
        fleet.address = pool.address
        fleet.start("a", "b")
        wait_for_workers(pool, 2)
        done_by: list[str] = []
        here_first = 0
        for number, result in enumerate(pool.map(orders(100_000), 8, handle)):
            batch, about = unpack(result)
            assert batch["numbers"].tolist() == [number]
            done_by.append(about["name"])
            if number == 10:
                fleet.kill("a")
                fleet.kill("b")
            if about["name"] == "here" and not here_first:
                here_first = number
                fleet.start("c")
            if done_by[-20:] == ["c"] * 20:
                break
    assert 10 < here_first <= 10 + 8 + 1
    assert set(done_by[here_first + 8 :]) == {"here", "c"}, "what the dead had sent within the window counts"
    assert sum("WARNING: no worker" in note for note in notes) == 1


def test_a_worker_that_ends_in_the_middle_of_an_order(pool: Pool, fleet: Fleet) -> None:
    fleet.start("a", "b")
    wait_for_workers(pool, 2)
    results = pool.map(iter([order(0, 1, fail="exit"), *orders(20)]), 4, lambda body: [b"here"])
    pool._patience = 0.2
    with pytest.raises(
        DeadlyOrderError, match=r"workers . and . ended one after the other at the same batch"
    ):
        next(results)  # it ended every worker that got it, and would end the training
    assert {fleet.ending(name)[0] for name in "ab"} == {7}


def test_an_order_that_ended_one_worker_may_be_done_here(notes: list[str]) -> None:
    with Pool("127.0.0.1:0", KEY, expected=1, note=notes.append, patience=0.2) as pool:
        fleet = Fleet(pool.address)
        fleet.start("a")
        wait_for_workers(pool, 1)
        results = pool.map(iter([order(0, 1, fail="exit")]), 4, lambda body: [b"here"])
        assert [bytes(result) for result in results] == [b"here"]
        assert fleet.ending("a")[0] == 7


def test_two_of_two_workers_are_enough_to_know(notes: list[str]) -> None:
    with Pool("127.0.0.1:0", KEY, expected=2, note=notes.append, patience=60) as pool:
        fleet = Fleet(pool.address)
        fleet.start("a", "b")
        wait_for_workers(pool, 2)
        with pytest.raises(DeadlyOrderError) as raised:
            list(pool.map(iter([order(0, 1, fail="exit"), *orders(20)]), 4, lambda body: [b"here"]))
        assert sorted(raised.value.killed) == ["a", "b"]
        fleet.stop()


def test_an_order_that_ends_its_workers_does_not_end_them_all(pool: Pool, fleet: Fleet) -> None:
    fleet.start(*"abcde")
    wait_for_workers(pool, 5)
    with pytest.raises(WorkFailed, match=r"workers ., . and . ended one after the other at the same batch"):
        list(pool.map(iter([*orders(20), order(0, 1, fail="exit"), *orders(20)]), 2, None))
    assert numbers(pool, 50) == list(range(50))
    assert sum(count.alive for count in pool.counts()) == 2


@pytest.mark.parametrize("end", ["kill", "stop without a word"])
def test_workers_of_a_dead_coordinator_end_by_themselves(end: str, notes: list[str]) -> None:
    if end == "kill":
        coordinator = start_process("coordinate", "go")
        assert coordinator.stdout
        fleet = Fleet(coordinator.stdout.readline().strip())
        fleet.start("a", "b")
        read_until(coordinator, "(2 of 1)")
        read_until(coordinator, "batch")
        coordinator.kill()
        coordinator.communicate()
    else:
        pool = Pool("127.0.0.1:0", KEY, expected=2, note=notes.append)
        fleet = Fleet(pool.address)
        fleet.start("a", "b")
        wait_for_workers(pool, 2)
        assert (
            len(list(pool.map(orders(20, sleep=0.02), 8, None))) == 20
        )  # so that both know that they were welcome
        assert all(count.batches for count in pool.counts())
        pool._server.stop(0)
    for name in "ab":
        status, out, err = fleet.ending(name)
        assert (status, err) == (0, "")
        assert out.endswith("Ending.LOST\n")
        assert f"Worker {name}: the connection to" in out


def test_a_coordinator_that_comes_back_at_once_finds_its_workers(notes: list[str]) -> None:
    first = Pool("127.0.0.1:0", KEY, expected=1, note=notes.append)
    fleet = Fleet(first.address)
    fleet.start("a")
    assert numbers(first, 3) == [0, 1, 2]  # so that the worker knows that it was welcome
    first._server.stop(0)
    with Pool(first.address, KEY, expected=1, note=notes.append) as second:
        assert len(list(second.map(orders(10), 4, None))) == 10
        second.close()
        status, out, _ = fleet.ending("a")
    assert (status, out.splitlines()[-1]) == (0, "Ending.DONE")


def test_a_wrong_key_is_told_on_both_sides_and_never_shown(
    pool: Pool, fleet: Fleet, notes: list[str]
) -> None:
    fleet.start("stranger", key="another key")
    fleet.start("friend")
    status, out, err = fleet.ending("stranger")
    wait_for_workers(pool, 1)
    assert status == 1
    assert err.startswith("WrongKeyError: The coordinator at 127.0.0.1:")
    assert "does not have this worker's key" in err
    assert any(note.startswith("stranger on ") and "was turned away" in note for note in notes)
    assert not any(key in text for key in (KEY, "another key") for text in [out, err, *notes])
    assert numbers(pool, 20) == list(range(20))
    assert {count.name for count in pool.counts()} == {"friend"}


def test_a_stranger_on_the_port_of_a_dead_coordinator_is_no_reason_to_complain(notes: list[str]) -> None:
    first = Pool("127.0.0.1:0", KEY, expected=1, note=notes.append)
    fleet = Fleet(first.address)
    fleet.start("a")
    assert numbers(first, 3) == [0, 1, 2]  # so that the worker knows that it was welcome
    first._server.stop(0)
    with Pool(first.address, "of another job", expected=1, note=notes.append):
        status, out, err = fleet.ending("a")
    assert (status, err, out.splitlines()[-1]) == (0, "", "Ending.LOST")


@pytest.mark.parametrize("behaviour", ["early", "return", "raise", "fork"])
def test_a_coordinator_that_forgets_to_close_ends_all_the_same(behaviour: str) -> None:
    coordinator = start_process("coordinate", behaviour)
    assert coordinator.stdout
    fleet = Fleet(coordinator.stdout.readline().strip())
    if behaviour != "early":
        fleet.start("a")
    _, err = coordinator.communicate(timeout=30)
    if behaviour == "raise":
        assert (coordinator.returncode, err.splitlines()[-1]) == (1, "portwright.errors.UserError: Enough.")
        assert "grpc" not in err.lower()
    else:
        assert (coordinator.returncode, err) == (0, "")
    if behaviour != "early":
        status, out, err = fleet.ending("a")
        assert (status, err, out.splitlines()[-1]) == (0, "", "Ending.LOST")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 85), (signal.SIGINT, -signal.SIGINT)])
def test_a_signal_is_honoured_while_the_coordinator_waits(number: signal.Signals, status: int) -> None:
    coordinator = start_process("coordinate", "term")
    assert coordinator.stdout
    fleet = Fleet(coordinator.stdout.readline().strip())
    fleet.start("a")
    read_until(coordinator, "batch")  # then it waits for an order of a minute
    coordinator.send_signal(number)
    _, err = coordinator.communicate(timeout=20)
    fleet.stop()
    assert coordinator.returncode == status
    assert "grpc" not in err.lower()


def numbers(pool: Pool, total: int) -> list[int]:
    return [unpack(result)[0]["numbers"][0] for result in pool.map(orders(total), 4, None)]
