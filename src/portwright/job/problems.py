"""Problems of values that a user wrote: each knows its key, in any kind of file."""

from __future__ import annotations

import difflib
import inspect
import reprlib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import pydantic
from pydantic_core import PydanticSerializationError, SchemaValidator

from portwright.errors import UserError, suggest
from portwright.job.section import Section, same_value, with_strict_scalars

KeyPath = tuple[Any, ...]  # keys and list indices
ModelT = TypeVar("ModelT", bound=pydantic.BaseModel)

_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a string",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "none_required": "null",
}
_MISSING = "this key is required"
_NUMERIC = frozenset({"int_type", "int_parsing", "float_type", "float_parsing"})


@dataclass(frozen=True)
class Problem:
    """One problem of the value at `path`; `others` are further keys that the same problem concerns."""

    path: KeyPath
    message: str
    cure: str = ""
    others: tuple[KeyPath, ...] = field(default=())
    meant: str = ""  # the valid key that an unknown one probably stands for

    @property
    def is_missing(self) -> bool:
        return self.message == _MISSING

    def describe(self, where: Callable[[KeyPath], str] | None = None) -> str:
        """One line, which begins with the place of the key as `where` gives it."""
        prefix = f"{where(self.path)}: " if where else ""
        key = f"{dotted(self.path)}: " if self.path else ""
        places = [place for place in map(where, self.others) if place != where(self.path)] if where else []
        also = f" (see also {', '.join(places)})" if places else ""
        return f"{prefix}{key}{self.message}{also}.{' ' if self.cure else ''}{self.cure}"


def raise_problems(problems: Sequence[Problem], where: Callable[[KeyPath], str] | None = None) -> None:
    """Raises one error that tells all problems, a line each; nothing where there is none."""
    lines = list(dict.fromkeys(problem.describe(where) for problem in problems))
    if lines:
        raise UserError("\n".join(lines))


def dotted(path: KeyPath) -> str:
    return ".".join(str(part) if str(part).isprintable() and part != "" else repr(part) for part in path)


def show(value: object) -> str:
    """A value in a message: short, on one line."""
    limits = reprlib.Repr()
    limits.maxstring = limits.maxother = 80
    return " ".join(limits.repr(value).split())


def check_model(
    model: type[ModelT], values: Mapping[Any, Any], at: KeyPath
) -> tuple[ModelT | None, list[Problem]]:
    """Validates `values` found at `at`; a key that the model does not know is a problem in any model.

    A model that sets extra="allow" takes every key. Numbers and booleans are as strict as in a `Section`.
    """
    problems = [*_odd_keys(values, at), *_unknown_keys(model, values, at), *_two_spellings(model, values, at)]
    if any(problem.others for problem in problems):
        values = {key: value for key, value in values.items() if (*at, key) != problems[-1].others[-1]}
    values = {key: value for key, value in values.items() if isinstance(key, str)}
    try:
        return _validate(model, values), problems
    except pydantic.ValidationError as error:
        problems += explain(error, model, values, at)
    meant = {(*problem.path[:-1], problem.meant) for problem in problems}
    # A misspelt key is not missing as well.
    return None, [problem for problem in problems if not (problem.is_missing and problem.path in meant)]


def explain(
    error: pydantic.ValidationError, model: type[pydantic.BaseModel], values: Mapping[Any, Any], at: KeyPath
) -> list[Problem]:
    """Turns pydantic's errors into problems whose paths are keys of the file."""
    groups: dict[KeyPath, list[Any]] = {}
    in_union: set[KeyPath] = set()
    for item in error.errors(include_url=False):
        path, is_branch = _path_in_file(values, model, item)
        groups.setdefault(path, []).append(item)
        if is_branch:
            in_union.add(path)
    problems: list[Problem] = []
    for path, items in groups.items():
        # One branch of a union failed further in: that says more than "it is none of the branches".
        if path in in_union and any(
            len(other) > len(path) and other[: len(path)] == path for other in groups
        ):
            continue
        problems.extend(_describe(items, model, values, path, at))
    return problems


def plain(model: pydantic.BaseModel, at: KeyPath) -> dict[str, Any]:
    """A model's values as YAML knows them, without keys that are neither set nor have a default."""
    try:
        dumped = model.model_dump(mode="json")
    except PydanticSerializationError as error:
        raise UserError(f"{dotted(at)}: a value cannot be written as YAML: {error}.") from error
    return {key: value for key, value in dumped.items() if value is not None or key in model.model_fields_set}


def known_keys(model: type[pydantic.BaseModel]) -> dict[str, str]:
    """Every spelling of every key of a model, with the name of its field."""
    keys: dict[str, str] = {}
    by_name = bool(model.model_config.get("populate_by_name") or model.model_config.get("validate_by_name"))
    for name, info in model.model_fields.items():
        alias = info.validation_alias
        names = alias.choices if isinstance(alias, pydantic.AliasChoices) else [alias]
        spelt = [spelling for spelling in names if isinstance(spelling, str)]
        if by_name or not spelt:
            keys[name] = name
        keys.update(dict.fromkeys(spelt, name))
    if issubclass(model, Section):
        keys.update(model.aliases)
    return keys


def unknown_key(path: KeyPath, value: object, model: type[pydantic.BaseModel]) -> Problem:
    """The problem of a key that `model` does not have; it lists the keys that one is likely to want."""
    keys = known_keys(model)
    rare = {*model.aliases, *model.rare} if issubclass(model, Section) else set()
    nearest = difflib.get_close_matches(str(path[-1]), keys, n=1, cutoff=0.5)
    cure = suggest(str(path[-1]), {*keys} - rare | {*nearest})
    return Problem(
        path, f"unknown key, with the value {show(value)}", cure, meant=keys.get("".join(nearest), "")
    )


def _validate(model: type[ModelT], values: Mapping[str, Any]) -> ModelT:
    if issubclass(model, Section):
        return model.model_validate(values)
    model.model_rebuild()
    strict = with_strict_scalars(model.__pydantic_core_schema__)
    # Otherwise pydantic uses the validator that the class already has, with pydantic's own conversions.
    afresh: Any = (
        {"_use_prebuilt": False} if "_use_prebuilt" in str(inspect.signature(SchemaValidator)) else {}
    )
    validated: ModelT = SchemaValidator(strict, **afresh).validate_python(values)
    return validated


def _odd_keys(values: Mapping[Any, Any], at: KeyPath) -> Iterator[Problem]:
    for key in values:
        if not isinstance(key, str):
            kind = f"YAML reads it as {type(key).__name__}"
            yield Problem((*at, key), f"a key must be a string, but {kind}", "Put it in quotes.")


def _unknown_keys(model: type[pydantic.BaseModel], values: Any, at: KeyPath) -> Iterator[Problem]:
    """Unknown keys of models that ignore them; pydantic itself reports those of models that forbid them."""
    if not isinstance(values, Mapping):
        return
    keys = known_keys(model)
    if model.model_config.get("extra", "ignore") == "ignore":
        for key, value in values.items():
            if isinstance(key, str) and key not in keys:
                yield unknown_key((*at, key), value, model)
    for key, value in values.items():
        if key not in keys:
            continue
        nested = _models_in(model.model_fields[keys[key]].annotation)
        if len(nested) != 1:
            continue  # only pydantic knows which of several models applies
        if isinstance(value, (list, tuple)):
            for index, item in enumerate(value):
                yield from _unknown_keys(nested[0], item, (*at, key, index))
        else:
            yield from _unknown_keys(nested[0], value, (*at, key))


def _two_spellings(
    model: type[pydantic.BaseModel], values: Mapping[Any, Any], at: KeyPath
) -> Iterator[Problem]:
    if not issubclass(model, Section):
        return
    seen: dict[str, Any] = {}
    for key, value in values.items():
        first = seen.setdefault(model.aliases.get(key, key), key)
        if first != key and not same_value(values[first], value):
            yield Problem(
                (*at, first),
                f"'{first}' is {show(values[first])}, but '{key}', another spelling of it, is {show(value)}",
                "Keep one of them.",
                others=((*at, key),),
            )


def _path_in_file(
    values: Mapping[Any, Any], model: type[pydantic.BaseModel], item: Any
) -> tuple[KeyPath, bool]:
    """Where a pydantic error is in the values, and whether it is about one branch of a union."""
    spellings = _spellings_used(model, values)
    here: Any = values
    path: list[Any] = []
    is_branch = False
    for number, part in enumerate(item["loc"]):
        if number == 0:
            part = spellings.get(part, part)
        if (isinstance(here, Mapping) and part in here) or (
            isinstance(here, (list, tuple)) and isinstance(part, int) and part < len(here)
        ):
            here = here[part]
            path.append(part)
        elif (item["type"] == "missing" and number == len(item["loc"]) - 1) or number == 0:
            path.append(part)
        else:
            is_branch = True
    return tuple(path), is_branch


def _spellings_used(model: type[pydantic.BaseModel], values: Mapping[Any, Any]) -> dict[str, str]:
    return {name: key for key, name in known_keys(model).items() if key in values}


def _describe(
    items: list[Any],
    model: type[pydantic.BaseModel],
    values: Mapping[Any, Any],
    path: KeyPath,
    at: KeyPath,
) -> Iterator[Problem]:
    full = at + path
    expected: list[str] = []
    for item in items:
        kind, text = item["type"], item["msg"].removeprefix("Value error, ")
        if kind == "extra_forbidden":
            yield unknown_key(full, item["input"], _model_at(model, values, path[:-1]))
        elif kind == "missing":
            yield Problem(full, _MISSING, "Add it.")
        elif kind == "contradiction":
            keys = item["ctx"]["keys"]
            used = _spellings_used(model, values)
            places = tuple((*full, used.get(key, key)) for key in keys)
            yield Problem(places[0], text, others=places[1:])
        elif kind == "string_too_short":
            least = item["ctx"]["min_length"]
            expected.append("a string that is not empty" if least == 1 else f"at least {least} characters")
        elif kind in _EXPECTED or text.startswith("Input should be "):
            expected.append(_EXPECTED.get(kind) or _readable(text))
        elif path and "received" not in text:
            yield Problem(full, f"{text.rstrip('.')}, received {show(item['input'])}")
        else:
            yield Problem(full, text.rstrip("."))
    if expected:
        received = items[0]["input"]
        phrase = " or ".join(dict.fromkeys(expected))
        yield Problem(full, f"expected {phrase}, received {show(received)}", _cure(items, received))


def _cure(items: list[Any], received: object) -> str:
    if not isinstance(received, str):
        return ""
    if any(item["type"] in _NUMERIC for item in items) and is_number(received):
        return "Remove the quotes."
    choices = [choice for item in items for choice in _choices(item)]
    return suggest(received, choices) if choices else ""


def is_number(text: str) -> bool:
    """Whether a text, such as one in quotes, is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _choices(item: Any) -> list[str]:
    if item["type"] not in ("literal_error", "enum"):
        return []
    expected: str = item["ctx"]["expected"]
    return [word.strip(" '") for word in expected.replace(" or ", ",").split(",") if word.strip(" '")]


def _readable(text: str) -> str:
    phrase = text.removeprefix("Input should be ")
    if phrase.startswith(("greater", "less", "a multiple")):
        return f"a number {phrase}"
    return phrase


def _model_at(model: type[pydantic.BaseModel], values: Any, path: KeyPath) -> type[pydantic.BaseModel]:
    for part in path:
        values = values[part]
        if isinstance(part, str) and part in (keys := known_keys(model)):
            nested = _models_in(model.model_fields[keys[part]].annotation)
            model = nested[0] if nested else model
    return model


def _models_in(annotation: Any) -> list[type[pydantic.BaseModel]]:
    """The models that an annotation such as `list[Layer] | None` mentions."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return [annotation] if issubclass(annotation, pydantic.BaseModel) else []
    if get_origin(annotation) is Annotated:
        return _models_in(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType, list, tuple, Sequence):
        return [model for argument in get_args(annotation) for model in _models_in(argument)]
    return []
