"""The enumerations of PopTorch; the numbers are those that its compiler reads."""

from __future__ import annotations

import enum


class MeanReductionStrategy(enum.IntEnum):
    """When gradients that are averaged are divided: as they are added up, or after."""

    Running, Post, PostAndLoss = range(3)


class DataLoaderMode(enum.IntEnum):
    """How a DataLoader gets its data: in the caller's process, or ahead of it in another."""

    Sync, Async, AsyncRebatched = range(3)


class SharingStrategy(enum.IntEnum):
    """How the process that loads data ahead is started and hands tensors over."""

    SharedMemory, FileSystem, Fork, ForkServer = range(4)


class OutputMode(enum.IntEnum):
    """Which of the micro-batches' results a call returns; Default is Final for training and All for inference."""

    Final, EveryN, All, Sum, Default = range(5)


class ConnectionType(enum.IntEnum):
    """When a device is attached: at once, for the first run, or never (compilation only)."""

    Always, OnDemand, Never = range(3)


class HalfFloatCastingBehavior(enum.IntEnum):
    """What an operation on half and float gave when models were traced; HalfUpcastToFloat is all that is left."""

    FloatDowncastToHalf, HalfUpcastToFloat, Default = range(3)


class ReductionType(enum.IntEnum):
    """How values of several micro-batches or replicas become one."""

    Sum, Mean, NoReduction = range(3)


class SyncPattern(enum.IntEnum):
    """Which IPUs wait for each other when one talks to the host."""

    Full, SinglePipeline, ReplicaAndLadder = range(3)


class MatMulSerializationMode(enum.Enum):
    """Along which dimension a matrix product is done in pieces."""

    InputChannels = "input_channels"
    ReducingDim = "reducing_dim"
    OutputChannels = "output_channels"
    Disabled = "none"


class Liveness(enum.IntEnum):
    """When phased execution sends tensors off the chip."""

    AlwaysLive, OffChipAfterFwd, OffChipAfterFwdNoOverlap, OffChipAfterEachPhase = range(4)


class OverlapMode(enum.Enum):
    """Whether the next input is copied while the last one is computed."""

    NoOverlap = "no_overlap"
    OverlapAccumulationLoop = "overlap_accumulation_loop"
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"


class AutoStage(enum.IntEnum):
    """Which stage a block gets when the execution strategy names none: its IPU's number, or the next one."""

    SameAsIpu, AutoIncrement = range(2)


class MultiConvPlanType(enum.IntEnum):
    """Whether the convolutions of a MultiConv run side by side."""

    Parallel, Serial = range(2)


class CommGroupType(enum.IntEnum):
    """How replicas are put together into groups that share a value."""

    All, Consecutive, Orthogonal, NoGrouping = range(4)


class VariableRetrievalMode(enum.IntEnum):
    """Whether reading a grouped variable gives one value a group or one a replica."""

    OnePerGroup = 0
    AllReplicas = 2
