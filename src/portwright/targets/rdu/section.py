"""The `rdu` section of params.yaml, named like SambaFlow's arguments, and a run's settings from it and the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from portwright.errors import UnsupportedError, UserError
from portwright.job.section import Section, contradiction
from portwright.target import JobSpec

_HALF_OF_SN30 = 4  # tiles; SambaFlow documentation, transition to SN30


class RduSection(Section):
    """How SambaFlow compiles and runs the model."""

    system: Literal["sn10", "sn30", "sn40l"] = Field(
        "sn30", description="The system that it runs on, sn10, sn30 or sn40l; an SN30 wants an even batch."
    )
    pef: str | None = Field(
        None,
        min_length=1,
        description="A PEF that was compiled before (also --pef); left out: one is compiled on first use, into compile_dir.",
    )
    pef_name: str | None = Field(
        None,
        min_length=1,
        description="Name of the PEF that is compiled (also --pef-name); left out: the model's class.",
    )
    num_tiles: int | None = Field(
        None, ge=1, le=8, description="Tiles of an RDU to compile for; left out: the whole RDU."
    )
    mode: Literal["o0", "o1", "o3"] | None = Field(
        None,
        description="How the compiler fuses ops: o0 each alone, o1 by rules, or o3; left out: SambaFlow's own choice.",
    )
    precision: Literal["bf16", "fp32"] | None = Field(
        None,
        description="bf16 is SambaFlow's documented default, fp32 leaves the model's types (--graphamp-preset mp0); left out: as "
        "runconfig.precision says, else bf16.",
    )
    unlisted_ops: Literal["refuse", "warn"] = Field(
        "refuse",
        description="Emulated: refuse ops that no public document shows on an RDU, or warn, since SambaFlow may well run them.",
    )
    data_parallel: bool = Field(
        False,
        description="A process for each RDU (started by MPI), gradients reduced between them; not emulated.",
    )
    reduce_on_rdu: bool = Field(
        False, description="With data_parallel: reduce on the RDUs, not on the hosts."
    )

    @field_validator("pef_name")
    @classmethod
    def _is_a_name(cls, value: str | None) -> str | None:
        if value is not None and ("/" in value or value in (".", "..")):
            raise PydanticCustomError(
                "name", "expected a name without a folder, received '{value}'", {"value": value}
            )
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> RduSection:
        if self.reduce_on_rdu and not self.data_parallel:
            raise contradiction(
                "reduce_on_rdu: true says how the processes of data_parallel share gradients, and data_parallel is false; "
                "set data_parallel: true, or leave reduce_on_rdu out",
                "reduce_on_rdu",
            )
        return self


@dataclass(frozen=True)
class Settings:
    """A run's settings; `pef` is an existing file, without it a PEF is kept in `folder`."""

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
        """The command line for SambaFlow's own parser."""
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
