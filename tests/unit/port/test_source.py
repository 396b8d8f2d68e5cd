from __future__ import annotations

import codecs
import json
from pathlib import Path

import pytest

from portwright.port.check import check_path
from portwright.port.config import Config, make_selection
from portwright.port.finding import Edit
from portwright.port.patch import make_patch
from portwright.port.project import Project, read_source
from portwright.port.source import MAX_BYTES, UnreadableError, decode

CSX = make_selection(Config(), ["csx"], [], [])
TEXT = "import torch\n\n\ndef f(x):\n\treturn x.cuda()  # ünïcode → kept\n"


def ported(path: Path) -> bytes:
    return make_patch(read_source(path), Project(path.parent), CSX, ("safe",)).after.to_bytes()


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("bom", [b"", codecs.BOM_UTF8])
def test_bytes_outside_of_edits_stay(tmp_path: Path, newline: str, bom: bytes) -> None:
    path = tmp_path / "x.py"
    path.write_bytes(bom + TEXT.replace("\n", newline).encode())
    assert ported(path) == bom + TEXT.replace("x.cuda()", "x").replace("\n", newline).encode()


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_new_imports_take_the_files_newline(tmp_path: Path, newline: str) -> None:
    path = tmp_path / "x.py"
    path.write_bytes(f"from torch import nn{newline}a = nn.LSTM(2, 2){newline}".encode())
    lines = ["from torch import nn", "from portwright.layers import legal", "a = legal.LSTM(2, 2)", ""]
    assert ported(path) == newline.join(lines).encode()


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8", "cp1252", "euc-jp"])
def test_declared_encodings(tmp_path: Path, encoding: str) -> None:
    word = "日本" if encoding == "euc-jp" else "é"
    text = (
        f"# -*- coding: {encoding} -*-\nimport torch\ns = '{word}'; x = torch.zeros(3).cuda(); t = '{word}'\n"
    )
    path = tmp_path / "x.py"
    path.write_bytes(text.encode(encoding))
    assert ported(path) == text.replace(".cuda()", "").encode(encoding)


def test_columns_count_characters_not_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text("import torch\nprint('ééé', torch.zeros(3).cuda())\n", encoding="utf-8")
    (finding,) = check_path(path, Project(tmp_path), CSX)
    assert (finding.line, finding.column) == (2, 14)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"import torch\nx = = 1\n", "cannot parse it"),
        (b"import torch\nx = '\x00'\n", "null"),
        (b"import torch\n# \xff\xfe not text\n", "not utf-8"),
        (b"# coding: klingon\nimport torch\n", "encoding"),
        (b"import torch\nx = " + b"(" * 3000 + b")" * 3000, "pars"),
        (b"import torch\nx = t'{y}'\n", "cannot parse it"),  # of Python 3.14
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_finding(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "x.py"
    path.write_bytes(content)
    findings = check_path(path, Project(tmp_path), CSX)
    assert [f.code for f in findings] == ["PW001"]
    assert says in findings[0].message.lower()
    assert path.read_bytes() == content


def test_an_endless_sum_is_read_or_a_finding(tmp_path: Path) -> None:
    """Pythons differ in how deep a tree they build."""
    path = tmp_path / "x.py"
    path.write_bytes(b"import torch\nx = 1 " + b"+ 1 " * 50000)
    assert [f.code for f in check_path(path, Project(tmp_path), CSX)] in ([], ["PW001"])


def test_huge_file_is_a_finding(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_bytes(b"x = 1\n" * (MAX_BYTES // 6 + 1))
    (finding,) = check_path(path, Project(tmp_path), CSX)
    assert finding.code == "PW001"
    assert "bytes" in finding.message


def test_missing_file_and_empty_file(tmp_path: Path) -> None:
    assert check_path(tmp_path / "no.py", Project(tmp_path), CSX)[0].code == "PW001"
    (tmp_path / "empty.py").write_bytes(b"")
    assert check_path(tmp_path / "empty.py", Project(tmp_path), CSX) == []


def test_a_text_that_cannot_be_written_back_is_refused() -> None:
    # iso2022_jp has several spellings of one text.
    raw = b"# coding: iso2022_jp\nx = '\x1b$B\x1b$BF|\x1b(B'\n"
    with pytest.raises(UnreadableError, match="written back"):
        decode(Path("x.py"), raw)


def test_edits_are_made_at_once(tmp_path: Path) -> None:
    source = decode(tmp_path / "x.py", b"abcdef")
    assert source.with_edits([Edit(4, 5, "E"), Edit(0, 1, ""), Edit(6, 6, "!")]).data == b"bcdEf!"


@pytest.mark.parametrize(
    ("comment", "left"),
    [
        ("# portwright: ignore[PW502]", 0),
        ("# portwright: ignore", 0),
        ("#portwright:ignore[PW201, PW502] reason", 0),
        ("# portwright: ignore[PW503]", 1),
        ("# portwright: ignore-nothing", 1),
        ("", 1),
    ],
)
def test_ignore_comments(tmp_path: Path, comment: str, left: int) -> None:
    path = tmp_path / "x.py"
    path.write_text(f"import torch\nx = torch.zeros(3).cuda()  {comment}\n")
    assert len(check_path(path, Project(tmp_path), CSX)) == left
    assert (b".cuda()" in ported(path)) == (left == 0)


def test_an_ignore_comment_in_a_string_is_text(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text("import torch\nx = torch.zeros(3).cuda(); y = '# portwright: ignore'\n")
    assert len(check_path(path, Project(tmp_path), CSX)) == 1


CELLS = [
    ["%matplotlib inline\n", "!pip install torch\n", "import torch\n", "from torch import nn"],
    ["%%bash\n", "echo 'no python' ("],
    [
        "%%time\n",
        "net = nn.LSTM(2, 2)\n",
        "if net:\n",
        "    !ls\n",
        "files = !ls *.py\n",
        "net?\n",
        "await net.cuda()",
    ],
]


def notebook(cells: list[list[str]]) -> dict[str, object]:
    made: list[dict[str, object]] = [{"cell_type": "markdown", "metadata": {}, "source": ["# é\n"]}]
    made += [
        {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": c}
        for c in cells
    ]
    return {"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


@pytest.mark.parametrize(
    "style",
    [
        {"indent": 1, "ensure_ascii": False},
        {"indent": 2, "ensure_ascii": True},
        {"separators": (",", ":")},
    ],
)
def test_notebook_cells_are_ported_and_the_rest_kept(tmp_path: Path, style: dict[str, object]) -> None:
    path = tmp_path / "x.ipynb"
    text = json.dumps(notebook(CELLS), **style) + "\n"  # type: ignore[arg-type]
    path.write_text(text, encoding="utf-8")
    findings = check_path(path, Project(tmp_path), CSX)
    assert [(f.code, f.line, f.message.split(":")[0]) for f in findings] == [
        ("PW312", 2, "cell 4"),
        ("PW502", 7, "cell 4"),
    ]
    after = ported(path).decode()
    assert json.loads(after)["cells"][3]["source"] == [
        "%%time\n", "net = legal.LSTM(2, 2)\n", "if net:\n", "    !ls\n", "files = !ls *.py\n", "net?\n", "await net",
    ]  # fmt: skip
    assert json.loads(after)["cells"][1]["source"][-1] == "from portwright.layers import legal"
    changed = {1, 3}
    before_cells, after_cells = json.loads(text)["cells"], json.loads(after)["cells"]
    assert all(before_cells[i] == after_cells[i] for i in range(4) if i not in changed)
    assert after.endswith("}\n")


def test_notebook_in_an_unusual_layout_is_checked_but_not_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "x.ipynb"
    path.write_text(json.dumps(notebook(CELLS), indent=3))
    assert [f.code for f in check_path(path, Project(tmp_path), CSX)] == ["PW312", "PW502"]
    with pytest.raises(UnreadableError, match="layout"):
        ported(path)


@pytest.mark.parametrize(
    "content", ["", "{}", '{"cells": 3}', '{"cells": [{"cell_type": "code"}]}', "[1]", "nope"]
)
def test_what_is_no_notebook_is_one_finding(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.ipynb"
    path.write_text(content)
    assert [f.code for f in check_path(path, Project(tmp_path), CSX)] == ["PW001"]


@pytest.mark.parametrize("cells", [notebook([]), {"cells": []}])
def test_a_notebook_without_code_has_no_findings_and_stays_as_it_is(
    tmp_path: Path, cells: dict[str, object]
) -> None:
    path = tmp_path / "x.ipynb"
    cells["about"] = "import torch"
    path.write_text(json.dumps(cells, indent=1))
    assert check_path(path, Project(tmp_path), CSX) == []
    assert ported(path) == path.read_bytes()


def test_a_cell_that_is_no_python_does_not_hide_the_others(tmp_path: Path) -> None:
    path = tmp_path / "x.ipynb"
    cells = [
        ["import torch\n", "from torch import nn"],
        ["print 'old'\n", "x = (1,\n"],
        ["net = nn.LSTM(2, 2)"],
    ]
    path.write_text(json.dumps(notebook(cells), indent=1))
    findings = check_path(path, Project(tmp_path), CSX)
    assert [(f.code, f.line, f.message.split(":")[0]) for f in findings] == [
        ("PW001", 1, "cell 3"),
        ("PW312", 1, "cell 4"),
    ]
    after = json.loads(ported(path))["cells"]
    assert after[2]["source"] == ["print 'old'\n", "x = (1,\n"]
    assert after[3]["source"] == ["net = legal.LSTM(2, 2)"]
