"""params.yaml: read, defaulted, overridden, checked, and handed on as plain values and as typed sections."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pydantic

from portwright.errors import PortwrightError, UserError, suggest
from portwright.job.atomic import atomic_write_text
from portwright.job.optimizer import OptimizerParams, optimizer_schema
from portwright.job.problems import (
    KeyPath,
    Problem,
    check_model,
    dotted,
    known_keys,
    plain,
    raise_problems,
    show,
)
from portwright.job.runconfig import RunConfig
from portwright.job.schedules import check_schedule
from portwright.job.yaml_source import YamlSource, parse_value, read_yaml, write_yaml

USER_SECTIONS = ("train_input", "eval_input", "predict_input", "model")
SECTIONS = (*USER_SECTIONS, "optimizer", "runconfig")

DefaultParamsFn = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True)
class _Origin:
    """Where values came from: a line of the file, an override, or the user's set_defaults."""

    source: YamlSource
    root: KeyPath
    overrides: tuple[Override, ...]
    before_defaults: dict[Any, Any]
    after_defaults: dict[Any, Any]
    defaults_place: str

    def where(self, path: KeyPath) -> str:
        while path and _at(self.after_defaults, path) is _MISSING:
            path = path[:-1]  # a missing key: its section is the place
        if self.defaults_place and self._is_changed(path):
            return self.defaults_place
        line = self.source.line_of(self.root + path)
        for override in reversed(self.overrides):
            shorter = min(len(path), len(override.path))
            is_within = shorter == len(override.path) or line is None
            if path and is_within and path[:shorter] == override.path[:shorter]:
                return override.text
        while line is None:
            path = path[:-1]
            line = self.source.line_of(self.root + path)
        return f"{self.source.path}:{line}" if path else str(self.source.path)

    def line_of(self, problem: Problem) -> int:
        return self.source.line_of(self.root + problem.path) or 0

    def _is_changed(self, path: KeyPath) -> bool:
        before, after = _at(self.before_defaults, path), _at(self.after_defaults, path)
        if before is _MISSING or isinstance(before, Mapping) or isinstance(after, Mapping):
            return before is _MISSING
        try:
            return bool(before != after)
        except ValueError:  # comparing arrays gives no single truth value
            return True


@dataclass(frozen=True)
class Params:
    """The params of one run, resolved: `values` for the user's code, the rest for ours."""

    values: dict[str, Any]
    optimizer: OptimizerParams
    runconfig: RunConfig
    path: Path
    # those with a schema of their own
    sections: Mapping[str, pydantic.BaseModel] = field(default_factory=dict)
    _origin: _Origin | None = field(default=None, repr=False, compare=False)

    @property
    def overrides(self) -> tuple[Override, ...]:
        return () if self._origin is None else self._origin.overrides

    def locate(self, key: str) -> str:
        """The place that a dotted key came from, such as `configs/params.yaml:12`."""
        if self._origin is None:
            return str(self.path)
        parts: list[Any] = [int(part) if part.isdecimal() else part for part in key.split(".")]
        if parts[0] in ("optimizer", "runconfig") and len(parts) > 1:
            section = self._origin.after_defaults.get(parts[0]) or {}
            spelt = {
                name: alias
                for alias, name in known_keys(type(getattr(self, parts[0]))).items()
                if alias in section
            }
            parts[1] = spelt.get(parts[1], parts[1])
        return self._origin.where(tuple(parts))

    def with_runconfig(self, **changes: Any) -> Params:
        """The same params with some keys of runconfig changed."""
        raw = {**plain(self.runconfig, ("runconfig",)), **changes}
        runconfig, problems = check_model(RunConfig, raw, ("runconfig",))
        raise_problems(problems)
        assert runconfig is not None
        values = {**self.values, "runconfig": {**self.values["runconfig"], **changes}}
        return dataclasses.replace(self, values=values, runconfig=runconfig)


def get_params(params_file: Path | str) -> dict[str, Any]:
    """Reads a params file into a plain dict, unchecked, for the user's own utils.py."""
    return read_yaml(params_file).values


def load_params(
    path: Path | str,
    *,
    overrides: Sequence[str] = (),
    default_params_fn: DefaultParamsFn | None = None,
    user_schemas: Mapping[str, type[pydantic.BaseModel]] | None = None,
    target_sections: Mapping[str, type[pydantic.BaseModel]] | None = None,
    known_target_sections: Collection[str] = (),
    config: str | None = None,
) -> Params:
    """Reads and checks a params file; one error tells everything that is wrong with it, a line each.

    `overrides` (`section.key=value`) come first, then `default_params_fn` completes the values. `user_schemas`
    are for sections of the user, `target_sections` for those of the target in use; those of other targets,
    `known_target_sections`, are left alone. `config` names a top-level key that holds all sections.
    """
    source = read_yaml(path)
    raw, root = _choose_config(source, config)
    raw = {
        key: {} if value is None else value for key, value in raw.items()
    }  # a section named and left empty
    applied = tuple(apply_override(text, raw) for text in overrides)
    before = copy.deepcopy(raw)
    after = _run_defaults(default_params_fn, raw)
    origin = _Origin(source, root, applied, before, after, _place_of(default_params_fn))
    return _resolve(origin, _check_schemas(user_schemas), target_sections or {}, known_target_sections)


def save_params(params: Params, path: Path) -> None:
    """Writes the resolved params as YAML that `load_params` reads again, whole or not at all.

    What YAML has no form for, such as a dtype that set_defaults put in, is written as its text.
    """
    values = {
        **params.values,
        "optimizer": plain(params.optimizer, ("optimizer",)),
        "runconfig": plain(params.runconfig, ("runconfig",)),
    }
    atomic_write_text(Path(path), write_yaml(values))


def _choose_config(source: YamlSource, config: str | None) -> tuple[dict[Any, Any], KeyPath]:
    if config is None:
        return source.values, ()
    chosen = source.values.get(config)
    if config not in source.values:
        raise UserError(
            f"{source.path}: there is no config '{config}'.", suggest(config, map(str, source.values))
        )
    if not isinstance(chosen, dict):
        raise UserError(
            f"{source.path}:{source.line_of((config,))}: {config}: expected sections, received {show(chosen)}."
        )
    return chosen, (config,)


def _run_defaults(function: DefaultParamsFn | None, raw: dict[Any, Any]) -> dict[Any, Any]:
    if function is None:
        return raw
    values = copy.deepcopy(raw)
    try:
        returned = function(values)
    except PortwrightError:
        raise
    except Exception as error:  # the user's code may raise anything
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise UserError(
            f"{frame.filename}:{frame.lineno}: {_name_of(function)} failed: {type(error).__name__}: {' '.join(str(error).split())}.",
            "Check the keys that it reads, or mend it.",
        ) from error
    if returned is None:
        return values
    if not isinstance(returned, Mapping):
        raise UserError(
            f"{_place_of(function)}: it returned {show(returned)}.",
            "Return the params, or change them in place and return nothing.",
        )
    return dict(returned)


def _resolve(
    origin: _Origin,
    user_schemas: Mapping[str, type[pydantic.BaseModel]],
    target_sections: Mapping[str, type[pydantic.BaseModel]],
    known_target_sections: Collection[str],
) -> Params:
    raw = origin.after_defaults
    allowed = {*SECTIONS, *target_sections, *known_target_sections}
    problems = _check_sections(raw, allowed)
    bad = {problem.path[0] for problem in problems}
    values = {key: dict(value) if isinstance(value, Mapping) else value for key, value in raw.items()}
    sections: dict[str, pydantic.BaseModel] = {}
    for name, model in {**user_schemas, **target_sections}.items():
        if name in bad or (name not in raw and name in USER_SECTIONS):
            continue
        checked, wrong = check_model(model, raw.get(name, {}), (name,))
        problems += wrong
        if checked is not None:
            sections[name] = checked
            values[name] = _with_spellings(checked, raw.get(name, {}), name)
    optimizer: OptimizerParams | None = None
    if "optimizer" in raw and "optimizer" not in bad:
        optimizer, wrong = _check_optimizer(raw)
        problems += wrong
    runconfig: RunConfig | None = None
    if "runconfig" not in bad:
        runconfig, wrong = check_model(RunConfig, raw.get("runconfig", {}), ("runconfig",))
        problems += wrong
    raise_problems(sorted(problems, key=origin.line_of), origin.where)
    assert optimizer is not None
    assert runconfig is not None
    values["optimizer"] = _with_spellings(optimizer, raw["optimizer"], "optimizer")
    values["runconfig"] = _with_spellings(runconfig, raw.get("runconfig", {}), "runconfig")
    return Params(values, optimizer, runconfig, origin.source.path, sections, origin)


def _check_sections(raw: Mapping[Any, Any], allowed: Collection[str]) -> list[Problem]:
    problems = []
    for name, value in raw.items():
        if name not in allowed:
            problems.append(Problem((name,), "unknown section", suggest(str(name), allowed)))
        elif not isinstance(value, Mapping):
            problems.append(Problem((name,), f"expected a mapping of keys, received {show(value)}"))
    if "optimizer" not in raw and not any("'optimizer'" in problem.cure for problem in problems):
        problems.append(Problem(("optimizer",), "this section is required", "Add it, with a learning_rate."))
    return problems


def _check_optimizer(raw: Mapping[Any, Any]) -> tuple[OptimizerParams | None, list[Problem]]:
    section, at = raw["optimizer"], ("optimizer",)
    try:
        model = optimizer_schema(section.get("optimizer_type"))
    except UserError as error:
        message = f"unknown optimizer {show(section.get('optimizer_type'))}"
        return None, [Problem((*at, "optimizer_type"), message, error.cure)]
    rate_key = next((key for key in ("learning_rate", "lr") if section.get(key) is not None), None)
    problems = [] if rate_key is None else check_schedule(section[rate_key], (*at, rate_key))
    if problems:
        # The other keys are checked too, with a valid rate in place of the schedule.
        section = {**section, rate_key: 1.0}
    optimizer, wrong = check_model(model, section, at)
    return optimizer, problems + wrong


def _with_spellings(model: pydantic.BaseModel, raw: Mapping[Any, Any], name: str) -> dict[str, Any]:
    """All values of a section under the names of its fields, and also under those that the user chose."""
    values = plain(model, (name,))
    fields = known_keys(type(model))
    for key, value in raw.items():
        values.setdefault(key, values.get(fields.get(key, key), value))
    return values


def _check_schemas(
    schemas: Mapping[str, type[pydantic.BaseModel]] | None,
) -> Mapping[str, type[pydantic.BaseModel]]:
    for name, schema in (schemas or {}).items():
        if name not in USER_SECTIONS:
            raise UserError(f"there is a schema for the section '{name}'.", suggest(str(name), USER_SECTIONS))
        if not (isinstance(schema, type) and issubclass(schema, pydantic.BaseModel)):
            raise UserError(
                f"the schema of the section '{name}' is {show(schema)}.",
                "Make it a class derived from pydantic.BaseModel.",
            )
    return schemas or {}


def _name_of(function: DefaultParamsFn) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _place_of(function: DefaultParamsFn | None) -> str:
    """File and line of a function, as far as it has them."""
    if function is None:
        return ""
    code = getattr(inspect.unwrap(function), "__code__", None)
    name = _name_of(function)
    return f"{code.co_filename}:{code.co_firstlineno} ({name})" if code else name


_MISSING = object()


def _at(values: Any, path: KeyPath) -> Any:
    for key in path:
        if (isinstance(values, Mapping) and key in values) or (
            isinstance(values, (list, tuple)) and isinstance(key, int) and key < len(values)
        ):
            values = values[key]
        else:
            return _MISSING
    return values


@dataclass(frozen=True)
class Override:
    """One override that has been applied: what was typed, and the keys that it set."""

    text: str
    path: KeyPath


def apply_override(text: str, params: dict[Any, Any]) -> Override:
    """Sets one value in `params`, in place, and makes the mappings that lead to it where there are none.

    A part of the path that is a number is an index where it meets a list.
    """
    shown = f"-D {text if text.isprintable() else repr(text)}"
    keys, equals, value_text = text.partition("=")
    parts = [part.strip() for part in keys.split(".")]
    if not equals or not all(parts) or len(parts) < 2:
        raise UserError(
            f"{shown}: this is not of the form SECTION.KEY=VALUE.", "Try: -D optimizer.learning_rate=0.01"
        )
    value = parse_value(value_text, shown)
    here: Any = params
    path: list[Any] = []
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        key = _key_in(here, part, shown, path)
        path.append(key)
        if is_last:
            here[key] = value
        elif isinstance(here, dict) and here.get(key) is None:
            here[key] = {}
        here = here[key]
    return Override(shown, tuple(path))


def _key_in(container: Any, part: str, shown: str, path: list[Any]) -> Any:
    if isinstance(container, dict):
        numbered = next((key for key in container if not isinstance(key, str) and str(key) == part), None)
        return part if part in container or numbered is None else numbered
    if isinstance(container, list):
        if part.isdecimal() and int(part) < len(container):
            return int(part)
        valid = f"0 to {len(container) - 1}" if container else "none, since it is empty"
        raise UserError(
            f"{shown}: {dotted(tuple(path))} is a list, received the index '{part}'.", f"Valid: {valid}."
        )
    raise UserError(
        f"{shown}: {dotted(tuple(path))} is {show(container)} and has no keys.",
        f"Set it as a whole: -D {dotted(tuple(path))}=...",
    )
