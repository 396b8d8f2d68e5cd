"""Stages and how blocks are numbered into them."""

import pytest

from portwright.emulate import poptorch
from portwright.emulate.poptorch import PipelinedExecution, Stage


def _begin(strategy, *blocks):
    return [strategy._stages_manager.beginStage(*block) for block in blocks]


def test_without_stages_a_block_is_in_the_stage_of_its_ipu():
    assert _begin(PipelinedExecution(), ("a", 0), ("b", 1), ("c", 0)) == [(0, 0), (1, 1), (0, 0)]
    with pytest.raises(AssertionError, match="ipu_id"):
        _begin(PipelinedExecution(), ("a", None))


def test_auto_increment_gives_every_new_block_its_stage():
    strategy = PipelinedExecution(poptorch.AutoStage.AutoIncrement)
    assert _begin(strategy, ("a", 0), ("b", 1), ("c", 0), ("a", 0)) == [
        (1, 0),
        (2, 1),
        (3, 0),
        (1, 0),
    ]


def test_blocks_without_a_name_are_numbered_from_nought():
    manager = PipelinedExecution(Stage("0", "1"), "2")._stages_manager
    assert [manager.beginStage(None, None) for _ in range(3)] == [(0, 0), (0, 0), (1, 1)]
    manager.resetAutoId()
    assert manager.beginStage(None, 5) == (0, 5)


def test_a_stages_ipu_goes_before_the_blocks():
    strategy = PipelinedExecution(Stage("a").ipu(3), ["b", "c"])
    assert _begin(strategy, ("a", 1), ("b", 2), ("c", None)) == [(0, 3), (1, 2), (1, 1)]
    with pytest.raises(AssertionError, match=r"no block 'z'.*'a', 'b', 'c'"):
        _begin(strategy, ("z", 0))
    with pytest.raises(AssertionError, match="no block 'z'"):
        strategy.stage("z")


def test_what_the_device_is_told():
    assert PipelinedExecution().backendOptions() == {"execution_mode": 0}
    assert poptorch.ShardedExecution("a").backendOptions() == {"execution_mode": 1}


def test_phases_are_refused():
    with pytest.raises(poptorch.Error, match="SerialPhasedExecution is not emulated"):
        poptorch.SerialPhasedExecution(poptorch.options.Phase)
    with pytest.raises(TypeError):
        poptorch.ParallelPhasedExecution(phase=3)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Stage(1),
        lambda: Stage("a").ipu("0"),
        lambda: Stage("a").ipu(-1),
        lambda: PipelinedExecution("a", ["a"]),
        lambda: PipelinedExecution(3),
        lambda: PipelinedExecution(["a", 3]),
    ],
)
def test_what_is_no_strategy(wrong):
    with pytest.raises(AssertionError) as caught:
        wrong()
    assert isinstance(caught.value, poptorch.Error)
