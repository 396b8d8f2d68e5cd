"""Operations of a step, against torch's own counter and against paper and pencil."""

from __future__ import annotations

import plan_graphs as models
import pytest
from torch.utils.flop_counter import FlopCounterMode

from portwright.graph.graph import Graph, Node, Ref, Value
from portwright.graph.plans.flops import count_flops, flops_of_node
from portwright.graph.plans.rows import Rows


@pytest.mark.parametrize("name", models.CASES)
def test_products_are_those_of_torchs_counter(name: str) -> None:
    make, batch = models.CASES[name]
    with FlopCounterMode(display=False) as counter:
        loss = make()(*batch(4))
        forward = counter.get_total_flops()
        loss.backward()
    graph = models.graph_of(name, 4)
    counted = count_flops(graph, Rows(graph))
    assert counted.forward.products * 4 == forward
    assert counted.backward.products * 4 == counter.get_total_flops() - forward


def test_layers_add_up_and_do_not_depend_on_the_batch() -> None:
    small, large = (models.graph_of("text", size) for size in (2, 8))
    rows = Rows(small)
    counted, other = count_flops(small, rows), count_flops(large, Rows(large))
    assert sum(count.total for count in counted.forward_of) == pytest.approx(counted.forward.total)
    assert sum(count.total for count in counted.backward_of) == pytest.approx(counted.backward.total)
    assert counted.total.products == other.total.products
    blocks = [i for i, row in enumerate(rows.rows) if row.kind == "Block"]
    assert len({counted.of(i).products for i in blocks}) == 1


def one_call(op: str, shapes: list[tuple[int, ...]], out: tuple[int, ...], *rest: object) -> Graph:
    values = [Value(i, shape, "float32", "input") for i, shape in enumerate(shapes)]
    values.append(Value(len(shapes), out, "float32", "activation", base=len(shapes)))
    refs = tuple(Ref(i) for i in range(len(shapes)))
    inputs = tuple(range(len(shapes)))
    node = Node(0, op, "forward", (*refs, *rest), {}, inputs, (len(shapes),))
    return Graph((node,), tuple(values), (), (), 1, False)


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (one_call("aten.mm.default", [(2, 3), (3, 5)], (2, 5)), (60, 0)),
        (one_call("aten.addmm.default", [(5,), (2, 3), (3, 5)], (2, 5)), (60, 0)),
        (one_call("aten.baddbmm.default", [(7, 2, 5), (7, 2, 3), (7, 3, 5)], (7, 2, 5)), (420, 0)),
        (one_call("aten.matmul.default", [(7, 2, 3), (3, 5)], (7, 2, 5)), (420, 0)),
        (one_call("aten.mv.default", [(2, 3), (3,)], (2,)), (12, 0)),
        (one_call("aten.dot.default", [(3,), (3,)], ()), (6, 0)),
        (one_call("aten.linear.default", [(7, 2, 3), (5, 3)], (7, 2, 5)), (420, 0)),
        # 2 * batch * places * out channels * in channels of a group * kernel
        (
            one_call(
                "aten.convolution.default",
                [(2, 4, 8), (6, 2, 3)],
                (2, 6, 6),
                None,
                [1],
                [0],
                [1],
                False,
                [0],
                2,
            ),
            (2 * 2 * 6 * 6 * 2 * 3, 0),
        ),
        (
            one_call("aten._scaled_dot_product_flash_attention.default", [(1, 2, 4, 8)] * 3, (1, 2, 4, 8)),
            (2 * 512, 0),
        ),
        (one_call("aten.add.Tensor", [(2, 3), (3,)], (2, 3)), (0, 6)),
        (one_call("aten.sum.default", [(2, 3)], ()), (0, 6)),
        (one_call("aten.view.default", [(2, 3)], (6,)), (0, 0)),
        (one_call("aten._to_copy.default", [(2, 3)], (2, 3)), (0, 0)),
        (one_call("aten.mm.default", [(0, 3), (3, 5)], (0, 5)), (0, 0)),
        (one_call("mylib::thing", [(2, 3)], (2, 3)), (0, 6)),
    ],
)
def test_one_call(graph: Graph, expected: tuple[int, int]) -> None:
    assert flops_of_node(graph, graph.nodes[0]) == expected
