"""Keys that choose and shape an execution mode, as a user writes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from portwright.errors import UserError
from portwright.job.params import Params, load_params, save_params


def read(folder: Path, **runconfig: Any) -> Params:
    path = folder / "params.yaml"
    path.write_text(yaml.safe_dump({"optimizer": {"learning_rate": 0.1}, "runconfig": runconfig}))
    return load_params(path)


def test_what_is_left_out(tmp_path: Path) -> None:
    config = read(tmp_path).runconfig
    assert (config.execution, config.wanted_execution) == ("auto", "auto")
    streaming, pipeline = config.streaming, config.pipeline
    assert (streaming.layers, streaming.slots, streaming.device_memory, streaming.store) == (
        None,
        3,
        None,
        None,
    )
    assert (streaming.pinned_memory, streaming.offload_activations) == (None, False)
    assert (streaming.state_dtype, streaming.update_on_device) == ("fp32", "auto")
    assert (pipeline.stages, pipeline.replicas, pipeline.micro_batches) == (None, 1, None)
    assert (pipeline.schedule, pipeline.cuts) == ("1f1b", None)


def test_a_section_named_and_left_empty_is_the_default(tmp_path: Path) -> None:
    assert read(tmp_path, streaming=None, pipeline=None).runconfig == read(tmp_path).runconfig


@pytest.mark.parametrize(
    ("written", "size"),
    [("24GiB", 24 * 2**30), ("512MB", 512 * 10**6), (4096, 4096), ("4096", 4096), (1e9, 10**9)],
)
def test_sizes_of_memory(written: Any, size: int, tmp_path: Path) -> None:
    section = read(
        tmp_path, streaming={"device_memory": written, "pinned_memory": written}
    ).runconfig.streaming
    assert (section.device_memory, section.pinned_memory) == (size, size)


@pytest.mark.parametrize("written", ["24XB", "", "-1GB", -5, 0, True, 1.5, [1], "lots", "0"])
def test_what_is_no_size_of_memory(written: Any, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"params.yaml:\d+: runconfig.streaming.device_memory: .*, received"
    ) as caught:
        read(tmp_path, streaming={"device_memory": written})
    assert "\n" not in str(caught.value)


def test_one_pattern_is_a_list_of_one(tmp_path: Path) -> None:
    assert read(tmp_path, streaming={"layers": "blocks.*"}).runconfig.streaming.layers == ["blocks.*"]


@pytest.mark.parametrize(
    ("runconfig", "told"),
    [
        ({"execution": "streamed"}, "Did you mean 'streaming'"),
        ({"execution": None}, "runconfig.execution"),
        ({"streaming": {"slot": 3}}, "Did you mean 'slots'"),
        ({"streaming": {"slots": 1}}, "greater than or equal to 2, received 1"),
        ({"streaming": {"slots": "3"}}, "Remove the quotes"),
        ({"streaming": {"state_dtype": "fp16"}}, "received 'fp16'"),
        ({"streaming": {"update_on_device": 1.5}}, "received 1.5"),
        ({"streaming": {"update_on_device": "all"}}, "received 'all'"),
        ({"streaming": {"layers": []}}, "runconfig.streaming.layers"),
        ({"streaming": {"layers": [""]}}, "runconfig.streaming.layers.0"),
        ({"streaming": {"store": ""}}, "a string that is not empty"),
        ({"streaming": 3}, "expected a mapping"),
        ({"pipeline": {"schedule": "1F1B"}}, "Did you mean '1f1b'"),
        ({"pipeline": {"stages": 0}}, "received 0"),
        ({"pipeline": {"micro_batches": 0}}, "received 0"),
        ({"pipeline": {"cuts": ["a", "b", "a"]}}, "'a' is there 2 times"),
        ({"pipeline": {"stages": 2, "cuts": ["a", "b"]}}, r"2 stages under 1f1b take 2: give 1 cut"),
        (
            {"pipeline": {"stages": 2, "cuts": ["a"], "schedule": "zbv_zero_bubble"}},
            r"2 stages under zbv_zero_bubble take 4: give 3 cut",
        ),
        (
            {"pipeline": {"stages": 2, "cuts": ["a", "b"], "schedule": "interleaved_1f1b"}},
            "give 3 cuts",
        ),
        ({"execution": "streaming", "distributed": "fsdp"}, "keep one of them"),
        ({"execution": "pipelined", "distributed": "fsdp"}, "keep one of them"),
    ],
)
def test_mistakes_are_told_with_their_line(runconfig: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=told) as caught:
        read(tmp_path, **runconfig)
    assert "params.yaml:" in str(caught.value)


@pytest.mark.parametrize(
    "pipeline",
    [
        {"stages": 2, "cuts": ["b.2"]},
        {"stages": 2, "cuts": ["b.1", "b.2", "b.3"], "schedule": "interleaved_zero_bubble"},
        {"stages": 2, "cuts": ["b.1", "b.2", "b.3"], "schedule": "dualpipev"},
        {"cuts": ["b.1", "b.2"]},
    ],
)
def test_cuts_that_make_the_stages(pipeline: dict[str, Any], tmp_path: Path) -> None:
    assert read(tmp_path, pipeline=pipeline).runconfig.pipeline.cuts == pipeline["cuts"]


@pytest.mark.parametrize(
    ("execution", "strategy", "wanted"),
    [
        ("auto", "pipeline", "pipelined"),
        ("auto", "weight_streaming", "streaming"),
        ("resident", "weight_streaming", "resident"),
        ("pipelined", "weight_streaming", "pipelined"),
        ("auto", None, "auto"),
    ],
)
def test_the_older_key_speaks_where_execution_is_auto(
    execution: str, strategy: str | None, wanted: str, tmp_path: Path
) -> None:
    config = read(tmp_path, execution=execution, execution_strategy=strategy).runconfig
    assert config.wanted_execution == wanted


def test_saved_params_say_the_same_again(tmp_path: Path) -> None:
    params = read(
        tmp_path,
        execution_strategy="weight_streaming",
        streaming={"device_memory": "24GiB", "layers": ["b.*"]},
        pipeline={"cuts": ["b.1"], "stages": 2},
    )
    save_params(params, tmp_path / "saved.yaml")
    again = load_params(tmp_path / "saved.yaml")
    assert again.runconfig.streaming == params.runconfig.streaming
    assert again.runconfig.pipeline == params.runconfig.pipeline
    assert again.runconfig.wanted_execution == "streaming"
    assert params.with_runconfig(compile=True).runconfig.wanted_execution == "streaming"


def test_overrides_reach_into_the_sections(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("optimizer: {learning_rate: 0.1}\nrunconfig: {}\n")
    config = load_params(
        path, overrides=["runconfig.streaming.device_memory=1GiB", "runconfig.pipeline.schedule=1f1b"]
    ).runconfig
    assert config.streaming.device_memory == 2**30


def test_no_framework_is_loaded_for_it() -> None:
    code = "import sys, portwright.job.runconfig; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
