"""What a good params file comes to."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pydantic
import pytest
import yaml

from portwright.errors import UserError
from portwright.job.params import get_params, load_params, save_params
from portwright.job.runconfig import RunConfig
from portwright.job.section import Section

# As public model zoo files write them: a comment, quoted names, both generations of keys.
ZOO_FILE = """\
train_input:
    data_dir: "./data/mnist/train"
    batch_size: 128
    shuffle: True
eval_input:
    data_dir: "./data/mnist/val"
    batch_size: 128
model:
    name: "fc_mnist"
    mixed_precision: True
    hidden_size: 50
optimizer:
    optimizer_type: "SGD"
    learning_rate: 1e-3   # YAML 1.1 would call this a text
    momentum: 0.9
    loss_scaling_factor: 1.0
runconfig:
    max_steps: 10000
    checkpoints_steps: 2000
    keep_checkpoint_max: 2
    log_steps: 50
    seed: 1
    save_losses: True
    num_workers_per_csx: 1
    mode: "train"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "params.yaml"
    path.write_text(ZOO_FILE)
    return path


def test_typed_sections_and_plain_values(file: Path) -> None:
    params = load_params(file)
    assert (params.optimizer.optimizer_type, params.optimizer.learning_rate) == ("SGD", 1e-3)
    assert (
        params.runconfig.max_steps,
        params.runconfig.checkpoint_steps,
        params.runconfig.max_checkpoints,
    ) == (10000, 2000, 2)
    assert params.values["train_input"] == {
        "data_dir": "./data/mnist/train",
        "batch_size": 128,
        "shuffle": True,
    }
    assert params.values["optimizer"]["weight_decay_rate"] == 0.0
    assert params.values["runconfig"]["check_loss_values"] is True
    assert params.path == file


def test_both_spellings_of_a_key_can_be_read(file: Path) -> None:
    runconfig = load_params(file).values["runconfig"]
    assert runconfig["checkpoint_steps"] == runconfig["checkpoints_steps"] == 2000
    assert runconfig["max_checkpoints"] == runconfig["keep_checkpoint_max"] == 2


@pytest.mark.parametrize("spelling", ["checkpoint_steps", "checkpoints_steps", "save_checkpoints_steps"])
def test_spellings_of_the_seeds(file: Path, spelling: str) -> None:
    file.write_text(ZOO_FILE.replace("checkpoints_steps", spelling))
    params = load_params(file)
    assert params.runconfig.checkpoint_steps == params.values["runconfig"][spelling] == 2000
    assert params.locate("runconfig.checkpoint_steps").endswith("params.yaml:19")


def test_the_same_value_in_two_spellings_is_no_contradiction(file: Path) -> None:
    file.write_text(ZOO_FILE + "    checkpoint_steps: 2000\n    save_checkpoints_steps: 2000\n")
    assert load_params(file).runconfig.checkpoint_steps == 2000


def test_keys_that_nobody_set_are_absent(file: Path) -> None:
    runconfig = load_params(file).values["runconfig"]
    assert "num_epochs" not in runconfig  # so that params["runconfig"].get("num_epochs", 3) gives 3
    assert "num_csx" not in runconfig


def test_a_file_with_an_optimizer_only(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text("optimizer: {learning_rate: 1}\nrunconfig:\nmodel:\n")
    params = load_params(path)
    assert params.optimizer.optimizer_type == "Adam"
    assert params.runconfig == RunConfig()
    assert params.values["model"] == {}
    assert "train_input" not in params.values


def test_locate(file: Path) -> None:
    params = load_params(file, overrides=["model.depth=3", "train_input.batch_size=4"])
    assert params.locate("optimizer.learning_rate") == f"{file}:14"
    assert params.locate("optimizer") == f"{file}:12"
    assert params.locate("optimizer.eps") == f"{file}:12"  # a default: its section
    assert params.locate("model.depth") == "-D model.depth=3"
    assert params.locate("train_input.batch_size") == "-D train_input.batch_size=4"
    assert params.locate("nothing.at.all") == str(file)


def test_locate_in_a_list_and_through_anchors(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(
        "model: &common\n  width: 3\n  deep: {a: 1}\neval_input:\n  <<: *common\n  width: 4\noptimizer:\n  learning_rate:\n"
        "  - {scheduler: Constant, learning_rate: 1, steps: 3}\n  - scheduler: Constant\n    learning_rate: 2\n"
    )
    params = load_params(path)
    assert params.values["eval_input"] == {"width": 4, "deep": {"a": 1}}
    assert params.locate("eval_input.width") == f"{path}:6"
    assert params.locate("eval_input.deep.a") == f"{path}:3"
    assert params.locate("optimizer.learning_rate.1.learning_rate") == f"{path}:11"


def test_an_override_of_an_alias_leaves_its_anchor_alone(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(
        "train_input: &data {batch_size: 2, more: {a: 1}}\neval_input: *data\noptimizer: {lr: 1}\n"
    )
    values = load_params(path, overrides=["eval_input.batch_size=9", "eval_input.more.a=9"]).values
    assert values["train_input"] == {"batch_size": 2, "more": {"a": 1}}
    assert values["eval_input"] == {"batch_size": 9, "more": {"a": 9}}


def test_overrides(file: Path) -> None:
    params = load_params(
        file,
        overrides=[
            "optimizer.learning_rate=1e-2",
            "runconfig.max_steps=1e2",
            "model.new.deep.key=[1, two]",
            "model.name=",
            "eval_input.path=a=b",
            " model . hidden_size = 7 ",
            "runconfig.seed=5",
            "runconfig.seed=6",
        ],
    )
    assert params.optimizer.learning_rate == 0.01
    assert params.runconfig.max_steps == 100
    assert params.values["model"]["new"] == {"deep": {"key": [1, "two"]}}
    assert params.values["model"]["name"] is None
    assert params.values["model"]["hidden_size"] == 7
    assert params.values["eval_input"]["path"] == "a=b"
    assert params.runconfig.seed == 6  # the last one counts


def test_overrides_of_list_items(file: Path) -> None:
    params = load_params(
        file,
        overrides=[
            "optimizer.learning_rate=[{scheduler: Constant, learning_rate: 1, steps: 3}, {scheduler: Constant, learning_rate: 2}]",
            "optimizer.learning_rate.0.steps=5",
        ],
    )
    assert [params.optimizer.schedule(step) for step in (4, 5)] == [1.0, 2.0]


def test_an_override_in_another_spelling_contradicts_the_file(file: Path) -> None:
    with pytest.raises(UserError) as raised:
        load_params(file, overrides=["runconfig.checkpoint_steps=7"])
    assert f"{file}:19: runconfig.checkpoints_steps" in str(raised.value)
    assert "-D runconfig.checkpoint_steps=7" in str(raised.value)


def test_defaults_in_place(file: Path) -> None:
    def set_defaults(params: dict[str, Any]) -> None:
        params["model"]["dropout"] = params["model"].get("dropout", 0.25)
        params["runconfig"].setdefault("eval_steps", 9)

    params = load_params(file, default_params_fn=set_defaults)
    assert params.values["model"]["dropout"] == 0.25
    assert params.runconfig.eval_steps == 9


def test_defaults_returned(file: Path) -> None:
    params = load_params(file, default_params_fn=lambda params: {**params, "model": {"only": 1}})
    assert params.values["model"] == {"only": 1}


def test_defaults_see_overrides(file: Path) -> None:
    seen: list[Any] = []
    load_params(
        file,
        overrides=["model.depth=4"],
        default_params_fn=lambda params: seen.append(params["model"]["depth"]),
    )
    assert seen == [4]


class Layer(pydantic.BaseModel):
    units: int = 8


class Model(pydantic.BaseModel):
    name: str
    hidden_size: int = 1
    mixed_precision: bool = False
    data: Path = Path("here")
    sizes: tuple[int, int] = (1, 2)
    layers: list[Layer] = []


def test_a_schema_of_the_user_fills_in_its_defaults(file: Path) -> None:
    params = load_params(file, overrides=["model.layers=[{}]"], user_schemas={"model": Model})
    assert params.values["model"] == {
        "name": "fc_mnist",
        "hidden_size": 50,
        "mixed_precision": True,
        "data": "here",
        "sizes": [1, 2],
        "layers": [{"units": 8}],
    }
    assert isinstance(params.sections["model"], Model)
    assert params.sections["model"].sizes == (1, 2)


def test_a_schema_that_allows_more_keys_gets_them(file: Path) -> None:
    class Open(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="allow")
        name: str

    assert load_params(file, user_schemas={"model": Open}).values["model"]["hidden_size"] == 50


def test_a_schema_with_pydantic_aliases(file: Path) -> None:
    class Aliased(pydantic.BaseModel):
        width: int = pydantic.Field(alias="hidden_size")
        title: str = pydantic.Field(validation_alias=pydantic.AliasChoices("name", "title"))
        mixed_precision: bool

    values = load_params(file, user_schemas={"model": Aliased}).values["model"]
    assert (values["width"], values["hidden_size"], values["title"], values["name"]) == (
        50,
        50,
        "fc_mnist",
        "fc_mnist",
    )


def test_the_schema_of_an_absent_section_asks_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("optimizer: {lr: 1}\n")
    params = load_params(path, user_schemas={"model": Model})
    assert "model" not in params.values
    assert "model" not in params.sections


class Ipu(Section):
    num_ipus: int = 4


def test_target_sections(file: Path) -> None:
    assert load_params(file, target_sections={"ipu": Ipu}).sections["ipu"] == Ipu()
    file.write_text(ZOO_FILE + "ipu:\n    num_ipus: 2\nrdu:\n    anything: [1]\n")
    params = load_params(file, target_sections={"ipu": Ipu}, known_target_sections=["rdu", "ipu"])
    assert params.values["ipu"] == {"num_ipus": 2}
    assert params.values["rdu"] == {"anything": [1]}


def test_a_config_inside_a_file(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("small:\n  optimizer: {lr: 1}\nlarge:\n  optimizer:\n    lr: 2\n")
    params = load_params(path, config="large")
    assert params.optimizer.learning_rate == 2
    assert params.locate("optimizer.learning_rate") == f"{path}:5"


def test_with_runconfig(file: Path) -> None:
    params = load_params(file)
    changed = params.with_runconfig(compile=True)
    assert (params.runconfig.compile, changed.runconfig.compile) == (False, True)
    assert (params.values["runconfig"]["compile"], changed.values["runconfig"]["compile"]) == (False, True)
    assert changed.locate("runconfig.seed") == params.locate("runconfig.seed")
    with pytest.raises(UserError, match="max_step"):
        params.with_runconfig(max_step=1)


def test_get_params_is_plain(file: Path) -> None:
    values = get_params(str(file))
    assert values["optimizer"]["learning_rate"] == 0.001
    assert values["runconfig"]["checkpoints_steps"] == 2000
    assert "checkpoint_steps" not in values["runconfig"]


def test_saved_params_load_as_the_same(file: Path, tmp_path: Path) -> None:
    file.write_text(
        ZOO_FILE.replace("momentum: 0.9", "momentum: 0.9\n    weight_decay: 0.1") + "    max_checkpoints: 2\n"
    )
    params = load_params(
        file, overrides=["model.näme='日本: x'", "model.nothing=", "runconfig.keep_checkpoint_max=2"]
    )
    saved = tmp_path / "new folder" / "params_train.yaml"
    saved.parent.mkdir()
    save_params(params, saved)
    again = load_params(saved)
    assert again.runconfig.model_dump() == params.runconfig.model_dump()
    assert again.optimizer.model_dump() == params.optimizer.model_dump()
    assert again.values["model"] == params.values["model"]
    assert sorted(path.name for path in saved.parent.iterdir()) == [saved.name]


def test_saving_what_yaml_has_no_form_for(file: Path, tmp_path: Path) -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd one"

    def set_defaults(params: dict[str, Any]) -> None:
        shared = [1]
        params["model"].update(
            odd=Odd(), path=Path("a/b"), pair=(1, 2), one=shared, two=shared, day=datetime.date(2024, 1, 2)
        )

    save_params(load_params(file, default_params_fn=set_defaults), tmp_path / "saved.yaml")
    model = yaml.safe_load((tmp_path / "saved.yaml").read_text())["model"]
    assert model["odd"] == "odd one"
    assert model["path"] == str(Path("a/b"))
    assert model["pair"] == [1, 2]
    assert model["day"] == datetime.date(2024, 1, 2)
    assert "&id" not in (tmp_path / "saved.yaml").read_text()


def test_eval_every() -> None:
    assert RunConfig(checkpoint_steps=7).eval_every == 7
    assert RunConfig(checkpoint_steps=7, eval_frequency=3).eval_every == 3
    assert RunConfig(checkpoint_steps=7, eval_frequency=0).eval_every == 0


def test_zero_or_null_keeps_all_checkpoints() -> None:
    assert RunConfig(max_checkpoints=0).max_checkpoints is None
    assert RunConfig(max_checkpoints=None).max_checkpoints is None


def test_the_newer_spelling_of_weights_only() -> None:
    assert RunConfig(load_checkpoint_states="model").is_pretrained_checkpoint is True


def test_cluster_keys_that_were_set(file: Path) -> None:
    assert load_params(file).runconfig.cluster_keys() == {"num_workers_per_csx": 1}


def test_every_key_has_a_description() -> None:
    assert [name for name, field in RunConfig.model_fields.items() if not field.description] == []
