from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.launch.script_jobs import make_job, make_site

from portwright.errors import UserError
from portwright.launch.job import Container, Resources, Step
from portwright.launch.script import OWN_NAMES, render_job
from portwright.launch.task_script import render_task
from portwright.launch.words import directive, file_pattern, quote, quote_expanding, wrap


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("#SBATCH ")]


def test_what_the_scheduler_is_asked_for(tmp_path: Path) -> None:
    asked = Resources("abc", "sdf", 2, 7, 14, "cs:cerebras:1", "64G", 240, 90, ("--qos=low", "--exclusive"))
    text = render_job(make_job(tmp_path / "my job", scheduler="slurm", resources=asked))
    assert lines_of(text) == [
        *(
            "#SBATCH --job-name=mymodel-1",
            "#SBATCH --account=abc",
            "#SBATCH --partition=sdf",
            "#SBATCH --nodes=2",
        ),
        *(
            "#SBATCH --ntasks=7",
            "#SBATCH --cpus-per-task=14",
            "#SBATCH --gres=cs:cerebras:1",
            "#SBATCH --mem=64G",
        ),
        *("#SBATCH --time=240", "#SBATCH --qos=low", "#SBATCH --exclusive", "#SBATCH --signal=B:USR1@90"),
        *("#SBATCH --requeue", "#SBATCH --open-mode=append", f'#SBATCH --output="{tmp_path}/my job/log.txt"'),
    ]
    assert text.startswith("#!/usr/bin/env bash\n#SBATCH")


def test_nothing_is_asked_for_that_was_not_given(tmp_path: Path) -> None:
    flags = {
        line.split("=")[0].split()[1] for line in lines_of(render_job(make_job(tmp_path, scheduler="slurm")))
    }
    assert flags == {"--job-name", "--ntasks", "--signal", "--requeue", "--open-mode", "--output"}
    assert lines_of(render_job(make_job(tmp_path))) == []


def test_how_each_kind_of_step_is_started(tmp_path: Path) -> None:
    steps = (
        Step("validate", 1, ("python", "run.py")),
        Step("train", 7, ("python", "run.py"), "stream"),
        Step("eval", 7, ("python", "run.py"), "parallel"),
    )
    asked = Resources(ntasks=7, cpus_per_task=14)
    text = render_job(make_job(tmp_path, *steps, scheduler="slurm", resources=asked)).replace(
        " \\\n    ", " "
    )
    assert "run_step validate 1 srun --ntasks=1 --nodes=1 --cpus-per-task=14 --kill-on-bad-exit=1 " in text
    assert (
        "streams=1 run_step train 7 srun --ntasks=7 --cpus-per-task=14 --kill-on-bad-exit=0 --wait=0 " in text
    )
    assert "\nrun_step eval 7 srun --ntasks=7 --cpus-per-task=14 --kill-on-bad-exit=1 " in text
    local = render_job(make_job(tmp_path, *steps)).replace(" \\\n    ", " ")
    assert (
        '"$python" -m portwright.launch.tasks --ntasks=7 --keep-going -- "$job_folder/task.sh" train' in local
    )
    assert "srun" not in local.split("run_step validate")[1]


def test_nothing_that_the_job_does_not_need(tmp_path: Path) -> None:
    text = render_job(make_job(tmp_path, scheduler="slurm"))
    for word in ("stream", "module", "hanging", "python=", "SDK"):
        assert word not in text
    local = render_job(make_job(tmp_path))
    for word in ("SLURM", "Slurm", "srun ", "scontrol"):
        assert word not in local.replace("srun: error", "")


def test_a_site_s_flags_and_modules(tmp_path: Path) -> None:
    site = make_site("slurm", launch={"srun": ["--mpi=pmi2", "--comment=${SLURM_JOB_ID}"]})
    text = render_job(make_job(tmp_path, site=site, modules=("cuda/12.1", "py"), environment={"A": "it's"}))
    assert '--mpi=pmi2 "--comment=${SLURM_JOB_ID}"' in text
    assert "module load cuda/12.1 py || exit 2" in text
    assert 'export A="it\'s"' in text


def test_python_is_the_job_s_outside_a_container(tmp_path: Path) -> None:
    text = render_job(make_job(tmp_path, python="/opt/my python"))
    assert "train '/opt/my python' run.py" in text.replace(" \\\n    ", " ")


def test_a_variable_that_a_step_needs_is_asked_for_first(tmp_path: Path) -> None:
    step = Step("train", 1, ("python", "--cs_ip", "${CS_IP_ADDR}:9000", "${NOT}"), literal=(2,))
    text = render_job(make_job(tmp_path, step, scheduler="slurm"))
    assert '"${CS_IP_ADDR}:9000"' in text
    assert ': "${CS_IP_ADDR:?' in text
    assert '"\\${NOT}"' in text


def test_steps_of_another_folder(tmp_path: Path) -> None:
    steps = (Step("compile", 1, ("cslc",), folder=tmp_path / "a b", contained=False),)
    text = render_job(make_job(tmp_path / "job", *steps, scheduler="slurm"))
    assert f"cd -- '{tmp_path}/a b'\n\nrun_step compile" in text
    assert "SDK_INSTALL_PATH" in text


def test_a_job_without_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no step"):
        render_job(make_job(tmp_path, steps=()))


@pytest.mark.parametrize("name", ["a\nb", "a\rb"])
def test_a_path_that_no_directive_can_hold_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="line break"):
        render_job(make_job(tmp_path / name, scheduler="slurm"))


def test_file_names_as_slurm_takes_them() -> None:
    assert file_pattern(Path("/a/50%j")) == "/a/50%%j"
    assert file_pattern(Path("/a\\b/%j")) == "/a\\\\b/%j"  # a backslash turns patterns off
    assert directive("--output", '/a "b"\\') == '#SBATCH --output="/a \\"b\\"\\\\"'
    assert directive("--exclusive") == "#SBATCH --exclusive"


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1, max_size=12
    )
)
def test_bash_reads_back_the_words(words: list[str]) -> None:
    command = wrap(["printf", r"'%s\0'", *(quote(word) for word in words)])
    said = subprocess.run(["bash", "-c", command], capture_output=True, check=True)
    assert said.stdout.decode().split("\0")[:-1] == words


@pytest.mark.parametrize("value", ["1.2.3.4", "a b", "$(id)", 'it\'s "so" `x` \\'])
def test_only_variables_are_expanded(value: str) -> None:
    word = '${ADDRESS}:9000 $HOME $(id) `id` "q" \\ ${a-b} %'
    said = subprocess.run(
        ["bash", "-c", f"printf %s {quote_expanding(word)}"],
        env={"ADDRESS": value},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == word.replace("${ADDRESS}", value)


def test_names_of_the_scripts_own_variables(tmp_path: Path) -> None:
    """All that they assign in small letters is known, so that a user's variable of that name can be refused."""
    container = Container("ch-run", "/image", (("/data", "/data"),), images_on_nodes=("/local/image",))
    found = set()
    for scheduler in ("slurm", "none"):
        step = Step("train", 3, ("python", "run.py"), "stream")
        job = make_job(tmp_path, step, scheduler=scheduler, container=container, modules=("cuda",))
        for text in (render_job(job), render_task(job)):
            code = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
            code = re.sub(r"awk [^\n]*'[^']*'", "", code)
            found |= set(re.findall(r"(?:^|[\s;(])([a-z_]+)\+?=(?!=)", code))
            found |= set(re.findall(r"\bfor ([a-z_]+) in", code))
            for line in re.findall(r"\blocal (.*)", code):
                found |= {word.partition("=")[0] for word in line.split()}
    found.discard("_")
    assert found <= OWN_NAMES, found - OWN_NAMES
    assert {"step", "job_folder", "status", "bind"} <= found


def test_a_variable_of_the_scripts_own_is_refused(tmp_path: Path) -> None:
    for names in ({"environment": {"step": "1"}}, {"passed": ("step",)}):
        with pytest.raises(UserError, match="step"):
            render_job(make_job(tmp_path, **names))


def test_words_before_python(tmp_path: Path) -> None:
    prefix = ("poprun", "--vipu-partition=slurm_${SLURM_JOBID}")
    site = make_site("slurm", launch={"prefix": list(prefix)})
    step = Step("train", 1, (*prefix, "python", "run.py", "python"), literal=(1,))
    text = render_job(make_job(tmp_path, step, site=site, python="/my/python"))
    joined = " ".join(text.replace("\\\n", " ").split())
    assert 'poprun "--vipu-partition=slurm_${SLURM_JOBID}" /my/python run.py python' in joined
    assert ': "${SLURM_JOBID:?' in text


@pytest.mark.parametrize(
    ("nodes", "ntasks", "flags", "told"),
    [
        (2, 8, (), "--ntasks-per-node=4"),
        (2, 7, (), None),
        (1, 8, (), None),
        (None, 8, (), None),
        (2, 8, ("--ntasks-per-node=5",), None),
    ],
)
def test_tasks_are_spread_evenly(
    tmp_path: Path, nodes: int | None, ntasks: int, flags: tuple[str, ...], told: str | None
) -> None:
    asked = Resources(nodes=nodes, ntasks=ntasks, flags=flags)
    lines = lines_of(render_job(make_job(tmp_path, scheduler="slurm", resources=asked)))
    found = [
        line for line in lines if "--ntasks-per-node" in line and line not in [f"#SBATCH {f}" for f in flags]
    ]
    assert found == ([f"#SBATCH {told}"] if told else [])
