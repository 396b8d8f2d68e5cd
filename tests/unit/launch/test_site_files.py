import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portwright.errors import UserError
from portwright.launch.site import Site, merge_tables
from portwright.launch.site_files import SHIPPED, complete_sites, find_sites, load_site

SMALL = 'scheduler = "slurm"\ntarget = "GPU"\n'


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The user's own folder of sites, which is empty at first."""
    own = tmp_path / "config" / "portwright" / "sites"
    own.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("PORTWRIGHT_SITES", raising=False)
    return own


def refusal(text, folder, name="mine"):
    """What is said about a file with this text."""
    (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        load_site(name)
    return str(caught.value)


def test_a_site_of_ones_own_needs_two_keys(folder):
    (folder / "mine.toml").write_text(SMALL)
    site = load_site("mine")
    assert (site.name, site.target, site.targets, site.tasks) == ("mine", "GPU", ("GPU",), "parallel")


def test_extending_merges_tables_and_replaces_lists(folder):
    (folder / "mine.toml").write_text(
        'extends = "neocortex"\n[job]\ntime = "30"\n[container]\nbinds = ["/data:/in"]\n[environment.variables]\nA = "1"\n'
    )
    mine, base = load_site("mine"), load_site("neocortex")
    assert mine.name == "mine"
    assert mine.job.minutes == 30
    assert mine.job.gres == base.job.gres == "cs:cerebras:1"
    assert mine.container.binds == ("/data:/in",)
    assert mine.container.image == base.container.image
    assert mine.environment.variables == {**base.environment.variables, "A": "1"}
    assert mine.summary == base.summary


def test_an_empty_string_takes_an_inherited_value_away(folder):
    (folder / "mine.toml").write_text(
        'extends = "neocortex"\n[job]\npartition = ""\ncpus_per_task = ""\nmax_time = ""\n'
    )
    job = load_site("mine").job
    assert (job.partition, job.cpus_per_task, job.max_time) == (None, None, None)


def test_sites_extend_one_another_along_a_chain(folder):
    (folder / "one.toml").write_text('extends = "slurm-gpu"\n[job]\npartition = "a"\ntime = "10"\n')
    (folder / "two.toml").write_text('extends = "one"\n[job]\ntime = "20"\n')
    job = load_site("two").job
    assert (job.partition, job.minutes, job.gres) == ("a", 20, "gpu:1")


def test_a_file_of_the_same_name_wins_and_may_extend_the_one_it_hides(folder):
    (folder / "neocortex.toml").write_text('extends = "neocortex"\n[job]\npartition = "debug"\n')
    assert load_site("neocortex").job.partition == "debug"
    assert load_site("neocortex").job.ntasks == 7
    found = {file.name: file for file in find_sites()}["neocortex"]
    assert found.path == folder / "neocortex.toml"
    assert found.hidden == (SHIPPED / "neocortex.toml",)
    assert not found.is_shipped


def test_the_folder_of_the_variable_comes_first(folder, tmp_path, monkeypatch):
    named = tmp_path / "a folder"
    named.mkdir()
    monkeypatch.setenv("PORTWRIGHT_SITES", str(named))
    (folder / "mine.toml").write_text(SMALL + '[job]\npartition = "second"\n')
    (named / "mine.toml").write_text('extends = "mine"\n[job]\ntime = "7"\n')
    job = load_site("mine").job
    assert (job.partition, job.minutes) == ("second", 7)


def test_a_variable_that_names_no_folder_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("PORTWRIGHT_SITES", str(tmp_path / "gone"))
    with pytest.raises(UserError, match=r"PORTWRIGHT_SITES is no folder, received '.*gone'\. Make it"):
        load_site("local")
    assert complete_sites("neo") == []


@pytest.mark.parametrize("call", [find_sites, lambda: load_site("local")])
def test_a_config_folder_that_cannot_be_read_is_told(monkeypatch, call, folder):
    """Nothing is closed to root, so that the system's answer is put in its place."""

    def refusing(real):
        def answer(path=".", **more):
            if str(path).startswith(str(folder)):
                raise PermissionError(13, "Permission denied", str(path))
            return real(path, **more)

        return answer

    for name in ("listdir", "scandir", "stat"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))
    with pytest.raises(UserError) as told:
        call()
    monkeypatch.undo()
    assert f"cannot look for sites in {folder}: permission denied" in told.value.message
    assert "XDG_CONFIG_HOME" in told.value.cure


def test_a_config_folder_that_cannot_be(monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", "/" + "x" * 300)
    with pytest.raises(UserError, match="file name too long"):
        load_site("local")
    assert complete_sites("l") == []
    monkeypatch.setenv("XDG_CONFIG_HOME", os.devnull)  # no folder: there are none of the user's
    assert load_site("local").name == "local"


def test_a_relative_config_home_is_ignored_as_xdg_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    own = tmp_path / ".config" / "portwright" / "sites"
    own.mkdir(parents=True)
    (own / "mine.toml").write_text(SMALL)
    assert load_site("mine").target == "GPU"


def test_a_site_may_be_named_by_its_path(tmp_path, monkeypatch):
    (tmp_path / "base.toml").write_text(SMALL)
    (tmp_path / "with space.toml").write_text('name = "spaced"\nextends = "./base.toml"\n')
    monkeypatch.chdir(tmp_path)
    assert load_site("with space.toml").name == "spaced"
    assert load_site(tmp_path / "base.toml").name == "base"


@pytest.mark.parametrize("name", ["neocortx", "Neocortex", "neo cortex", ""])
def test_an_unknown_name_gets_the_valid_ones(name):
    with pytest.raises(UserError) as caught:
        load_site(name)
    assert f"unknown site '{name}'" in str(caught.value)
    assert "slurm-gpu" in caught.value.cure
    if name:
        assert caught.value.cure.startswith("Did you mean 'neocortex'?")


def test_sites_that_extend_in_a_circle_are_refused(folder):
    (folder / "one.toml").write_text('extends = "two"\n')
    (folder / "two.toml").write_text('extends = "one"\n')
    with pytest.raises(UserError, match=r"two\.toml:1: extends: the sites form a circle.*one -> two -> one"):
        load_site("one")
    assert "circle" in refusal('extends = "mine"\n', folder)


@pytest.mark.parametrize("base", ['"neocortx"', "5", '""', '["local"]'])
def test_what_is_extended_must_be_a_site(folder, base):
    said = refusal(f"# mine\nextends = {base}\n", folder)
    assert "mine.toml:2: extends: " in said
    if base == '"neocortx"':
        assert "Did you mean 'neocortex'?" in said


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (SMALL + "[job]\ntime = 4:00:00\n", 4, "not TOML"),
        (SMALL + "[job]\ntime = 04:00:00\n", 4, "clock's time, received 04:00:00; put it in quotes"),
        (SMALL + '[job]\ntime = "4h"\n', 4, "job.time: expected a time, received '4h'. Did you mean 4:00:00?"),
        (SMALL + '[job]\nntask = 3\n', 4, "job.ntask: unknown key, with the value 3. Did you mean 'ntasks'?"),
        (SMALL + "[jobs]\nntasks = 3\n", 3, "jobs: unknown key, with the value {'ntasks': 3}. Did you mean 'job'?"),
        (SMALL + "[job]\nntasks = 0\n", 4, "job.ntasks: expected a number greater than or equal to 1, received 0"),
        (SMALL + '[job]\nntasks = "7"\n', 4, "expected a whole number, received '7'. Remove the quotes."),
        (SMALL + "[job]\nntasks = true\n", 4, "expected a whole number, received True"),
        (SMALL + "job = 5\n", 3, "job: expected a table, received 5"),
        (SMALL + '[job]\ntime = "3:00:00"\nmax_time = "2:00:00"\n', 4, "time 3:00:00 is more than max_time 2:00:00"),
        (SMALL + '[job]\ntime = "1"\n', None, "grace_seconds 120 leaves nothing of the time 1"),
        (SMALL + '[job]\ngres = "gpu:two:"\n', 4, "expected name:count or name:type:count"),
        (SMALL + '[job]\nmemory = "lots"\n', 4, "expected a size such as 64G"),
        (SMALL + '[job]\npartition = "a b"\n', 4, "expected one word, received 'a b'"),
        (SMALL + '[job]\nflags = ["qos=low"]\n', 4, "job.flags.0: expected a flag such as --qos=low, received 'qos=low'"),
        (SMALL + '[job]\nflags = ["--qos=low", "--time=5"]\n', 4, "the script says --time itself (job.time)"),
        (SMALL + '[job]\nflags = ["-pdebug"]\n', 4, "the script says -p itself (job.partition)"),
        (SMALL + '[job]\nflags = "--qos=low"\n', 4, "expected a list, received '--qos=low'"),
        (SMALL + '[job]\npartition = 5\n', 4, "job.partition: expected a string, received 5"),
        (SMALL + '[container]\nkind = "docker"\n', 4, "received 'docker'. "),
        (SMALL + '[container]\nkind = "ch-run"\nflags = ["--nv"]\n', 5, "container.flags: ch-run has no flag --nv"),
        (SMALL + '[container]\nbinds = ["data"]\n', 4, "expected /path or /path:/path/inside"),
        (SMALL + '[container]\nbinds = ["/a,/b"]\n', 4, "without a comma, received '/a,/b'"),
        (SMALL + '[environment.variables]\nA = 1\n', 4, "environment.variables.A: expected a string, received 1"),
        (SMALL + '[environment.variables]\n"A-B" = "1"\n', 4, "expected the name of an environment variable"),
        (SMALL + '[environment]\npassed = ["A B"]\n', 4, "expected the name of an environment variable"),
        (SMALL + '[storage]\nshared = ["home"]\n', 4, "expected a path that begins with /"),
        (SMALL + 'tasks = "stream"\n', 3, "tasks 'stream' needs job.ntasks of at least 2"),
        (SMALL + 'tasks = "single"\n[job]\nntasks = 2\n', 3, "tasks 'single' goes with job.ntasks 1, received 2"),
        (SMALL + 'tasks = "steam"\n', 3, "Did you mean 'stream'?"),
        ('scheduler = "slurm"\ntarget = "CSY"\n', 2, "target: unknown target, received 'CSY'. Did you mean 'CSX'?"),
        ('scheduler = "pbs"\ntarget = "GPU"\n', 1, "scheduler: expected 'slurm', 'csctl' or 'none', received 'pbs'"),
        (SMALL + 'targets = ["CPU"]\n', 2, "target GPU is not among targets (CPU)"),
        (SMALL + 'compile_only = ["CSX"]\n', 3, "compile_only names CSX, which is not among targets (GPU)"),
        (SMALL + '[on.CPU.job]\nntasks = 1\n', 3, "on names CPU, which is not among targets (GPU)"),
        (SMALL + '[on.gpu.job]\nntasks = 0\n', 4, "on.GPU.job.ntasks: expected a number greater"),
        (SMALL + '[on.GPU.jib]\nntasks = 0\n', 3, "a target cannot change this key, received {'ntasks': 0}. Did you mean 'job'?"),
        (SMALL + '[on.GPU]\nname = "x"\n', 4, "a target cannot change this key, received 'x'"),
        ('target = "GPU"\n', None, "scheduler: this key is required. Add it."),
        ('name = "other"\n' + SMALL, 1, "the file is called mine.toml, received 'other'. Call both the same."),
        (SMALL + 'summary = "two\\nlines"\n', 3, "expected text on one line"),
        (SMALL + '[launch]\nprefix = ["poprun", "a\\u0000b"]\n', 4, "expected text on one line"),
        (SMALL + "[job\n", 3, "not TOML"),
        ("scheduler = ", 1, "not TOML"),
        (SMALL + 'target = "CPU"\n', 3, "Say each key and each table once."),
        (SMALL + "[job]\ntime : 5\n", 4, "Write key = value."),
        ('t.arget = "CPU"\n' + SMALL, 1, "t: unknown key, with the value {'arget': 'CPU'}"),
        ("a = " + "[" * 100_000, None, ""),
    ],
)  # fmt: skip
def test_a_wrong_file_is_told_with_line_key_and_value(folder, text, line, said):
    told = refusal(text, folder)
    where = f"{folder / 'mine.toml'}:{line}: " if line else str(folder / "mine.toml")
    assert where in told
    assert said in told
    assert len(told.splitlines()) == 1


def test_all_that_is_wrong_is_told_at_once(folder):
    told = refusal(SMALL + '[job]\nntasks = 0\ntime = "x"\n[login]\nhots = "h"\n', folder)
    assert [line.split(": ")[1] for line in told.splitlines()] == ["job.ntasks", "job.time", "login.hots"]


def test_an_inherited_half_of_a_contradiction_is_found_in_its_own_file(folder):
    told = refusal('extends = "neocortex"\n[job]\ntime = "3-00:00:00"\n', folder)
    assert f"{folder / 'mine.toml'}:3: job.time: time 3-00:00:00 is more than max_time 2-00:00:00" in told
    assert f"(see also {SHIPPED / 'neocortex.toml'}:" in told


def test_the_value_of_what_looks_like_a_secret_is_not_repeated(folder):
    told = refusal(SMALL + '[environment.variables]\nWANDB_API_KEY = "hunter2"\n', folder)
    assert "hunter2" not in told
    assert "Name it in environment.passed" in told
    (folder / "fine.toml").write_text(SMALL + '[environment.variables]\nTOKENIZERS_PARALLELISM = "false"\n')
    assert load_site("fine").environment.variables == {"TOKENIZERS_PARALLELISM": "false"}


@pytest.mark.parametrize(
    "gres",
    [
        "gpu",
        "gpu:2",
        "gpu:a100",
        "gpu:a100:2",
        "cs:cerebras:1",
        "gpu:1,nvme:2",
        "gpu:1g.5gb:1",
        "bandwidth:lustre:4G",
    ],
)
def test_resources_as_slurm_writes_them(folder, gres):
    (folder / "mine.toml").write_text(SMALL + f'[job]\ngres = "{gres}"\n')
    assert load_site("mine").job.gres == gres


@pytest.mark.parametrize(
    "gres", ["gpu:0", "gpu:-1", ":2", "gpu:", "gpu:a100:2:3", "gpu 2", "gpu:2:2", "gpu:1,", "gpu=2", "gpü:1"]
)
def test_resources_that_slurm_would_refuse(folder, gres):
    assert f"received '{gres}'" in refusal(SMALL + f'[job]\ngres = "{gres}"\n', folder)


@pytest.mark.parametrize("name", ["My-Site", "a_b", "-a", "a--b", "ä", "a b"])
def test_a_name_is_small_letters_digits_and_hyphens(folder, name):
    assert f"expected small letters, digits and hyphens, received '{name}'" in refusal(SMALL, folder, name)


def test_bytes_that_are_no_text_and_a_folder_are_told(folder):
    (folder / "latin.toml").write_bytes(b'summary = "caf\xe9"\n')
    with pytest.raises(UserError, match="not UTF-8, byte 14"):
        load_site("latin")
    (folder / "folder.toml").mkdir()
    with pytest.raises(UserError, match="is a directory"):
        load_site("folder")
    with pytest.raises(UserError, match="no file"):
        load_site("./gone.toml")
    with pytest.raises(UserError, match="cannot read"):
        load_site("./nul\0.toml")
    with pytest.raises(UserError, match=r"no file ~nobody-of-this-name/x\.toml"):
        load_site("~nobody-of-this-name/x.toml")


def test_a_huge_value_does_not_fill_the_terminal(folder):
    for key in ("time", "gres", "memory", "partition"):
        assert len(refusal(SMALL + f'[job]\n{key} = "{"x y" * 100_000}"\n', folder)) < 600


def test_a_byte_order_mark_and_windows_line_ends_are_read(folder):
    (folder / "mine.toml").write_bytes(b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode())
    assert load_site("mine").target == "GPU"


def test_one_broken_file_leaves_the_others(folder):
    (folder / "broken.toml").write_text("scheduler = ")
    (folder / ".#mine.toml").write_text("an editor's")
    (folder / "mine.toml").write_text(SMALL)
    names = [file.name for file in find_sites()]
    assert {"broken", "mine", "neocortex"} <= set(names)
    assert ".#mine" not in names
    assert (load_site("mine").name, load_site("neocortex").name) == ("mine", "neocortex")
    with pytest.raises(UserError):
        load_site("broken")


def test_a_shell_completes_names(folder):
    (folder / "neo.toml").write_text("broken")
    assert complete_sites("neo") == ["neo", "neocortex"]


def test_a_target_changes_what_it_says_and_nothing_else(folder):
    (folder / "mine.toml").write_text(
        'extends = "slurm-gpu"\n[on.gpu.job]\ngres = "gpu:a100:4"\nntasks = 4\n'
    )
    site = load_site("mine")
    assert site.for_target("gpu").job.gres == "gpu:a100:4"
    assert site.for_target("GPU").container.flags == ("--nv",)
    assert site.for_target("CPU").job.gres is None
    assert site.for_target("CPU").job.ntasks == 1
    assert site.for_target("CPU").target == "CPU"
    with pytest.raises(UserError, match=r"the site mine has no target 'IPU'\. .*Valid: CPU, GPU"):
        site.for_target("IPU")


TABLES = st.recursive(
    st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2),
    lambda below: st.dictionaries(st.sampled_from("abc"), below, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from("abc"), TABLES), st.dictionaries(st.sampled_from("abc"), TABLES))
def test_merging_keeps_every_change_and_is_done_once(base, changes):
    before = repr((base, changes))
    merged = merge_tables(base, changes)
    assert merge_tables(merged, changes) == merged
    assert merge_tables(base, {}) == base
    assert set(merged) == set(base) | set(changes)
    assert repr((base, changes)) == before


def test_a_site_is_read_without_torch():
    code = "import sys; from portwright.launch.site_files import find_sites, load_site; [load_site(file.name) for file in find_sites()]; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.strip() == "False"


def test_sites_can_be_made_in_code():
    site = Site(name="x", scheduler="none", target="cpu")
    assert site.for_target("CPU").targets == ("CPU",)


def test_a_pipe_is_not_waited_for(folder):
    os.mkfifo(folder / "mine.toml")
    with pytest.raises(UserError, match="no plain file"):
        load_site("mine")
    assert load_site("neocortex").name == "neocortex"
