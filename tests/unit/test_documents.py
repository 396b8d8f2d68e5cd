"""What README.md, CHANGELOG.md and docs/ say of the code, where that can be looked up."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import portwright

ROOT = Path(__file__).parents[2]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_version_is_the_one_that_the_changelog_is_at() -> None:
    newest = re.search(r"^## (\S+)", read("CHANGELOG.md"), re.M)
    assert newest is not None
    assert newest[1] == portwright.__version__


def test_the_drawings_of_the_architecture_name_what_the_product_uses() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    drawings = "\n".join(re.findall(r"```\w*\n(.*?)```", read("docs/architecture.md"), re.S))
    names = set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b|\b[A-Z][a-z]+[A-Z]\w+\b", drawings))
    assert "make_plan" in names
    assert not {name for name in names if not re.search(rf"(?<!def )(?<!class )\b{name}\b", source)}


def test_a_figure_of_a_gpu_has_its_date_and_its_commit() -> None:
    pages = ["README.md", "CHANGELOG.md", *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
    found = 0
    for page in pages:
        for section in re.split(r"^#+ ", read(page), flags=re.M):
            stamps = re.findall(r"H200, 20\d\d-\d\d-\d\d,\s+commit [0-9a-f]{7}\b", section)
            assert stamps or "H200" not in section, f"{page}: {section.splitlines()[0]}"
            found += len(stamps)
    assert found >= 10


def test_readme_counts_the_corpus_as_its_page_does() -> None:
    page = read("docs/corpus.md")
    count = re.search(r"^(\d+) public PyTorch training projects", page, re.M)
    before, after = (
        re.search(rf"^\| accepted [^|]*{when}[^|]*\| (\d+) \|$", page, re.M) for when in ("before", "after")
    )
    assert None not in (count, before, after)
    told = f"{count[1]} public projects, ported in place and equal over 20 steps: Cerebras's front end took {before[1]}"
    assert f"{told} of them before the port and {after[1]} after" in read("README.md")


def test_an_option_that_readme_shows_exists() -> None:
    """Of each `portwright COMMAND ...` line; what stands behind a script belongs to the script."""
    from typer.main import get_command

    from portwright.cli import app

    commands = get_command(app).commands  # type: ignore[attr-defined]
    lines = [
        shlex.split(line, comments=True)
        for line in read("README.md").splitlines()
        if line.startswith("portwright ")
    ]
    assert len(lines) > 25
    for _, name, *words in lines:
        command = commands[name]
        if "commands" in vars(command):
            command = command.commands[words.pop(0)]
        if name in ("run", "emulate"):
            continue
        known = {option for p in command.params for option in (*p.opts, *p.secondary_opts)}
        assert {word.partition("=")[0] for word in words if word.startswith("-")} <= known, name


def test_honesty_names_tests_that_are_there() -> None:
    """Read from the tests' own text, without running it: a function of the file, not of a text in it."""
    page = read("docs/honesty.md")
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page)
    assert len(named) > 50
    assert len(named) == page.count("`tests/")
    for path, test in named:
        functions = {n.name for n in ast.walk(ast.parse(read(path))) if isinstance(n, ast.FunctionDef)}
        assert test in functions or (not test and any(name.startswith("test_") for name in functions)), (
            f"{path}::{test}"
        )


def test_readme_says_of_each_target_what_it_is() -> None:
    from portwright.discover import find_targets

    table = re.search(r"^## What is real\n(.*?)^## ", read("README.md"), re.M | re.S)
    assert table is not None
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table[1].splitlines()
        if line.startswith("| ")
    ]
    told = {names: trains for names, trains, _ in rows[1:]}
    assert told.pop("CSX, TensorFlow").startswith("no: ")
    assert "cslc" in told.pop("CSX, `--hpc`")
    for name, target in find_targets().items():
        (trains,) = [each for names, each in told.items() if name.upper() in names.split(", ")]
        assert "PyTorch" in trains
        assert ("TensorFlow" in trains) == (target.tensorflow_device is not None)


def test_a_model_that_readme_names_is_there() -> None:
    from portwright.discover import find_all_models

    line = next(each for each in read("README.md").splitlines() if each.startswith("portwright models"))
    named = [
        word
        for word in re.split(r"[^\w]+", line.partition("#")[2])
        if word not in ("and", "its", "heads", "")
    ]
    assert {"gpt2", "t5", "unet"} <= set(named)
    assert set(named) <= {name.rpartition("/")[2] for name in find_all_models()}
