"""poptorch.Options: how a model is spread over IPUs, fed and trained."""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Set, Union

import torch

from portwright.emulate.poptorch import enums
from portwright.emulate.poptorch._errors import AssertedError, asserted, refuse
from portwright.emulate.poptorch._logging import logger
from portwright.emulate.poptorch._names import accepted, not_emulated, partly, refused_of, with_others
from portwright.errors import suggest

if TYPE_CHECKING:
    from portwright.emulate import poptorch

__getattr__ = refused_of("options")
__all__ = [
    "Attribute",
    "BlockId",
    "ConfigFileError",
    "Options",
    "PipelinedExecution",
    "ShardedExecution",
    "Stage",
    "TensorLocationSettings",
]

FROZEN = "these options can't be changed: a model or a data loader has them. Change a copy: options.clone()."


class OptionsDict:
    """Options with fixed names and types, read as attributes; frozen once a model or data loader has them."""

    def __init__(self, **default_values):
        self._is_frozen = False
        self._values: dict[str, Any] = default_values  # last: from here on, no new private attributes

    def set(self, **kwargs):
        self.checkIsFrozen()
        for option, value in kwargs.items():
            if not self.exists(option):
                raise asserted(f"{type(self).__name__} has no option '{option}'. {self._suggest(option)}")
            expected = type(self._values[option])
            if not isinstance(value, expected):
                raise refuse(f"the option {option} takes {_article(expected)}, not {value!r}.", AssertedError)
            self._values[option] = value

    def createOrSet(self, **kwargs):
        self.checkIsFrozen()
        for option, value in kwargs.items():
            if self.exists(option):
                self.set(**{option: value})
            else:
                self._values[option] = value

    def exists(self, option):
        return option in self.__dict__.get("_values", {})

    def deleteIfExists(self, option):
        self.checkIsFrozen()
        self._values.pop(option, None)

    def checkIsFrozen(self, option=None):
        if option != "_is_frozen" and self.__dict__.get("_is_frozen"):
            raise AttributeError(FROZEN)

    def update(self, other):
        """Adds these options to a dictionary, which must not have them yet."""
        twice = sorted(set(other) & set(self._values))
        if twice:
            raise refuse(f"set more than once: {', '.join(twice)}.", AssertedError)
        other.update(self._values)
        return other

    def toDict(self):
        return self.update({})

    def __call__(self, option):
        return getattr(self, option)

    def _freeze(self) -> None:
        self._changeFreezeState(True)

    def _unfreeze(self) -> None:
        self._changeFreezeState(False)

    def _changeFreezeState(self, new_state: bool) -> None:
        self._is_frozen = new_state
        for part in self.__dict__.values():
            if "_is_frozen" in getattr(part, "__dict__", {}):
                part._is_frozen = new_state

    def __deepcopy__(self, memory: dict[int, Any]) -> Any:
        copied = type(self).__new__(type(self))
        memory[id(self)] = copied
        for name, value in self.__dict__.items():
            copied.__dict__[name] = False if name == "_is_frozen" else copy.deepcopy(value, memory)
        return copied

    def __setattr__(self, option: str, value: Any) -> None:
        self.checkIsFrozen(option)
        if not option.startswith("_"):
            self.set(**{option: value})
        elif option == "__class__" or "_values" not in self.__dict__ or option in self.__dict__:
            super().__setattr__(option, value)
        else:
            raise AttributeError(f"{type(self).__name__} has no private attribute '{option}'.")

    def __getattr__(self, option: str) -> Any:
        if self.exists(option):
            return self.__dict__["_values"][option]
        raise AttributeError(f"{type(self).__name__} has no option '{option}'. {self._suggest(option)}")

    def _suggest(self, option: str) -> str:
        if callable(getattr(type(self), option, None)):
            return f"It is a method: {option}(...)."
        methods = [name for name in dir(type(self)) if not name.startswith("_")]
        return suggest(option, [*self.__dict__.get("_values", {}), *methods])

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"
        )


def _article(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'aeiou' else 'a'} {kind.__name__}"


def _check_count(method: str, value: Any) -> None:
    """Refuses a number of times that is below one; other types are refused by the options themselves."""
    if isinstance(value, int) and value < 1:
        raise refuse(f"{method} takes a number from 1, not {value}.")


def _check_bool(method: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise asserted(f"{method} takes a bool, not {value!r}.")


class _JitOptions(OptionsDict):
    """What is left of the options of PyTorch's tracer."""

    @partly("True is refused, as in PopTorch 3.4, which traces no more.")
    def traceModel(self, trace_model: bool) -> "poptorch.options._JitOptions":
        logger.warning("Options.Jit.traceModel() is deprecated: leave the call out.")
        if trace_model:
            raise ValueError("Options.Jit.traceModel(True) is gone since PopTorch 3.0. Leave the call out.")
        return self


_ONLY_VALUE = "PopTorch 3.4 has one behaviour left"
_DIFFERS = "numbers on an IPU differ a little"


@with_others(
    {
        "halfFloatCasting": f"{_ONLY_VALUE}: half is always cast up to float",
        "runningStatisticsAlwaysFloat": _ONLY_VALUE,
    },
    warned={
        "setPartialsType": f"products of half tensors are added up as torch does it on a CPU: {_DIFFERS}",
        "enableStochasticRounding": f"half numbers are rounded to the nearest: {_DIFFERS}",
    },
)
class _PrecisionOptions(OptionsDict):
    """How numbers are rounded and checked."""

    def __init__(self, popart_options: "poptorch.options._PopartOptions") -> None:
        super().__init__()

    @partly("True is refused: what a model computes is not looked at op by op.")
    def enableFloatingPointExceptions(self, enabled: bool) -> "poptorch.options._PrecisionOptions":
        _check_bool("enableFloatingPointExceptions", enabled)
        if enabled:
            raise not_emulated(
                "enableFloatingPointExceptions(True)", "check the loss that a call returns: loss.isfinite()."
            )
        return self


_SCALING = (
    "PopART's rule to double and halve the factor is followed; it counts all half results of the backward pass but views, "
    "of which PopART leaves out some (slices, gathers, concatenations)."
)


@with_others(
    {"setConvolutionDithering": "it spreads convolutions over tiles, which changes memory and not results."}
)
class _TrainingOptions(OptionsDict):
    """How gradients of micro-batches and replicas become one update."""

    def __init__(self, popart_options: "poptorch.options._PopartOptions") -> None:
        self._popart_options = popart_options
        super().__init__(
            gradient_accumulation=1,
            accumulation_and_replication_reduction_type=enums.ReductionType.Mean,
            meanAccumulationAndReplicationReductionStrategy=enums.MeanReductionStrategy.Post,
        )

    def gradientAccumulation(self, gradient_accumulation: int) -> "poptorch.options._TrainingOptions":
        """Sets how many micro-batches make one update of the weights."""
        _check_count("gradientAccumulation", gradient_accumulation)
        self.set(gradient_accumulation=gradient_accumulation)
        return self

    def accumulationAndReplicationReductionType(
        self, reduction_type: "poptorch.ReductionType"
    ) -> "poptorch.options._TrainingOptions":
        valid = (enums.ReductionType.Mean, enums.ReductionType.Sum)
        if not isinstance(reduction_type, enums.ReductionType) or reduction_type not in valid:
            raise ValueError(
                "accumulationAndReplicationReductionType takes poptorch.ReductionType.Mean or .Sum, "
                f"not {reduction_type!r}."
            )
        self.set(accumulation_and_replication_reduction_type=reduction_type)
        return self

    def setMeanAccumulationAndReplicationReductionStrategy(
        self, mean_reduction_strategy: "poptorch.MeanReductionStrategy"
    ) -> "poptorch.options._TrainingOptions":
        self.set(meanAccumulationAndReplicationReductionStrategy=mean_reduction_strategy)
        return self

    @partly(_SCALING)
    def setAutomaticLossScaling(self, enabled: bool) -> "poptorch.options._TrainingOptions":
        _check_bool("setAutomaticLossScaling", enabled)
        self._popart_options.set("automaticLossScalingSettings.enabled", enabled)
        return self


_REFUSED_SETTINGS = {
    "accumulationFactor": "Options.Training.gradientAccumulation()",
    "enableGradientAccumulation": "Options.Training.gradientAccumulation()",
    "accumulationAndReplicationReductionType": "Options.Training.accumulationAndReplicationReductionType()",
    "enableReplicatedGraphs": "Options.replicationFactor()",
    "enableDistributedReplicatedGraphs": "Options.replicationFactor() in one process",
    "globalReplicationFactor": "Options.replicationFactor()",
    "globalReplicaOffset": "Options.replicationFactor() in one process",
    "delayVarUpdates": "updates as they are, once the gradients are complete",
}


@with_others(
    {
        "setEngineOptions": "Poplar's engine is not there.",
        "setPatterns": "PopART's rewrites of a graph do not change results.",
    }
)
class _PopartOptions:
    """Settings of the compiler beneath, by name; unknown ones are refused when the options get used."""

    def __init__(self) -> None:
        self._is_frozen = False
        self.options: dict[str, Any] = {}
        self.set("instrumentWithHardwareCycleCounter", False)
        self.set("rearrangeAnchorsOnHost", False)

    def checkIsFrozen(self, option=None):
        if option != "_is_frozen" and self._is_frozen:
            raise AttributeError(FROZEN)

    @accepted("recorded; settings that would change results are refused when a model gets the options.")
    def set(
        self, key: str, value: Union[int, float, str, List[str], Set[str]]
    ) -> "poptorch.options._PopartOptions":
        self.checkIsFrozen()
        self.options[key] = value
        return self

    def _check(self) -> None:
        """Refuses settings that would change what is computed behind the back of the options that decide it here."""
        for name in self.options:
            if name in _REFUSED_SETTINGS:
                raise refuse(
                    f"PopART's setting '{name}' is not emulated by Portwright: use {_REFUSED_SETTINGS[name]}."
                )
        if self.options.get("groupNormStridedChannelGrouping"):
            logger.warning(
                "PopART's setting 'groupNormStridedChannelGrouping' is not emulated: GroupNorm has torch's groups here; on an IPU "
                "every n-th channel is of the same group, so that weights trained there do not fit elsewhere."
            )

    __deepcopy__ = OptionsDict.__deepcopy__  # which can be changed again

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.options.items())})"


class _DistributedOptions(OptionsDict):
    """Which process of how many this is, so that each one's data loader gives another part."""

    def __init__(self) -> None:
        super().__init__(num_distributed_processes=1, distributed_process_id=0, ipuof_configs={})
        self.setEnvVarNames("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")

    def disable(self) -> "poptorch.options._DistributedOptions":
        self.set(num_distributed_processes=1, distributed_process_id=0)
        return self

    def setEnvVarNames(
        self, var_num_processes: str, var_process_id: str
    ) -> "poptorch.options._DistributedOptions":
        """Reads number and ID of the process from the environment."""
        given = {}
        for name, default in ((var_process_id, "0"), (var_num_processes, "1")):
            text = os.environ.get(name, default)
            try:
                given[name] = int(text)
            except ValueError:
                raise ValueError(
                    f"the environment variable {name} is {text!r}, not a whole number."
                ) from None
        return self.configureProcessId(given[var_process_id], given[var_num_processes])

    def configureProcessId(
        self, process_id: int, num_processes: int
    ) -> "poptorch.options._DistributedOptions":
        if (
            isinstance(process_id, int)
            and isinstance(num_processes, int)
            and not 0 <= process_id < num_processes
        ):
            raise refuse(f"process {process_id} of {num_processes} can't be: IDs go from 0.")
        self.set(distributed_process_id=process_id, num_distributed_processes=num_processes)
        return self

    @property
    def processId(self) -> int:
        return int(self.distributed_process_id)

    @property
    def numProcesses(self) -> int:
        return int(self.num_distributed_processes)


_TILES = (
    "which tiles load and store a tensor changes speed on hardware; the number of I/O tiles counts as memory."
)


@with_others(dict.fromkeys(("useIOTilesToLoad", "useIOTilesToStore"), _TILES))
class TensorLocationSettings(OptionsDict):
    """Where one kind of tensor is kept, and from which size on."""

    def minElementsForOffChip(self, min_elements: int) -> "poptorch.TensorLocationSettings":
        return self._record("minElementsForOffChip", min_elements, int)

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> "poptorch.TensorLocationSettings":
        return self._record("minElementsForReplicatedTensorSharding", min_elements, int)

    def useOnChipStorage(self, use: bool = True) -> "poptorch.TensorLocationSettings":
        if use is None:  # back to what PopART decides
            self.deleteIfExists("onChip")
            return self
        return self._record("onChip", use, bool)

    def useReplicatedTensorSharding(self, use: bool = True) -> "poptorch.TensorLocationSettings":
        return self._record("useReplicatedTensorSharding", use, bool)

    def _record(self, option: str, value: Any, kind: type[int]) -> TensorLocationSettings:
        if not isinstance(value, kind):
            raise asserted(f"{option} takes {_article(kind)}, not {value!r}.")
        self.createOrSet(**{option: int(value)})
        return self


class _TensorLocationOptions(OptionsDict):
    """Where each kind of tensor is kept."""

    def numIOTiles(self, num_tiles: int) -> "poptorch.TensorLocationSettings":
        if not isinstance(num_tiles, int) or num_tiles % 2 or not 32 <= num_tiles <= 192:
            raise asserted(f"numIOTiles takes an even count from 32 to 192, not {num_tiles!r}.")
        self.createOrSet(numIOTiles=num_tiles)
        return self  # type: ignore[return-value]  # the vendor's annotation is wrong

    def setActivationLocation(
        self, location: "poptorch.TensorLocationSettings"
    ) -> "poptorch.options._TensorLocationOptions":
        return self._place("activation", location)

    def setWeightLocation(
        self, location: "poptorch.TensorLocationSettings"
    ) -> "poptorch.options._TensorLocationOptions":
        return self._place("weight", location)

    def setOptimizerLocation(
        self, location: "poptorch.TensorLocationSettings"
    ) -> "poptorch.options._TensorLocationOptions":
        return self._place("optimizer", location)

    def setAccumulatorLocation(
        self, location: "poptorch.TensorLocationSettings"
    ) -> "poptorch.options._TensorLocationOptions":
        return self._place("accumulator", location)

    def _place(self, kind: str, location: Any) -> _TensorLocationOptions:
        if not isinstance(location, TensorLocationSettings):
            raise asserted(f"the location of {kind}s is a poptorch.TensorLocationSettings, not {location!r}.")
        self.createOrSet(**{f"location_{kind}": location.toDict()})
        return self


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


_HARDWARE = "it concerns real hardware; there is none, and results do not depend on it."
_LINES = "where an operation was written is said by the line of the user's own file."
_LOG = "it concerns logs and profiles of the compiler, and none are written."


class Attribute:
    """Gives the operations made inside it attributes that PopART's compiler reads."""

    @accepted("the attributes steer PopART's compiler, not results.")
    def __init__(self, **kwargs):
        pass

    def __enter__(self):
        pass

    def __exit__(self, type, value, traceback):
        pass


class ConfigFileError(Exception):
    """What the real Options.loadFromFile() raises for a file that it cannot read; never raised here."""


@with_others(
    {
        **dict.fromkeys(("sourceLocationExcludes", "appendToLocationExcludes"), _LINES),
        **dict.fromkeys(("logDir", "maxRepeatLogs", "modelName", "showCompilationProgressBar"), _LOG),
        **dict.fromkeys(("syncPattern", "useIpuId"), _HARDWARE),
        "setAvailableMemoryProportion": "it trades memory for speed on hardware, not results.",
        "enableStableNorm": "norms are always computed the stable way.",
        "enableExecutableCaching": "nothing is cached: every process traces its models anew, which takes moments.",
        "logCycleCount": "an emulated IPU has no cycles; cycleCount() is refused.",
    },
    warned={
        "enableSyntheticData": "made-up data is for timing hardware: the data that is given is used",
        "enableProfiling": "no profile is written: the times of this machine's CPU say nothing about IPUs",
    },
)
class Options(OptionsDict):
    """All that a model is compiled with, except for the model; every setter returns the options themselves."""

    @partly("the environment's POPTORCH_DEFAULT_OPTIONS is refused.")
    def __init__(self) -> None:
        self._popart = popart = _PopartOptions()
        self._training, self._graphProcessing = _TrainingOptions(popart), _PrecisionOptions(popart)
        self._distributed, self._jit = _DistributedOptions(), _JitOptions()
        self._tensor_locations = _TensorLocationOptions()
        self._execution_strategy: _IExecutionStrategy = PipelinedExecution()
        self._relax_optimizer_checks = False
        super().__init__(
            replication_factor=1,
            broadcast_buffers=True,
            device_iterations=1,
            auto_round_num_ipus=False,
            anchored_tensors={},
            output_mode=enums.OutputMode.Default.value,
            output_return_period=1,
            connection_type=enums.ConnectionType.Always.value,
        )
        if "POPTORCH_DEFAULT_OPTIONS" in os.environ:
            raise not_emulated("POPTORCH_DEFAULT_OPTIONS", "call the methods of poptorch.Options instead.")

    def relaxOptimizerAttributesChecks(self, relax: bool = True) -> "poptorch.Options":
        """Keeps quiet about attributes of an optimizer that PopTorch does not use."""
        _check_bool("relaxOptimizerAttributesChecks", relax)
        self._relax_optimizer_checks = relax
        return self

    @property
    def TensorLocations(self) -> "poptorch.options._TensorLocationOptions":
        return self._tensor_locations

    @property
    def Distributed(self) -> "poptorch.options._DistributedOptions":
        return self._distributed

    @property
    def Jit(self) -> "poptorch.options._JitOptions":
        return self._jit

    @property
    def Precision(self) -> "poptorch.options._PrecisionOptions":
        return self._graphProcessing

    @property
    def Training(self) -> "poptorch.options._TrainingOptions":
        return self._training

    @property
    def _Popart(self) -> "poptorch.options._PopartOptions":
        return self._popart

    def autoRoundNumIPUs(self, auto_round_num_ipus: bool = True) -> "poptorch.Options":
        self.set(auto_round_num_ipus=auto_round_num_ipus)
        return self

    def deviceIterations(self, device_iterations: int) -> "poptorch.Options":
        """Sets how many times a call runs the program on the device before it returns to the host."""
        _check_count("deviceIterations", device_iterations)
        self.set(device_iterations=device_iterations)
        return self

    def setExecutionStrategy(
        self, strategy: Union["poptorch.ParallelPhasedExecution", "poptorch.SerialPhasedExecution"]
    ) -> "poptorch.Options":
        if not isinstance(strategy, _IExecutionStrategy):
            raise asserted(
                f"setExecutionStrategy takes a strategy such as PipelinedExecution(), not {strategy!r}."
            )
        self._execution_strategy = strategy
        return self

    def replicationFactor(self, replication_factor: int) -> "poptorch.Options":
        """Sets how many copies of the model train together, each on other data."""
        _check_count("replicationFactor", replication_factor)
        self.set(replication_factor=replication_factor)
        return self

    def broadcastBuffers(self, broadcast_buffers: bool = True):
        self.set(broadcast_buffers=broadcast_buffers)
        return self

    def useIpuModel(self, use_model: bool) -> "poptorch.Options":
        """Says that Poplar's simulator is wanted; here, everything runs on the CPU either way."""
        _check_bool("useIpuModel", use_model)
        self.createOrSet(use_model=use_model)
        self._checkDevice()
        return self

    def connectionType(self, connection_type: "poptorch.ConnectionType") -> "poptorch.Options":
        if not isinstance(connection_type, enums.ConnectionType):
            raise asserted(f"connectionType takes a poptorch.ConnectionType, not {connection_type!r}.")
        self.set(connection_type=connection_type.value)
        self._checkDevice()
        return self

    def useOfflineIpuTarget(self, ipu_version: int = 2) -> "poptorch.Options":
        """Compiles without a device: 1 is a Mk1 IPU, 2 a Mk2, 21 a Mk2 with FP8."""
        if ipu_version not in (1, 2, 21):
            raise refuse(f"useOfflineIpuTarget takes 1, 2 or 21, not {ipu_version!r}.")
        self.connectionType(enums.ConnectionType.Never)
        self.createOrSet(ipu_version=ipu_version)
        return self

    def anchorTensor(
        self,
        short_name: str,
        long_name: str,
        output_mode: Optional["poptorch.OutputMode"] = None,
        output_return_period: Optional[int] = 1,
    ):
        """Keeps a tensor of the program, to be read after a run with getAnchoredTensor()."""
        self.checkIsFrozen()
        for what, name in (("short_name", short_name), ("long_name", long_name)):
            if not isinstance(name, str) or not name:
                raise asserted(f"{what} of anchorTensor is a str such as 'loss', not {name!r}.")
        if output_mode is not None and not isinstance(output_mode, enums.OutputMode):
            raise asserted(f"anchorTensor takes a poptorch.OutputMode, not {output_mode!r}.")
        every_n = output_mode == enums.OutputMode.EveryN
        if every_n and not _is_period(output_return_period):
            raise asserted(f"OutputMode.EveryN needs a return period from 1, not {output_return_period!r}.")
        period = output_return_period if every_n else 1
        self.anchored_tensors[short_name] = [long_name, output_mode is None, output_mode, period]

    def outputMode(
        self, output_mode: "poptorch.OutputMode", output_return_period: Optional[int] = None
    ) -> "poptorch.Options":
        """Sets which micro-batches' results a call returns."""
        if not isinstance(output_mode, enums.OutputMode):
            raise asserted(f"outputMode takes a poptorch.OutputMode, not {output_mode!r}.")
        if output_mode == enums.OutputMode.EveryN:
            if not _is_period(output_return_period):
                raise asserted(
                    f"OutputMode.EveryN needs an output_return_period from 1, not {output_return_period!r}."
                )
        elif output_return_period:
            logger.info("output_return_period is for OutputMode.EveryN, and is ignored with %s", output_mode)
        self.set(output_mode=output_mode.value, output_return_period=output_return_period or 1)
        return self

    def defaultOutputMode(self) -> bool:
        """Whether outputMode() is still Default."""
        return bool(self.output_mode == enums.OutputMode.Default)

    def randomSeed(self, random_seed: int) -> "poptorch.Options":
        """Seeds the device and, as PopTorch does, torch on the host."""
        if not isinstance(random_seed, int) or isinstance(random_seed, bool):
            raise asserted(f"randomSeed takes an int, not {random_seed!r}.")
        self.checkIsFrozen()
        torch.manual_seed(random_seed)
        self.createOrSet(random_seed=random_seed)
        return self

    def updatableNamedBuffers(self, buffers: List[str]) -> "poptorch.Options":
        """Names the buffers that copyNamedBuffersToDevice() sends."""
        if not isinstance(buffers, (list, tuple)) or not all(isinstance(name, str) for name in buffers):
            raise asserted(f"updatableNamedBuffers takes a list of names, not {buffers!r}.")
        self._Popart.set("updatableNamedBuffers", buffers)
        return self

    def toDict(self) -> Dict[str, Any]:
        """All options in one dictionary, with the names that the compiler reads."""
        if self.defaultOutputMode():
            raise asserted("choose an outputMode() first: what Default means depends on the model's use.")
        out: Dict[str, Any] = {**self._execution_strategy.backendOptions(), **self._popart.options}
        for part in (self, self._training, self._distributed, self._tensor_locations):
            out = part.update(out)
        return out

    def clone(self) -> "poptorch.Options":
        """A copy that can be changed."""
        return copy.deepcopy(self)

    def __repr__(self) -> str:
        values = [f"{name}={value!r}" for name, value in self._values.items()]
        parts = [n for n in dir(type(self)) if isinstance(getattr(type(self), n), property)]
        return f"{type(self).__name__}({', '.join([*values, *(f'{n}={getattr(self, n)!r}' for n in parts)])})"

    def _changeFreezeState(self, new_state: bool) -> None:
        if new_state:  # a model or data loader gets the options: now they are complete
            self._popart._check()
            self._checkDevice()
        super()._changeFreezeState(new_state)

    def _checkDevice(self) -> None:
        """Refuses a target that is compiled for without a device together with one that needs it."""
        if self.connection_type != enums.ConnectionType.Never:
            return
        if self.exists("use_model") and self.use_model:
            raise refuse(
                "the IPU model cannot be an offline target: drop useIpuModel(True) or ConnectionType.Never."
            )
        if not self.exists("use_model") and _environment_flag("POPTORCH_IPU_MODEL"):
            raise refuse(
                "the IPU model cannot be an offline target: unset POPTORCH_IPU_MODEL or drop ConnectionType.Never."
            )


def _environment_flag(name: str) -> bool:
    text = os.environ.get(name, "0")
    try:
        return int(text) != 0
    except ValueError:
        raise refuse(f"the environment variable {name} is {text!r}: set it to 0 or 1.") from None


def _is_period(period: Any) -> bool:
    return isinstance(period, int) and period > 0
