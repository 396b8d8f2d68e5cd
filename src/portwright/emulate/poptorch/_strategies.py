"""How a model's blocks are spread over IPUs: pipelined or sharded (names as in `poptorch.options`)."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, List

from portwright.emulate.poptorch import enums
from portwright.emulate.poptorch._errors import asserted
from portwright.emulate.poptorch._logging import logger

if TYPE_CHECKING:
    from portwright.emulate import poptorch

BlockId = str


class IStageManager(abc.ABC):
    """Gives the blocks of a model their stage and IPU, in the order in which the model enters them."""

    def __init__(self):
        self._next_auto_id = 0
        self._current_ipu: int | None = None

    def nextAutoId(self):
        self._next_auto_id += 1
        return str(self._next_auto_id - 1)

    @abc.abstractmethod
    def getStage(self, block_id):
        """The Stage that a block belongs to."""

    def beginStage(self, user_id, ipu_id_from_block):
        """Gives (stage, IPU) of the block that starts; a stage's own IPU goes before the block's."""
        self._current_ipu = ipu_id_from_block
        block = user_id or self.nextAutoId()
        stage = self.getStage(block)
        number = stage._stage_id
        ipu = next(place for place in (stage._ipu, ipu_id_from_block, number) if place is not None)
        logger.debug("block %s: stage %s, IPU %s", block, number, ipu)
        return number, ipu

    def resetAutoId(self):
        self._next_auto_id = 0


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
        if stage is not None:
            self._stage_id = stage
        return self


class _DefaultStageManager(IStageManager):
    """Makes a stage of each block that it meets, numbered after the block's IPU or by order of appearance."""

    def __init__(self, auto_stage: "poptorch.AutoStage") -> None:
        super().__init__()
        self._next_id = 1
        self._block_map: dict[str, Stage] = {}
        self._auto_stage = auto_stage

    def getStage(self, block_id: BlockId) -> "poptorch.Stage":
        if block_id in self._block_map:
            return self._block_map[block_id]
        if self._auto_stage == enums.AutoStage.SameAsIpu:
            if self._current_ipu is None:
                raise asserted(
                    f"AutoStage.SameAsIpu needs the IPU of every block, and block {block_id} has none. Give it an ipu_id."
                )
            number = self._current_ipu
        else:
            number = self._next_id
            self._next_id += 1
        self._block_map[block_id] = Stage(block_id)._setStage(number)
        return self._block_map[block_id]


class _NamedStageManager(IStageManager):
    """Knows the stages of all blocks beforehand."""

    def __init__(self, block_map: dict[str, Stage]) -> None:
        super().__init__()
        self._block_map = block_map

    def getStage(self, block_id: str) -> Stage:
        if block_id not in self._block_map:
            known = ", ".join(repr(block) for block in self._block_map)
            raise asserted(f"the execution strategy has no block {block_id!r}. It has: {known}.")
        return self._block_map[block_id]


class _IExecutionStrategy:
    """Which stage each block is in."""

    def __init__(self, stages_manager, block_map):
        self._block_map: dict[str, Stage] = block_map
        self._stages_manager: IStageManager = stages_manager

    def stage(self, block_id):
        if block_id not in self._block_map:
            known = ", ".join(repr(block) for block in self._block_map) or "none"
            raise asserted(f"the execution strategy has no block {block_id!r}. It has: {known}.")
        return self._block_map[block_id]

    def onStartTracing(self):
        from portwright.emulate.poptorch import ops  # ops knows nothing of options, and both know blocks

        ops.Block._stages_manager = self._stages_manager

    def onEndTracing(self):
        from portwright.emulate.poptorch import ops

        ops.Block._stages_manager = None

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
        super().__init__(None, {})
        match args:
            case (enums.AutoStage() as automatic,):
                stages: tuple[Any, ...] = ()
            case _:
                automatic, stages = enums.AutoStage.SameAsIpu, args
        for number, given in enumerate(stages):
            self._add(_as_stage(given)._setStage(number))
        self._stages_manager = (
            _NamedStageManager(self._block_map) if self._block_map else _DefaultStageManager(automatic)
        )

    def backendOptions(self):
        return {"execution_mode": 0}


class ShardedExecution(PipelinedExecution):
    """One stage after the other, for one micro-batch."""

    def backendOptions(self):
        return {"execution_mode": 1}
