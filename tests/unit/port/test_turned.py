"""Random models and loops that take the sequence first: turned by PW314, they give what they gave."""

from __future__ import annotations

import random
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from portwright.discover import find_rules
from portwright.port.check import Selection
from portwright.port.patch import make_patch
from portwright.port.project import Project
from portwright.port.source import Source

HEAD = """
import math
import torch
import torch.nn.functional as F
from torch import nn


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("pe", torch.linspace(-1, 1, 160).reshape(20, 8).unsqueeze(1))

    def forward(self, x):
        x = x + self.pe[: x.size(0), :]
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.positions = Positions()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0)
        self.attn = nn.MultiheadAttention(8, 2)
        self.scale = math.sqrt(8)
        self.register_buffer("table", torch.zeros(20, 1, 8) + 0.5)
"""
IN_FORWARD = """
x = self.linear(x)
x = self.positions(x)
x = self.layer(x)
x = self.norm(x) * self.scale
x = F.relu(x) - 0.5 * x
x = x + self.table[: x.size(0)]
x += self.table[: len(x)]
y = x.mean(0); x = x + y
x = x + x[-1]
x = x[1:]
x = x - x[:1]
x = x.transpose(0, 1).flip(1).transpose(0, 1)
x = torch.cat([x, x[:1]], dim=0)
x = x.permute(1, 0, 2); x = self.norm(x); x = x.permute(1, 0, 2)
n = x.size(1); x = x / n
s, b, e = x.shape; x = x.reshape(s, b, e) / s
x = x * x.shape[0] / x.shape[-1]
x = x @ self.linear.weight.t()
x = torch.softmax(x, dim=-1)
x = F.softmax(x, dim=0)
x = x.view(x.size(0), x.size(1), -1)
x, w = self.attn(x, x, x)
x = x + self.attn(x, x, x, need_weights=False)[0]
x = self.attn(query=x, key=x, value=x)[0]
x = x + self.attn(self.norm(x), x, x)[1].mean()
x = x.unsqueeze(-1).squeeze(-1)
x = (x > 0).float() * x
x = x.masked_fill(x < 0, 0.0)
x = x + x.sum(dim=1, keepdim=True)
x = x.clone(); x[0] = 0
x = x + x.size(-2)
x = x.sum(-1, keepdim=True) + x
x = torch.stack([v * 2 for v in x])
x = x.relu_() + x
x = x.tanh().neg().contiguous()
x = torch.add(x, x.mean(dim=(0, 1)))
x = x + x.eq(x.roll(1, 0)).float()
x = -x if x.size(0) > 2 else x
x = x.reshape(-1, 8).reshape(x.shape)
x = x.flatten(0, 1).view(x.size(0), x.size(1), 8)
x = x[:, :2]
x = x[1:, 1:] if x.size(1) > 1 and x.size(0) > 1 else x
x = x.t() if x.dim() == 2 else x
for i in range(2): x = self.layer(x) + i
if x.size(0) > 3: x = self.layer(x)
z = x.transpose(0, 1); x = x + z.transpose(0, 1)
""".strip().splitlines()
RETURNS = """
return x
return x[-1]
return x.mean(0)
return x.mean(dim=1)
return self.linear(x)
return x, x.size(0)
return x.transpose(0, 1)
return x.max(dim=0)[0]
""".strip().splitlines()
AFTER = """
results.append(out.sum())
results.append(out)
results.append(out[0])
results.append(out[-1, 0])
results.append(out[:, 0])
results.append(out.argmax(-1))
results.append(out.argmax(dim=1))
results.append(out.size(0)); results.append(out.shape[1]); results.append(out.size(-1))
results.append(F.mse_loss(out, data.transpose(0, 1)))
results.append(F.mse_loss(out, 0.5 * x))
results.append(F.cross_entropy(out.reshape(-1, 8), labels.t().reshape(-1)))
results.append(F.cross_entropy(out.view(-1, 8), labels.reshape(-1)))
results.append(criterion(out.view(-1, 8), labels.t().contiguous().view(-1)))
results.append((out.argmax(-1) == labels.t()).float().mean())
results.append(out.reshape(-1, 8).argmax(1).eq(labels.reshape(-1)).sum())
pred = out.view(-1, 8).argmax(1); results.append((pred == labels.t().reshape(-1)).sum())
flat = out.view(-1, 8); results.append(flat[0])
results.append(out.transpose(0, 1).reshape(-1))
results.append([v.sum() for v in out])
results.append(str(out.shape)); results.append(out.numel())
results.append((out * out).mean(dim=0)); results.append(out.dtype == x.dtype)
for row in out: results.append(row)
while len(results) < 3: results.append(out * len(results))
if out.dim() > 2: out = out.transpose(0, 1)
weights = torch.softmax(out, dim=-1); results.append(weights @ weights.transpose(-2, -1))
""".strip().splitlines()


def program(seed: int) -> str:
    draw = random.Random(seed)
    body = [line for _ in range(draw.randint(1, 4)) for line in draw.choice(IN_FORWARD).split("; ")]
    if not any("self.layer(" in line or "self.attn(" in line for line in body):
        body.insert(draw.randint(0, len(body)), "x = self.layer(x)")
    body.append(draw.choice(RETURNS))
    before = draw.choice(["x = data.transpose(0, 1)", "x = data.permute(1, 0, 2)", "x = data"])
    after = [line for _ in range(draw.randint(1, 3)) for line in draw.choice(AFTER).split("; ")]
    calls = [before, "out = net(x)", *after]
    made = draw.choice(["net = Net()", 'net = {"net": Net}["net"]()'])
    text = HEAD + "\n    def forward(self, x):\n" + textwrap.indent("\n".join(body), " " * 8)
    text += "\n\n\ndef run(net, data, labels, criterion):\n    results = []\n    for _ in range(1):\n"
    text += textwrap.indent("\n".join(calls), " " * 8) + "\n    return results\n\n\n"
    return (
        text
        + f"def main(data, labels):\n    {made}\n    net = net.double()\n    return run(net, data, labels, nn.CrossEntropyLoss())\n"
    )


def results_of(text: str) -> list[Any]:
    names: dict[str, Any] = {}
    exec(compile(text, "program.py", "exec"), names)
    torch.manual_seed(1)
    data = torch.linspace(-2, 2, 3 * 5 * 8, dtype=torch.float64).sin().view(3, 5, 8)
    results: list[Any] = names["main"](data, torch.arange(15).remainder(8).view(3, 5))
    return results


def turned(text: str, folder: Path) -> str:
    rule = next(r for r in find_rules().values() if r.code == "PW314")
    source = Source(folder / "program.py", text.encode())
    return make_patch(source, Project(folder), Selection((rule,), frozenset({"csx"})), ("safe",)).after.text


def check_program(seed: int, folder: Path) -> str:
    """What became of one program: the same results, or an error that it had before."""
    text = program(seed)
    try:
        expected = results_of(text)
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError, UserWarning):
        return "refused by torch"
    after = turned(text, folder)
    if after == text:
        return "left"
    try:
        got = results_of(after)
    except RuntimeError as error:
        # A swap that went away also changes which values are contiguous; torch says so, and nothing is computed.
        if "view size is not compatible" not in str(error):
            raise
        return "another view"
    assert_same(got, expected, after)
    return "turned"


def assert_same(got: Any, expected: Any, text: str) -> None:
    assert type(got) is type(expected), text
    if isinstance(expected, Tensor):
        torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-8, msg=text)
    elif isinstance(expected, (list, tuple)):
        assert len(got) == len(expected), text
        for mine, theirs in zip(got, expected, strict=True):
            assert_same(mine, theirs, text)
    else:
        assert got == expected, text


@pytest.mark.parametrize("block", range(4))
def test_turned_programs_give_what_they_gave(block: int, tmp_path: Path) -> None:
    outcomes = [check_program(seed, tmp_path) for seed in range(30 * block, 30 * block + 30)]
    assert outcomes.count("turned") > 8, outcomes
    assert outcomes.count("another view") < 3, outcomes
