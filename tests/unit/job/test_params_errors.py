"""What a bad params file gets: one line for each problem, with file, line, key, value and cure."""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import Any, Literal

import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from portwright.errors import ExitStatus, UserError
from portwright.job.params import load_params
from portwright.job.section import Section

GOOD = """\
train_input:
  batch_size: 32
model:
  hidden: 10
optimizer:
  optimizer_type: adam
  learning_rate: 1e-3
runconfig:
  max_steps: 1000
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def error_of(text: str, **options: Any) -> str:
    Path("params.yaml").write_text(text)
    with pytest.raises(UserError) as raised:
        load_params("params.yaml", **options)
    assert raised.value.status == ExitStatus.USAGE
    return str(raised.value)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            "  log_step: 5",
            "params.yaml:10: runconfig.log_step: unknown key, with the value 5. Did you mean 'log_steps'?",
        ),
        (
            "  checkpoint_stepz: 5",
            "params.yaml:10: runconfig.checkpoint_stepz: unknown key, with the value 5. Did you mean",
        ),
        (
            "  num_cxs: 1",
            "params.yaml:10: runconfig.num_cxs: unknown key, with the value 1. Did you mean 'num_csx'?",
        ),
        (
            "  log_steps: often",
            "params.yaml:10: runconfig.log_steps: expected a whole number, received 'often'.",
        ),
        (
            "  log_steps: '50'",
            "params.yaml:10: runconfig.log_steps: expected a whole number, received '50'. Remove the quotes.",
        ),
        ("  log_steps: true", "params.yaml:10: runconfig.log_steps: expected a whole number, received True."),
        ("  log_steps: 2.5", "params.yaml:10: runconfig.log_steps: expected a whole number, received 2.5."),
        (
            "  log_steps: -1",
            "params.yaml:10: runconfig.log_steps: expected a number greater than or equal to 0, received -1.",
        ),
        ("  log_steps:", "params.yaml:10: runconfig.log_steps: expected a whole number, received None."),
        ("  log_steps: [1]", "params.yaml:10: runconfig.log_steps: expected a whole number, received [1]."),
        (
            "  num_steps: 0",
            "params.yaml:10: runconfig.num_steps: expected a number greater than 0, received 0.",
        ),
        ("  compile: 1", "params.yaml:10: runconfig.compile: expected true or false, received 1."),
        ("  compile: 'yes'", "params.yaml:10: runconfig.compile: expected true or false, received 'yes'."),
        (
            "  seed: 4294967296",
            "params.yaml:10: runconfig.seed: expected a number less than 4294967296, received 4294967296.",
        ),
        ("  seed: .nan", "params.yaml:10: runconfig.seed: expected a whole number, received nan."),
        ("  model_dir: 5", "params.yaml:10: runconfig.model_dir: expected a string, received 5."),
        ("  mount_dirs: here", "params.yaml:10: runconfig.mount_dirs: expected a list, received 'here'."),
        ("  mount_dirs: [a, 5]", "params.yaml:10: runconfig.mount_dirs.1: expected a string, received 5."),
        (
            "  precision: fp8",
            "params.yaml:10: runconfig.precision: expected 'fp32', 'bf16', 'fp16' or 'fp64', received 'fp8'.",
        ),
        ("  distributed: dpd", "Did you mean 'ddp'?"),
        (
            "  micro_batch_size: 0",
            "params.yaml:10: runconfig.micro_batch_size: a micro batch has at least one sample, received 0.",
        ),
        (
            "  validate_only: true",
            "params.yaml:10: runconfig.validate_only: true is for the command line: give --validate_only",
        ),
        (
            "  5: 6",
            "params.yaml:10: runconfig.5: a key must be a string, but YAML reads it as int. Put it in quotes.",
        ),
        ("  on: 6", "params.yaml:10: runconfig.True: a key must be a string, but YAML reads it as bool."),
        (
            "  num_epochs: 2\n  num_steps: 7",
            "params.yaml:10: runconfig.num_epochs: num_epochs is 2 and num_steps is 7; keep one of them (see also params.yaml:11).",
        ),
        (
            "  checkpoints_steps: 5\n  save_checkpoints_steps: 6",
            "params.yaml:10: runconfig.checkpoints_steps: 'checkpoints_steps' is 5, but 'save_checkpoints_steps', another "
            "spelling of it, is 6 (see also params.yaml:11). Keep one of them.",
        ),
        (
            "  keep_checkpoint_max: x",
            "params.yaml:10: runconfig.keep_checkpoint_max: expected a whole number, received 'x'.",
        ),
        ("  enable_distributed: true\n  distributed: none", "params.yaml:10: runconfig.enable_distributed"),
        (
            "  load_checkpoint_states: model\n  is_pretrained_checkpoint: false",
            "params.yaml:11: runconfig.is_pretrained_checkpoint: is_pretrained_checkpoint is false",
        ),
        ("optimzier: {}", "params.yaml:10: optimzier: unknown section. Did you mean 'optimizer'?"),
        ("ipu: {}", "params.yaml:10: ipu: unknown section. Valid: eval_input, model, optimizer,"),
        ("7: {}", "params.yaml:10: 7: unknown section."),
        ("eval_input: 5", "params.yaml:10: eval_input: expected a mapping of keys, received 5."),
        ("eval_input: [1, 2]", "params.yaml:10: eval_input: expected a mapping of keys, received [1, 2]."),
    ],
)
def test_one_line_with_the_place_and_the_cure(folder: Path, more: str, expected: str) -> None:
    message = error_of(f"{GOOD}{more}\n")
    assert expected in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (
            "  learning_rte: 1",
            "params.yaml:2: optimizer.learning_rte: unknown key, with the value 1. Did you mean 'learning_rate'?",
        ),
        (
            "  optimizer_type: Adm\n  lr: 1",
            "params.yaml:2: optimizer.optimizer_type: unknown optimizer 'Adm'. Did you mean 'Adam'?",
        ),
        ("  optimizer_type: 5\n  lr: 1", "params.yaml:2: optimizer.optimizer_type: unknown optimizer 5."),
        (
            "  momentum: 0.9\n  lr: 1",
            "params.yaml:2: optimizer.momentum: unknown key, with the value 0.9.",
        ),  # Adam has none
        ("  beta1: 0.9", "params.yaml:1: optimizer.learning_rate: this key is required. Add it."),
        (
            "  lr: '1e-3'",
            "params.yaml:2: optimizer.lr: expected a number, a schedule or a list of schedules, received '1e-3'.",
        ),
        ("  lr: .nan", "params.yaml:2: optimizer.lr: expected a finite number, 0 or more, received nan."),
        ("  lr: 1\n  eps: .inf", "params.yaml:3: optimizer.eps: expected a finite number, received inf."),
        ("  lr: 1\n  eps: true", "params.yaml:3: optimizer.eps: expected a number, received True."),
        (
            "  lr: 1\n  weight_decay: 1\n  weight_decay_rate: 2",
            "params.yaml:3: optimizer.weight_decay: 'weight_decay' is 1, but",
        ),
        (
            "  lr: 1\n  loss_scaling_factor: dynmic",
            "expected a number or 'dynamic', received 'dynmic'. Did you mean 'dynamic'?",
        ),
        (
            "  lr:\n    scheduler: Linear\n    initial_learning_rate: 1\n    end_learning_rate: 0\n    step: 5",
            "params.yaml:6: optimizer.lr.step: unknown key, with the value 5. Did you mean 'steps'?",
        ),
        (
            "  learning_rate:\n  - {scheduler: Constant, learning_rate: 1}\n  - {scheduler: Constant, learning_rate: 1}",
            "params.yaml:3: optimizer.learning_rate.0: schedule 1 of 2 does not say how long it lasts. Set total_iters.",
        ),
    ],
)
def test_errors_in_the_optimizer(folder: Path, optimizer: str, expected: str) -> None:
    message = error_of(f"optimizer:\n{optimizer}\n")
    assert expected in message
    assert "\n" not in message


@pytest.mark.parametrize("text", ["model: {}\n", "runconfig: {max_steps: 1}\n"])
def test_an_optimizer_is_required(folder: Path, text: str) -> None:
    assert error_of(text) == "params.yaml: optimizer: this section is required. Add it, with a learning_rate."


def test_all_problems_are_told_in_the_order_of_the_file(folder: Path) -> None:
    message = error_of(
        "optimizer:\n  lr: fast\n  beta1: x\n  nonsense: 1\nrunconfig:\n  seed: '1'\n  max_step: 1\nmodle: {}\n"
    )
    lines = message.splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        ["params.yaml:2", "optimizer.lr"],
        ["params.yaml:3", "optimizer.beta1"],
        ["params.yaml:4", "optimizer.nonsense"],
        ["params.yaml:6", "runconfig.seed"],
        ["params.yaml:7", "runconfig.max_step"],
        ["params.yaml:8", "modle"],
    ]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "optimizer.learning_rte=5",
            "-D optimizer.learning_rte=5: optimizer.learning_rte: unknown key, with the value 5. Did you mean",
        ),
        ("optmizer.x=1", "-D optmizer.x=1: optmizer: unknown section. Did you mean 'optimizer'?"),
        (
            "runconfig.seed=-1",
            "-D runconfig.seed=-1: runconfig.seed: expected a number greater than or equal to 0, received -1.",
        ),
        (
            "runconfig.max_steps=many",
            "-D runconfig.max_steps=many: runconfig.max_steps: expected a whole number, received 'many'.",
        ),
        ("runconfig.max_steps", "-D runconfig.max_steps: this is not of the form SECTION.KEY=VALUE."),
        ("max_steps=5", "-D max_steps=5: this is not of the form SECTION.KEY=VALUE."),
        ("=5", "-D =5: this is not of the form"),
        ("", "-D : this is not of the form"),
        ("model..hidden=5", "-D model..hidden=5: this is not of the form"),
        (
            "model.hidden.size=5",
            "-D model.hidden.size=5: model.hidden is 10 and has no keys. Set it as a whole: -D model.hidden=...",
        ),
        ("optimizer.learning_rate.0.steps=5", "optimizer.learning_rate is 0.001 and has no keys"),
        ("model.list.3=5", "-D model.list.3=5: model.list is a list, received the index '3'. Valid: 0 to 1."),
        ("model.list.-1=5", "model.list is a list, received the index '-1'. Valid: 0 to 1."),
        ("model.list.x=5", "model.list is a list, received the index 'x'. Valid: 0 to 1."),
        ("model.x=[1", "-D model.x=[1: not valid YAML"),
        ("model.x={a: 1, a: 2}", "-D model.x={a: 1, a: 2}: the key 'a' stands twice. Remove one of them."),
        ("model.x=!!python/name:os.system", "the tag !!python/name:os.system is not allowed"),
        (
            "optimizer.learning_rate={scheduler: Step, learning_rate: 1, gamma: 1, stepsize: 3}",
            "optimizer.learning_rate.stepsize: unknown key, with the value 3. Did you mean 'step_size'?",
        ),
    ],
)
def test_errors_of_overrides_name_the_override(folder: Path, override: str, expected: str) -> None:
    message = error_of(GOOD.replace("hidden: 10", "hidden: 10\n  list: [1, 2]"), overrides=[override])
    assert expected in message
    assert message.startswith(f"-D {override}")
    assert "\n" not in message


class Color(enum.Enum):
    red = "red"
    green = "green"


class Layer(pydantic.BaseModel):
    units: int
    kind: Literal["dense", "conv"] = "dense"


class Model(pydantic.BaseModel):
    hidden: int
    dropout: float = 0.0
    first: Layer | None = None
    layers: list[Layer] = []
    color: Color = Color.red

    @pydantic.model_validator(mode="after")
    def _fits(self) -> Model:
        if self.hidden == 13:
            raise ValueError("13 brings bad luck")
        return self


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (
            "hidden: 1\n  droput: 0.5",
            "params.yaml:5: model.droput: unknown key, with the value 0.5. Did you mean 'dropout'?",
        ),
        ("hiden: 1", "params.yaml:4: model.hiden: unknown key, with the value 1. Did you mean 'hidden'?"),
        ("hidden: wide", "params.yaml:4: model.hidden: expected a whole number, received 'wide'."),
        (
            "hidden: '1'",
            "params.yaml:4: model.hidden: expected a whole number, received '1'. Remove the quotes.",
        ),
        ("hidden: true", "params.yaml:4: model.hidden: expected a whole number, received True."),
        ("dropout: 0.5", "params.yaml:3: model.hidden: this key is required. Add it."),
        ("hidden: 13", "params.yaml:3: model: 13 brings bad luck."),
        (
            "hidden: 1\n  color: gren",
            "model.color: expected 'red' or 'green', received 'gren'. Did you mean 'green'?",
        ),
        (
            "hidden: 1\n  first: {units: 1, knd: conv}",
            "params.yaml:5: model.first.knd: unknown key, with the value 'conv'. Did you mean 'kind'?",
        ),
        ("hidden: 1\n  first: 5", "params.yaml:5: model.first: expected"),
        (
            "hidden: 1\n  layers:\n  - units: 1\n  - unit: 2",
            "params.yaml:7: model.layers.1.unit: unknown key, with the value 2. Did you mean 'units'?",
        ),
        (
            "hidden: 1\n  layers:\n  - units: true",
            "params.yaml:6: model.layers.0.units: expected a whole number, received True.",
        ),
        (
            "hidden: 1\n  layers: {units: 1}",
            "params.yaml:5: model.layers: expected a list, received {'units': 1}.",
        ),
    ],
)
def test_a_schema_of_the_user_gives_the_same_errors(folder: Path, model: str, expected: str) -> None:
    message = error_of(GOOD.replace("hidden: 10", model), user_schemas={"model": Model})
    assert expected in message
    assert "\n" not in message


def test_schemas_that_cannot_be(folder: Path) -> None:
    assert "Did you mean 'model'?" in error_of(GOOD, user_schemas={"modle": Model})
    assert "derived from pydantic.BaseModel" in error_of(GOOD, user_schemas={"model": dict})  # type: ignore[dict-item]


class Ipu(Section):
    num_ipus: int


def test_target_sections_are_checked(folder: Path) -> None:
    targets = {"ipu": Ipu}
    assert (
        error_of(GOOD, target_sections=targets) == "params.yaml: ipu.num_ipus: this key is required. Add it."
    )
    expected = "params.yaml:11: ipu.num_ipu: unknown key, with the value 4. Did you mean 'num_ipus'?"
    assert expected in error_of(f"{GOOD}ipu:\n  num_ipu: 4\n", target_sections=targets)
    assert "params.yaml:10: ipv: unknown section. Did you mean 'ipu'?" in error_of(
        f"{GOOD}ipv:\n", known_target_sections=["ipu"]
    )


def test_defaults_that_fail(folder: Path) -> None:
    def set_defaults(params: dict[str, Any]) -> None:
        params["eval_input"]["batch_size"] = 1

    message = error_of(GOOD, default_params_fn=set_defaults)
    assert f"{__file__}:" in message
    assert "set_defaults failed: KeyError: 'eval_input'." in message
    assert "\n" not in message


def test_defaults_that_return_something_else(folder: Path) -> None:
    message = error_of(GOOD, default_params_fn=lambda _: 5)
    assert "it returned 5. Return the params, or change them in place" in message


def test_an_error_of_ours_inside_defaults_stays_itself(folder: Path) -> None:
    def set_defaults(params: dict[str, Any]) -> None:
        raise UserError("the data are elsewhere.", "Look there.")

    assert error_of(GOOD, default_params_fn=set_defaults) == "the data are elsewhere. Look there."


def test_errors_that_defaults_brought_in_name_them(folder: Path) -> None:
    def set_defaults(params: dict[str, Any]) -> None:
        params["runconfig"]["log_step"] = 5
        params["optimizer"]["learning_rate"] = -1
        params["model"]["array"] = pytest.importorskip("numpy").zeros(3)

    first, second = sorted(error_of(GOOD, default_params_fn=set_defaults).splitlines(), reverse=True)
    place = f"{__file__}:{set_defaults.__code__.co_firstlineno} (set_defaults)"
    assert first.startswith(f"{place}: runconfig.log_step: unknown key, with the value 5.")
    assert second.startswith(f"{place}: optimizer.learning_rate: expected a finite number")


def test_a_config_that_is_not_there(folder: Path) -> None:
    assert "there is no config 'smal'. Did you mean 'small'?" in error_of("small: {}\n", config="smal")
    assert "params.yaml:1: small: expected sections, received 5." in error_of("small: 5\n", config="small")


def test_huge_values_are_cut_short(folder: Path) -> None:
    assert len(error_of(f"{GOOD}  log_steps: {'x' * 10000}\n")) < 300
    assert len(error_of(f"{GOOD}  log_steps: {list(range(1000))}\n")) < 300


yaml_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=3)
    ),
    max_leaves=6,
)
keys = st.sampled_from(
    [
        "learning_rate",
        "lr",
        "optimizer_type",
        "betas",
        "eps",
        "max_steps",
        "checkpoint_steps",
        "seed",
        "mode",
        "scheduler",
        "steps",
    ]
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    optimizer=st.dictionaries(keys | st.text(max_size=8), yaml_values, max_size=4),
    runconfig=st.dictionaries(keys | st.text(max_size=8), yaml_values, max_size=4),
    rate=st.fixed_dictionaries(
        {"scheduler": st.sampled_from(["Linear", "Cyclic", "OneCycle", "Step", "Constant"])}
    ).flatmap(
        lambda base: st.dictionaries(keys | st.text(max_size=8), yaml_values, max_size=3).map(
            lambda more: {**more, **base}
        )
    )
    | yaml_values,
)
def test_whatever_stands_there_it_is_read_or_refused(
    folder: Path, optimizer: Any, runconfig: Any, rate: Any
) -> None:
    def set_values(params: dict[str, Any]) -> dict[str, Any]:
        return {"optimizer": {"learning_rate": rate, **optimizer}, "runconfig": runconfig}

    Path("params.yaml").write_text(GOOD)
    message = ""
    try:
        params = load_params("params.yaml", default_params_fn=set_values)
    except UserError as error:
        message = str(error)
    else:
        assert params.optimizer.schedule(0) >= 0
    assert all(": " in line for line in message.splitlines())


def test_params_need_no_torch() -> None:
    import subprocess

    code = "import sys, portwright.job.params, portwright.job.schema; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
