"""Who owns the loop, what was looked at, and the verdict of `check`, over small programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from portwright.discover import find_rules, find_target, find_targets
from portwright.errors import UserError
from portwright.port import api
from portwright.port.entries import CheckResult
from portwright.port.report_formats import render
from portwright.port.verdict import Verdict

LOOP = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 3, (64,))), batch_size=8, drop_last=True)
model = nn.Linear(8, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    opt.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
"""
BRANCHED = """
try:
    import poptorch
except ImportError:
    poptorch = None
import sys, torch
model = torch.nn.Linear(2, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
if "--ipu" in sys.argv:
    executor = poptorch.trainingModel(model, optimizer=opt)
for i in range(4):
    loss = model(torch.randn(4, 2)).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text("")
    monkeypatch.chdir(project)
    return project


def checked(
    files: dict[str, str] | str, *targets: str, entry: str = "train.py", **options: object
) -> CheckResult:
    for name, text in ({entry: files} if isinstance(files, str) else files).items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    return api.check([Path(entry)], targets or ["csx"], **options)  # type: ignore[arg-type]


def verdict(files: dict[str, str] | str, target: str = "csx", **options: object) -> Verdict:
    (entry,) = checked(files, target, **options).entries  # type: ignore[arg-type]
    (found,) = entry.verdicts
    return found


OWNERS: dict[str, tuple[dict[str, str], str, int]] = {  # files, the owner's name and the line that says so
    "a helper of another file makes the Trainer": (
        {
            "helper.py": "import transformers as hf\n\n\ndef build(m):\n    return hf.Trainer(model=m)\n",
            "train.py": "from helper import build\nt = build(None)\nt.train()\n",
        },
        "HuggingFace Trainer", 5,
    ),
    "a Trainer that another file made": (
        {
            "made.py": "from transformers import Trainer\nt = Trainer()\n",
            "train.py": "from made import t\nfor x in []:\n    x.backward\nt.train()\n",
        },
        "HuggingFace Trainer", 2,
    ),
    "a Trainer three classes up": (
        {
            "a.py": "from trl import SFTTrainer\nclass A(SFTTrainer): pass\n",
            "b.py": "import a\nclass B(a.A): pass\n",
            "train.py": "from b import B as Mine\nMine(model='x').train()\n",
        },
        "HuggingFace Trainer", 2,
    ),
    "a factory that returns Lightning's Trainer, in a package": (
        {
            "pkg/__init__.py": "",
            "pkg/make.py": "import lightning as L\ndef make() -> L.Trainer:\n    return L.Trainer(max_epochs=1)\n",
            "train.py": "from pkg import make as m\nif __name__ == '__main__':\n    m.make().fit(None)\n",
        },
        "Lightning's Trainer", 3,
    ),
    "a Trainer of a configuration, told by its annotation": (
        {"train.py": "import hydra\nfrom pytorch_lightning import Trainer\n\n\ndef main(cfg):\n    t: Trainer = hydra.utils.instantiate(cfg)\n    t.fit(1)\n\n\nmain(1)\n"},
        "Lightning's Trainer", 6,
    ),
    "Fabric, inside of a class": (
        {"train.py": "from lightning.fabric import Fabric\nclass T:\n    def __init__(self): self.f = Fabric()\n    def fit(self, d):\n        for b in d: self.f.backward(b)\nT().fit([])\n"},
        "Lightning Fabric", 3,
    ),
    "Accelerate": (
        {"train.py": "from accelerate import Accelerator\nacc = Accelerator()\nfor b in []:\n    acc.backward(b)\n"},
        "Accelerate", 2,
    ),
    "Ignite": ({"train.py": "from ignite.engine import Engine\nEngine(lambda e, b: b.backward()).run([])\n"}, "Ignite's Engine", 2),
    "DeepSpeed": (
        {"train.py": "import deepspeed\ne, *_ = deepspeed.initialize(model=1)\nfor b in []:\n    e.backward(b)\n    e.step()\n"},
        "DeepSpeed", 2,
    ),
    "Keras fit of a model made elsewhere": (
        {
            "net.py": "import keras\ndef build():\n    m = keras.Sequential()\n    m.compile('sgd', 'mse')\n    return m\n",
            "train.py": "from net import build\nbuild().fit([1], epochs=2)\n",
        },
        "Keras fit()", 2,
    ),
    "fit_generator": ({"train.py": "from keras.models import load_model\nm = load_model('x')\nm.fit_generator([])\n"}, "Keras fit()", 3),
    "a train_step of its own": (
        {"train.py": "import tensorflow as tf\nclass B(tf.keras.Model): pass\nclass G(B):\n    def train_step(self, d):\n        with tf.GradientTape() as t: pass\nG().fit([], epochs=1)\n"},
        "Keras fit() with a train_step of its own", 4,
    ),
    "GradientTape": (
        {"train.py": "import tensorflow as tf\n@tf.function\ndef step(x):\n    with tf.GradientTape() as t:\n        return x\nfor x in []: step(x)\n"},
        "a loop around GradientTape", 4,
    ),
    "timm's scaler, which an imported file calls": (
        {
            "engine.py": "def epoch(loader, scale, opt):\n    for loss in loader:\n        scale(loss, opt)\n",
            "train.py": "from timm.utils import NativeScaler\nimport engine\nscale = NativeScaler()\nengine.epoch([], scale, 1)\n",
        },
        "timm's loss scaler", 3,
    ),
    "JAX": (
        {"train.py": "import jax\nfrom jax import numpy as np\nstep = jax.jit(jax.value_and_grad(np.sum))\nfor x in []: step(x)\n"},
        "a loop around JAX's gradients", 3,
    ),
    "an Estimator of a Keras model": (
        {"train.py": "import tensorflow as tf\ne = tf.keras.estimator.model_to_estimator(keras_model=1)\ne.train(1)\n"},
        "a TensorFlow Estimator", 2,
    ),
    "TPUEstimator": ({"train.py": "import tensorflow.compat.v1 as tf\ntf.estimator.tpu.TPUEstimator(1).train(1)\n"}, "a TensorFlow Estimator", 2),
    "a session": (
        {"train.py": "import tensorflow as tf\nop = tf.train.AdamOptimizer().minimize(1)\nwith tf.Session() as s:\n    s.run(op)\n"},
        "a loop over a TensorFlow session", 3,
    ),
    "PopTorch": ({"train.py": "import poptorch\nm = poptorch.trainingModel(1)\nm(2)\n"}, "PopTorch's executor", 2),
    "SambaFlow": ({"train.py": "from sambaflow import samba\nfor b in []:\n    samba.session.run(b)\n"}, "SambaFlow's session", 3),
    "Cerebras's API": (
        {"train.py": "import cerebras.pytorch as cstorch\n@cstorch.trace\ndef step(x):\n    x.backward()\nfor x in []: step(x)\n"},
        "Cerebras's own PyTorch API", 2,
    ),
    "run()": ({"train.py": "from portwright import run\nif __name__ == '__main__':\n    run(1, 2)\n"}, "portwright's run()", 3),
    "TensorFlow's run()": ({"train.py": "from portwright.tensorflow import run\nrun(1, 2)\n"}, "portwright.tensorflow's run()", 2),
    "the script, in a class of a registry": (
        {
            "t.py": "R = {}\ndef reg(c):\n    R[c.__name__] = c\n    return c\n@reg\nclass A:\n    def go(self, d, o):\n        for x in d:\n            x.backward()\n            o.step()\n",
            "train.py": "import sys, t\nt.R[sys.argv[1]]().go([], 1)\n",
        },
        "the script itself", 8,
    ),
    "the script, though a helper that is not called has a Trainer": (
        {
            "util.py": "from transformers import Trainer\ndef other(): Trainer().train()\ndef mean(x): return x\n",
            "train.py": "from util import mean\nfor x in []:\n    mean(x).backward()\n",
        },
        "the script itself", 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OWNERS)
def test_the_owner_of_the_loop(case: str) -> None:
    files, name, line = OWNERS[case]
    (entry,) = checked(files).entries
    assert [(owner.name, place.line) for owner, place in entry.look.owners] == [(name, line)]


@pytest.mark.parametrize(
    "text",
    [
        "from transformers import Trainer\nclass Mine(Trainer): pass\n",  # a library: nothing is started
        "import torch\nprint(torch.nn.Linear(1, 1)(torch.ones(1)))\n",
        "from sklearn.linear_model import SGDClassifier\nSGDClassifier().fit([[1]], [1])\n",
        "import torch\nclass F(torch.autograd.Function):\n    def backward(ctx, g): return kernel.backward(g)\nF.apply(1)\n",
    ],
)
def test_nobody_trains(text: str) -> None:
    found = verdict(text)
    assert found.answer == ("needs a person" if "autograd" in text else "cannot tell")  # by a finding
    assert "no training loop was found in train.py: pass the script that trains" in found.reasons


def test_several_owners_are_all_named() -> None:
    both = "from transformers import Trainer\nimport lightning as L\nTrainer().train()\nL.Trainer().fit(1)\n"
    found = verdict(both)
    assert [reason.partition(" owns")[0] for reason in found.reasons] == [
        "HuggingFace Trainer",
        "Lightning's Trainer",
    ]
    assert found.answer == "needs a person"


@pytest.mark.parametrize(
    ("case", "target", "answer", "reason"),
    [
        ("a Trainer three classes up", "csx", "needs a person", "HuggingFace Trainer owns the training loop (a.py:2), and no style"),
        ("a Trainer three classes up", "gpu", "runs as it is", "owns the training loop"),
        ("a Trainer three classes up", "hpu", "cannot tell", "no rules for hpu"),
        ("Accelerate", "rdu", "needs a person", "Accelerate owns the training loop (train.py:2)"),
        ("Keras fit of a model made elsewhere", "csx", "needs a person", "does not train on csx: today's SDK of Cerebras has no TensorFlow"),
        ("Keras fit of a model made elsewhere", "cpu", "runs as it is", ""),
        ("an Estimator of a Keras model", "csx", "needs a person", "does not train on csx: today's SDK of Cerebras has no TensorFlow"),
        ("TensorFlow's run()", "csx", "needs a person", "does not train on csx: today's SDK of Cerebras has no TensorFlow"),
        ("PopTorch", "ipu", "runs as it is", ""),
        ("PopTorch", "csx", "needs a person", "PopTorch's executor owns"),
        ("PopTorch", "gpu", "needs a person", "other software than gpu's"),
        ("SambaFlow", "rdu", "runs as it is", ""),
        ("Cerebras's API", "csx", "runs as it is", ""),
        ("run()", "csx", "runs as it is", ""),
        ("run()", "ipu", "runs as it is", ""),
    ],
)  # fmt: skip
def test_verdicts_of_owners(case: str, target: str, answer: str, reason: str) -> None:
    found = verdict(OWNERS[case][0], target)
    assert found.answer == answer
    assert reason in found.reasons[0]
    assert found.minutes is None
    assert found.command == ""


@pytest.mark.parametrize("target", ["csx", "ipu", "rdu"])
def test_runs_after_port_is_what_port_then_does(target: str) -> None:
    found = verdict(LOOP, target)
    assert (found.answer, found.left, found.minutes) == ("runs after port", 0, 0)
    assert found.reasons == (
        f"whether {target} takes each operation of a step was not asked (`portwright plan` asks)",
    )
    words = [w for w in found.command.split() if w != "--write"]
    assert sorted(p.name for p in Path().iterdir()) == ["pyproject.toml", "train.py"]  # nothing was written
    style = words[words.index("--style") + 1]
    out = Path("ported") if style == "layout" else Path("copy")
    done = api.port([Path("train.py")], [target], style=style, out=out)
    assert done.changed
    assert done.left == []


def test_what_a_port_leaves_needs_a_person_and_has_minutes() -> None:
    found = verdict(LOOP.replace(", drop_last=True", ""))
    assert found.answer == "needs a person"
    assert "ported/data.py:" in found.reasons[0]
    assert found.left
    assert found.minutes is not None
    assert "--style layout --out ported" in found.command


def test_a_refusal_is_quoted_with_its_line_and_has_no_minutes() -> None:
    found = verdict(LOOP.replace("for x, y in loader:", "while True:\n    x, y = next(iter(loader))"))
    assert found.answer == "needs a person"
    assert "`--style layout` refuses: no layout:" in found.reasons[0]
    assert "(train.py:" in found.reasons[0]
    assert (found.minutes, found.left, found.command) == (None, None, "")
    text = render(checked({}, "csx"), "text")
    assert "minutes" not in text
    assert "100 %" not in text
    assert "No findings" not in text


def test_a_branch_stands_beside_the_scripts_own_loop() -> None:
    (entry,) = checked(BRANCHED).entries
    assert {owner.name for owner, _ in entry.look.owners} == {"PopTorch's executor", "the script itself"}
    assert verdict(BRANCHED, "gpu").answer == "needs a person"  # no line names a GPU
    assert (
        verdict(BRANCHED.replace("torch.randn(4, 2)", "torch.randn(4, 2, device='cuda')"), "gpu").answer
        == "runs as it is"
    )


GRAPH = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(2, 2)
    def forward(self, x):
        LINE
        return self.f(x)
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(4):
    x = torch.randn(4, 2)
    loss = net(x).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(loss.item())
"""


@pytest.mark.parametrize("target", ["ipu", "rdu"])
def test_a_branch_leaves_what_its_graph_reads_of_values(target: str) -> None:
    """The script's own reads stay on the host; those of the model go into the vendor's graph."""
    assert verdict(GRAPH.replace("LINE", "pass"), target).answer == "runs after port"
    found = verdict(GRAPH.replace("LINE", "x = -x if x.sum() > 0 else x"), target)
    assert found.answer == "needs a person"
    assert "PW206" in found.reasons[0]


def test_a_mask_that_a_helper_makes_on_a_shared_device_is_no_all_clear() -> None:
    helper = "where = torch.device('cuda' if torch.cuda.is_available() else 'cpu')\ndef mask(n):\n    return torch.ones(n, device=where)\n"
    text = (
        GRAPH.replace("LINE", "x = x * mask(2)")
        .replace("class Net", helper + "class Net")
        .replace("Net()", "Net().to(where)")
    )
    found = verdict(text.replace("torch.randn(4, 2)", "torch.randn(4, 2, device=where)"))
    assert found.answer == "needs a person"
    assert "ported/model.py" in found.reasons[0]
    assert "PW304" in found.reasons[0]


def test_sys_path_leads_to_a_package_beside_an_unmarked_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bare" / "scripts").mkdir(parents=True)
    (tmp_path / "bare" / "nets").mkdir()
    monkeypatch.chdir(tmp_path / "bare" / "scripts")
    (entry,) = checked(
        "import sys\nsys.path.append('..')\nimport nets\nfrom portwright import run\nrun(1)\n"
    ).entries
    assert entry.look.not_followed[0][:2] == ("nets", "sys.path is changed in this file, and leads to it")
    assert entry.verdicts[0].answer == "cannot tell"


def test_the_device_that_a_script_names_decides_where_torch_itself_trains() -> None:
    hard, soft = (
        LOOP.replace("nn.Linear(8, 3)", f"nn.Linear(8, 3){end}")
        for end in (".cuda()", ".to('cuda' if torch.cuda.is_available() else 'cpu')")
    )
    assert verdict(hard, "cpu").reasons == ("it asks for a GPU whether there is one or not (train.py:7)",)
    assert verdict(soft, "cpu").answer == "runs as it is"
    assert verdict(hard, "gpu").answer == "runs as it is"
    assert "trains on the CPU" in verdict(LOOP, "gpu").reasons[0]


IMPORTS = {
    "train.py": "import deep.first\nimport importlib\n\n\ndef late():\n    from lazy import x\n    importlib.import_module('named')\n\n\n" + LOOP,
    "deep/__init__.py": "",
    "deep/first.py": "from . import second\nfrom .second import *\n",
    "deep/second.py": "import torch\nx = torch.zeros(3).cuda()\n",
    "lazy.py": "x = 1\n",
    "named.py": "y = 1\n",
    "unused.py": "import torch\nx = torch.zeros(3).cuda()\n",
}  # fmt: skip


def test_the_files_that_an_entry_imports_are_looked_at() -> None:
    result = checked(IMPORTS)
    (entry,) = result.entries
    assert set(entry.as_dict()["files"]) == set(IMPORTS) - {"unused.py"}
    assert entry.as_dict()["files"][0] == "train.py"
    assert entry.look.not_followed == ()
    assert "deep/second.py" in {f.path for f in result.findings}
    assert "train.py: looked at 6 files: train.py, " in render(result, "text")


@pytest.mark.parametrize(
    ("line", "what", "why"),
    [
        ("import importlib, sys\nimportlib.import_module(sys.argv[1])", "import_module(sys.argv[1])", "only when it runs"),
        ("from .gone import x", ".gone", "no such file"),
        ("import deep.gone", "deep.gone", "no such file"),
        ("import hydra\nhydra.utils.instantiate(hydra.cfg.model)", "instantiate(hydra.cfg.model)", "only when it runs"),
        ("import sys\nsys.path.append('elsewhere')\nimport there", "there", "sys.path is changed"),
        ("import sys\nexec(sys.argv[1])", "exec(sys.argv[1])", "only when it runs"),
        ("exec(open('gone.py').read())", "gone.py", "no such file"),
        ("exec(compile(open('broken.py').read(), 'broken.py', 'exec'))", None, "cannot parse it"),
        ("import broken", None, "cannot parse it"),
        ("import left_out", "left_out.py", "pyproject.toml excludes it"),
    ],
)  # fmt: skip
def test_what_could_not_be_followed_is_told_and_nothing_good_is_said(
    line: str, what: str | None, why: str
) -> None:
    Path("pyproject.toml").write_text('[tool.portwright]\nexclude = ["left_out.py"]\n')
    files = {"elsewhere/there.py": "", "deep/__init__.py": "", "broken.py": "x = = 1\n", "left_out.py": ""}
    result = checked({**files, "train.py": f"{line}\nfrom portwright import run\nrun(1)\n"})
    (entry,) = result.entries
    assert entry.verdicts[0].answer == "cannot tell"
    assert why in entry.verdicts[0].reasons[0]
    assert [each for each, _, _ in entry.look.not_followed] == ([] if what is None else [what])
    assert not result.runs_as_it_is


def test_an_optional_import_that_is_missing_is_no_gap() -> None:
    assert (
        verdict(
            "try:\n    from .gone import x\nexcept ImportError:\n    x = 1\nfrom portwright import run\nrun(x)\n"
        ).answer
        == "runs as it is"
    )


def test_modules_of_a_package_that_are_chosen_by_name_are_looked_at() -> None:
    files = {"nets/__init__.py": "", "nets/a.py": "", "nets/b.py": ""}
    text = "import importlib, sys\nfrom portwright import run\nrun(importlib.import_module(f'nets.{sys.argv[1]}'))\n"
    (entry,) = checked({**files, "train.py": text}).entries
    assert set(entry.as_dict()["files"]) == {*files, "train.py"}
    assert entry.verdicts[0].answer == "runs as it is"


def test_each_script_of_a_folder_that_trains_has_its_own_verdict() -> None:
    files = {
        "nets.py": "from torch import nn\nclass Net(nn.Module): pass\n",
        "plain.py": LOOP,
        "hf.py": "import nets\nfrom transformers import Trainer\nif __name__ == '__main__':\n    Trainer().train()\n",
        "uses_hf.py": "import hf\nprint(hf)\n",
        "test_x.py": "from transformers import Trainer\ndef test(): Trainer().train()\n",
    }
    result = checked(files, entry="plain.py")
    result = api.check([Path()], ["csx"])
    told = {e.as_dict()["path"]: e.verdicts[0].answer for e in result.entries}
    assert told == {"hf.py": "needs a person", "plain.py": "runs after port"}


def test_a_folder_without_a_loop_and_a_module_beside_its_script() -> None:
    Path("nets.py").write_text("from torch import nn\nclass Net(nn.Module): pass\n")
    (entry,) = api.check([Path()], ["csx"]).entries
    assert entry.verdicts[0].answer == "cannot tell"
    Path("train.py").write_text("import nets\nfrom portwright import run\nrun(nets.Net)\n")
    assert [e.look.entry.name for e in api.check([Path("nets.py"), Path("train.py")], ["csx"]).entries] == [
        "train.py"
    ]


def test_a_notebook() -> None:
    cells = [{"cell_type": "code", "source": text, "metadata": {}, "outputs": []} for text in ("%matplotlib inline\nx = 1", LOOP.strip())]  # fmt: skip
    Path("a.ipynb").write_text(
        json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    )
    (entry,) = api.check([Path("a.ipynb")], ["csx"]).entries
    assert str(entry.look.owners[0][1]).endswith("a.ipynb, cell 2: line 8")
    assert entry.verdicts[0].answer == "needs a person"
    assert "Export the notebook as a script" in entry.verdicts[0].reasons[0]


def test_rules_that_were_not_asked() -> None:
    run = "from portwright import run\nrun(1)\n"
    assert "rules for csx were not selected" in verdict(run, select=["PW2"]).reasons[0]
    ignoring = verdict(run, ignore=["PW201"])
    assert ignoring.answer == "runs as it is"
    assert "ignored, as you say: PW201" in ignoring.reasons[0]


def test_a_target_of_which_rules_say_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of another package may be: a rule names it, and most do not."""
    rule = find_rules()["PW201"]
    monkeypatch.setattr(type(rule), "targets", (*rule.targets, "chip"))
    found = verdict("from portwright import run\nrun(1)\n", "chip")
    assert found.answer == "cannot tell"
    assert "Portwright's rules for chip say nothing of data and shapes" in found.reasons[0]


def test_the_same_is_said_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    first = render(checked(IMPORTS, "csx", "ipu"), "json")
    with monkeypatch.context() as patch:
        patch.setattr("portwright.port.entries.look_at", None)
        patch.setattr("portwright.port.ask.ask", None)
        assert render(checked({}, "csx", "ipu"), "json") == first
    Path("lazy.py").write_text("from .gone import x\n")
    assert '"import": ".gone"' in render(api.check([Path("train.py")], ["csx", "ipu"]), "json")


def test_every_format_carries_the_verdict_and_what_was_looked_at() -> None:
    files = {**OWNERS["a Trainer three classes up"][0]}
    files["train.py"] += "import importlib, sys\nimportlib.import_module(sys.argv[1])\n"
    result = checked(files, "csx", "hpu")
    document = json.loads(render(result, "json"))
    (entry,) = document["entries"]
    assert entry["path"] == "train.py"
    assert entry["owners"] == [{"owner": "HuggingFace Trainer", "path": "a.py", "line": 2}]
    assert entry["files"] == ["train.py", "b.py", "a.py"]
    assert entry["not_followed"] == [
        {"import": "import_module(sys.argv[1])", "why": "what it names is known only when it runs", "path": "train.py", "line": 4}
    ]  # fmt: skip
    assert {row["target"]: row["verdict"] for row in entry["verdicts"]} == {
        "csx": "needs a person",
        "hpu": "cannot tell",
    }
    (run,) = json.loads(render(result, "sarif"))["runs"]
    assert run["properties"]["entries"] == document["entries"]
    (invocation,) = run["invocations"]
    assert [
        each["message"]["text"].partition(":")[0] for each in invocation["toolExecutionNotifications"]
    ] == ["csx", "hpu"]
    for text in (render(result, "text"), render(result, "html")):
        for words in (
            "needs a person",
            "cannot tell",
            "HuggingFace Trainer",
            "b.py",
            "import_module(sys.argv[1])",
        ):
            assert words in text
        assert "No findings" not in text


def test_no_findings_is_said_with_the_first_verdict_alone() -> None:
    assert render(checked("from portwright import run\nrun(1)\n"), "text").startswith(
        "No findings.\ntrain.py: looked at"
    )
    assert render(checked("x = 1\n"), "text").startswith(
        "The rules name no line here; the verdict says the rest.\n"
    )


def test_names_that_come_from_names_more_than_once_are_not_followed_without_end() -> None:
    lines = [f"    y{n} = y{n - 1} + y{n - 1}" for n in range(1, 60)]
    function = "\n".join(
        ["import torch", "def f(device):", "    y0 = torch.zeros(2)", *lines, "    return y59.to(device)"]
    )
    assert checked(f"{function}\n{LOOP}").entries


def test_text_does_not_steer_a_terminal() -> None:
    result = checked({"train.py": "import a\x1b\n", "pkg/\x1b[31m.py": LOOP}, entry="pkg/\x1b[31m.py")
    assert "\x1b" not in render(result, "text")
    assert "\\x1b[31m.py: looked at" in render(result, "text")


@pytest.mark.parametrize(
    ("word", "name"),
    [("cerebras", "CSX"), ("CS-2", "CSX"), ("cs3", "CSX"), ("wse", "CSX"), ("graphcore", "IPU"), ("SambaNova", "RDU"), ("habana", "HPU"), ("gaudi", "HPU"), ("cuda", "GPU"), ("csx", "CSX")],
)  # fmt: skip
def test_vendors_names_are_understood(word: str, name: str) -> None:
    target = find_target(word)
    assert target is not None
    assert target.name == name
    (entry,) = checked("x = 1\n", word).entries
    assert entry.verdicts[0].target == name.lower()


def test_an_unknown_target_is_told_the_nearest() -> None:
    for word, nearest in (("cerebra", "csx"), ("cxs", "csx"), ("grafcore", "ipu")):
        with pytest.raises(UserError, match=f"Did you mean '{nearest}'"):
            checked("x = 1\n", word)


def test_no_two_targets_have_a_name_in_common() -> None:
    words = [word for target in find_targets().values() for word in (target.name.lower(), *target.aliases)]
    assert len(words) == len(set(words))


def test_check_loads_no_framework() -> None:
    Path("train.py").write_text(LOOP)
    code = "import sys; from pathlib import Path; from portwright.port.api import check; check([Path('train.py')], ['csx', 'ipu']); print({'torch', 'tensorflow', 'numpy'} & set(sys.modules))"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
