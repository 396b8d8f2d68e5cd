"""Saved executables: written whole, read without the user's class or refused with the reason, and cached."""

from __future__ import annotations

import copy
import json
import logging
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from unit.emulate.executor_models import Classifier, make_batch

from portwright.emulate import poptorch

BATCH = make_batch(8)


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def options() -> Any:
    made = poptorch.Options().deviceIterations(2).randomSeed(5)
    made.Training.gradientAccumulation(2)
    return made


@pytest.mark.parametrize("kind", [poptorch.optim.Adam, torch.optim.AdamW, poptorch.optim.SGD])
def test_a_saved_training_goes_on_the_same(tmp_path: Path, kind: Any) -> None:
    model = Classifier(dropout=0.3)
    executor = poptorch.trainingModel(model, options(), kind(model.parameters(), lr=0.05))
    executor(*BATCH)
    path = tmp_path / "new" / "model.poptorch"
    executor.save(str(path))
    assert not executor.copyWeightsToHostIfNeeded()  # saving brought them back
    loaded = poptorch.load(str(path))
    for _ in range(3):
        expected, got = executor(*BATCH), loaded(*BATCH)
        assert torch.equal(expected[0], got[0])
        assert torch.equal(expected[1], got[1])
    executor.copyWeightsToHost()
    loaded.copyWeightsToHost()
    assert list(loaded.state_dict()) == list(model.state_dict())
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])
    with pytest.raises(poptorch.Error, match="not its Python code"):
        loaded.model(*BATCH)
    assert names_in(path.parent) == ["model.poptorch"]


SCRIPT = """
import logging, sys, torch
from portwright.emulate import poptorch
path, cache, batch, losses = sys.argv[1:]
logging.getLogger("poptorch").setLevel(logging.INFO)
executor = poptorch.load(path)
x, y = torch.load(batch, weights_only=True)
torch.save([executor(x, y)[1] for _ in range(2)], losses)
assert "unit.emulate.executor_models" not in sys.modules
from unit.emulate.executor_models import Classifier
poptorch.inferenceModel(Classifier(), poptorch.Options().enableExecutableCaching(cache))(x)
"""


def test_a_fresh_process_goes_on_and_finds_the_cache(tmp_path: Path) -> None:
    model = Classifier(norm=True)
    executor = poptorch.trainingModel(model, options(), poptorch.optim.AdamW(model.parameters(), lr=0.05))
    executor(*BATCH)
    paths = [str(tmp_path / name) for name in ("model", "cache", "batch", "losses")]
    executor.save(paths[0])
    poptorch.inferenceModel(Classifier(), poptorch.Options().enableExecutableCaching(paths[1]))(BATCH[0])
    torch.save(list(BATCH), paths[2])
    tests = str(Path(__file__).parents[2])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([tests, *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *paths], check=True, env=environment, capture_output=True, text=True
    )
    for loss in torch.load(paths[3], weights_only=True):
        torch.testing.assert_close(loss, executor(*BATCH)[1])
    assert "found the executable cached" in done.stderr
    assert done.stderr.count("emulated by Portwright on the CPU") == 1
    assert len(names_in(tmp_path / "cache")) == 1


def test_a_loaded_training_with_a_loaded_validation(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("train", "validate")]
    model = Classifier()
    poptorch.trainingModel(model).compileAndExport(paths[0], *BATCH)
    poptorch.inferenceModel(model).compileAndExport(paths[1], BATCH[0])
    training = poptorch.load(paths[0])
    validation = poptorch.inferenceModel(training)
    validation.loadExecutable(paths[1])
    first = validation(BATCH[0])
    torch.testing.assert_close(first, model(BATCH[0]).detach())
    for _ in range(5):
        training(*BATCH)
    second = validation(BATCH[0])
    assert not torch.equal(first, second)
    training.copyWeightsToHost()
    model.destroy()  # type: ignore[operator]
    fresh = Classifier()
    fresh.load_state_dict(copy.deepcopy(training.model).state_dict())
    torch.testing.assert_close(second, fresh(BATCH[0]).detach())


def test_without_a_model_the_program_needs_one(tmp_path: Path) -> None:
    path = str(tmp_path / "model.poptorch")
    offline = options().useOfflineIpuTarget()
    poptorch.trainingModel(Classifier(), offline).compileAndExport(path, *BATCH, export_model=False)
    with pytest.raises(AssertionError, match=r"export_model=False.*loadExecutable"):
        poptorch.load(path)
    model = Classifier()
    fresh = poptorch.trainingModel(model, options())
    fresh.loadExecutable(path)
    reference = Classifier()
    reference.load_state_dict(model.state_dict())
    torch.testing.assert_close(fresh(*BATCH)[1], poptorch.trainingModel(reference, options())(*BATCH)[1])


def test_a_program_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "model.poptorch")
    poptorch.trainingModel(Classifier(), options()).compileAndExport(path, *BATCH)
    with pytest.raises(poptorch.Error, match="program of a trainingModel"):
        poptorch.inferenceModel(Classifier(), poptorch.Options().deviceIterations(2)).loadExecutable(path)
    other = poptorch.Options()
    other.Training.gradientAccumulation(2)
    with pytest.raises(poptorch.Error, match="device_iterations 2"):
        poptorch.trainingModel(Classifier(), other).loadExecutable(path)
    with pytest.raises(poptorch.Error, match="another model"):
        poptorch.trainingModel(nn.Sequential(nn.Linear(6, 3)), options()).loadExecutable(path)


def test_options_can_be_edited(tmp_path: Path) -> None:
    path = str(tmp_path / "model.poptorch")
    made = poptorch.Options().deviceIterations(2)
    poptorch.inferenceModel(Classifier(), made).compileAndExport(path, BATCH[0])
    loaded = poptorch.load(path, edit_opts_fn=lambda o: o.outputMode(poptorch.OutputMode.Final))
    assert loaded(BATCH[0]).shape == (4, 3)
    assert poptorch.load(path)(BATCH[0]).shape == (8, 3)
    with pytest.raises(poptorch.Error, match="Shape mismatch"):
        poptorch.load(path)(BATCH[0][:4])


def test_structures_and_ties_survive(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(6, 6)
            self.b = nn.Linear(6, 6)
            self.b.weight = self.a.weight
            self.register_buffer("scale", torch.full((1,), 2.0), persistent=False)
            self.a.bias.requires_grad_(False)

        def forward(self, x: torch.Tensor, *, factor: float = 3.0) -> Any:
            return {"y": self.b(self.a(x)) * self.scale * factor, "more": [x + 1, ("text", None)]}

    path = str(tmp_path / "modèle .poptorch")
    model = Tied()
    executor = poptorch.inferenceModel(model)
    expected = executor(BATCH[0])
    executor.save(path)
    loaded = poptorch.load(path)
    got = loaded(BATCH[0])
    assert torch.equal(got["y"], expected["y"])
    assert got["more"][1] == ("text", None)
    assert loaded.model.a.weight is loaded.model.b.weight
    assert list(loaded.state_dict()) == list(model.state_dict())
    assert not loaded.model.a.bias.requires_grad
    with pytest.raises(poptorch.Error, match="Value mismatch for factor"):
        loaded(BATCH[0], factor=4.0)


def test_a_folder_gets_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    executor = poptorch.inferenceModel(Classifier())
    with pytest.raises(poptorch.Error, match="not compiled"):
        executor.save(str(tmp_path / "a"))
    with caplog.at_level(logging.WARNING, "poptorch"):
        executor.compileAndExport(str(tmp_path), BATCH[0])
    assert names_in(tmp_path) == ["model.poptorch"]
    assert "is a folder" in caplog.text


def test_an_unwritable_place_is_said(tmp_path: Path) -> None:
    executor = poptorch.inferenceModel(Classifier())
    executor(BATCH[0])
    (tmp_path / "file").write_text("")
    with pytest.raises(poptorch.Error, match="cannot be written"):
        executor.save(str(tmp_path / "file" / "model"))


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = poptorch.inferenceModel(Classifier())
    executor(BATCH[0])
    path = tmp_path / "model.poptorch"
    executor.save(str(path))
    before = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(poptorch.Error, match="No space left"):
        executor.save(str(path))
    assert path.read_bytes() == before
    assert names_in(tmp_path) == ["model.poptorch"]


def test_anchors_of_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "model.poptorch")
    made = poptorch.Options()
    made.anchorTensor("hidden", "first/Linear:0", poptorch.OutputMode.Final)
    executor = poptorch.inferenceModel(Classifier(), made)
    executor(BATCH[0])
    executor.save(path)
    loaded = poptorch.load(path)
    loaded(BATCH[0])
    assert torch.equal(loaded.getAnchoredTensor("hidden"), executor.getAnchoredTensor("hidden"))
    assert loaded.getTensorNames() == executor.getTensorNames()
    with pytest.raises(poptorch.Error, match="without the anchored tensor last/Linear:0"):
        poptorch.load(path, lambda options: options.anchorTensor("more", "last/Linear:0"))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.poptorch"
    poptorch.inferenceModel(Classifier()).compileAndExport(str(path), BATCH[0])
    return path


def rewrite(path: Path, change: dict[str, Any]) -> None:
    """Replaces parts of a file; None leaves one out."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**parts, **change}.items():
            if content is not None:
                archive.writestr(name, content)


def test_files_that_are_none(tmp_path: Path, saved: Path) -> None:
    with pytest.raises(poptorch.Error, match="no file"):
        poptorch.load(str(tmp_path / "missing"))
    with pytest.raises(poptorch.Error, match="cannot be loaded"):
        poptorch.load(str(tmp_path))
    for content in (b"", b"hello", os.urandom(4096)):
        (tmp_path / "foreign").write_bytes(content)
        with pytest.raises(poptorch.Error, match="damaged, or no executable"):
            poptorch.load(str(tmp_path / "foreign"))
    torch.save({"a": 1}, tmp_path / "torch.pt")  # a zip, too
    with pytest.raises(poptorch.Error, match="cannot be loaded"):
        poptorch.load(str(tmp_path / "torch.pt"))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_torn_file(saved: Path, share: float) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(poptorch.Error, match="damaged"):
        poptorch.load(str(saved))


def test_a_flipped_byte(saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    expected = poptorch.load(str(saved))(BATCH[0])
    for place in range(100, len(content), len(content) // 17):
        changed = bytearray(content)
        changed[place] ^= 0xFF
        saved.write_bytes(bytes(changed))
        try:
            loaded = poptorch.load(str(saved))
        except poptorch.Error:
            continue
        # where it loads, the byte was one of the zip's own that nobody reads
        assert torch.equal(loaded(BATCH[0]), expected), place


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"manifest.json": None}, "manifest.json is missing"),
        ({"manifest.json": "{}"}, "no executable of this emulator"),
        ({"manifest.json": "[]"}, "no executable of this emulator"),
        ({"manifest.json": "{"}, "not JSON"),
        ({"program.json": "{}"}, "cannot be loaded|program"),
        ({"program.json": None}, "program.json is missing"),
        ({"executable.json": "{}"}, "does not fit together"),
        ({"options.json": "3"}, "does not fit together"),
        ({"weights.safetensors": b"junk"}, "cannot be read"),
        ({"constants.safetensors": None}, "constants.safetensors is missing"),
    ],
)
def test_parts_that_are_wrong(saved: Path, change: dict[str, Any], said: str) -> None:
    rewrite(saved, change)
    with pytest.raises(poptorch.Error, match=said):
        poptorch.load(str(saved))


@pytest.mark.parametrize(
    ("change", "said"),
    [({"version": "3.3.0"}, "PopTorch 3.3.0, and this is 3.4"), ({"format_version": 99}, "version 99")],
)
def test_other_versions(saved: Path, change: dict[str, Any], said: str) -> None:
    with zipfile.ZipFile(saved) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    rewrite(saved, {"manifest.json": json.dumps({**manifest, **change})})
    with pytest.raises(poptorch.Error, match=said):
        poptorch.load(str(saved))


def test_nothing_in_a_file_is_pickled(saved: Path) -> None:
    with zipfile.ZipFile(saved) as archive:
        assert {Path(name).suffix for name in archive.namelist()} == {".json", ".safetensors"}
        assert json.loads(archive.read("manifest.json"))["emulated"] == "PopTorch 3.4"


def test_other_graphs_and_options_have_other_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def run(model: nn.Module, made: Any, size: int = 4) -> None:
        poptorch.inferenceModel(model, made.enableExecutableCaching(str(tmp_path)))(make_batch(size)[0])

    run(Classifier(), poptorch.Options())
    run(Classifier(), poptorch.Options())
    assert len(names_in(tmp_path)) == 1
    run(Classifier(), poptorch.Options(), size=6)
    run(Classifier(norm=True), poptorch.Options())
    run(Classifier(), poptorch.Options().deviceIterations(2))
    files = sorted(tmp_path.iterdir())
    assert len(files) == 4
    for file in files:
        file.write_bytes(b"torn")
    with caplog.at_level(logging.WARNING, "poptorch"):
        run(Classifier(), poptorch.Options())
    assert "made anew" in caplog.text
    assert sum(file.read_bytes() != b"torn" for file in files) == 1


class Pair(NamedTuple):
    double: torch.Tensor
    more: Any


class Paired(nn.Module):
    def __init__(self, more: Any) -> None:
        super().__init__()
        self.more = more

    def forward(self, x: torch.Tensor) -> Pair:
        return Pair(x * 2, self.more)


def test_cached_results_keep_the_users_classes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        executor = poptorch.inferenceModel(
            Paired("text"), poptorch.Options().enableExecutableCaching(str(tmp_path))
        )
        assert isinstance(executor(BATCH[0]), Pair)
    assert len(names_in(tmp_path)) == 1
    executor.save(str(tmp_path / "saved"))
    assert type(poptorch.load(str(tmp_path / "saved"))(BATCH[0])) is tuple
    other = poptorch.inferenceModel(Paired(object), poptorch.Options().enableExecutableCaching(str(tmp_path)))
    with caplog.at_level(logging.WARNING, "poptorch"):
        assert other(BATCH[0]).more is object
    assert "not cached" in caplog.text
    with pytest.raises(poptorch.Error, match="returns a type"):
        other.save(str(tmp_path / "other"))


def test_the_environment_names_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_CACHE_DIR", str(tmp_path / "cache"))
    poptorch.inferenceModel(Classifier())(BATCH[0])
    assert len(names_in(tmp_path / "cache")) == 1
