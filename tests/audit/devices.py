"""Draws training scripts with an accelerator in them, and holds what the rules of devices make of them to what they did before.

Each runs as on a machine with CUDA, as on one without, and as ported on a target. The rules are asked together, as in a port:
half of what devices need would be a program that stops.
"""

from __future__ import annotations

import re
import textwrap
from functools import cache
from pathlib import Path

from audit.harness import Count
from audit.machines import difference, run
from audit.programs import Draw

from portwright.discover import find_rules
from portwright.port.check import Selection
from portwright.port.patch import Patch, make_patch
from portwright.port.project import Project
from portwright.port.source import Source

CODES = ("PW102", "PW304", "PW501", "PW502", "PW503", "PW504", "PW506", "PW507", "PW508")
SELECTION = Selection(tuple(r for r in find_rules().values() if r.code in CODES), frozenset(["csx"]))


HEAD = """import argparse
import io
import random
import numpy as np
import torch
import torch as th
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

"""


def program(draw: Draw) -> str:
    """A training script with an accelerator in it: how it asks, what it chooses, and where it makes its tensors."""
    flag, dev = draw.one("use_cuda", "gpu", "cuda", "fast"), draw.one("device", "dev", "where")
    draw.taken |= {flag, dev}
    loader = draw.name()
    asks = draw.one(
        "torch.cuda.is_available()",
        "not args.no_cuda and torch.cuda.is_available()",
        "torch.accelerator.is_available()",
        "torch.cuda.device_count() > 0",
        "bool(torch.cuda.is_available())",
    )
    bind = draw.one(
        f"{flag} = {asks}",
        f"def has_gpu():\n    return {asks}\n{flag} = has_gpu()",
        f"{flag} = True if {asks} else False",
        f"{flag} = False\nif {asks}:\n    {flag} = True",
        f"args.{flag} = {asks}",
    )
    use = f"args.{flag}" if bind.startswith("args.") else draw.one(flag, asks)
    cuda = draw.one('"cuda"', "'cuda:0'")
    choose = draw.one(
        f"{dev} = {cuda} if {use} else 'cpu'",
        f"{dev} = torch.device({cuda} if {use} else 'cpu')",
        f"{dev} = torch.device('cpu' if not {use} else {cuda})",
        f"{dev} = torch.device({cuda}) if {use} else torch.device('cpu')",
        f"if {use}:\n    {dev} = torch.device({cuda})\nelse:\n    {dev} = torch.device('cpu')",
        f"{dev} = torch.accelerator.current_accelerator() if {use} else torch.device('cpu')",
        f"def choose():\n    if {use}:\n        return {cuda}\n    return 'cpu'\n{dev} = choose()",
    )
    kwargs = "{'batch_size': 4}"
    asks_device = draw.one(
        f"str({dev}).startswith('cuda')", f"'cuda' in str({dev})", f"torch.device({dev}).type == 'cuda'"
    )
    if ".type" not in choose and choose.startswith(f"{dev} = torch.device("):
        asks_device = draw.one(asks_device, f"{dev}.type == 'cuda'", f"{dev}.type != 'cpu'")
    tested = draw.one(use, asks_device)
    if draw.chance(0.15):  # a device chosen once, and asked for later
        bind, use = f"{flag} = {asks}", flag
        choose = f"{dev} = torch.device({cuda} if {use} else 'cpu')"
        tested = draw.one(f"{dev}.type == 'cuda'", f"{dev}.type != 'cpu'", f"str({dev}) == {cuda}")
    settings = draw.one(
        f"if {tested}:\n    kwargs.update({{'num_workers': 1, 'pin_memory': True, 'shuffle': True}})",
        f"kwargs['shuffle'] = {tested}",
        f"kwargs = {{'batch_size': 8 if {tested} else 4, 'pin_memory': True}}",
        f"if not {tested}:\n    kwargs['drop_last'] = True\nelse:\n    torch.cuda.manual_seed(1)",
        f"more = {{'num_workers': 2, 'pin_memory': True}} if {tested} else {{}}\nkwargs.update(more)",
        f"if {tested}:\n    torch.set_default_dtype(torch.float64)",
        f"if {tested}:\n    torch.manual_seed(7)",
        f"rate = 0.5 if {tested} else 0.25",
        f"rate = dict(fast=0.5, slow=0.25)['fast' if {tested} else 'slow']",
        f"def settle(on):\n    if on:\n        return 0.5\n    return 0.25\nrate = settle({tested})",
        f"class Config:\n    on = {tested}\nkwargs['shuffle'] = Config.on",
        f"epochs, name = (2, 'gpu') if {tested} else (1, 'cpu')",
        # Devices alone
        f"if {tested}:\n    torch.backends.cudnn.benchmark = True\n    torch.cuda.manual_seed_all(3)",
        f"kwargs['pin_memory'] = {tested}",
        f"if {tested}:\n    kwargs.update({{'pin_memory': True}})\n    print('fast')\nelse:\n    print('slow')",
        f"note = 'gpu' if {tested} else 'cpu'\nprint(note)",
        "torch.cuda.manual_seed(random.randint(0, 9))",
        "torch.backends.cudnn.deterministic = random.random() > 2",
    )
    made = draw.one(
        "torch.arange(3)", "torch.ones(3)", "torch.tensor([1.0, 2.0, 3.0])", "torch.from_numpy(TABLE)"
    )
    cast = draw.one("", ".float()", ".double()") if "ones" not in made else ""
    moved = draw.one("", f".to({dev})", ".to(x.device)", f".to(device={dev})")
    if made.endswith(")") and "from_numpy" not in made and draw.chance(0.3):
        made, moved = f"{made[:-1]}, device={draw.one(dev, 'x.device')})", ""
    mask = f"({made}{cast}{moved})"
    helper = draw.one(
        f"def helper(x):\n    return x.float() * {mask}.float()",
        f"class Mask:\n    def __init__(self, x, {dev}):\n        self.mask = torch.ones(3).to({dev})\n"
        f"def helper(x):\n    return x * Mask(x, x.device).mask",
        f"class Mask:\n    def __init__(self, x, where='cpu'):\n        self.mask = torch.ones(3).to(where)\n"
        f"def helper(x):\n    return x * Mask(x, where={dev}).mask",
        "def helper(x):\n    noise = torch.zeros(3)\n    noise.normal_()\n    return x + noise.to(x.device)",
        "def helper(x):\n    scale = sum(torch.linspace(0, 1, 3).tolist())\n    return x * scale",
        f"def helper(x):\n    if {use}:\n        x = x.cuda()\n    return x",
        f"def helper(x):\n    rows = x.detach().to({dev})\n    rows += 1\n    return x + rows",
        f"def move(v, {dev}):\n    return v.to({dev})\ndef helper(x):\n    return x * move(torch.ones(3), x.device)",
    )
    switch = draw.one(
        "",
        "",
        "torch.backends.cudnn.benchmark = True",
        "torch.backends.cuda.matmul.allow_tf32 = True",
        f"if {use}: torch.backends.cudnn.deterministic = True",
        "torch.backends.cudnn.benchmark, rate = True, rate",
        "print(torch.backends.cudnn.benchmark)\ntorch.backends.cudnn.benchmark = False",
    )
    load = draw.one("", "weights_only=True", "mmap=False")
    kept = draw.one(
        "",
        "",
        f"torch.save(net.state_dict(), buffer)\nbuffer.seek(0)\nnet.load_state_dict(torch.load(buffer{', ' * bool(load)}{load}))",
        "torch.save({'net': net.state_dict()}, buffer)\nbuffer.seek(0)\n"
        "state = torch.load(buffer)\nleft.append([list(state['net']), state['net']['layer.bias'].sum()])",
    )
    move_model = draw.one(f"net = Net().to({dev})", f"net = Net()\nnet.to({dev})", f"net = Net()\nif {use}:\n    net.cuda()\nnet = net.to({dev})")  # fmt: skip
    move_batch = draw.one(
        f"x, y = x.to({dev}), y.to({dev})",
        f"x = x.to({dev}, non_blocking=True)\n    y = y.to({dev})",
        f"x = x.to({dev})\n    y = y.to({dev}, torch.float32)",
        f"if {use}:\n        x, y = x.cuda(), y.cuda()",
    )
    extra = draw.one(
        "",
        f"weights = torch.ones(3).to({dev})\n    x = x * weights",
        f"z = torch.rand(x.shape[0], 3).to({dev})\n    x = x + z",
        f"table = TENSOR.to({dev})\n    table.add_(1)\n    x = x + table",
        f"y = y + torch.zeros(1, device={dev})",
        f"noise = torch.zeros(x.shape[0], 3, device={cuda} if {use} else 'cpu')\n    x = x.unsqueeze(0).squeeze(0) + noise",
        "rows = x.pin_memory()\n    rows += 1\n    x = x + rows",
    )
    body = f"""args = argparse.Namespace(no_cuda={draw.one(True, False, False)})
TABLE = np.arange(3.0)
TENSOR = torch.ones(3)
buffer = io.BytesIO()
epochs, rate = 1, 0.1
kwargs = {kwargs}
{bind}
{choose}
{settings}
{switch}
{helper}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(helper(x).to(self.layer.weight.dtype))


{move_model}
optimizer = torch.optim.SGD(net.parameters(), lr=rate)
{loader} = DataLoader(TensorDataset(torch.randn(10, 3), torch.randn(10, 3)), **kwargs)
for epoch in range(epochs):
  for x, y in {loader}:
    {move_batch}
    {extra}
    loss = ((net(x) - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
left = [random.random(), TENSOR]
{kept}
"""
    return HEAD + _placed(draw, body)


def _placed(draw: Draw, body: str) -> str:
    """The script at the top of its file, in a function or in a method, with torch and the batch by other names."""
    for name, others in (("x", ("x", "inputs", "data")), ("y", ("y", "target"))):
        body = re.sub(rf"\b{name}\b", draw.one(*others), body)
    if draw.chance(0.25):
        body = re.sub(r"\btorch\.", "th.", body)
    inner = f"global net, left\n{body}"
    return draw.one(
        body,
        body,
        f"def main():\n{textwrap.indent(inner, '    ')}\nmain()\n",
        f"class Trainer:\n    def fit(self):\n{textwrap.indent(inner, '        ')}\n\nTrainer().fit()\n",
        f"def main():\n{textwrap.indent(inner, '    ')}\n\nif __name__ == 'program':\n    main()\n",
    )


def ported(text: str) -> Patch:
    here = Path("/nowhere")
    return make_patch(Source(here / "x.py", text.encode()), Project(here), SELECTION, ("safe",))


@cache
def audit_devices(num_programs: int, seed: int = 0) -> dict[str, Count]:
    """Counts of each rule, and under "all" those of all together; a fault is that of every rule that rewrote the program."""
    counts = {code: Count() for code in (*CODES, "all", "on the target")}
    for number in range(num_programs):
        text = program(Draw(f"devices {seed} {number}"))
        patch = ported(text)
        rewrote = {f.code for f in patch.fixed}
        pairs = [(run(text, machine), run(patch.after.text, machine), machine) for machine in ("cuda", "cpu")]
        pairs = [pair for pair in pairs if not pair[0]["raised"]]
        wrong = [f"on {machine}: {w}" for one, other, machine in pairs if (w := difference(one, other))]
        if pairs and not any(f.code in ("PW304", "PW502", "PW503", "PW504") for f in patch.left):
            counts["on the target"].ran += 1
            raised = run(patch.after.text, "xla")["raised"]
            wrong += [f"on the target: {raised}"] * bool(raised)
        for code, count in counts.items():
            count.drawn += 1
            count.rewritten += code in rewrote or (code == "all" and patch.is_change)
            count.ran += bool(pairs) and (code in rewrote or (code == "all" and patch.is_change))
            if wrong and (code in rewrote or code == "all"):
                count.faults.append(f"==== {number}: {wrong[0]}\n{text}\n----\n{patch.after.text}")
    return counts
