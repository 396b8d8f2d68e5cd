"""Every rule against its fixtures, its page, and a broken copy of itself."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from unit.port.rule_fixtures import FOLDER, load, mistakes, names, project, select

from portwright.discover import find_rules
from portwright.port.check import find
from portwright.port.explain import page
from portwright.port.finding import SAFETIES, Finding
from portwright.port.patch import make_patch
from portwright.port.project import Project
from portwright.port.rule import GROUPS, File, Rule
from portwright.port.source import Source

RULES = list(find_rules().values())
PREAMBLE = b"import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n"
SECTIONS = ("## Why", "## Example", "## Instead", "## Safety")
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


def fixture_of(rule: Rule) -> str:
    return rule.name.replace("-", "_")


def test_fixtures_and_rules_are_the_same_set() -> None:
    assert names() == sorted(fixture_of(rule) for rule in RULES)
    assert {p.name for p in FOLDER.iterdir() if p.is_file()} == {
        f"{n}.{e}.py" for n in names() for e in ("in", "out")
    }


@every_rule
def test_fixture(rule: Rule) -> None:
    assert mistakes(rule, fixture_of(rule)) == []


@every_rule
def test_a_rule_that_finds_nothing_fails_its_fixture(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(self: Rule, file: File) -> Iterator[Finding]:
        return iter(())

    monkeypatch.setattr(type(rule), "find", find_nothing)
    assert mistakes(rule, fixture_of(rule)) != []


@every_rule
def test_a_rule_that_rewrites_nothing_fails_its_fixture(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = type(rule).find

    def find_only(self: Rule, file: File) -> Iterator[Finding]:
        return (replace(f, edits=(), safety="manual") for f in whole(self, file))

    if rule.safety == "manual":
        assert not any(f.edits for f in find(load(fixture_of(rule)), project(), select(rule)))
        return
    monkeypatch.setattr(type(rule), "find", find_only)
    assert mistakes(rule, fixture_of(rule)) != []


@every_rule
def test_a_rule_that_finds_everything_fails_its_fixture(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fixtures hold what the rule must leave alone, or else it could report each call and pass."""

    def find_all(self: Rule, file: File) -> Iterator[Finding]:
        nodes = [node for node in ast.walk(file.tree.module) if isinstance(node, (ast.expr, ast.stmt))]
        return (self.report(file, node, "found") for node in nodes)

    monkeypatch.setattr(type(rule), "find", find_all)
    assert any("should not have" in wrong for wrong in mistakes(rule, fixture_of(rule)))


@every_rule
def test_fixture_is_stable_after_one_port(rule: Rule) -> None:
    after = load(fixture_of(rule), "out")
    assert make_patch(after, project(), select(rule), ("safe", "unsafe")).after.data == after.data


@every_rule
def test_description(rule: Rule) -> None:
    assert re.fullmatch(r"PW[1-6]\d\d", rule.code)
    assert rule.code[:3] in GROUPS
    assert rule.safety in SAFETIES
    # What torch runs as it is runs on CPU and GPU; what is gone from TensorFlow is gone there too.
    assert set(rule.targets) <= {"csx", "ipu", "rdu"} | (
        {"cpu", "gpu"} if rule.framework != "torch" else set()
    )
    assert rule.targets
    assert rule.cure_for(rule.targets).endswith((".", ")", "..."))
    text = page(rule)
    assert [s for s in SECTIONS if text.count(s) == 1] == list(SECTIONS)
    assert Path(inspect.getfile(type(rule))).stem in (fixture_of(rule), "legal_forms")


def examples(rule: Rule) -> dict[str, bytes]:
    found = re.findall(r"## (Example|Instead)\n```python\n(.*?)\n```", page(rule), re.DOTALL)
    return {kind: PREAMBLE + text.encode() + b"\n" for kind, text in found}


@every_rule
def test_page_shows_what_is_found_and_what_is_not(rule: Rule, tmp_path: Path) -> None:
    first_target = replace(select(rule), targets=frozenset(rule.targets[:1]))
    texts = examples(rule)
    bad, good = (Source(tmp_path / "x.py", texts[kind]) for kind in ("Example", "Instead"))
    assert {f.code for f in find(bad, Project(tmp_path), first_target)} == {rule.code}
    assert find(good, Project(tmp_path), first_target) == []


@every_rule
def test_words_are_in_the_fixture(rule: Rule) -> None:
    """A rule is asked only where one of its words occurs, so a finding without one would be lost."""
    assert any(word in load(fixture_of(rule)).text for word in rule.words)


def test_every_known_pattern_has_a_rule() -> None:
    codes = {rule.code for rule in RULES}
    rows = [line.split("\t") for line in (FOLDER.parent / "patterns.tsv").read_text().splitlines()[1:]]
    assert len(rows) == 60
    for pattern, listed in rows:
        assert set(listed.split()) <= codes, pattern
        assert listed, pattern


@pytest.mark.parametrize(("norm", "safety"), [("LayerNorm(3)", "safe"), ("BatchNorm1d(3)", "unsafe")])
def test_recomputation_of_batch_norms_is_left_as_it_is(norm: str, safety: str, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(
        "from torch import nn\nfrom torch.utils.checkpoint import checkpoint\n\n\n"
        f"class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.norm = nn.{norm}\n\n"
        "    def forward(self, x):\n        return checkpoint(self.norm, x)\n"
    )
    rule = next(rule for rule in RULES if rule.code == "PW335")
    assert [f.safety for f in find(Source(path, path.read_bytes()), Project(tmp_path), select(rule))] == [
        safety
    ]


@pytest.mark.parametrize(
    ("hook", "safety"),
    [
        ("clip_grad_norm_(layer.parameters(), 1)", "safe"),
        ("layer.register_forward_hook(print)", "manual"),
        ("register_module_full_backward_hook(print)", "manual"),
        ("spectral_norm(layer.self_attn.out_proj)", "manual"),
        ("torch.jit.script(layer)", "manual"),
    ],
)
def test_layers_that_hooks_look_into_are_left(hook: str, safety: str, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(
        f"from torch import nn\n\nlayer = nn.TransformerEncoderLayer(8, 2, batch_first=True)\n{hook}\n"
    )
    rule = next(rule for rule in RULES if rule.code == "PW340")
    (finding,) = find(Source(path, path.read_bytes()), Project(tmp_path), select(rule))
    assert (finding.line, finding.safety) == (3, safety)


LOADED = (
    "import torch\nfrom torch.utils.data import DataLoader\n\ndef train(data, net, opt, device):\n    loader = DataLoader(data)\n"
    "    for i, (x, y) in enumerate(loader):\n        loss = net({}).sum()\n        loss.backward()\n        opt.step()\n"
)
IN_STEP = "import torch, numpy\nfrom torch import nn\nimport torch.nn.functional as F\n\nclass Net(nn.Module):\n    def forward(self, x, y):\n        return {}\n"


@pytest.mark.parametrize(
    ("code", "program", "safety"),
    [
        # What is written in place can tell a copy from a view, and a tensor from a view of it.
        ("PW302", IN_STEP.format("x.transpose(0, 1).transpose(1, 0)"), "safe"),
        ("PW302", IN_STEP.format("x.transpose(0, 1).transpose(1, 0)") + "        x.unsqueeze_(0)\n", "unsafe"),
        ("PW302", IN_STEP.format("x.transpose(0, 1).transpose(1, 0)") + "@torch.no_grad()\ndef f(y):\n    return y\n", "unsafe"),
        ("PW302", "import torch\ndef f(a):\n    return a.transpose(0, 1).transpose(1, 0)\n", "unsafe"),
        ("PW303", IN_STEP.format("x.contiguous().view(-1)"), "safe"),
        ("PW303", IN_STEP.format("x.contiguous().view(-1)") + "\ndef f(y):\n    y += 1\n", "unsafe"),
        ("PW303", IN_STEP.format("x.contiguous().view(-1)") + "\ndef f(y):\n    y[0] = 1\n", "unsafe"),
        ("PW303", IN_STEP.format("x.contiguous().view(-1)") + "\ndef f(y):\n    y['a'] = 1\n    n = 0\n    n += 1\n", "safe"),
        ("PW303", IN_STEP.format("x.contiguous().view(-1)") + "\ndef f(y):\n    torch.add(y, 1, out=y)\n", "unsafe"),
        ("PW303", IN_STEP.format("x.contiguous().view(-1)") + "\nact = nn.ReLU(inplace=True)\n", "unsafe"),
        ("PW303", IN_STEP.format("x.contiguous().view(-1)") + "\ndef f(m):\n    m.weight.data.fill_(1)\n", "safe"),
        ("PW303", IN_STEP.format("self.table.contiguous().view(-1)"), "unsafe"),
        ("PW408", IN_STEP.format("f(x.data)"), "safe"),
        ("PW408", IN_STEP.format("f(x.data)") + "\ndef g(m):\n    m.data.clamp_(0, 1)\n", "safe"),
        ("PW408", IN_STEP.format("f(x.data)") + "\ndef g(m):\n    m.clamp_(0, 1)\n", "unsafe"),
        ("PW408", IN_STEP.format("x.data + 1") + "\ndef g(m):\n    m.clamp_(0, 1)\n", "safe"),
        ("PW408", IN_STEP.format("f(self.hidden.data)"), "unsafe"),
        ("PW330", IN_STEP.format("torch.diagonal(x)"), "safe"),
        ("PW330", IN_STEP.format("torch.diagonal(x).fill_(0)"), "unsafe"),
        ("PW330", IN_STEP.format("torch.tril(x).fill_(0)"), "safe"),
        # What has a method of that name may be no tensor.
        ("PW325", IN_STEP.format("x.flip(0)"), "safe"),
        ("PW325", IN_STEP.format("self.image.flip(0)"), "unsafe"),
        ("PW344", IN_STEP.format("self.image.bmm(x)"), "unsafe"),
        ("PW337", IN_STEP.format("self.image.sum((2, 1))"), "unsafe"),
        ("PW338", IN_STEP.format("x.type(torch.FloatTensor)"), "safe"),
        ("PW338", IN_STEP.format("x.type(torch.FloatTensor)") + "device = 1\n", "unsafe"),
        ("PW338", LOADED.format("x.type(torch.FloatTensor)"), "safe"),
        ("PW338", LOADED.format("x.type(torch.FloatTensor)") + "        x = x.to(device)\n", "unsafe"),
        ("PW337", IN_STEP.format("x.sum(DIMS)") + "DIMS = (2, 1)\n", "unsafe"),
        # Code that asks for exactly torch's class, or is read by torch itself.
        ("PW320", "from torch import nn\na = nn.Conv1d(1, 1, 1)\n", "safe"),
        ("PW320", "from torch import nn\na = nn.Conv1d(1, 1, 1)\nb = isinstance(a, nn.Conv1d)\n", "safe"),
        ("PW320", "from torch import nn\na = nn.Conv1d(1, 1, 1)\nb = type(a) in (nn.Conv1d, nn.Linear)\n", "unsafe"),
        ("PW320", "from torch import nn\na = nn.Conv1d(1, 1, 1)\nb = {nn.Conv1d: 1}\n", "unsafe"),
        ("PW320", "from torch import nn\na = nn.Conv1d(1, 1, 1)\nmatch a:\n    case nn.Conv1d():\n        pass\n", "unsafe"),
        ("PW320", "import torch\nfrom torch import nn\na = torch.jit.script(nn.Conv1d(1, 1, 1))\n", "unsafe"),
        # A compiled model has other names for its parameters, a function has none.
        ("PW307", "import torch\ndef f(x, m):\n    return x.masked_fill(m, -1e9).softmax(-1), float('-inf')\n", "safe"),
        ("PW307", "import torch\ndef f(x, m):\n    x = x.masked_fill(m, -1e20)\n    return torch.softmax(x, -1)\n", "safe"),
        ("PW307", "import torch\ndef f(x, m):\n    x = x - m * 1e9\n    return x.masked_fill(m, -1e9).softmax(-1)\n", "unsafe"),
        ("PW307", "import torch\nLOW = -1e9\ndef f(x, m):\n    return x.masked_fill(m, -1e9).softmax(-1)\n", "unsafe"),
        ("PW317", "import torch\nmodel = torch.compile(model)\nfor x in y:\n    model(x)\n", "safe"),
        ("PW317", "import torch\nmodel = torch.compile(model)\n", "unsafe"),
        ("PW317", "import torch\ndef f(x):\n    model = torch.compile(net)\n    return model\n", "unsafe"),
        ("PW317", "import torch\ndef f(x):\n    model = torch.compile(net)\n    return model(x)\n", "safe"),
        ("PW317", "import torch\ndef g(m):\n    return m(1)\ndef f():\n    net = torch.compile(other)\n    return g(m=net)\n", "safe"),
        ("PW317", "import torch\ndef g(m):\n    return m.state_dict()\ndef f():\n    net = torch.compile(other)\n    return g(net)\n", "unsafe"),
        ("PW317", "import torch\nself.model = torch.compile(self.model)\n", "unsafe"),
        ("PW317", "import torch\n@torch.jit.script\ndef f(x):\n    return x\nf.save('f.pt')\n", "unsafe"),
        ("PW317", "import torch\nmodel = torch.compile(model)\nmodel.state_dict()\n", "unsafe"),
        ("PW317", "import torch\nf(torch.compile(model))\n", "unsafe"),
        ("PW317", "import torch\ndef f(x):\n    return x\nf = torch.compile(f)\ng.state_dict()\n", "unsafe"),
        ("PW317", "import torch\ndef f(x):\n    return x\ng = torch.compile(f)\nh.state_dict()\n", "safe"),
        ("PW317", "import torch\nmodel = torch.compile(model)\ntorch.compiler.is_compiling()\n", "unsafe"),
        ("PW317", "import torch\n@torch.compile\ndef f():\n    return torch.compiler.is_compiling()\n", "unsafe"),
        ("PW317", "import torch\n@torch.jit.script\ndef f(x):\n    return x\n", "safe"),
        ("PW317", "import torch\n@torch.jit.script\ndef f(x):\n    return x\ntorch.jit.ignore(f)\n", "unsafe"),
    ],
)  # fmt: skip
def test_safe_is_said_only_where_nothing_can_tell(
    code: str, program: str, safety: str, tmp_path: Path
) -> None:
    rule = next(rule for rule in RULES if rule.code == code)
    found = find(Source(tmp_path / "net.py", program.encode()), Project(tmp_path), select(rule))
    assert {f.safety for f in found if f.edits} == {safety}


def test_a_compiled_model_that_another_file_gets_keeps_its_names(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text("def fit(model):\n    print(model.state_dict())\n")
    rule = next(rule for rule in RULES if rule.code == "PW317")
    for handed, safety in (("model", "unsafe"), ("3", "safe")):
        text = f"import torch\nfrom engine import fit\nmodel = torch.compile(model)\nfor step in range(3):\n    fit({handed})\n"
        found = find(Source(tmp_path / "net.py", text.encode()), Project(tmp_path), select(rule))
        assert [f.safety for f in found] == [safety]
