"""The parts of Options that are objects of their own (names as in `poptorch.options`)."""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING, Any, Dict, List, Set, Union

import torch

from portwright.emulate.poptorch import _options_impl, _popart_settings, enums
from portwright.emulate.poptorch._floating_point import SETTING
from portwright.emulate.poptorch._impl import createPoptorchError
from portwright.emulate.poptorch._logging import logger
from portwright.emulate.poptorch._refused import accepted, partly

if TYPE_CHECKING:
    from portwright.emulate import poptorch

_ONLY_VALUE = "PopTorch 3.4 has one behaviour left, and only warns."
_SCALING = (
    "PopART's rule to double and halve the factor is followed; it counts all half results of the backward pass but views, "
    "of which PopART leaves out some (slices, gathers, concatenations)."
)


def check_count(method: str, value: Any) -> None:
    """Refuses a number of times that is below one; other types are refused by the options themselves."""
    if isinstance(value, int) and value < 1:
        raise createPoptorchError(f"{method} takes a number from 1, not {value}.")


def check_bool(method: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise _options_impl.wrong(f"{method} takes a bool, not {value!r}.")


class _JitOptions(_options_impl.OptionsDict):
    """What is left of the options of PyTorch's tracer."""

    @partly("True is refused, as in PopTorch 3.4, which traces no more.")
    def traceModel(self, trace_model: bool) -> "poptorch.options._JitOptions":
        logger.warning("Options.Jit.traceModel() is deprecated: leave the call out.")
        if trace_model:
            raise ValueError("Options.Jit.traceModel(True) is gone since PopTorch 3.0. Leave the call out.")
        return self


class _PrecisionOptions(_options_impl.OptionsDict):
    """How numbers are rounded and checked."""

    def __init__(self, popart_options: "poptorch.options._PopartOptions") -> None:
        self._popart_options = popart_options
        super().__init__()

    @accepted(_ONLY_VALUE)
    def halfFloatCasting(
        self, half_float_casting: "poptorch.HalfFloatCastingBehavior"
    ) -> "poptorch.options._PrecisionOptions":
        logger.warning("Options.Precision.halfFloatCasting() is deprecated: half is always cast up to float.")
        return self

    @accepted(_ONLY_VALUE)
    def runningStatisticsAlwaysFloat(self, value: bool) -> "poptorch.options._PrecisionOptions":
        if not isinstance(value, bool):
            raise ValueError(f"runningStatisticsAlwaysFloat takes a bool, not {value!r}.")
        logger.warning(
            "Options.Precision.runningStatisticsAlwaysFloat() is deprecated: statistics keep the type of the model."
        )
        return self

    @partly(
        "looked at are the result of each op of a program (a nan or an infinity that nothing it was given has), inputs (nan) and "
        "updated weights, not each instruction; poptorch.Error names the line."
    )
    def enableFloatingPointExceptions(self, enabled: bool) -> "poptorch.options._PrecisionOptions":
        check_bool("enableFloatingPointExceptions", enabled)
        self._popart_options.set(SETTING, enabled)
        return self

    @partly(
        "weights, optimizer state and sums of gradients that are half are rounded at random when they are updated; what the model "
        "itself computes in half is rounded to the nearest, and a warning says so."
    )
    def enableStochasticRounding(self, enabled: bool) -> "poptorch.options._PrecisionOptions":
        check_bool("enableStochasticRounding", enabled)
        if enabled:
            logger.warning(
                "stochastic rounding is emulated in the update of weights and optimizer state alone: results of the model that "
                "are half are rounded to the nearest."
            )
        self._popart_options.set("enableStochasticRounding", enabled)
        return self

    def setPartialsType(self, dtype: torch.dtype) -> "poptorch.options._PrecisionOptions":
        """Sets in which type products are added up in matrix products and convolutions of half tensors."""
        names = {torch.float32: "float", torch.float16: "half"}
        if not isinstance(dtype, torch.dtype) or dtype not in names:
            raise ValueError(f"setPartialsType takes torch.float or torch.half, not {dtype!r}.")
        self._popart_options.set("partialsTypeMatMuls", names[dtype])
        self._popart_options.set("convolutionOptions", {"partialsType": names[dtype]})  # type: ignore[arg-type]
        return self


class _TrainingOptions(_options_impl.OptionsDict):
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
        check_count("gradientAccumulation", gradient_accumulation)
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
        check_bool("setAutomaticLossScaling", enabled)
        self._popart_options.set("automaticLossScalingSettings.enabled", enabled)
        return self

    @accepted("it spreads convolutions over tiles, which changes memory and not results.")
    def setConvolutionDithering(self, enabled: bool) -> "poptorch.options._TrainingOptions":
        check_bool("setConvolutionDithering", enabled)
        self._popart_options.set("convolutionOptions", {"enableConvDithering": enabled})  # type: ignore[arg-type]
        return self


class _PopartOptions:
    """Settings of the compiler beneath, by name; unknown ones are refused when the options get used."""

    def __init__(self) -> None:
        self._is_frozen = False
        self.options: dict[str, Any] = {}
        self.set("instrumentWithHardwareCycleCounter", False)
        self.set("rearrangeAnchorsOnHost", False)

    def checkIsFrozen(self, option=None):
        if option != "_is_frozen" and self._is_frozen:
            raise AttributeError(_options_impl.FROZEN)

    @accepted("recorded; settings that would change results are refused when a model gets the options.")
    def set(
        self, key: str, value: Union[int, float, str, List[str], Set[str]]
    ) -> "poptorch.options._PopartOptions":
        self.checkIsFrozen()
        self.options[key] = value
        return self

    @accepted("Poplar's engine is not there; the settings are recorded.")
    def setEngineOptions(self, engine_options: Dict[str, str]) -> "poptorch.options._PopartOptions":
        self.set("engineOptions", engine_options)  # type: ignore[arg-type]
        return self

    @accepted("PopART's rewrites of a graph do not change results; the settings are recorded.")
    def setPatterns(self, patterns: Dict[str, bool], level: int = 2) -> "poptorch.options._PopartOptions":
        if not isinstance(level, int) or not isinstance(patterns, dict):
            raise _options_impl.wrong(f"setPatterns takes a dict and an int, not {patterns!r} and {level!r}.")
        self.set("patterns_level", level)
        self.set("patterns", patterns)  # type: ignore[arg-type]
        return self

    def _check(self) -> None:
        _popart_settings.check(self.options)

    def __deepcopy__(self, memory: dict[int, Any]) -> _PopartOptions:
        copied = _PopartOptions()
        memory[id(self)] = copied
        copied.options = copy.deepcopy(self.options, memory)
        return copied

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.options.items())})"


class _DistributedOptions(_options_impl.OptionsDict):
    """Which process of how many this is, so that each one's data loader gives another part."""

    def __init__(self) -> None:
        self._gcd_mappings: dict[int, int] = {}
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
            raise createPoptorchError(f"process {process_id} of {num_processes} can't be: IDs go from 0.")
        self.set(distributed_process_id=process_id, num_distributed_processes=num_processes)
        return self

    @property
    def processId(self) -> int:
        return int(self.distributed_process_id)

    @property
    def numProcesses(self) -> int:
        return int(self.num_distributed_processes)
