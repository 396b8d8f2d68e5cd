from __future__ import annotations

import os
from pathlib import Path

import pytest
from unit.launch.script_jobs import make_site

from portwright.errors import UserError
from portwright.launch.container import (
    fold_binds,
    foreign_flags,
    make_container,
    parse_bind,
    shell_words,
    start_words,
)
from portwright.launch.job import Container
from portwright.launch.site import Site


def site(**container: object) -> Site:
    return make_site(container={"kind": "apptainer", "image": "/images/a.sif", **container})


def test_no_container_where_neither_side_asks_for_one() -> None:
    assert make_container(make_site(), image=None, kind=None, paths=[]) is None
    assert make_container(site(), image=None, kind="none", paths=[]) is None


def test_the_command_line_comes_before_the_site() -> None:
    made = make_container(
        site(images_on_nodes=["/local/a.sif"]), image="/mine.sif", kind="singularity", paths=[]
    )
    assert made is not None
    assert (made.kind, made.image, made.images_on_nodes) == ("singularity", "/mine.sif", ())
    of_site = make_container(
        site(images_on_nodes=["/local/a.sif"], flags=["--nv"]), image=None, kind=None, paths=[]
    )
    assert of_site is not None
    assert (of_site.image, of_site.images_on_nodes, of_site.flags) == (
        "/images/a.sif",
        ("/local/a.sif",),
        ("--nv",),
    )


def test_paths_are_bound_where_they_are_and_where_links_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tmp_path / "real data"
    (real / "train").mkdir(parents=True)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "data").symlink_to(real)
    monkeypatch.chdir(tmp_path / "home")
    made = make_container(
        site(binds=["/local1/data"]),
        image=None,
        kind=None,
        paths=[Path("data"), real / "train"],
        extra_binds=[f"{real}:/d"],
    )
    assert made is not None
    assert set(made.binds) == {
        ("/local1/data", "/local1/data"),
        (str(real), "/d"),
        (str(tmp_path / "home" / "data"), str(tmp_path / "home" / "data")),
        (str(real), str(real)),
    }


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ([("/a/b", "/a/b"), ("/a", "/a"), ("/a/b/c", "/a/b/c")], [("/a", "/a")]),
        ([("/ab", "/ab"), ("/a", "/a")], [("/a", "/a"), ("/ab", "/ab")]),
        ([("/a", "/a"), ("/a", "/a")], [("/a", "/a")]),
        # Another folder at a place inside must stay, and what lies in it is seen from there.
        (
            [("/a", "/a"), ("/x", "/a/b"), ("/a/b/c", "/a/b/c")],
            [("/a", "/a"), ("/x", "/a/b"), ("/a/b/c", "/a/b/c")],
        ),
        ([("/x", "/d"), ("/x/y", "/d/y")], [("/x", "/d")]),
    ],
)
def test_binds_are_folded(given: list[tuple[str, str]], kept: list[tuple[str, str]]) -> None:
    assert list(fold_binds(given)) == kept


def test_two_sources_of_one_place_are_refused() -> None:
    with pytest.raises(UserError, match="both bound to '/d'"):
        fold_binds([("/a", "/d"), ("/b", "/d")])


@pytest.mark.parametrize(
    ("kind", "path", "is_bound"),
    [
        ("apptainer", "/a b'$x%ü", True),
        ("apptainer", "/a:b", False),
        ("singularity", "/a,b", False),
        ("singularity", '/a"b', False),
        ("singularity", "/a\\b'c", True),
        ("apptainer", '/a\\b"c', True),
        ("ch-run", '/a,b"\\', True),
        ("ch-run", "/a:b", False),
        ("ch-run", "/a\nb", False),
    ],
)
def test_paths_that_cannot_be_bound_are_an_error(kind: str, path: str, is_bound: bool) -> None:
    if is_bound:
        made = make_container(site(), image=None, kind=kind, paths=[Path(path)])
        assert made is not None
        assert made.binds == ((path, path),)
    else:
        with pytest.raises(UserError, match="cannot see"):
            make_container(site(), image=None, kind=kind, paths=[Path(path)])


@pytest.mark.parametrize("path", ["/", "/usr", "/etc", "/usr/lib/"])
def test_what_the_image_has_itself_is_not_hidden(path: str) -> None:
    with pytest.raises(UserError, match="the image has itself"):
        make_container(site(), image=None, kind=None, paths=[Path(path)])
    with pytest.raises(UserError, match="the image has itself"):
        make_container(site(), image=None, kind=None, paths=[], extra_binds=[f"/home/me:{path}"])


@pytest.mark.parametrize("text", ["", ":", "/a:", ":/a", "/a:b", "/a:/b:ro"])
def test_binds_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match="the bind is"):
        parse_bind(text)


def test_errors_name_what_was_received() -> None:
    with pytest.raises(UserError, match="'docker' runs no containers"):
        make_container(site(), image=None, kind="docker", paths=[])
    with pytest.raises(UserError, match="which image"):
        make_container(make_site(), image=None, kind="apptainer", paths=[])
    with pytest.raises(UserError, match="ch-run takes a folder"):
        make_container(site(), image="docker://python:3.11", kind="ch-run", paths=[])


def test_images_are_absolute_and_uris_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = make_container(site(), image="my image.sif", kind=None, paths=[])
    remote = make_container(site(), image="docker://python:3.11-slim", kind=None, paths=[])
    assert made is not None
    assert made.image == str(tmp_path / "my image.sif")
    assert remote is not None
    assert remote.image == "docker://python:3.11-slim"


def test_packages_are_bound() -> None:
    made = make_container(site(), image=None, kind=None, paths=[], packages=Path("/opt/packages"))
    assert made is not None
    assert made.packages == "/opt/packages"
    assert ("/opt/packages", "/opt/packages") in made.binds


@pytest.mark.parametrize(
    ("of_site", "kind", "are_kept"),
    [
        ("apptainer", "apptainer", True),
        ("apptainer", "singularity", True),
        ("singularity", "apptainer", True),
        ("none", "apptainer", True),
        ("apptainer", "ch-run", False),
        ("none", "ch-run", False),
    ],
)
def test_flags_of_the_site_go_with_its_own_kind(of_site: str, kind: str, are_kept: bool) -> None:
    there = site(kind=of_site, flags=["--nv"])
    made = make_container(there, image="/i", kind=kind, paths=[])
    assert made is not None
    assert made.flags == (("--nv",) if are_kept else ())
    assert foreign_flags(there, made.kind) == (() if are_kept else ("--nv",))


def test_flags_of_ch_run_stay_with_it() -> None:
    there = site(kind="ch-run", image="/images/folder", flags=["--home"])
    own = make_container(there, image=None, kind=None, paths=[])
    other = make_container(there, image="/i.sif", kind="apptainer", paths=[])
    assert own is not None
    assert own.flags == ("--home",)
    assert other is not None
    assert other.flags == ()


def test_the_words_of_each_kind(tmp_path: Path) -> None:
    binds = (("/a b", "/a b"), ("/c", "/d"))
    apptainer = Container("apptainer", "/i.sif", binds, flags=("--nv",))
    assert start_words(apptainer) == ["apptainer", "exec", "--cleanenv", "--nv"]
    assert shell_words(apptainer, workdir=Path("/w"), visible=["X"]) == [
        *("apptainer", "shell", "--cleanenv", "--nv", "--bind", "/a b", "--bind", "/c:/d"),
        *("--pwd", "/w", "/i.sif"),
    ]
    open_one = Container("singularity", "/i.sif", (), clean_env=False)
    assert start_words(open_one) == ["singularity", "exec"]
    assert shell_words(open_one, workdir=Path("/w")) == ["singularity", "shell", "--pwd", "/w", "/i.sif"]

    ch_run = shell_words(Container("ch-run", str(tmp_path), binds), workdir=Path("/w"), visible=["A", "B"])
    assert ch_run[:2] == ["ch-run", "--unset-env=!(HOME|TERM|A|B)"]
    assert "--set-env" not in ch_run
    assert ch_run[-5:] == ["--cd", "/w", str(tmp_path), "--", "bash"]
    (tmp_path / "ch").mkdir()
    (tmp_path / "ch" / "environment").touch()
    assert "--set-env" in shell_words(Container("ch-run", str(tmp_path), binds), workdir=Path("/w"))


def test_values_never_become_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "planted-value")
    for kind in ("apptainer", "singularity", "ch-run"):
        words = shell_words(Container(kind, "/i", ()), workdir=Path(os.sep), visible=["TOKEN"])  # type: ignore[arg-type]
        assert not any("planted-value" in word for word in words)
