"""Where the tasks of a launch are, and which ports are theirs."""

from __future__ import annotations

import json
import os
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portwright.errors import UserError
from portwright.job.launch_env import Launch
from portwright.tensorflow.run_launch import (
    expand_hosts,
    find_first_port,
    find_hosts,
    take_place_from_launch,
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("node[08-11]", ["node08", "node09", "node10", "node11"]),
        ("a[1,3-4],b,c-[01]", ["a1", "a3", "a4", "b", "c-01"]),
        ("r[0-1]n[8-9].site", ["r0n8.site", "r0n9.site", "r1n8.site", "r1n9.site"]),
        ("", []),
    ],
)
def test_lists_of_nodes_are_written_out(text: str, names: list[str]) -> None:
    assert expand_hosts(text) == names


@pytest.mark.parametrize("text", ["n[1-", "n[]", "a b", "[", "n[1-2-3]", "n[x]", "n]1", ",a", "a,,b"])
def test_what_is_no_list_of_nodes_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="not a list of SLURM's nodes"):
        expand_hosts(text)


@given(st.lists(st.sampled_from(["a", "b7", "c-1.x"]), min_size=1, max_size=5))
def test_plain_names_stay_as_they_are(names: list[str]) -> None:
    assert expand_hosts(",".join(names)) == names


def step(**more: str) -> dict[str, str]:
    return {
        "SLURM_STEP_NODELIST": "n[1-3]",
        "SLURM_STEP_NUM_TASKS": "5",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
        **more,
    }


@pytest.mark.parametrize(
    ("environ", "hosts"),
    [
        (step(), "n1 n1 n2 n2 n3"),
        (step(SLURM_DISTRIBUTION="cyclic"), "n1 n2 n3 n1 n2"),
        (step(SLURM_DISTRIBUTION="block", SLURMD_NODENAME="n2"), "n1 n1 n2 n2 n3"),
        (step(PORTWRIGHT_TASK_HOSTS="a,b,c,d,e"), "a b c d e"),
        ({"MASTER_ADDR": "m", "LOCAL_WORLD_SIZE": "5"}, "m m m m m"),
        ({"MASTER_ADDR": "m"}, "m m m m m"),
        ({}, " ".join(["localhost"] * 5)),
    ],
)
def test_hosts_of_tasks(environ: dict[str, str], hosts: str) -> None:
    assert find_hosts(Launch(rank=2, world_size=5), environ) == hosts.split()


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"MASTER_ADDR": "m", "LOCAL_WORLD_SIZE": "2"}, "on several hosts, 2 on this one"),
        (step(SLURMD_NODENAME="n3"), "task 2 is on n3"),
        (step(SLURM_STEP_TASKS_PER_NODE="2"), "cannot tell where the 5 tasks"),
        (step(SLURM_STEP_TASKS_PER_NODE=""), "cannot tell where the 5 tasks"),
        (step(SLURM_STEP_TASKS_PER_NODE="2,2,1,4"), "cannot tell where the 5 tasks"),
    ],
)
def test_hosts_that_nothing_tells_are_asked_for(environ: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        find_hosts(Launch(rank=2, world_size=5), environ)
    assert "PORTWRIGHT_TASK_HOSTS" in caught.value.cure


def test_ports_of_jobs_are_apart() -> None:
    assert find_first_port(7, {}) == 23111
    assert find_first_port(7, {"MASTER_PORT": "29500"}) == 23111  # torchrun's own
    assert find_first_port(7, {"PORTWRIGHT_TF_PORT": "5000", "SLURM_JOB_ID": "3"}) == 5000
    for num_tasks in (2, 7, 16, 17, 100):
        firsts = [find_first_port(num_tasks, {"SLURM_JOB_ID": str(number)}) for number in range(900, 960)]
        assert len(set(firsts)) == 60
        assert all(abs(a - b) >= num_tasks for a in firsts for b in firsts if a != b)
        assert all(first >= 23111 and first + num_tasks <= 32768 for first in firsts)


@pytest.mark.parametrize("port", ["x", "80", "65535", "-1", "1e4"])
def test_a_port_that_cannot_be_is_refused(port: str) -> None:
    with pytest.raises(UserError, match="PORTWRIGHT_TF_PORT is"):
        find_first_port(2, {"PORTWRIGHT_TF_PORT": port})


def place(**environ: str) -> tuple[Any, list[str]]:
    notes: list[str] = []
    with mock.patch.dict(os.environ, environ, clear=True):
        take_place_from_launch(notes.append)
        return json.loads(os.environ.get("TF_CONFIG") or "null"), notes


def test_the_first_task_is_chief() -> None:
    config, notes = place(RANK="0", WORLD_SIZE="2", MASTER_ADDR="m")
    assert config["cluster"] == {"chief": ["m:23111"], "worker": ["m:23112"]}
    assert config["task"] == {"type": "chief", "index": 0}
    assert "m:23112" in notes[0]
    config, notes = place(SLURM_STEP_ID="0", SLURM_PROCID="4", SLURM_JOB_ID="2", **step(SLURMD_NODENAME="n3"))
    assert config["task"] == {"type": "worker", "index": 3}
    assert config["cluster"]["chief"] == ["n1:23143"]
    assert config["cluster"]["worker"] == ["n1:23144", "n2:23145", "n2:23146", "n3:23147"]
    assert notes == []


def test_a_place_that_the_user_gave_or_that_is_alone_stays() -> None:
    assert place() == (None, [])
    assert place(RANK="0", WORLD_SIZE="1") == (None, [])
    assert place(RANK="1", WORLD_SIZE="2", TF_CONFIG='{"task": 1}') == ({"task": 1}, [])
