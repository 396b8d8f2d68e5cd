"""A program in a file: the same bits again, and an error that says what is wrong with any other file."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from unit.emulate.program_models import MODELS, Scored, Step, make, rows, scored, trace, weights_of

from portwright.emulate.poptorch import _program_file, poptorch_core
from portwright.emulate.poptorch._placement import Tag
from portwright.emulate.poptorch._program import Program


def store(program: Program, folder: Path) -> Program:
    """Writes the program, and reads it again from its files."""
    data, tensors = program.to_file_parts()
    (folder / "program.json").write_text(json.dumps(data, allow_nan=False))
    save_file(tensors, folder / "constants.safetensors")
    return Program.from_file_parts(
        json.loads((folder / "program.json").read_text()), load_file(folder / "constants.safetensors")
    )


def run(program: Program, model: nn.Module, inputs: list[Tensor]) -> tuple[Any, dict[str, Tensor]]:
    torch.manual_seed(5)
    weights = {name: tensor.detach().clone() for name, tensor in weights_of(model).items()}
    outputs, gradients = program.run(weights, inputs)
    return outputs, {**gradients, **{f"after {name}": tensor for name, tensor in weights.items()}}


@pytest.mark.parametrize("name", MODELS)
def test_a_stored_program_computes_the_same_bits(name: str, tmp_path: Path) -> None:
    model, inputs = make(name)
    program = trace(model, inputs)
    again = store(program, tmp_path)
    (outputs, others), (mine, my_others) = run(program, model, inputs), run(again, model, inputs)
    assert all(torch.equal(a, b) for a, b in zip(outputs, mine, strict=True))
    assert others.keys() == my_others.keys()
    assert all(torch.equal(others[key], my_others[key]) for key in others)
    assert [a.stride() for a in outputs] == [b.stride() for b in mine]
    assert again.nodes() == program.nodes()
    assert (again.tied, again.written, again.training) == (program.tied, program.written, program.training)
    assert again.to_file_parts()[0] == program.to_file_parts()[0]
    rebuilt, before = again.rebuild(mine), program.rebuild(outputs)
    assert type(rebuilt).__name__ == type(before).__name__
    assert str(rebuilt) == str(before)


@pytest.mark.parametrize("partials", [None, torch.float16, torch.float32])
def test_partials_are_kept(partials: torch.dtype | None, tmp_path: Path) -> None:
    model = Scored(nn.Linear(600, 3), lambda out, y: F.mse_loss(out.float(), y)).half()
    inputs = [torch.rand(2, 600).half(), torch.rand(2, 3)]
    program = trace(model, inputs, partials=partials)
    again = store(program, tmp_path)
    assert again.partials == partials
    assert torch.equal(run(program, model, inputs)[0][0], run(again, model, inputs)[0][0])


@pytest.mark.parametrize("tag", [None, "a", 3, ["x", {"y": 1.5}], Tag("b", 1, 0, 2)])
def test_tags_are_kept(tag: Any, tmp_path: Path) -> None:
    program = trace(Step(scored), rows(), tag=lambda: tag)
    assert {str(node.tag) for node in store(program, tmp_path).nodes()} == {str(tag)}
    assert store(program, tmp_path).nodes()[0].tag == tag


def test_numbers_that_json_has_not(tmp_path: Path) -> None:
    def forward(m: nn.Module, x: Tensor, y: Tensor) -> Any:
        spoilt = torch.where(x > 0, float("nan"), x).clamp(max=float("inf")).nan_to_num(0.1 + 0.2)
        filled = x.masked_fill(x > 1, float("-inf"))
        return spoilt, filled, x * (1 + 2j), torch.full((2,), 1e-320), scored(m, x, y), float("nan")

    model, inputs = Step(forward), rows()
    program = trace(model, inputs, training=False)
    structure = program.outputs_structure
    structure["items"].pop()  # a value that is not a number is not equal to itself
    again = store(program, tmp_path)
    for one, other in zip(run(program, model, inputs)[0], run(again, model, inputs)[0], strict=True):
        assert torch.equal(one, other)


def test_a_value_that_is_not_a_number_is_returned_again(tmp_path: Path) -> None:
    model, inputs = Step(lambda m, x, y: (scored(m, x, y), float("nan"), float("-inf"))), rows()
    again = store(trace(model, inputs), tmp_path)
    _, nan, low = again.rebuild([0])
    assert nan != nan
    assert low == float("-inf")


def test_constants_keep_their_strides_and_types(tmp_path: Path) -> None:
    tables = [
        torch.arange(6.0).reshape(2, 3).t(),
        torch.tensor([1 + 2j]),
        torch.tensor([True]),
        torch.zeros(0, 2),
    ]
    tables += [torch.ones(2, dtype=torch.bfloat16), torch.tensor(7, dtype=torch.uint8), torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)]  # fmt: skip
    model, inputs = Step(lambda m, x, y: ([t * 1 for t in tables], scored(m, x, y))), rows()
    program = trace(model, inputs)
    mine, expected = run(store(program, tmp_path), model, inputs)[0], run(program, model, inputs)[0]
    for one, other in zip(mine, expected, strict=True):
        assert torch.equal(one, other)
        assert (one.stride(), one.dtype) == (other.stride(), other.dtype)


def test_an_op_of_others_is_named_when_it_cannot_be_written() -> None:
    library = torch.library.Library("portwright_test", "FRAGMENT")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: x * 2, "CompositeExplicitAutograd")
    model, inputs = Step(lambda m, x, y: (torch.ops.portwright_test.double(x), scored(m, x, y))), rows()
    program = trace(model, inputs)
    (doubled, _), _ = program.run(weights_of(model), inputs)
    assert torch.equal(doubled, inputs[0] * 2)
    with pytest.raises(
        poptorch_core.Error, match=rf"portwright_test\.double\.default at .*{Path(__file__).name}:\d+"
    ):
        program.to_file_parts()


def test_a_tag_that_json_has_not_is_named() -> None:
    with pytest.raises(poptorch_core.Error, match="has the tag <object"):
        trace(Step(scored), rows(), tag=object).to_file_parts()


def test_an_object_that_torch_can_take_apart_is_returned_and_not_written() -> None:
    class Box:
        def __init__(self, inside: Tensor) -> None:
            self.inside = inside

    torch.utils._pytree.register_pytree_node(
        Box, lambda box: ([box.inside], None), lambda items, _: Box(*items)
    )
    model, inputs = Step(lambda m, x, y: (Box(x + 1), scored(m, x, y))), rows()
    program = trace(model, inputs)
    outputs, _ = program.run(weights_of(model), inputs)
    box, _ = program.rebuild(outputs)
    assert isinstance(box, Box)
    assert torch.equal(box.inside, inputs[0] + 1)
    with pytest.raises(poptorch_core.Error, match=r"Box.*cannot be written"):
        program.to_file_parts()


# Files that were not written so


def parts() -> tuple[dict[str, Any], dict[str, Tensor]]:
    table = torch.arange(4.0)
    data, tensors = trace(
        Step(lambda m, x, y: (m.linear(x) * table, scored(m, x, y))), rows()
    ).to_file_parts()
    return json.loads(json.dumps(data)), tensors


def sign(data: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Gives changed data a digest that fits, as somebody would who means harm."""
    data.pop("digest", None)
    return {**data, "digest": _program_file._digest(data, tensors)}


@pytest.mark.parametrize(
    "data", [None, [], {}, "text", 3, {"format": "other"}, {"format": _program_file.FORMAT}, {"format": 3}]
)
def test_a_foreign_file(data: Any) -> None:
    with pytest.raises(poptorch_core.Error, match=r"no compiled program|version"):
        Program.from_file_parts(data, {})


def test_another_version() -> None:
    data, tensors = parts()
    data["version"] = 99
    with pytest.raises(poptorch_core.Error, match=r"version 99.*reads 1"):
        Program.from_file_parts(data, tensors)


def test_any_change_is_noticed() -> None:
    data, tensors = parts()
    changed = json.loads(json.dumps(data))
    changed["ops"][2]["args"].append(1)
    with pytest.raises(poptorch_core.Error, match="damaged"):
        Program.from_file_parts(changed, tensors)
    (name,) = tensors
    for other in (
        {},
        {name: tensors[name] + 1},
        {name: tensors[name].double()},
        {**tensors, "more": torch.ones(1)},
    ):
        with pytest.raises(poptorch_core.Error, match="damaged"):
            Program.from_file_parts(data, other)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_changed_file_is_refused_or_does_not_reach_the_system(draw: st.DataObject) -> None:
    """Any one value replaced, with a digest that fits: an Error, or a program of torch's ops."""
    data, tensors = parts()
    places: list[tuple[Any, Any]] = []

    def collect(thing: Any) -> None:
        keys = (
            thing.keys() if isinstance(thing, dict) else range(len(thing)) if isinstance(thing, list) else ()
        )
        for key in keys:
            places.append((thing, key))
            collect(thing[key])

    collect({key: value for key, value in data.items() if key not in ("format", "version", "digest")})
    home, key = draw.draw(st.sampled_from(places))
    home[key] = draw.draw(
        st.sampled_from(
            [
                None,
                -1,
                10**9,
                "x",
                "aten.mm.default",
                [],
                {},
                [None],
                {"value": [10**6]},
                {"weight": "nope"},
                1.5,
                True,
            ]
        )
    )
    with contextlib.suppress(poptorch_core.Error):
        program = Program.from_file_parts(sign(data, tensors), tensors)
        assert all(op.target.namespace in ("aten", "portwright") for op in program._parts.ops)


@pytest.mark.parametrize(
    "name",
    [
        *("os.system.default", "aten.from_file.default", "aten.save.default", "aten.__class__.default", "builtins.eval"),
        *("aten.add.__class__", "torch.load.default", "aten.nothing.default", "aten.add.nothing", "", "aten", "prim.device.default"),
        *("aten..default", "aten.add.Tensor ", "../aten.add.Tensor", "profiler._record_function_enter.default", "aten.item.default"),
        "aten._local_scalar_dense.default",
    ],
)  # fmt: skip
def test_only_ops_of_torch_are_looked_up(name: str) -> None:
    data, tensors = parts()
    old = data["ops"][0]["op"]
    data["ops"][0]["op"] = name
    data["schemas"] = {name if key == old else key: schema for key, schema in data["schemas"].items()}
    with pytest.raises(poptorch_core.Error, match="cannot be read"):
        Program.from_file_parts(sign(data, tensors), tensors)


def test_an_op_that_means_something_else_in_this_torch() -> None:
    data, tensors = parts()
    data["schemas"]["aten.mul.Tensor"] = "aten::mul.Tensor(Tensor other, Tensor self) -> Tensor"
    data["torch"] = "1.0"
    with pytest.raises(poptorch_core.Error, match=r"aten.mul.Tensor takes other arguments.*torch 1\.0"):
        Program.from_file_parts(sign(data, tensors), tensors)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d["ops"][0]["args"].__setitem__(0, {"value": [5]}), "does not come before it"),
        (lambda d: d["ops"][0]["args"].__setitem__(0, {"value": [0]}), "does not come before it"),
        (lambda d: d["ops"][0]["args"].__setitem__(0, {"weight": "other"}), "not declared"),
        (lambda d: d["ops"][0]["args"].__setitem__(0, {"call": "print"}), "KeyError: 'call'"),
        (lambda d: d["ops"][0]["args"].__setitem__(0, {"device": "cuda"}), "'cuda' is none of cpu"),
        (lambda d: d["ops"][0]["kwargs"].__setitem__("nothing", 1), "arguments that it does not take"),
        (lambda d: d["outputs"].pop(), "1 outputs for a structure of 2"),
        (lambda d: d["outputs"].__setitem__(0, 3), "3 is no tensor"),
        (lambda d: d["given"][0].__setitem__("kind", "file"), "'file' is none of weight"),
        (lambda d: d["given"][0].__setitem__("dtype", "float99"), "float99"),
        (lambda d: d["given"][0].__setitem__("shape", [1.5]), "whole numbers"),
        (lambda d: d.pop("ops"), "KeyError: 'ops'"),
        (lambda d: d["structure"].__setitem__("kind", "os"), "unknown structure 'os'"),
    ],
)
def test_what_is_wrong_is_said(change: Callable[[Any], Any], said: str) -> None:
    data, tensors = parts()
    change(data)
    with pytest.raises(poptorch_core.Error, match=said):
        Program.from_file_parts(sign(data, tensors), tensors)


def test_a_value_that_is_both_a_tensor_and_several() -> None:
    data, tensors = parts()
    data["outputs"] = [{"value": [0]}, {"value": [0, 1]}]
    with pytest.raises(poptorch_core.Error, match="no op of it gives"):
        Program.from_file_parts(sign(data, tensors), tensors)


def test_a_named_tuple_of_a_file_runs_no_code() -> None:
    data, tensors = trace(Step(scored), rows()).to_file_parts()
    data["structure"] = {
        "kind": "namedtuple",
        "name": "A",
        "fields": ["__import__('os')"],
        "items": [{"kind": "tensor"}],
    }
    with pytest.raises(poptorch_core.Error, match="named tuple"):
        Program.from_file_parts(sign(data, tensors), tensors)


def test_the_digest_is_a_sha256_of_everything() -> None:
    data, _ = trace(Step(scored), rows()).to_file_parts()
    digest = data.pop("digest")
    assert digest == hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def test_random_states_are_written(tmp_path: Path) -> None:
    def forward(m: nn.Module, x: Tensor, y: Tensor) -> Any:
        with torch.random.fork_rng(devices=[]):
            first = F.dropout(x)
        return first, F.dropout(x), scored(m, x, y)

    model, inputs = Step(forward), rows()
    first, second, _ = run(store(trace(model, inputs), tmp_path), model, inputs)[0]
    assert torch.equal(first, second)
