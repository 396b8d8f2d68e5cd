"""Blocks, stages, IPUs and their memory: each rule of the user guide's chapter on execution strategies, broken on purpose.

| rule (section of the user guide, or source) | test |
| --- | --- |
| every op is in a block (Model partitioning) | test_an_op_behind_a_block, test_a_block_inside_of_another_ends_both |
| AutoStage.SameAsIpu needs each block's IPU (PipelinedExecution) | test_same_as_ipu_needs_the_ipu |
| a block must be in the strategy (PipelinedExecution) | test_an_unknown_block |
| a block is in one stage | test_a_block_in_two_stages |
| a module begins one block (BeginBlock) | test_begin_block_twice |
| stages go up in the order of the model (poptorch.AutoStage) | test_stages_go_up |
| a stage is on one IPU (poptorch.Stage) | test_a_stage_on_two_ipus |
| inference: deviceIterations >= stages (Pipelined execution) | test_inference_fills_the_pipeline |
| training: gradientAccumulation >= 2 stages - 1 (Pipelined execution) | test_training_fills_the_pipeline |
| IPUs in powers of two, unless rounded (Multi-IPU execution) | test_powers_of_two |
| at most 64 IPUs a process (CompilerImpl.cpp) | test_too_many_ipus |
| layers that share weights are on one IPU (Sharded execution) | test_shared_weights |
| each IPU holds its part (Tensor locations) | test_out_of_memory_names_the_stage and below |
"""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from portwright.emulate import poptorch
from portwright.emulate.poptorch import _memory, _placement, _rules
from portwright.emulate.poptorch._recorder import Recorder

HERE = __file__.rpartition("/")[2]


class Blocks(nn.Module):
    """Layers in blocks, each on the IPU that is given."""

    def __init__(self, ipus: Any, width: int = 4, named: bool = False, start: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in ipus])
        self.ipus, self.named, self.start = ipus, named, start

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
        poptorch.Block.useAutoId()
        for number, (layer, ipu) in enumerate(zip(self.layers, self.ipus, strict=True)):
            name = f"block{number}" if self.named else None
            is_last = number == len(self.ipus) - 1
            if self.start:
                poptorch.Block.start(name, ipu)
                x = layer(x)
                loss = F.mse_loss(x, y) if is_last and y is not None else None
            else:
                with poptorch.Block(name, ipu_id=ipu):
                    x = layer(x)
                    loss = F.mse_loss(x, y) if is_last and y is not None else None
        return x if loss is None else (x, loss)


def options(
    iterations: int = 1, accumulation: int = 1, strategy: Any = None, rounds: bool = False, replicas: int = 1
) -> Any:
    made = (
        poptorch.Options().deviceIterations(iterations).replicationFactor(replicas).autoRoundNumIPUs(rounds)
    )
    made.Training.gradientAccumulation(accumulation)
    if strategy is not None:
        made.setExecutionStrategy(strategy)
    return made


def infer(model: nn.Module, given: Any, width: int = 4) -> Any:
    size = 2 * given.device_iterations * given.replication_factor
    return poptorch.inferenceModel(model, given)(torch.randn(size, width))


def train(model: nn.Module, given: Any, width: int = 4, optimizer: Any = None) -> Any:
    size = 2 * given.device_iterations * given.replication_factor * given.Training.gradient_accumulation
    return poptorch.trainingModel(model, given, optimizer)(torch.randn(size, width), torch.randn(size, width))


def place(model: nn.Module, given: Any, *inputs: torch.Tensor) -> Any:
    with _rules.watching(given, training=False) as watch, Recorder(watch):
        model(*inputs)
    return watch.placement


@pytest.mark.parametrize("start", [False, True])
def test_blocks_become_stages(start: bool) -> None:
    placement = place(Blocks([0, 1], start=start), options(2), torch.randn(2, 4))
    assert [(tag.block, tag.stage, tag.ipu) for tag in placement.tags] == [("0", 0, 0), ("1", 1, 1)]
    assert placement.num_ipus == 2
    assert placement.is_pipelined


def test_begin_block_lasts_until_the_next() -> None:
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])
    poptorch.BeginBlock(model[1], "second", ipu_id=1)
    poptorch.BeginBlock(model[3], "last", ipu_id=2)
    placement = place(model, options(3, rounds=True), torch.randn(2, 4))
    assert [(tag.block, tag.ipu) for tag in placement.tags] == [("", 0), ("second", 1), ("last", 2)]
    poptorch.removeBlocks(model)
    assert place(model, options(), torch.randn(2, 4)).num_ipus == 1


def test_begin_block_gives_the_module_itself_and_survives_a_copy() -> None:
    layer = nn.Linear(4, 4)
    names = [name for name, _ in layer.named_parameters()]
    assert poptorch.BeginBlock(layer, ipu_id=1) is layer
    assert [name for name, _ in layer.named_parameters()] == names
    hooks = copy.deepcopy(layer)._forward_pre_hooks.values()
    assert [repr(hook) for hook in hooks] == ["BeginBlock(user_id=None, ipu_id=1)"]
    assert layer(torch.ones(1, 4)).shape == (1, 4)


def test_block_function_and_legacy_functions() -> None:
    class Model(nn.Module):
        @poptorch.BlockFunction("first", ipu_id=0)
        def double(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        def forward(self, x: torch.Tensor) -> Any:
            triple = poptorch.BeginBlock(lambda t: t * 3, "second", 1)  # type: ignore[arg-type]
            return triple(self.double(x))

    x = torch.randn(2, 4)
    torch.testing.assert_close(poptorch.inferenceModel(Model(), options(2))(x), x * 6)
    placement = place(Model(), options(2), x)
    assert [(tag.block, tag.ipu) for tag in placement.tags] == [("first", 0), ("second", 1)]


def test_begin_block_twice() -> None:
    layer = poptorch.BeginBlock(nn.Linear(4, 4), ipu_id=0)
    with pytest.raises(poptorch.Error, match="a block begins with this"):
        poptorch.BeginBlock(layer, ipu_id=1)
    poptorch.removeBlocks(layer)
    poptorch.BeginBlock(layer, ipu_id=1)
    with pytest.raises(poptorch.Error, match="int"):
        poptorch.BeginBlock(3)  # type: ignore[arg-type]


def test_outside_of_a_model_blocks_do_nothing() -> None:
    x = torch.randn(2, 4)
    model = Blocks([0, 1])
    torch.testing.assert_close(model(x), model.layers[1](model.layers[0](x)))


class Behind(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with poptorch.Block("first", ipu_id=0):
            x = x * 4
        return x * 4


def test_an_op_behind_a_block() -> None:
    with pytest.raises(poptorch.Error, match="in no block") as caught:
        infer(Behind(), options(2))
    assert f"{HERE}:{Behind.forward.__code__.co_firstlineno + 3}" in str(caught.value)


def test_a_block_inside_of_another_ends_both() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with poptorch.Block("outer", ipu_id=0):
                with poptorch.Block("inner", ipu_id=1):
                    x = x * 4
                return x * 4

    with pytest.raises(poptorch.Error, match=r"nested in block .outer."):
        infer(Model(), options(2))


def test_same_as_ipu_needs_the_ipu() -> None:
    with pytest.raises(poptorch.Error, match=r"(?i)sameasipu"):
        infer(Blocks([0, None]), options(2))
    increment = poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement)
    placement = place(Blocks([0, 1, 0]), options(4, strategy=increment), torch.randn(2, 4))
    assert [tag.stage for tag in placement.tags] == [1, 2, 3]
    assert placement.num_pipeline_stages == 3
    assert placement.num_ipus == 2


def test_an_unknown_block() -> None:
    with pytest.raises(poptorch.Error, match="block1"):
        infer(Blocks([0, 1], named=True), options(2, strategy=poptorch.PipelinedExecution("block0", "other")))


def test_a_block_in_two_stages() -> None:
    with pytest.raises(poptorch.Error, match="more than one stage"):
        poptorch.PipelinedExecution(poptorch.Stage("a", "b"), poptorch.Stage("a"))


@pytest.mark.parametrize("wrong", [-1, "one", 1.5, True])
def test_an_ipu_is_a_number(wrong: Any) -> None:
    with pytest.raises(poptorch.Error, match="ipu_id"):
        infer(Blocks([wrong]), options(2))


def test_user_ids_and_stages_choose_the_ipu() -> None:
    strategy = poptorch.PipelinedExecution(
        poptorch.Stage("block0", "block1"), poptorch.Stage("block2").ipu(3)
    )
    placement = place(
        Blocks([None] * 3, named=True), options(2, strategy=strategy, rounds=True), torch.randn(2, 4)
    )
    assert [(tag.stage, tag.ipu) for tag in placement.tags] == [(0, 0), (0, 0), (1, 3)]
    assert placement.num_ipus == 4  # IPUs are counted up to the highest


def test_stages_go_up() -> None:
    with pytest.raises(poptorch.Error, match="comes before it in the pipeline") as caught:
        infer(Blocks([0, 1, 0]), options(4))
    assert "AutoIncrement" in str(caught.value)


def test_a_stage_on_two_ipus() -> None:
    strategy = poptorch.PipelinedExecution(poptorch.Stage("block0", "block1"))
    with pytest.raises(poptorch.Error, match="stage 0 is on two IPUs"):
        infer(Blocks([0, 1], named=True), options(4, strategy=strategy))


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_inference_fills_the_pipeline(stages: int) -> None:
    model = Blocks(range(stages))
    infer(model, options(stages))
    if stages > 1:
        with pytest.raises(poptorch.Error, match=rf"deviceIterations\({stages}\)"):
            infer(model, options(stages - 1))


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_training_fills_the_pipeline(stages: int) -> None:
    needed = 2 * stages - 1
    train(Blocks(range(stages)), options(accumulation=needed))
    if stages > 1:
        with pytest.raises(poptorch.Error, match=rf"gradientAccumulation\({needed}\)"):
            train(Blocks(range(stages)), options(iterations=8, accumulation=needed - 1))


def test_sharded_execution_needs_no_batches() -> None:
    x = torch.randn(2, 4)
    model = Blocks(range(4))
    expected = model(x)
    placement = place(model, options(strategy=poptorch.ShardedExecution()), x)
    assert placement.mode == _placement.SHARDED
    assert placement.num_ipus == 4
    result = poptorch.inferenceModel(model, options(strategy=poptorch.ShardedExecution()))(x)
    torch.testing.assert_close(result, expected)
    train(model, options(strategy=poptorch.ShardedExecution()))


def test_powers_of_two(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(poptorch.Error, match="needs 3 IPUs") as caught:
        infer(Blocks(range(3)), options(3))
    assert "4 here" in str(caught.value)
    assert "autoRoundNumIPUs(True)" in str(caught.value)
    infer(Blocks(range(3)), options(3, rounds=True))
    with pytest.raises(poptorch.Error, match="needs 6 IPUs"):
        infer(Blocks(range(2)), options(2, replicas=3))
    infer(Blocks(range(2)), options(2, replicas=2))


def test_offline_targets_are_not_rounded() -> None:
    given = options(3).useOfflineIpuTarget()
    assert place(Blocks(range(3)), given, torch.randn(2, 4)).num_ipus == 3


def test_too_many_ipus() -> None:
    with pytest.raises(poptorch.Error, match="needs 128 IPUs"):
        infer(Blocks(range(2)), options(2, replicas=64))


@pytest.mark.parametrize("strategy", [poptorch.PipelinedExecution, poptorch.ShardedExecution])
def test_shared_weights(strategy: Any) -> None:
    class Tied(nn.Module):
        def __init__(self, ipu: int) -> None:
            super().__init__()
            self.layer, self.ipu = nn.Linear(4, 4), ipu

        def forward(self, x: torch.Tensor) -> Any:
            with poptorch.Block("in", ipu_id=0):
                x = self.layer(x)
            with poptorch.Block("out", ipu_id=self.ipu):
                return self.layer(x)

    with pytest.raises(poptorch.Error, match=r"layer\.(weight|bias) is used on IPU 0") as caught:
        infer(Tied(1), options(2, strategy=strategy()))
    assert "IPU 1" in str(caught.value)
    infer(Tied(0), options(2, strategy=strategy()))


# Memory


def account(
    model: nn.Module, given: Any, batch: int = 2, width: int = 4, optimizer: Any = None, training: bool = True
) -> _memory.MemoryReport:
    x, y = torch.randn(batch, width), torch.randn(batch, width)
    with _rules.watching(given, training=training) as watch, Recorder(watch):
        result = model(x, y) if training else model(x)
        if training:
            watch.find_loss(result).backward()
    return _rules.check_memory(watch, given, optimizer)


def weight_bytes(width: int, item: int = 4) -> int:
    return (width * width + width) * item


@pytest.mark.parametrize(
    ("make", "slots"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), 0),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 1),
        (lambda p: torch.optim.AdamW(p), 2),
        (lambda p: torch.optim.RMSprop(p), 1),
        (lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True), 3),
    ],
)
def test_weights_gradients_and_optimizer_state(make: Any, slots: int) -> None:
    model = Blocks([0], width=64)
    (one,) = account(model, options(), width=64, optimizer=make(model.parameters())).ipus
    assert one.weights == one.gradients == weight_bytes(64)
    assert one.optimizer_state == slots * weight_bytes(64)
    (one,) = account(Blocks([0], width=64), options(), width=64, training=False).ipus
    assert (one.weights, one.gradients, one.optimizer_state) == (weight_bytes(64), 0, 0)


def test_half_accumulators_are_half_as_large() -> None:
    model = Blocks([0], width=64)
    optimizer = poptorch.optim.AdamW(
        model.parameters(),
        accum_type=torch.float16,
        first_order_momentum_accum_type=torch.float16,
        second_order_momentum_accum_type=torch.float32,
    )
    (one,) = account(model, options(), width=64, optimizer=optimizer).ipus
    assert one.gradients == weight_bytes(64, 2)
    assert one.optimizer_state == weight_bytes(64, 2) + weight_bytes(64, 4)


def test_frozen_weights_have_no_gradient() -> None:
    model = Blocks([0, 0], width=16)
    for parameter in model.layers[0].parameters():
        parameter.requires_grad_(False)
    (one,) = account(model, options(), width=16).ipus
    assert one.weights == 2 * weight_bytes(16)
    assert one.gradients == weight_bytes(16)


class Deep(nn.Module):
    """Activations that gradients need: exp keeps its result."""

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
        for _ in range(8):
            x = (x * 0.1).exp()
        if y is None:
            return x
        return x, poptorch.identity_loss(x * self.scale, "mean")

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))


def test_activations_grow_with_the_batch_and_only_when_training() -> None:
    class Chain(Deep):
        def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
            return super().forward(x * self.scale, y)

    (small,) = account(Chain(), options(), batch=10, width=100).ipus
    (large,) = account(Chain(), options(), batch=20, width=100).ipus
    tensor = 10 * 100 * 4
    assert small.activations >= 8 * tensor
    assert large.activations - 4 == 2 * (small.activations - 4)  # and the scale, once
    (inference,) = account(Chain(), options(), batch=10, width=100, training=False).ipus
    assert inference.activations == 0
    assert tensor <= inference.temporary <= 3 * tensor  # what is alive at the same time


def test_integers_of_64_bits_count_as_32() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.arange(1000) + 1

    (one,) = account(Model(), options(), training=False).ipus
    assert one.temporary <= 2 * 1000 * 4 + 64


def stages_report(recomputation: int | None, checkpoint: bool = False) -> _memory.MemoryReport:
    class Pipeline(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales = nn.ParameterList([nn.Parameter(torch.ones(())) for _ in range(2)])

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            for stage in range(2):
                with poptorch.Block(f"stage{stage}", ipu_id=stage):
                    for _ in range(4):
                        x = (x * self.scales[stage]).exp()
                    if checkpoint and stage == 0:
                        x = poptorch.recomputationCheckpoint(x)
                    if stage == 1:
                        return x, poptorch.identity_loss(x, "mean")
            return None

    given = options(accumulation=3)
    if recomputation is not None:
        given._Popart.set("autoRecomputation", recomputation)
    return account(Pipeline(), given, batch=10, width=100)


def test_a_pipeline_keeps_batches_in_flight_unless_it_computes_again() -> None:
    kept = stages_report(0).ipus
    again = stages_report(None).ipus  # what PopTorch chooses for a pipeline
    # The first of two stages has three micro-batches between forward and backward, the last one.
    assert kept[0].activations > 2.5 * kept[1].activations
    assert again[0].activations < kept[0].activations
    assert stages_report(None, checkpoint=True).ipus[0].activations > again[0].activations


def test_tensors_off_the_chip() -> None:
    model = Blocks([0], width=64)
    adam = torch.optim.Adam(model.parameters())
    away = poptorch.TensorLocationSettings().useOnChipStorage(False)
    given = options()
    given.TensorLocations.setWeightLocation(away)
    given.TensorLocations.setOptimizerLocation(away)
    given.TensorLocations.setAccumulatorLocation(away)
    given.TensorLocations.setActivationLocation(away)
    (one,) = account(model, given, width=64, optimizer=adam).ipus
    assert (one.weights, one.gradients, one.optimizer_state, one.activations) == (
        0,
        0,
        0,
        4,
    )  # one number stays
    assert one.off_chip >= 4 * weight_bytes(64)


def test_replicas_share_optimizer_state() -> None:
    model = Blocks([0], width=128)
    adam = torch.optim.Adam(model.parameters())
    given = options(replicas=4)
    given.TensorLocations.setOptimizerLocation(
        poptorch.TensorLocationSettings().useReplicatedTensorSharding()
    )
    (one,) = account(model, given, width=128, optimizer=adam).ipus
    matrix, bias = 128 * 128 * 4 * 2, 128 * 4 * 2
    assert one.optimizer_state == matrix // 4 + bias  # small tensors are not shared


@pytest.fixture
def small_ipus(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPUs of a megabyte, so that tests need not fill real ones."""
    monkeypatch.setattr(_memory, "capacity", lambda options: 1_000_000)


@pytest.mark.usefixtures("small_ipus")
def test_out_of_memory_names_the_stage() -> None:
    class Uneven(Blocks):
        def __init__(self) -> None:
            super().__init__([0, 1], width=64, named=True)
            self.wide = nn.Linear(64, 64 * 64)

        def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
            with poptorch.Block("encoder", ipu_id=0):
                x = self.layers[0](x)
            with poptorch.Block("decoder", ipu_id=1):
                x = self.wide(x).view(-1, 64, 64).mean(1)
                return x, F.mse_loss(x, y)

    model = Uneven()
    with pytest.raises(poptorch.Error, match="out of memory on IPU 1") as caught:
        train(model, options(accumulation=3), width=64, optimizer=torch.optim.Adam(model.parameters()))
    said = str(caught.value)
    assert "block decoder" in said
    assert "stage 1" in said
    assert "optimizer state 2.1 MB" in said
    assert "1.0 MB" in said
    assert "estimated" in said
    assert re.search(r"IPU 0 0\.\d MB", said)
    assert "setOptimizerLocation" in said


@pytest.mark.usefixtures("small_ipus")
def test_out_of_memory_by_activations_says_to_use_smaller_batches() -> None:
    class Chain(Deep):
        def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
            return super().forward(x * self.scale, y)

    with pytest.raises(poptorch.Error, match="smaller micro-batch"):
        account(Chain(), options(), batch=100, width=1000)
    account(Chain(), options(), batch=10, width=100)


def test_capacity() -> None:
    assert _memory.capacity(options()) == 900_000_000
    assert _memory.capacity(options().useOfflineIpuTarget(1)) == 304_000_000
    given = options()
    given.TensorLocations.numIOTiles(32)
    assert _memory.capacity(given) == 900_000_000 * (1472 - 32) // 1472


def test_a_real_ipu_can_be_too_small() -> None:
    class Huge(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum() + torch.ones(1, device=x.device).expand(240_000_000).clone().sum()

    with pytest.raises(poptorch.Error, match=r"960\.0 MB of 900\.0 MB"):
        infer(Huge(), options())


def test_the_report_goes_to_json() -> None:
    report = account(Blocks([0, 1], named=True), options(accumulation=3))
    data = json.loads(json.dumps(report.as_json()))
    assert [one["ipu"] for one in data["ipus"]] == [0, 1]
    assert data["ipus"][0]["total"] == report.ipus[0].total
