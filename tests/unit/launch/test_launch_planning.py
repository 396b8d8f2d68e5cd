"""What a command line of `submit` means."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from portwright.errors import UserError
from portwright.job.yaml_source import read_yaml
from portwright.launch import registry
from portwright.launch.planning import Request, make_plan
from portwright.launch.resolved import ResolvedParams
from portwright.launch.submit import NameTakenError, command_words, make_manifest, render_files, write_folder

PARAMS = """\
train_input: {batch_size: 4, data_dir: data, extra: kept}
eval_input: {batch_size: 4}
model: {anything: [1, 'two']}
optimizer: {optimizer_type: sgd, learning_rate: 0.1}
runconfig: {max_steps: 5}
"""


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("PORTWRIGHT_JOBS", "PORTWRIGHT_SITES", "SBATCH_ACCOUNT", "SLURM_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    here = tmp_path / "it's a folder"
    here.mkdir()
    monkeypatch.chdir(here)
    make_subject(here / "my model")


def make_subject(folder: Path, params: str = PARAMS) -> None:
    (folder / "configs").mkdir(parents=True)
    (folder / "run.py").write_text("import torch\n")
    (folder / "configs" / "params.yaml").write_text(params)


def words_of(request: Request, step: str) -> tuple[str, ...]:
    return next(each.words for each in make_plan(request).job.steps if each.name == step)


def test_the_plain_chain() -> None:
    job = make_plan(Request("my model")).job
    here = Path.cwd()
    assert [step.name for step in job.steps] == ["validate", "train", "eval"]
    assert job.name == "my-model-1"
    assert job.folder == here / "portwright_jobs" / "my-model-1"
    assert (job.workdir, job.model_dir) == (here, here / "my model" / "model_dir")
    common = ("python", str(here / "my model" / "run.py"), "CPU", "--mode", "train")
    files = ("--params", str(job.folder / "params.yaml"), "--model_dir", str(job.model_dir))
    assert job.steps[0].words == (*common, *files, "--validate_only")
    assert job.steps[1].words == (*common, *files)
    assert job.steps[2].words == (*common[:-1], "eval", *files)
    assert job.container is None
    assert job.resources.minutes is None  # nothing ends a local job but itself


def test_a_target_with_a_compiler_compiles_first_and_streams() -> None:
    job = make_plan(Request("my model", site="neocortex", account="ABC123")).job
    names = {step.name: step for step in job.steps}
    assert list(names) == ["validate", "compile", "train", "eval"]
    assert [step.ntasks for step in job.steps] == [1, 1, 7, 1]
    assert names["compile"].words[-1] == "--compile_only"
    train = names["train"]
    assert train.tasks == "stream"
    assert train.words[-1] == "--stream_data"
    assert [train.words[place] for place in train.literal] == ["${CS_IP_ADDR}"]
    assert not names["validate"].literal
    assert "--stream_data" not in names["eval"].words
    assert job.resources.account == "abc123"  # charge ids are groups there
    assert (job.resources.gres, job.resources.minutes) == ("cs:cerebras:1", 240)
    assert job.resources.ntasks == 7


def test_a_word_that_only_looks_like_a_variable_is_not_expanded(tmp_path: Path) -> None:
    odd = tmp_path / "${CS_IP_ADDR}"
    make_subject(odd)
    job = make_plan(Request(str(odd), site="neocortex", account="a")).job
    for step in job.steps:
        assert all(step.words[place] == "${CS_IP_ADDR}" for place in step.literal)


@pytest.mark.parametrize(
    ("mode", "steps"),
    [
        ("train", ["validate", "train", "eval"]),
        ("train_and_eval", ["validate", "train"]),
        ("eval", ["eval"]),
        ("eval_all", ["eval"]),
        ("predict", ["predict"]),
    ],
)
def test_modes(mode: str, steps: list[str]) -> None:
    job = make_plan(Request("my model", mode=mode)).job
    assert [step.name for step in job.steps] == steps
    assert {step.words[step.words.index("--mode") + 1] for step in job.steps} <= {mode, "eval"}


def test_steps_are_chosen_and_put_in_order() -> None:
    job = make_plan(Request("my model", steps=" train,validate , compile,train")).job
    assert [step.name for step in job.steps] == ["validate", "compile", "train"]


def test_without_eval_input_there_is_no_evaluation() -> None:
    Path("my model/configs/params.yaml").write_text(PARAMS.replace("eval_input: {batch_size: 4}\n", ""))
    assert [step.name for step in make_plan(Request("my model")).job.steps] == ["validate", "train"]


def test_torch_compile_is_a_step_where_it_is_asked_for() -> None:
    job = make_plan(Request("my model", overrides=("runconfig.compile=true",))).job
    assert "compile" in [step.name for step in job.steps]


def test_a_reference_model_runs_by_its_name_and_lies_here() -> None:
    job = make_plan(Request("fc_mnist")).job
    assert job.steps[0].words[:5] == ("python", "-m", "portwright", "run", "fc_mnist")
    assert (job.name, job.model_dir) == ("fc_mnist-1", Path.cwd() / "fc_mnist_run")
    assert make_plan(Request("tensorflow/fc_mnist")).job.model_dir == Path.cwd() / "tensorflow_fc_mnist_run"


def test_tensorflow_names_of_optimizers_are_no_problem() -> None:
    plan = make_plan(Request("tensorflow/fc_mnist"))
    assert plan.params.problem is None


def test_params_are_resolved_once_and_keep_what_we_do_not_know() -> None:
    plan = make_plan(Request("my model", overrides=("optimizer.learning_rate=1e-3", "model.new.key='1e-3'")))
    values = yaml.safe_load(plan.params.as_yaml())
    assert values["optimizer"]["learning_rate"] == 0.001
    assert values["train_input"] == {"batch_size": 4, "data_dir": "data", "extra": "kept"}
    assert values["model"] == {"anything": [1, "two"], "new": {"key": "1e-3"}}
    assert "log_steps" not in values["runconfig"]  # a default that we put there would hide the user's own


def test_overrides_show_in_no_script_and_no_manifest() -> None:
    request = Request("my model", overrides=("model.token=hunter2",))
    files = render_files(make_plan(request), request)
    assert [name for name, text in files.items() if "hunter2" in text] == ["params.yaml"]
    assert "-D" in command_words(request)


def test_wrong_params_are_told_with_their_place() -> None:
    plan = make_plan(Request("my model", overrides=("optimizer.lerning_rate=1",)))
    assert plan.params.problem is not None
    assert "lerning_rate" in plan.params.problem.message


def test_data_that_params_name_is_found_wherever_it_stands() -> None:
    Path("data").mkdir()
    Path("a file").touch()
    values: dict[str, Any] = {
        "train_input": {
            "data_dir": "data",
            "deep": {"label_files": ["a file", "missing", 3]},
            "note": "data",
        },
        "model": {"vocab_file": "a file"},
        "eval_input": {"data_dir": "https://x/y", "x_path": None},
        "runconfig": {"checkpoint_path": "an old run", "model_dir": "not yet"},
    }
    Path("an old run").mkdir()
    found = ResolvedParams(values, Path("p")).data_paths()
    assert found == [Path.cwd() / "data", Path.cwd() / "a file", Path.cwd() / "an old run"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"subject": "no model"}, ["no model", "neither a run.py"]),
        ({"site": "neocortx"}, ["neocortx", "neocortex"]),
        ({"site": "neocortex"}, ["--account", "charges"]),
        ({"site": "neocortex", "account": "a b"}, ["--account", "'a b'"]),
        ({"account": "abc"}, ["--account", "abc"]),
        ({"target": "CPX"}, ["CPX", "CPU"]),
        ({"site": "neocortex", "account": "a", "target": "IPU"}, ["IPU", "neocortex"]),
        ({"mode": "trian"}, ["--mode", "trian", "train"]),
        ({"steps": "validate,trian"}, ["--steps", "trian", "train"]),
        ({"steps": ""}, ["--steps"]),
        ({"params": "missing.yaml"}, ["missing.yaml"]),
        ({"overrides": ("nonsense",)}, ["-D nonsense"]),
        ({"ntasks": 0}, ["--ntasks", "0"]),
        ({"time": "soon"}, ["soon"]),
        ({"site": "neocortex", "account": "a", "time": "3-00:00:00"}, ["--time", "2-00:00:00"]),
        ({"gres": "a b"}, ["--gres", "a b"]),
        ({"partition": "a\n#SBATCH --x"}, ["--partition"]),
        ({"flags": ("--account=me",)}, ["--flag", "--account"]),
        ({"flags": ("qos",)}, ["--flag", "qos"]),
        ({"flags": ("--array=0-3",)}, ["--flag", "--array", "several jobs", "--model_dir"]),
        ({"flags": ("--arr=0-3",)}, ["--flag", "--array"]),  # sbatch takes it for the whole
        ({"flags": ("-a0-3",)}, ["--flag", "-a", "several jobs"]),
        ({"flags": ("--array 0-3",)}, ["--flag", "--array"]),
        ({"flags": ("--wait",)}, ["--flag", "--wait", "--no-follow"]),
        ({"flags": ("-W",)}, ["--flag", "-W", "--no-follow"]),
        ({"flags": ("--wrap=hostname",)}, ["--flag", "--wrap", "subject"]),
        ({"flags": ("--test-only",)}, ["--flag", "--test-only", "--dry-run"]),
        ({"flags": ("--export=ALL,TOKEN=hush",)}, ["--flag", "--export", "--pass NAME"]),
        ({"flags": ("--export TOKEN=hush",)}, ["--flag", "--export", "--pass NAME"]),
        ({"tasks": "strem"}, ["--tasks", "strem", "stream"]),
        ({"tasks": "single", "ntasks": 3}, ["--tasks single", "3"]),
        ({"tasks": "stream", "ntasks": 1}, ["--tasks stream", "1"]),
        ({"name": "a b"}, ["--name", "a b"]),
        ({"name": "../up"}, ["--name", "../up"]),
        ({"name": ""}, ["--name"]),
        ({"container": "docker"}, ["--container", "docker"]),
        ({"image": "x.sif"}, ["--image", "--container"]),
        ({"binds": ("/data",)}, ["--bind"]),
        ({"env": ("NAME",)}, ["--env", "NAME"]),
        ({"env": ("A B=1",)}, ["--env"]),
        ({"passed": ("A=1",)}, ["--pass"]),
        ({"env": ("X=1",), "passed": ("X",)}, ["X", "--env", "--pass"]),
        ({"model_dir": ""}, ["--model_dir"]),
        ({"model_dir": "a\nb"}, ["--model_dir"]),
        ({"model_dir": "~nobody-at-all/x"}, ["--model_dir"]),
        ({"jobs_dir": "a\0b"}, ["--jobs-dir"]),
        ({"hpc": True}, ["--hpc", "local"]),
    ],
)
def test_what_cannot_be_is_told(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError) as told:
        make_plan(replace(Request("my model"), **changes))
    for word in words:
        assert word in str(told.value)
    assert "\n" not in str(told.value)
    assert "hush" not in str(told.value)


@pytest.mark.parametrize(
    "name",
    [
        "WANDB_API_KEY",
        "WANDB_KEY",
        "GITHUB_PAT",
        "DB_PWD",
        "MYPASS",
        "SLURM_JWT",
        "AUTH",
        "CREDS",
        "AWS_SESSION_TOKEN_X",
        "hf_token",
        "API_KEY2",
    ],
)
def test_a_secret_is_refused_without_being_repeated(name: str) -> None:
    with pytest.raises(UserError) as told:
        make_plan(Request("my model", env=(f"{name}=hunter2",)))
    assert name in str(told.value)
    assert "--pass" in str(told.value)
    assert "hunter2" not in str(told.value)


@pytest.mark.parametrize(
    "text",
    [
        "TOKENIZERS_PARALLELISM=false",
        "MAX_TOKENS=100",
        "PWD=/x",
        "OLDPWD=/x",
        "BYPASS=1",
        "HF_TOKEN_PATH=/x",
        "SSH_AUTH_SOCK=/x",
        "AUTHOR=ann",
        "PATH=/x",
        "MONKEY=1",
        "https_proxy=http://proxy:3128",
        "URL=ssh://git@host/a:b",
        "RANGE=http://host/a:b@c",
    ],
)
def test_what_only_sounds_like_a_secret_is_taken(text: str) -> None:
    name, _, value = text.partition("=")
    assert dict(make_plan(Request("my model", env=(text,))).job.environment) == {name: value}


@pytest.mark.parametrize(
    "value", ["http://user:hunter2@proxy:1", "redis://:hunter2@host", "a,https://u:hunter2@h/x"]
)
def test_a_password_in_an_address_is_refused(value: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as told:
        make_plan(Request("my model", env=(f"https_proxy={value}",)))
    assert "--pass https_proxy" in told.value.cure
    assert "hunter2" not in str(told.value)
    site = tmp_path / "mine.toml"
    site.write_text(f'extends = "local"\n[environment]\nvariables = {{ https_proxy = "{value}" }}\n')
    with pytest.raises(UserError) as told:
        make_plan(Request("my model", site=str(site)))
    assert "environment.passed" in told.value.cure
    assert "hunter2" not in str(told.value)


def test_values_of_env_are_in_job_sh_alone() -> None:
    request = Request("my model", env=("COLOUR=purple",))
    files = render_files(make_plan(request), request)
    assert "COLOUR=..." in command_words(request)
    assert "purple" not in files["manifest.json"]
    assert "purple" in files["job.sh"]


def test_a_secret_in_the_params_is_told_without_its_value() -> None:
    overrides = (
        "train_input.api_key=hunter2",
        "model.token=hunter2",
        "runconfig.hf_token=hunter2",
        "model.pad_token=0",
        "model.label_key=a",
        "model.max_tokens=9",
    )
    notes = make_plan(Request("my model", overrides=overrides)).notes
    assert [note.split(":")[0] for note in notes] == [
        "-D train_input.api_key",
        "-D model.token",
        "-D runconfig.hf_token",
    ]
    assert all("params.yaml (mode 0600)" in note and "--pass" in note for note in notes)
    assert "hunter2" not in str(notes)
    assert "container" not in str(notes)
    contained = Request("my model", overrides=overrides[:1], site="neocortex", account="a", image="x.sif")
    assert "which the container sees" in make_plan(contained).notes[0]


def test_passed_variables_are_names_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "hunter2")
    request = Request("my model", passed=("MY_TOKEN", "NOT_SET_ANYWHERE"), env=("A=1",))
    plan = make_plan(request)
    assert plan.job.passed == ("MY_TOKEN", "NOT_SET_ANYWHERE")
    assert dict(plan.job.environment) == {"A": "1"}
    assert ["NOT_SET_ANYWHERE" in note for note in plan.notes] == [True]
    assert "hunter2" not in json.dumps(render_files(plan, request))


def test_a_short_job_still_has_time_to_work_in() -> None:
    asked = make_plan(Request("my model", site="neocortex", account="a", time="1")).job.resources
    assert (asked.minutes, asked.grace_seconds) == (1, 30)
    assert make_plan(Request("my model", time="2")).job.resources.minutes == 2


def test_the_command_line_goes_before_the_site() -> None:
    asked = make_plan(
        Request("my model", site="neocortex", account="a", ntasks=3, cpus_per_task=2, gres="cs:1", partition="p",
                nodes=2, time="10", flags=("--qos=low",), memory="4G")
    ).job.resources  # fmt: skip
    assert (asked.ntasks, asked.cpus_per_task, asked.gres, asked.partition) == (3, 2, "cs:1", "p")
    assert (asked.nodes, asked.minutes, asked.memory) == (2, 10, "4G")
    assert "--qos=low" in asked.flags


def test_one_task_streams_to_nobody() -> None:
    job = make_plan(Request("my model", site="neocortex", account="a", ntasks=1)).job
    assert {step.tasks for step in job.steps} == {"single"}
    assert not any("--stream_data" in step.words for step in job.steps)


def test_names_are_never_taken_twice(tmp_path: Path) -> None:
    assert make_plan(Request("my model")).job.name == "my-model-1"
    Path("portwright_jobs/my-model-1").mkdir(parents=True)
    registry.write_entry(registry.Entry("my-model-2", tmp_path, "local", "none"))
    assert make_plan(Request("my model")).job.name == "my-model-3"
    assert make_plan(Request("my model", name="mine")).job.name == "mine"
    Path("portwright_jobs/mine").mkdir()
    assert make_plan(Request("my model", name="mine")).job.name == "mine-2"


@pytest.mark.parametrize("name", ["ünïcode", "--", "a" * 200, "a b'c\"d"])
def test_any_folder_gives_a_name_that_a_script_can_say(tmp_path: Path, name: str) -> None:
    make_subject(tmp_path / name)
    assert make_plan(Request(str(tmp_path / name))).job.name.replace("-", "").replace("_", "").isalnum()


def test_jobs_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PORTWRIGHT_JOBS", str(tmp_path / "all jobs"))
    assert make_plan(Request("my model")).job.folder.parent == tmp_path / "all jobs"
    assert make_plan(Request("my model", jobs_dir="here")).job.folder.parent == Path.cwd() / "here"


def test_the_folder_is_whole_and_private() -> None:
    request = Request("my model")
    plan = make_plan(request)
    folder = plan.job.folder
    previous = os.umask(0)
    try:
        write_folder(folder, render_files(plan, request))
    finally:
        os.umask(previous)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}
    assert modes.pop("my-model-1") == modes.pop("steps") == 0o700
    assert modes == {
        "job.sh": 0o700,
        "task.sh": 0o700,
        "params.yaml": 0o600,
        "manifest.json": 0o600,
        "log.txt": 0o600,
    }
    assert [path.name for path in folder.parent.iterdir()] == ["my-model-1"]
    with pytest.raises(NameTakenError):
        write_folder(folder, {})
    assert (folder / "job.sh").is_file()
    subprocess.run(["bash", "-n", folder / "job.sh"], check=True)


def test_a_folder_that_cannot_be_written_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request("my model")
    plan = make_plan(request)
    monkeypatch.setattr(
        os, "fsync", lambda number: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(UserError, match="no space left"):
        write_folder(plan.job.folder, render_files(plan, request))
    assert list(plan.job.folder.parent.iterdir()) == []


def test_the_manifest_says_what_was_submitted() -> None:
    subprocess.run(["git", "init", "-q", "."], check=True)
    subprocess.run(["git", "add", "."], check=True)
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *who, "commit", "-q", "-m", "x"], check=True)
    request = Request("my model", ntasks=2)
    manifest = make_manifest(make_plan(request), request)
    assert json.loads(json.dumps(manifest)) == manifest
    assert (manifest["site"], manifest["subject"], manifest["target"]) == ("local", "my model", "CPU")
    assert [step["name"] for step in manifest["steps"]] == ["validate", "train", "eval"]
    assert len(manifest["code"]["commit"]) == 40
    assert manifest["code"]["changed"] is False
    Path("my model/run.py").write_text("changed")
    assert make_manifest(make_plan(request), request)["code"]["changed"] is True


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.sampled_from(["1e-3", "1_0", "~", "0x1", "=", "<<", "2001-01-01"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(values=st.dictionaries(st.text(min_size=1, max_size=5), _VALUES, min_size=1, max_size=4))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read_as_it_was(tmp_path: Path, values: dict[str, Any]) -> None:
    file = tmp_path / "written.yaml"
    file.write_text(ResolvedParams(values, file).as_yaml(), encoding="utf-8", newline="")
    assert read_yaml(file).values == values


def test_a_cluster_that_queues_by_itself_runs_the_zoos_configs(tmp_path: Path) -> None:
    config = tmp_path / "my 111m.yaml"
    config.write_text("trainer: {init: {model: {name: gpt2}}, fit: {train_dataloader: {batch_size: 4}}}\n")
    request = Request(str(config), site="alcf-cerebras", overrides=("trainer.init.seed=3",))
    plan = make_plan(request)
    job = plan.job
    assert plan.params.problem is None
    assert plan.params.values["trainer"]["init"] == {"model": {"name": "gpt2"}, "seed": 3}
    assert [step.name for step in job.steps] == ["validate", "compile", "train"]
    assert job.model_dir == Path.cwd() / "my 111m_run"
    train = job.steps[-1].words
    assert train[:3] == ("cszoo", "fit", str(job.folder / "params.yaml"))
    assert train[train.index("--job_labels") + 1] == f"name={job.name}"
    assert "--validate_only" in job.steps[0].words
    assert "cszoo fit" in render_files(plan, request)["job.sh"]
    assert make_plan(replace(request, mode="eval")).job.steps[0].words[1] == "validate"
    with pytest.raises(UserError, match="--params"):
        make_plan(replace(request, params=str(config)))
    with pytest.raises(UserError, match="params file"):
        make_plan(replace(request, site="local"))


def test_our_folders_are_labelled_there_too() -> None:
    job = make_plan(Request("my model", site="alcf-cerebras")).job
    assert all(step.words[step.words.index("--job_labels") + 1] == f"name={job.name}" for step in job.steps)
    assert job.resources.minutes is None


def test_a_folder_of_the_sdks_programs(tmp_path: Path) -> None:
    folder = tmp_path / "gemv it's"
    folder.mkdir()
    (folder / "layout.csl").touch()
    (folder / "run.py").touch()
    request = Request(str(folder), site="neocortex", account="a", hpc=True, overrides=("compile.params.M=4",))
    plan = make_plan(request)
    assert [step.name for step in plan.job.steps] == ["compile", "run"]
    assert plan.job.container is None
    assert plan.params.values == {"compile": {"params": {"M": 4}}}
    assert "cslc" in render_files(plan, request)["job.sh"]
    (folder / "hpc.yaml").write_text("compile: {arch: wse3}\n")
    assert "--arch=wse3" in make_plan(request).job.steps[0].words


@pytest.fixture
def program(tmp_path: Path) -> Request:
    folder = tmp_path / "gemv"
    folder.mkdir()
    (folder / "layout.csl").touch()
    (folder / "run.py").touch()
    return Request(str(folder), site="neocortex", account="a", hpc=True)


@pytest.mark.parametrize(
    ("steps", "names", "gres"),
    [
        (None, ["compile", "run"], "cs:cerebras:1"),
        ("run, compile", ["compile", "run"], "cs:cerebras:1"),
        ("run", ["run"], "cs:cerebras:1"),
        ("compile", ["compile"], None),
    ],
)
def test_steps_of_the_sdks_programs(
    program: Request, steps: str | None, names: list[str], gres: str | None
) -> None:
    job = make_plan(replace(program, steps=steps)).job
    assert [step.name for step in job.steps] == names
    assert job.resources.gres == gres
    assert job.resources.ntasks == 1


def test_a_simulator_needs_no_machine(program: Request) -> None:
    simulated = replace(program, overrides=("run.cmaddr=null",))
    assert make_plan(simulated).job.resources.gres is None
    assert make_plan(replace(simulated, gres="cs:cerebras:1")).job.resources.gres == "cs:cerebras:1"
    asked = replace(simulated, overrides=(*simulated.overrides, "run.arguments=[--cmaddr, 1.2.3.4]"))
    assert make_plan(asked).job.resources.gres == "cs:cerebras:1"


def test_a_run_without_its_compiled_program_is_told(program: Request) -> None:
    folder = Path(program.subject)
    (note,) = make_plan(replace(program, steps="run")).notes
    assert "no out" in note
    assert make_plan(program).notes == ()
    (folder / "out").mkdir()
    (folder / "layout.csl").unlink()  # which only the compiler reads
    assert make_plan(replace(program, steps="run")).notes == ()


def test_a_secret_of_the_sdks_programs_is_in_their_command(program: Request) -> None:
    (note,) = make_plan(replace(program, overrides=("compile.params.password=hunter2",))).notes
    assert "job.sh" in note
    assert "hunter2" not in note


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": "compile,train"}, ["--steps", "train", "compile, run"]),
        ({"steps": ""}, ["--steps"]),
        ({"mode": "eval"}, ["--mode", "eval", "--hpc", "--steps"]),
        ({"ntasks": 7}, ["--ntasks", "7", "--hpc"]),
        ({"tasks": "parallel"}, ["--tasks", "parallel", "--hpc"]),
        ({"tasks": "nonsense"}, ["--tasks", "nonsense", "--hpc"]),
        ({"container": "apptainer"}, ["--container", "apptainer", "--hpc"]),
        ({"image": "x.sif"}, ["--image", "x.sif", "--hpc"]),
        ({"binds": ("/data",)}, ["--bind", "--hpc"]),
        ({"packages": "x"}, ["--packages", "--hpc"]),
        ({"model_dir": "x"}, ["--model_dir", "--hpc"]),
    ],
)
def test_what_the_sdks_programs_have_not_is_told(
    program: Request, changes: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(UserError) as told:
        make_plan(replace(program, **changes))
    for word in words:
        assert word in str(told.value)
    assert told.value.cure


def test_what_the_sdks_programs_have_anyway_may_be_said(program: Request) -> None:
    assert make_plan(replace(program, ntasks=1, container="none", mode="train")).job.resources.ntasks == 1


def test_what_needs_no_device_or_node_asks_for_none() -> None:
    asked = Request("my model", site="neocortex", account="a")
    assert make_plan(replace(asked, steps="validate,compile")).job.resources.gres is None
    assert (
        make_plan(replace(asked, steps="validate,compile", gres="cs:cerebras:1")).job.resources.gres
        == "cs:cerebras:1"
    )
    assert make_plan(replace(asked, mode="eval")).job.resources.gres == "cs:cerebras:1"
    assert make_plan(replace(asked, mode="eval")).job.resources.ntasks == 1


def test_what_only_a_scheduler_heeds_is_told_elsewhere() -> None:
    notes = make_plan(Request("my model", gres="gpu:1", flags=("--qos=low",), nodes=3)).notes
    assert any("--nodes, --gres, --flag: without effect" in note for note in notes)
    assert not any("without effect" in note for note in make_plan(Request("my model")).notes)


def test_paths_that_no_script_can_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = os.fsdecode(b"b\xff\xfed")
    with pytest.raises(UserError, match="not UTF-8"):
        make_plan(Request("my model", model_dir=odd))
    (tmp_path / odd).mkdir()
    make_subject(tmp_path / odd / "my model")
    with pytest.raises(UserError, match="not UTF-8"):
        make_plan(Request(str(tmp_path / odd / "my model")))
    monkeypatch.chdir(tmp_path / odd)
    with pytest.raises(UserError, match="not UTF-8"):
        make_plan(Request("my model"))


def test_a_folder_that_was_removed_under_one_s_feet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(UserError, match="has been removed"):
        make_plan(Request("my model"))
    os.chdir(tmp_path)
