"""Kernel tables: names that ops go by, strict loading, verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest

from portwright.discover import find_targets
from portwright.errors import UserError
from portwright.graph.graph import Graph, Node, Ref, Value
from portwright.graph.tables import TableFile, argument, base_name, functional_name

HEADER = "op\tapi\thow\tdtypes\tconstraints\tsource"


def one_group(graph: Graph, node: Node) -> str | None:
    """groups must be 1"""
    groups = argument(node, "groups", 8, 1)
    return None if groups == 1 else f"a convolution with groups={groups}"


def make_table(folder: Path, *lines: str, header: str = HEADER, **settings: object) -> TableFile:
    file = folder / "kernels.tsv"
    file.write_text("\n".join(["# a comment", header, *lines]) + "\n")
    return TableFile(file, {"one_group": one_group}, "a test", **settings)  # type: ignore[arg-type]


def one_node(op: str, *args: object, dtype: str = "float32", **kwargs: object) -> Graph:
    values = (Value(0, (2, 3), dtype, "input"), Value(1, (2, 3), dtype, "activation"))
    node = Node(0, op, "forward", (Ref(0), *args), kwargs, (0,), (1,))
    return Graph((node,), values, (), (), batch_size=2, trains=False)


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("aten.add.Tensor", "aten.add.Tensor"),
        ("aten.add_.Tensor", "aten.add.Tensor"),
        ("aten.add.out", "aten.add.default"),
        ("aten.sum.IntList_out", "aten.sum.IntList"),
        ("aten.elu_backward.grad_input", "aten.elu_backward.default"),
        ("aten.relu_.default", "aten.relu.default"),
        ("aten.relu_", "aten.relu"),
        ("aten.view_copy.default", "aten.view.default"),
        ("aten.slice_copy.Tensor_out", "aten.slice.Tensor"),
        ("aten._unsafe_view.default", "aten.view.default"),
        ("aten._index_put_impl_.default", "aten.index_put.default"),
        ("aten.__and__.Tensor", "aten.bitwise_and.Tensor"),
        ("aten.__ior__.Scalar", "aten.bitwise_or.Scalar"),
        # Not views, whatever their names end with.
        ("aten._to_copy.default", "aten._to_copy.default"),
        ("aten.index_copy_.default", "aten.index_copy.default"),
        ("aten.copy_.default", "aten.copy.default"),
        ("torchvision.nms.default", "torchvision.nms.default"),
        ("aten.any.all_out", "aten.any.default"),
        ("nonsense", "nonsense."),
    ],
)
def test_functional_name(op: str, expected: str) -> None:
    assert functional_name(op) == expected
    assert functional_name(expected) == expected


def test_base_name_has_no_overload() -> None:
    assert base_name("aten.add_.Tensor") == base_name("aten.add") == "aten.add"


def test_every_in_place_and_view_copy_op_of_torch_finds_its_functional_one() -> None:
    import torch

    names = {
        str(schema).split("::")[1].split("(")[0].split(".")[0]
        for schema in torch._C._jit_get_all_schemas()
        if str(schema).startswith("aten::")
    }
    pairs = [(name, name[:-1]) for name in names if name.endswith("_") and not name.startswith("__")]
    pairs += [(name, name[:-5]) for name in names if name.endswith("_copy") and not name.startswith("_")]
    apart = {
        name
        for name, other in pairs
        if other in names and base_name(f"aten.{name}") != base_name(f"aten.{other}")
    }
    assert apart == {"index_copy"}  # which copies into an index


def test_an_overload_with_a_row_of_its_own_comes_first(tmp_path: Path) -> None:
    table = make_table(
        tmp_path,
        "aten.max.dim\ttorch.max\tnative\t\t\there",
        "aten.max\ttorch.max\trefused\t\t\tthere",
    )
    assert table.judge(*pair(one_node("aten.max.dim"))).how == "native"
    assert table.judge(*pair(one_node("aten.max.default"))).how == "refused"
    found = table.find("aten.max.dim_out")
    assert found is not None
    assert found.source == "here"


def test_default_overload_alone(tmp_path: Path) -> None:
    table = make_table(tmp_path, "aten.all.default\t\tnative\t\t\there")
    assert table.explain("aten.all.default").how == table.explain("aten.all.all_out").how == "native"
    assert table.explain("aten.all.dim").how == "refused"


def pair(graph: Graph) -> tuple[Graph, Node]:
    return graph, graph.nodes[0]


def test_constraints_are_asked_and_their_cure_is_told(tmp_path: Path) -> None:
    line = "aten.convolution\ttorch.nn.Conv2d torch.nn.functional.conv2d\tnative\tfloat16 float32\tone_group\there"
    table = make_table(tmp_path, line, cures={"one_group": "Split it."})
    (row,) = table.rows()
    assert row.api == ("torch.nn.Conv2d", "torch.nn.functional.conv2d")
    assert (row.constraints, row.dtypes) == (("groups must be 1",), ("float16", "float32"))
    rest = (Ref(0), None, [1, 1], [0, 0], [1, 1], False, [0, 0])
    assert table.judge(*pair(one_node("aten.convolution.default", *rest, 1))).how == "native"
    assert table.judge(*pair(one_node("aten.convolution.default"))).how == "native"
    for graph in (
        one_node("aten.convolution.default", *rest, 4),
        one_node("aten.convolution.default", groups=4),
    ):
        verdict = table.judge(*pair(graph))
        assert (verdict.how, verdict.cure) == ("refused", "Split it.")
        assert "groups=4" in verdict.reason
    verdict = table.judge(*pair(one_node("aten.convolution.default", dtype="float64")))
    assert verdict.how == "refused"
    assert "float64" in verdict.reason
    assert "float16, float32" in verdict.cure


def test_what_is_not_listed_is_refused_in_the_tables_words(tmp_path: Path) -> None:
    table = make_table(
        tmp_path, "aten.add\t\tnative\t\t\there", unlisted=lambda op: (f"{op} is foreign", "Go home.")
    )
    verdict = table.judge(*pair(one_node("aten.flip.default")))
    assert (verdict.how, verdict.reason, verdict.cure) == (
        "refused",
        "aten.flip.default is foreign",
        "Go home.",
    )
    assert table.find("aten.flip") is None


def test_a_refused_row_has_its_reason_and_cure(tmp_path: Path) -> None:
    table = make_table(
        tmp_path,
        "aten.flip\ttorch.flip\trefused\t\t\there\tno backward\tcat of slices",
        "aten.add\t\tnative\t\t\there\t\t",
        header=f"{HEADER}\treason\tcure",
    )
    verdict = table.judge(*pair(one_node("aten.flip.default")))
    assert (verdict.how, verdict.reason, verdict.cure) == ("refused", "no backward", "cat of slices")
    assert table.explain("aten.add.Tensor").how == "native"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("aten.add\t\tnativ\t\t\there", "'native'"),
        ("aten.add\t\tnative\tfloat23\t\there", "'float32'"),
        ("aten.add\t\tnative\t\tone_grop\there", "'one_group'"),
        ("aten.add\t\tnative\t\t\t", "source"),
        ("add\t\tnative\t\t\there", "aten.add"),
        ("aten.add\t\tnative\t\there", "5 cells instead of 6"),
        ("aten.mul_\t\tnative\t\t\there", "row already"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, text: str) -> None:
    with pytest.raises(UserError, match=r"kernels\.tsv:4: ") as caught:
        make_table(tmp_path, "aten.mul\t\tnative\t\t\there", line)
    assert text in str(caught.value)


def test_reason_of_a_row_that_is_not_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"kernels\.tsv:3: .*refused"):
        make_table(tmp_path, "aten.add\t\tnative\t\t\there\twhy\t", header=f"{HEADER}\treason\tcure")


def test_wrong_columns_and_wrong_cures(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="columns"):
        make_table(tmp_path, header="op\thow")
    with pytest.raises(UserError, match="one_group"):
        make_table(tmp_path, cures={"one_grup": "x"})


def test_a_constraint_without_words(tmp_path: Path) -> None:
    file = tmp_path / "t.tsv"
    file.write_text(f"{HEADER}\naten.add\t\tnative\t\tmute\there\n")
    with pytest.raises(UserError, match="docstring"):
        TableFile(file, {"mute": lambda graph, node: None}, "a test")


def test_every_table_of_every_target_loads() -> None:
    for target in find_targets().values():
        if target.kernels is not None:
            table = target.kernels()
            rows = list(table.rows())
            assert rows, target.name
            assert table.label, target.name
            assert all(row.source for row in rows), target.name
