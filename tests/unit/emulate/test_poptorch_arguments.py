"""Arguments of a call sorted by forward(), structures of tensors, and what else the package itself offers."""

import collections
import logging

import pytest
import torch

from portwright.emulate import poptorch
from portwright.emulate.poptorch import Error, _logging, testing
from portwright.emulate.poptorch._inputs import (
    ArgsParser,
    combined_batch_generator,
    flattenTensorStructure,
    reconstructTensorStructure,
)

T = torch.tensor


class Model(torch.nn.Module):
    def forward(self, x, y=None, *, z=3):
        return x


def many(x, *rest, flag=False, **named):
    return x


def _names(parser, *args, **kwargs):
    given = parser(args, kwargs)
    return given.arg_names, given.args, given.kwargs


def test_arguments_come_in_the_order_of_forward():
    parser = ArgsParser(Model())
    assert _names(parser, 1) == (["x", "y"], [1, None], {"z": 3})
    assert _names(parser, y=2, x=1, z=None) == (["x", "y"], [1, 2], {"z": None})
    assert _names(ArgsParser(many), 1, 2, 3, other=4) == (
        ["x", "*rest[0]", "*rest[1]"],
        [1, 2, 3],
        {"flag": False, "other": 4},
    )
    assert _names(ArgsParser(many), x=1, rest=5) == (["x"], [1], {"flag": False, "rest": 5})
    assert _names(ArgsParser(torch.nn.Identity()), T(1))[0] == ["input"]
    assert _names(ArgsParser(max), 1, 2)[1] == [1, 2]  # a builtin without a signature takes anything


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ((1, 2, 3), {}, "takes 2 positional arguments"),
        ((1,), {"x": 1}, "by position and by name"),
        ((1,), {"w": 1}, "no parameter 'w'"),
    ],
)
def test_wrong_arguments(args, kwargs, why):
    with pytest.raises(AssertionError, match=why) as caught:
        ArgsParser(Model())(args, kwargs)
    assert isinstance(caught.value, Error)


def test_a_missing_argument():
    with pytest.raises(Error, match="x of forward"):
        ArgsParser(Model())((), {"y": 1})
    with pytest.raises(TypeError, match="callable"):
        ArgsParser(3)


def test_strided_tensors_are_made_contiguous_with_one_warning(caplog):
    parser = ArgsParser(Model())
    with caplog.at_level(logging.WARNING, "poptorch"):
        for _ in range(2):
            given = parser((torch.ones(2, 3).t(), [T(1), {"k": torch.ones(4)[::2]}]), {})
            assert all(t.is_contiguous() for t in flattenTensorStructure(given.args))
            assert given.args[1][1]["k"].tolist() == [1.0, 1.0]
    said = [record.message for record in caplog.records]
    assert len([line for line in said if "contiguous" in line]) == 1
    assert len([line for line in said if "dict" in line]) == 1


Pair = collections.namedtuple("Pair", "left right")


def test_structures_keep_their_types():
    structure = (T(1), [T(2), None, "text"], Pair(T(3), {"k": T(4)}), collections.OrderedDict(o=T(5)))
    flat = flattenTensorStructure(structure)
    assert [int(t) for t in flat] == [1, 2, 3, 4, 5]
    back = reconstructTensorStructure(structure, [t * 10 for t in flat])
    assert isinstance(back[2], Pair)
    assert isinstance(back[3], collections.OrderedDict)
    assert [int(t) for t in flattenTensorStructure(back)] == [10, 20, 30, 40, 50]
    assert back[1][1:] == [
        None,
        "text",
    ]
    assert flattenTensorStructure(()) == []


@pytest.mark.parametrize(("drop_last", "sizes"), [(True, [2, 2]), (False, [2, 2, 1])])
def test_batches_are_joined(drop_last, sizes):
    batches = ({"x": torch.full((1, 3), float(i)), "n": [T([i])]} for i in range(5))
    joined = list(combined_batch_generator(batches, 2, drop_last))
    assert [len(batch["x"]) for batch in joined] == sizes
    assert joined[1]["n"][0].tolist() == [2, 3]
    assert list(combined_batch_generator(iter([]), 2, False)) == []


def test_errors_carry_their_parts():
    error = poptorch.createPoptorchError("no")
    assert str(error) == "'poptorch_py_error': no"
    assert (error.message, error.type, error.location) == ("no", "poptorch_py_error", "")
    assert isinstance(error, poptorch.Error)
    assert not isinstance(error, RuntimeError)
    assert issubclass(poptorch.RecoverableError, poptorch.Error)
    assert issubclass(poptorch.UnrecoverableError, poptorch.Error)


def test_there_is_no_hardware():
    assert poptorch.ipuHardwareIsAvailable() is False
    assert poptorch.ipuHardwareIsAvailable(4) is False
    with pytest.raises(AssertionError, match="emulated"):
        poptorch.ipuHardwareVersion()


@pytest.mark.parametrize(
    ("level", "python"),
    [("TRACE", 10), ("DEBUG", 10), ("INFO", 20), ("WARN", 30), ("ERR", 40), (2, 20), (6, 51)],
)
def test_log_levels(level, python):
    before = _logging.logger.level
    try:
        poptorch.setLogLevel(level)
        assert _logging.logger.level == python
    finally:
        _logging.logger.setLevel(before)


@pytest.mark.parametrize("level", ["LOUD", "warn", 5, -1, None, 2.0, True])
def test_unknown_log_levels(level):
    with pytest.raises(ValueError, match="WARN"):
        poptorch.setLogLevel(level)


def test_the_log_goes_to_standard_error_as_it_is_now(capsys):
    _logging.logger.warning("one %s", "line")
    assert capsys.readouterr().err.endswith("[poptorch] [warning] one line\n")


def test_printing_a_module_is_torchs():
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Identity())
    )
    model.register_module("none", None)
    assert poptorch.module_repr(model) == repr(model)


def test_comparing_results_is_left_to_torch():
    with pytest.raises(Error, match="allclose is not emulated"):
        testing.allclose(T(1.0), T(1.0))
