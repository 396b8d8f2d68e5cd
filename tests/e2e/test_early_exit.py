"""A training that ends before its last step, in whatever way, is not a success: status, message, checkpoint, note, resume."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

WRAPPED_DATA = """
import os, signal, sys
import fc_data
from fc_data import get_eval_dataloader
from torch.utils.data import DataLoader

def leave():
    {way}

def handle(number, frame):
    leave()

class Leaving:
    def __init__(self, dataset):
        self.dataset, self.batches = dataset, 0

    def __len__(self):
        return len(self.dataset)

    def __getitems__(self, places):
        self.batches += 1
        if self.batches == 13 and os.environ.get("LEAVES"):
            {where}
        return [self.dataset[place] for place in places]

def get_train_dataloader(params):
    loader = fc_data.get_train_dataloader(params)
    return DataLoader(Leaving(loader.dataset), batch_size=64, shuffle=True, num_workers=params["train_input"]["num_workers"])
"""
WRAPPED_MODEL = """
import os, sys
import fc_model

class MNISTModel(fc_model.MNISTModel):
    calls = 0

    def __call__(self, data):
        MNISTModel.calls += self.model.training
        if MNISTModel.calls == 13 and os.environ.get("LEAVES"):
            sys.exit(0)
        return super().__call__(data)
"""
ARGUMENTS = (
    "CPU", "--mode", "train_and_eval", "--params", "configs/params.yaml", "--max_steps", "20",
    "-D", "runconfig.checkpoint_steps=5", "-D", "runconfig.log_steps=5",
)  # fmt: skip
HANDLER = "signal.signal(signal.SIGALRM, handle); os.kill(os.getpid(), signal.SIGALRM)"
THREAD = "import threading; other = threading.Thread(target=leave); other.start(); other.join()"
SAVED_12 = "after step 12 of 20"


@pytest.fixture
def leaving_folder(model_folder: Path) -> Path:
    (model_folder / "data.py").rename(model_folder / "fc_data.py")
    (model_folder / "data.py").write_text(WRAPPED_DATA.format(way="raise SystemExit(0)", where="leave()"))
    return model_folder


@pytest.mark.parametrize(
    ("way", "where", "workers", "says"),
    [
        ("raise SystemExit(0)", "leave()", 0, SAVED_12),
        ("sys.exit()", "leave()", 0, SAVED_12),
        ("exit()", "leave()", 0, SAVED_12),
        ("sys.exit(0)", HANDLER, 0, SAVED_12),
        ("os._exit(0)", "leave()", 0, SAVED_12),
        ("os._exit(0)", HANDLER, 0, SAVED_12),
        ("os._exit(0)", THREAD, 0, "os._exit(0) in a thread ended the training after step"),
        ("os._exit(0)", "leave()", 1, "worker"),  # of the DataLoader
        ("raise SystemExit(0)", "leave()", 1, "worker"),
    ],
)
def test_exits_of_a_loader_are_no_success(
    leaving_folder: Path, run_script, tmp_path: Path, way: str, where: str, workers: int, says: str
) -> None:
    (leaving_folder / "data.py").write_text(WRAPPED_DATA.format(way=way, where=where))
    note = tmp_path / "note"
    env = {"LEAVES": "1", "PORTWRIGHT_END_NOTE": str(note)}
    words = (*ARGUMENTS, "-D", f"train_input.num_workers={workers}")
    left = run_script(leaving_folder, *words, env=env, fresh=True)
    assert left.returncode == 2, left.stderr
    assert says in left.stderr.splitlines()[-1]
    assert "eval at step 20" not in left.stderr
    assert not note.exists()
    if says == SAVED_12:
        assert (leaving_folder / "model_dir" / "checkpoint_12").is_dir()


def test_an_exit_in_the_model_is_no_success(model_folder: Path, run_script) -> None:
    """Half a step cannot be saved; the checkpoint before it stays."""
    (model_folder / "model.py").rename(model_folder / "fc_model.py")
    (model_folder / "model.py").write_text(WRAPPED_MODEL)
    left = run_script(model_folder, *ARGUMENTS, env={"LEAVES": "1"})
    assert left.returncode == 2, left.stderr
    assert "model.py:11 in __call__ ended the training after step 10 of 20" in left.stderr
    assert sorted(path.name for path in (model_folder / "model_dir").glob("checkpoint_*")) == [
        "checkpoint_10", "checkpoint_5",
    ]  # fmt: skip


def test_what_an_exit_saved_goes_on_as_if_undisturbed(leaving_folder: Path, run_script) -> None:
    left = run_script(leaving_folder, *ARGUMENTS, "--model_dir", "left", env={"LEAVES": "1"})
    assert left.returncode == 2
    for folder in ("left", "whole"):
        finished = run_script(leaving_folder, *ARGUMENTS, "--model_dir", folder)
        assert finished.returncode == 0, finished.stderr
    a, b = (
        load_file(leaving_folder / folder / "checkpoint_20" / "model.safetensors")
        for folder in ("left", "whole")
    )
    assert all(a[key].equal(b[key]) for key in a)


def test_a_process_that_becomes_another_leaves_no_note_and_is_taken_up_again(
    leaving_folder: Path, run_script, tmp_path: Path
) -> None:
    """Nothing can change the status of a program that has taken the place of this one: a job looks for the note that is missing."""
    way = "os.execv(sys.executable, [sys.executable, '-c', ''])"
    (leaving_folder / "data.py").write_text(WRAPPED_DATA.format(way=way, where="leave()"))
    note = tmp_path / "note"
    left = run_script(
        leaving_folder, *ARGUMENTS, env={"LEAVES": "1", "PORTWRIGHT_END_NOTE": str(note)}, fresh=True
    )
    assert left.returncode == 0
    assert not note.exists()
    finished = run_script(leaving_folder, *ARGUMENTS, env={"PORTWRIGHT_END_NOTE": str(note)})
    assert finished.returncode == 0, finished.stderr
    assert "resuming from" in finished.stderr  # from whichever was written when the process ended
    assert note.read_text() == "step 20\n"
