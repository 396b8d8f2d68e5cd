"""portwright emulate: a script that imports a vendor's package, with its own words, status and lines."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import pytest

import portwright
from portwright.cli import main
from portwright.emulate.ledger import LEDGERS
from portwright.emulate.script import COPIES_VARIABLE

HEAD = """\
import sys
import poptorch
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x, y):
        z = self.layer(x)
        return z, torch.nn.functional.cross_entropy(z, y)

model = Model()
options = poptorch.Options()
options.deviceIterations(2)
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
batch = torch.randn(8, 4), torch.zeros(8, dtype=torch.long)
"""
GOOD = (
    HEAD
    + "training = poptorch.trainingModel(model, options, optimizer)\nfor _ in range(3):\n    training(*batch)\n"
)


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


class Emulate:
    """The command inside this process, which has torch already; it leaves nothing behind."""

    def __init__(
        self, folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.folder, self._capfd, self._patch = folder, capfd, monkeypatch

    def write(self, text: str, name: str = "train.py") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def __call__(self, *words: str, env: dict[str, str] | None = None) -> Done:
        for ledger in LEDGERS.values():
            ledger.forget_all()
        with self._patch.context() as patch:
            patch.chdir(self.folder)
            patch.setattr(sys, "argv", ["portwright", "emulate", *words])
            patch.setattr(sys, "path", list(sys.path))
            patch.setattr(threading, "excepthook", threading.excepthook)
            patch.setitem(sys.modules, "__main__", sys.modules["__main__"])
            for name, value in {"PYTHONPATH": "", COPIES_VARIABLE: "explicit", **(env or {})}.items():
                patch.setenv(name, value)
            self._capfd.readouterr()
            known = set(sys.modules)
            with pytest.raises(SystemExit) as stop:
                main()
            for name in set(sys.modules) - known:
                if str(getattr(sys.modules[name], "__file__", "")).startswith(str(self.folder)):
                    del sys.modules[name]
        told = self._capfd.readouterr()
        return Done(int(stop.value.code or 0), told.out, told.err)

    def elsewhere(self, *words: str) -> Done:
        """The command as a process of its own."""
        command = [sys.executable, "-m", "portwright.cli", "emulate", *words]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=120)
        return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def emulate(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Emulate:
    return Emulate(tmp_path, capfd, monkeypatch)


def test_a_script_runs_as_it_is_and_is_summed_up(emulate: Emulate) -> None:
    emulate.write(GOOD + "print(sys.argv[1:], __name__, poptorch.__version__)\n")
    done = emulate.elsewhere("ipu", "--json", "made.json", "train.py", "--json", "x", "-h")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['--json', 'x', '-h'] __main__ 3.4.0+emulated"
    assert done.stderr.startswith("portwright: emulated: the rules of PopTorch 3.4 on this machine's CPU")
    line = GOOD[: GOOD.index("training = ")].count("\n") + 1
    assert f"train.py:{line}: training of Model: 3 calls (6 device iterations; IPU 0: " in done.stderr
    made = json.loads((emulate.folder / "made.json").read_text())
    assert (made["emulated"], made["status"], made["unused"]) == ("PopTorch 3.4", 0, [])
    assert made["executors"][0]["memory"]["ipus"][0]["weights"] == 40


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("", 1),
        ("sys.exit(3)", 3),
        ("sys.exit('so')", 1),
        ("raise KeyboardInterrupt", 130),
        ("sys.exit(0)", 1),
    ],
)
def test_the_status_is_the_scripts_or_1_where_nothing_ran(emulate: Emulate, ending: str, status: int) -> None:
    emulate.write(f"import sys\n{ending}\n")
    done = emulate("ipu", "train.py")
    assert done.returncode == status, done.stderr
    assert ("so" in done.stderr.splitlines()) == (ending == "sys.exit('so')")
    assert "made no executor" in done.stderr


def test_executors_that_are_only_made_ran_nothing(emulate: Emulate) -> None:
    emulate.write(HEAD + "poptorch.inferenceModel(model, options)\nmodel(*batch)\nprint('fine')\n")
    done = emulate("ipu", "train.py")
    assert (done.returncode, done.stdout) == (1, "fine\n")
    assert "error: the script called none of the executors that it made of PopTorch 3.4" in done.stderr


def test_an_executor_in_a_process_that_the_script_starts_counts(emulate: Emulate) -> None:
    emulate.write(GOOD, "child.py")
    emulate.write("import subprocess, sys\nsubprocess.run([sys.executable, 'child.py'], check=True)\n")
    done = emulate("ipu", "train.py", env={"PYTHONPATH": str(Path(portwright.__file__).parents[1])})
    assert done.returncode == 0, done.stderr


SAMBA = """\
import torch
from unit.emulate.sambaflow_case import Classifier, sgd
from sambaflow import samba
model = Classifier()
samba.from_torch_model_(model)
inputs = samba.randn(6, 8, name="image", batch_dim=0), samba.randint(4, (6,), name="label", batch_dim=0)
"""


@pytest.mark.parametrize(
    ("does", "status"),
    [
        ("samba.session.compile(model, inputs, sgd(model), name='s', config_dict={})", 0),
        ("Classifier()(torch.randn(6, 8), torch.zeros(6, dtype=torch.long))", 1),  # on the host
    ],
)
def test_sambaflow_is_used_by_its_session(emulate: Emulate, does: str, status: int) -> None:
    emulate.write(SAMBA + does + "\n")
    done = emulate("rdu", "train.py")
    assert done.returncode == status, done.stderr
    assert ("error: the script made no executor of SambaFlow" in done.stderr) == bool(status)


def test_a_lost_wrapper_fails_with_its_line(emulate: Emulate) -> None:
    lost = "net = poptorch.trainingModel(model, options, optimizer)\nnet = net.model\nnet(*batch)\nprint('fine')\n"
    emulate.write(HEAD + lost)
    done = emulate("ipu", "train.py")
    assert done.returncode == 1
    assert done.stdout == "fine\n"
    line = HEAD.count("\n") + 1
    told = done.stderr.splitlines()[-1]
    assert f"train.py:{line}: the training executor of Model was made and never called" in told


def test_a_wrapper_that_is_moved_is_refused(emulate: Emulate) -> None:
    emulate.write(HEAD + "net = poptorch.trainingModel(model, options, optimizer).to('cpu')\nnet(*batch)\n")
    done = emulate("ipu", "train.py")
    assert done.returncode == 1
    assert "loses the wrapper" in done.stderr
    assert "never called" not in done.stderr


def test_tracebacks_hold_the_users_lines_alone(emulate: Emulate) -> None:
    emulate.write(GOOD.replace("z = self.layer(x)", "z = self.layer(x) * self.layer(x).sum().item()"))
    done = emulate("ipu", "train.py", "--json", "m.json")
    assert done.returncode == 1
    shown = [row for row in done.stderr.splitlines() if row.lstrip().startswith("File ")]
    assert len(shown) == 2
    assert all('train.py"' in row for row in shown)
    assert not (emulate.folder / "m.json").exists()


def test_a_script_that_does_not_parse_is_shown_without_our_lines(emulate: Emulate) -> None:
    emulate.write("def f(:\n")
    done = emulate("ipu", "train.py")
    assert done.returncode == 1
    shown = [row for row in done.stderr.splitlines() if row.lstrip().startswith("File ")]
    assert len(shown) == 1
    assert 'train.py", line 1' in shown[0]
    assert "SyntaxError" in done.stderr


def test_errors_of_other_libraries_keep_their_lines(emulate: Emulate) -> None:
    emulate.write("import json\njson.loads('{')\n")
    done = emulate("ipu", "train.py")
    assert done.returncode == 1
    assert "json/decoder.py" in done.stderr
    assert "portwright" not in done.stderr.replace("portwright: ", "")


def test_modules_and_their_imports(emulate: Emulate) -> None:
    emulate.write("", "package/__init__.py")
    emulate.write("import package.train\n", "package/__main__.py")
    emulate.write(GOOD, "package/train.py")
    done = emulate("ipu", "-m", "package")
    assert done.returncode == 0, done.stderr
    assert "training of Model: 3 calls" in done.stderr


def test_processes_that_a_script_starts_find_the_emulator(emulate: Emulate) -> None:
    emulate.write(
        "import multiprocessing, subprocess, sys\nimport poptorch\n"
        "def version():\n    return poptorch.__version__\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=version)\n"
        "    child.start()\n    child.join(60)\n    print(child.exitcode)\n"
        "    command = [sys.executable, '-c', 'import poptorch.enums as e; print(e.OutputMode.All.name)']\n"
        "    print(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())\n"
    )
    done = emulate.elsewhere("ipu", "train.py")
    assert done.stdout.split() == ["0", "All"], done.stderr


def test_copies_reach_the_emulator(emulate: Emulate) -> None:
    emulate.write(
        HEAD
        + "before = model.layer.weight.detach().clone()\ntraining = poptorch.trainingModel(model, options, optimizer)\n"
        + "training(*batch)\nprint(torch.equal(before, model.layer.weight))\n"
    )
    assert emulate("ipu", "train.py").stdout == "True\n"
    assert emulate("ipu", "--copies", "implicit", "train.py").stdout == "False\n"
    assert emulate("ipu", "train.py", env={COPIES_VARIABLE: "implicit"}).stdout == "False\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "Missing argument"),
        (("ipu",), "no script is given"),
        (("ipu", "-m"), "no script is given"),
        (("ipx", "train.py"), "Did you mean 'ipu'?"),
        (("csx", "train.py"), "there is no emulator of 'csx'"),
        (("ipu", "trian.py"), "Did you mean 'train.py'?"),
        (("ipu", "."), "a folder without a __main__.py"),
        (("ipu", "--copies", "never", "train.py"), "--copies is 'never'"),
        (("rdu", "--copies", "implicit", "train.py"), "--copies implicit is for ipu alone"),
        (("ipu", "--jsn", "x", "train.py"), "No such option"),
        (("ipu", "--json", ".", "train.py"), "a folder"),
    ],
)
def test_bad_commands_get_one_line(emulate: Emulate, words: tuple[str, ...], told: str) -> None:
    emulate.write("print('ran')\n")
    done = emulate(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_help_teaches(emulate: Emulate) -> None:
    done = emulate("--help")
    assert done.returncode == 0
    for word in ("import poptorch", "never called", "portwright emulate ipu train.py --epochs 1", "--copies"):
        assert word in " ".join(done.stdout.split())
