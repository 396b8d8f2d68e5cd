"""Twenty and more faults put into plain scripts, each caught with its step and parameter; and rewrites that change nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from portwright.verify.judge import Judgement, judge
from portwright.verify.launch import Recorder, Runs

SCRIPTS = Path(__file__).parents[1] / "fixtures" / "verify"
STEPS = 8


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory, warm_recorder: None) -> dict[str, Runs]:
    """Each plain script's own runs are made once and shared by all cases."""
    made = {}
    for path in sorted(SCRIPTS.glob("*.py")):
        folder = tmp_path_factory.mktemp(path.stem)
        (folder / path.name).write_text(path.read_text())
        options = Recorder(steps=STEPS, seed=0, timeout_seconds=120)
        made[path.stem] = Runs(path.name, path.name, folder / "runs", options, folder=folder)
    return made


def judge_changed(originals: dict[str, Runs], script: str, name: str, changes: dict[str, str]) -> Judgement:
    """Judges a copy of a script in which each text, which must be there, is another one."""
    text = (SCRIPTS / f"{script}.py").read_text()
    for old, new in changes.items():
        assert old in text, f"{old!r} is not in {script}.py"
        text = text.replace(old, new)
    runs = originals[script]
    assert runs.folder is not None
    (runs.folder / f"{name}.py").write_text(text)
    return judge(runs.of_another_port(f"{name}.py", name))


@dataclass(frozen=True)
class Fault:
    """A change of one script, and where it has to be seen."""

    name: str
    script: str
    changes: dict[str, str]
    step: int
    quantity: str
    parameter: str | None
    diagnosis: str | None = None


FAULTS = [
    # The optimizer: named by its option; the parameter is the first of those that it concerns.
    Fault("rate", "attention", {"lr=1e-2": "lr=1.01e-2"}, 1, "optimizer", "embed.weight", "learning-rate"),
    Fault("decay", "attention", {", weight_decay=0.01": ", weight_decay=0.0"}, 1, "optimizer", "embed.weight", "weight-decay"),
    Fault("l2_for_decay", "attention", {"AdamW": "Adam"}, 1, "update", "embed.weight", "optimizer-class"),
    Fault("betas", "attention", {"lr=1e-2": "lr=1e-2, betas=(0.9, 0.99)"}, 1, "optimizer", "embed.weight", "betas"),
    Fault("eps", "attention", {"lr=1e-2": "lr=1e-2, eps=1e-6"}, 1, "optimizer", "embed.weight", "eps"),
    Fault("late_schedule", "attention", {"step_size=4": "step_size=5"}, 5, "optimizer", "embed.weight", "learning-rate"),
    Fault("momentum", "convolution", {"momentum=0.9": "momentum=0.8"}, 1, "optimizer", "stem.weight", "momentum"),
    Fault("head_left_out", "attention", {"model.parameters(), lr": "list(model.parameters())[:-1], lr"}, 1, "gradient", "head.bias", "not-updated"),
    # Gradients: named is the parameter that the backward pass reaches first.
    Fault("zero_grad", "attention", {"            optimizer.zero_grad()\n": ""}, 2, "gradient", "head.bias", "zero-grad"),
    Fault("clipping", "attention", {"            nn.utils.clip_grad_norm_(model.parameters(), 0.5)\n": ""}, 1, "gradient", "head.bias", "clipping"),
    Fault("frozen", "attention", {"    criterion =": "    model.embed.weight.requires_grad_(False)\n    criterion ="}, 1, "gradient", "embed.weight", "frozen"),
    Fault("detached", "attention", {"self.key(x)": "self.key(x).detach()"}, 1, "gradient", "second.attention.key.weight", "detached"),
    Fault("accumulation", "convolution", {"labels) / 2": "labels)"}, 1, "loss", "head.bias", "loss-scale"),
    # The forward pass: named is the first parameter behind the place where numbers part.
    Fault("mask", "attention", {"diagonal=1)": "diagonal=0).fill_diagonal_(False).tril(1)"}, 1, "loss", "first.attention.out.weight", "forward"),
    Fault("scale", "attention", {" / math.sqrt(q.size(-1))": ""}, 1, "loss", "first.attention.out.weight", "forward"),
    Fault("activation", "attention", {"F.gelu(self.wide": "F.gelu(approximate='tanh', input=self.wide"}, 1, "loss", "first.narrow.weight", "forward"),
    Fault("norm_eps", "attention", {"self.norm2 = nn.LayerNorm(width)": "self.norm2 = nn.LayerNorm(width, eps=1e-3)"}, 1, "loss", "first.norm2.weight", "forward"),
    Fault("position", "attention", {"self.table[: x.size(1)]": "self.table[1 : x.size(1) + 1]"}, 1, "loss", "first.norm1.weight", "forward"),
    Fault("position_table", "attention", {"torch.arange(longest).unsqueeze(1)": "torch.arange(1, longest + 1).unsqueeze(1)"}, 1, "initial", "position.table"),
    Fault("behind_layers", "attention", {"return self.head(x)": "return self.head(x) * 1.01"}, 1, "loss", "head.bias", "forward"),
    Fault("swapped", "attention", {"x = self.first(x)\n        x = self.second(x)": "x = self.second(x)\n        x = self.first(x)"}, 1, "loss", "first.attention.query.weight", "forward"),
    Fault("residual", "convolution", {"F.relu(out + x)": "F.relu(out)"}, 1, "loss", "block2.conv1.weight", "forward"),
    Fault("pool", "convolution", {"nn.MaxPool2d": "nn.AvgPool2d"}, 1, "loss", "head.weight", "forward"),
    # Parameters and what they start from.
    Fault("bias", "attention", {"self.narrow = nn.Linear(2 * width, width)": "self.narrow = nn.Linear(2 * width, width, bias=False)"}, 1, "parameter", "first.narrow.bias", "parameter-lost"),
    Fault("added_bias", "convolution", {"self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)": "self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)"}, 1, "parameter", "block1.conv2.bias", "parameter-added"),
    Fault("initialisation", "attention", {"self.head = nn.Linear(16, 13)": "self.head = nn.Linear(16, 13)\n        nn.init.normal_(self.head.weight, std=0.02)"}, 1, "initial", "head.weight", "initialisation"),
    # The loss.
    Fault("smoothing", "attention", {"label_smoothing=0.1": ""}, 1, "loss", "head.bias", "loss-function"),
    Fault("reduction", "attention", {"label_smoothing=0.1": "label_smoothing=0.1, reduction='sum'"}, 1, "loss", "head.bias", "loss-scale"),
    # The data: no parameter is concerned.
    Fault("shifted", "attention", {"for tokens, targets in loader:": "for tokens, targets in list(loader)[1:]:"}, 1, "batch", None, "batch-shifted"),
    Fault("batch_size", "attention", {"batch_size=16": "batch_size=8"}, 1, "batch", None, "batch-size"),
    Fault("shuffle", "attention", {"shuffle=True": "shuffle=False"}, 1, "batch", None, "batch-order"),
    Fault("normalisation", "convolution", {"(self.pictures[index] - 0.5) / 0.25": "self.pictures[index]"}, 1, "batch", None, "batch-values"),
    Fault("dropout_rate", "dropout", {"Part(10, 0.3)": "Part(10, 0.4)"}, 1, "dropout", None, "dropout-rate"),
    Fault("dropout_lost", "dropout", {"self.drop(F.leaky_relu(self.one(x), 0.2))": "F.leaky_relu(self.one(x), 0.2)"}, 1, "dropout", None, "dropout-lost"),
    # Two optimizers in turn: each of their updates is a step.
    Fault("second_rate", "dropout", {"lr=2e-3": "lr=2.02e-3"}, 2, "optimizer", "maker.one.weight", "learning-rate"),
    Fault("maker_trained_too", "dropout", {"        maker_optimizer.zero_grad()\n": ""}, 4, "gradient", "maker.two.bias", "zero-grad"),
    # A network that amplifies rounding: a fault is found beside it.
    Fault("one_percent", "deep", {"        optimizer.step()": "        for p in network.parameters():\n            p.grad.mul_(1.01)\n        optimizer.step()"}, 1, "gradient", "21.bias", "gradient-scale"),
    # Buffers.
    Fault("statistics", "convolution", {"self.bn1 = nn.BatchNorm2d(channels)": "self.bn1 = nn.BatchNorm2d(channels, track_running_stats=False)"}, 1, "buffer", "block1.bn1.running_mean", "statistics-lost"),
    Fault("running_mean", "convolution", {"self.bn1 = nn.BatchNorm2d(channels)": "self.bn1 = nn.BatchNorm2d(channels, momentum=0.2)"}, 1, "buffer", "block1.bn1.running_mean", "buffer"),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_a_fault_is_caught_and_named(originals: dict[str, Runs], fault: Fault) -> None:
    found = judge_changed(originals, fault.script, fault.name, fault.changes).difference
    assert found is not None, "not caught"
    assert (found.step, found.quantity, found.parameter) == (fault.step, fault.quantity, fault.parameter), (
        found
    )
    if fault.diagnosis is not None:
        assert found.diagnosis == fault.diagnosis, found
    assert found.reason.endswith(".")


HARMLESS = {
    "renamed": ("attention", {"self.attention": "self.mixing", "self.head": "self.to_tokens", "self.wide": "self.up", "self.query": "self.q"}),
    "reordered": (
        "attention",
        {
            "        self.embed = nn.Embedding(13, 16)\n        self.position = PositionalEncoding(16)\n": "        self.head = nn.Linear(16, 13)\n",
            "        self.head = nn.Linear(16, 13)\n\n": "        self.position = PositionalEncoding(16)\n        self.embed = nn.Embedding(13, 16)\n\n",
        },
    ),
    "twins_reordered": (
        "attention",
        {
            "        self.query = nn.Linear(width, width)\n        self.key = nn.Linear(width, width)\n        self.value = nn.Linear(width, width)\n": "        self.value = nn.Linear(width, width)\n        self.query = nn.Linear(width, width)\n        self.key = nn.Linear(width, width)\n",
            "        self.first = Block(16, 2)\n        self.second = Block(16, 2)\n": "        self.second = Block(16, 2)\n        self.first = Block(16, 2)\n",
        },
    ),
    "twins_exchanged": (
        "attention",
        {
            "self.query = nn.Linear(width, width)\n        self.key": "self.key = nn.Linear(width, width)\n        self.query",
            "self.split(self.query(x)), self.split(self.key(x))": "self.split(self.key(x)), self.split(self.query(x))",
        },
    ),
    "fused": (
        "attention",
        {
            "        self.query = nn.Linear(width, width)\n        self.key = nn.Linear(width, width)\n        self.value = nn.Linear(width, width)\n": "        self.qkv = nn.Linear(width, 3 * width)\n",
            "self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))": "(self.split(part) for part in self.qkv(x).chunk(3, -1))",
        },
    ),
    "sequential": (
        "attention",
        {
            "        self.wide = nn.Linear(width, 2 * width)\n        self.narrow = nn.Linear(2 * width, width)\n": "        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))\n",
            "self.narrow(F.gelu(self.wide(self.norm2(x))))": "self.mlp(self.norm2(x))",
        },
    ),
    "finite_mask": ("attention", {'float("-inf")': "-1e9"}),
    "reshaped": ("attention", {"x.view(x.size(0), x.size(1), self.heads, -1)": "x.reshape(*x.shape[:2], self.heads, -1)"}),
    "einsum": ("attention", {"q @ k.transpose(-2, -1)": "torch.einsum('bhqd,bhkd->bhqk', q, k)"}),
    "sdpa": (
        "attention",
        {"mixed = (scores.softmax(-1) @ v)": "mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)"},
    ),
    "functional_loss": (
        "attention",
        {"criterion(logits.reshape(-1, 13), targets.reshape(-1))": "F.cross_entropy(logits.transpose(1, 2), targets, label_smoothing=0.1)"},
    ),
    "transposed_storage": (
        "attention",
        {
            "self.head = nn.Linear(16, 13)": "linear = nn.Linear(16, 13)\n        self.weight = nn.Parameter(linear.weight.detach().t().clone())\n        self.bias = linear.bias",
            "self.head(x)": "x @ self.weight + self.bias",
        },
    ),
    "groups": (
        "attention",
        {"AdamW(model.parameters(), lr=1e-2": "AdamW([{'params': [p for p in model.parameters() if p.ndim > 1]}, {'params': [p for p in model.parameters() if p.ndim < 2]}], lr=1e-2"},
    ),
    "in_place": ("convolution", {"F.relu(out + x)": "F.relu(out.add_(x), inplace=True)", "F.relu(self.bn1": "F.relu(inplace=True, input=self.bn1"}),
    "functional_dropout": ("dropout", {"self.drop(F.leaky_relu(self.one(x), 0.2))": "F.dropout(F.leaky_relu(self.one(x), 0.2), self.drop.p, self.training)"}),
    "masks_in_another_order": ("dropout", {"critic(made.detach()).pow(2).mean() + (critic(real) - 1).pow(2).mean()": "(critic(real) - 1).pow(2).mean() + critic(made.detach()).pow(2).mean()"}),
    "blocks_in_a_list": (
        "convolution",
        {
            "        self.block1 = Residual(8)\n        self.block2 = Residual(8)\n": "        self.blocks = nn.Sequential(*(Residual(8) for _ in range(2)))\n",
            "self.block2(self.block1(self.stem(x)))": "self.blocks(self.stem(x))",
        },
    ),
    "rounding_amplified": ("deep", {"self.bn(self.conv(x))": "self.bn((self.conv.weight.flatten(1) @ F.unfold(x, 3, padding=1)).view_as(x))"}),
    "one_backward": (
        "convolution",
        {
            "            loss.backward()\n            if number % 2 == 1:\n": "            total = loss if number % 2 == 0 else total + loss\n            if number % 2 == 1:\n                total.backward()\n",
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_rewrite_passes(originals: dict[str, Runs], name: str) -> None:
    script, changes = HARMLESS[name]
    found = judge_changed(originals, script, name, changes)
    assert found.difference is None, found.difference
    assert found.comparison is not None
    assert found.comparison.steps == STEPS


def test_batches_made_by_hand_are_those_of_a_loader(originals: dict[str, Runs]) -> None:
    plain = {"shuffle=True": "shuffle=False"}
    folder = originals["attention"].folder
    assert folder is not None
    text = (SCRIPTS / "attention.py").read_text().replace("shuffle=True", "shuffle=False")
    (folder / "in_order.py").write_text(text)
    by_hand = text.replace(
        "loader = DataLoader(make_data(), batch_size=16, shuffle=False)",
        "data = make_data().tensors\n    loader = list(zip(data[0].split(16), data[1].split(16)))",
    )
    assert by_hand != text, plain
    (folder / "by_hand.py").write_text(by_hand)
    runs = Runs(
        "in_order.py", "by_hand.py", folder / "by_hand_runs", originals["attention"].options, folder=folder
    )
    assert judge(runs).difference is None


def test_one_file_cut_in_two_is_the_same(originals: dict[str, Runs]) -> None:
    runs = originals["attention"]
    assert runs.folder is not None
    text = (SCRIPTS / "attention.py").read_text()
    head, _, tail = text.partition("def main():")
    (runs.folder / "parts.py").write_text(head)
    (runs.folder / "in_two.py").write_text(f"import torch\nfrom parts import *\n\n\ndef main():{tail}")
    assert judge(runs.of_another_port("in_two.py", "in_two")).difference is None
