"""RDU as a user meets it: without SambaFlow, with --emulate, by the vendor's own commands, and `portwright emulate rdu`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

MODELS = Path(__file__).parents[2] / "src" / "portwright" / "models"
PARAMS = ("--params", "configs/params.yaml")
SHORT = ("-D", "runconfig.log_steps=1", "-D", "train_input.drop_last=true", "-D", "rdu.precision=fp32")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODELS / "fc_mnist", tmp_path / "fc_mnist"))


def losses_of(model_dir: Path) -> list[float]:
    lines = (model_dir / "train" / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [loss for record in records if record["kind"] == "train" for loss in record["losses"]]


def document(ran: Any) -> dict[str, Any]:
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def test_without_sambaflow_both_ways_out_are_told(folder: Path, run_script: Any) -> None:
    ran = run_script(folder, "RDU", "--mode", "train", *PARAMS)
    assert ran.returncode == 1
    assert "SambaFlow is not installed" in ran.stderr
    assert "--emulate" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert not (folder / "model_dir").exists()


def test_emulated_training_is_the_cpus_and_labelled(folder: Path, run_script: Any) -> None:
    steps = ("--max_steps", "30", *SHORT, "--json")
    ran = run_script(
        folder, "RDU", "--emulate", "--mode", "train_and_eval", *PARAMS, *steps, "--model_dir", "rdu"
    )
    made = document(ran)
    assert made["emulated"] == "SambaFlow"
    assert "no RDU was used" in ran.stderr
    assert "RDU (emulated)" in ran.stderr
    theirs = document(
        run_script(folder, "CPU", "--mode", "train_and_eval", *PARAMS, *steps, "--model_dir", "cpu")
    )
    assert losses_of(folder / "rdu") == pytest.approx(losses_of(folder / "cpu"), abs=1e-5)
    assert made["values"]["eval/accuracy"] == pytest.approx(theirs["values"]["eval/accuracy"], abs=1e-6)
    assert (folder / "rdu" / "compile" / "mnistmodel" / "mnistmodel.pef").is_file()
    # What the RDU trained, the CPU evaluates.
    evaluated = document(run_script(folder, "CPU", "--mode", "eval", *PARAMS, "--model_dir", "rdu", "--json"))
    assert evaluated["values"]["eval/accuracy"] == pytest.approx(made["values"]["eval/accuracy"])


def test_a_run_in_two_parts_is_one_run(folder: Path, run_script: Any) -> None:
    base = ("RDU", "--emulate", "--mode", "train", *PARAMS, *SHORT, "--json")
    document(run_script(folder, *base, "--max_steps", "24", "--model_dir", "whole"))
    document(run_script(folder, *base, "--max_steps", "11", "--model_dir", "parts"))
    again = run_script(folder, *base, "--max_steps", "24", "--model_dir", "parts")
    document(again)
    assert "using the PEF of an earlier run" in again.stderr
    assert losses_of(folder / "parts") == losses_of(folder / "whole")


def test_compile_test_and_run_as_sambaflows_scripts_have_them(folder: Path, run_script: Any) -> None:
    compiled = run_script(
        folder, "RDU", "compile", "--pef-name=digits", "--output-folder=pef", "--emulate", *PARAMS, *SHORT
    )
    assert compiled.returncode == 0, compiled.stderr
    assert "compiled an emulated PEF, which no RDU can run: pef/digits/digits.pef" in compiled.stdout
    tested = run_script(folder, "RDU", "test", "--pef=pef/digits/digits.pef", "--emulate", *PARAMS, *SHORT)
    assert tested.returncode == 0, tested.stderr
    assert "on the emulated RDU (fp32)" in tested.stdout
    run = ("RDU", "run", "--pef=pef/digits/digits.pef", "--emulate", *PARAMS, *SHORT, "--max_steps", "3")
    assert run_script(folder, *run).returncode == 0
    other = run_script(folder, *run, "-D", "train_input.batch_size=32", "--model_dir", "other")
    assert other.returncode == 1
    assert "compiled for float32[64, 1, 8, 8]" in other.stderr


def test_ops_that_are_not_public_are_refused_by_name(tmp_path: Path, run_script: Any) -> None:
    folder = Path(shutil.copytree(MODELS / "alphabet", tmp_path / "alphabet"))
    base = (
        "--mode",
        "train",
        *PARAMS,
        "-D",
        "optimizer.optimizer_type=AdamW",
        "-D",
        "runconfig.log_steps=1",
        "--max_steps",
        "6",
    )
    rdu = ("RDU", "--emulate", "-D", "rdu.precision=fp32")
    refused = run_script(folder, *rdu, *base, "--json")
    assert refused.returncode == 1
    told = json.loads(refused.stdout)
    assert {"aten.gelu.default", "aten.full.default"} <= {one["op"] for one in told["refused"]}
    assert "pytorch_transformer.py:" in told["error"]
    let_through = run_script(folder, *rdu, *base, "-D", "rdu.unlisted_ops=warn", "--model_dir", "rdu")
    assert let_through.returncode == 0, let_through.stderr
    assert "no public document shows these ops on an RDU" in let_through.stderr
    assert run_script(folder, "CPU", *base, "--model_dir", "cpu").returncode == 0
    assert losses_of(folder / "rdu") == pytest.approx(losses_of(folder / "cpu"), abs=1e-5)


SCRIPT = """
import sys
import torch
import sambaflow.samba.utils as utils
from sambaflow import samba
from sambaflow.samba.utils.argparser import parse_app_args
from sambaflow.samba.utils.pef_utils import get_pefmeta

args = parse_app_args()
utils.set_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 1))
samba.from_torch_model_(model)
inputs = (samba.randn(args.batch_size, 4, name="x", batch_dim=0),)
optimizer = samba.optim.SGD(model.parameters(), lr=0.1)
if args.command == "compile":
    samba.session.compile(model, inputs, optimizer, name="line", config_dict=vars(args), pef_metadata=get_pefmeta(args, model))
else:
    traced = utils.trace_graph(model, inputs, optimizer, pef=args.pef)
    for _ in range(3):
        (output,) = samba.session.run(inputs, traced, hyperparam_dict={"lr": 0.1})
        print(float(samba.to_torch(output).float().sum()))
    samba.session.to_cpu(model)
"""


def test_a_script_of_sambaflows_runs_as_it_is(tmp_path: Path, run_cli: Any) -> None:
    (tmp_path / "line.py").write_text(SCRIPT)

    def emulate(*words: str) -> Any:
        return run_cli("emulate", "rdu", "line.py", *words, cwd=tmp_path)

    early = emulate("run", "-b", "2", "--pef=out/line/line.pef")
    assert early.returncode != 0
    assert "does not exist" in early.stderr
    odd = emulate("compile", "-b=1")
    assert odd.returncode != 0
    assert "the batch size is 1" in odd.stderr
    assert emulate("compile", "-b=2").returncode == 0
    ran = emulate("run", "-b", "2", "--pef=out/line/line.pef")
    assert ran.returncode == 0, ran.stderr
    values = [float(line) for line in ran.stdout.split()]
    assert values[0] > values[1] > values[2]
    assert "no RDU is used" in ran.stderr
    assert "training of Sequential: 3 calls" in ran.stderr
