"""The `ipu` section of params.yaml, in the words of PopTorch's options."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from portwright.job.section import Section, contradiction

Proportion = Annotated[float, Field(gt=0, le=1)]
_IPU = re.compile(r"IPU(0|[1-9]\d*)")


class Block(Section):
    """Where a block of the model begins, and the IPU that it lives on."""

    module: str = Field(
        min_length=1,
        description="Path of the module that the block begins with, or a pattern such as encoder.layers.[0-5]: its first match.",
    )
    ipu: int = Field(ge=0, description="IPU that the block lives on, counted from 0.")
    stage: str | None = Field(
        None, min_length=1, description="Name of the stage; left out: each block is a stage."
    )


class IpuSection(Section):
    """How PopTorch runs the model; every key has PopTorch's own default where nothing else is said."""

    device_iterations: int = Field(
        1,
        ge=1,
        description="Updates of the weights that the IPU makes in one call; the host sees nothing in between.",
    )
    replication_factor: int = Field(1, ge=1, description="Copies of the model, each with batches of its own.")
    broadcast_buffers: bool = Field(
        True,
        description="Copies have the same buffers; false lets those that a step changes, such as running statistics, differ.",
    )
    gradient_accumulation: int = Field(
        1, ge=1, description="Batches of each copy for one update; the same as optimizer.grad_accum_steps."
    )
    eval_device_iterations: int | None = Field(
        None,
        ge=1,
        description="Batches of one call in evaluation; left out: 1, or as many as a pipeline has stages.",
    )
    partials: Literal["float", "half"] = Field(
        "float", description="What matrix products of half-precision inputs are summed in: float or half."
    )
    output_mode: Literal["all", "final", "sum"] = Field(
        "all",
        description="Losses that come back of a call: all (every batch's), final (the last one's), or sum, of which the mean is logged.",
    )
    available_memory_proportion: Proportion | dict[str, Proportion] | None = Field(
        None,
        description="Share of an IPU's memory for products and convolutions to compute in: a number, or a mapping such as {IPU0: 0.2, IPU1: 0.4}.",
    )
    execution: Literal["pipelined", "sharded"] | None = Field(
        None, description="How blocks on several IPUs take turns: pipelined or sharded; left out: pipelined."
    )
    blocks: list[Block] = Field(
        [], description="Where the model is cut, in the order in which its modules run."
    )
    auto_round_num_ipus: bool = Field(
        False,
        description="IPUs come in powers of two: reserve more of them than the blocks use, instead of refusing.",
    )
    enable_executable_caching: str | None = Field(
        None, min_length=1, description="Folder that keeps compiled programs for the next run."
    )
    stochastic_rounding: bool = Field(
        False, description="Round at random when a value is stored in half precision."
    )
    random_seed: int | None = Field(
        None, ge=0, lt=2**64, description="Seed of what the IPU draws; left out: runconfig.seed."
    )
    offline_target: Literal[1, 2, 21] = Field(
        2,
        description="Generation of IPU that --compile_only and --validate_only compile for: 1 (Mk1), 2 (Mk2) or 21 (Bow).",
    )
    synthetic_data: bool = Field(
        False, description="Move no data to and from the IPU, to time the rest; losses then mean nothing."
    )
    connection_type: Literal["always", "on_demand"] = Field(
        "always",
        description="When a run takes its IPUs: always (at once), or on_demand (once its program is compiled).",
    )

    @field_validator("available_memory_proportion")
    @classmethod
    def _names_ipus(cls, value: Any) -> Any:
        for name in value if isinstance(value, dict) else ():
            if not _IPU.fullmatch(name):
                raise PydanticCustomError(
                    "ipu", "expected IPU0, IPU1, ..., received '{name}'", {"name": name}
                )
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> IpuSection:
        if self.execution is not None and not self.blocks:
            raise contradiction(
                f"execution: {self.execution} needs blocks, which say where the model is cut", "execution"
            )
        modules = [block.module for block in self.blocks]
        twice = next((module for module in modules if modules.count(module) > 1), None)
        if twice is not None:
            raise contradiction(f"two blocks begin with the module '{twice}'", "blocks")
        for index, block in enumerate(self.blocks):
            if self.stages()[self.stage_of(index)] != block.ipu:
                raise contradiction(
                    f"blocks of the stage '{block.stage}' are on IPU {block.ipu} and on "
                    f"IPU {self.stages()[self.stage_of(index)]}, and a stage is on one",
                    "blocks",
                )
        used = {f"IPU{block.ipu}" for block in self.blocks} or {"IPU0"}
        given = self.available_memory_proportion
        for name in given if isinstance(given, dict) else ():
            if name not in used:
                raise contradiction(
                    f"no block is on {name}, only on {', '.join(sorted(used))}",
                    "available_memory_proportion",
                    "blocks",
                )
        asked, stages = self.eval_device_iterations, self.num_stages
        if self.is_pipelined and asked is not None and asked < stages:
            raise contradiction(
                f"a pipeline of {stages} stages evaluates at least {stages} batches a call, received {asked}",
                "eval_device_iterations",
                "blocks",
            )
        return self

    @property
    def is_pipelined(self) -> bool:
        return bool(self.blocks) and self.execution != "sharded"

    def stage_of(self, index: int) -> str:
        return self.blocks[index].stage or f"block {index}"

    def stages(self) -> dict[str, int]:
        """The stages in order, and the IPU of each; blocks of one name are one stage."""
        return {self.stage_of(index): block.ipu for index, block in enumerate(self.blocks)}

    @property
    def num_stages(self) -> int:
        return len(self.stages()) or 1
