from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from native_cases import Case, load

from portwright.runtime.streaming.native.adam import NativeAdam, default_threads, usable_cores

ON_LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux tells of threads in /proc")


@pytest.fixture
def native() -> Iterator[NativeAdam]:
    native = load()
    yield native
    native.bind_threads([])


def our_threads() -> dict[str, set[int]]:
    """The cores of each of our pool's threads."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().strip() == "portwright-adam":
            found[task.name] = os.sched_getaffinity(int(task.name))
    return found


@ON_LINUX
def test_threads_are_made_once(native: NativeAdam) -> None:
    case = Case(200_000)
    case.in_place(native, num_threads=3)
    before = set(our_threads())
    assert len(before) >= 3
    with ThreadPoolExecutor(4) as callers:
        list(callers.map(lambda _: case.in_place(native, num_threads=3), range(20)))
    assert set(our_threads()) == before


def test_callers_in_threads_and_torchs_own_threads_do_not_disturb_each_other(native: NativeAdam) -> None:
    case = Case(150_000, grad_dtype=torch.bfloat16)
    expected = case.in_place(native, torch.bfloat16, num_threads=1)
    matrix = torch.randn(256, 256)
    product = matrix @ matrix
    stopped = threading.Event()
    products: list[bool] = []

    def multiply() -> None:
        while not stopped.is_set():
            products.append(torch.allclose(matrix @ matrix, product))

    def step(i: int) -> bool:
        result = case.apart(native, torch.bfloat16, num_threads=1 + i % 4)
        return all(map(torch.equal, result.tensors(), expected.tensors()))

    torch_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    beside = threading.Thread(target=multiply)
    beside.start()
    try:
        with ThreadPoolExecutor(3) as callers:
            assert all(callers.map(step, range(40)))
    finally:
        stopped.set()
        beside.join()
        torch.set_num_threads(torch_threads)
    assert products
    assert all(products)


def test_flushing_of_denormals_is_the_callers_choice_on_every_thread(native: NativeAdam) -> None:
    case = Case(100_000)
    for name in ("weight", "grad", "exp_avg", "exp_avg_sq"):
        setattr(case, name, getattr(case, name) * 1e-39)
    kept = case.in_place(native, num_threads=3)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    try:
        flushed = case.in_place(native, num_threads=3)
        alone = case.in_place(native, num_threads=1)
        assert not flushed.exp_avg.any()
        assert all(map(torch.equal, flushed.tensors(), alone.tensors()))
    finally:
        torch.set_flush_denormal(False)
    assert kept.exp_avg.any()
    assert all(map(torch.equal, case.in_place(native, num_threads=3).tensors(), kept.tensors()))


@ON_LINUX
def test_threads_stay_on_their_cores_until_they_are_freed(native: NativeAdam) -> None:
    usable = usable_cores()
    cores = usable[::-1][:4]
    native.bind_threads(cores)
    case = Case(200_000)
    case.in_place(native, num_threads=len(cores) + 2)  # more than cores: they go round
    threads = our_threads()
    assert len(threads) >= len(cores) + 2
    assert all(len(found) == 1 for found in threads.values())
    assert set.union(*threads.values()) == set(cores)
    assert os.sched_getaffinity(0) == set(usable)  # the caller's own are left alone
    native.bind_threads([])
    assert all(found == set(usable) for found in our_threads().values())


def test_processes_of_one_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert default_threads() == torch.get_num_threads()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert default_threads() == max(1, len(usable_cores()) // 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
    assert default_threads() == 1
    for wrong in ("many", "-3", "0", ""):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", wrong)
        assert default_threads() == torch.get_num_threads()


FORKS = """
import os, signal, sys, threading, warnings
import torch
from portwright.runtime.streaming.native.adam import load_native

warnings.simplefilter("ignore")  # of forking beside threads, which is what is tried here
native = load_native(print)
ones = torch.ones(400_000)

def work():
    weight, mean, square = (torch.zeros(400_000) for _ in range(3))
    native.step(
        weight=weight, exp_avg=mean, exp_avg_sq=square, weight_out=weight, exp_avg_out=mean, exp_avg_sq_out=square,
        grad=ones, half_out=None, lr=0.5, beta1=0.5, beta2=0.5, eps=0.0, weight_decay=0.0, decoupled=True, step=1,
        num_threads=3,
    )
    assert torch.equal(weight, -0.5 * ones)

def fork(depth=0):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(60)  # a child that hangs is a failure
            work()
            work()
            if depth:
                fork(depth - 1)  # a child of a child
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0

fork()  # before the first use
work()
native.bind_threads([sorted(os.sched_getaffinity(0))[0]] if hasattr(os, "sched_getaffinity") else [])
fork(depth=1)  # after it, with bound threads
stopped = threading.Event()
def forever():
    while not stopped.is_set():
        work()
busy = [threading.Thread(target=forever) for _ in range(2)]
for thread in busy:
    thread.start()
for _ in range(25):
    fork()  # while others are in the middle of a call
stopped.set()
for thread in busy:
    thread.join()
work()
print("all ended")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_works_on() -> None:
    load()
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "all ended", done.stderr
    assert done.returncode == 0


def test_a_thread_that_the_system_refuses_is_done_without(native: NativeAdam) -> None:
    script = """
import resource, torch
from portwright.runtime.streaming.native.adam import load_native
native = load_native(print)
resource.setrlimit(resource.RLIMIT_AS, (resource.getrlimit(resource.RLIMIT_AS)[1],) * 2)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
weight, mean, square, grad = (torch.zeros(2_000_000) for _ in range(4))
resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20), resource.RLIM_INFINITY))  # room for the stacks of a few
native.step(
    weight=weight, exp_avg=mean, exp_avg_sq=square, weight_out=weight, exp_avg_out=mean, exp_avg_sq_out=square, grad=grad,
    half_out=None, lr=0.5, beta1=0.5, beta2=0.5, eps=1.0, weight_decay=0.0, decoupled=True, step=1, num_threads=64,
)
threads = [t for t in __import__("pathlib").Path("/proc/self/task").iterdir() if (t / "comm").read_text().strip() == "portwright-adam"]
assert len(threads) < 64, len(threads)
print("did without")
"""
    if not sys.platform.startswith("linux"):
        pytest.skip("limits of memory are Linux's here")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "did without", done.stderr
