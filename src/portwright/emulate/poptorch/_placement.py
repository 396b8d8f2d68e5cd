"""Blocks, the stages and IPUs that they run on, and what a strategy asks of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from portwright.emulate.poptorch import enums
from portwright.emulate.poptorch._errors import refuse
from portwright.emulate.poptorch._logging import logger
from portwright.graph.graph import Node
from portwright.watching.place import Place

PIPELINED, SHARDED = 0, 1  # PopART's execution_mode
MOST_IPUS = 64  # of one process: PopTorch 3.4, CompilerImpl.cpp


@dataclass(frozen=True, slots=True)
class Tag:
    """Where an op runs: the block's name ('' before the first block), its stage and IPU."""

    block: str = ""
    stage: int = 0
    ipu: int = 0

    def __str__(self) -> str:
        name = f"block '{self.block}'" if self.block else "the part before the first block"
        return f"{name} (stage {self.stage}, IPU {self.ipu})"


@dataclass
class Blocks:
    """The blocks in the order in which a model enters them."""

    mode: int = PIPELINED
    tag: Tag | None = field(default_factory=Tag)  # None behind the end of a block
    entered: list[Tag] = field(default_factory=list)
    _last_ipu: int = 0
    num_switches: int = 0
    _open: list[str] = field(default_factory=list)  # what `with` statements are around the op
    outer: str | None = None  # the block that goes on, though one inside of it has ended
    outer_of: dict[int, str] = field(default_factory=dict)  # the same of an op, by its number

    def begin(self, block: str, stage: int, ipu: int) -> None:
        self.tag, self.outer = Tag(block, stage, ipu), None
        self.entered.append(self.tag)
        if ipu != self._last_ipu:
            self.num_switches += 1
        self._last_ipu = ipu

    def open(self) -> None:
        """The block that has begun lasts as long as its `with` statement."""
        if self.tag is not None:
            self._open.append(self.tag.block)

    def end(self) -> None:
        self.tag = None  # also inside of another block, whose place is not come back to
        del self._open[-1:]
        self.outer = self._open[-1] if self._open else None

    def note_op(self, number: int) -> Tag | None:
        """The tag of an op that has just run."""
        if self.outer is not None:
            self.outer_of[number] = self.outer
        return self.tag


@dataclass(frozen=True)
class Placement:
    """What a traced model asks for: the IPUs that its ops are on, and the stages of its pipeline."""

    mode: int
    tags: tuple[Tag, ...]  # that have ops, in the order of their first one
    num_forward_stages: int  # of a pipeline: one more each time that the IPU changes
    trains: bool
    replication_factor: int = 1

    @property
    def ipus(self) -> tuple[int, ...]:
        return tuple(sorted({tag.ipu for tag in self.tags})) or (0,)

    @property
    def is_pipelined(self) -> bool:
        return self.mode == PIPELINED and len(self.ipus) > 1

    @property
    def num_pipeline_stages(self) -> int:
        """With the backward ones: all but the last forward stage have one of their own."""
        return 2 * self.num_forward_stages - 1 if self.trains else self.num_forward_stages

    @property
    def ipus_per_replica(self) -> int:
        return max(len(self.ipus), max(self.ipus) + 1)

    @property
    def num_ipus(self) -> int:
        return self.ipus_per_replica * self.replication_factor

    def blocks_of(self, ipu: int) -> tuple[str, ...]:
        return tuple(dict.fromkeys(tag.block for tag in self.tags if tag.ipu == ipu))

    def stages_of(self, ipu: int) -> tuple[int, ...]:
        return tuple(sorted({tag.stage for tag in self.tags if tag.ipu == ipu}))


def place(
    nodes: Sequence[Node],
    tags: Sequence[Tag | None],
    blocks: Blocks,
    options: Any,
    *,
    trains: bool,
    is_placed: Callable[[Node], bool],
    refuse: Callable[[str, Place | None], Exception],
) -> Placement:
    """Checks the places of the forward ops, and the number of IPUs and micro-batches that they need."""
    used: dict[Tag, None] = {}
    for node, tag in zip(nodes, tags, strict=True):
        if not is_placed(node):
            continue
        if tag is None and (outer := blocks.outer_of.get(node.index)) is not None:
            raise refuse(
                f"{node.op} comes behind the end of a block that is nested in block '{outer}'. Blocks do not nest: the inner one ends "
                f"the outer one, whose place is not come back to. Put the rest of '{outer}' into a block of its own, behind the inner one",
                node.place,
            )
        if tag is None:
            raise refuse(
                f"{node.op} is in no block: it comes behind the end of a poptorch.Block, and every op must be in one. "
                "Put it into a block, or start blocks with poptorch.Block.start or BeginBlock, which last until the next",
                node.place,
            )
        used[tag] = None
    placement = Placement(
        blocks.mode,
        tuple(used),
        blocks.num_switches + 1,
        trains,
        int(options.replication_factor),
    )
    if placement.is_pipelined:
        _check_order(nodes, tags, refuse)
    if len(placement.ipus) > 1:
        _check_one_ipu_a_stage(placement.tags)
    _check_number(placement, options)
    _check_batches(placement, options)
    return placement


def check_shared_weights(
    readers: Iterable[tuple[str, Tag, Place | None]],
    refuse: Callable[[str, Place | None], Exception],
) -> None:
    """Layers that share a weight must be on one IPU; `readers` are (weight, where it is read)."""
    first: dict[str, Tag] = {}
    for name, tag, where in readers:
        there = first.setdefault(name, tag)
        if there.ipu != tag.ipu:
            raise refuse(
                f"the weight {name} is used on IPU {there.ipu} ({there}) and on IPU {tag.ipu} ({tag}): layers that share a "
                "weight must be on the same IPU. Put both into blocks of one IPU",
                where,
            )


def _check_order(
    nodes: Sequence[Node], tags: Sequence[Tag | None], refuse: Callable[[str, Place | None], Exception]
) -> None:
    made: dict[int, Tag] = {}
    for node, tag in zip(nodes, tags, strict=True):
        if node.phase != "forward" or tag is None:
            continue
        for value in node.inputs:
            before = made.get(value)
            if before is not None and before.stage > tag.stage:
                raise refuse(
                    f"{tag} reads what {before} computes, and comes before it in the pipeline: stages must go up in the order "
                    "in which the model runs. Use poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement), or name "
                    "the blocks in that order",
                    node.place,
                )
        for value in node.outputs:
            made[value] = tag


def warn_unused_blocks(options: Any, blocks: Blocks) -> None:
    """Says which blocks a strategy names that the model has not entered: most likely a name is misspelt."""
    entered = {tag.block for tag in blocks.entered}
    unused = [block for block in options._execution_strategy._block_map if block not in entered]
    if unused:
        logger.warning(
            "the execution strategy has a stage for %s, which the model never enters. Blocks of the model: %s",
            ", ".join(map(repr, unused)),
            ", ".join(map(repr, sorted(entered))) or "none",
        )


def _check_one_ipu_a_stage(tags: Iterable[Tag]) -> None:
    first: dict[int, Tag] = {}
    for tag in tags:
        there = first.setdefault(tag.stage, tag)
        if there.ipu != tag.ipu:
            raise refuse(
                f"stage {tag.stage} is on two IPUs: {there} and {tag}. A stage runs on one IPU: give both blocks the same "
                "ipu_id, or put them into different stages."
            )


def _check_batches(placement: Placement, options: Any) -> None:
    if placement.mode != PIPELINED:
        return
    needed, forward = placement.num_pipeline_stages, placement.num_forward_stages
    if placement.trains:
        given = int(options.Training.gradient_accumulation)
        if given < needed:
            raise refuse(
                f"gradientAccumulation is {given}, and a pipeline of {forward} forward stages has {needed} stages when it "
                f"trains ({forward} forward, {needed - forward} more for the gradients), which must all be filled. Use "
                f"options.Training.gradientAccumulation({needed}) or more, or poptorch.ShardedExecution."
            )
    elif int(options.device_iterations) < needed:
        raise refuse(
            f"deviceIterations is {int(options.device_iterations)}, and the pipeline has {needed} stages, which must all be "
            f"filled. Use options.deviceIterations({needed}) or more, or poptorch.ShardedExecution."
        )


def _check_number(placement: Placement, options: Any) -> None:
    number = placement.num_ipus
    replicas = placement.replication_factor
    made_of = f" ({placement.ipus_per_replica} for each of {replicas} replicas)" if replicas > 1 else ""
    if number > MOST_IPUS:
        raise refuse(
            f"the model needs {number} IPUs{made_of}, and one process can have {MOST_IPUS}. Use fewer replicas or blocks, or "
            "more processes."
        )
    rounded = 1 << (number - 1).bit_length()
    is_offline = options.connection_type == enums.ConnectionType.Never
    is_ipu_model = options.exists("use_model") and options.use_model
    if rounded == number or is_offline or is_ipu_model:
        return
    if not options.auto_round_num_ipus:
        raise refuse(
            f"the model needs {number} IPUs{made_of}, and IPUs are reserved in powers of two: {rounded} here. Use another number, "
            "or let PopTorch reserve more than it uses: options.autoRoundNumIPUs(True)."
        )
    logger.warning("%d IPUs are reserved, and the model uses %d of them", rounded, number)
