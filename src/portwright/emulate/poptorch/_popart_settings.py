"""The settings that PopART knows by name, with the kind of value each takes (SessionOptions of PopTorch 3.4)."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from portwright.emulate.poptorch._impl import createPoptorchError
from portwright.emulate.poptorch._logging import logger

_BOOLS = """aliasZeroCopy automaticLossScalingSettings.enabled auto_round_num_ipus broadcast_buffers compileEngine
batchSerializationSettings.concatOnExecutionPhaseChange batchSerializationSettings.concatOnPipelineStageChange
batchSerializationSettings.concatOnVirtualGraphChange constantWeights decomposeGradSum delayVarUpdates
disableGradAccumulationTensorStreams disableOptimizerStateTensorStreams dotOpNames enableDistributedReplicatedGraphs
enableEngineCaching enableExplicitIR enableExplicitMainLoops enableFloatingPointChecks enableFullyConnectedPass
enableGradientAccumulation enableInplaceAmbiguityChecking enableLoadAndOffloadRNGState enableMergeExchange
enableNonStableSoftmax enableOutlining enableOutliningCopyCostPruning enablePipelining enablePrefetchDatastreams
enableReplicatedGraphs enableSerializedMatmuls enableStableNorm enableStochasticRounding enableSupportedDataTypeCasting
ensureFp32LossScaleTensor explicitRecomputation exportPoplarComputationGraph exportPoplarVertexGraph groupHostSync
groupNormStridedChannelGrouping instrumentWithHardwareCycleCounter opxAliasChecking opxModifyChecking
rearrangeAnchorsOnHost rearrangeStreamsOnHost replicatedCollectivesSettings.mergeAllReduceCollectives
replicatedCollectivesSettings.prepareScheduleForMergingCollectives scheduleNonWeightUpdateGradientConsumersEarly
separateCallOpPdfs separate_backward_phase serial_phases_execution strictOpVersions useHostCopyOps use_model"""

_INTEGERS = """accumulateOuterFragmentSettings.schedule accumulationAndReplicationReductionType accumulationFactor
accumulation_and_replication_reduction_type autoRecomputation autodiffSettings.stitchStrategy
automaticLossScalingSettings.gradientTensorTrackingMethod automaticLossScalingSettings.updatePeriod
batchSerializationSettings.batchSchedule batchSerializationSettings.factor batchSerializationSettings.method
batchSerializationSettings.transformContext compilationProgressTotal connection_type defaultBufferingDepth
defaultPrefetchBufferingDepth device_iterations distributed_process_id execution_mode executionPhaseSettings.phases
executionPhaseSettings.stages finalDotOp firstDotOp globalReplicaOffset globalReplicationFactor gradient_accumulation
input_cgt input_group_size ipu_id ipu_version looseThresholdAtPeak max_repeat_logs
meanAccumulationAndReplicationReductionStrategy mergeVarUpdate mergeVarUpdateMemThreshold numIOTiles
num_distributed_processes output_mode output_return_period patterns_level random_seed replication_factor
subgraphCopyingStrategy swapLimitScheduler sync_pattern syntheticDataMode tensors_liveness
transitiveClosureOptimizationThreshold virtualGraphMode"""

_FLOATS = """automaticLossScalingSettings.binEdgeLocation automaticLossScalingSettings.thresholdUpperCountProportion
outlineSequenceBreakCost outlineThreshold timeLimitScheduler"""

_STRINGS = """cachePath customCodeletCompileFlags kahnTieBreaker logDir log_dir model_name partialsTypeMatMuls
saveInitializersToFile serializedPoprithmsShiftGraphsDir"""

_CONTAINERS = """accumulateOuterFragmentSettings.excludedVirtualGraphs anchored_tensors available_memory_proportion
convolutionOptions customCodelets dotChecks engineOptions gclOptions hardwareInstrumentations ipuof_configs
location_accumulator location_activation location_optimizer location_weight lstmOptions matmulOptions patterns
reportOptions updatableNamedBuffers"""

_KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    **dict.fromkeys(_BOOLS.split(), ("a bool", (bool,))),
    **dict.fromkeys(_INTEGERS.split(), ("an int", (int,))),
    **dict.fromkeys(_FLOATS.split(), ("a float", (float,))),
    **dict.fromkeys(_STRINGS.split(), ("a str", (str,))),
    **dict.fromkeys(_CONTAINERS.split(), ("a list, tuple, set or dict", (list, tuple, set, dict))),
}

_REFUSED = {  # they would change what is computed behind the back of the options that decide it here
    "accumulationFactor": "use Options.Training.gradientAccumulation().",
    "enableGradientAccumulation": "use Options.Training.gradientAccumulation().",
    "accumulationAndReplicationReductionType": "use Options.Training.accumulationAndReplicationReductionType().",
    "enableReplicatedGraphs": "use Options.replicationFactor().",
    "enableDistributedReplicatedGraphs": "use Options.replicationFactor() in one process.",
    "globalReplicationFactor": "use Options.replicationFactor().",
    "globalReplicaOffset": "use Options.replicationFactor() in one process.",
    "delayVarUpdates": "updates are applied once the gradients are complete.",
}

_OTHER_RESULTS = {  # speed is what they are set for, and the results of the real one differ a little
    "groupNormStridedChannelGrouping": (
        "GroupNorm has torch's groups here; on an IPU every n-th channel is of the same group, so that weights trained there do "
        "not fit elsewhere."
    ),
}


def check(settings: Mapping[str, Any]) -> None:
    """Refuses a setting that PopART does not know, that has the wrong kind of value, or that is not emulated."""
    for name, value in settings.items():
        if name == "compilation_progress_bar_fn":
            continue
        if name not in _KINDS:
            near = difflib.get_close_matches(name, _KINDS, n=4, cutoff=0.5)
            known = (
                f"Near it: {', '.join(near)}."
                if near
                else f"It has {len(_KINDS)}, such as autoRecomputation."
            )
            raise createPoptorchError(f"PopART has no setting '{name}'. {known}")
        kind, types = _KINDS[name]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise createPoptorchError(f"PopART's setting '{name}' takes {kind}, not {value!r}.")
        if name in _OTHER_RESULTS and value:
            logger.warning("PopART's setting '%s' is not emulated: %s", name, _OTHER_RESULTS[name])
        if name in _REFUSED:
            raise createPoptorchError(
                f"PopART's setting '{name}' is not emulated by Portwright: {_REFUSED[name]}"
            )
