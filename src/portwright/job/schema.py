"""A JSON schema of params.yaml, with which editors complete keys and mark mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pydantic

from portwright.job.optimizer import DEFAULT_OPTIMIZER, OPTIMIZERS, OptimizerParams
from portwright.job.params import USER_SECTIONS
from portwright.job.runconfig import RunConfig
from portwright.job.schedules import SCHEDULES

_DESCRIPTIONS = {
    "train_input": "What the training data function reads.",
    "eval_input": "What the evaluation data function reads.",
    "predict_input": "What a data function for predictions reads.",
    "model": "What the model reads.",
    "optimizer": "Optimizer, learning rate, weight decay, clipping, gradient accumulation and loss scaling.",
    "runconfig": "How long to run, what to save, what to log.",
}
_RATE_KEYS = ("learning_rate", "lr")


def json_schema(
    user_schemas: Mapping[str, type[pydantic.BaseModel]] | None = None,
    target_sections: Mapping[str, type[pydantic.BaseModel]] | None = None,
) -> dict[str, Any]:
    """Describes a whole params.yaml, in JSON Schema draft 2020-12.

    Names of optimizers and schedules are listed in the spellings that one is likely to want; `load_params` takes
    them in any case.
    """
    definitions: dict[str, Any] = {}
    own = {**(user_schemas or {}), **(target_sections or {})}
    properties: dict[str, Any] = {}
    for name in (*USER_SECTIONS, "optimizer", "runconfig", *own):
        if name == "optimizer":
            section = _optimizer(definitions)
        elif name == "runconfig":
            section = _define(RunConfig, "runconfig", definitions)
        elif name in own:
            section = _define(own[name], name, definitions)
        else:
            section = {"type": ["object", "null"]}
        properties[name] = {
            **section,
            "description": _DESCRIPTIONS.get(name, f"The section of the target {name}."),
        }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "params.yaml",
        "type": "object",
        "properties": properties,
        "required": ["optimizer"],
        "additionalProperties": False,
        "$defs": definitions,
    }


def _optimizer(definitions: dict[str, Any]) -> dict[str, Any]:
    spellings = {name: list(dict.fromkeys((name, name.lower()))) for name in OPTIMIZERS}
    for name, model in OPTIMIZERS.items():
        definition = _definition(model, definitions)
        for key in _RATE_KEYS:
            if key in definition["properties"]:
                definition["properties"][key] = {
                    "$ref": "#/$defs/learning_rate",
                    "description": definition["properties"][key].get("description", ""),
                }
        definition["properties"]["optimizer_type"] = {"enum": spellings[name]}
        definitions[f"optimizer.{name}"] = definition
    _define_learning_rate(definitions)
    return {
        "type": "object",
        "properties": {
            "optimizer_type": {
                "enum": [spelling for names in spellings.values() for spelling in names],
                "default": DEFAULT_OPTIMIZER,
                "description": OptimizerParams.model_fields["optimizer_type"].description,
            }
        },
        "allOf": [
            {
                # Without a name it is the default one, so that one's condition holds where the key is absent.
                "if": {
                    "properties": {"optimizer_type": {"enum": names}},
                    **({} if name == DEFAULT_OPTIMIZER else {"required": ["optimizer_type"]}),
                },
                "then": {"$ref": f"#/$defs/optimizer.{name}"},
            }
            for name, names in spellings.items()
        ],
    }


def _define_learning_rate(definitions: dict[str, Any]) -> None:
    conditions = []
    spellings = {
        name: list(dict.fromkeys((name, name.lower(), f"{name}LR", f"{name.lower()}lr")))
        for name in SCHEDULES
    }
    for name, model in SCHEDULES.items():
        definition = _definition(model, definitions)
        definition["properties"]["scheduler"] = {"enum": spellings[name]}
        definitions[f"schedule.{name}"] = definition
        conditions.append(
            {
                "if": {"properties": {"scheduler": {"enum": spellings[name]}}},
                "then": {"$ref": f"#/$defs/schedule.{name}"},
            }
        )
    definitions["schedule"] = {
        "type": "object",
        "properties": {
            "scheduler": {"enum": [spelling for names in spellings.values() for spelling in names]}
        },
        "required": ["scheduler"],
        "allOf": conditions,
    }
    definitions["learning_rate"] = {
        "anyOf": [
            {"type": "number", "minimum": 0},
            {"$ref": "#/$defs/schedule"},
            {"type": "array", "items": {"$ref": "#/$defs/schedule"}, "minItems": 1},
        ]
    }


def _define(model: type[pydantic.BaseModel], name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    definitions[name] = _definition(model, definitions)
    return {"$ref": f"#/$defs/{name}"}


def _definition(model: type[pydantic.BaseModel], definitions: dict[str, Any]) -> dict[str, Any]:
    """A model's schema; those of the models inside it go among the definitions."""
    schema = model.model_json_schema(ref_template="#/$defs/{model}")
    for name, nested in schema.pop("$defs", {}).items():
        definitions[name] = _closed(nested)
    return _closed(schema)


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.get("type") == "object" and "properties" in schema:
        schema.setdefault("additionalProperties", False)
    return schema
