"""The `rdu` section of params.yaml, in the words of SambaFlow's arguments."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from portwright.job.section import Section, contradiction


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
