"""RunConfig: settings, their checks, and a process's place in a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from portwright.errors import UserError
from portwright.tensorflow import CSRunConfig, RunConfig

CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1", "e:1"]}


def config_in(monkeypatch: pytest.MonkeyPatch, value: Any) -> RunConfig:
    monkeypatch.setenv("TF_CONFIG", value if isinstance(value, str) else json.dumps(value))
    return RunConfig()


def test_defaults_are_those_of_tf_estimator() -> None:
    config = RunConfig()
    assert (config.save_checkpoints_secs, config.save_checkpoints_steps) == (600, None)
    assert (config.save_summary_steps, config.log_step_count_steps, config.keep_checkpoint_max) == (
        100,
        100,
        5,
    )
    assert (config.tf_random_seed, config.model_dir, config.session_config) == (None, None, None)
    assert (config.is_chief, config.task_type, config.task_id, config.num_worker_replicas) == (
        True,
        "worker",
        0,
        1,
    )
    assert RunConfig(save_checkpoints_steps=3).save_checkpoints_secs is None
    assert RunConfig(model_dir=Path("a")).model_dir == "a"


@pytest.mark.parametrize(
    "bad",
    [
        {"tf_random_seed": "a"},
        {"save_summary_steps": -1},
        {"save_checkpoints_steps": -1},
        {"save_checkpoints_secs": "x"},
        {"save_checkpoints_steps": 1, "save_checkpoints_secs": 1},
        {"session_config": 3},
        {"keep_checkpoint_max": -1},
        {"keep_checkpoint_every_n_hours": 0},
        {"log_step_count_steps": 0},
        {"protocol": "x"},
        {"device_fn": lambda x: x},
        {"session_creation_timeout_secs": 0},
        {"experimental_max_worker_delay_secs": 1.5},
    ],
)
def test_bad_settings_are_refused_by_name(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))) as caught:
        RunConfig(**bad)
    assert isinstance(caught.value, UserError)
    with pytest.raises(ValueError, match=next(iter(bad))):
        RunConfig().replace(**bad)


def test_replace_changes_a_copy() -> None:
    config = RunConfig(tf_random_seed=1)
    changed = config.replace(tf_random_seed=2, save_checkpoints_steps=5)
    assert (config.tf_random_seed, changed.tf_random_seed) == (1, 2)
    assert (changed.save_checkpoints_steps, changed.save_checkpoints_secs) == (5, None)
    with pytest.raises(ValueError, match=r"cannot replace task_id.*model_dir"):
        config.replace(task_id=3)


def test_a_worker_knows_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_in(monkeypatch, {"cluster": CLUSTER, "task": {"type": "worker", "index": 1}})
    assert (config.task_type, config.task_id, config.is_chief) == ("worker", 1, False)
    assert (config.master, config.global_id_in_cluster) == ("grpc://c:1", 2)
    assert (config.num_ps_replicas, config.num_worker_replicas) == (2, 3)
    assert config.cluster_spec.as_dict() == CLUSTER
    assert list(config.session_config.device_filters) == ["/job:ps", "/job:worker/task:1"]


@pytest.mark.parametrize(("task", "index", "place"), [("chief", 0, 0), ("ps", 1, 4)])
def test_places_are_counted_chief_first_and_ps_last(
    task: str, index: int, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_in(monkeypatch, {"cluster": CLUSTER, "task": {"type": task, "index": index}})
    assert (config.global_id_in_cluster, config.is_chief) == (place, task == "chief")


def test_an_evaluator_stands_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_in(monkeypatch, {"cluster": CLUSTER, "task": {"type": "evaluator", "index": 0}})
    assert (config.master, config.num_worker_replicas, config.global_id_in_cluster) == ("", 0, None)
    assert not config.cluster_spec


def test_a_cluster_of_one_talks_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        config_in(monkeypatch, {"cluster": {"chief": ["a:1"]}, "task": {"type": "chief", "index": 0}}).master
        == ""
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("nope", "not JSON"),
        ([1], "JSON object"),
        ({"task": {"type": "ps", "index": 0}}, "no cluster"),
        ({"task": {"index": 1}}, "no cluster"),
        ({"cluster": {"worker": ["b:1"]}, "task": {"type": "worker", "index": 0}}, "exactly one 'chief'"),
        (
            {"cluster": {"chief": ["a:1", "b:1"]}, "task": {"type": "chief", "index": 0}},
            "exactly one 'chief'",
        ),
        ({"cluster": {"chief": ["a:1"]}}, "its task is"),
        ({"cluster": {"chief": ["a:1"]}, "task": {"type": "worker", "index": 0}}, "not in its cluster"),
        ({"cluster": {"chief": ["a:1"]}, "task": {"type": "chief", "index": -1}}, "negative"),
        ({"cluster": {"chief": ["a:1"]}, "task": {"type": "chief", "index": 4}}, "out of range"),
        ({"cluster": {"chief": ["a:1"], "master": ["b:1"]}, "task": {"type": "chief", "index": 0}}, "both"),
        ({"cluster": {"master": ["b:1"]}, "task": {"type": "evaluator", "index": 0}}, "no 'evaluator'"),
        ({"service": 3}, "service"),
        ({"cluster": 3}, "cluster"),
        ({"model_dir": ""}, "empty"),
    ],
)
def test_a_bad_tf_config_is_refused(value: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=words):
        config_in(monkeypatch, value)


def test_two_model_dirs_must_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", '{"model_dir": "/x"}')
    assert RunConfig().model_dir == "/x"
    with pytest.raises(ValueError, match="'/y' in RunConfig and '/x'"):
        RunConfig(model_dir="/y")


def test_cerebras_settings_are_kept_beside_the_others() -> None:
    config = CSRunConfig(cs_ip="10.0.0.1", stack_params={"a": 1}, tf_random_seed=4, save_checkpoints_steps=7)
    assert (config._cs_ip, config._stack_params) == ("10.0.0.1", {"a": 1})
    changed = config.replace(tf_random_seed=5)
    assert isinstance(changed, CSRunConfig)
    assert (changed.tf_random_seed, changed.save_checkpoints_steps, changed._cs_ip) == (5, 7, "10.0.0.1")
    assert isinstance(
        RunConfig(session_config=tf.compat.v1.ConfigProto()).session_config, tf.compat.v1.ConfigProto
    )
