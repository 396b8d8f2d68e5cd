"""The JSON schema for editors: it must accept what load_params accepts, and mark what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pydantic
import pytest

from portwright.errors import UserError
from portwright.job.optimizer import OPTIMIZERS
from portwright.job.params import get_params, load_params
from portwright.job.schedules import SCHEDULES
from portwright.job.schema import json_schema

TYPES = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "integer": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool) and v == v // 1,
    "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
}
CHECKED = {
    *(
        "$ref",
        "type",
        "enum",
        "const",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "prefixItems",
    ),
    *("minItems", "maxItems", "minLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("anyOf", "allOf", "if", "then"),
}
NOTED = {"$schema", "$defs", "title", "description", "default"}


def is_valid(schema: dict[str, Any], value: Any, root: dict[str, Any]) -> bool:
    """The part of JSON Schema that ours uses; a keyword that it does not know fails the test."""
    assert set(schema) <= CHECKED | NOTED, set(schema) - CHECKED - NOTED
    if "$ref" in schema:
        target = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        if not is_valid(target, value, root):
            return False
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(TYPES[kind](value) for kind in kinds):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "const" in schema and value != schema["const"]:
        return False
    if TYPES["number"](value) and not (
        schema.get("minimum", value) <= value <= schema.get("maximum", value)
        and schema.get("exclusiveMinimum", value - 1) < value < schema.get("exclusiveMaximum", value + 1)
    ):
        return False
    if isinstance(value, str) and len(value) < schema.get("minLength", 0):
        return False
    if isinstance(value, dict) and not is_valid_object(schema, value, root):
        return False
    if isinstance(value, list) and not is_valid_list(schema, value, root):
        return False
    if "anyOf" in schema and not any(is_valid(one, value, root) for one in schema["anyOf"]):
        return False
    if "if" in schema and is_valid(schema["if"], value, root) and not is_valid(schema["then"], value, root):
        return False
    return all(is_valid(one, value, root) for one in schema.get("allOf", []))


def is_valid_object(schema: dict[str, Any], value: dict[str, Any], root: dict[str, Any]) -> bool:
    properties = schema.get("properties", {})
    more = schema.get("additionalProperties", True)
    for key, item in value.items():
        allowed = properties.get(key, more)
        if allowed is False or (isinstance(allowed, dict) and not is_valid(allowed, item, root)):
            return False
    return all(key in value for key in schema.get("required", []))


def is_valid_list(schema: dict[str, Any], value: list[Any], root: dict[str, Any]) -> bool:
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        return False
    first = schema.get("prefixItems", [])
    rest = schema.get("items", {})
    return all(
        is_valid(first[index] if index < len(first) else rest, item, root) for index, item in enumerate(value)
    )


GOOD = """\
train_input: {batch_size: 32}
eval_input:
model: {hidden: 10}
optimizer:
  optimizer_type: AdamW
  learning_rate:
  - {scheduler: Linear, initial_learning_rate: 0.0, end_learning_rate: 1e-3, steps: 10}
  - {scheduler: cosinedecay, learning_rate: 1e-3, end_learning_rate: 0, decay_steps: 90}
  - {scheduler: ConstantLR, learning_rate: 1e-5}
  betas: [0.9, 0.95]
  weight_decay: 0.1
  loss_scaling_factor: dynamic
runconfig:
  max_steps: 1e3
  checkpoints_steps: 20
  keep_checkpoint_max: 3
  precision: bf16
  micro_batch_size: auto
  mount_dirs: [/data]
"""


def agree(tmp_path: Path, text: str, **schemas: Any) -> bool:
    """Whether a document is good, by the schema and by load_params, which must say the same."""
    path = tmp_path / "params.yaml"
    path.write_text(text)
    schema = json_schema(**schemas)
    by_schema = is_valid(schema, get_params(path), schema)
    try:
        load_params(path, **schemas)
    except UserError:
        by_loading = False
    else:
        by_loading = True
    assert by_schema == by_loading
    return by_schema


def test_a_good_document(tmp_path: Path) -> None:
    assert agree(tmp_path, GOOD)
    assert agree(tmp_path, "optimizer: {lr: 0.1}\n")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("optimizer_type: AdamW", "optimizer_type: AdmW"),
        ("weight_decay", "weight_decoy"),
        ("betas", "momentum"),  # another optimizer's
        ("betas: [0.9, 0.95]", "betas: [0.9]"),
        ("betas: [0.9, 0.95]", "betas: [0.9, 2]"),
        ("dynamic", "static"),
        ("steps: 10}", "step: 10}"),
        ("steps: 10}", "steps: 0}"),
        ("end_learning_rate: 0,", ""),
        ("ConstantLR", "ConstantlyLR"),
        ("max_steps: 1e3", "max_steps: 1.5"),
        ("max_steps: 1e3", "max_steps: true"),
        ("max_steps: 1e3", "max_steps: '1000'"),
        ("checkpoints_steps", "checkpoint_step"),
        ("bf16", "bf32"),
        ("[/data]", "/data"),
        ("model:", "modell:"),
        ("model: {hidden: 10}", "model: 5"),
    ],
)
def test_bad_documents(tmp_path: Path, old: str, new: str) -> None:
    assert old in GOOD
    assert not agree(tmp_path, GOOD.replace(old, new))


@pytest.mark.parametrize(
    "text", ["model: {}\n", "optimizer: {}\n", "optimizer: {learning_rate: []}\n", "optimizer: {lr: -1}\n"]
)
def test_more_bad_documents(tmp_path: Path, text: str) -> None:
    assert not agree(tmp_path, text)


class Layer(pydantic.BaseModel):
    units: int


class Model(pydantic.BaseModel):
    hidden: int = pydantic.Field(description="Width of the hidden layers.")
    layers: list[Layer] = []


def test_schemas_of_the_user_and_of_targets(tmp_path: Path) -> None:
    schemas = {"user_schemas": {"model": Model}, "target_sections": {"ipu": Model}}
    good = GOOD.replace("hidden: 10", "hidden: 10, layers: [{units: 3}]") + "ipu: {hidden: 1}\n"
    assert agree(tmp_path, good, **schemas)
    assert not agree(tmp_path, good.replace("hidden: 10", "hiden: 10"), **schemas)
    assert not agree(tmp_path, good.replace("units: 3", "units: 3, unit: 4"), **schemas)
    assert not agree(tmp_path, good.replace("ipu: {hidden: 1}", "ipu: {hidden: x}"), **schemas)


def test_it_is_json_with_a_description_for_every_key_of_ours() -> None:
    schema = json.loads(json.dumps(json_schema(), allow_nan=False))
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert not [name for name, section in schema["properties"].items() if not section.get("description")]
    named = (
        "runconfig",
        *(f"optimizer.{name}" for name in OPTIMIZERS),
        *(f"schedule.{name}" for name in SCHEDULES),
    )
    for name in named:
        for key, described in schema["$defs"][name]["properties"].items():
            assert key in ("optimizer_type", "scheduler") or described.get("description"), f"{name}.{key}"


def test_every_reference_leads_somewhere() -> None:
    schema = json_schema({"model": Model})
    for name in set(re.findall(r'"#/\$defs/([^"]+)"', json.dumps(schema))):
        assert name in schema["$defs"]


def test_all_optimizers_and_schedules_are_offered() -> None:
    schema = json_schema()
    assert set(OPTIMIZERS) <= set(schema["properties"]["optimizer"]["properties"]["optimizer_type"]["enum"])
    assert set(SCHEDULES) <= set(schema["$defs"]["schedule"]["properties"]["scheduler"]["enum"])
