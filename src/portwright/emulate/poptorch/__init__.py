"""PopTorch 3.4, emulated on the CPU: the same names, signatures and rules, and no IPU.

What each name does here is listed in docs/emulated-poptorch.md.
"""

from __future__ import annotations

from portwright.emulate.poptorch import (
    enums,
    optim,
    options,
    poptorch_core,
    profiling,
)
from portwright.emulate.poptorch._impl import (
    createPoptorchError,
    isRunningOnIpu,
)
from portwright.emulate.poptorch._logging import (
    logger,
)
from portwright.emulate.poptorch._printing import (
    module_repr,
    print,
)
from portwright.emulate.poptorch._toplevel import (
    ICustomArgParser,
    ipuHardwareIsAvailable,
    ipuHardwareVersion,
    poptorchAtExit,
    registerCustomArgParser,
    registerGeometricCustomArgParsers,
    setLogLevel,
)
from portwright.emulate.poptorch._utils import (
    accessAttributes,
    getIpuTensorId,
)
from portwright.emulate.poptorch.enums import (
    AutoStage,
    CommGroupType,
    ConnectionType,
    DataLoaderMode,
    HalfFloatCastingBehavior,
    Liveness,
    MatMulSerializationMode,
    MeanReductionStrategy,
    MultiConvPlanType,
    OutputMode,
    OverlapMode,
    ReductionType,
    SharingStrategy,
    SyncPattern,
    VariableRetrievalMode,
)
from portwright.emulate.poptorch.options import (
    Attribute,
    BlockId,
    ConfigFileError,
    Options,
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
    TensorLocationSettings,
)
from portwright.emulate.poptorch.poptorch_core import (
    Error,
    RecoverableError,
    UnrecoverableError,
    importPoptorchMetadataFromFile,
)

__version__ = "3.4.0+emulated"

__all__ = [
    "Attribute",
    "AutoStage",
    "BlockId",
    "CommGroupType",
    "ConfigFileError",
    "ConnectionType",
    "DataLoaderMode",
    "Error",
    "HalfFloatCastingBehavior",
    "ICustomArgParser",
    "Liveness",
    "MatMulSerializationMode",
    "MeanReductionStrategy",
    "MultiConvPlanType",
    "Options",
    "OutputMode",
    "OverlapMode",
    "ParallelPhasedExecution",
    "Phase",
    "PipelinedExecution",
    "RecoverableError",
    "ReductionType",
    "SerialPhasedExecution",
    "ShardedExecution",
    "SharingStrategy",
    "Stage",
    "SyncPattern",
    "TensorLocationSettings",
    "UnrecoverableError",
    "VariableRetrievalMode",
    "accessAttributes",
    "createPoptorchError",
    "enums",
    "getIpuTensorId",
    "importPoptorchMetadataFromFile",
    "ipuHardwareIsAvailable",
    "ipuHardwareVersion",
    "isRunningOnIpu",
    "logger",
    "module_repr",
    "optim",
    "options",
    "poptorchAtExit",
    "poptorch_core",
    "print",
    "profiling",
    "registerCustomArgParser",
    "registerGeometricCustomArgParsers",
    "setLogLevel",
]
