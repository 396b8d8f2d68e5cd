from __future__ import annotations

from pathlib import Path

import pytest

from portwright.runtime.streaming.host_memory import (
    SPARE_BYTES,
    HostMemory,
    HostMemoryError,
    ask_for,
    read_host_memory,
)

GIB = 2**30
NO_LIMIT_V1 = "9223372036854771712\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def meminfo(total_gib: int, available_gib: int | None) -> str:
    lines = [
        f"MemTotal:       {total_gib * 2**20} kB",
        "MemFree:         1048576 kB",
        "Buffers:          524288 kB",
        "Cached:           524288 kB",
        "HugePages_Total:       0",
    ]
    if available_gib is not None:
        lines.insert(2, f"MemAvailable:    {available_gib * 2**20} kB")
    return "\n".join(lines) + "\n"


def test_the_machine_alone(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/meminfo": meminfo(64, 50)})
    assert read_host_memory(root) == HostMemory(50 * GIB, 64 * GIB, "this machine")


def test_a_kernel_that_does_not_tell_what_is_available(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/meminfo": meminfo(64, None)})
    assert read_host_memory(root).available_bytes == 2 * GIB  # free, cached and buffers


def test_no_proc_at_all(tmp_path: Path) -> None:
    assert read_host_memory(tmp_path).available_bytes > 0


def test_this_machine_says_something_sane() -> None:
    memory = read_host_memory()
    assert 0 < memory.available_bytes <= memory.limit_bytes


def test_cgroup_v2_leaves_out_page_cache_that_can_go(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/meminfo": meminfo(64, 50),
            "proc/self/cgroup": "0::/job/task\n",
            "sys/fs/cgroup/job/task/memory.max": "max\n",
            "sys/fs/cgroup/job/task/memory.current": f"{GIB}\n",
            "sys/fs/cgroup/job/memory.max": f"{16 * GIB}\n",  # SLURM's limit is on the folder above
            "sys/fs/cgroup/job/memory.current": f"{10 * GIB}\n",
            "sys/fs/cgroup/job/memory.stat": f"anon 5\ninactive_file {4 * GIB}\nactive_file 7\n",
        },
    )
    assert read_host_memory(root) == HostMemory(10 * GIB, 16 * GIB, "the container's limit")


def test_cgroup_v2_high_counts_as_a_limit(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/meminfo": meminfo(64, 50),
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": f"{16 * GIB}\n",
            "sys/fs/cgroup/memory.high": f"{8 * GIB}\n",
            "sys/fs/cgroup/memory.current": f"{9 * GIB}\n",
        },
    )
    assert read_host_memory(root) == HostMemory(0, 8 * GIB, "the container's limit")


def test_cgroup_v1_inside_a_container_that_does_not_see_its_own_path(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/meminfo": meminfo(64, 50),
            "proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/docker/abc\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GIB}\n",
            "sys/fs/cgroup/memory/memory.stat": f"inactive_file 3\ntotal_inactive_file {GIB}\n",
        },
    )
    assert read_host_memory(root) == HostMemory(2 * GIB, 4 * GIB, "the container's limit")


@pytest.mark.parametrize("limit", [NO_LIMIT_V1, f"{65 * GIB}\n", "max\n", "", "nonsense\n"])
def test_a_limit_beyond_the_machine_or_none_is_no_limit(tmp_path: Path, limit: str) -> None:
    root = write(
        tmp_path,
        {
            "proc/meminfo": meminfo(64, 50),
            "proc/self/cgroup": "4:memory:/a\n0::/a\n",
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": limit,
            "sys/fs/cgroup/memory/a/memory.usage_in_bytes": f"{40 * GIB}\n",
            "sys/fs/cgroup/a/memory.max": limit,
            "sys/fs/cgroup/a/memory.current": f"{40 * GIB}\n",
        },
    )
    assert read_host_memory(root) == HostMemory(50 * GIB, 64 * GIB, "this machine")


def test_a_loose_limit_does_not_hide_a_full_machine(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/meminfo": meminfo(64, 2),
            "proc/self/cgroup": "0::/a\n",
            "sys/fs/cgroup/a/memory.max": f"{32 * GIB}\n",
            "sys/fs/cgroup/a/memory.current": f"{GIB}\n",
        },
    )
    assert read_host_memory(root).available_bytes == 2 * GIB


def test_asking_says_what_is_needed_what_is_free_and_what_to_do() -> None:
    memory = HostMemory(10**10 + SPARE_BYTES, 64 * 10**9, "the container's limit")
    ask_for(10**10, "the arrays", "Do this.", memory)
    with pytest.raises(HostMemoryError) as caught:
        ask_for(10**10 + 1, "the arrays", "Do this.", memory)
    assert str(caught.value) == (
        "not enough host memory for the arrays: 10.0 GB needed, 10.3 GB free of the 64.0 GB of the container's limit. Do this."
    )
    assert caught.value.details["needed_bytes"] == 10**10 + 1
