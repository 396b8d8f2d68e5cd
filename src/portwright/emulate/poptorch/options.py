"""poptorch.Options: how a model is spread over IPUs, fed and trained."""

from __future__ import annotations

import copy
import json
import os
from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Optional, Union

import torch

from portwright.emulate.poptorch import _options_config, _options_impl, enums
from portwright.emulate.poptorch._impl import createPoptorchError
from portwright.emulate.poptorch._logging import logger
from portwright.emulate.poptorch._option_groups import (
    _DistributedOptions,
    _JitOptions,
    _PopartOptions,
    _PrecisionOptions,
    _TrainingOptions,
    check_bool,
    check_count,
)
from portwright.emulate.poptorch._refused import accepted
from portwright.emulate.poptorch._strategies import (
    BlockId,
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
    _DefaultStageManager,
    _IExecutionStrategy,
    _IPhasedExecution,
)
from portwright.emulate.poptorch._tensor_locations import TensorLocationSettings, _TensorLocationOptions

if TYPE_CHECKING:
    from portwright.emulate import poptorch

__all__ = [
    "Attribute",
    "BlockId",
    "ConfigFileError",
    "Options",
    "ParallelPhasedExecution",
    "Phase",
    "PipelinedExecution",
    "SerialPhasedExecution",
    "ShardedExecution",
    "Stage",
    "TensorLocationSettings",
    "_DefaultStageManager",
    "_DistributedOptions",
    "_IExecutionStrategy",
    "_IPhasedExecution",
    "_JitOptions",
    "_PopartOptions",
    "_PrecisionOptions",
    "_TensorLocationOptions",
    "_TrainingOptions",
]

_HARDWARE = "it concerns real hardware; there is none, and results do not depend on it."
_LOG = "PopART writes no log here."


class Attribute:
    """Gives the operations made inside it attributes that PopART's compiler reads."""

    _current_attrs: ClassVar[dict[str, dict[str, Any]]] = {}

    @accepted("the attributes steer PopART's compiler, not results; they are recorded.")
    def __init__(self, **kwargs):
        self._kwargs: dict[str, dict[str, Any]] = kwargs
        self._saved: dict[str, dict[str, Any]] = {}

    def __enter__(self):
        self._saved = copy.deepcopy(Attribute._current_attrs)
        for name, given in self._kwargs.items():
            Attribute._current_attrs[name] = {**Attribute._current_attrs.get(name, {}), **given}

    def __exit__(self, type, value, traceback):
        Attribute._current_attrs = self._saved


class ConfigFileError(Exception):
    """A file of options that cannot be read."""


class Options(_options_impl.OptionsDict):
    """All that a model is compiled with, except for the model; every setter returns the options themselves."""

    def __init__(self) -> None:
        self._popart = popart = _PopartOptions()
        self._training, self._graphProcessing = _TrainingOptions(popart), _PrecisionOptions(popart)
        self._distributed, self._jit = _DistributedOptions(), _JitOptions()
        self._tensor_locations = _TensorLocationOptions()
        self._execution_strategy: _IExecutionStrategy = PipelinedExecution()
        self._progress_bar = _options_impl.ProgressBar()
        self._source_location_excludes = list(_options_impl.default_source_location_excludes)
        self._relax_optimizer_checks = False
        self._show_compilation_progress_bar = True
        self._module_namescope_enabled = True
        super().__init__(
            replication_factor=1,
            input_group_size=1,
            input_cgt=enums.CommGroupType.Consecutive,
            broadcast_buffers=True,
            device_iterations=1,
            log_dir=".",
            max_repeat_logs=4,
            auto_round_num_ipus=False,
            anchored_tensors={},
            output_mode=enums.OutputMode.Default.value,
            output_return_period=1,
            connection_type=enums.ConnectionType.Always.value,
            sync_pattern=enums.SyncPattern.Full.value,
            available_memory_proportion={},
        )
        if folder := os.environ.get("POPTORCH_CACHE_DIR"):
            self.enableExecutableCaching(folder)
            logger.info("POPTORCH_CACHE_DIR sets the folder of compiled models: %s", folder)
        defaults = os.environ.get("POPTORCH_DEFAULT_OPTIONS", "{}")
        try:
            self.from_json(defaults)
        except json.JSONDecodeError as error:
            raise ValueError(f"POPTORCH_DEFAULT_OPTIONS is not JSON ({error}): {defaults!r}.") from None

    def from_json(self, string: str):
        """Calls the methods that a JSON object names: `{"Training.gradientAccumulation": 4}`; a list is many arguments."""
        calls = json.loads(string)
        if not isinstance(calls, dict):
            raise ValueError(f"options in JSON are an object of method: argument, not {string!r}.")
        for name, given in calls.items():
            target: Any = self
            for part in name.split("."):
                if part.startswith("_") and part != "_Popart":
                    raise AttributeError(
                        f"{type(self).__name__} has no option '{name}'. {self._suggest(name)}"
                    )
                target = getattr(target, part)
            arguments = [_enum_member(value) for value in (given if isinstance(given, list) else [given])]
            target(*arguments)
        return self

    @accepted("where an operation was written is said by the line of the user's own file.")
    def sourceLocationExcludes(self, excludes: List[str]) -> "poptorch.Options":
        self._source_location_excludes = excludes
        return self

    @accepted("where an operation was written is said by the line of the user's own file.")
    def appendToLocationExcludes(self, *excludes: str) -> "poptorch.Options":
        self._source_location_excludes = [*self._source_location_excludes, *excludes]
        return self

    @accepted("a trace takes moments: it goes to the log at level INFO.")
    def showCompilationProgressBar(self, show: bool = True) -> "poptorch.Options":
        check_bool("showCompilationProgressBar", show)
        self._show_compilation_progress_bar = show
        return self

    def loadFromFile(self, filepath: str) -> "poptorch.Options":
        """Makes the calls in a file, one a line: `deviceIterations(4)`."""
        _options_config.parseAndSetOptions(self, filepath)
        return self

    def relaxOptimizerAttributesChecks(self, relax: bool = True) -> "poptorch.Options":
        """Keeps quiet about attributes of an optimizer that PopTorch does not use."""
        check_bool("relaxOptimizerAttributesChecks", relax)
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
        check_count("deviceIterations", device_iterations)
        self.set(device_iterations=device_iterations)
        return self

    def setExecutionStrategy(
        self, strategy: Union["poptorch.ParallelPhasedExecution", "poptorch.SerialPhasedExecution"]
    ) -> "poptorch.Options":
        if not isinstance(strategy, _IExecutionStrategy):
            raise _options_impl.wrong(
                f"setExecutionStrategy takes a strategy such as PipelinedExecution(), not {strategy!r}."
            )
        self._execution_strategy = strategy
        return self

    @accepted("it trades memory for speed on hardware, not results; it is recorded.")
    def setAvailableMemoryProportion(self, available_memory_proportion: Dict[str, float]):
        if not isinstance(available_memory_proportion, dict):
            raise _options_impl.wrong(
                f"memory proportions are given as {{'IPU0': 0.5}}, not as {available_memory_proportion!r}."
            )
        proportions = {}
        for name, proportion in available_memory_proportion.items():
            number = name.removeprefix("IPU") if isinstance(name, str) else ""
            if number == name or not number.isdecimal():
                raise _options_impl.wrong(
                    f"memory proportions are given as {{'IPU0': 0.5}}, with no key like {name!r}."
                )
            is_number = isinstance(proportion, (int, float)) and not isinstance(proportion, bool)
            if not is_number or not 0 <= proportion <= 1:
                raise _options_impl.wrong(
                    f"the memory proportion of {name} is a number from 0 to 1, not {proportion!r}."
                )
            proportions[int(number)] = proportion
        self.createOrSet(available_memory_proportion=proportions)
        return self

    def replicationFactor(self, replication_factor: int) -> "poptorch.Options":
        """Sets how many copies of the model train together, each on other data."""
        check_count("replicationFactor", replication_factor)
        self.set(replication_factor=replication_factor)
        return self

    def inputReplicaGrouping(
        self, input_group_size: int, input_group_type: "poptorch.CommGroupType"
    ) -> "poptorch.Options":
        """Gives groups of replicas the same input."""
        if input_group_type == enums.CommGroupType.NoGrouping:
            input_group_size, input_group_type = 1, enums.CommGroupType.Consecutive
        if input_group_type == enums.CommGroupType.All:
            raise ValueError("inputReplicaGrouping does not take CommGroupType.All.")
        if not isinstance(input_group_size, int):
            raise _options_impl.wrong(
                f"inputReplicaGrouping takes groups of an int, not {input_group_size!r}."
            )
        if not isinstance(input_group_type, enums.CommGroupType):
            raise _options_impl.wrong(
                f"inputReplicaGrouping takes a poptorch.CommGroupType, not {input_group_type!r}."
            )
        replicas = self.replication_factor
        if input_group_size < 1 or replicas % input_group_size:
            raise ValueError(
                f"groups of {input_group_size} do not divide {replicas} replicas (replicationFactor)."
            )
        self.set(input_group_size=input_group_size, input_cgt=input_group_type)
        return self

    def broadcastBuffers(self, broadcast_buffers: bool = True):
        self.set(broadcast_buffers=broadcast_buffers)
        return self

    @accepted(_LOG)
    def logDir(self, log_dir: str) -> "poptorch.Options":
        self.set(log_dir=log_dir)
        return self

    @accepted(_LOG)
    def maxRepeatLogs(self, max_lines: Optional[int]) -> "poptorch.Options":
        self.set(max_repeat_logs=(1 << 64) - 1 if max_lines is None else max_lines)
        return self

    @accepted("it names profiles, and none are written.")
    def modelName(self, name: str) -> "poptorch.Options":
        if not isinstance(name, str):
            raise _options_impl.wrong(f"modelName takes a str, not {name!r}.")
        self.createOrSet(model_name=name)
        return self

    def enableExecutableCaching(self, path: str) -> "poptorch.Options":
        """Keeps compiled models in a folder; None keeps none."""
        if path is not None:
            if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
                raise _options_impl.wrong(
                    f"enableExecutableCaching takes the path of a folder, not {path!r}."
                )
            self._Popart.set("cachePath", os.fspath(path))
        self._Popart.set("enableEngineCaching", path is not None)
        return self

    def useIpuModel(self, use_model: bool) -> "poptorch.Options":
        """Says that Poplar's simulator is wanted; here, everything runs on the CPU either way."""
        check_bool("useIpuModel", use_model)
        self.createOrSet(use_model=use_model)
        self._checkDevice()
        return self

    def connectionType(self, connection_type: "poptorch.ConnectionType") -> "poptorch.Options":
        if not isinstance(connection_type, enums.ConnectionType):
            raise _options_impl.wrong(
                f"connectionType takes a poptorch.ConnectionType, not {connection_type!r}."
            )
        self.set(connection_type=connection_type.value)
        self._checkDevice()
        return self

    @accepted(_HARDWARE)
    def syncPattern(self, sync_pattern: "poptorch.SyncPattern") -> "poptorch.Options":
        if not isinstance(sync_pattern, enums.SyncPattern):
            raise _options_impl.wrong(f"syncPattern takes a poptorch.SyncPattern, not {sync_pattern!r}.")
        self.set(sync_pattern=sync_pattern.value)
        return self

    @accepted(_HARDWARE)
    def useIpuId(self, ipu_id: int) -> "poptorch.Options":
        if not isinstance(ipu_id, int) or isinstance(ipu_id, bool) or ipu_id < 0:
            raise _options_impl.wrong(f"useIpuId takes a number from 0, not {ipu_id!r}.")
        self.createOrSet(ipu_id=ipu_id)
        self._checkDevice()
        return self

    def useOfflineIpuTarget(self, ipu_version: int = 2) -> "poptorch.Options":
        """Compiles without a device: 1 is a Mk1 IPU, 2 a Mk2, 21 a Mk2 with FP8."""
        if ipu_version not in (1, 2, 21):
            raise createPoptorchError(f"useOfflineIpuTarget takes 1, 2 or 21, not {ipu_version!r}.")
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
                raise _options_impl.wrong(f"{what} of anchorTensor is a str such as 'loss', not {name!r}.")
        if output_mode is not None and not isinstance(output_mode, enums.OutputMode):
            raise _options_impl.wrong(f"anchorTensor takes a poptorch.OutputMode, not {output_mode!r}.")
        every_n = output_mode == enums.OutputMode.EveryN
        if every_n and not _is_period(output_return_period):
            raise _options_impl.wrong(
                f"OutputMode.EveryN needs a return period from 1, not {output_return_period!r}."
            )
        period = output_return_period if every_n else 1
        self.anchored_tensors[short_name] = [long_name, output_mode is None, output_mode, period]

    def outputMode(
        self, output_mode: "poptorch.OutputMode", output_return_period: Optional[int] = None
    ) -> "poptorch.Options":
        """Sets which micro-batches' results a call returns."""
        if not isinstance(output_mode, enums.OutputMode):
            raise _options_impl.wrong(f"outputMode takes a poptorch.OutputMode, not {output_mode!r}.")
        if output_mode == enums.OutputMode.EveryN:
            if not _is_period(output_return_period):
                raise _options_impl.wrong(
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
            raise _options_impl.wrong(f"randomSeed takes an int, not {random_seed!r}.")
        self.checkIsFrozen()
        torch.manual_seed(random_seed)
        self.createOrSet(random_seed=random_seed)
        return self

    @accepted("norms are always computed the stable way.")
    def enableStableNorm(self, enabled: bool) -> "poptorch.Options":
        check_bool("enableStableNorm", enabled)
        self._Popart.set("enableStableNorm", enabled)
        return self

    @accepted("made-up data is for timing hardware: the data that is given is used, and a warning says so.")
    def enableSyntheticData(self, enabled: bool) -> "poptorch.Options":
        check_bool("enableSyntheticData", enabled)
        if enabled:
            logger.warning(
                "synthetic data is not emulated, it is for timing hardware: the given data is used."
            )
        self._Popart.set("syntheticDataMode", 2 if enabled else 0)
        return self

    @accepted("an emulated IPU has no cycles; cycleCount() is refused.")
    def logCycleCount(self, log_cycle_count: bool) -> "poptorch.Options":
        check_bool("logCycleCount", log_cycle_count)
        self._Popart.set("instrumentWithHardwareCycleCounter", log_cycle_count)
        return self

    @accepted(
        "no profile is written: the times of this machine's CPU say nothing about IPUs; a warning says so."
    )
    def enableProfiling(self, profile_dir: Optional[str] = None) -> "poptorch.Options":
        logger.warning("no profile is written under the emulator: there is no IPU to profile.")
        given = self._Popart.options.get("engineOptions", {})
        profile = {"autoReport.directory": profile_dir or ".", "autoReport.all": "true"}
        self._Popart.setEngineOptions({**given, "debug.allowOutOfMemory": "true", **profile})
        return self

    def disableModuleNamescope(self) -> "poptorch.Options":
        """Leaves the names of modules out of the names of tensors."""
        self._module_namescope_enabled = False
        return self

    def updatableNamedBuffers(self, buffers: List[str]) -> "poptorch.Options":
        """Names the buffers that copyNamedBuffersToDevice() sends."""
        if not isinstance(buffers, (list, tuple)) or not all(isinstance(name, str) for name in buffers):
            raise _options_impl.wrong(f"updatableNamedBuffers takes a list of names, not {buffers!r}.")
        self._Popart.set("updatableNamedBuffers", buffers)
        return self

    def toDict(self) -> Dict[str, Any]:
        """All options in one dictionary, with the names that the compiler reads."""
        if self.defaultOutputMode():
            raise _options_impl.wrong(
                "choose an outputMode() first: what Default means depends on the model's use."
            )
        out: Dict[str, Any] = {**self._execution_strategy.backendOptions(), **self._popart.options}
        for part in (self, self._training, self._distributed, self._tensor_locations):
            out = part.update(out)
        if self._show_compilation_progress_bar:
            out["compilation_progress_bar_fn"] = self._progress_bar
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
            raise createPoptorchError(
                "the IPU model cannot be an offline target: drop useIpuModel(True) or ConnectionType.Never."
            )
        if not self.exists("use_model") and _environment_flag("POPTORCH_IPU_MODEL"):
            raise createPoptorchError(
                "the IPU model cannot be an offline target: unset POPTORCH_IPU_MODEL or drop ConnectionType.Never."
            )
        if self.exists("ipu_id"):
            raise createPoptorchError(
                f"an offline target has no device {self.ipu_id}: drop useIpuId() or ConnectionType.Never."
            )


def _environment_flag(name: str) -> bool:
    text = os.environ.get(name, "0")
    try:
        return int(text) != 0
    except ValueError:
        raise createPoptorchError(f"the environment variable {name} is {text!r}: set it to 0 or 1.") from None


def _is_period(period: Any) -> bool:
    return isinstance(period, int) and period > 0


def _enum_member(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    kind, _, member = value.removeprefix("poptorch.").partition(".")
    found = getattr(enums, kind, None)
    return getattr(found, member, value) if isinstance(found, type) else value
