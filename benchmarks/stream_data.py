"""Data streamed by 1 to 6 workers over gRPC, beside torch's DataLoader with as many workers of its own, and beside a plain socket.

Readers that wait: each sample sleeps 2 ms, which stands for a file system's latency, so that two cores can serve six readers; the
bound is workers / 2 ms. What it cannot show is readers that compute: for those two cores are two cores, however many workers
there are. Readers that wait for nothing: batches of 16 MB that lie ready, in MB a second over the loopback, beside what a plain
socket and gRPC alone carry, which are the limits. All are processes that are there from the beginning and rest while others are
measured; what they have made ahead is taken first, untimed. Processes run at real-time priority where they may.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice
from typing import Any

import numpy as np
import torch
from measure import Claim, finish, interleave, paired_ratio, parse_arguments
from torch.utils.data import DataLoader, Dataset, default_collate

from portwright.stream import protocol
from portwright.stream.pool import Order, Pool
from portwright.stream.wire import allocate, pack, unpack
from portwright.stream.worker import work

SAMPLE_SECONDS = 0.002
BATCH, WIDTH = 16, 3 * 32 * 32
LARGE_MB = 16
MOST_WORKERS = 6
KEY = "of a benchmark"


class Waiting(Dataset):  # type: ignore[type-arg]
    """Samples that take 2 ms of waiting each."""

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        time.sleep(SAMPLE_SECONDS)
        return {"image": torch.full((WIDTH,), number % 251, dtype=torch.uint8), "label": torch.tensor(number)}


class Ready(Dataset):  # type: ignore[type-arg]
    """Batches that lie ready."""

    def __init__(self) -> None:
        self.batch = torch.randint(0, 255, (LARGE_MB * 1_000_000,), dtype=torch.uint8)

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, number: int) -> torch.Tensor:
        return self.batch


class Numbers:
    """A sampler of batches that never ends."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[list[int]]:
        return (list(range(first, first + self.size)) for first in count(0, self.size))


def become_urgent() -> bool:
    """Real-time priority, so that neighbours on the same cores do not count; says whether it was to be had."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        return False
    return True


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def fork(task: Callable[[], object]) -> int:
    """A process of ours; from before gRPC's first use, which does not survive a fork."""
    if child := os.fork():
        return child
    try:
        task()
    finally:
        os._exit(0)


def hush(line: str) -> None:
    pass


# Streaming: ours


def fork_workers(number: int, handle: Callable[[bytes], Any]) -> tuple[str, list[int]]:
    address = f"127.0.0.1:{free_port()}"
    return address, [
        fork(partial(work, address, KEY, f"{place}", handle, note=hush)) for place in range(number)
    ]


def read_waiting(body: bytes, data: Waiting) -> object:
    numbers = json.loads(body)
    return pack(default_collate([data[number] for number in numbers]), samples=len(numbers))


def streamed(address: str, number: int, size: int) -> Iterator[Any]:
    pool = Pool(address, KEY, expected=number, note=hush)
    while len(pool.counts()) < number:
        time.sleep(0.05)
    orders = (Order(json.dumps(numbers).encode()) for numbers in Numbers(size))
    for result in pool.map(orders, 2 * number, None):
        yield unpack(result)[0]


# The limits: a plain socket, and gRPC alone


def fork_socket() -> tuple[str, list[int]]:
    port = free_port()

    def send() -> None:
        while True:
            try:
                with socket.create_connection(("127.0.0.1", port)) as link:
                    data = os.urandom(LARGE_MB * 1_000_000)
                    while True:
                        link.sendall(data)
            except ConnectionRefusedError:
                time.sleep(0.1)

    return f"127.0.0.1:{port}", [fork(send)]


def received(address: str, is_fresh: bool) -> Iterator[memoryview]:
    """Batches over a socket, into memory of their own or always into the same."""
    listener = socket.create_server(("127.0.0.1", int(address.rpartition(":")[2])))
    link, _ = listener.accept()
    buffer = allocate(LARGE_MB * 1_000_000)
    while True:
        if is_fresh:
            buffer = allocate(LARGE_MB * 1_000_000)
        filled = 0
        while filled < len(buffer):
            filled += link.recv_into(buffer[filled:])
        yield buffer


def fork_grpc() -> tuple[str, list[int]]:
    port = free_port()

    def send() -> None:
        import grpc

        channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=protocol.CLIENT_OPTIONS)
        piece = os.urandom(protocol.PIECE_BYTES)
        list(
            channel.stream_stream("/limit/Send")(iter(lambda: piece, None), wait_for_ready=True, timeout=3600)
        )

    return f"127.0.0.1:{port}", [fork(send)]


def carried(address: str) -> Iterator[int]:
    """Messages of gRPC's, counted and dropped; as many as hold one batch at a time."""
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    messages: queue.Queue[int] = queue.Queue(maxsize=4)

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: object) -> object:
            def serve(requests: Iterator[bytes], context: object) -> Iterator[bytes]:
                for request in requests:
                    messages.put(len(request))
                yield b""

            return grpc.stream_stream_rpc_method_handler(serve)

    server = grpc.server(ThreadPoolExecutor(1), options=protocol.SERVER_OPTIONS)
    server.add_generic_rpc_handlers((Handler(),))
    server.add_insecure_port(address)
    server.start()
    while True:
        yield sum(messages.get() for _ in range(LARGE_MB))


def rate(batches: Iterator[object], ahead: int, unit: float, seconds: float) -> float:
    """Units a second, after what was made ahead while others were measured."""
    for _ in islice(batches, ahead):
        pass
    num_batches, start = 0, time.perf_counter()
    while (now := time.perf_counter()) < start + seconds or not num_batches:
        next(batches)
        num_batches += 1
    return num_batches * unit / (now - start)


def local(data: Dataset[object], number: int, sampler: object) -> Iterator[Any]:
    warnings.filterwarnings("ignore", "This DataLoader will create")  # readers that wait need no core each
    loader = DataLoader(data, batch_sampler=sampler, num_workers=number)  # type: ignore[arg-type]
    return iter(loader)


def check(batch: dict[str, torch.Tensor]) -> None:
    """Both ways give the same first batch."""
    assert batch["label"].tolist() == list(range(BATCH))
    assert torch.equal(batch["image"][:, 0], batch["label"] % 251)


def print_tables(medians: dict[str, float]) -> None:
    print(f"{'workers':<9}{'bound':>9}{'streamed':>11}{'of it':>8}{'DataLoader':>12}{'of it':>8}   samples/s")
    print(f"{'none':<9}{1 / SAMPLE_SECONDS:>9,.0f}{'':>19}{medians['local 0']:>12,.0f}"
          f"{medians['local 0'] * SAMPLE_SECONDS:>8.3f}")  # fmt: skip
    for n in range(1, MOST_WORKERS + 1):
        ours, theirs, bound = medians[f"stream {n}"], medians[f"local {n}"], n / SAMPLE_SECONDS
        print(f"{n:<9}{bound:>9,.0f}{ours:>11,.0f}{ours / bound:>8.3f}{theirs:>12,.0f}{theirs / bound:>8.3f}")
    for name, value in medians.items():
        if name.endswith("MB"):
            print(f"{name:<50}{value:>9,.0f} MB/s")


def main() -> int:
    arguments = parse_arguments(__doc__)
    rounds, seconds = (1, 0.5) if arguments.quick else (7, 1.5)
    torch.set_num_threads(1)
    is_urgent = become_urgent()
    load = os.getloadavg()[0]
    waiting, ready = Waiting(), Ready()
    large = np.array(ready.batch.numpy())
    forked = {n: fork_workers(n, partial(read_waiting, data=waiting)) for n in range(1, MOST_WORKERS + 1)}
    heavy = {n: fork_workers(n, lambda body: pack(large, samples=1)) for n in (1, 2)}
    sockets = {is_fresh: fork_socket() for is_fresh in (False, True)}
    alone = fork_grpc()
    loaders = {n: local(waiting, n, Numbers(BATCH)) for n in range(MOST_WORKERS + 1)}
    large_loaders = {n: local(ready, n, Numbers(1)) for n in (1, 2)}
    contestants: dict[str, Callable[[], float]] = {}
    for n, loader in loaders.items():  # forks its workers: before gRPC has threads
        check(next(loader))
        contestants[f"local {n}"] = partial(rate, loader, 2 * n, BATCH, seconds)
    for n, loader in large_loaders.items():
        next(loader)
        contestants[f"DataLoader, {n} workers, MB"] = partial(rate, loader, 2 * n, LARGE_MB, seconds)
    for n, (address, _) in forked.items():
        batches = streamed(address, n, BATCH)
        check(next(batches))
        contestants[f"stream {n}"] = partial(rate, batches, 2 * n, BATCH, seconds)
    for n, (address, _) in heavy.items():
        contestants[f"stream, {n} workers, MB"] = partial(
            rate, streamed(address, n, 1), 2 * n, LARGE_MB, seconds
        )
    for is_fresh, (address, _) in sockets.items():
        name = f"plain socket, {'memory of its own a batch' if is_fresh else 'always the same memory'}, MB"
        contestants[name] = partial(rate, received(address, is_fresh), 1, LARGE_MB, seconds)
    mib = LARGE_MB * protocol.PIECE_BYTES / 1e6
    contestants["gRPC alone, bytes dropped, MB"] = partial(rate, carried(alone[0]), 1, mib, seconds)
    try:
        rates = interleave(contestants, rounds)
    finally:
        for _, children in [*forked.values(), *heavy.values(), *sockets.values(), alone]:
            for child in children:
                os.kill(child, 9)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print_tables(medians)
    bounds = {n: [n / SAMPLE_SECONDS] * rounds for n in range(1, MOST_WORKERS + 1)}
    most = f"stream {MOST_WORKERS}"
    carry = rates["gRPC alone, bytes dropped, MB"]
    claims = [
        Claim("6 streaming workers / their bound", paired_ratio(rates[most], bounds[6]), 0.9),
        Claim("6 streaming workers / 1", paired_ratio(rates[most], rates["stream 1"]), 5.5),
        Claim("6 streaming workers / no workers", paired_ratio(rates[most], rates["local 0"]), 5.5),
        Claim("6 streaming workers / DataLoader with 6", paired_ratio(rates[most], rates["local 6"]), 0.97),
        Claim("MB/s streamed by one worker / gRPC alone", paired_ratio(rates["stream, 1 workers, MB"], carry), 0.8),
    ]  # fmt: skip
    import grpc

    figures = {
        "sample_seconds": SAMPLE_SECONDS, "batch": BATCH, "large_mb": LARGE_MB, "rounds": rounds, "seconds": seconds,
        "real_time_priority": is_urgent, "load_when_it_began": load, "rates": rates, "medians": medians,
    }  # fmt: skip
    status = finish(arguments, claims, figures, torch=torch.__version__, grpc=grpc.__version__)
    sys.stdout.flush()
    os._exit(status)  # loaders whose epoch never ends are slow to part


if __name__ == "__main__":
    sys.exit(main())
