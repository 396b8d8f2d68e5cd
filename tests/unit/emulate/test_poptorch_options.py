"""poptorch.Options: values, refusals, freezing, copies, files and the environment."""

import copy
import json
import pickle

import pytest
import torch

from portwright.emulate import poptorch
from portwright.emulate.poptorch import Error, options, poptorch_core
from portwright.emulate.poptorch.enums import CommGroupType, ConnectionType, OutputMode, ReductionType


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
    opts.Precision.setPartialsType(torch.half)
    assert opts._Popart.options["partialsTypeMatMuls"] == "half"
    opts.setAvailableMemoryProportion({"IPU0": 0.3, "IPU11": 0.1})
    assert opts.available_memory_proportion == {0: 0.3, 11: 0.1}
    opts.inputReplicaGrouping(2, CommGroupType.Orthogonal)
    assert (opts.input_group_size, opts.input_cgt) == (2, CommGroupType.Orthogonal)
    opts.maxRepeatLogs(None)
    assert opts.max_repeat_logs == 2**64 - 1
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
        lambda o: o.logDir(3),
        lambda o: o.modelName(3),
        lambda o: o.useIpuModel(1),
        lambda o: o.useIpuId(-1),
        lambda o: o.useIpuId("0"),
        lambda o: o.connectionType(2),
        lambda o: o.syncPattern(0),
        lambda o: o.outputMode("All"),
        lambda o: o.outputMode(OutputMode.EveryN),
        lambda o: o.outputMode(OutputMode.EveryN, 0),
        lambda o: o.outputMode(OutputMode.EveryN, "2"),
        lambda o: o.anchorTensor("a", "b", OutputMode.EveryN, 0),
        lambda o: o.randomSeed(1.5),
        lambda o: o.setExecutionStrategy("pipelined"),
        lambda o: o.setExecutionStrategy(poptorch.PipelinedExecution),
        lambda o: o.setAvailableMemoryProportion({"0": 0.1}),
        lambda o: o.setAvailableMemoryProportion({"IPUx": 0.1}),
        lambda o: o.setAvailableMemoryProportion({0: 0.1}),
        lambda o: o.Precision.enableFloatingPointExceptions("yes"),
        lambda o: o.Precision.enableStochasticRounding(None),
        lambda o: o.Training.setMeanAccumulationAndReplicationReductionStrategy(1),
        lambda o: o.TensorLocations.numIOTiles(33),
        lambda o: o.TensorLocations.numIOTiles(30),
        lambda o: o.TensorLocations.numIOTiles(194),
        lambda o: o.TensorLocations.setWeightLocation(None),
        lambda o: poptorch.TensorLocationSettings().useOnChipStorage("no"),
        lambda o: o.set(device_iteration=3),
        lambda o: setattr(o, "deviceIterations", 3),
        lambda o: o._Popart.setPatterns([], 1),
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
        lambda o: o.Precision.setPartialsType(torch.bfloat16),
        lambda o: o.Precision.setPartialsType("half"),
        lambda o: o.Precision.runningStatisticsAlwaysFloat(1),
        lambda o: o.Training.accumulationAndReplicationReductionType(ReductionType.NoReduction),
        lambda o: o.Training.accumulationAndReplicationReductionType(1),
        lambda o: o.inputReplicaGrouping(2, CommGroupType.Consecutive),
        lambda o: o.replicationFactor(4).inputReplicaGrouping(3, CommGroupType.Consecutive),
        lambda o: o.replicationFactor(4).inputReplicaGrouping(0, CommGroupType.Consecutive),
        lambda o: o.replicationFactor(4).inputReplicaGrouping(2, CommGroupType.All),
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
        lambda o: o.useIpuId(0).useOfflineIpuTarget(),
        lambda o: o.useOfflineIpuTarget().useIpuId(0),
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
        lambda o: o.Precision.setPartialsType(torch.half),
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
    copied.Precision.setPartialsType(torch.half)  # writes through to the copy's own PopART settings
    assert copied._Popart.options["partialsTypeMatMuls"] == "half"
    assert "partialsTypeMatMuls" not in opts._Popart.options
    opts._unfreeze()
    opts.deviceIterations(3)
    assert copied.device_iterations == 1
    assert pickle.loads(pickle.dumps(opts)).device_iterations == 3


def test_settings_of_popart_are_checked_when_a_model_gets_the_options():
    opts = poptorch.Options().outputMode(OutputMode.All)
    opts._Popart.set("autoRecomputaton", 3)
    with pytest.raises(Error, match="Near it: autoRecomputation"):
        opts._freeze()
    with pytest.raises(Error, match="autoRecomputaton"):
        poptorch_core._validateOptions(opts.toDict())
    for key, value in (("enableOutlining", 1), ("dotChecks", torch.empty(1)), ("autoRecomputation", True)):
        opts = poptorch.Options()
        opts._Popart.set(key, value)
        with pytest.raises(Error, match=f"'{key}' takes"):
            opts._freeze()
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
    opts.setExecutionStrategy(poptorch.SerialPhasedExecution(poptorch.Phase("a"), ["b"]))
    opts.enableExecutableCaching("/nowhere").logCycleCount(True).enableProfiling(
        "here"
    ).updatableNamedBuffers(["b"])
    opts._Popart.setPatterns({"Fuse": True}, 1)
    poptorch_core._validateOptions(opts.toDict())
    merged = opts.toDict()
    assert merged["execution_mode"] == 2
    assert merged["cachePath"] == "/nowhere"
    assert merged["gradient_accumulation"] == 1


def test_floating_point_exceptions_are_recorded():
    for enabled in (True, False):
        opts = poptorch.Options()
        opts.Precision.enableFloatingPointExceptions(enabled)
        assert opts._Popart.options["enableFloatingPointChecks"] is enabled


def test_what_is_taken_without_effect_says_so_in_the_log(caplog):
    with caplog.at_level("WARNING", "poptorch"):
        opts = poptorch.Options().enableSyntheticData(True).enableProfiling()
        opts.Precision.enableStochasticRounding(True)
        opts.Jit.traceModel(False)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 4
    assert opts._Popart.options["syntheticDataMode"] == 2


def test_repr_says_the_values():
    text = repr(poptorch.Options().replicationFactor(4))
    assert text.startswith("Options(")
    assert "replication_factor=4" in text
    assert "gradient_accumulation=1" in text


def test_json_calls_methods(monkeypatch):
    calls = {
        "outputMode": ["OutputMode.EveryN", 2],
        "Training.gradientAccumulation": 4,
        "_Popart.set": ["autoRecomputation", 3],
        "setAvailableMemoryProportion": {"IPU0": 0.2},
    }
    opts = poptorch.Options().from_json(json.dumps(calls))
    assert opts.output_mode == OutputMode.EveryN
    assert opts.Training.gradient_accumulation == 4
    assert opts._Popart.options["autoRecomputation"] == 3
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", '{"deviceIterations": 5}')
    assert poptorch.Options().device_iterations == 5
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", "{deviceIterations")
    with pytest.raises(ValueError, match="POPTORCH_DEFAULT_OPTIONS"):
        poptorch.Options()


@pytest.mark.parametrize(
    "text", ['{"nothing": 1}', '{"__class__": 1}', '{"_freeze": []}', '{"Training.x": 1}']
)
def test_json_of_unknown_options(text):
    with pytest.raises(AttributeError):
        poptorch.Options().from_json(text)


def test_json_must_be_an_object():
    with pytest.raises(ValueError, match="object"):
        poptorch.Options().from_json("[1]")


def test_the_environment_names_a_cache_and_the_process(monkeypatch):
    monkeypatch.setenv("POPTORCH_CACHE_DIR", "/some/where")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    opts = poptorch.Options()
    assert opts._Popart.options["cachePath"] == "/some/where"
    assert opts._Popart.options["enableEngineCaching"] is True
    assert (opts.Distributed.processId, opts.Distributed.numProcesses) == (3, 4)
    assert opts.Distributed.disable().numProcesses == 1
    opts.enableExecutableCaching(None)
    assert opts._Popart.options["enableEngineCaching"] is False
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "four")
    with pytest.raises(ValueError, match="'four'"):
        poptorch.Options()
    with pytest.raises(Error, match="4 of 4"):
        opts.Distributed.configureProcessId(4, 4)


FILE = """deviceIterations(2)
# a comment
  replicationFactor(3)

outputMode(poptorch.OutputMode.EveryN, output_return_period=2)  # behind a call
setExecutionStrategy(poptorch.ShardedExecution(poptorch.Stage("a").ipu(1), ["b", "c"]))
setAvailableMemoryProportion({"IPU0": 0.25})
Training.gradientAccumulation(4)
_Popart.set("autoRecomputation", 3)
"""


def test_options_from_a_file(tmp_path):
    path = tmp_path / "é.conf"
    path.write_text(FILE)
    opts = poptorch.Options().loadFromFile(str(path))
    assert (opts.device_iterations, opts.replication_factor, opts.Training.gradient_accumulation) == (2, 3, 4)
    assert opts.output_return_period == 2
    assert isinstance(opts._execution_strategy, poptorch.ShardedExecution)
    assert opts._execution_strategy.stage("a")._ipu == 1
    assert opts._execution_strategy.stage("b") is opts._execution_strategy.stage("c")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("outputMode(poptorch.OutputMode.All", "SyntaxError at line 3 of o.conf"),
        ("deviceIterations", "not a call"),
        ("deviceIterations = 4", "SyntaxError"),
        ("deviceIterations(open('x'))", "'open' is not known"),
        ("__class__('x')", "__class__"),
        ("deviceIterations(poptorch.options.os.getpid())", "'os' is not understood"),
        ("deviceIterations(*[4])", "not understood"),
        ("deviceIterations(1 if True else 2)", "not understood"),
        ("setAvailableMemoryProportion(**{})", "not understood"),
        ("setAvailableMemoryProportion({**{}})", "not understood"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path, line, why):
    (tmp_path / "o.conf").write_text(f"\ndeviceIterations(1)\n{line}\n")
    with pytest.raises(options.ConfigFileError) as caught:
        poptorch.Options().loadFromFile(str(tmp_path / "o.conf"))
    assert why in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        poptorch.Options().loadFromFile(str(tmp_path / "nothing"))


def test_attributes_nest():
    with poptorch.Attribute(a={"x": 1}):
        with poptorch.Attribute(a={"y": 2}, b={}):
            assert poptorch.Attribute._current_attrs == {"a": {"x": 1, "y": 2}, "b": {}}
        assert poptorch.Attribute._current_attrs == {"a": {"x": 1}}
    assert poptorch.Attribute._current_attrs == {}
