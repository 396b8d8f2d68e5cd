from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from portwright.errors import UserError
from portwright.launch.hpc import hpc_steps


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("layout.csl", "code.csl", "run.py"):
        (tmp_path / name).touch()
    return tmp_path


def test_the_chain_of_the_site_s_own_example(folder: Path) -> None:
    colors = {"x_in": 1, "b_in": 2, "y_out": 3, "Ax_out": 4, "sentinel": 43}
    compile_step, run_step = hpc_steps(folder, {"compile": {"source": "code.csl", "colors": colors}})
    assert compile_step.name == "compile"
    assert " ".join(compile_step.words) == (
        "cslc --arch=wse2 ./code.csl --fabric-dims=757,996 --fabric-offsets=1,1 "
        "--colors=x_in:1,b_in:2,y_out:3,Ax_out:4,sentinel:43 -o out"
    )
    assert run_step.name == "run"
    assert (
        " ".join(run_step.words)
        == "cs_python run.py --name out --cmaddr ${CS_IP_ADDR}:9000 --fabdims 757,996"
    )
    assert [run_step.words[place] for place in run_step.literal] == ["${CS_IP_ADDR}:9000"]
    assert compile_step.literal == ()
    for step in (compile_step, run_step):
        assert (step.folder, step.contained, step.ntasks, step.tasks) == (folder, False, 1, "single")


def test_everything_a_file_can_say(folder: Path) -> None:
    steps = hpc_steps(
        folder,
        {
            "sdk": "${SDK_INSTALL_PATH}/",
            "compile": {
                "arch": "wse3",
                "fabric_dims": [11, 3],
                "fabric_offsets": [4, 1],
                "params": {"M": 4, "fast": True, "alpha": 0.5, "T": "f16"},
                "memcpy": True,
                "channels": 1,
                "output": "my out",
                "flags": ["--width-west-buf=0"],
            },
            "run": {"cmaddr": None, "arguments": ["--tolerance", 0.01, True, "$(id)"]},
        },
    )
    assert steps[0].words == (
        *(
            "${SDK_INSTALL_PATH}/cslc",
            "--arch=wse3",
            "./layout.csl",
            "--fabric-dims=11,3",
            "--fabric-offsets=4,1",
        ),
        *(
            "--params=M:4,fast:true,alpha:0.5,T:f16",
            "--memcpy",
            "--channels=1",
            "--width-west-buf=0",
            "-o",
            "my out",
        ),
    )
    assert steps[0].literal == (0,)
    assert steps[1].words == (
        *("${SDK_INSTALL_PATH}/cs_python", "run.py", "--name", "my out"),
        *("--tolerance", "0.01", "true", "$(id)"),
    )
    assert steps[1].literal == (0,)


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"compile": {"source": "gone.csl"}}, "no gone.csl"),
        ({"run": {"script": "gone.py"}}, "no gone.py"),
        ({"compiles": {}}, "compile"),
        ({"compile": {"fabric_dim": [1, 2]}}, "fabric_dims"),
        ({"compile": {"fabric_dims": [1]}}, "fabric_dims"),
        ({"compile": {"fabric_dims": [1, -2]}}, "fabric_dims"),
        ({"compile": {"params": {"a:b": 1}}}, "a:b"),
        ({"compile": {"params": {"a": "x,y"}}}, "x,y"),
        ({"compile": {"channels": 0}}, "channels"),
        ({"compile": {"output": ""}}, "output"),
        ({"run": {"arguments": ["a\nb"]}}, "arguments"),
        ({"run": 3}, "run"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, params: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as caught:
        hpc_steps(folder, params)
    assert says in str(caught.value)
    assert "\n" not in caught.value.message


def test_only_the_files_of_the_chosen_steps_are_looked_for(folder: Path) -> None:
    (folder / "run.py").unlink()
    (step,) = hpc_steps(folder, {}, ["compile"])
    assert step.name == "compile"
    with pytest.raises(UserError, match=r"no run\.py"):
        hpc_steps(folder, {})
