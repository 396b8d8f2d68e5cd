"""Scripts of many styles become a layout that imports, runs, and computes what the script computed."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from portwright.port.api import port
from portwright.runtime.run import run

SCRIPTS = Path(__file__).parents[1] / "fixtures" / "layout"
EXAMPLE = Path(__file__).parents[2] / "examples" / "transformer" / "train.py"
NUM_STEPS = 8
# Those whose batches are drawn at random in the loop see others in run(), and nothing can be compared.
EQUAL = [
    "accumulation.py", "autoencoder.py", "batch_generator.py", "dataclass_config.py", "dict_batches.py", "digits_cnn.py",
    "early_stopping.py", "full_batch.py", "grouped_decay.py", "lstm_classifier.py", "package/train.py", "phases.py",
    "regression_mlp.py", "trainer_class.py", "two_heads.py",
]  # fmt: skip


class EnoughError(BaseException):
    """Ends a script after its last step; no except Exception of its own may stop it."""


class Watch:
    """The model of a script as it starts, the loss of each backward, and its weights after some updates."""

    def __init__(self) -> None:
        self.model: nn.Module | None = None
        self.start: dict[str, torch.Tensor] = {}
        self.end: dict[str, torch.Tensor] = {}
        self.losses: list[float] = []

    def script(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        depth = 0

        def before(module: nn.Module, inputs: Any) -> None:
            nonlocal depth
            depth += 1
            if depth == 1 and self.model is None and any(True for _ in module.parameters()):
                self.model = module
                self.start = {name: value.clone() for name, value in module.state_dict().items()}

        def after(module: nn.Module, inputs: Any, outputs: Any) -> None:
            nonlocal depth
            depth -= 1

        backward = torch.Tensor.backward

        def record(loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            self.losses.append(loss.item())
            backward(loss, *args, **kwargs)

        updates = 0

        def count(*_: Any) -> None:
            nonlocal updates
            updates += 1
            if updates == NUM_STEPS:
                assert self.model is not None
                self.end = {name: value.clone() for name, value in self.model.state_dict().items()}
                raise EnoughError

        hooks = [
            nn.modules.module.register_module_forward_pre_hook(before),
            nn.modules.module.register_module_forward_hook(after),
            register_optimizer_step_post_hook(count),
        ]
        monkeypatch.setattr(torch.Tensor, "backward", record)
        monkeypatch.setattr(sys, "argv", [str(path)])
        monkeypatch.syspath_prepend(str(path.parent))
        try:
            runpy.run_path(str(path), run_name="__main__")
        except EnoughError:
            pass
        finally:
            for hook in hooks:
                hook.remove()
            monkeypatch.setattr(torch.Tensor, "backward", backward)


@pytest.fixture(autouse=True)
def _own_imports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Each script and each layout has modules of the same names; what one imported is nothing to the next."""
    known = set(sys.modules)
    make = torch.utils.data.DataLoader.__init__

    def in_order(loader: Any, *args: Any, **kwargs: Any) -> None:
        kwargs["shuffle"] = (
            None
            if "sampler" in kwargs or isinstance(args[0] if args else None, torch.utils.data.IterableDataset)
            else False
        )
        make(loader, *args, **kwargs)

    monkeypatch.setattr(torch.utils.data.DataLoader, "__init__", in_order)
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the scripts
        yield
    for name in set(sys.modules) - known:
        if name.split(".")[0] in (
            "model",
            "data",
            "utils",
            "run",
            "engine",
            "nets",
            "script_data",
            "script_utils",
        ):
            del sys.modules[name]


def make_layout(script: Path, out: Path) -> Any:
    done = port([script], ["csx"], style="layout", out=out)
    assert done.changed, [f.message for f in done.left]
    return done


def run_layout(
    folder: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch, *more: str, mode: str = "train"
) -> dict[str, Any]:
    for name in ("model", "data", "utils", "engine", "nets", "nets.mlp", "nets.blocks"):
        sys.modules.pop(name, None)
    monkeypatch.syspath_prepend(str(folder))
    parts = runpy.run_path(str(folder / "run.py"), run_name="layout")
    made: list[Any] = []

    def model_fn(params: Any, device: Any = None) -> Any:
        model = parts["BaseModel"](params, device=device)
        if watch.start:
            model.model.load_state_dict(watch.start)
        made.append(model)
        return model

    monkeypatch.setattr(sys, "argv", [str(folder / "run.py")])
    outcome = run(
        model_fn=model_fn,
        train_data_fn=parts["get_train_dataloader"],
        eval_data_fn=parts["get_eval_dataloader"],
        default_params_fn=parts["set_defaults"],
        argv=["CPU", "--mode", mode, "--params", str(folder / "configs" / "params.yaml"), *more],
    )
    watch.model = made[0].model
    return outcome


@pytest.mark.parametrize("name", EQUAL)
def test_layout_computes_what_the_script_does(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, ported = Watch(), Watch()
    original.script(SCRIPTS / name, monkeypatch)
    make_layout(SCRIPTS / name, tmp_path / "out")
    ported.start = original.start
    outcome = run_layout(
        tmp_path / "out", ported, monkeypatch, "--model_dir", str(tmp_path / "run"), "-D", f"runconfig.max_steps={NUM_STEPS}",
        "-D", "runconfig.log_steps=1",
    )  # fmt: skip
    assert outcome["status"] == 0
    assert ported.model is not None
    assert len(original.end) == len(original.start) > 0
    moved = 0
    for key, value in ported.model.state_dict().items():
        torch.testing.assert_close(
            value, original.end[key], rtol=1e-4, atol=1e-6, msg=lambda m, key=key: f"{key}: {m}"
        )
        moved += not torch.equal(value, original.start[key])
    assert moved  # both trained


def test_batches_drawn_by_hand_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The draws are others than the script's, so only that it learns is seen."""
    make_layout(SCRIPTS / "char_model.py", tmp_path / "out")
    outcome = run_layout(tmp_path / "out", Watch(), monkeypatch, "--model_dir", str(tmp_path / "run"))
    assert outcome["status"] == 0
    assert outcome["values"]["train/loss"] < 1.5  # chance is 3.3


def test_layout_runs_in_all_modes(tmp_path: Path, run_script: Any) -> None:
    """The user's own commands, on the shipped example."""
    command = [
        sys.executable,
        "-m",
        "portwright",
        "port",
        str(EXAMPLE),
        "--target",
        "csx",
        "--style",
        "layout",
        "--out",
        "out",
        "--json",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    report = json.loads(done.stdout)
    assert not [f for f in report["left"] if f["code"].startswith("PW7")]
    assert {"placed", "dissolved", "changed", "fixed", "left"} <= report.keys()
    for mode in ("train_and_eval", "eval"):
        command = [
            "CPU", "--mode", mode, "--params", "configs/params.yaml", "--json",
            "-D", "runconfig.max_steps=20", "-D", "runconfig.eval_steps=3", "-D", "runconfig.eval_frequency=10",
        ]  # fmt: skip
        ran = run_script(tmp_path / "out", *command)
        assert ran.returncode == 0, ran.stderr
        outcome = json.loads(ran.stdout)
        assert 0 <= outcome["values"]["eval/accuracy"] <= 1
        assert outcome["values"]["eval/loss"] > 0


FROM_FLAGS = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--hidden", type=int, default=16)
args = parser.parse_args()
loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=4, drop_last=True)
model = nn.Sequential(nn.Linear(8, args.hidden), nn.Linear(args.hidden, 3))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
"""


def test_params_of_a_layout_reach_the_code_or_are_refused(
    tmp_path: Path, run_script: Any, run_cli: Any
) -> None:
    """Seed 000: "the easiest way is to change parameter values in a YAML config file. The parameter values will be read
    when the program starts and passed to the code function as a dictionary."
    """
    script = tmp_path / "train.py"
    script.write_text(FROM_FLAGS)
    told = make_layout(script, tmp_path / "out").literals
    assert any(text.startswith("batch_size 4 in data.py:") for text in told)
    assert any(text.startswith("3 of Linear(), argument 2, in model.py:") for text in told)
    assert not any("16" in text for text in told), "it stands in params.yaml"
    words = ("CPU", "--mode", "train", "--params", "configs/params.yaml", "--validate_only", "-D")
    for key, status, said in (
        ("model.hidden=32", 0, "parameters and buffers: 387"),
        ("train_input.batch_size=64", 2, "No key of train_input is read."),
        ("model.width=3", 2, "Valid: allow_multireplica, fp16_type, hidden, mixed_precision, to_float16."),
    ):
        for done in (
            run_script(tmp_path / "out", *words, key),
            run_cli("run", "run.py", *words, key, cwd=tmp_path / "out"),
        ):
            assert done.returncode == status, done.stderr
            assert said in done.stdout + done.stderr
