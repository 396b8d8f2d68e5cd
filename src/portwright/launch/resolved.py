"""The subject of a job, and its params: the file with the command line's changes, all keys of the user's kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from portwright.discover import find_all_models
from portwright.errors import UserError, suggest
from portwright.job.data_paths import named_paths
from portwright.job.framework import TENSORFLOW, framework_of
from portwright.job.model_list import find_config
from portwright.job.params import apply_override
from portwright.job.run_params import default_model_dir
from portwright.job.yaml_source import read_yaml, write_yaml
from portwright.launch.run_files import last_step_of, newest_step, runconfig_of
from portwright.target import Target


@dataclass(frozen=True)
class ResolvedParams:
    """The params of a job, as they are written to its params.yaml."""

    values: Mapping[str, Any]
    source: Path
    problem: UserError | None = None  # faults that are known before the run
    notes: tuple[str, ...] = ()

    def as_yaml(self) -> str:
        return write_yaml(self.values)

    def data_paths(self) -> list[Path]:
        """Existing files and folders that params name, such as data_dir and checkpoint_path, from the current folder."""
        found = []
        for _, text in named_paths(self.values):
            path = Path(text).expanduser()
            if "://" not in text and "\0" not in text and path.exists():
                found.append(Path.cwd() / path)
        return list(dict.fromkeys(found))


def resolve_params(
    subject: Subject, given: str | None, overrides: Sequence[str], target: Target
) -> ResolvedParams:
    """Reads the params that a run of the subject reads, and applies the changes of the command line."""
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
    """Replaces num_steps by max_steps: num_steps counts from the start of a run, and a job starts again after each requeue."""
    runconfig = runconfig_of(params.values)
    more = runconfig.get("num_steps")
    if type(more) is not int or more < 1:  # other values are reported by the check of the params
        return params
    end = last_step_of(runconfig, newest_step(model_dir) or 0)
    changed = {key: value for key, value in runconfig.items() if key != "num_steps"}
    note = f"runconfig.num_steps of {more} became max_steps of {end}, so that a requeued job ends where an undisturbed one does."
    return replace(
        params,
        values={**params.values, "runconfig": {**changed, "max_steps": end}},
        notes=(*params.notes, note),
    )


def read_hpc_params(subject: Subject, given: str | None, overrides: Sequence[str]) -> ResolvedParams:
    """The same for a folder of the Cerebras SDK's programs, with keys of their own; without a file all have defaults."""
    path = Path(given).expanduser() if given is not None else subject.folder / "hpc.yaml"
    return ResolvedParams(_read(path, overrides, may_lack=given is None), path)


def _read(path: Path, overrides: Sequence[str], *, may_lack: bool = False) -> dict[Any, Any]:
    raw = {} if may_lack and not path.is_file() else read_yaml(path).values
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
    """Faults of the params that the run would refuse; the validate step checks the keys of the user's own functions."""
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


@dataclass(frozen=True)
class Subject:
    """What a job runs."""

    name: str  # begins the job's name
    folder: Path  # absolute; what the nodes must see
    script: Path | None  # its run.py; None for an HPC folder and for a config
    reference: str | None = None  # name of a reference model, whose run.py is in the package
    config: Path | None = None  # of the vendor's model zoo, for a cluster that runs `cszoo fit`

    @property
    def model_dir(self) -> Path:
        """The default folder of its run."""
        return default_model_dir(self.folder) if self.config is None else Path.cwd() / f"{self.name}_run"

    def words(self, python: str) -> tuple[str, ...]:
        """The command, up to the target."""
        if self.reference is not None:
            return (python, "-m", "portwright", "run", self.reference)
        return (python, str(self.script))


def find_subject(given: str, *, hpc: bool = False, takes_configs: bool = False) -> Subject:
    """`given` is a folder with a run.py, a run.py, or, where no such path exists, a reference model's name.

    With `takes_configs` it may also be a YAML file of the vendor's model zoo.
    """
    path = Path(given).expanduser()
    if path.suffix in (".yaml", ".yml") and path.is_file() and not hpc:
        if not takes_configs:
            raise UserError(
                f"'{given}' is a params file.",
                "Name the folder with the run.py, and give the file with --params; only a site with csctl runs a config by itself.",
            )
        return Subject(path.stem, path.resolve().parent, None, config=path.resolve())
    if hpc:
        if not path.is_dir():
            raise UserError(f"'{given}' is no folder.", "--hpc takes the folder with layout.csl and run.py.")
        return Subject(path.resolve().name, path.resolve(), None)
    if path.is_dir():
        path = path / "run.py"
    if path.is_file():
        script = path.resolve()
        models = {folder.resolve(): name for name, folder in find_all_models().items()}
        reference = models.get(script.parent)
        if reference is not None:
            return Subject(Path(reference).name, script.parent, script, reference)
        stem = script.parent.name if script.name == "run.py" else script.stem
        return Subject(stem, script.parent, script)
    found = find_all_models()
    if given in found:
        return Subject(Path(given).name, found[given].resolve(), found[given].resolve() / "run.py", given)
    raise UserError(
        f"'{given}' is neither a run.py, a folder with one, nor a reference model.", suggest(given, found)
    )
