from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from portwright.port.check import Selection
from portwright.port.config import Config, make_selection
from portwright.port.finding import Finding, Safety
from portwright.port.patch import make_patch
from portwright.port.project import Project
from portwright.port.rule import File, Rule
from portwright.port.source import Source

CSX = make_selection(Config(), ["csx"], [], [])


def port(text: str, *rules: Rule, allow: tuple[Safety, ...] = ("safe",)) -> str:
    source = Source(Path("/nowhere/x.py"), text.encode())
    selection = Selection(rules, frozenset({"csx"})) if rules else CSX
    patch = make_patch(source, Project(Path("/nowhere")), selection, allow)
    again = make_patch(patch.after, Project(Path("/nowhere")), selection, allow)
    assert not again.is_change
    assert again.fixed == []
    return patch.after.text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # An outer edit waits for the inner ones.
        ("from torch.autograd import Variable\nx = Variable(y.cuda()).to('cuda')\n", "from torch.autograd import Variable\nx = y.detach()\n"),
        # Two statements that are all of a block.
        ("import torch\nif a:\n    torch.cuda.synchronize()\n    m.cuda()\n", "import torch\nif a:\n    pass\n"),
        # Statements that share a line.
        ("import torch\nx = 1; m.cuda(); y = 2\n", "import torch\nx = 1; pass; y = 2\n"),
        ("import torch\nif a: m.cuda()\n", "import torch\nif a: pass\n"),
        # The comment of a line goes with its statement, those above stay.
        ("import torch\n# why\nm.cuda()  # here\nb\n", "import torch\n# why\nb\n"),
        # What is unwrapped keeps its meaning.
        ("import torch\nf = torch.compile(a if b else c)\nfor x in y: f(x)\n", "import torch\nf = (a if b else c)\nfor x in y: f(x)\n"),
        ("import torch\ny = (a if b else c).cuda() * 2\n", "import torch\ny = (a if b else c) * 2\n"),
        ("import torch\ny = (a + b).cuda() * 2\n", "import torch\ny = (a + b) * 2\n"),
        ("import torch\ny = -x.cuda() ** 2\n", "import torch\ny = -x ** 2\n"),
        # A file's own line breaks and comments inside a call.
        (
            "import torch\nf(\n    a.cuda(),  # first\n    b.cuda(\n        0,  # device\n    ),\n)\n",
            "import torch\nf(\n    a,  # first\n    b,\n)\n",
        ),
        # No newline at the end.
        ("import torch\nx = 1\nm.cuda()", "import torch\nx = 1\n"),
        # Strings and comments are not code.
        ("import torch\ns = 'x.cuda()'  # x.cuda()\n", "import torch\ns = 'x.cuda()'  # x.cuda()\n"),
    ],
)  # fmt: skip
def test_rewrites_fit_together(before: str, after: str) -> None:
    assert port(before) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from torch import nn\na = nn.LSTM(1, 1)\n", "from torch import nn\nfrom portwright.layers import legal\na = legal.LSTM(1, 1)\n"),
        (
            '"""Doc."""\nfrom __future__ import annotations\nimport torch\n\ntry:\n    import x\nexcept ImportError:\n    x = None\nfrom torch import nn\n\nnn.LSTM(1, 1)\n',
            '"""Doc."""\nfrom __future__ import annotations\nimport torch\n\ntry:\n    import x\nexcept ImportError:\n    x = None\nfrom torch import nn\nfrom portwright.layers import legal\n\nlegal.LSTM(1, 1)\n',
        ),
        (
            "import torch; x = [\n  1]\ntorch.nn.LSTM(1, 1)\n",
            "import torch; x = [\n  1]\nfrom portwright.layers import legal\nlegal.LSTM(1, 1)\n",
        ),
        (
            "from torch import nn\nfrom portwright.layers import legal\na = nn.LSTM(1, 1)\n",
            "from torch import nn\nfrom portwright.layers import legal\na = legal.LSTM(1, 1)\n",
        ),
        (
            "from portwright.layers import legal as ok\nfrom torch import nn\na = nn.LSTM(1, 1)\n",
            "from portwright.layers import legal as ok\nfrom torch import nn\na = ok.LSTM(1, 1)\n",
        ),
        (
            "from torch import nn\nlegal = 3\na = nn.LSTM(1, 1)\n",
            "from torch import nn\nfrom portwright.layers import legal as portwright_legal\nlegal = 3\na = portwright_legal.LSTM(1, 1)\n",
        ),
        (
            "def f():\n    from torch import nn\n    return nn.LSTM(1, 1)\n",
            "from portwright.layers import legal\ndef f():\n    from torch import nn\n    return legal.LSTM(1, 1)\n",
        ),
        (
            "#!/usr/bin/env python\n@d\ndef f():\n    from torch import nn\n    return nn.LSTM(1, 1)\n",
            "#!/usr/bin/env python\nfrom portwright.layers import legal\n@d\ndef f():\n    from torch import nn\n    return legal.LSTM(1, 1)\n",
        ),
    ],
)  # fmt: skip
def test_imports_are_added_once_and_in_a_good_place(before: str, after: str) -> None:
    assert port(before) == after


class Breaks(Rule):
    """Makes text that is not Python."""

    code, name, targets, safety = "PW901", "breaks", ("csx",), "safe"
    words, cure = ("torch",), "No cure."

    def find(self, file: File) -> Iterator[Finding]:
        for node in file.tree.all(ast.Constant):
            yield self.report(file, node, "breaks", [file.replace(node, "(")])


class Grows(Breaks):
    """Always finds more to do."""

    def find(self, file: File) -> Iterator[Finding]:
        for node in file.tree.all(ast.Constant)[:1]:
            yield self.report(file, node, "grows", [file.replace(node, f"{node.value}0")])


class Raises(Breaks):
    """Has a mistake in it."""

    code = "PW902"

    def find(self, file: File) -> Iterator[Finding]:
        raise KeyError("mistake")


TEXT = "import torch\nx = 1\ny = 2\n"


def test_an_edit_that_would_not_parse_is_not_made() -> None:
    patch = make_patch(
        Source(Path("/x.py"), TEXT.encode()),
        Project(Path("/")),
        Selection((Breaks(),), frozenset({"csx"})),
        ("safe",),
    )
    assert patch.after.text == TEXT
    assert len(patch.left) == 2


def test_edits_without_end_are_not_made() -> None:
    patch = make_patch(
        Source(Path("/x.py"), TEXT.encode()),
        Project(Path("/")),
        Selection((Grows(),), frozenset({"csx"})),
        ("safe",),
    )
    assert patch.after.text == TEXT
    assert patch.fixed == []
    assert len(patch.left) == 1


def test_a_rule_that_raises_is_said_and_does_not_hide_the_others() -> None:
    text = "import torch\nm.cuda()\nx = 1\n"
    selection = Selection((*CSX.rules, Raises()), frozenset({"csx"}))
    patch = make_patch(Source(Path("/x.py"), text.encode()), Project(Path("/")), selection, ("safe",))
    assert patch.after.text == "import torch\nx = 1\n"
    assert [f.code for f in patch.left] == ["PW002"]
    assert "PW902" in patch.left[0].message


def test_unsafe_rewrites_are_made_on_request_only() -> None:
    text = "import torch\ns = torch.amp.GradScaler()\n"
    assert port(text) == text
    assert port(text, allow=("safe", "unsafe")) == "import torch\ns = torch.amp.GradScaler(enabled=False)\n"


IN_FORWARD = "import torch\nfrom torch import nn\nclass Net(nn.Module):\n    def forward(self, x):\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # A name that is only used, comes from a star, or is spelled as a text.
        ("def f():\n    return legal\n", "from portwright.layers import legal as portwright_legal\n"),
        ("globals()['legal'] = 1\n", "from portwright.layers import legal as portwright_legal\n"),
        (
            "def f(portwright_legal):\n    global legal\n",
            "from portwright.layers import legal as portwright_legal_2\n",
        ),
        # An import of the user's that does not mean it everywhere.
        (
            "try:\n    from portwright.layers import legal\nexcept ImportError:\n    legal = None\n",
            "from portwright.layers import legal as portwright_legal\n",
        ),
        (
            "from portwright.layers import legal\ndef f(legal):\n    pass\n",
            "from portwright.layers import legal as portwright_legal\n",
        ),
        ("print('legally')\n", "from portwright.layers import legal\n"),
    ],
)
def test_a_new_name_is_not_one_that_the_file_has(before: str, after: str) -> None:
    text = port(f"{IN_FORWARD}        return torch.flip(x, (0,))\n{before}")
    assert after in text
    assert before in text


def test_an_import_stands_behind_what_sets_how_torch_is_loaded() -> None:
    text = port(
        f"import os\nos.environ['OMP_NUM_THREADS'] = '1'\n{IN_FORWARD}        return torch.flip(x, (0,))\n"
    )
    assert text.startswith(
        "import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch\nfrom torch import nn\nfrom portwright"
    )


def test_torch_is_not_taken_for_what_hides_it() -> None:
    text = "import torch\nfrom torch import einsum\ndef f(x, y, torch):\n    for a in y:\n        einsum('ij,jk->ik', x, y).backward()\n"
    source = Source(Path("/nowhere/x.py"), text.encode())
    patch = make_patch(
        source, Project(Path("/nowhere")), make_selection(Config(), ["ipu"], ["PW311"], []), ("safe",)
    )
    assert not patch.is_change


def test_a_rewrite_is_done_whole_or_not_at_all() -> None:
    """The list stands on a line of its own, which is to be ignored: it says what the finding is about."""

    class TwoPlaces(Rule):
        code, name, targets, safety = "PW998", "two-places", ("csx",), "safe"
        words, cure = ("torch",), "Do both."

        def find(self, file: File) -> Iterator[Finding]:
            first, second = file.tree.all(ast.Constant)
            if {first.value, second.value} == {1, 2}:
                yield self.report(
                    file, first, "two parts", [file.replace(first, "3"), file.replace(second, "4")]
                )

    for ignored in ("", "  # portwright: ignore", "  # portwright: ignore[PW998]"):
        text = f"import torch\nx = 1\ny = 2{ignored}\n"
        assert (port(text, TwoPlaces()) == text) is bool(ignored)
    assert port(text.replace("PW998", "PW997"), TwoPlaces()) != text.replace("PW998", "PW997")
