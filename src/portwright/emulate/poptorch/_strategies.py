"""How a model's blocks are spread over IPUs: pipelined, sharded or in phases (names as in `poptorch.options`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Union

from portwright.emulate.poptorch import _options_impl, enums
from portwright.emulate.poptorch._refused import accepted

if TYPE_CHECKING:
    from portwright.emulate import poptorch

BlockId = str

_PHASES = "phases decide when tensors travel to and from memory off the chip; the results are the same."


class Stage:
    """Blocks that run together on one IPU."""

    def __init__(self, *block_ids: BlockId) -> None:
        for block in block_ids:
            if not isinstance(block, str):
                raise _options_impl.wrong(f"a block's ID is a str, not {block!r}.")
        self._blocks = block_ids
        self._stage_id = -1
        self._phase_id = -1
        self._ipu: int | None = None

    @property
    def blocks(self) -> List[BlockId]:
        return self._blocks  # type: ignore[return-value]  # a tuple, in the real one too

    def ipu(self, ipu: int) -> "poptorch.Stage":
        """Puts the stage on an IPU, whatever its blocks say."""
        if not isinstance(ipu, int) or isinstance(ipu, bool) or ipu < 0:
            raise _options_impl.wrong(f"an IPU is a number from 0, not {ipu!r}.")
        self._ipu = ipu
        return self

    def _setStage(self, stage: int) -> "poptorch.Stage":
        if stage is not None:
            self._stage_id = stage
        return self


class _DefaultStageManager(_options_impl.IStageManager):
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
                raise _options_impl.wrong(
                    f"AutoStage.SameAsIpu needs the IPU of every block, and block {block_id} has none. Give it an ipu_id."
                )
            number = self._current_ipu
        else:
            number = self._next_id
            self._next_id += 1
        self._block_map[block_id] = Stage(block_id)._setStage(number)
        return self._block_map[block_id]


class _NamedStageManager(_options_impl.IStageManager):
    """Knows the stages of all blocks beforehand."""

    def __init__(self, block_map: dict[str, Stage]) -> None:
        super().__init__()
        self._block_map = block_map

    def getStage(self, block_id: str) -> Stage:
        if block_id not in self._block_map:
            known = ", ".join(repr(block) for block in self._block_map)
            raise _options_impl.wrong(f"the execution strategy has no block {block_id!r}. It has: {known}.")
        return self._block_map[block_id]


class _IExecutionStrategy:
    """Which stage each block is in."""

    def __init__(self, stages_manager, block_map):
        self._block_map: dict[str, Stage] = block_map
        self._stages_manager: _options_impl.IStageManager = stages_manager

    def stage(self, block_id):
        if block_id not in self._block_map:
            known = ", ".join(repr(block) for block in self._block_map) or "none"
            raise _options_impl.wrong(f"the execution strategy has no block {block_id!r}. It has: {known}.")
        return self._block_map[block_id]

    def onStartTracing(self):
        from portwright.emulate.poptorch import ops  # ops knows nothing of options, and both know blocks

        self._stages_manager.clearDebug()
        ops.Block._stages_manager = self._stages_manager

    def onEndTracing(self):
        from portwright.emulate.poptorch import ops

        self._stages_manager.printDebug()
        ops.Block._stages_manager = None

    def backendOptions(self):
        return {}

    def _add(self, stage: Stage) -> None:
        for block in stage.blocks:
            if block in self._block_map:
                raise _options_impl.wrong(f"block {block!r} is in more than one stage.")
            self._block_map[block] = stage


class Phase:
    """Stages that run at the same time."""

    def __init__(self, *arg: Union[BlockId, "poptorch.Stage"]):
        if all(isinstance(part, Stage) for part in arg):
            self.stages: Any = arg
        elif all(isinstance(part, str) for part in arg):
            self.stages = [Stage(*arg)]  # type: ignore[arg-type]
        else:
            kinds = ", ".join(type(part).__name__ for part in arg)
            raise _options_impl.wrong(f"a phase is made of block IDs only or of Stages only, not of {kinds}.")

    def stage(self, idx):
        return self.stages[idx]

    def ipus(self, *ipus):
        if len(ipus) != len(self.stages):
            raise _options_impl.wrong(f"{len(ipus)} IPUs were given for {len(self.stages)} stages.")
        for stage, ipu in zip(self.stages, ipus, strict=True):
            stage.ipu(ipu)


def _as_stage(given: Any) -> Stage:
    if isinstance(given, Stage):
        return given
    blocks = [given] if isinstance(given, str) else given
    if not isinstance(blocks, (list, tuple)):
        raise _options_impl.wrong(f"a stage is a Stage, a block's ID or a list of them, not {given!r}.")
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


class _IPhasedExecution(_IExecutionStrategy):
    """Stages in phases, with tensors kept off the chip in between."""

    def __init__(self, *phases: Union["poptorch.Phase", List["poptorch.Stage"], List[BlockId]]):
        super().__init__(None, {})
        if not phases:
            raise _options_impl.wrong("phased execution needs its phases: there is no AutoStage for it.")
        self._tensors_liveness = enums.Liveness.AlwaysLive
        self._separate_backward_phase = False
        self._phases: list[Phase] = []
        for number, given in enumerate(phases):
            parts: Any = given if isinstance(given, list) else [given]
            phase = given if isinstance(given, Phase) else Phase(*parts)
            self._phases.append(phase)
            for stage in phase.stages:
                stage._phase_id = number
                self._add(stage)
        self._stages_manager = _NamedStageManager(self._block_map)

    def phase(self, phase: int) -> "poptorch.Phase":
        if not isinstance(phase, int) or phase < 0:
            raise _options_impl.wrong(f"a phase is a number from 0, not {phase!r}.")
        return self._phases[phase]

    @accepted(_PHASES)
    def useSeparateBackwardPhase(self, use: bool = True):
        if not isinstance(use, bool):
            raise _options_impl.wrong(f"useSeparateBackwardPhase takes a bool, not {use!r}.")
        self._separate_backward_phase = use
        return self

    def backendOptions(self) -> Dict[str, Union[int, bool]]:
        return {
            "execution_mode": 2,
            "separate_backward_phase": self._separate_backward_phase,
            "tensors_liveness": self._tensors_liveness.value,
        }


class ParallelPhasedExecution(_IPhasedExecution):
    """Phases alternate between two groups of IPUs."""

    def backendOptions(self) -> Dict[str, Union[int, bool]]:
        return {**super().backendOptions(), "serial_phases_execution": False}

    @accepted(_PHASES)
    def sendTensorsOffChipAfterFwd(self, off_chip: bool = True) -> "poptorch.ParallelPhasedExecution":
        if not isinstance(off_chip, bool):
            raise _options_impl.wrong(f"sendTensorsOffChipAfterFwd takes a bool, not {off_chip!r}.")
        self._tensors_liveness = enums.Liveness.OffChipAfterFwd if off_chip else enums.Liveness.AlwaysLive
        return self


class SerialPhasedExecution(_IPhasedExecution):
    """All phases run on one group of IPUs, one after the other."""

    @accepted(_PHASES)
    def setTensorsLiveness(self, liveness: "poptorch.Liveness") -> "poptorch.SerialPhasedExecution":
        if not isinstance(liveness, enums.Liveness):
            raise _options_impl.wrong(f"setTensorsLiveness takes a poptorch.Liveness, not {liveness!r}.")
        self._tensors_liveness = liveness
        return self

    def backendOptions(self) -> Dict[str, Union[int, bool]]:
        return {**super().backendOptions(), "serial_phases_execution": True}
