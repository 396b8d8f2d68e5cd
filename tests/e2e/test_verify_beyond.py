"""What `verify` says of a run beside its steps: each fault is one that the steps themselves cannot show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from portwright.verify.api import verify
from portwright.verify.proof import Proof
from portwright.verify.proof_text import render

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
numbers = torch.arange(330.0).reshape(66, 5).cos()
train_set = TensorDataset(numbers[:50], numbers[:50].sum(1, keepdim=True))
held_out = TensorDataset(numbers[50:], numbers[50:].sum(1, keepdim=True))
train_loader = DataLoader(train_set, batch_size=8, shuffle=True)
test_loader = DataLoader(held_out, batch_size=8)
model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.1)


def test(loader):
    model.eval()
    total = 0.0
    for x, y in loader:
        with torch.no_grad():
            total += nn.functional.mse_loss(model(x.to(device)), y.to(device), reduction="sum").item()
    model.train()
    return total / len(loader.dataset)


for epoch in range(3):
    for x, y in train_loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
    schedule.step()
    print(epoch, test(test_loader))
    torch.save({"epoch": epoch, "model": model.state_dict()}, "net.pt")
"""


def prove(folder: Path, changes: dict[str, str], steps: int, script: str = SCRIPT) -> Proof:
    ported = script
    for old, new in changes.items():
        assert old in ported
        ported = ported.replace(old, new)
    (folder / "train.py").write_text(script)
    (folder / "ported.py").write_text(ported)
    return verify("train.py", "ported.py", steps=steps, folder=folder, html=folder / "proof.html")


def states(proof: Proof) -> dict[str, str]:
    return {part["what"]: part["state"] for part in proof.beyond_steps}


def test_a_run_that_computes_the_same_is_equal_in_all_that_is_seen(tmp_path: Path) -> None:
    proof = prove(tmp_path, {"test(": "evaluate(", "total": "summed", "train_set": "given"}, 10)
    assert proof.equal, render(proof)
    assert set(states(proof).values()) == {"equal"}
    assert "an epoch: equal, the 10 steps go beyond its end" in render(proof)
    assert (
        '<th scope="row">evaluation data</th><td>equal: the same values: 16 samples</td>'
        in (tmp_path / "proof.html").read_text()
    )
    line = SCRIPT.splitlines().index('device = "cuda" if torch.cuda.is_available() else "cpu"') + 1
    assert [
        f"train.py:{line}" in note and "was not run" in note for note in proof.notes if "accelerator" in note
    ] == [True]


def test_a_batch_that_is_looked_at_first_does_not_make_its_loader_the_one_that_trains(tmp_path: Path) -> None:
    look = "some, _ = next(shown := iter(test_loader))\nfor epoch in range(3):"
    proof = prove(tmp_path, {"for epoch in range(3):": look}, 3)
    assert proof.equal, render(proof)
    assert states(proof)["an epoch"] == "equal"


def test_what_the_steps_do_not_reach_is_said_to_be_unseen(tmp_path: Path) -> None:
    """Evaluations of a last epoch come after more epochs than are looked at."""
    proof = prove(
        tmp_path,
        {"test(": "evaluate("},
        3,
        SCRIPT.replace("range(3)", "range(200)")
        .replace("    print(epoch", "    if epoch == 199: print(epoch")
        .replace("    torch.save", "    if epoch == 199: torch.save"),
    )
    assert proof.equal
    assert (
        "  not seen in 3 steps: evaluation data, evaluation outputs, what is printed of evaluations, keys of checkpoints\n"
        in render(proof)
    )
    assert "an epoch: equal, by the loaders: 7 batches of 8, the last of 2" in render(proof)


def test_an_epoch_s_end_is_seen_though_the_steps_end_before_it(tmp_path: Path) -> None:
    proof = prove(tmp_path, {"test(": "evaluate("}, 3)
    assert proof.equal
    assert set(states(proof).values()) == {"equal"}
    assert "evaluation data: equal, the same values: 16 samples" in render(proof)
    assert "what is printed of evaluations: equal, the numbers in 3 lines" in render(proof)
    assert "neither fails in 2 further updates, in epochs of one batch" in render(proof)


@pytest.mark.parametrize(
    ("old", "new", "steps", "what", "says"),
    [
        ("shuffle=True", "shuffle=True, drop_last=True", 3, "an epoch",
         "the loader gives 7 batches of 8, the last of 2 in the original, 6 batches of 8 in the port"),
        ("shuffle=True", "sampler=torch.randperm(50).tolist()", 3, "shuffling",
         "the first batch of an epoch is another one in the port, 1 update behind the steps"),
        ("    for x, y in train_loader", "    torch.manual_seed(0)\n    for x, y in train_loader", 8, "shuffling",
         "in the same order in each epoch in the port"),
        ("    schedule.step()\n", "    schedule.step()\n    schedule.step()\n", 3, "learning rates to come",
         "[1] calls of the scheduler before the further update 1 in the original, [2] in the port"),
        ("schedule.step()", "None", 3, "learning rates to come", "[0] in the port"),
        ("step_size=5", "step_size=6", 3, "learning rates to come", "after call 5 of StepLR"),
        ("test(test_loader)", "test(train_loader)", 10, "evaluation data",
         "the original evaluates on 16 samples, the port on 50 samples of the training data"),
        ("numbers[50:], numbers[50:].sum", "numbers[50:] + 1, numbers[50:].sum", 10, "evaluation data", "with other values"),
        ("numbers[50:].sum(1, keepdim=True)", "numbers[50:].sum(1, keepdim=True).flip(0)", 3, "evaluation data", "with other values"),
        ("    print(epoch, test(test_loader))\n", "", 3, "evaluation data", "the port on nothing"),
        ("total / len(loader.dataset)", "total / len(loader) / 10", 3, "what is printed of evaluations", "' in the port"),
        ("range(3)", "range(2)", 3, "what comes after the steps", "the port ends 1 update behind the steps, and the original goes on"),
        ("    model.train()\n", "    model.train()\n    test.told.append(total)\n", 3, "what comes after the steps", "AttributeError"),
        ('    torch.save({"epoch": epoch, "model": model.state_dict()}, "net.pt")\n', "", 3, "keys of checkpoints", "the port nothing"),
        ("    model.eval()\n", "    model.eval()\n    was, model[1] = model[1], nn.Tanhshrink()\n", 10, "evaluation outputs", "norm"),
        ('"model": model', '"net": model', 10, "keys of checkpoints", "only the port net, net.0.bias"),
    ],
)  # fmt: skip
def test_a_fault_beside_the_steps_is_a_difference(
    old: str, new: str, steps: int, what: str, says: str, tmp_path: Path
) -> None:
    if "Tanhshrink" in new:
        proof = prove(
            tmp_path, {old: new, "    model.train()": "    model.train()\n    model[1] = was"}, steps
        )
    else:
        proof = prove(tmp_path, {old: new}, steps)
    assert (proof.verdict, proof.status) == ("different", 1), render(proof)
    assert states(proof)[what] == "different"
    assert render(proof).startswith(f"different beside the {steps} steps: {what}\n")
    assert proof.first_difference is not None
    assert says in proof.first_difference.reason


def test_a_rate_that_is_set_by_hand_is_seen_behind_the_steps(tmp_path: Path) -> None:
    script = SCRIPT.replace("    schedule.step()", "    optimizer.param_groups[0]['lr'] *= 0.5")
    proof = prove(tmp_path, {"*= 0.5": "*= 0.6"}, 3, script)
    assert (
        "[0.05] at the further update 1 in the original, [0.06] in the port (epochs of one batch)"
        in render(proof)
    )
    assert proof.verdict == "different"
    proof = prove(tmp_path, {"['lr'] *= 0.5": "['lr'] /= 2"}, 3, script)
    assert proof.equal, render(proof)


def test_a_scheduler_that_only_one_of_the_two_has_leaves_it_open(tmp_path: Path) -> None:
    """No rate changes within the epochs that are looked at, and by what means the port would change it is not known."""
    changes = {
        "schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.1)\n": "",
        "    schedule.step()\n": "",
    }
    proof = prove(tmp_path, changes, 3)
    assert proof.verdict == "cannot tell", render(proof)
    assert "the original has 1 and the port 0 schedulers" in render(proof)


def test_what_differs_between_two_runs_of_the_original_is_no_difference(tmp_path: Path) -> None:
    script = SCRIPT.replace("import torch\n", "import time\nimport torch\n", 1).replace(
        "    print(epoch, ", "    print('time', time.perf_counter(), time.time_ns() % 1000003, "
    )
    proof = prove(tmp_path, {"test(": "evaluate("}, 3, script)
    assert proof.equal, render(proof)
    assert "what is printed of evaluations: equal, the numbers in 3 lines" in render(proof)
    proof = prove(tmp_path, {"test(": "evaluate(", "total / len": "0.9 * total / len"}, 3, script)
    assert proof.verdict == "different", render(proof)
    script = script.replace(
        ", test(test_loader))", ")\n    test(test_loader)\n    print('clock', time.time_ns() % 1000003)"
    )
    proof = prove(tmp_path, {"test(": "evaluate("}, 3, script)
    assert proof.equal, render(proof)
    assert states(proof)["what is printed of evaluations"] == "not compared"


@pytest.mark.parametrize("values", ["torch.arange(330.0).reshape(66, 5).cos()", "torch.rand(66, 5)"])
def test_a_layout_that_evaluates_on_the_training_data_is_different(values: str, tmp_path: Path) -> None:
    """As `port --style layout` wrote it of a script that evaluates on both; data may be drawn after a seed."""
    assert "torch.arange(330.0).reshape(66, 5).cos()" in SCRIPT
    (tmp_path / "train.py").write_text(SCRIPT.replace("torch.arange(330.0).reshape(66, 5).cos()", values))
    words = ["port", "train.py", "--target", "csx", "--style", "layout", "--out", "ported"]
    done = subprocess.run(
        [sys.executable, "-m", "portwright", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    data = tmp_path / "ported" / "data.py"
    assert data.is_file(), done.stderr
    run = "ported/run.py CPU --mode train --params ported/configs/params.yaml"
    proof = verify("train.py", run, steps=10, folder=tmp_path)
    assert states(proof)["evaluation data"] == "equal", render(proof)
    assert states(proof)["keys of checkpoints"] == "not compared"
    data.write_text(data.read_text() + "\n\nget_eval_dataloader = get_train_dataloader\n")
    proof = verify("train.py", run, steps=10, folder=tmp_path)
    assert "evaluation data: the original evaluates on 16 samples, the port on 50 samples" in render(proof)
    assert proof.verdict == "different"
