"""PopTorch 3.4, emulated on the CPU: the same names, signatures and rules, and no IPU.

What each name does here is listed in docs/emulated-poptorch.md.
"""

from __future__ import annotations

from portwright.emulate.poptorch import (
    enums,
    ops,
    optim,
    options,
    poptorch_core,
    profiling,
)
from portwright.emulate.poptorch._data import (
    AsynchronousDataAccessor,
    DataLoader,
)
from portwright.emulate.poptorch._data import _SubDataset as _SubDataset
from portwright.emulate.poptorch._impl import (
    createPoptorchError,
    isRunningOnIpu,
)
from portwright.emulate.poptorch._logging import (
    logger,
)
from portwright.emulate.poptorch._poplar_executor import (
    PoplarExecutor,
    registerPostCompileHook,
    registerPreCompileHook,
)
from portwright.emulate.poptorch._poplar_executor import _OverwriteContextManager as _OverwriteContextManager
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
from portwright.emulate.poptorch._wrap import (
    inferenceModel,
    load,
    trainingModel,
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
from portwright.emulate.poptorch.ops import (
    CPU,
    BeginBlock,
    Block,
    BlockFunction,
    LegacyBeginBlockFn,
    MultiConv,
    NameScope,
    cond,
    ctc_beam_search_decoder,
    custom_op,
    dynamic_slice,
    dynamic_update,
    for_loop,
    fps,
    identity_loss,
    ipu_print_tensor,
    nearest,
    nop,
    recomputationCheckpoint,
    removeBlocks,
    serializedMatMul,
    set_available_memory,
    set_overlap_for_input,
    set_overlap_for_output,
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
    "CPU",
    "AsynchronousDataAccessor",
    "Attribute",
    "AutoStage",
    "BeginBlock",
    "Block",
    "BlockFunction",
    "BlockId",
    "CommGroupType",
    "ConfigFileError",
    "ConnectionType",
    "DataLoader",
    "DataLoaderMode",
    "Error",
    "HalfFloatCastingBehavior",
    "ICustomArgParser",
    "LegacyBeginBlockFn",
    "Liveness",
    "MatMulSerializationMode",
    "MeanReductionStrategy",
    "MultiConv",
    "MultiConvPlanType",
    "NameScope",
    "Options",
    "OutputMode",
    "OverlapMode",
    "ParallelPhasedExecution",
    "Phase",
    "PipelinedExecution",
    "PoplarExecutor",
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
    "cond",
    "createPoptorchError",
    "ctc_beam_search_decoder",
    "custom_op",
    "dynamic_slice",
    "dynamic_update",
    "enums",
    "for_loop",
    "fps",
    "getIpuTensorId",
    "identity_loss",
    "importPoptorchMetadataFromFile",
    "inferenceModel",
    "ipuHardwareIsAvailable",
    "ipuHardwareVersion",
    "ipu_print_tensor",
    "isRunningOnIpu",
    "load",
    "logger",
    "module_repr",
    "nearest",
    "nop",
    "ops",
    "optim",
    "options",
    "poptorchAtExit",
    "poptorch_core",
    "print",
    "profiling",
    "recomputationCheckpoint",
    "registerCustomArgParser",
    "registerGeometricCustomArgParsers",
    "registerPostCompileHook",
    "registerPreCompileHook",
    "removeBlocks",
    "serializedMatMul",
    "setLogLevel",
    "set_available_memory",
    "set_overlap_for_input",
    "set_overlap_for_output",
    "trainingModel",
]
