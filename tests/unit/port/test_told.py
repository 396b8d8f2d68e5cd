"""Sentences that were false of programs which nobody here wrote, each tried again on a program of our own."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from portwright.cli import app
from portwright.port.api import check, port
from portwright.port.report_formats import render

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

rows = TensorDataset(torch.ones({rows}, 6), torch.zeros({rows}, 1))
loader = DataLoader(rows, batch_size=8, drop_last=True)
net = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 1))
opt = torch.optim.Adam(net.parameters(), lr=0.01)
"""
LOOP = """
for x, y in loader:
    loss = (net(x) - y).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
HF = "from transformers import Trainer, TrainingArguments\nt = Trainer(model=None, args=TrainingArguments('o', fp16=True))\nt.train()\n"
FABRIC = """
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

fabric = L.Fabric()
net = nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
loader = fabric.setup_dataloaders(DataLoader(TensorDataset(torch.ones(40, 4)), batch_size=8, drop_last=True))
net = fabric.setup_module(net)
opt = fabric.setup_optimizers(opt)
for (x,) in loader:
    opt.zero_grad()
    loss = net(x).mean()
    fabric.backward(loss)
    opt.step()
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def script(text: str) -> Path:
    Path("train.py").write_text(text)
    return Path("train.py")


def told(text: str, *words: str) -> tuple[int, str]:
    """Status and text of `portwright port train.py --target csx`."""
    done = CliRunner().invoke(app, ["port", str(script(text)), "--target", "csx", *words])
    return done.exit_code, done.stderr


@pytest.mark.parametrize("text", [HF, FABRIC], ids=["Trainer", "Fabric"])
def test_a_port_does_not_count_as_done_what_no_style_takes_over(text: str) -> None:
    """Section 1: "No findings.", status 0, where nothing of it can run; in place it was "0 of 0 findings fixed (100 %)"."""
    for words in ([], ["--style", "layout", "--out", "out"]):
        status, said = told(text, *words)
        assert status == 1
        assert "owns the training loop (train.py:" in said
        assert "no style of `portwright port` takes it over" in said
        assert "%" not in said
        assert "minutes" not in said
    assert not Path("out").exists()


def test_of_no_finding_no_share_is_said() -> None:
    _, said = told("import torch\nx = torch.ones(3)\n")
    assert "0 of 0 findings fixed automatically.\nWhether it runs there is another question" in said


def test_a_loop_that_nothing_calls_is_not_said_to_be_missing() -> None:
    text = HEAD.format(rows=64) + "def fit():\n" + LOOP.replace("\n", "\n    ")
    (entry,) = check([script(text)], ["csx"]).entries
    (verdict,) = entry.verdicts
    line = text[: text.index("loss.backward()")].count("\n") + 1
    assert (
        verdict.reasons[0]
        == f"running train.py does not lead to the training loop (train.py:{line}): pass the script that calls it"
    )
    assert verdict.minutes is None


def test_a_loop_of_its_own_that_adds_up_gradients_is_refused_as_that() -> None:
    """It was laid out with an update after each batch and without its clipping."""
    inner = LOOP.replace("    opt.zero_grad()\n", "").replace("    opt.step()\n", "").replace("\n", "\n    ")
    text = f"for i in range(3):{inner}\n    nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n    opt.step()\n    opt.zero_grad()\n"
    done = port([script(HEAD.format(rows=64) + text)], ["csx"], style="layout", out=Path("out"))
    (finding,) = done.left
    assert "the update is made outside of the loop that calls backward()" in finding.message
    assert not Path("out").exists()


def test_a_name_that_is_also_a_module_is_not_said_to_be_no_optimizer() -> None:
    """`import torch.optim as optim`, and then `optim = torch.optim.Adam(...)`."""
    text = "import torch.optim as optim\n" + (HEAD.format(rows=64) + LOOP).replace(
        "opt = ", "optim = "
    ).replace("opt.", "optim.")
    done = port(
        [script(text.replace("torch.optimim", "torch.optim"))], ["csx"], style="layout", out=Path("out")
    )
    (finding,) = done.left
    assert finding.message.endswith(
        "what is stepped here cannot be told to be an optimizer of torch.optim: optim"
    )


GROUPS = [  # rows, epochs, what enumerate() starts at, when the script updates, whether run() does the same
    (64, 2, "", "(i + 1) % 4 == 0", True),
    (64, 2, ", 1", "not i % 4", True),
    (64, 2, "", "i % 4 == 3", True),
    (64, 2, "", "(i + 1) % 4 == 0 or i + 1 == len(loader)", True),
    (72, 1, "", "(i + 1) % 4 == 0", True),
    (72, 2, "", "(i + 1) % 4 == 0", False),  # an epoch's ninth batch goes with the next epoch's first four
    (72, 2, "", "(i + 1) % 4 == 0 or i + 1 == len(loader)", False),
    (64, 2, "", "i % 4 == 0", False),
    (64, 2, "", "(i + 1) % 4 == 0 and i > 4", False),
    (64, 2, "", "(i + 1) % 4 == 0 or i == 1", False),
]


@pytest.mark.parametrize(("rows", "epochs", "start", "test", "is_same"), GROUPS)
def test_updates_that_run_makes_at_other_batches_are_told(
    rows: int, epochs: int, start: str, test: str, is_same: bool
) -> None:
    loop = LOOP.replace("for x, y in loader", f"for i, (x, y) in enumerate(loader{start})").replace(
        ".mean()", ".mean() / 4"
    )
    loop = loop.replace("    opt.zero_grad()\n", "").replace(
        "    opt.step()", f"    if {test}:\n        opt.step()\n        opt.zero_grad()"
    )
    text = HEAD.format(rows=rows) + f"for epoch in range({epochs}):" + loop.replace("\n", "\n    ")
    done = port([script(text)], ["csx"], style="layout", out=Path("out"))
    assert "grad_accum_steps: 4" in Path("out/configs/params.yaml").read_text()
    found = [f.message for f in done.left if f.code == "PW703"]
    assert found == (
        []
        if is_same
        else [
            f"run() makes an update after each 4 batches of the training, and the script may make others: {test}"
        ]
    )


def test_a_rewrite_that_needs_an_import_is_reported_in_every_format() -> None:
    text = (
        HEAD.format(rows=64)
        + "criterion = nn.SmoothL1Loss()\n"
        + LOOP.replace("(net(x) - y).square().mean()", "criterion(net(x), y)")
    )
    result = check([script(text)], ["csx"])
    assert "PW328" in {f.code for f in result.findings}
    for form in ("text", "json", "html"):
        assert "nn.SmoothL1Loss: this loss is not lowered there" in render(result, form)
    fixes = [
        fix
        for each in json.loads(render(result, "sarif"))["runs"][0]["results"]
        for fix in each.get("fixes", [])
    ]
    assert "legal.SmoothL1Loss" in json.dumps(fixes)
    assert "import legal" in json.dumps(fixes)


def test_a_branch_of_a_script_that_imports_in_its_functions() -> None:
    body = (HEAD.format(rows=64) + LOOP).strip().replace("\n", "\n    ")
    done = port([script(f"def main():\n    {body}\n\n\nmain()\n")], ["ipu"], style="branches", write=True)
    assert [f.message for f in done.left] == []
    compile(Path("train.py").read_text(), "train.py", "exec")
    assert Path("train.py").read_text().index("poptorch") < Path("train.py").read_text().index("def main")


WHAT_IS_LEFT_OUT = """
import wandb
import matplotlib.pyplot as plt
{head}
held_out = DataLoader(rows, batch_size=4, drop_last=True)
on_cuda = torch.cuda.is_available()
s = torch.amp.GradScaler(device="cuda", enabled=on_cuda)
best, curve, last = 9.0, [], 0
wandb.init(project="x")
for epoch in range(2):
{loop}
    curve.append(loss.item())
    with torch.no_grad():
        print(net(torch.ones(3, 6)))
    print("held out", sum(net(x).sum() for x, _ in held_out))
    last = epoch
    if loss < best:
        best = loss
    elif epoch - last > 3:
        break
plt.plot(curve)
"""


def test_what_a_layout_leaves_out_has_its_own_words_and_its_own_reason() -> None:
    """Section 1: `wandb.init/log` are gone; only `--json` says so."""
    text = WHAT_IS_LEFT_OUT.format(head=HEAD.format(rows=64), loop=LOOP.replace("\n", "\n    "))
    status, said = told(text, "--style", "layout", "--out", "out", "--no-try")
    assert status == 1
    reasons = {
        line.strip().partition(": train.py")[0]: line for line in said.splitlines() if ": train.py:" in line
    }
    logs = next(line for reason, line in reasons.items() if reason.startswith("run() logs"))
    for words in ('wandb.init(project="x")', "plt.plot(curve)"):
        assert words in logs
    assert "net(" not in logs  # an evaluation is no log
    named = reasons["nothing: a finding names it, or what depends on it"]
    assert "with torch.no_grad():" in named
    assert "best, curve, last = 9.0, [], 0" in named  # what stops the training reads them
    assert "run() evaluates: --mode eval" in said
    assert (
        's = torch.amp.GradScaler(device="cuda", enabled=on_cuda)' in said
    )  # as the script has it, and not as a rule rewrote it
    assert "training ends early by a condition, which run() does not look at: if loss < best:" in said


def test_a_module_that_only_the_old_loop_imports_does_not_come_along() -> None:
    Path("parts").mkdir()
    Path("parts/__init__.py").write_text("")
    Path("parts/net.py").write_text(
        "from torch import nn\nfrom .size import WIDTH\n\n\ndef make():\n    return nn.Linear(WIDTH, 1)\n"
    )
    Path("parts/size.py").write_text("WIDTH = 6\n")
    Path("parts/fit.py").write_text(
        "def fit(net, loader, opt):\n    for x, y in loader:\n        loss = (net(x) - y).square().mean()\n        opt.zero_grad()\n        loss.backward()\n        opt.step()\n"
    )
    head = HEAD.format(rows=64).replace(
        "nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 1))", "make()"
    )
    done = port(
        [script(f"from parts.fit import fit\nfrom parts.net import make\n{head}fit(net, loader, opt)\n")],
        ["csx"],
        style="layout",
        out=Path("out"),
        try_out=True,
    )
    assert done.left == []
    assert done.tried is not None
    assert done.tried.outcome == "ran"
    assert sorted(p.name for p in Path("out/parts").iterdir()) == ["__init__.py", "net.py", "size.py"]


def epochs(*lines: str, step: str = LOOP, before: str = "", after: str = "") -> str:
    """A loop over two epochs: lines at the head of each, the step, and what stands before and after."""
    head = "".join(f"    {line}\n" for line in lines)
    return (
        f"{before}\nfor epoch in range(2):\n{head}"
        + step.strip("\n").replace("\n", "\n    ").replace("for x", "    for x", 1)
        + f"\n{after}"
    )


MODES = "and run() trains all of the model in train mode"
ONCE = "and run() makes model and data once"
CLEARED = "the gradients are not cleared before each backward()"
OTHERWISE = {  # what a script's loop does, and the words that tell of it; nothing else is left
    "train and eval in their places": (epochs("net.train()", after="    net.eval()"), ""),
    "a mode that is given back": (epochs(after="    was = net.training\n    net.eval()\n    net.train(was)"), ""),
    "a mode that is given back in its branch": (epochs(after="    if epoch:\n        net.eval()\n        net.train()"), ""),
    "a mode that is given back in another branch": (epochs(after="    if epoch:\n        net.eval()\n    else:\n        net.train()"), f"after net.eval(), {MODES}"),
    "another network in eval mode": (epochs("other.eval()", before="import copy\nother = copy.deepcopy(net)"), ""),
    "eval mode and never back": (epochs(after="    net.eval()"), f"after net.eval(), {MODES}"),
    "eval mode from the start": (epochs(before="net.eval()"), f"after net.eval(), {MODES}"),
    "eval mode in a function": (epochs(before="def score(m):\n    m.eval()\n", after="    score(net)"), f"after m.eval(), {MODES}"),
    "a part in eval mode from the second epoch on": (epochs("net.train()", "if epoch:", "    net[1].eval()"), f"after net[1].eval(), {MODES}"),
    "a kind of layers in eval mode": (epochs("for m in net.modules():", "    m.eval()"), f"after m.eval(), {MODES}"),
    "clearing a model's gradients": (epochs(step=LOOP.replace("opt.zero_grad", "net.zero_grad")), ""),
    "clearing by hand": (epochs(step=LOOP.replace("opt.zero_grad()", "for p in net.parameters(): p.grad = None")), "no place for this: for p in net.parameters()"),
    "clearing in a function": (epochs(step=LOOP.replace("opt.zero_grad()", "clear()"), before="def clear():\n    opt.zero_grad()\n"), ""),
    "no clearing": (epochs(step=LOOP.replace("    opt.zero_grad()\n", "")), CLEARED),
    "clearing in each epoch": (epochs("opt.zero_grad()", step=LOOP.replace("    opt.zero_grad()\n", "")), CLEARED),
    "clearing now and then": (epochs(step=LOOP.replace("opt.zero_grad()", "if x.sum() > 0: opt.zero_grad()")), CLEARED),
    "clipping by a setting": (epochs(step=LOOP.replace("    opt.step", "    if LIMIT: nn.utils.clip_grad_norm_(net.parameters(), LIMIT)\n    opt.step"), before="LIMIT = 1.0"), ""),
    "clipping from the second epoch on": (epochs(step=LOOP.replace("    opt.step", "    if epoch: nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n    opt.step")), "which a condition decides on"),
    "clipping of a part": (epochs(step=LOOP.replace("    opt.step", "    nn.utils.clip_grad_norm_(net[0].parameters(), 1.0)\n    opt.step")), "params.yaml cannot say nn.utils.clip_grad_norm_(net[0]"),
    "an update under a condition": (epochs(step=LOOP.replace("loss.backward()\n    opt.step()", "if loss < 9:\n        loss.backward()\n        opt.step()")), "no place for this: if loss < 9:"),
    "errors that are passed over": ("for epoch in range(2):\n    for x, y in loader:\n        try:\n            loss = (net(x) - y).square().mean()\n            opt.zero_grad()\n            loss.backward()\n            opt.step()\n        except RuntimeError:\n            continue\n", "no place for this: try:"),
    "weights that come back": (epochs(before="state = net.state_dict()", after="    if loss > 9:\n        net.load_state_dict(state)"), "no place for this: if loss > 9:"),
    "weights that an earlier run left": (epochs(before="import os\nif os.path.exists('w.pt'):\n    net.load_state_dict(torch.load('w.pt'))"), "what is loaded here is not loaded by run()"),
    "an option to resume that is off": (epochs(before="RESUME = ''\nif RESUME:\n    net.load_state_dict(torch.load(RESUME))"), ""),
    "a gradient that backward() is given": (epochs(step=LOOP.replace("backward()", "backward(torch.tensor(0.5))")), "backward() is given a gradient of its own"),
    "another network in the loss": (epochs(before="guide = nn.Linear(6, 1)", step=LOOP.replace("- y", "- guide(x).detach()")), "guide has weights outside of the model"),
    "another network in the loss, frozen": (epochs(before="guide = nn.Linear(6, 1).requires_grad_(False)", step=LOOP.replace("- y", "- guide(x)")), ""),
    "a layer frozen in the second epoch": (epochs("if epoch == 1:", "    net[0].weight.requires_grad = False"), f"this depends on 'epoch', which counts epochs, {ONCE}"),
    "data that grow": (epochs("part = DataLoader(torch.utils.data.Subset(rows, range(16 + 8 * epoch)), 8, drop_last=True)", step=LOOP.replace("in loader", "in part")), f"this depends on 'epoch', which counts epochs, {ONCE}"),
    "data that change": (epochs("rows.tensors[0].mul_(0.5)"), "no place for this: rows.tensors[0].mul_(0.5)"),
    "data of the loader that change": (epochs("loader.dataset.tensors[0].mul_(0.5)"), f"this is done anew in each epoch, {ONCE}"),
    "an optimizer for each epoch": (epochs("opt = torch.optim.Adam(net.parameters(), lr=0.1)"), "the optimizer is made in several places"),
    "two optimizers of one name": (epochs(before="opt = torch.optim.SGD(net.parameters(), lr=0.5)"), "the optimizer is made in several places"),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERWISE)
def test_what_a_loop_does_otherwise_than_run_is_told(case: str) -> None:
    """Section 1: "100 % fixed, 0 left". No statement of these loops may vanish with its effect."""
    loop, words = OTHERWISE[case]
    done = port([script(HEAD.format(rows=64) + loop)], ["csx"], style="layout", out=Path("out"))
    told = [f.message for f in done.left]
    assert len(told) == bool(words), told
    assert all(words in message for message in told), told


def test_evaluation_data_drawn_at_random_are_not_the_training_data_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Section 1: "the port evaluates on the training data". Drawn alone from the script's seed, they would begin with its numbers."""
    import torch

    head = (
        HEAD.format(rows=64)
        .replace("torch.ones(64, 6)", "torch.randn(64, 6)")
        .replace("rows = ", "torch.manual_seed(5)\nrows = ")
    )
    text = head + "held_out = DataLoader(TensorDataset(torch.randn(32, 6)), batch_size=8, drop_last=True)\n"
    port(
        [script(text + LOOP + "print(sum(net(x[0]).sum() for x in held_out))\n")],
        ["csx"],
        style="layout",
        out=Path("out"),
    )
    space: dict[str, Any] = {}
    exec(Path("out/data.py").read_text(), space)
    params = {"train_input": {}, "eval_input": {}}
    torch.manual_seed(5)
    train, held_out = torch.randn(64, 6), torch.randn(32, 6)
    assert torch.equal(space["get_train_dataloader"](params).dataset.tensors[0], train)
    assert torch.equal(space["get_eval_dataloader"](params).dataset.tensors[0], held_out)


# -- the programs of the field test, in words of our own -------------------------------------------------------------------

LOSS = "        loss = nn.functional.mse_loss(net(a), b)\n"
OWNED = {  # who owns the loop, and the line that says so
    "Accelerate": (
        "import torch\nfrom accelerate import Accelerator\nfrom torch import nn\nnet = nn.Linear(5, 1)\n"
        "opt = torch.optim.AdamW([{'params': net.weight, 'weight_decay': 0.1}, {'params': net.bias}])\n"
        "rates = torch.optim.lr_scheduler.LambdaLR(opt, lambda n: 0.9**n)\nacc = Accelerator(gradient_accumulation_steps=2)\n"
        "net, opt, rates, data = acc.prepare(net, opt, rates, [])\nfor a, b in data:\n    with acc.accumulate(net):\n"
        f"{LOSS}        acc.backward(loss)\n        opt.step()\n        rates.step()\n        opt.zero_grad()\n", 7,
    ),
    "Lightning Fabric": (
        "import torch\nfrom lightning.fabric import Fabric\nfrom torch import nn\n\n\nclass Fit:\n    def __init__(self, fabric):\n"
        "        self.fabric = fabric\n        self.net = nn.Linear(5, 1)\n        opt = torch.optim.Adam(self.net.parameters())\n"
        "        self.net, self.opt = fabric.setup(self.net, opt)\n\n    def run(self, data):\n        for i, (a, b) in enumerate(data):\n"
        "            with self.fabric.no_backward_sync(self.net, enabled=i % 3 > 0):\n"
        "                self.fabric.backward(nn.functional.mse_loss(self.net(a), b))\n            self.opt.step()\n\n\n"
        "Fit(Fabric(accelerator='cpu')).run([])\n", 20,
    ),
    "HuggingFace Trainer": (
        "import transformers\n\n\nclass Own(transformers.Trainer):\n    def compute_loss(self, model, inputs, return_outputs=False, **more):\n"
        "        loss, out = super().compute_loss(model, inputs, return_outputs=True, **more)\n        loss = loss + out.logits.square().mean()\n"
        "        return (loss, out) if return_outputs else loss\n\n\nOwn(model=None, args=None, train_dataset=[]).train()\n", 4,
    ),
    "Lightning's Trainer": (
        "import lightning as L\nimport torch\nfrom torch import nn\n\n\nclass Pair(L.LightningModule):\n    def __init__(self):\n        super().__init__()\n"
        "        self.automatic_optimization = False\n        self.one, self.two = nn.Linear(4, 8), nn.Linear(8, 1)\n\n    def training_step(self, batch, i):\n"
        "        first, second = self.optimizers()\n        loss = self.two(self.one(batch)).mean()\n        first.zero_grad()\n        self.manual_backward(loss)\n"
        "        first.step()\n        second.step()\n\n    def configure_optimizers(self):\n"
        "        return [torch.optim.Adam(self.one.parameters()), torch.optim.Adam(self.two.parameters())]\n\n\nL.Trainer(max_epochs=1).fit(Pair(), [])\n", 24,
    ),
}  # fmt: skip


@pytest.mark.parametrize("owner", OWNED)
def test_who_owns_the_loop_is_said_by_check_and_by_each_style_of_port(owner: str) -> None:
    """Section 1: `check` says "No findings." of what `port` refuses. repros/doors, accel, hf_trainer, light."""
    text, line = OWNED[owner]
    result = check([script(text)], ["csx", "ipu"])
    (entry,) = result.entries
    words = (
        f"{owner} owns the training loop (train.py:{line}), and no style of `portwright port` takes it over"
    )
    for verdict in entry.verdicts:
        assert (verdict.answer, verdict.reasons[0], verdict.minutes) == ("needs a person", words, None)
    assert not any(
        "updates: " in f.message for f in result.findings if owner == "Accelerate"
    )  # a schedule makes no update
    (refused,) = port([script(text)], ["csx"], style="layout", out=Path("out")).left
    assert refused.message == f"no layout: {words}"
    assert words in [f.message for f in port([script(text)], ["csx"]).left]
    assert not Path("out").exists()


SETTINGS_BEHIND_CUDA = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

on_gpu = torch.accelerator.is_available()
where = torch.accelerator.current_accelerator() if on_gpu else torch.device("cpu")
options = {"batch_size": 4, "drop_last": True}
if on_gpu:
    options.update({"shuffle": True, "num_workers": 2, "pin_memory": True})
loader = DataLoader(TensorDataset(torch.ones(32, 6), torch.zeros(32, 1)), **options)
net = nn.Linear(6, 1).to(where)
opt = torch.optim.Adam(net.parameters())
for x, y in loader:
    x, y = x.to(where), y.to(where)
    opt.zero_grad()
    nn.functional.mse_loss(net(x), y).backward()
    opt.step()
"""


@pytest.mark.parametrize("style", ["in-place", "layout"])
def test_what_stands_behind_a_question_for_cuda_stays_in_force(style: str) -> None:
    """Section 1: PW501 (safe) turns the question into False, so that "the port never shuffles". repros/shuffle_behind_cuda."""
    path = script(SETTINGS_BEHIND_CUDA)
    done = port(
        [path], ["csx"], style=style, **({"write": True} if style == "in-place" else {"out": Path("out")})
    )
    text = (path if style == "in-place" else Path("out/data.py")).read_text()
    assert "torch.accelerator.is_available()" in text
    assert '"shuffle": True, "num_workers": 2' in text
    assert [f.safety for f in done.left if f.code == "PW501"] == ["unsafe"]


def test_a_tensor_that_a_helper_makes_keeps_its_device() -> None:
    """Section 1: PW504 (safe) removes `.to(device)` from a mask made in a helper. repros/mask_helper."""
    text = """
import torch
from torch import nn


class Hidden:
    def __init__(self, size, where="cpu"):
        self.cells = torch.ones(size, size, dtype=torch.bool).to(where)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, x):
        return self.mix(x).masked_fill(Hidden(x.shape[-1], where=x.device).cells, 0.0)


where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = Net().to(where)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    opt.zero_grad()
    net(torch.ones(8, 8, device=where)).sum().backward()
    opt.step()
"""
    port([script(text)], ["csx"], write=True)
    assert ".to(where)\n\n\nclass Net" in Path("train.py").read_text()


def test_a_path_in_an_f_string_stays_python() -> None:
    """Section 2, repros/fs2: `f"{args.root}/train.pt"` became invalid Python on 3.10 and 3.11."""
    import torch

    torch.save((torch.ones(32, 6), torch.zeros(32, 1)), "made.pt")
    made = "rows = TensorDataset(torch.ones(64, 6), torch.zeros(64, 1))"
    read = "p = argparse.ArgumentParser()\np.add_argument('--where', default='.')\nargs = p.parse_args()\nrows = TensorDataset(*torch.load(f\"{args.where}/made.pt\"))"
    head = "import argparse\n" + HEAD.format(rows=64).replace(made, read)
    done = port([script(head + LOOP)], ["csx"], style="layout", out=Path("out"), try_out=True)
    assert done.left == []
    assert done.tried is not None
    assert done.tried.outcome == "ran", done.tried
    (text,) = [
        n for n in ast.walk(ast.parse(Path("out/data.py").read_text())) if isinstance(n, ast.JoinedStr)
    ]
    assert (
        '"' not in Path("out/data.py").read_text().partition('f"')[2].partition("/made.pt")[0]
    )  # Python before 3.12 takes no quote of its own kind
    assert "params" in ast.unparse(text)


def test_a_value_that_hydra_gives_is_told_and_the_rest_runs() -> None:
    """Section 1, repros/hydra_s: `wandb` is gone without a word; the rate of a configuration is known only when it runs."""
    text = (
        "import hydra\nimport torch\nimport wandb\nfrom torch import nn\n\n\n@hydra.main(config_path='conf', config_name='c', version_base=None)\n"
        "def main(cfg):\n    wandb.init(project='x', config=dict(cfg))\n    net = nn.Linear(6, 1)\n    opt = torch.optim.Adam(net.parameters(), lr=cfg.rate)\n"
        "    x = torch.ones(40, 6)\n    for i in range(9):\n        loss = net(x).square().mean()\n        opt.zero_grad()\n        loss.backward()\n"
        "        opt.step()\n        wandb.log({'loss': loss.item()})\n\n\nmain()\n"
    )
    status, said = told(text, "--style", "layout", "--out", "out", "--no-try")
    assert status == 1
    assert "PW703 the optimizer's lr is known only when the script runs: cfg.rate" in said
    assert (
        "train.py:9 wandb.init(project='x', config=dict(cfg)), train.py:18 wandb.log({'loss': loss.item()})"
        in said
    )


def test_the_model_under_two_names_and_an_optimizer_of_its_own_are_refused_for_what_they_are() -> None:
    """Section 2, repros/wrap and doors/plain_class: no refusal says that there is no loop or no optimizer where there is one."""
    own = (
        HEAD.format(rows=64).replace(
            "opt = torch.optim.Adam(net.parameters(), lr=0.01)",
            "many = False\nraw = net.module if many else net\nopt = raw.make_optimizer()",
        )
        + LOOP
    )
    (refused,) = port([script(own)], ["csx"], style="layout", out=Path("out")).left
    assert (
        refused.message
        == "no layout: what is stepped here cannot be told to be an optimizer of torch.optim: opt"
    )
    in_class = (
        HEAD.format(rows=64)
        + "class Fit:\n    def __init__(self):\n        for x, y in loader:\n            (net(x) - y).square().mean().backward()\n            opt.step()\n\n\nFit()\n"
    )
    (refused,) = port([script(in_class)], ["csx"], style="layout", out=Path("out")).left
    assert (
        refused.message == "no layout: the way from the script's start to this backward() is not understood"
    )
