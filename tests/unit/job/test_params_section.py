"""The base of all sections: strict about keys and types, lenient about nothing but whole floats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import pydantic
import pytest
from pydantic import Field

from portwright.job.section import Section


class Inner(Section):
    number: int = 1


class Outer(Section):
    aliases: ClassVar[Mapping[str, str]] = {"size": "count", "amount": "count"}

    count: int = Field(1, gt=0)
    rate: float = 1.0
    pair: tuple[float, float] = (0.0, 0.0)
    scale: float | Literal["dynamic"] | None = None
    flag: bool = False
    many: list[int] = Field(default_factory=list)
    named: dict[str, int | None] = Field(default_factory=dict)
    inner: Inner = Inner()
    any_float: float = Field(1.0, allow_inf_nan=True)
    type: int = 1  # names that pydantic's own schemas use
    default: int = 1
    config: int = 1


@pytest.mark.parametrize(
    ("key", "value", "result"),
    [
        ("count", 100000.0, 100000),
        ("rate", 1, 1.0),
        ("pair", [1, 2], (1.0, 2.0)),
        ("scale", "dynamic", "dynamic"),
        ("scale", 3, 3.0),
        ("scale", None, None),
        ("many", [1, 2.0], [1, 2]),
        ("named", {"a": 1, "b": None}, {"a": 1, "b": None}),
        ("any_float", float("inf"), float("inf")),
    ],
)
def test_what_fits(key: str, value: Any, result: Any) -> None:
    found = getattr(Outer(**{key: value}), key)
    assert found == result
    assert type(found) is type(result)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("count", True),
        ("count", "5"),
        ("count", 1.5),
        ("count", float("nan")),
        ("count", None),
        ("rate", True),
        ("rate", "1.0"),
        ("rate", float("nan")),
        ("rate", float("inf")),
        ("pair", [1, True]),
        ("pair", [1]),
        ("scale", True),
        ("flag", 1),
        ("flag", "yes"),
        ("many", [1, True]),
        ("named", {"a": True}),
        ("inner", {"number": True}),
        ("inner", {"nmber": 1}),
        ("type", True),
        ("default", "1"),
        ("config", True),
        ("cuont", 1),
    ],
)
def test_what_does_not_fit(key: str, value: Any) -> None:
    with pytest.raises(pydantic.ValidationError):
        Outer(**{key: value})


def test_other_spellings() -> None:
    assert Outer(size=3).count == Outer(amount=3, count=3).count == 3
    with pytest.raises(pydantic.ValidationError, match="'size' and 'amount' are two spellings of one key"):
        Outer(size=3, amount=4)


def test_a_section_cannot_be_changed() -> None:
    with pytest.raises(pydantic.ValidationError):
        Outer().count = 5


def test_json_schema_knows_the_other_spellings() -> None:
    class Required(Section):
        aliases: ClassVar[Mapping[str, str]] = {"size": "count"}
        count: int
        more: int

    schema = Required.model_json_schema()
    assert schema["properties"]["size"]["type"] == "integer"
    assert schema["required"] == ["more"]
    assert schema["allOf"] == [{"anyOf": [{"required": ["count"]}, {"required": ["size"]}]}]
    assert schema["additionalProperties"] is False
