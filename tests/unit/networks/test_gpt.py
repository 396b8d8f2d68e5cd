"""Gpt by itself: caches, documents, bands, losses, first weights, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from portwright.errors import UserError
from portwright.layers import bias as attention_bias
from portwright.layers.plain_ops import plain_ops
from portwright.losses import GPTLMHeadModelLoss
from portwright.networks import Gpt

SIZES: dict[str, Any] = {
    "vocab_size": 43,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_heads": 3,
    "filter_size": 20,
    "max_position_embeddings": 32,
}
KINDS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gpt3": {"attention_sliding_window_length": 4, "sliding_window_every_other_decoder_layer": True},
    "banded": {"attention_sliding_window_length": 3},
    "gptj": {"rotary_dim": 6, "share_embedding_weights": False, "use_bias_in_output": True},
    "untied": {"share_embedding_weights": False},
    "tied_with_bias": {"use_bias_in_output": True},
    "no_bias": {
        "use_projection_bias_in_attention": False,
        "use_ffn_bias_in_attention": False,
        "use_ffn_bias": False,
    },
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def make(kind: str, **options: Any) -> Gpt:
    torch.manual_seed(0)
    network = Gpt({**SIZES, **KINDS[kind], **options}).double().eval()
    with torch.no_grad():  # what starts at zero would hide that it is not used
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return network


def make_ids(*shape: int) -> Tensor:
    return torch.randint(0, SIZES["vocab_size"], shape, generator=torch.Generator().manual_seed(1))


@each_kind
@pytest.mark.parametrize("pieces", [[10], [1] * 10, [4, 1, 3, 2]])
def test_cache_equals_full_forward(kind: str, pieces: list[int]) -> None:
    network, ids = make(kind), make_ids(2, 10)
    caches = network.make_cache()
    with torch.no_grad():
        parts = [network(piece, past_kv=caches) for piece in ids.split(pieces, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), network(ids), rtol=1e-10, atol=1e-10)


@each_kind
def test_left_padding_with_a_cache_equals_each_row_alone(kind: str) -> None:
    network, ids = make(kind), make_ids(3, 9)
    mask = torch.ones_like(ids)
    for row, padding in enumerate((0, 3, 5)):
        mask[row, :padding] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    caches = network.make_cache()
    got = []
    for start, end in ((0, 6), (6, 7), (7, 9)):
        here = slice(start, end)
        got.append(network(ids[:, here], mask[:, :end], positions[:, here], past_kv=caches))
    logits = torch.cat(got, dim=1)
    for row, padding in enumerate((0, 3, 5)):
        alone = network(ids[row : row + 1, padding:])[0]
        torch.testing.assert_close(logits[row, padding:], alone, rtol=1e-10, atol=1e-10)


@each_kind
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4))
@settings(max_examples=8, deadline=None)
def test_documents_equal_separate_forwards(kind: str, lengths: list[int]) -> None:
    network, ids = make(kind), make_ids(2, sum(lengths))
    documents = torch.repeat_interleave(torch.arange(len(lengths)) * 7 - 3, torch.tensor(lengths))
    got = network(ids, document_ids=documents.expand_as(ids))
    alone = torch.cat([network(piece) for piece in ids.split(lengths, dim=1)], dim=1)
    torch.testing.assert_close(got, alone, rtol=1e-10, atol=1e-10)


def test_documents_may_differ_from_row_to_row_and_padding_is_hidden_too() -> None:
    network, ids = make("gpt2"), make_ids(2, 8)
    documents = torch.tensor([[1, 1, 1, 2, 2, 2, 2, 2], [5, 5, 5, 5, 5, 5, 9, 9]])
    mask = torch.ones_like(ids)
    mask[0, 3] = 0
    got = network(ids, mask, document_ids=documents)
    torch.testing.assert_close(got[1, 6:], network(ids[1:, 6:])[0])
    expected = network(ids[:1, 3:], mask[:1, 3:])[0]
    torch.testing.assert_close(got[0, 4:], expected[1:])


def test_given_positions_stay_with_documents() -> None:
    network, ids = make("gpt2"), make_ids(1, 6)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1]])
    restarted = torch.tensor([[0, 1, 2, 0, 1, 2]])
    torch.testing.assert_close(
        network(ids, document_ids=documents), network(ids, position_ids=restarted, document_ids=documents)
    )
    shifted = network(ids, position_ids=restarted + 3, document_ids=documents)
    assert not torch.allclose(network(ids, document_ids=documents), shifted)


@pytest.mark.parametrize("kind", ["gpt3", "banded"])
def test_bands_reach_as_far_as_said(kind: str) -> None:
    """A token reaches farther layer by layer; what one layer lets through is seen in the gradient of the embedding."""
    window = KINDS[kind]["attention_sliding_window_length"]
    network = make(kind, num_hidden_layers=1)
    dense_first = kind == "gpt3"
    embedded = network.embeddings(make_ids(1, 10)).detach().requires_grad_()
    network.embeddings.forward = lambda *args, **kwargs: embedded  # type: ignore[method-assign,assignment]
    network.hidden(make_ids(1, 10))[0, 8].square().sum().backward()
    assert embedded.grad is not None
    seen = embedded.grad[0].abs().sum(-1) > 0
    expected = torch.zeros(10, dtype=torch.bool)
    expected[(0 if dense_first else 9 - window) : 9] = True
    assert torch.equal(seen, expected)


def test_gpt3_bands_are_every_other_layer() -> None:
    banded, dense = make("gpt3"), make("gpt2")
    dense.load_state_dict(banded.state_dict())
    short, long = make_ids(1, 4), make_ids(1, 12)
    torch.testing.assert_close(banded(short), dense(short))
    assert not torch.allclose(banded(long)[:, -1], dense(long)[:, -1])
    # Dense, banded, dense: by hand, with masks that are written out.
    x = banded.embeddings(long)
    later = torch.ones(12, 12, dtype=torch.bool).triu(1)
    far = torch.ones(12, 12, dtype=torch.bool).tril(-4)
    for layer, mask in zip(banded.decoder.layers, (later, later | far, later), strict=True):
        x = layer(x, tgt_mask=mask)
    expected = F.linear(banded.decoder.norm(x), banded.embeddings.weight)
    torch.testing.assert_close(banded(long), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["gpt2", "gptj", "untied"])
def test_without_masks_the_kernel_hides_later_tokens(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    kernel = F.scaled_dot_product_attention

    def watch(*args: Any, **kwargs: Any) -> Tensor:
        calls.append(kwargs)
        return kernel(*args, **kwargs)

    monkeypatch.setattr(attention_bias.F, "scaled_dot_product_attention", watch)
    network = make(kind)
    network(make_ids(2, 5), labels=make_ids(2, 5), label_weights=torch.ones(2, 5))
    assert len(calls) == SIZES["num_hidden_layers"]
    assert all(call["is_causal"] and call.get("attn_mask") is None for call in calls)


@each_kind
def test_training_makes_no_whole_logits(kind: str) -> None:
    network = make(kind)
    ids = make_ids(4, 30)
    shapes: set[tuple[int, ...]] = set()

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            shapes.update(
                tuple(t.shape) for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, Tensor)
            )
            return result

    with Watch():
        network(ids, labels=ids).backward()
    assert shapes
    assert not any(math.prod(shape) == ids.numel() * SIZES["vocab_size"] for shape in shapes)


@pytest.mark.parametrize("scaling", ["num_tokens", "batch_size"])
@pytest.mark.parametrize("kind", ["gpt2", "gptj"])
def test_loss_is_the_zoos(kind: str, scaling: str) -> None:
    weight = 1.0 if scaling == "num_tokens" else 0.25
    network = make(kind, loss_scaling=scaling, loss_weight=weight)
    ids, labels = make_ids(3, 7), make_ids(3, 7).flip(0)
    mask = (torch.arange(7) < torch.tensor([[7], [3], [1]])).int()
    expected = GPTLMHeadModelLoss(SIZES["vocab_size"], scaling, weight)(network(ids), labels, mask)
    torch.testing.assert_close(network(ids, labels=labels, label_weights=mask), expected)
    ignored = labels.masked_fill(mask == 0, -100)
    torch.testing.assert_close(network(ids, labels=ignored), expected)


def test_loss_of_nothing_is_zero_and_teaches_nothing() -> None:
    network, ids = make("gpt2"), make_ids(2, 4)
    loss = network(ids, labels=ids, label_weights=torch.zeros(2, 4))
    loss.backward()
    assert loss == 0
    assert all(p.grad is None or not p.grad.any() for p in network.parameters())


def test_first_weights_are_as_published() -> None:
    torch.manual_seed(0)
    network = Gpt({**SIZES, "hidden_size": 96, "filter_size": 384, "num_hidden_layers": 8})
    layers = [layer.state_dict() for layer in network.decoder.layers]
    added, others = 0.02 / math.sqrt(16), 0.02
    for name, std in {
        "self_attn.in_proj_weight": others,
        "self_attn.out_proj.weight": added,
        "linear1.weight": others,
        "linear2.weight": added,
    }.items():
        assert all(abs(float(layer[name].std()) / std - 1) < 0.05 for layer in layers), name
        assert not torch.equal(layers[0][name], layers[1][name])
    assert abs(float(network.embeddings.weight.detach().std()) / others - 1) < 0.05
    assert all(not layer[name].any() for layer in layers for name in layer if name.endswith("bias"))


def test_first_weights_of_gptj_are_those_of_its_own_code() -> None:
    torch.manual_seed(0)
    sizes = {**SIZES, "hidden_size": 96, "filter_size": 384, "num_hidden_layers": 6, "rotary_dim": 16}
    network = Gpt({**sizes, "initializer_range": None, "share_embedding_weights": False})
    cut = 0.8796  # a normal cut at two standard deviations has so much of its standard deviation
    layer = network.decoder.layers[5].state_dict()
    for weight, std in (
        (layer["self_attn.in_proj_weight"], 96**-0.5),
        (layer["linear1.weight"], 96**-0.5),
        (layer["linear2.weight"], 2 / 6 * 96**-0.5),
        (layer["self_attn.out_proj.weight"], 2 / 6 * 96**-0.5),
        (network.head.weight, 96**-0.5),
        (network.embeddings.weight, 43**-0.5),
    ):
        assert abs(float(weight.detach().std()) / (cut * std) - 1) < 0.05


@pytest.mark.parametrize("kind", ["gpt2", "gpt3", "gptj"])
def test_one_graph_for_a_compiler(kind: str) -> None:
    network = make(kind, num_hidden_layers=2).float()
    network.train()
    graphs: list[Any] = []

    def keep(graph: Any, example_inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(network, backend=keep, fullgraph=True)
    ids, documents = make_ids(2, 6), torch.tensor([[0, 0, 0, 1, 1, 1]]).expand(2, 6)
    for options in ({}, {"document_ids": documents}):
        torch.manual_seed(3)
        loss = compiled(ids, labels=ids, label_weights=torch.ones(2, 6), **options)
        torch.manual_seed(3)
        torch.testing.assert_close(loss, network(ids, labels=ids, label_weights=torch.ones(2, 6), **options))
    assert len(graphs) == 2
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_ids_of_any_integer_type(dtype: torch.dtype) -> None:
    network, ids = make("gpt2"), make_ids(2, 5)
    loss = network(ids.to(dtype), labels=ids.to(dtype))
    assert torch.equal(loss, network(ids, labels=ids))


@pytest.mark.parametrize("shape", [(1, 1), (0, 4), (1, 32)])
def test_smallest_and_longest_batches(shape: tuple[int, int]) -> None:
    assert make("gpt2")(make_ids(*shape)).shape == (*shape, SIZES["vocab_size"])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_heads": 5}, "num_heads 5"),
        ({"rotary_dim": 10}, "rotary_dim is 10"),
        ({"rotary_dim": 3}, "rotary_dim is 3"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"vocab_size": None}, "vocab_size is None"),
        ({"nonlinearity": "gleu"}, "gelu"),
    ],
)
def test_params_that_fit_no_model_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        Gpt({**SIZES, **options})


def test_inputs_that_do_not_fit_are_refused() -> None:
    network, ids = make("gpt2"), make_ids(2, 5)
    caches = network.make_cache()
    network(ids, past_kv=caches)
    for named, arguments in {
        "attention_mask has shape": {"attention_mask": torch.ones(2, 4)},
        "document_ids has shape": {"document_ids": torch.zeros(2, 4)},
        "labels has shape": {"labels": ids[:, :4]},
        "label_weights have the shape": {"labels": ids, "label_weights": torch.ones(2)},
        "document_ids were given with a cache": {"document_ids": ids, "past_kv": caches},
        "cached ones first": {"attention_mask": torch.ones(2, 5), "past_kv": caches},
        "position_ids has shape": {"position_ids": torch.zeros(3, 5, dtype=torch.long)},
    }.items():
        with pytest.raises(UserError, match=named):
            network(ids, **arguments)
    with pytest.raises(UserError, match=r"input_ids has shape \(2,\)"):
        network(ids[:, 0])
    with pytest.raises(UserError, match="Token 43"):
        network(torch.full((1, 2), 43))
    with pytest.raises(UserError, match="does not fit in 32 positions"):
        network(make_ids(1, 33))
    with pytest.raises(UserError, match="Target 43"):
        network(ids, labels=torch.full((2, 5), 43))


@each_kind
def test_plain_ops_give_the_same(kind: str) -> None:
    network, ids = make(kind), make_ids(2, 7)
    expected = network(ids), network(ids, labels=ids)
    caches = network.make_cache()
    with plain_ops():
        got = network(ids), network(ids, labels=ids)
        pieces = [network(piece, past_kv=caches) for piece in ids.split([3, 1, 3], dim=1)]
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(torch.cat(pieces, dim=1), expected[0], rtol=1e-10, atol=1e-10)
