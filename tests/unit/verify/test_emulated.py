"""verify --emulate: a port's steps on the emulated device, held against the original's; those on the host do not count."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from portwright.errors import UserError
from portwright.verify.api import verify
from portwright.verify.proof import Proof, find_place
from portwright.verify.recording import Recording, Step

pytestmark = pytest.mark.usefixtures("warm_recorder")

HEAD = """import os
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), {more}nn.Linear(6, 3))
data = [(torch.randn(5, 4), torch.randint(0, 3, (5,))) for _ in range(4)]
"""
ORIGINAL = (
    HEAD
    + """
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
for x, y in data:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    schedule.step()
"""
)
PORTED = (
    HEAD
    + """
import poptorch

class WithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        out = self.model(x)
        return out, poptorch.identity_loss(nn.functional.cross_entropy(out, y), reduction="mean")

optimizer = poptorch.optim.Adam(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
executor = poptorch.trainingModel(WithLoss(model), poptorch.Options(), optimizer)
first = model[0].weight.detach().clone()
for x, y in data:
    out, loss = executor(x, y)
    assert torch.equal(model[0].weight, first)  # stale, whoever looks on
    schedule.step()
    executor.setOptimizer(optimizer)
"""
)


def proven(tmp_path: Path, ported: str, more: str = "", steps: int = 4) -> Proof:
    (tmp_path / "original.py").write_text(ORIGINAL.replace("{more}", more))
    (tmp_path / "ported.py").write_text(ported.replace("{more}", more))
    return verify("original.py", "ported.py", steps=steps, emulate="ipu", folder=tmp_path)


def test_steps_on_the_emulated_device_are_compared(tmp_path: Path) -> None:
    proof = proven(tmp_path, PORTED)
    assert proof.is_good, proof.first_difference
    assert proof.steps == 4
    row = json.loads(json.dumps(proof.as_dict()))
    assert row["ran_on"]["vendor_calls"] == {"poptorch.trainingModel": 4}
    assert row["ran_on"]["emulated"] == {"poptorch": "PopTorch 3.4"}
    assert row["target"] == "IPU"
    assert "no IPU was used" in row["where"]
    assert {"loss", "gradient", "update", "buffer"} <= set(row["tolerances"])


def test_dropout_on_the_device_is_compared_by_its_rates(tmp_path: Path) -> None:
    proof = proven(tmp_path, PORTED, "nn.Dropout(0.25), ")
    assert proof.is_good, proof.first_difference
    assert proof.dropout == "off"
    assert proof.dropout_values == {"0.25": 30}


def test_a_model_that_is_compiled_first_starts_from_the_originals_weights(tmp_path: Path) -> None:
    turned = (
        "model[0].weight.data.copy_(model[0].weight.data.flip(0))\n"  # drawn alike, but not the original's
    )
    first = PORTED.replace("first = ", f"{turned}executor.compile(*data[0])\nfirst = ")
    first = first.replace("    assert torch.equal(model[0].weight, first)  # stale, whoever looks on\n", "")
    (tmp_path / "original.py").write_text(ORIGINAL.replace("{more}", "nn.Dropout(0.5), "))
    (tmp_path / "ported.py").write_text(first.replace("{more}", "nn.Dropout(0.5), "))
    proof = verify("original.py", "ported.py", steps=3, emulate="ipu", folder=tmp_path)
    assert proof.is_good, proof.first_difference
    assert proof.dropout_values == {"0.5": 30}


@pytest.mark.parametrize(
    ("change", "step", "quantity"),
    [
        (
            ("    executor.setOptimizer(optimizer)\n", ""),
            2,
            "update",
        ),  # the schedule never reaches the device
        (("cross_entropy(out, y)", "cross_entropy(out, y, label_smoothing=0.1)"), 1, "loss"),
        (("Options(), optimizer)", "Options(), torch.optim.SGD(model.parameters(), lr=1e-3))"), 1, None),
    ],
)
def test_what_the_published_ports_got_wrong_is_a_difference(
    change: tuple[str, str], step: int, quantity: str | None, tmp_path: Path
) -> None:
    assert change[0] in PORTED
    ported = PORTED.replace(*change)
    if quantity is None:
        ported = ported.replace("    executor.setOptimizer(optimizer)\n", "")
    proof = proven(tmp_path, ported)
    assert not proof.equal
    assert proof.first_difference is not None
    assert proof.first_difference.step == step
    assert quantity is None or proof.first_difference.quantity == quantity


def test_a_port_that_trains_on_the_host_proves_nothing(tmp_path: Path) -> None:
    proof = proven(tmp_path, ORIGINAL.replace("import os", "import os, poptorch"))
    assert proof.equal
    assert not proof.is_good
    assert proof.place.on_target is False
    assert "0 went through the executor" in proof.place.says


def test_a_wrapper_lost_by_to_fails(tmp_path: Path) -> None:
    lost = PORTED.replace("first = ", "executor = executor.to('cpu')\nfirst = ")
    proof = proven(tmp_path, lost)
    assert not proof.equal
    assert proof.first_difference is not None
    assert proof.first_difference.quantity == "crash"


def test_several_updates_a_call_are_refused_with_the_reason(tmp_path: Path) -> None:
    several = PORTED.replace("poptorch.Options()", "poptorch.Options().deviceIterations(5)")
    several = several.replace("nn.BatchNorm1d(6)", "nn.Identity()")  # which wants more than one sample
    proof = proven(tmp_path, several)
    assert proof.verdict == "cannot tell"
    assert "5 updates" in proof.unsure


def test_unknown_targets_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    with pytest.raises(UserError, match="--emulate is 'gpu'"):
        verify("a.py", "a.py", emulate="gpu", folder=tmp_path)


def test_a_real_package_is_counted_and_its_steps_are_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "original.py").write_text(ORIGINAL.replace("{more}", ""))
    (tmp_path / "poptorch.py").write_text(
        "class PoplarExecutor:\n    _training = True\n    def __call__(self, *args):\n        return args\n"
    )
    (tmp_path / "ported.py").write_text(
        "import poptorch\ne = poptorch.PoplarExecutor()\nfor i in range(3):\n    e(i)\n"
    )
    proof = verify("original.py", "ported.py", steps=2, folder=tmp_path)
    assert proof.verdict == "cannot tell"
    assert "3 calls of poptorch.trainingModel" in proof.unsure


def test_one_step_on_the_host_among_others_is_seen() -> None:
    steps = [Step(i, "Adam", 0, (1.0,), "float32", (), (), devices=("cpu",)) for i in (1, 2, 3)]
    ran_on = {"emulated": {"poptorch": "PopTorch 3.4"}, "vendor_calls": {"poptorch.trainingModel": 2}}
    recording = Recording([], "", 0, 3, {}, [], steps, target="IPU", ran_on=ran_on)
    assert find_place(recording).on_target is False
    recording.ran_on["vendor_calls"] = {"poptorch.trainingModel": 3}
    assert find_place(recording).on_target is True


def test_a_script_that_asks_for_the_emulator_itself(tmp_path: Path) -> None:
    (tmp_path / "original.py").write_text(ORIGINAL.replace("{more}", ""))
    (tmp_path / "ported.py").write_text(PORTED.replace("{more}", ""))
    proof = verify("original.py", "-m portwright emulate ipu ported.py", steps=3, folder=tmp_path)
    assert proof.is_good, proof.first_difference
    assert proof.place.target == "IPU"
    assert proof.place.ran_on["vendor_calls"] == {"poptorch.trainingModel": 3}


def test_it_is_a_flag_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "portwright", "verify", "a.py", "a.py", "--emulate", "gpu"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2
    assert "--emulate is 'gpu'" in done.stderr
