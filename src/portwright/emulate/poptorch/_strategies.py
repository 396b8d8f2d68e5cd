"""How a model's blocks are spread over IPUs: pipelined or sharded (names as in `poptorch.options`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List

from portwright.emulate.poptorch import enums
from portwright.emulate.poptorch._errors import asserted
from portwright.emulate.poptorch._logging import logger

if TYPE_CHECKING:
    from portwright.emulate import poptorch

BlockId = str


class Stage:
    """Blocks that run together on one IPU."""

    def __init__(self, *block_ids: BlockId) -> None:
        for block in block_ids:
            if not isinstance(block, str):
                raise asserted(f"a block's ID is a str, not {block!r}.")
        self._blocks = block_ids
        self._stage_id = -1
        self._ipu: int | None = None

    @property
    def blocks(self) -> List[BlockId]:
        return self._blocks  # type: ignore[return-value]  # a tuple, in the real one too

    def ipu(self, ipu: int) -> "poptorch.Stage":
        """Puts the stage on an IPU, whatever its blocks say."""
        if not isinstance(ipu, int) or isinstance(ipu, bool) or ipu < 0:
            raise asserted(f"an IPU is a number from 0, not {ipu!r}.")
        self._ipu = ipu
        return self

    def _setStage(self, stage: int) -> "poptorch.Stage":
        self._stage_id = stage
        return self


class _StageManager:
    """Gives the blocks of a model their stage and IPU, in the order in which the model enters them.

    Where a strategy names no stages, one is made of each block, numbered after the block's IPU or by order of appearance.
    """

    def __init__(self, strategy: _IExecutionStrategy, auto_stage: enums.AutoStage) -> None:
        self._strategy, self._auto_stage = strategy, auto_stage
        self._made: dict[str, Stage] = {}
        self._next_auto_id = 0

    def nextAutoId(self):
        self._next_auto_id += 1
        return str(self._next_auto_id - 1)

    def resetAutoId(self):
        self._next_auto_id = 0

    def beginStage(self, user_id, ipu_id_from_block):
        """Gives (stage, IPU) of the block that starts; a stage's own IPU goes before the block's."""
        block = user_id or self.nextAutoId()
        is_named = bool(self._strategy._block_map)
        stage = self._strategy.stage(block) if is_named else self._make(block, ipu_id_from_block)
        number = stage._stage_id
        ipu = next(place for place in (stage._ipu, ipu_id_from_block, number) if place is not None)
        logger.debug("block %s: stage %s, IPU %s", block, number, ipu)
        return number, ipu

    def _make(self, block: str, ipu: int | None) -> Stage:
        if block not in self._made:
            number = len(self._made) + 1 if self._auto_stage == enums.AutoStage.AutoIncrement else ipu
            if number is None:
                raise asserted(
                    f"AutoStage.SameAsIpu needs the IPU of every block, and block {block} has none. Give it an ipu_id."
                )
            self._made[block] = Stage(block)._setStage(number)
        return self._made[block]


class _IExecutionStrategy:
    """Which stage each block is in."""

    def __init__(self, auto_stage):
        self._block_map: dict[str, Stage] = {}
        self._stages_manager = _StageManager(self, auto_stage)

    def stage(self, block_id):
        if block_id not in self._block_map:
            known = ", ".join(repr(block) for block in self._block_map) or "none"
            raise asserted(f"the execution strategy has no block {block_id!r}. It has: {known}.")
        return self._block_map[block_id]

    def backendOptions(self):
        return {}

    def _add(self, stage: Stage) -> None:
        for block in stage.blocks:
            if block in self._block_map:
                raise asserted(f"block {block!r} is in more than one stage.")
            self._block_map[block] = stage


def _as_stage(given: Any) -> Stage:
    if isinstance(given, Stage):
        return given
    blocks = [given] if isinstance(given, str) else given
    if not isinstance(blocks, (list, tuple)):
        raise asserted(f"a stage is a Stage, a block's ID or a list of them, not {given!r}.")
    return Stage(*blocks)


class PipelinedExecution(_IExecutionStrategy):
    """Every stage works on another micro-batch at the same time; takes stages, blocks, or one AutoStage."""

    def __init__(self, *args):
        is_automatic = len(args) == 1 and isinstance(args[0], enums.AutoStage)
        super().__init__(args[0] if is_automatic else enums.AutoStage.SameAsIpu)
        for number, given in enumerate(() if is_automatic else args):
            self._add(_as_stage(given)._setStage(number))

    def backendOptions(self):
        return {"execution_mode": 0}


class ShardedExecution(PipelinedExecution):
    """One stage after the other, for one micro-batch."""

    def backendOptions(self):
        return {"execution_mode": 1}
