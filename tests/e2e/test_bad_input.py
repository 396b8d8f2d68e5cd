"""Bad input of every kind: one line with the cure, status 2, no traceback, nothing lost."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable

import pytest
import torch
from conftest import TRAIN, Folder

CASES: list[tuple[Callable[[Folder], None], str]] = []


def bad(expected: str) -> Callable[[Callable[[Folder], None]], Callable[[Folder], None]]:
    """Registers a way to break a folder and what the error must speak of."""

    def register(case: Callable[[Folder], None]) -> Callable[[Folder], None]:
        CASES.append((case, expected))
        return case

    return register


@bad("nosuch.yaml")
def missing_params_file(f: Folder) -> None:
    f.arguments = ("CPU", "--mode", "train", "--params", "configs/nosuch.yaml")


@bad("configs/params.yaml:17: optimizer.learning_rat")
def misspelt_optimizer_key(f: Folder) -> None:
    f.edit("configs/params.yaml", "learning_rate: 0.002", "learning_rat: 0.002")


@bad("runconfig.max_step")
def misspelt_runconfig_key(f: Folder) -> None:
    f.edit("configs/params.yaml", "max_steps: 1000", "max_step: 1000")
    f.arguments = TRAIN[:-2]


@bad("model.hidden_size")
def misspelt_key_of_a_user_schema(f: Folder) -> None:
    f.edit("configs/params.yaml", "hidden_sizes:", "hidden_size:")


@bad("optimiser")
def misspelt_section(f: Folder) -> None:
    f.edit("configs/params.yaml", "optimizer:", "optimiser:")


@bad("many")
def wrong_type(f: Folder) -> None:
    f.edit("configs/params.yaml", "log_steps: 50", "log_steps: many")


@bad("-5")
def negative_number_of_steps(f: Folder) -> None:
    f.arguments = (*TRAIN[:-1], "-5")


@bad("how long")
def nothing_says_how_long(f: Folder) -> None:
    f.edit("configs/params.yaml", "  max_steps: 1000\n", "")
    f.arguments = TRAIN[:-2]


@bad("params.yaml")
def yaml_syntax(f: Folder) -> None:
    f.edit("configs/params.yaml", "optimizer:", "optimizer: [")


@bad("batch_size")
def duplicate_key(f: Folder) -> None:
    f.edit("configs/params.yaml", "  batch_size: 64\n", "  batch_size: 64\n  batch_size: 32\n")


@bad("params.yaml")
def empty_params(f: Folder) -> None:
    (f.path / "configs" / "params.yaml").write_text("")


@bad("python")
def python_object_in_yaml(f: Folder) -> None:
    f.edit("configs/params.yaml", "dropout: 0.1", "dropout: !!python/object/apply:os.getpid []")


@bad("Adem")
def unknown_optimizer(f: Folder) -> None:
    f.edit("configs/params.yaml", "AdamW", "Adem")


@bad("momentum")
def key_of_another_optimizer(f: Folder) -> None:
    f.edit("configs/params.yaml", "weight_decay_rate: 0.01", "momentum: 0.9")


@bad("nothing")
def override_without_a_value(f: Folder) -> None:
    f.arguments = (*TRAIN, "-D", "nothing")


@bad("runconfig.log_stepz")
def override_of_an_unknown_key(f: Folder) -> None:
    f.arguments = (*TRAIN, "-D", "runconfig.log_stepz=3")


@bad("optimizer.learning_rate")
def override_through_a_number(f: Folder) -> None:
    f.arguments = (*TRAIN, "-D", "optimizer.learning_rate.deeper=3")


@bad("XPU")
def unknown_target(f: Folder) -> None:
    f.arguments = ("XPU", *TRAIN[1:])


@bad("two targets")
def two_targets(f: Folder) -> None:
    f.arguments = ("CPU", "GPU", *TRAIN[1:])


@bad("--max_step")
def unknown_flag(f: Folder) -> None:
    f.arguments = (*TRAIN, "--max_stepz", "4")


@bad("trian")
def unknown_mode(f: Folder) -> None:
    f.arguments = ("CPU", "--mode", "trian", "--params", "configs/params.yaml")


@bad("--mode")
def no_mode(f: Folder) -> None:
    f.arguments = ("CPU", "--params", "configs/params.yaml")


@bad("--compile_only")
def two_dry_runs(f: Folder) -> None:
    f.arguments = (*TRAIN, "--validate_only", "--compile_only")


@bad("holds 64 non-finite")
def nan_data(f: Folder) -> None:
    f.edit("data.py", ".div(16)", ".div(16).index_fill(1, torch.tensor([3]), float('nan'))")


@bad("empty")
def empty_data_set(f: Folder) -> None:
    f.edit(
        "data.py",
        "return images, torch.from_numpy(labels[chosen]).long()",
        "return images[:0], torch.from_numpy(labels[chosen]).long()[:0]",
    )


@bad("None")
def data_function_returns_nothing(f: Folder) -> None:
    f.edit("data.py", 'return make_dataloader(params["train_input"], "train")', "return None")


@bad("/nowhere/at/all")
def missing_data_dir(f: Folder) -> None:
    f.arguments = (*TRAIN, "-D", "train_input.data_dir=/nowhere/at/all")


@bad("train-images")
def truncated_idx_file(f: Folder) -> None:
    (f.path / "mnist").mkdir()
    header = struct.pack(">BBBBIII", 0, 0, 8, 3, 100, 28, 28)
    (f.path / "mnist" / "train-images-idx3-ubyte").write_bytes(header + b"\x01" * 500)
    (f.path / "mnist" / "train-labels-idx1-ubyte").write_bytes(
        struct.pack(">BBBBI", 0, 0, 8, 1, 100) + b"\x01" * 100
    )
    f.arguments = (*TRAIN, "-D", "train_input.data_dir=mnist")


@bad("sample")
def failing_sample(f: Folder) -> None:
    f.edit("data.py", "TensorDataset(images, labels),", "Broken(images, labels),")
    f.edit(
        "data.py",
        "def get_train_dataloader",
        "class Broken(TensorDataset):\n    def __getitem__(self, index):\n        if index == 77:\n"
        "            raise OSError('disk gone')\n        return super().__getitem__(index)\n\n\ndef get_train_dataloader",
    )
    f.arguments = (*TRAIN[:-1], "40")


@bad("model_dir")
def unwritable_model_dir(f: Folder) -> None:
    (f.path / "file").write_text("not a folder")
    f.arguments = (*TRAIN, "--model_dir", "file/below")


@bad("checkpoint_4")
def truncated_checkpoint(f: Folder) -> None:
    assert f.run() == 0
    path = f.path / "model_dir" / "checkpoint_4" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    f.arguments = (*TRAIN[:-1], "8", "--checkpoint_path", "model_dir/checkpoint_4", "--model_dir", "other")


@bad("nosuch")
def missing_checkpoint(f: Folder) -> None:
    f.arguments = (*TRAIN, "--checkpoint_path", "model_dir/nosuch")


@bad("another model")
def checkpoint_of_another_model(f: Folder) -> None:
    assert f.run() == 0
    f.arguments = (*TRAIN[:-1], "8", "-D", "model.hidden_sizes=[96]")


@bad("would run code")
def pickled_checkpoint(f: Folder) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, ("touch was_executed",)

    torch.save({"model": {}, "evil": Evil()}, f.path / "evil.mdl")
    f.arguments = (*TRAIN, "--checkpoint_path", "evil.mdl")


@bad("has been trained")
def evaluation_without_a_checkpoint(f: Folder) -> None:
    f.arguments = ("CPU", "--mode", "eval", "--params", "configs/params.yaml")


@bad("--checkpoint_path")
def pretrained_without_a_path(f: Folder) -> None:
    f.arguments = (*TRAIN, "--is_pretrained_checkpoint")


@bad("bf16")
def fp16_on_the_cpu(f: Folder) -> None:
    f.arguments = (*TRAIN, "-D", "runconfig.precision=fp16")


@bad("shape (64,)")
def loss_that_is_a_vector(f: Folder) -> None:
    f.edit("model.py", "nn.CrossEntropyLoss()", "nn.CrossEntropyLoss(reduction='none')")


@bad("NoneType")
def model_that_returns_nothing(f: Folder) -> None:
    f.edit("model.py", "return loss", "return None")


@bad("does not depend")
def loss_without_a_gradient(f: Folder) -> None:
    f.edit("model.py", "return loss", "return loss.detach()")


@bad("model.py:")
def model_that_raises(f: Folder) -> None:
    f.edit("model.py", "images, labels = data", "images, labels = data; images = images[:, :, :7]")


@bad("--debug")
def model_with_a_missing_param(f: Folder) -> None:
    f.edit("model.py", 'params["hidden_sizes"]', 'params["hiden_sizes"]')


@pytest.mark.parametrize(("case", "expected"), CASES, ids=[case.__name__ for case, _ in CASES])
def test_bad_input(
    folder: Folder, capfd: pytest.CaptureFixture[str], case: Callable[[Folder], None], expected: str
) -> None:
    case(folder)
    capfd.readouterr()
    before = {
        p: p.read_bytes() for p in folder.path.rglob("*") if p.is_file() and "__pycache__" not in p.parts
    }
    status = folder.run()
    captured = capfd.readouterr()
    assert status == 2, captured.err
    errors = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, captured.err
    assert expected in errors[0]
    assert "Traceback" not in captured.err
    assert not (folder.path / "was_executed").exists()
    for path, content in before.items():
        assert path.exists(), f"{path} is gone"
        assert (
            path.read_bytes() == content
            or path.suffix in (".jsonl", ".lock")
            or "events" in path.name
            or path.name == ".lock"
        )


def test_debug_shows_the_traceback(folder: Folder, capfd: pytest.CaptureFixture[str]) -> None:
    misspelt_optimizer_key(folder)
    folder.arguments = (*folder.arguments, "--debug")
    assert folder.run() == 2
    assert "Traceback" in capfd.readouterr().err


def test_non_finite_loss_is_status_3_and_names_step_and_layer(
    folder: Folder, capfd: pytest.CaptureFixture[str]
) -> None:
    folder.edit(
        "model.py",
        "        logits = self.model(images)\n        if",
        "        MNISTModel.calls = getattr(MNISTModel, 'calls', 0) + 1\n        if MNISTModel.calls >= 5:\n            self.model.layers[3].weight.data[0, 0] = float('inf')\n        logits = self.model(images)\n        if",
    )
    folder.arguments = (*TRAIN[:-1], "20", "-D", "runconfig.checkpoint_steps=2")
    assert folder.run() == 3
    (error,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert "step 5" in error
    assert "layers.3.weight" in error
    assert (folder.path / "model_dir" / "checkpoint_4").is_dir()
    shutil.rmtree(folder.path / "model_dir")


def test_nan_in_a_later_batch_is_status_3_and_names_the_sample(
    folder: Folder, capfd: pytest.CaptureFixture[str]
) -> None:
    folder.edit("configs/params.yaml", "shuffle: true", "shuffle: false")
    folder.edit(
        "data.py",
        "    images = torch.from_numpy(pixels[chosen])",
        "    pixels[np.flatnonzero(chosen)[64 * 6 + 5]] = np.nan\n    images = torch.from_numpy(pixels[chosen])",
    )
    folder.arguments = (*TRAIN[:-1], "20")
    assert folder.run() == 3
    (error,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert "step 7" in error
    assert "batch[0]" in error
    assert "sample 5" in error


def test_a_corrupt_checkpoint_in_model_dir_is_skipped_with_a_warning(
    folder: Folder, capfd: pytest.CaptureFixture[str]
) -> None:
    folder.arguments = (*TRAIN, "-D", "runconfig.checkpoint_steps=2")
    assert folder.run() == 0
    path = folder.path / "model_dir" / "checkpoint_4" / "optimizer.safetensors"
    broken = bytearray(path.read_bytes())
    broken[-1] ^= 1
    path.write_bytes(broken)
    capfd.readouterr()
    folder.arguments = (*TRAIN[:-1], "6", "-D", "runconfig.checkpoint_steps=2")
    assert folder.run() == 0
    error = capfd.readouterr().err
    assert "checkpoint_4" in error
    assert "resuming" in error
    assert "step 2" in error


def test_weights_that_overflow_in_the_last_update_are_not_saved(
    folder: Folder, capfd: pytest.CaptureFixture[str]
) -> None:
    folder.arguments = (
        *TRAIN[:-1],
        "1",
        "-D",
        "optimizer.optimizer_type=SGD",
        "-D",
        "optimizer.learning_rate=1e39",
    )
    assert folder.run() == 3
    assert "not finite after the update of step 1" in capfd.readouterr().err
    assert not (folder.path / "model_dir" / "checkpoint_1").exists()
