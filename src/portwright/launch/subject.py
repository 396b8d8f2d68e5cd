"""What is submitted: a model folder, a run.py, a reference model, a config of the model zoo, or a folder of the Cerebras SDK's programs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from portwright.discover import find_all_models
from portwright.errors import UserError, suggest
from portwright.job.run_params import default_model_dir


@dataclass(frozen=True)
class Subject:
    """A subject that was found."""

    name: str  # for a job's name
    folder: Path  # absolute; what the nodes must see
    script: Path | None  # its run.py; None for an HPC folder and for a config
    reference: str | None = None  # name of a reference model, whose run.py is in the package
    config: Path | None = None  # of the vendor's model zoo, for a cluster whose users run `cszoo fit`

    @property
    def model_dir(self) -> Path:
        """Where its run lies unless one says otherwise."""
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
