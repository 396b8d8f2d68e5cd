"""Jobs of a Cerebras cluster, with a csctl that prints what the real one does."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from portwright.errors import UserError
from portwright.launch import csctl

HEADS = (
    "SESSION",
    "NAME",
    "TYPE",
    "PRIORITY",
    "AGE",
    "DURATION",
    "PHASE",
    "SYSTEMS",
    "USER",
    "LABELS",
    "WORKFLOW",
)
WIDTHS = (14, 30, 9, 10, 5, 10, 9, 9, 9, 26, 9)
Put = Callable[[str], Path]


def table(*rows: dict[str, str]) -> str:
    """As csctl prints it: a value that is longer than its column pushes those after it."""
    given = [
        {
            "SESSION": "job-operator",
            "TYPE": "execute",
            "PRIORITY": "P2 (299)",
            "AGE": "12m",
            "DURATION": "12m",
        }
        | row
        for row in rows
    ]
    lines = [dict(zip(HEADS, HEADS, strict=True)), *given]
    return "".join(
        " ".join(row.get(head, "").ljust(width - 1) for head, width in zip(HEADS, WIDTHS, strict=True)).rstrip() + "\n"
        for row in lines
    )  # fmt: skip


def job(
    letter: str, phase: str = "RUNNING", label: str = "mine-1", user: str = "me", **more: str
) -> dict[str, str]:
    labels = f"name={label},user={user}"
    return {
        "NAME": "wsjob-" + 22 * letter,
        "PHASE": phase,
        "USER": user,
        "LABELS": labels,
        "WORKFLOW": "w",
    } | more


@pytest.fixture(autouse=True)
def _me(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "me")


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Puts a csctl on PATH, which writes its words to calls.txt."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def write(body: str) -> Path:
        (folder / "csctl").write_text(f'#!/bin/bash\necho "$*" >>"{tmp_path}/calls.txt"\n{body}\n')
        (folder / "csctl").chmod(0o755)
        return tmp_path / "calls.txt"

    return write


def listing(text: str) -> str:
    return f"if [ $1 = get ]; then cat <<'X'\n{text}X\nexit; fi"


def test_jobs_are_listed_and_ended_by_their_label(put: Put) -> None:
    calls = put(listing(table(job("a"), job("b", "QUEUED", "mine-10"), job("c", "FAILED", SYSTEMS="cs-1"))))
    assert [each.name[6] for each in csctl.list_jobs("name=mine-1")] == ["a", "c"]
    assert csctl.cancel_jobs("name=mine-1") == ["wsjob-" + 22 * "a"]
    assert calls.read_text().splitlines()[-1] == f"cancel job wsjob-{22 * 'a'}"


def test_another_users_job_of_the_same_label_is_left_alone(put: Put) -> None:
    calls = put(listing(table(job("a", user="ann"), job("b"))))
    assert csctl.cancel_jobs("name=mine-1") == ["wsjob-" + 22 * "b"]
    assert "wsjob-a" not in calls.read_text()


def test_a_user_may_be_a_number_or_not_be_told(put: Put) -> None:
    text = table(job("a", user=str(os.getuid())), job("b", USER="", LABELS="name=mine-1"))
    put(listing(text))
    assert [each.name[6] for each in csctl.list_jobs("name=mine-1")] == ["a", "b"]
    put(listing("NAME     PHASE    LABELS\nwsjob-a  RUNNING  name=mine-1\n"))
    assert [(each.name, each.user) for each in csctl.list_jobs("name=mine-1")] == [("wsjob-a", "")]


def test_one_that_cannot_be_ended_does_not_spare_the_others(put: Put) -> None:
    text = table(job("a"), job("b"), job("c"))
    refusing = "case $3 in wsjob-a*) echo permission denied >&2; exit 1 ;; esac"
    calls = put(f"{listing(text)}\n{refusing}")
    with pytest.raises(UserError) as told:
        csctl.cancel_jobs("name=mine-1")
    assert f"cancel job wsjob-{22 * 'c'}" in calls.read_text()
    for part in ("permission denied", "wsjob-a", f"ended wsjob-{22 * 'b'}, wsjob-{22 * 'c'}"):
        assert part in told.value.message


def test_one_that_ended_by_itself_meanwhile_is_no_failure(put: Put, tmp_path: Path) -> None:
    (tmp_path / "before").write_text(table(job("a"), job("b")))
    (tmp_path / "after").write_text(table(job("a", "CANCELLED"), job("b", "CANCELLED")))
    put(
        f'cd "{tmp_path}"; if [ $1 = get ]; then cat before; exit; fi\n'
        "case $3 in wsjob-b*) cp after before; echo it has ended >&2; exit 1 ;; esac"
    )
    assert csctl.cancel_jobs("name=mine-1") == ["wsjob-" + 22 * "a"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"SESSION": "a-session-with-a-long-name"},
        {"AGE": "143h12m33s"},
        {"DURATION": "1143h12m33s", "SYSTEMS": "cs-1, cs-2"},
        {"PRIORITY": "P2 (2999999)"},
        {"SYSTEMS": "systemCS3-1,systemCS3-2"},
        {"SYSTEMS": "", "AGE": "143h12m33s"},
        {"LABELS": "name=mine-1,user=me,model=a-model-with-a-long-name"},
        {"SESSION": "", "TYPE": "a-new-type", "WORKFLOW": ""},
    ],
)  # fmt: skip
def test_a_value_longer_than_its_column_pushes_the_others(changes: dict[str, str]) -> None:
    (found,) = csctl.parse_jobs(table(job("a", **changes)))
    assert (found.name, found.phase, found.user) == ("wsjob-" + 22 * "a", "RUNNING", "me")
    assert found.labels.startswith("name=mine-1,user=me")
    assert found.kind == changes.get("TYPE", "execute")


def test_the_table_of_the_sites_own_page() -> None:
    """From ALCF's guide, where a name of eight letters pushes the labels."""
    (found,) = csctl.parse_jobs(
        "NAME                          AGE    PHASE      SYSTEMS                USER     LABELS\n"
        "wsjob-eyjapwgnycahq9tus4w7id  88s    RUNNING    cer-cs2-01             username  name=pt_smoketest,user=username\n"
    )
    assert (found.user, found.labels) == ("username", "name=pt_smoketest,user=username")


def test_csctl_that_fails_or_is_not_there(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    put("echo no cluster >&2; exit 3")
    with pytest.raises(UserError, match="no cluster"):
        csctl.list_jobs("name=x")
    assert csctl.parse_jobs("") == csctl.parse_jobs("No jobs found\n") == []
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(UserError, match="no program csctl here"):
        csctl.list_jobs("name=x")
