"""run.py CSX --validate_only against the real front end: what it accepts, and the user's line when it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from vendor.csx_folders import make_folder

pytestmark = [pytest.mark.vendor, pytest.mark.filterwarnings("default")]

HEAD = """import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, params):
        super().__init__()
        self.lin = nn.Linear(8, 8)
        {init}

    def forward(self, batch):
        x, y = batch
        h = self.lin(x)
        {body}
"""

# What stands in __init__, what in forward, a part of the op's name, the module's path, a part of the SDK's own words; the line
# that must be named ends with "# here".
REFUSED: dict[str, tuple[str, str, str, str, str]] = {
    "nonzero": ("pass", "z = h.nonzero()  # here\n        return h.sum() + z.float().sum()", "nonzero", "", "nonzero"),
    "lstm": (
        "self.rnn = nn.LSTM(8, 8, batch_first=True)",
        "out, _ = self.rnn(h.unsqueeze(1))  # here\n        return out.float().sum()",
        "LSTM", "rnn", "float16",
    ),
    "grouped_conv": (
        "self.conv = nn.Conv2d(4, 4, 3, groups=2, padding=1)",
        "h = h.reshape(2, 4, 2, 2)\n        h = self.conv(h)  # here\n        return h.float().sum()",
        "convolution", "conv", "groups != 1",
    ),
    "item": ("pass", "s = h.sum().item()  # here\n        return h.sum() * s", "_local_scalar_dense", "", "_local_scalar_dense"),
    "if_tensor": ("pass", "if h.sum() > 0:  # here\n            h = -h\n        return h.sum()", "_local_scalar_dense", "", "_local_scalar_dense"),
    "float64": ("pass", "d = h.double()\n        return (d * d).sum()  # here", "", "", "f64"),
    "print": ("pass", "print(h)  # here\n        return h.sum()", "print", "", "materialize"),
    "boolean_index": ("pass", "return h[h > 0].sum()  # here", "nonzero", "", "nonzero"),
    "svd": ("pass", "return torch.linalg.svd(h.float())[1].sum()  # here", "svd", "", "svd"),
    "numpy": ("pass", "a = h.detach().numpy()  # here\n        return h.sum() + float(a.sum())", "numpy", "", "numpy"),
    "interpolate": (
        "pass",
        "h = F.interpolate(  # here\n            h.reshape(4, 2, 2, 2), scale_factor=2)\n        return (h * h).float().sum()",
        "upsample_nearest2d", "", "upsample",
    ),
    # The forward pass is accepted, the gradient is not: the SDK's own stack ends in torch's engine.
    "conv1d_gradient": (
        "self.conv = nn.Conv1d(4, 4, 3, padding=1)",
        "h = h.reshape(4, 4, 2)\n        a = torch.tanh(h)\n        h = self.conv(a)  # here\n        return (h * h).float().sum()",
        "convolution", "conv", "1D backward",
    ),
    "functional_conv1d_gradient": (
        "self.weight = nn.Parameter(torch.randn(4, 4, 3))",
        "h = h.reshape(4, 4, 2)\n        a = torch.tanh(h)\n        b = F.conv1d(a, self.weight, padding=1)  # here\n        c = torch.relu(b)\n        return (c * c).float().sum()",
        "convolution", "", "1D backward",
    ),
    "nested_module": (
        "self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Conv2d(4, 4, 1, groups=4))])",
        "h = self.blocks[0][0](h).reshape(2, 4, 2, 2)\n        h = self.blocks[0][1](h)  # here\n        return h.float().sum()",
        "convolution", "blocks.0.1", "groups != 1",
    ),
}  # fmt: skip

ACCEPTED = {
    "linear": ("pass", "return F.cross_entropy(h, y)"),
    "host_buffer": (
        "self.register_buffer('table', torch.from_numpy(__import__('numpy').ones(8, dtype='float32')))",
        "return F.cross_entropy(h * self.table, y)",
    ),
    "norms": (
        "self.norm = nn.BatchNorm1d(8); self.drop = nn.Dropout(0.1)",
        "return F.cross_entropy(self.drop(self.norm(h)), y)",
    ),
}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every folder's outcome; one process imports the SDK for all."""
    place = tmp_path_factory.mktemp("folders")
    cases = {**REFUSED, **ACCEPTED}
    folders = [
        make_folder(place / name, HEAD.format(init=case[0], body=case[1])) for name, case in cases.items()
    ]
    return run_folders(
        place, folders, "--mode", "train", "--params", "configs/params.yaml", "--validate_only", "--json"
    )


def run_folders(place: Path, folders: list[Path], *arguments: str) -> dict[str, Any]:
    script = Path(__file__).with_name("csx_folders.py")
    out = place / "out.json"
    done = subprocess.run(
        [sys.executable, str(script), str(out), json.dumps(["CSX", *arguments]), *map(str, folders)],
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(out.read_text())
    for folder in folders:
        results[folder.name]["folder"] = folder
    return results


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_users_line(verdicts: dict[str, Any], name: str) -> None:
    _, _, op, module, words = REFUSED[name]
    verdict = verdicts[name]
    assert verdict["status"] == 1, verdict["stderr"]
    (refused,) = verdict["document"]["refused"]
    source = (verdict["folder"] / "model.py").read_text().splitlines()
    expected = next(number for number, line in enumerate(source, 1) if line.endswith("# here"))
    assert (refused["file"], refused["line"]) == (str(verdict["folder"] / "model.py"), expected)
    assert op in refused["op"]
    assert refused["module"] == module
    assert words in refused["reason"]
    assert refused["cure"]
    assert f"model.py:{expected}" in verdict["document"]["error"]
    assert verdict["document"]["validated"]["accepted"] is False


@pytest.mark.parametrize("name", ["conv1d_gradient", "functional_conv1d_gradient"])
def test_a_gradient_is_said_to_be_one(verdicts: dict[str, Any], name: str) -> None:
    assert verdicts[name]["document"]["refused"][0]["phase"] == "backward"
    assert "in its gradient" in verdicts[name]["document"]["error"]


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_accepted_leaves_its_cirh(verdicts: dict[str, Any], name: str) -> None:
    verdict = verdicts[name]
    assert verdict["status"] == 0, verdict["stderr"]
    validated = verdict["document"]["validated"]
    assert validated["accepted"] is True
    assert validated["sdk"] == "2.10.0"
    assert validated["cirh_ops"]["MatMul"] >= 2
    assert set(validated["dtypes"]) >= {"f16", "f32"}
    cirh = Path(validated["cirh"])
    assert cirh.is_relative_to(verdict["folder"] / "model_dir" / "artifacts")
    assert cirh.stat().st_size > 1000
    assert any("no grad scaler" in line for line in validated["warnings"])


def test_backward_ops_carry_the_users_line_in_cirh(verdicts: dict[str, Any]) -> None:
    text = Path(verdicts["linear"]["document"]["validated"]["cirh"]).read_text()
    assert "model.py" in text
    assert "lin.bwd" in text


STILL_REFUSED = ("nonzero", "item", "print")  # not a matter of form: these stay refused
SWAPPED = (
    "lstm",
    "grouped_conv",
    "conv1d_gradient",
    "functional_conv1d_gradient",
    "interpolate",
    "nested_module",
)


@pytest.fixture(scope="module")
def legalised(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("legalised")
    folders = [
        make_folder(place / name, HEAD.format(init=REFUSED[name][0], body=REFUSED[name][1]))
        for name in (*SWAPPED, *STILL_REFUSED)
    ]
    arguments = (
        "--mode",
        "train",
        "--params",
        "configs/params.yaml",
        "--validate_only",
        "--json",
        "--legalise",
    )
    return run_folders(place, folders, *arguments)


@pytest.mark.parametrize("name", SWAPPED)
def test_legalise_makes_it_acceptable(legalised: dict[str, Any], name: str) -> None:
    assert legalised[name]["status"] == 0, legalised[name]["stderr"]
    assert legalised[name]["document"]["validated"]["legalised"]


@pytest.mark.parametrize("name", STILL_REFUSED)
def test_what_has_no_form_stays_refused(legalised: dict[str, Any], name: str) -> None:
    assert legalised[name]["status"] == 1
    assert legalised[name]["document"]["refused"]
