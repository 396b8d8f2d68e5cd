"""What params.yaml and the command line say about a run on RDUs, with nothing left to be decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portwright.errors import UnsupportedError, UserError
from portwright.target import JobSpec
from portwright.targets.rdu.section import RduSection

_HALF_OF_SN30 = 4  # tiles; SambaFlow documentation, transition to SN30


@dataclass(frozen=True)
class Settings:
    """`pef` is a file that must be there; without it one is kept in `folder`."""

    section: RduSection
    precision: str
    pef: Path | None
    pef_name: str | None
    folder: Path
    is_emulated: bool

    @property
    def wants_even_batch(self) -> bool:
        tiles = self.section.num_tiles
        return self.section.system == "sn30" and (tiles is None or tiles > _HALF_OF_SN30)

    def check_batch(self, size: int) -> None:
        if size % 2 and self.wants_even_batch:
            raise UserError(
                f"train_input has a batch of {size}, and an SN30 wants an even one: two halves of an RDU share each batch.",
                f"Use {size + 1}, or rdu.num_tiles: {_HALF_OF_SN30}, or another rdu.system.",
            )

    def compile_words(self, pef_name: str) -> list[str]:
        """The command line that SambaFlow's own parser is given."""
        words = ["compile", f"--pef-name={pef_name}", f"--output-folder={self.folder}"]
        if self.section.num_tiles is not None:
            words.append(f"--num-tiles={self.section.num_tiles}")
        if self.section.mode is not None:
            words.append(f"-{self.section.mode}")
        if self.precision == "fp32":
            words.append("--graphamp-preset=mp0")
        if self.section.data_parallel:
            words.append("--data-parallel")
        if self.is_emulated:  # the real one compiles for the system it is on
            words += [f"--arch={self.section.system}", f"--unlisted-ops={self.section.unlisted_ops}"]
        return words


def read_settings(
    job: JobSpec,
    flags: Mapping[str, Any],
    note: Callable[[str], None],
    *,
    num_processes: int,
    is_emulated: bool,
) -> Settings:
    given = job.params.values.get("rdu") or {}
    section = given if isinstance(given, RduSection) else RduSection.model_validate(given)
    if section.data_parallel and is_emulated:
        raise UnsupportedError(
            "rdu.data_parallel is true, and several RDUs are not emulated.", "Set rdu.data_parallel: false."
        )
    if num_processes > 1 and not section.data_parallel:
        raise UserError(
            f"RDU was started in {num_processes} processes without rdu.data_parallel.",
            "Start one, or set rdu.data_parallel: true.",
        )
    folder = flags.get("output_folder") or flags.get("compile_dir")
    if folder is None:
        folder = job.artifact_dir.parent / "compile" if job.artifact_dir is not None else Path("compile")
    pef = flags.get("pef") or section.pef
    if pef is not None and not Path(pef).expanduser().is_file():
        raise UserError(
            f"rdu.pef: '{pef}' does not exist.",
            "Compile it first with --compile_only, or leave it out to have it compiled.",
        )
    name = flags.get("pef_name") or section.pef_name
    if name is not None and (Path(name).name != name or name == ".."):
        raise UserError(f"--pef-name is '{name}'.", "Give a name, and the folder with --output-folder.")
    return Settings(
        section=section,
        precision=_precision(job, section, note),
        pef=Path(pef).expanduser() if pef is not None else None,
        pef_name=name,
        folder=Path(folder).expanduser(),
        is_emulated=is_emulated,
    )


def _precision(job: JobSpec, section: RduSection, note: Callable[[str], None]) -> str:
    wanted = job.params.runconfig.precision
    if wanted is not None and wanted not in ("fp32", "bf16"):
        raise UserError(
            f"runconfig.precision is {wanted}: an RDU computes in bf16 or fp32.", "Set it to bf16 or fp32."
        )
    if section.precision is not None and wanted is not None and section.precision != wanted:
        raise UserError(
            f"rdu.precision is {section.precision} and runconfig.precision {wanted}.", "Give one of them."
        )
    chosen = section.precision or wanted
    if chosen is None:
        note("RDU computes in bf16, SambaFlow's default; rdu.precision: fp32 leaves the model's types.")
    return chosen or "bf16"
