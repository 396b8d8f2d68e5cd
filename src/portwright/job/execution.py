"""Keys of runconfig that say where a model's weights live while it trains: all on the device, split, or streamed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator, model_validator

from portwright.errors import UnsupportedError, UserError
from portwright.job.section import Section, contradiction
from portwright.job.sizes import parse_bytes

if TYPE_CHECKING:
    from portwright.job.runconfig import RunConfig
    from portwright.target import Target

Execution = Literal["auto", "resident", "pipelined", "streaming"]
Schedule = Literal[
    "gpipe",
    "1f1b",
    "interleaved_1f1b",
    "looped_bfs",
    "interleaved_zero_bubble",
    "zbv_zero_bubble",
    "dualpipev",
]

# How many pieces of the model one process holds under a schedule; the others take two or more.
_PIECES_A_PROCESS = {"gpipe": 1, "1f1b": 1, "zbv_zero_bubble": 2, "dualpipev": 2}
_AUTO_SHARE = 0.25  # of the layers: what an H200 did best with (docs/benchmarks.md)


def _read_size(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return parse_bytes(value)
        except UserError:
            raise ValueError("expected a size such as 24GiB, 512MB or a number of bytes") from None
    return value


ByteSize = Annotated[
    int,
    Field(gt=0),
    BeforeValidator(_read_size),
    WithJsonSchema({"anyOf": [{"type": "integer", "exclusiveMinimum": 0}, {"type": "string"}]}),
]
ModulePath = Annotated[str, Field(min_length=1)]
Names = Annotated[
    list[ModulePath],
    Field(min_length=1),
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
]


class StreamingSection(Section):
    """Weight streaming: weights and optimizer state live in host memory, and pass through the device layer by layer."""

    layers: Names | None = Field(
        default=None,
        description="Modules to stream, as paths or patterns such as `blocks.*`; left out: the items of ModuleLists and Sequentials.",
    )
    slots: int = Field(default=3, ge=2, description="Layers whose weights are on the device at once.")
    device_memory: ByteSize | None = Field(
        default=None,
        description="Most memory of the device to use, such as 24GiB; a step that needs more is an error. Left out: all of it.",
    )
    store: str | None = Field(
        default=None,
        min_length=1,
        description="Folder on a fast disk for optimizer state and fp32 masters; left out: host memory.",
    )
    pinned_memory: ByteSize | None = Field(
        default=None, description="Most host memory to pin, such as 40GiB; left out: 60% of what is free."
    )
    offload_activations: bool = Field(
        default=False, description="Keep the layers' checkpointed inputs in host memory too."
    )
    state_dtype: Literal["fp32", "bf16"] = Field(
        default="fp32", description="Number format of the optimizer's moments; bf16 halves them and rounds."
    )
    update_on_device: Annotated[float, Field(ge=0, le=1)] | Literal["auto"] = Field(
        default="auto",
        description="Share (0 to 1) of the layers whose update runs on the device instead of the CPU, or auto.",
    )

    def share_on_device(self, is_half_on_gpu: bool) -> float:
        """The share of the layers that the device updates."""
        if self.store is not None:
            return 0.0  # a disk is slower than the CPU's update
        if self.update_on_device == "auto":
            return _AUTO_SHARE if is_half_on_gpu else 0.0
        return self.update_on_device


class PipelineSection(Section):
    """Layer pipelining: every process holds a stretch of the layers, and micro-batches pass through them."""

    stages: int | None = Field(
        default=None, ge=1, description="Processes that one copy of the model is split over; left out: all."
    )
    replicas: int = Field(
        default=1,
        ge=1,
        description="Copies of the model, each fed its part of the batch: processes = stages * replicas.",
    )
    micro_batches: int | None = Field(
        default=None,
        ge=1,
        description="Pieces that a batch passes through in; left out: 4 * stages, 1 with one process, never more than samples.",
    )
    schedule: Schedule = Field(
        default="1f1b",
        description="Order of the pieces' forward and backward passes: "
        "gpipe, 1f1b, interleaved_1f1b, looped_bfs, interleaved_zero_bubble, zbv_zero_bubble or dualpipev.",
    )
    cuts: Names | None = Field(
        default=None,
        description="Modules at which the next stage begins, as paths; left out: where the planner's costs say.",
    )

    @field_validator("cuts")
    @classmethod
    def _each_once(cls, cuts: list[str] | None) -> list[str] | None:
        for cut in cuts or ():
            if cuts is not None and cuts.count(cut) > 1:
                raise ValueError(f"'{cut}' is there {cuts.count(cut)} times; a stage begins once")
        return cuts

    @model_validator(mode="after")
    def _cuts_make_the_stages(self) -> PipelineSection:
        if self.cuts is None or self.stages is None:
            return self
        made = len(self.cuts) + 1
        exact = _PIECES_A_PROCESS.get(self.schedule)
        if exact is not None and made != exact * self.stages:
            wanted = exact * self.stages - 1
            raise contradiction(
                f"{len(self.cuts)} cut(s) make {made} pieces, but {self.stages} stages under {self.schedule} take "
                f"{exact * self.stages}: give {wanted} cut(s), or leave stages or cuts out",
                "cuts",
                "stages",
            )
        if exact is None and (made % self.stages or made < 2 * self.stages):
            raise contradiction(
                f"{len(self.cuts)} cut(s) make {made} pieces, but {self.schedule} gives each of {self.stages} stages the same "
                f"number of pieces, two or more: give {2 * self.stages - 1} cuts, or leave stages or cuts out",
                "cuts",
                "stages",
            )
        return self


def check_execution(config: RunConfig, target: Target) -> str | None:
    """A note on runconfig.execution for a target, if any; a mode that the target does not have is refused."""
    wanted = config.execution
    if wanted == "auto":
        if config.execution_strategy is None or len(target.executions) == 1:
            return None
        return (
            f"runconfig.execution_strategy: {config.execution_strategy} means execution: {config.wanted_execution} on "
            f"{target.name}; runconfig.execution: resident overrules it."
        )
    if wanted in target.executions:
        return None
    if target.execution_note:
        return f"runconfig.execution: {wanted}: no effect on {target.name}: {target.execution_note}."
    raise UnsupportedError(
        f"the target {target.name} has no execution mode '{wanted}'.",
        f"Leave runconfig.execution out, or choose of: auto, {', '.join(target.executions)}.",
    )
