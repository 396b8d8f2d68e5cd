"""What is planned, and the batch that it is planned with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from portwright.errors import UserError
from portwright.graph.inputs import TensorSpec, parse_batch
from portwright.graph.plans.request import PlanOptions, Request, parse_memory, parse_targets
from portwright.planning.subject import Subject, load_subject
from portwright.planning.torch_plan import plan_subject


@pytest.fixture(autouse=True)
def _leave_no_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("model", "data", "utils"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def subject_of(folder: Path, **options: Any) -> Subject:
    try:
        return load_subject(Request(str(folder), **options))
    finally:
        for name in ("model", "data", "utils"):
            sys.modules.pop(name, None)


def test_a_described_batch_is_a_tuple_and_a_dict() -> None:
    batch = parse_batch(["ids:int64[2,3]", "labels:int64[2]"])
    ids, labels = batch
    assert batch["ids"] is ids is batch[0]
    assert batch.get("labels") is labels
    assert batch.get("mask") is None
    assert "ids" in batch
    assert "mask" not in batch
    assert dict(**batch) == {"ids": TensorSpec((2, 3), "int64"), "labels": TensorSpec((2,), "int64")}
    with pytest.raises(KeyError):
        batch["mask"]


def test_inputs_without_names_are_what_they_are() -> None:
    assert parse_batch(["float32[2]"]) == TensorSpec((2,), "float32")
    assert parse_batch(["float32[2]", "int64[]"]) == (TensorSpec((2,), "float32"), TensorSpec((), "int64"))


def test_a_folder_gives_its_own_batch_optimizer_and_precision(model_folder: Path) -> None:
    subject = subject_of(
        model_folder,
        overrides=("optimizer.optimizer_type=SGD", "optimizer.momentum=0.9", "model.mixed_precision=true"),
    )
    assert [tuple(tensor.shape) for tensor in subject.batch] == [(64, 1, 8, 8), (64,)]
    assert subject.optimizer.name == "SGD"
    assert subject.optimizer.options["momentum"] == 0.9
    assert subject.half in ("float16", "bfloat16")
    assert subject.data.num_samples == 1437


def test_processes_that_load_data_are_the_training_machines(
    model_folder: Path,
) -> None:
    """Torch warns of more than this machine has, and warnings are errors here."""
    data = model_folder / "data.py"
    warning = "This DataLoader will create 8 worker processes in total."
    data.write_text(
        data.read_text().replace(
            "    return DataLoader(",
            f"    import warnings\n    warnings.warn({warning!r})\n    return DataLoader(",
        )
    )
    assert subject_of(model_folder).batch is not None


def test_another_batch_size_changes_the_first_dimension_alone(model_folder: Path) -> None:
    subject = subject_of(model_folder, batch_size=5)
    assert subject.batch == [TensorSpec((5, 1, 8, 8), "float32"), TensorSpec((5,), "int64")]


def test_each_capture_gets_a_model_and_params_of_its_own(model_folder: Path) -> None:
    subject = subject_of(model_folder)
    assert subject.make_model().net is not subject.make_model().net


def test_a_file_named_as_a_module_in_use_does_not_replace_it(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("import torch\ndef make(): return torch.nn.Linear(2, 2)\n")
    json_module = sys.modules["json"]
    subject = load_subject(Request(f"{tmp_path / 'json.py'}:make", inputs=("float32[1,2]",)))
    assert sys.modules["json"] is json_module
    assert isinstance(subject.make_model().net, torch.nn.Linear)


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_a_name_that_the_file_lacks_is_said_before_its_input_is_asked_for(
    framework: str, tmp_path: Path
) -> None:
    load: Any = load_subject
    if framework == "tensorflow":
        pytest.importorskip("tensorflow")
        from portwright.planning.tensorflow_subject import load_step as load
    (tmp_path / "net.py").write_text("def make(): pass\n")
    with pytest.raises(UserError, match=r"has no .*'none'"):
        load(Request(f"{tmp_path / 'net.py'}:none"))


def test_a_model_that_ends_the_process_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "ending.py").write_text("import sys\ndef make(): sys.exit(7)\n")
    subject = load_subject(Request(f"{tmp_path / 'ending.py'}:make", inputs=("float32[1,2]",)))
    with pytest.raises(UserError, match="7"):
        plan_subject(subject, PlanOptions(parse_targets("cpu")))


def test_mixed_precision_is_planned_for_torchs_own_targets(model_folder: Path) -> None:
    plain = plan_subject(subject_of(model_folder), PlanOptions(parse_targets("cpu"))).plans["cpu"]
    mixed = plan_subject(
        subject_of(model_folder, overrides=("model.mixed_precision=true",)), PlanOptions(parse_targets("cpu"))
    ).plans["cpu"]
    assert plain.memory.weight_copies == 0
    assert mixed.memory.weight_copies > 0


def test_whose_memory_it_is() -> None:
    both = parse_targets("csx,gpu")
    assert parse_memory("3GB", both) == {"GPU": 3 * 10**9}
    assert parse_memory("3GB", parse_targets("csx")) == {"CSX": 3 * 10**9}
    assert parse_memory("csx=1GB,gpu=2GB", both) == {"CSX": 10**9, "GPU": 2 * 10**9}
    assert parse_memory(None, both) == {}
    with pytest.raises(UserError, match="csx=3GB"):
        parse_memory("3GB", parse_targets("csx,ipu"))
    with pytest.raises(UserError, match="not planned for"):
        parse_memory("rdu=3GB", both)
