"""The params of a job, resolved once: the file with the command line's changes, and every key of the user's kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from portwright.errors import UserError
from portwright.job.framework import TENSORFLOW, framework_of
from portwright.job.model_list import find_config
from portwright.job.overrides import apply_override
from portwright.job.yaml_source import parse_value, read_yaml
from portwright.launch.checkpoints_seen import list_seen
from portwright.launch.subject import Subject
from portwright.target import Target

_PATH_ENDS = ("_dir", "_path", "_file", "_dirs", "_paths", "_files")


@dataclass(frozen=True)
class ResolvedParams:
    """What params.yaml of a job folder says."""

    values: Mapping[str, Any]
    source: Path
    problem: UserError | None = None  # what is wrong with them, as far as that is known before the run
    notes: tuple[str, ...] = ()

    def as_yaml(self) -> str:
        return yaml.dump(dict(self.values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)

    def data_paths(self) -> list[Path]:
        """Existing files and folders that params name, such as data_dir and checkpoint_path, from the current folder."""
        found = []
        for text in _paths_in(self.values):
            path = Path(text).expanduser()
            if "://" not in text and path.exists():
                found.append(Path.cwd() / path)
        return list(dict.fromkeys(found))


def resolve_params(
    subject: Subject, given: str | None, overrides: Sequence[str], target: Target
) -> ResolvedParams:
    """Reads the params that a run of the subject would, and applies the changes of the command line."""
    if subject.config is not None:
        if given is not None:
            raise UserError(
                f"--params is given, and {subject.config} is one already.", "Leave one of them out."
            )
        return ResolvedParams(_read(subject.config, overrides), subject.config)
    path = _find_file(subject, given)
    values = _read(path, overrides)
    return ResolvedParams(values, path, _find_problem(subject, path, overrides, target))


def with_fixed_end(params: ResolvedParams, model_dir: Path) -> ResolvedParams:
    """num_steps counts from wherever a run starts, and a job starts again after each requeue: it becomes the step to end at."""
    runconfig = params.values.get("runconfig")
    more = runconfig.get("num_steps") if isinstance(runconfig, Mapping) else None
    if type(more) is not int or more < 1:  # anything else is told by whoever checks params
        return params
    assert isinstance(runconfig, Mapping)
    try:
        done = max((seen.step for seen in list_seen(model_dir)), default=0)
    except OSError:
        done = 0
    limit = runconfig.get("max_steps")
    end = min(done + more, limit) if type(limit) is int else done + more
    changed = {key: value for key, value in runconfig.items() if key != "num_steps"}
    note = f"runconfig.num_steps of {more} became max_steps of {end}, so that a requeued job ends where an undisturbed one does."
    return replace(
        params,
        values={**params.values, "runconfig": {**changed, "max_steps": end}},
        notes=(*params.notes, note),
    )


def read_hpc_params(subject: Subject, given: str | None, overrides: Sequence[str]) -> ResolvedParams:
    """The same for a folder of the Cerebras SDK's programs, whose keys are its own; without a file all have defaults."""
    path = Path(given).expanduser() if given is not None else subject.folder / "hpc.yaml"
    if given is None and not path.is_file():
        values: dict[Any, Any] = {}
        for text in overrides:
            apply_override(text, values)
        return ResolvedParams(values, path)
    return ResolvedParams(_read(path, overrides), path)


def _read(path: Path, overrides: Sequence[str]) -> dict[Any, Any]:
    raw = read_yaml(path).values
    values = {key: {} if value is None else value for key, value in raw.items()}
    for text in overrides:
        apply_override(text, values)
    return values


def _find_file(subject: Subject, given: str | None) -> Path:
    if given is not None:
        named = Path(given).expanduser()
        beside = subject.folder / named
        if not named.exists() and beside.is_file():  # as run.py takes it
            return beside
        return find_config(subject.folder, str(named))
    default = subject.folder / "configs" / "params.yaml"
    if not default.is_file():
        raise UserError(
            f"there is no configs/params.yaml in {subject.folder}, and --params is not given.",
            "Give --params FILE.",
        )
    return default


def _find_problem(subject: Subject, path: Path, overrides: Sequence[str], target: Target) -> UserError | None:
    """What the run would refuse in the params; keys that the user's own functions check are left to the validate step."""
    from portwright.discover import find_targets
    from portwright.job.params import load_params

    assert subject.script is not None
    complete = None
    if framework_of(subject.script) == TENSORFLOW:
        from portwright.tensorflow.run_settings import with_tensorflow_names

        complete = with_tensorflow_names(None)
    try:
        load_params(
            path,
            overrides=overrides,
            default_params_fn=complete,
            target_sections=target.sections,
            known_target_sections=[name for each in find_targets().values() for name in each.sections],
        )
    except UserError as error:
        return error
    return None


def _paths_in(values: Any, named: bool = False) -> Iterator[str]:
    """Texts under keys that name paths, at any depth."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from _paths_in(value, str(key).endswith(_PATH_ENDS))
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _paths_in(value, named)
    elif named and isinstance(values, str) and values and "\0" not in values:
        yield values


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Text that our reader would take for something else, such as '1e-3' or a rare line break, stands in quotes."""
    try:
        meant = parse_value(text, "")
    except UserError:
        meant = text  # the emitter sees that it needs quotes
    style = '"' if not text.isprintable() else None if isinstance(meant, str) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
