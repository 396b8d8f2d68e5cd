import json

import pytest
import typer
from typer.testing import CliRunner

from portwright.cli.launch import complete_sites, sites
from portwright.errors import UserError
from portwright.launch import site_pages
from portwright.launch.site_files import SHIPPED, load_site

app = typer.Typer()
app.command()(sites)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    own = tmp_path / "config" / "portwright" / "sites"
    own.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("PORTWRIGHT_SITES", raising=False)
    monkeypatch.setenv("COLUMNS", "110")
    return own


def run(*words):
    done = CliRunner().invoke(app, list(words))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.stdout


def test_the_list_has_every_site_and_says_what_can_be_used(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    lines = run().splitlines()
    assert lines[0].split()[:5] == ["name", "scheduler", "targets", "tasks", "container"]
    rows = {line.split()[0]: line for line in lines if not line.startswith(" ")}
    assert rows["neocortex"].split()[1:5] == ["slurm", "CSX,", "CPU", "stream"]
    assert rows["neocortex"].endswith("no: sbatch is not on PATH")
    assert rows["alcf-cerebras"].endswith("no: csctl is not on PATH")
    assert rows["local"].endswith("yes")
    assert any("two Cerebras CS-2" in line for line in lines)


def test_a_site_with_its_scheduler_here_may_still_be_elsewhere(monkeypatch, tmp_path):
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert site_pages.why_not_here(load_site("slurm-gpu")) is None
    assert site_pages.why_not_here(load_site("neocortex")) == "/ocean is not here"


def test_own_and_broken_sites_are_told_apart(folder):
    (folder / "neocortex.toml").write_text('extends = "neocortex"\n')
    (folder / "broken.toml").write_text('scheduler = "slurm"\ntarget = "GPU"\n[job]\nntask = 1\n')
    text = run()
    assert f"yours: {folder / 'neocortex.toml'}, instead of {SHIPPED / 'neocortex.toml'}" in " ".join(
        text.split()
    )
    assert "broken: this file is wrong" in text
    assert f"    {folder / 'broken.toml'}:4: job.ntask: unknown key" in text
    assert "slurm-gpu" in text
    rows = {row["name"]: row for row in json.loads(run("--json"))["sites"]}
    assert "unknown key" in rows["broken"]["error"]
    assert rows["neocortex"]["instead_of"] == [str(SHIPPED / "neocortex.toml")]
    assert rows["local"]["shipped"]
    assert rows["local"]["error"] is None


def test_one_site_is_told_whole():
    text = run("neocortex")
    for part in (
        "cs:cerebras:1",
        "2-00:00:00",
        "--cs_ip ${CS_IP_ADDR}",
        "cbcore_latest.sif",
        "neocortex.psc.edu",
        "job.gres",
        "has cslc",
    ):
        assert part in text
    assert 'extends = "neocortex"' in text
    assert "my-neocortex.toml" in text


def test_every_set_key_of_every_site_is_on_its_page():
    for path in sorted(SHIPPED.glob("*.toml")):
        site = load_site(path.stem)
        text = run(path.stem)
        for table in ("job", "launch", "container", "environment", "storage", "interactive", "login"):
            for key in getattr(site, table).model_fields_set:
                if getattr(getattr(site, table), key):
                    assert f"  {key} " in text, (path.stem, table, key)


def test_a_container_without_an_image_says_where_one_comes_from(folder):
    (folder / "mine.toml").write_text('extends = "slurm-gpu"\n[container]\nkind = "apptainer"\n')
    assert "none; name one with --image" in run("mine")


def test_one_site_as_json_has_all_its_keys():
    document = json.loads(run("bridges2", "--json"))
    assert document["name"] == "bridges2"
    assert document["site"]["job"]["partition"] == "RM"
    assert document["site"]["on"]["GPU"]["job"]["gres"] == "gpu:8"
    assert document["path"].endswith("bridges2.toml")


def test_the_file_can_be_printed_and_found():
    assert run("neocortex", "--toml") == (SHIPPED / "neocortex.toml").read_text()
    assert run("neocortex", "--path") == f"{SHIPPED / 'neocortex.toml'}\n"
    assert run("--path").splitlines()[-1] == str(SHIPPED)


def test_a_file_of_ones_own_can_be_looked_at_before_it_is_put_in_place(tmp_path):
    (tmp_path / "try.toml").write_text('extends = "local"\nsummary = "caf\u00e9"\n', encoding="utf-8")
    text = run(str(tmp_path / "try.toml"))
    assert text.startswith("try: caf\u00e9")
    assert f"{tmp_path / 'try.toml'} (yours)" in text


def test_the_advice_for_a_file_works(folder, tmp_path, monkeypatch):
    place = tmp_path / "caf\u00e9 one"
    place.mkdir()
    (place / "s1.toml").write_text('extends = "slurm-gpu"\nname = "other"\n')
    monkeypatch.chdir(place)
    text = run("./s1.toml")
    assert f'extends = "{place / "s1.toml"}"' in text
    assert f"portwright sites '{place / 's1.toml'}' --toml." in text
    monkeypatch.chdir("/")
    assert run(str(place / "s1.toml"), "--toml").startswith("extends")
    lines = text.splitlines()
    begin = next(n for n, line in enumerate(lines) if line.startswith("A site of your own"))
    example = "\n".join(line.strip() for line in lines[begin + 1 : -1])
    (folder / "my-other.toml").write_text(example, encoding="utf-8")
    assert load_site("my-other").scheduler == "slurm"


def test_a_file_where_sites_are_looked_for_goes_by_its_name(folder):
    (folder / "mine.toml").write_text('extends = "local"\n')
    for text in (run("mine"), run(str(folder / "mine.toml"))):
        assert 'extends = "mine"' in text
        assert "portwright sites mine --toml." in text


def test_a_broken_file_can_still_be_printed(folder):
    (folder / "broken.toml").write_text("scheduler = ")
    assert run("broken", "--toml") == "scheduler = "
    with pytest.raises(UserError, match="not TOML"):
        run("broken")


@pytest.mark.parametrize(
    "words", [["--toml"], ["local", "--toml", "--json"], ["local", "--path", "--toml"], ["nowhere"]]
)
def test_wrong_commands_are_told(words):
    with pytest.raises(UserError):
        run(*words)


def test_names_are_completed():
    assert complete_sites("alcf-g") == ["alcf-graphcore"]
