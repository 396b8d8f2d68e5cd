"""What a stranger got wrong with IPU and RDU: each is told in one line that names what to change."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from portwright.cli import main as portwright

MODULES = ("model", "data", "utils", "net")
FEW = ["runconfig.max_steps=2", "runconfig.log_steps=1", "runconfig.checkpoint_steps=2", "model.dropout=0"]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stranger") / "mymodel"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder.parent)
        patch.setattr(sys, "argv", ["portwright", "new", "mymodel"])
        with pytest.raises(SystemExit) as stop:
            portwright()
        assert not stop.value.code
    return folder


class Run:
    def __init__(
        self, folder: Path, out: Path, capfd: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch
    ) -> None:
        self.folder, self.out, self.capfd, self.patch = folder, out, capfd, patch

    def __call__(self, target: str, *overrides: str, mode: str = "train") -> tuple[int, str]:
        words = [target, "--mode", mode, "--emulate", "--params", "configs/params.yaml"]
        words += ["--model_dir", str(self.out / target)]
        for given in (*FEW, *overrides):
            words += ["-D", given]
        self.patch.chdir(self.folder)
        self.patch.setattr(sys, "argv", ["run.py", *words])
        self.patch.syspath_prepend(str(self.folder))
        for name in MODULES:
            sys.modules.pop(name, None)
        try:
            runpy.run_path("run.py", run_name="__main__")
            status = 0
        except SystemExit as stop:
            status = int(stop.code or 0)
        finally:
            for name in MODULES:
                sys.modules.pop(name, None)
        return status, self.capfd.readouterr().err


@pytest.fixture
def run(
    template: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    return Run(template, tmp_path, capfd, monkeypatch)


@pytest.mark.parametrize(
    ("overrides", "status", "told"),
    [
        (["ipu.device_iterations=2"], 2, "log_steps is 1. Make it a multiple of 2, or take fewer steps a call (IPU: ipu.device_iterations)"),
        (["ipu.replication_factor=128"], 1, "replicas are ipu.replication_factor, blocks ipu.blocks"),
        (["ipu.available_memory_proportion={IPU7: 0.2}"], 2, "no block is on IPU7, only on IPU0"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_key_to_change(run: Run, overrides: list[str], status: int, told: str) -> None:
    got, errors = run("IPU", *overrides)
    last = errors.strip().splitlines()[-1]
    assert (got, last[:6]) == (status, "error:")
    assert told in last


def test_a_refused_line_of_the_model_is_what_to_change(run: Run) -> None:
    source = run.folder / "model.py"
    text = source.read_text()
    read = text.replace("        return logits\n\n", "        return logits * logits.sum().item()\n\n", 1)
    assert read != text
    try:
        source.write_text(read)
        got, errors = run("IPU")
    finally:
        source.write_text(text)
    last = errors.strip().splitlines()[-1]
    number = read[: read.index("logits.sum().item()")].count("\n") + 1
    assert got == 1
    assert f"model.py:{number}" in last
    assert last.endswith("Change that line.")
    assert "section optimizer" not in last
