"""The model folder unet: losses, metrics, files through run.py, and a resume that turns images over as before."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from portwright.discover import find_models
from portwright.errors import UserError
from portwright.runtime.metrics import clear_registry

FOLDER = find_models()["unet"]


@pytest.fixture(scope="module")
def parts() -> dict[str, ModuleType]:
    """The folder's modules; every model has a data.py, so that they do not stay under these names."""
    sys.path.insert(0, str(FOLDER))
    names = ("segmentation_loss", "model", "data", "utils")
    try:
        return {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(str(FOLDER))
        for name in names:
            sys.modules.pop(name, None)


@pytest.mark.parametrize("kind", ["bce", "ssce", "dice", "bce_dice", "ssce_dice"])
@pytest.mark.parametrize("ignored", [None, 255])
def test_losses_are_their_formulas(parts: dict[str, ModuleType], kind: str, ignored: int | None) -> None:
    torch.manual_seed(0)
    num_outputs = 1 if kind.startswith("bce") else 3
    logits = torch.randn(2, num_outputs, 5, 4, dtype=torch.float32, requires_grad=True)
    labels = torch.randint(0, max(num_outputs, 2), (2, 5, 4), dtype=torch.int32)
    if ignored is not None:
        labels[0, :2] = ignored
    loss = parts["segmentation_loss"].segmentation_loss(logits, labels, kind, ignored)
    counts = labels != (ignored if ignored is not None else -1)
    chosen = logits.permute(0, 2, 3, 1)[counts]  # [pixels, outputs]
    truth = labels[counts].long()
    expected = torch.zeros(())
    if kind != "dice":
        expected = (
            F.binary_cross_entropy_with_logits(chosen[:, 0], truth.float())
            if num_outputs == 1
            else F.cross_entropy(chosen, truth)
        )
    if kind.endswith("dice"):
        found = chosen.sigmoid() if num_outputs == 1 else chosen.softmax(1)[:, 1:]
        real = truth[:, None].float() if num_outputs == 1 else F.one_hot(truth, 3)[:, 1:].float()
        expected = expected + 1 - (2 * (found * real).sum() + 1) / (found.sum() + real.sum() + 1)
    torch.testing.assert_close(loss, expected)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert torch.isfinite(gradient).all()
    if ignored is not None:
        assert (gradient[0, :, :2] == 0).all()


def test_nothing_that_counts_is_a_loss_of_nothing(parts: dict[str, ModuleType]) -> None:
    labels = torch.full((1, 2, 2), 255)
    loss = parts["segmentation_loss"].segmentation_loss(torch.randn(1, 3, 2, 2), labels, "ssce", 255)
    assert loss == 0


def make_params(parts: dict[str, ModuleType], **model: Any) -> dict[str, Any]:
    params: dict[str, Any] = parts["utils"].set_defaults({"model": model})
    return params


def test_metrics_see_the_pixels_that_count(parts: dict[str, ModuleType]) -> None:
    clear_registry()
    params = make_params(parts, num_classes=3, ignore_index=9, padding="valid")
    model = parts["model"].UNetModel(params)
    model.eval()
    image = torch.randn(2, 1, 60, 52)
    mask = torch.randint(0, 3, (2, 60, 52), dtype=torch.int32)
    mask[:, 25:28] = 9
    with torch.no_grad():
        model({"image": image, "mask": mask})
        found = model.predict({"image": image})["classes"]
    height, width = found.shape[1:]
    top, left = (60 - height) // 2, (52 - width) // 2
    inner = mask[:, top : top + height, left : left + width]
    counts = inner != 9
    assert counts.sum() < counts.numel()
    right = (found == inner)[counts].float().mean()
    assert model.accuracy.compute() == pytest.approx(float(right), abs=1e-6)
    overlap = []
    for number in range(3):
        both = ((found == number) & (inner == number) & counts).sum()
        either = (((found == number) | (inner == number)) & counts).sum()
        if either:
            overlap.append(float(both / either))
    assert model.overlaps[1].compute() == pytest.approx(np.mean(overlap), abs=1e-6)
    clear_registry()


@pytest.mark.parametrize(
    ("section", "values", "text"),
    [
        ("model", {"loss": "bce", "num_classes": 3}, "two classes"),
        ("model", {"ignore_index": 1}, "is a class"),
        ("train_input", {"mask_palette": [[0, 0]]}, "red, green, blue"),
        ("train_input", {"mask_palette": [[0, 0, 256]]}, "red, green, blue"),
    ],
)
def test_values_that_do_not_go_together_are_refused(
    parts: dict[str, ModuleType], section: str, values: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        parts["utils"].PARAMS_SCHEMA[section](**values)


def test_channels_and_folders_have_to_agree(parts: dict[str, ModuleType]) -> None:
    params = make_params(parts)
    with pytest.raises(UserError, match="input_channels"):
        parts["data"].make_dataset(
            {**params, "model": {**params["model"], "input_channels": 3}}, "train_input"
        )
    named = {**params, "train_input": {**params["train_input"], "data_dir": "x"}}
    with pytest.raises(UserError, match="eval_input has no data_dir"):
        parts["data"].make_dataset(named, "eval_input")


def losses_of(folder: Path, run_cli: Any, model_dir: str, steps: int, *more: str) -> list[float]:
    command = ("CPU", "--mode", "train", "--params", "configs/params.yaml", "--model_dir", model_dir)
    small = ("--max_steps", str(steps), "-D", "runconfig.log_steps=1", "-D", "runconfig.checkpoint_steps=3")
    done = run_cli("run", folder, *command, *small, *more, cwd=folder)
    assert done.returncode == 0, done.stderr
    log = folder / model_dir / "train" / "metrics.jsonl"
    return [loss for line in log.read_text().splitlines() for loss in json.loads(line)["losses"]]


def write_folder(folder: Path) -> None:
    random = np.random.default_rng(0)
    for section in ("train", "eval"):
        for index in range(10):
            for part, pixels in (
                ("images", random.integers(0, 256, (24, 20), np.uint8)),
                ("masks", random.integers(0, 2, (24, 20), np.uint8) * 255),
            ):
                path = folder / section / part / f"{index}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(path)


def test_a_run_on_files_goes_on_after_a_stop_as_if_there_had_been_none(tmp_path: Path, run_cli: Any) -> None:
    from portwright.job.model_list import make_model_folder

    folder = make_model_folder(tmp_path / "mine", "pytorch", "unet")
    write_folder(tmp_path / "files")
    files = []
    for section in ("train", "eval"):
        files += ["-D", f"{section}_input.data_dir={tmp_path / 'files' / section}"]
        files += ["-D", f"{section}_input.image_shape=[16,16,1]"]
    files += ["-D", "train_input.batch_size=3", "-D", "eval_input.batch_size=3", "-D", "train_input.fit=crop"]
    whole = losses_of(folder, run_cli, "whole", 8, *files)
    losses_of(folder, run_cli, "parts", 5, *files)
    resumed = losses_of(folder, run_cli, "parts", 8, *files, "-D", "train_input.num_workers=2")
    assert len(whole) == 8
    assert resumed == whole  # crops, flips and order
    assert len(set(whole)) == 8
