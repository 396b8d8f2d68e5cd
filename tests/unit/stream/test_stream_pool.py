"""A pool with real worker processes that nothing happens to: order, back-pressure, failures, sizes, several inputs."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from stream_fleet import KEY, Fleet, handle, order, orders, wait_for_workers

from portwright.errors import ExitStatus, UserError
from portwright.stream.pool import NoWorkersError, Order, Pool, WorkFailed
from portwright.stream.wire import ALIGNMENT, unpack
from portwright.stream.worker import NoCoordinatorError, work


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool("127.0.0.1:0", KEY, expected=3, note=lambda line: None) as pool:
        fleet = Fleet(pool.address)
        fleet.start("a", "b", "c")
        wait_for_workers(pool, 3)
        yield pool
        pool.close()
        for name in "abc":
            status, out, err = fleet.ending(name)
            assert (status, err) == (0, "")
            assert out.endswith("Ending.DONE\n")


def numbers(results: Iterator[memoryview]) -> list[int]:
    return [int(number) for result in results for number in unpack(result)[0]["numbers"]]


def test_two_epochs_and_an_input_of_another_kind(pool: Pool) -> None:
    for total in (500, 500, 7):
        assert numbers(pool.map(orders(total, 3), 8, None)) == list(range(total))


@pytest.mark.parametrize("window", [1, 2, 3, 50])
def test_any_window_keeps_the_order_though_orders_take_different_times(pool: Pool, window: int) -> None:
    uneven = (order(n, n + 1, sleep=(n * 7 % 5) / 500) for n in range(40))
    assert numbers(pool.map(uneven, window, None)) == list(range(40))


def test_no_orders_no_results(pool: Pool) -> None:
    assert list(pool.map(iter([]), 4, None)) == []


def test_results_are_aligned_and_writable(pool: Pool) -> None:
    (result,) = pool.map(orders(1), 4, None)
    array = np.frombuffer(result, np.uint8)
    assert not result.readonly
    assert array.ctypes.data % ALIGNMENT == 0


def test_a_slow_consumer_bounds_what_is_drawn_and_made(pool: Pool) -> None:
    drawn = 0

    def counted() -> Iterator[Order]:
        nonlocal drawn
        for each in orders(200):
            drawn += 1
            yield each

    before = sum(count.batches for count in pool.counts())
    settled = threading.Event()
    for delivered, _ in enumerate(pool.map(counted(), 6, None), 1):
        if delivered in (1, 50, 150):
            settled.wait(0.3)  # the workers would make more now, if they had orders
            assert sum(count.batches for count in pool.counts()) - before <= delivered + 6
        assert drawn <= delivered + 6
    assert delivered == drawn == 200


def test_closing_while_busy_drops_what_is_outstanding(pool: Pool) -> None:
    results = pool.map(orders(100, sleep=0.1), 12, None)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert numbers(pool.map(orders(50), 12, None)) == list(range(50))


def test_evaluation_in_the_middle_of_an_epoch(pool: Pool) -> None:
    training = pool.map(orders(60), 8, None)
    begun = [next(training) for _ in range(10)]
    assert numbers(pool.map(orders(30), 8, None)) == list(range(30))
    assert numbers(iter([*begun, *training])) == list(range(60))


def test_every_worker_has_its_share_and_counts_add_up(pool: Pool) -> None:
    before = {count.name: count for count in pool.counts()}
    results = list(pool.map(orders(600, 10, sleep=0.002), 12, None))
    counts = {count.name: count for count in pool.counts()}
    assert set(counts) == {"a", "b", "c"}
    assert sum(each.samples - before[name].samples for name, each in counts.items()) == 600
    assert sum(each.batches - before[name].batches for name, each in counts.items()) == 60
    assert sum(each.bytes - before[name].bytes for name, each in counts.items()) == sum(map(len, results))
    for name, each in counts.items():
        assert each.batches - before[name].batches > 0
        assert each.busy_seconds > before[name].busy_seconds
        assert each.alive
        assert each.rate > 0
        assert each.host


def test_large_results_come_whole(pool: Pool) -> None:
    for megabytes, result in zip(
        (1, 200), pool.map((order(7, 8, megabytes=n) for n in (1, 200)), 1, None), strict=True
    ):
        large = unpack(result)[0]["large"]
        assert large.nbytes == megabytes * 1_000_000
        assert (large == 7).all()


def test_a_failure_is_raised_at_its_turn_and_the_pool_goes_on(pool: Pool) -> None:
    asked = [order(0, 1, sleep=0.1), order(1, 2), order(2, 3, fail="user"), order(3, 4)]
    results = pool.map(iter(asked), 8, None)
    assert unpack(next(results))[0]["numbers"].tolist() == [0]
    assert unpack(next(results))[0]["numbers"].tolist() == [1]
    with pytest.raises(WorkFailed) as raised:
        next(results)
    assert raised.value.message in {f"Worker {name}: File ü.bin is short." for name in "abc"}
    assert raised.value.cure == "Copy it again."
    assert raised.value.status is ExitStatus.USAGE
    assert "in handle" in raised.value.details["traceback"]
    assert list(results) == []
    assert numbers(pool.map(orders(5), 2, None)) == list(range(5))


@pytest.mark.parametrize(
    ("fail", "message"),
    [("bug", "ZeroDivisionError: one by zero"), ("parts", "contiguous"), ("none", "TypeError")],
)
def test_errors_of_any_kind_are_told(pool: Pool, fail: str, message: str) -> None:
    with pytest.raises(WorkFailed, match=message):
        list(pool.map(iter([order(0, 1, fail=fail)]), 2, None))


def test_parts_of_any_kind_are_put_together(pool: Pool) -> None:
    empty, floats = pool.map(iter([order(0, 1, fail="empty"), order(0, 1, fail="floats")]), 2, None)
    assert len(empty) == 0
    assert bytes(floats) == np.arange(3.0).tobytes() + b"x"


def test_an_error_of_the_orders_comes_after_all_before_it(pool: Pool) -> None:
    def broken() -> Iterator[Order]:
        yield from orders(5)
        raise RuntimeError("sampler")

    results = pool.map(broken(), 50, None)
    assert [unpack(next(results))[0]["numbers"][0] for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(RuntimeError, match="sampler"):
        next(results)


def test_lanes_stay_with_their_worker(pool: Pool) -> None:
    asked = (order(n, n + 1, lane=n % 3, sleep=0.003) for n in range(90))
    names: dict[int, list[str]] = {}
    for number, result in enumerate(pool.map(asked, 9, None)):
        batch, about = unpack(result)
        assert batch["numbers"].tolist() == [number]
        names.setdefault(number % 3, []).append(about["name"])
    assert [len(set(each)) for each in names.values()] == [1, 1, 1]
    assert {each[0] for each in names.values()} == {"a", "b", "c"}


def test_an_order_may_be_large(pool: Pool) -> None:
    (result,) = pool.map(iter([order(0, 1, padding="x" * 10_000_000)]), 1, None)
    assert unpack(result)[0]["numbers"].tolist() == [0]


# Without workers


def test_without_workers_the_work_is_done_here_and_loudly() -> None:
    notes: list[str] = []
    with Pool("127.0.0.1:0", KEY, expected=6, note=notes.append, patience=0.05) as pool:
        assert numbers(pool.map(orders(20, 2), 4, handle)) == list(range(20))
        (count,) = pool.counts()
    assert (count.name, count.batches, count.samples, count.alive) == ("coordinator", 10, 20, False)
    assert len(notes) == 1
    assert "WARNING: no worker" in notes[0]
    assert "expected: 6" in notes[0]


def test_without_workers_and_without_a_fallback_it_is_an_error() -> None:
    with (
        Pool("127.0.0.1:0", KEY, expected=2, note=lambda line: None, patience=0.05) as pool,
        pytest.raises(NoWorkersError, match="No worker"),
    ):
        next(pool.map(orders(3), 4, None))


def test_what_the_fallback_raises_is_raised() -> None:
    with (
        Pool("127.0.0.1:0", KEY, expected=2, note=lambda line: None, patience=0.0) as pool,
        pytest.raises(ZeroDivisionError),
    ):
        next(pool.map(iter([order(0, 1, fail="bug")]), 4, handle))


def test_a_closed_pool_gives_no_results() -> None:
    pool = Pool("127.0.0.1:0", KEY, expected=2, note=lambda line: None)
    pool.close()
    pool.close()
    with pytest.raises(NoWorkersError, match="closed"):
        next(pool.map(orders(3), 4, handle))


def test_closing_in_another_thread_ends_the_wait() -> None:
    pool = Pool("127.0.0.1:0", KEY, expected=2, note=lambda line: None)
    threading.Timer(0.1, pool.close).start()
    with pytest.raises(NoWorkersError, match="closed"):
        next(pool.map(orders(3), 4, handle))


def test_a_port_that_is_taken_is_an_error() -> None:
    with Pool("127.0.0.1:0", KEY, expected=1, note=lambda line: None) as pool:
        port = pool.address.rpartition(":")[2]
        for host in ("127.0.0.1", "node-7"):
            with pytest.raises(UserError, match=f"port {port}"):
                Pool(f"{host}:{port}", KEY, expected=1, note=lambda line: None)


@pytest.mark.parametrize(
    "address", ["", "node", "node:", ":12", "node:x", "node:70000", "node:-1", "node:1٣"]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(UserError, match="host:port"):
        Pool(address, KEY, expected=1, note=lambda line: None)
    with pytest.raises(UserError, match="host:port"):
        work(address, KEY, "w", handle, note=lambda line: None, wait_seconds=0)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no-such-host.invalid:2000"])
def test_a_worker_gives_up_when_nobody_answers(address: str) -> None:
    with pytest.raises(NoCoordinatorError, match=f"at {address} within 0.4 s"):
        work(address, KEY, "w", handle, note=lambda line: None, wait_seconds=0.4)


def test_the_modules_load_no_framework() -> None:
    code = (
        "import sys, portwright.stream.pool, portwright.stream.worker; print(json.dumps(sorted(sys.modules)))"
    )
    assert not loaded_by(code) & {"torch", "tensorflow"}


def test_who_tells_of_progress_loads_no_grpc() -> None:
    for name in ("portwright.stream.progress", "portwright.data.streamed"):
        code = f"import sys, {name}; print(json.dumps(sorted(sys.modules)))"
        assert "grpc" not in loaded_by(code)


def loaded_by(code: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", f"import json; {code}"], capture_output=True, check=True)
    return set(json.loads(done.stdout))
