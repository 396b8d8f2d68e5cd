"""The `ipu` section of params.yaml: what it takes, what it refuses, and how."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from portwright.discover import get_target
from portwright.errors import UserError
from portwright.job.params import Params, load_params
from portwright.targets.ipu.options import read_settings
from portwright.targets.ipu.section import IpuSection

HEAD = "model: {}\noptimizer: {optimizer_type: SGD, learning_rate: 0.1%s}\nipu:\n"


def load(folder: Path, section: str, optimizer: str = "") -> Params:
    path = folder / "params.yaml"
    path.write_text(HEAD % optimizer + section)
    return load_params(path, target_sections=get_target("IPU").sections)


def error_of(folder: Path, section: str) -> str:
    with pytest.raises(UserError) as raised:
        load(folder, section)
    return str(raised.value)


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("  device_iteration: 2", "params.yaml:4: ipu.device_iteration: unknown key, with the value 2. Did you mean 'device_iterations'?"),
        ("  device_iterations: 0", "expected a number greater than or equal to 1, received 0"),
        ("  replication_factor: true", "expected a whole number, received True"),
        ("  partials: float16", "ipu.partials"),
        ("  output_mode: every", "ipu.output_mode"),
        ("  available_memory_proportion: 1.5", "ipu.available_memory_proportion"),
        ("  available_memory_proportion: {IPU-1: 0.2}", "IPU0, IPU1"),
        ("  available_memory_proportion: {IPU1: 0.2}", "no block is on IPU1, only on IPU0"),
        ("  blocks: [{module: a, ipu: 1}]\n  available_memory_proportion: {IPU0: 0.2}", "no block is on IPU0, only on IPU1"),
        ("  execution: pipelined", "needs blocks"),
        ("  blocks: [{module: a}]", "ipu.blocks.0.ipu"),
        ("  blocks: [{module: '', ipu: 0}]", "ipu.blocks.0.module: expected a string that is not empty, received ''."),
        ("  enable_executable_caching: ''", "expected a string that is not empty, received ''."),
        ("  blocks: [{module: a, ipu: 0}, {module: a, ipu: 1}]", "two blocks begin with the module 'a'"),
        ("  blocks: [{module: a, ipu: 0, stage: s}, {module: b, ipu: 1, stage: s}]", "a stage is on one"),
        ("  blocks: [{module: a, ipu: 0}, {module: b, ipu: 1}]\n  eval_device_iterations: 1", "at least 2 batches a call"),
        ("  offline_target: 3", "ipu.offline_target"),
        ("  random_seed: -1", "ipu.random_seed"),
        ("  connection_type: never", "ipu.connection_type"),
    ],
)  # fmt: skip
def test_bad_values_are_told_with_their_line(tmp_path: Path, section: str, expected: str) -> None:
    assert expected in error_of(tmp_path, section)


def test_an_empty_section_is_popdefaults(tmp_path: Path) -> None:
    section = load(tmp_path, "").sections["ipu"]
    assert section == IpuSection.model_validate({})


@pytest.mark.parametrize(
    ("section", "optimizer", "expected"),
    [
        ("", "", 1),
        ("", ", grad_accum_steps: 3", 3),
        ("  gradient_accumulation: 4", "", 4),
        ("  gradient_accumulation: 4", ", grad_accum_steps: 4", 4),
    ],
)
def test_accumulation_is_said_once(tmp_path: Path, section: str, optimizer: str, expected: int) -> None:
    assert read_settings(load(tmp_path, section, optimizer), print).accumulation == expected


@pytest.mark.parametrize(("ours", "theirs"), [(2, 4), (1, 4), (4, 1)])
def test_accumulation_said_twice_differently_is_refused(tmp_path: Path, ours: int, theirs: int) -> None:
    params = load(tmp_path, f"  gradient_accumulation: {theirs}", f", grad_accum_steps: {ours}")
    with pytest.raises(UserError, match=f"params.yaml:4.* is {theirs} and .* {ours}, and both mean the same"):
        read_settings(params, print)


@pytest.mark.parametrize("precision", ["bf16", "fp64"])
def test_formats_that_an_ipu_lacks_are_refused(tmp_path: Path, precision: str) -> None:
    params = load(tmp_path, "").with_runconfig(precision=precision)
    with pytest.raises(UserError, match=f"no {precision}.*fp32 or fp16"):
        read_settings(params, print)


def test_the_page_names_every_key() -> None:
    page = (Path(__file__).parents[3] / "docs" / "ipu.md").read_text()
    told = set(re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE))
    assert told == set(IpuSection.model_fields)


def test_the_page_says_of_each_key_what_the_section_says() -> None:
    page = (Path(__file__).parents[3] / "docs" / "ipu.md").read_text()
    for name, field in IpuSection.model_fields.items():
        assert f"| {field.description} |" in page, name


@pytest.mark.parametrize(
    ("name", "values"),
    [("output_mode", "all final sum"), ("execution", "pipelined sharded"), ("partials", "float half"),
     ("offline_target", "1 2 21"), ("connection_type", "always on_demand")],
)  # fmt: skip
def test_a_key_with_few_values_names_them(name: str, values: str) -> None:
    words = set(re.findall(r"\w+", IpuSection.model_fields[name].description or ""))
    assert set(values.split()) <= words
