"""Many files: discovery, settings, processes and the cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from portwright.errors import UserError
from portwright.port import api, many
from portwright.port.cache import cache_folder
from portwright.port.config import Config, make_selection, read_config
from portwright.port.files import find_files
from portwright.port.report_formats import write_report

CODE = "import torch\nx = torch.zeros(3).cuda()\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text("")
    monkeypatch.chdir(project)
    return project


def make(*names: str, text: str = CODE) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)


def found(*paths: str, **options: object) -> list[str]:
    findings = api.check([Path(p) for p in paths], **options).findings  # type: ignore[arg-type]
    return [f"{f.path}:{f.line} {f.code}" for f in findings]


def test_folders_are_searched_and_rubbish_left_out() -> None:
    make(
        "a.py",
        "sub/b.py",
        ".venv/c.py",
        "__pycache__/d.py",
        "env/pyvenv.cfg",
        "env/e.py",
        "text.txt",
        ".hidden.py",
    )
    make("copy/.portwright/port.json", "copy/f.py")
    Path("loop").symlink_to(".")
    Path("sub/up").symlink_to("..")
    files = [str(p.relative_to(Path.cwd())) for p in find_files([Path()])]
    assert files == ["a.py", "sub/b.py"]
    assert [p.name for p in find_files([Path(".venv"), Path("copy/f.py"), Path("copy/f.py")])] == [
        "c.py",
        "f.py",
    ]
    assert [p.name for p in find_files([Path()], ["sub"])] == ["a.py"]
    assert [p.name for p in find_files([Path()], ["*.py"])] == []
    assert [p.name for p in find_files([Path()], ["sub/*.py", "z"])] == ["a.py"]


@pytest.mark.parametrize(
    ("path", "says"), [("no.py", "does not exist"), ("x.txt", "neither"), ("empty", "no Python file")]
)
def test_bad_paths(path: str, says: str) -> None:
    make("x.txt")
    Path("empty").mkdir()
    with pytest.raises(UserError, match=says):
        api.check([Path(path)])


@pytest.mark.parametrize(
    ("targets", "select", "ignore", "says"),
    [
        (["cxs"], [], [], "Did you mean 'csx'"),
        ([], ["PW999"], [], "no rule is called 'PW999'"),
        ([], [], ["item-in-stp"], "no rule"),
        ([], [""], [], "no rule is called ''"),
    ],
)
def test_unknown_names(targets: list[str], select: list[str], ignore: list[str], says: str) -> None:
    with pytest.raises(UserError) as error:
        make_selection(Config(), targets, select, ignore)
    assert says in str(error.value)


def test_selection() -> None:
    every = make_selection(Config(), [], [], [])
    assert {"csx", "ipu", "rdu"} == every.targets
    assert {r.code for r in make_selection(Config(), ["CSX"], ["PW2"], ["PW201"]).rules} == {
        r.code for r in every.rules if r.code.startswith("PW2") and r.code != "PW201"
    }
    assert [r.code for r in make_selection(Config(), [], ["item-in-step"], []).rules] == ["PW201"]
    assert make_selection(Config(), ["csx, ipu"], ["PW2,PW3"], []).targets == {"csx", "ipu"}
    assert make_selection(Config(targets=("ipu",)), [], [], []).targets == {"ipu"}
    assert make_selection(Config(targets=("ipu",)), ["csx"], [], []).targets == {"csx"}


def test_a_target_that_takes_torch_as_it_is_has_no_findings() -> None:
    make("a.py")
    assert found("a.py", targets=["gpu"]) == []


def test_settings_in_pyproject() -> None:
    make("a.py", "gen/b.py")
    Path("pyproject.toml").write_text(
        '[tool.portwright]\nignore = ["PW503"]\nexclude = ["gen"]\ntargets = ["csx"]\n'
    )
    assert found(".") == ["a.py:2 PW502"]
    Path("pyproject.toml").write_text('[tool.portwright]\nselect = ["PW1"]\n')
    assert found(".") == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[tool.portwright]\nselcet = []\n", "Did you mean 'select'"),
        ('[tool.portwright]\nselect = "PW1"\n', "list of texts"),
        ("[tool.portwright]\nselect = [1]\n", "list of texts"),
        ("[tool.portwright\n", "not TOML"),
    ],
)
def test_bad_settings(text: str, says: str) -> None:
    Path("pyproject.toml").write_text(text)
    with pytest.raises(UserError) as error:
        read_config(Path.cwd())
    assert says in str(error.value)


def test_processes_do_not_change_what_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "_BYTES_FOR_A_PROCESS", 10)
    make(*(f"m{i}.py" for i in range(7)))
    make("bad.py", text="import torch\nx = = 1\n")
    alone, together = (found(".", jobs=n, use_cache=False) for n in (1, 3))
    assert alone == together
    assert len(alone) == 8


def test_a_process_that_dies_is_stood_in_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "_BYTES_FOR_A_PROCESS", 10)
    monkeypatch.setattr(many.sys, "executable", "/bin/false")
    make("a.py", "b.py", "c.py")
    assert found(".", jobs=2, use_cache=False) == [f"{n}.py:2 PW502" for n in "abc"]


def count_checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    checked: list[str] = []
    real = many.check_path

    def spy(path: Path, *rest: object) -> object:
        checked.append(path.name)
        return real(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(many, "check_path", spy)
    return checked


def test_unchanged_files_are_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = count_checks(monkeypatch)
    make("a.py", "b.py")
    first = found(".")
    assert sorted(checked) == ["a.py", "b.py"]
    checked.clear()
    assert found(".") == first
    assert checked == []
    make("b.py", text=CODE + "\n")
    assert found(".") == first
    assert checked == ["b.py"]
    checked.clear()
    found(".", use_cache=False)
    assert sorted(checked) == ["a.py", "b.py"]


def test_a_file_is_checked_again_when_what_it_imports_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = count_checks(monkeypatch)
    make("net.py", text="class Base: pass\n")
    user = "import torch\nfrom net import Base\nclass Net(Base):\n    def forward(self, x):\n        return x.item()\n"
    make("use.py", text=user)
    assert found(".", targets=["csx"]) == []
    make("net.py", text="from torch import nn\nclass Base(nn.Module): pass\n")
    checked.clear()
    assert found(".", targets=["csx"]) == ["use.py:5 PW201"]
    assert sorted(checked) == ["net.py", "use.py"]


def test_a_file_that_appears_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    user = "import torch\nfrom net import nn\na = nn.LSTM(1, 1)\n"
    make("use.py", text=user)
    assert found("use.py", targets=["csx"]) == []
    make("net.py", text="from torch import nn\n")
    assert found("use.py", targets=["csx"]) == ["use.py:3 PW312"]


def test_a_damaged_cache_is_no_cache() -> None:
    make("a.py")
    first = found(".")
    for content in ("", "{", "[]", '{"missing": [], "entries": {"x": 1}}', '{"missing": 3}'):
        for file in cache_folder().iterdir():
            file.write_text(content)
        assert found(".") == first


def test_a_cache_that_cannot_be_written_is_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    make("a.py")
    assert found(".") == ["a.py:2 PW502"]


def test_odd_names_and_what_is_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe.py")
    make("a b.py", "ü\n.py", os.fsdecode(b"\xff.py"))
    Path("folder.py").mkdir()
    result = api.check([Path()], ["csx"])
    assert sorted(f.code for f in result.findings) == ["PW001", "PW502", "PW502", "PW502"]
    for format in ("text", "json", "sarif", "html"):
        write_report(result, format)
    assert "\\udcff.py:2:5: PW502" in capsys.readouterr().out
    assert len(found(".", targets=["csx"])) == 4  # from the cache
