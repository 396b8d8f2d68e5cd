import pytest

from portwright.discover import find_targets
from portwright.launch.site_files import SHIPPED, load_site, read_text
from portwright.launch.site_pages import example_toml

NAMES = sorted(path.stem for path in SHIPPED.glob("*.toml"))


@pytest.fixture(autouse=True)
def no_own_sites(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("PORTWRIGHT_SITES", raising=False)


def test_the_sites_that_users_were_promised_are_there():
    assert NAMES == [
        "alcf-cerebras",
        "alcf-graphcore",
        "alcf-sambanova",
        "bridges2",
        "local",
        "neocortex",
        "slurm-gpu",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_every_site_says_what_it_is_and_where_that_is_from(name):
    site = load_site(name)
    assert site.name == name
    assert site.summary
    assert site.source
    for target in site.targets:
        assert site.for_target(target).target == target


@pytest.mark.parametrize("name", NAMES)
def test_a_file_begins_from_the_example_and_from_the_whole(name, tmp_path):
    (tmp_path / "mine.toml").write_text(example_toml(load_site(name)))
    assert load_site(tmp_path / "mine.toml").scheduler == load_site(name).scheduler
    (tmp_path / "copy.toml").write_text(read_text(SHIPPED / f"{name}.toml"))
    copy = load_site(tmp_path / "copy.toml")
    assert copy.model_copy(update={"name": name}) == load_site(name)


def test_neocortex_asks_for_what_its_documentation_does():
    site = load_site("neocortex").for_target("CSX")
    job = site.job
    assert (job.gres, job.ntasks, job.cpus_per_task, job.partition) == ("cs:cerebras:1", 7, 14, "sdf")
    assert (job.minutes, job.max_minutes) == (4 * 60, 48 * 60)
    assert (job.account, job.account_lower) == ("required", True)
    assert site.tasks == "stream"
    assert site.hpc
    assert site.container.image == "/ocean/neocortex/cerebras/cbcore_latest.sif"
    assert site.container.binds == tuple(f"/local{n}/cerebras/data" for n in range(1, 5))
    assert site.launch.run_flags == ("--cs_ip", "${CS_IP_ADDR}")
    assert "CS_IP_ADDR" in site.environment.passed


def test_bridges2_has_no_wafer():
    site = load_site("bridges2")
    assert site.compile_only == ("CSX",)
    assert site.for_target("CSX").job.gres is None
    assert site.for_target("CSX").container.image == "/ocean/neocortex/cerebras/cbcore_latest.sif"
    assert (site.job.partition, site.job.cpus_per_task) == ("RM", 28)
    assert site.for_target("GPU").job.partition == "GPU"


def test_the_testbeds_ask_for_their_devices():
    assert load_site("alcf-graphcore").for_target("IPU").job.flags == ("--ipus=1",)
    assert load_site("alcf-graphcore").job.partition == "p64"
    assert load_site("alcf-sambanova").for_target("RDU").job.gres == "rdu:1"
    assert load_site("alcf-sambanova").launch.srun == ("--mpi=pmi2",)
    assert load_site("alcf-cerebras").scheduler == "csctl"


def test_this_machine_takes_every_target():
    assert set(load_site("local").targets) == set(find_targets())


@pytest.mark.parametrize("name", NAMES)
def test_what_a_user_changes_in_a_plain_table_holds_for_the_sites_own_target(name, tmp_path):
    (tmp_path / "mine.toml").write_text(
        f'extends = "{name}"\n[job]\ngres = "x:3"\nflags = ["--qos=a"]\n[launch]\nrun_flags = ["-x"]\n'
    )
    site = load_site(tmp_path / "mine.toml")
    site = site.for_target(site.target)
    assert (site.job.gres, site.job.flags, site.launch.run_flags) == ("x:3", ("--qos=a",), ("-x",))


@pytest.mark.parametrize("name", NAMES)
def test_a_job_on_cpus_asks_for_no_accelerator(name):
    site = load_site(name).for_target("CPU")
    assert (site.job.gres, site.job.flags, site.launch.run_flags, site.container.flags) == (None, (), (), ())
