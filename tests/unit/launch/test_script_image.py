"""The recipes of our image, as far as they can be held without a registry: their form, and what their shell parts do."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import portwright.launch

FOLDER = Path(portwright.launch.__file__).parent
DEFINITION = (FOLDER / "portwright.def").read_text()
# Sections that Apptainer 1.2 knows.
SECTIONS = {
    *(
        "setup",
        "files",
        "environment",
        "post",
        "runscript",
        "startscript",
        "test",
        "labels",
        "help",
        "arguments",
    )
}


def sections() -> dict[str, str]:
    parts = re.split(r"^%(\w+)[ \t]*\n", DEFINITION, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_definition_has_a_header_and_known_sections() -> None:
    header = [
        line for line in DEFINITION.split("%arguments")[0].splitlines() if line and not line.startswith("#")
    ]
    assert header == ["Bootstrap: docker", "From: python:3.11-slim"]
    assert set(sections()) <= SECTIONS
    assert {"post", "test", "help", "labels", "runscript", "environment"} <= set(sections())


def test_every_argument_is_declared_and_used() -> None:
    declared = dict(
        line.strip().split("=", 1) for line in sections()["arguments"].splitlines() if line.strip()
    )
    assert set(re.findall(r"\{\{ (\w+) \}\}", DEFINITION)) == {*declared, "wheel"}  # which has no default
    assert all(declared.values())  # Apptainer takes no empty default
    assert re.fullmatch(r"\d+\.\d+\.\d+", declared["torch"])


@pytest.mark.parametrize("section", ["post", "test", "environment", "runscript"])
def test_shell_sections_are_sound(section: str) -> None:
    text = re.sub(r"\{\{ (\w+) \}\}", r"\1", sections()[section])
    subprocess.run(["sh", "-n"], input=text, text=True, check=True)
    if shutil.which("shellcheck"):
        found = subprocess.run(
            ["shellcheck", "--shell=sh", "-"], input=text, text=True, capture_output=True, check=False
        )
        assert found.stdout == ""


def test_both_recipes_pin_the_same_torch() -> None:
    script = (FOLDER / "ch_image.sh").read_text()
    pinned = re.search(r"torch=\$\{3:-([\d.]+)\}", script)
    assert pinned is not None
    assert f"torch={pinned[1]}\n" in sections()["arguments"]


def test_the_charliecloud_recipe_goes_step_by_step(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("ch-image", "ch-convert", "ch-run"):
        (programs / name).write_text(
            f'#!/bin/sh\necho {name} "$@" >>{tmp_path}/said\n'
            '[ "$1" != python:3.11-slim ] || mkdir -p "$2/ch"\n[ -z "$BROKEN" ] || [ "$(basename $0)" != ch-run ]\n'
        )
        (programs / name).chmod(0o755)
    wheel = tmp_path / "my dist" / "portwright-1-py3-none-any.whl"
    wheel.parent.mkdir()

    def build(*words: str, **environ: str) -> int:
        return subprocess.run(
            ["bash", str(FOLDER / "ch_image.sh"), *words],
            env={"PATH": f"{programs}:/usr/bin:/bin", "BROKEN": "", **environ},
            cwd=tmp_path,
            capture_output=True,
            check=False,
        ).returncode

    assert build(str(wheel), "image") == 2
    wheel.touch()
    assert build(str(wheel), "image", BROKEN="1") == 1
    assert not (tmp_path / "image").exists()
    assert build(str(wheel), "image", "2.4.0", "--index-url", "ADDRESS") == 0
    assert (tmp_path / "image" / "ch" / "environment").read_text().startswith("LC_ALL")
    said = (tmp_path / "said").read_text()
    assert "pip install --no-cache-dir --index-url ADDRESS torch==2.4.0" in said
    assert "pip install --no-cache-dir /mnt/0/portwright-1-py3-none-any.whl[torch]" in said
    assert build(str(wheel), "image") == 2
