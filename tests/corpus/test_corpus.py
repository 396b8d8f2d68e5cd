"""Public training projects: checked, ported, verified over 20 steps, and shown to the real Cerebras front end.

They are not part of this repository. PORTWRIGHT_CORPUS=DIR names a folder that holds them unpacked as OWNER+NAME (docs/corpus.md
lists repositories and commits); PORTWRIGHT_CORPUS_PACKAGES=DIR one with packages that some of them import (einops, pandas).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from corpus.runner import HERE, NUM_STEPS, Project, Result, has_front_end, load, run

CORPUS = os.environ.get("PORTWRIGHT_CORPUS")
PACKAGES = os.environ.get("PORTWRIGHT_CORPUS_PACKAGES")
PROJECTS = load()


def known_results() -> dict[str, Result]:
    content = json.loads((HERE / "results.json").read_text())["projects"]
    return {name: Result(**fields) for name, fields in content.items()}


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.name)
def test_a_public_project(project: Project, tmp_path: Path) -> None:
    if CORPUS is None:
        pytest.skip("PORTWRIGHT_CORPUS=DIR names no folder of public projects")
    if not (Path(CORPUS) / project.folder).is_dir():
        pytest.skip(f"{project.repository} is not in PORTWRIGHT_CORPUS")
    packages = Path(PACKAGES) if PACKAGES else None
    if project.missing(packages):
        pytest.skip(f"{', '.join(project.missing(packages))} is not installed")
    front_end = has_front_end()
    result = run(project, Path(CORPUS), tmp_path, packages, front_end)
    before = known_results()[project.name]
    assert result.failure == ""
    assert result.second_port_changes == 0
    assert result.compiles
    assert result.check == before.check, result.check_reason
    assert result.verdict == before.verdict, result.difference
    assert not result.verified or result.steps == NUM_STEPS
    if not front_end:
        pytest.skip(
            f"{project.name} is verified, but the Cerebras SDK is not installed: its front end was not asked"
        )
    assert (result.accepted_before, result.accepted_after) == (
        before.accepted_before,
        before.accepted_after,
    ), result.words_after


def test_thirty_projects_of_different_kinds_with_a_commit_each() -> None:
    assert len(PROJECTS) >= 30
    assert len({project.name for project in PROJECTS}) == len(PROJECTS)
    assert len({project.kind for project in PROJECTS}) == len(PROJECTS)
    for project in PROJECTS:
        assert re.fullmatch(r"[0-9a-f]{40}", project.commit), project.name
        assert bool(project.script) != bool(project.driver), project.name
        assert not project.driver or (HERE / "drivers" / project.driver).is_file(), project.name
        same = [p for p in PROJECTS if p.repository == project.repository]
        assert len(same) <= 4, project.repository


def test_results_are_of_these_projects_and_reach_the_goal() -> None:
    results = known_results()
    assert set(results) == {project.name for project in PROJECTS}
    for name, result in results.items():
        assert result.failure == "", name
        assert result.second_port_changes == 0, name
        assert result.compiles, name
        assert result.check, name
        assert result.verified or result.difference, name
        assert result.accepted_after is True or result.words_after, name
    both = [r for r in results.values() if r.verified and r.steps == NUM_STEPS and r.accepted_after]
    assert len(both) >= 20
    assert sum(result.check == "cannot tell" for result in results.values()) <= 3


def test_no_line_of_a_result_names_a_folder_of_a_machine() -> None:
    text = (HERE / "results.json").read_text()
    assert not re.search(r"/(?:tmp|home|root|work|Users)/", text)


def test_the_page_says_what_the_results_say() -> None:
    tool = HERE.parents[1] / "tools" / "make_corpus_table.py"
    done = subprocess.run([sys.executable, str(tool), "--check"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
