"""Rewrites of devices, on machines with and without CUDA and on a target: the same training, and nothing of the host in a step.

PORTWRIGHT_AUDIT_PROGRAMS and PORTWRIGHT_AUDIT_SEED as in test_audit.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from audit.devices import CODES, SELECTION, audit_devices

from portwright.port.patch import make_patch
from portwright.port.project import Project
from portwright.port.source import Source

NUM_PROGRAMS = int(os.environ.get("PORTWRIGHT_AUDIT_PROGRAMS", "12")) * 10
SEED = int(os.environ.get("PORTWRIGHT_AUDIT_SEED", "0"))


def test_the_port_trains_alike_on_every_machine() -> None:
    counts = audit_devices(NUM_PROGRAMS, SEED)
    assert not counts["all"].faults, counts["all"].faults[0]
    assert counts["all"].rewritten > NUM_PROGRAMS * 0.7
    assert counts["all"].ran > NUM_PROGRAMS * 0.6
    assert counts["on the target"].ran > NUM_PROGRAMS / 4
    hardly = [code for code in CODES if counts[code].ran < NUM_PROGRAMS / 20]
    assert not hardly, f"hardly ever rewritten: {hardly}"


TRAIN = """import torch
from torch import nn
from engine import fit
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
{}
net = nn.Linear(3, 3).to(device)
loader = torch.utils.data.DataLoader(data, batch_size=4)
fit(net, loader, device)
"""
ENGINE = """def fit(net, loader, device):
    {}
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        net(x).sum().backward()
"""
QUESTION = "data.shuffle(str(device) == 'cuda')"


@pytest.mark.parametrize(("in_train", "in_engine"), [(QUESTION, "pass"), ("", QUESTION), ("", "pass")])
def test_files_that_hand_each_other_a_device_are_rewritten_together_or_not_at_all(
    in_train: str, in_engine: str, tmp_path: Path
) -> None:
    """A model on CUDA and batches on the host would meet, or a setting behind the device would change."""
    (tmp_path / "train.py").write_text(TRAIN.format(in_train))
    (tmp_path / "engine.py").write_text(ENGINE.format(in_engine))
    for name in ("train.py", "engine.py"):
        source = Source(tmp_path / name, (tmp_path / name).read_bytes())
        fixed = {f.code for f in make_patch(source, Project(tmp_path), SELECTION, ("safe",)).fixed}
        is_moved = bool(fixed & {"PW502", "PW503", "PW504"})
        assert is_moved is (QUESTION not in (in_train, in_engine)), name
