"""poptorch.Options: values, refusals, freezing, copies, files and the environment."""

import copy
import pickle

import pytest
import torch

from portwright.emulate import poptorch
from portwright.emulate.poptorch import Error
from portwright.emulate.poptorch.enums import ConnectionType, OutputMode, ReductionType


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    for name in ("POPTORCH_CACHE_DIR", "POPTORCH_DEFAULT_OPTIONS", "POPTORCH_IPU_MODEL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)


def test_defaults_are_the_vendors():
    opts = poptorch.Options()
    assert (opts.device_iterations, opts.replication_factor, opts.Training.gradient_accumulation) == (1, 1, 1)
    assert opts.defaultOutputMode()
    assert opts.output_return_period == 1
    assert opts.Training.accumulation_and_replication_reduction_type is ReductionType.Mean
    assert opts.connection_type == ConnectionType.Always
    assert opts.broadcast_buffers is True
    assert isinstance(opts._execution_strategy, poptorch.PipelinedExecution)
    assert (opts.Distributed.processId, opts.Distributed.numProcesses) == (0, 1)


def test_setters_return_the_options_and_set_what_the_executor_reads():
    opts = poptorch.Options()
    assert opts.deviceIterations(4).replicationFactor(2).outputMode(OutputMode.EveryN, 3) is opts
    assert (opts.device_iterations, opts.replication_factor) == (4, 2)
    assert (opts.output_mode, opts.output_return_period) == (OutputMode.EveryN, 3)
    assert opts.Training.gradientAccumulation(8) is opts.Training
    assert opts("device_iterations") == 4
    opts.anchorTensor("a", "long/name")
    assert opts.anchored_tensors == {"a": ["long/name", True, None, 1]}


def test_random_seed_seeds_the_host_too():
    poptorch.Options().randomSeed(7)
    first = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(first, torch.rand(3))


@pytest.mark.parametrize("count", [0, -1])
@pytest.mark.parametrize("setter", ["deviceIterations", "replicationFactor", "Training.gradientAccumulation"])
def test_counts_start_at_one(setter, count):
    opts = poptorch.Options()
    part = opts.Training if "." in setter else opts
    with pytest.raises(Error, match=rf"takes a number from 1, not {count}"):
        getattr(part, setter.rpartition(".")[2])(count)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda o: o.deviceIterations("4"),
        lambda o: o.deviceIterations(2.0),
        lambda o: o.deviceIterations(None),
        lambda o: o.broadcastBuffers(1),
        lambda o: o.useIpuModel(1),
        lambda o: o.connectionType(2),
        lambda o: o.outputMode("All"),
        lambda o: o.outputMode(OutputMode.EveryN),
        lambda o: o.outputMode(OutputMode.EveryN, 0),
        lambda o: o.outputMode(OutputMode.EveryN, "2"),
        lambda o: o.anchorTensor("a", "b", OutputMode.EveryN, 0),
        lambda o: o.randomSeed(1.5),
        lambda o: o.setExecutionStrategy("pipelined"),
        lambda o: o.setExecutionStrategy(poptorch.PipelinedExecution),
        lambda o: o.Precision.enableFloatingPointExceptions("yes"),
        lambda o: o.Training.setMeanAccumulationAndReplicationReductionStrategy(1),
        lambda o: o.TensorLocations.numIOTiles(33),
        lambda o: o.TensorLocations.numIOTiles(30),
        lambda o: o.TensorLocations.numIOTiles(194),
        lambda o: o.TensorLocations.setWeightLocation(None),
        lambda o: poptorch.TensorLocationSettings().useOnChipStorage("no"),
        lambda o: o.set(device_iteration=3),
        lambda o: setattr(o, "deviceIterations", 3),
        lambda o: o.toDict(),  # no output mode yet
    ],
)
def test_wrong_values_fail_as_the_real_ones_assertions(wrong):
    with pytest.raises(AssertionError) as caught:
        wrong(poptorch.Options())
    assert isinstance(caught.value, Error)
    assert caught.value.message


@pytest.mark.parametrize(
    "wrong",
    [
        lambda o: o.Jit.traceModel(True),
        lambda o: o.Training.accumulationAndReplicationReductionType(ReductionType.NoReduction),
        lambda o: o.Training.accumulationAndReplicationReductionType(1),
    ],
)
def test_wrong_values_that_the_real_one_answers_with_a_value_error(wrong):
    with pytest.raises(ValueError):
        wrong(poptorch.Options())


@pytest.mark.parametrize(
    "both",
    [
        lambda o: o.useIpuModel(True).useOfflineIpuTarget(),
        lambda o: o.useOfflineIpuTarget().useIpuModel(True),
        lambda o: o.useIpuModel(True).connectionType(ConnectionType.Never),
        lambda o: o.useOfflineIpuTarget(3),
    ],
)
def test_an_offline_target_excludes_what_needs_a_device(both):
    with pytest.raises(Error, match=r"offline target|takes 1, 2 or 21"):
        both(poptorch.Options())


def test_the_environment_can_ask_for_the_ipu_model(monkeypatch):
    monkeypatch.setenv("POPTORCH_IPU_MODEL", "1")
    with pytest.raises(Error, match="POPTORCH_IPU_MODEL"):
        poptorch.Options().useOfflineIpuTarget()
    poptorch.Options().useIpuModel(False).useOfflineIpuTarget()  # what is said in the program goes first
    monkeypatch.setenv("POPTORCH_IPU_MODEL", "yes")
    with pytest.raises(Error, match="'yes'"):
        poptorch.Options().useOfflineIpuTarget()


def test_unknown_names_say_the_nearest():
    opts = poptorch.Options()
    with pytest.raises(AttributeError, match="Did you mean 'deviceIterations'"):
        opts.deviceIteration(4)
    with pytest.raises(AssertionError, match="It is a method"):
        opts.deviceIterations = 4
    with pytest.raises(AttributeError, match="_nothing"):
        opts._nothing = 1
    assert not hasattr(opts, "nothing")


def _frozen():
    opts = poptorch.Options().outputMode(OutputMode.All)
    opts._freeze()
    return opts


@pytest.mark.parametrize(
    "change",
    [
        lambda o: o.deviceIterations(2),
        lambda o: o.randomSeed(2),
        lambda o: o.set(replication_factor=2),
        lambda o: o.createOrSet(new=2),
        lambda o: o.deleteIfExists("device_iterations"),
        lambda o: setattr(o, "device_iterations", 2),
        lambda o: o.setExecutionStrategy(poptorch.ShardedExecution()),
        lambda o: o.relaxOptimizerAttributesChecks(),
        lambda o: o.anchorTensor("a", "b"),
        lambda o: o.Training.gradientAccumulation(2),
        lambda o: o.Distributed.configureProcessId(0, 2),
        lambda o: o.TensorLocations.numIOTiles(32),
        lambda o: o._Popart.set("autoRecomputation", 3),
    ],
)
def test_frozen_options_stay_as_they_are(change):
    opts = _frozen()
    before = repr(opts)
    with pytest.raises(AttributeError, match="clone"):
        change(opts)
    assert repr(opts) == before
    for copied in (opts.clone(), copy.deepcopy(opts)):
        if change(copied) is not None:
            assert repr(copied) != before or copied._execution_strategy is not opts._execution_strategy


def test_a_copy_is_apart_and_holds_together():
    opts = _frozen()
    copied = opts.clone()
    copied.Training.setAutomaticLossScaling(True)  # writes through to the copy's own PopART settings
    assert copied._Popart.options["automaticLossScalingSettings.enabled"] is True
    assert "automaticLossScalingSettings.enabled" not in opts._Popart.options
    opts._unfreeze()
    opts.deviceIterations(3)
    assert copied.device_iterations == 1
    assert pickle.loads(pickle.dumps(opts)).device_iterations == 3


def test_settings_of_popart_are_checked_when_a_model_gets_the_options():
    opts = poptorch.Options()
    opts._Popart.set("accumulationFactor", 4)
    with pytest.raises(Error, match="not emulated"):
        opts._freeze()


def test_every_plain_set_of_options_is_valid():
    opts = poptorch.Options().outputMode(OutputMode.Sum).useOfflineIpuTarget(21).modelName("m").randomSeed(0)
    opts.Precision.setPartialsType(torch.float).enableStochasticRounding(True)
    opts.TensorLocations.setActivationLocation(
        poptorch.TensorLocationSettings().useOnChipStorage(False)
    ).numIOTiles(64)
    opts.setExecutionStrategy(poptorch.ShardedExecution("a", ["b"]))
    opts.enableExecutableCaching("/nowhere").logCycleCount(True).enableProfiling(
        "here"
    ).updatableNamedBuffers(["b"])
    opts._Popart.setPatterns({"Fuse": True}, 1)
    merged = opts.toDict()
    assert merged["execution_mode"] == 1
    assert merged["gradient_accumulation"] == 1


def test_what_is_taken_without_effect_says_so_in_the_log(caplog):
    with caplog.at_level("WARNING", "poptorch"):
        opts = poptorch.Options().enableSyntheticData(True).enableProfiling()
        assert opts.Precision.enableStochasticRounding(True).setPartialsType(torch.half) is opts.Precision
        opts.Jit.traceModel(False)
        opts.enableSyntheticData(False).useIpuId(3).enableExecutableCaching("/nowhere")
        opts.Precision.enableStochasticRounding(False).enableFloatingPointExceptions(False)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 5
    with pytest.raises(Error, match="isfinite"):
        opts.Precision.enableFloatingPointExceptions(True)


def test_repr_says_the_values():
    text = repr(poptorch.Options().replicationFactor(4))
    assert text.startswith("Options(")
    assert "replication_factor=4" in text
    assert "gradient_accumulation=1" in text


def test_options_in_json_are_refused(monkeypatch):
    with pytest.raises(Error, match=r"Options\.from_json is not emulated"):
        poptorch.Options().from_json("{}")
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", '{"deviceIterations": 5}')
    with pytest.raises(Error, match=r"POPTORCH_DEFAULT_OPTIONS is not emulated.*methods"):
        poptorch.Options()


def test_the_environment_names_the_process(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    opts = poptorch.Options()
    assert (opts.Distributed.processId, opts.Distributed.numProcesses) == (3, 4)
    assert opts.Distributed.disable().numProcesses == 1
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "four")
    with pytest.raises(ValueError, match="'four'"):
        poptorch.Options()
    with pytest.raises(Error, match="4 of 4"):
        opts.Distributed.configureProcessId(4, 4)
