"""A port's tensors are found when the original's values, copied to where they were matched, make it compute the same."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from portwright.verify.matching import Known, Link, match_tensors
from portwright.verify.matching_known import Layout, find_layout


def known_of(model: nn.Module, x: torch.Tensor | None = None, prefix: str = "") -> list[Known]:
    """As the recorder sees a model; with an input, the order of its calls too."""
    called: dict[int, int] = {}

    def note(module: nn.Module, *_: object) -> None:
        called.setdefault(id(module), len(called))

    handles = [module.register_forward_hook(note) for module in model.modules()]
    if x is not None:
        with torch.no_grad():
            model(x)
    for handle in handles:
        handle.remove()
    found: dict[int, tuple[str, list[str], torch.Tensor, str, nn.Module]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for kind, own in (("parameter", module._parameters), ("buffer", module._buffers)):
            for name, tensor in own.items():
                if tensor is None:
                    continue
                full = ".".join(filter(None, (prefix, path, name)))
                if id(tensor) in found:
                    found[id(tensor)][1].append(full)
                else:
                    found[id(tensor)] = full, [], tensor, kind, module
    return [
        Known(full, tensor.detach(), kind, type(owner).__name__, tuple(aliases), called.get(id(owner), -1))
        for full, aliases, tensor, kind, owner in found.values()
    ]


def copy_over(
    original: nn.Module, ported: nn.Module, x: torch.Tensor, *, with_calls: bool = True
) -> list[Link]:
    ours = known_of(original, x if with_calls else None)
    theirs = known_of(ported, x if with_calls else None)
    links = match_tensors(ours, theirs)
    values, targets = {k.name: k.values for k in ours}, {k.name: k.values for k in theirs}
    for link in links:
        parts = [targets[name] for name in link.ported]
        link.layout.set_ported(values[link.original], parts)
        assert torch.equal(link.layout.to_original(parts), values[link.original])
    return links


class Attention(nn.Module):
    """nn.MultiheadAttention's numbers from three projections, or from one that is fused."""

    def __init__(self, width: int, heads: int, fused: str = "") -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        if fused == "qkv":
            self.qkv = nn.Linear(width, 3 * width)
        elif fused == "conv1d":
            self.c_attn = Conv1D(3 * width, width)
        elif fused == "kv":
            self.to_kv = nn.Linear(width, 2 * width)
            self.to_q = nn.Linear(width, width)
        else:
            self.value, self.query, self.key = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fused in ("qkv", "conv1d"):
            q, k, v = (self.qkv if self.fused == "qkv" else self.c_attn)(x).chunk(3, -1)
        elif self.fused == "kv":
            q, (k, v) = self.to_q(x), self.to_kv(x).chunk(2, -1)
        else:
            q, k, v = self.query(x), self.key(x), self.value(x)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class TorchAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(width, heads, batch_first=True)
        nn.init.normal_(self.mha.in_proj_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mha(x, x, x, need_weights=False)[0]


class Conv1D(nn.Module):
    """HuggingFace's: a Linear whose weight is turned."""

    def __init__(self, num_out: int, num_in: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_in, num_out))
        self.bias = nn.Parameter(torch.randn(num_out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


class Stack(nn.Module):
    """Blocks with norms, whose parts can be registered in any order and under any names."""

    def __init__(self, names: dict[str, str], order: list[str], attention: Any, depth: int = 2) -> None:
        super().__init__()
        make = {
            "attention": attention,
            "first": lambda: nn.LayerNorm(8),
            "second": lambda: nn.LayerNorm(8),
            "up": lambda: nn.Linear(8, 8),
            "down": lambda: nn.Linear(8, 8),
        }
        self.names = names
        blocks = [nn.ModuleDict({names[part]: make[part]() for part in order}) for _ in range(depth)]
        setattr(self, names["blocks"], nn.ModuleList(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in getattr(self, self.names["blocks"]):
            part = {key: block[name] for key, name in self.names.items() if key != "blocks"}
            x = x + part["attention"](part["first"](x))
            x = x + part["down"](F.gelu(part["up"](part["second"](x))))
        return x


PARTS = ["attention", "first", "second", "up", "down"]
PLAIN = {
    "blocks": "layers",
    "attention": "attn",
    "first": "norm1",
    "second": "norm2",
    "up": "fc1",
    "down": "fc2",
}
OTHER = {"blocks": "h", "attention": "mix", "first": "pre", "second": "post", "up": "a", "down": "b"}


@pytest.mark.parametrize("fused", ["", "qkv", "conv1d", "kv"])
@pytest.mark.parametrize("is_ported_fused", [True, False])
def test_attention_fused_or_not(fused: str, is_ported_fused: bool) -> None:
    torch.manual_seed(0)
    one = Stack(PLAIN, PARTS, lambda: TorchAttention(8, 2))
    other = Stack(OTHER, PARTS[::-1], lambda: Attention(8, 2, fused))
    original, ported = (one, other) if is_ported_fused else (other, one)
    x = torch.randn(2, 5, 8)
    links = copy_over(original, ported, x)
    assert {link.original for link in links} == {known.name for known in known_of(original)}
    torch.testing.assert_close(ported(x), original(x))


def test_fused_values_that_are_the_same_are_found_by_them() -> None:
    torch.manual_seed(0)
    original, ported = TorchAttention(8, 2), Attention(8, 2)
    weight = original.mha.in_proj_weight.detach()
    for number, part in enumerate((ported.query, ported.key, ported.value)):
        part.weight.data.copy_(weight[8 * number : 8 * number + 8])
    links = {link.original: link for link in match_tensors(known_of(original), known_of(ported))}
    assert links["mha.in_proj_weight"].by == "values"
    assert links["mha.in_proj_weight"].ported == ("query.weight", "key.weight", "value.weight")
    back = {link.original: link for link in match_tensors(known_of(ported), known_of(original))}
    assert back["key.weight"].layout == Layout(cut=(0, 8, 16))


def test_two_attentions_in_a_layer() -> None:
    class Decoder(nn.Module):
        """A block that looks at itself and at a memory, with its attentions made in either order."""

        def __init__(self, make: Any, names: tuple[str, str], order: tuple[str, str]) -> None:
            super().__init__()
            self.names = names
            self.steps = nn.ModuleList(nn.ModuleDict({name: make() for name in order}) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for step in self.steps:
                x = x + step[self.names[0]](x)
                x = x + step[self.names[1]](x.flip(1))
            return x

    torch.manual_seed(0)
    one = Decoder(lambda: TorchAttention(8, 2), ("own", "memory"), ("own", "memory"))
    other = Decoder(lambda: Attention(8, 2), ("b", "a"), ("a", "b"))
    x = torch.randn(2, 5, 8)
    for original, ported in ((one, other), (other, one)):
        for parameter in ported.parameters():
            nn.init.normal_(parameter, std=0.3)
        copy_over(original, ported, x)
        torch.testing.assert_close(ported(x), original(x))


def test_order_of_calls_tells_equal_layers_apart() -> None:
    class Twins(nn.Module):
        def __init__(self, names: tuple[str, str], order: tuple[str, str]) -> None:
            super().__init__()
            self.names = names
            for name in order:
                setattr(self, name, nn.Linear(6, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first, second = (getattr(self, name) for name in self.names)
            return second(torch.tanh(first(x)))

    torch.manual_seed(0)
    original, ported = Twins(("in_", "out_"), ("in_", "out_")), Twins(("u", "t"), ("t", "u"))
    x = torch.randn(3, 6)
    copy_over(original, ported, x)
    torch.testing.assert_close(ported(x), original(x))


def test_layers_that_are_copies_of_one() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    original = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
    ported = nn.ModuleDict({"blocks": nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).layers})
    links = match_tensors(known_of(original), known_of(ported))
    assert len(links) == 12 * 12
    for link in links:
        assert link.ported == (link.original.replace("layers.", "blocks."),)


@pytest.mark.parametrize(
    ("original", "ported", "shape"),
    [
        (lambda: nn.Linear(4, 6), lambda: nn.Conv1d(4, 6, 1), (3, 4)),
        (lambda: nn.Conv1d(4, 6, 3), lambda: nn.Conv2d(4, 6, (1, 3)), (2, 4, 9)),
        (lambda: nn.Conv1d(4, 6, 3), lambda: nn.Conv2d(4, 6, (3, 1)), (2, 4, 9)),
        (lambda: nn.Linear(4, 6), lambda: Conv1D(6, 4), (3, 4)),
        (lambda: nn.Linear(5, 5), lambda: Conv1D(5, 5), (3, 5)),
    ],
)
def test_layouts_by_shape(original: Any, ported: Any, shape: tuple[int, ...]) -> None:
    ours, theirs = original(), ported()
    x = torch.randn(shape)
    copy_over(ours, theirs, x, with_calls=False)
    expected = ours(x)
    if isinstance(theirs, nn.Conv1d):
        got = theirs(x.unsqueeze(-1)).squeeze(-1)
    elif isinstance(theirs, nn.Conv2d):
        axis = 2 if theirs.kernel_size[0] == 1 else 3
        got = theirs(x.unsqueeze(axis)).squeeze(axis)
    else:
        got = theirs(x)
    torch.testing.assert_close(got, expected)


def test_values_tell_a_turn_that_the_shape_does_not() -> None:
    square = torch.randn(4, 4)
    (link,) = match_tensors([Known("a.weight", square)], [Known("b.kernel", square.t().contiguous())])
    assert link.layout.permutation == (1, 0)
    assert link.by == "values"


def test_wrappers_are_seen_through() -> None:
    norm = nn.Sequential(nn.LayerNorm(4), nn.LayerNorm(4), nn.BatchNorm1d(4))
    ours, theirs = known_of(norm, prefix=""), known_of(norm, prefix="model.module._orig_mod")
    links = match_tensors(ours, theirs)
    assert len(links) == len(ours)
    for link in links:
        assert link.ported == (f"model.module._orig_mod.{link.original}",)
        assert link.by == "name"


def test_tied_weights_have_either_name() -> None:
    class Tied(nn.Module):
        def __init__(self, head_first: bool) -> None:
            super().__init__()
            parts: list[tuple[str, nn.Module]] = [
                ("embed", nn.Embedding(7, 4)),
                ("head", nn.Linear(4, 7, bias=False)),
            ]
            for name, module in reversed(parts) if head_first else parts:
                setattr(self, name, module)
            self.head.weight = self.embed.weight

    links = match_tensors(known_of(Tied(False)), known_of(Tied(True)))
    assert [(link.original, link.ported, link.by) for link in links] == [
        ("embed.weight", ("head.weight",), "name")
    ]


def test_statistics_are_not_taken_for_weights_or_for_each_other() -> None:
    ours, theirs = known_of(nn.BatchNorm1d(4)), known_of(nn.BatchNorm1d(4), prefix="other.bn")
    assert {link.original: link.ported[0] for link in match_tensors(ours, theirs)} == {
        name: f"other.bn.{name}"
        for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }


def test_a_bias_that_is_gone_is_missing_alone() -> None:
    ours = known_of(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)))
    theirs = known_of(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 2)))
    assert {k.name for k in ours} - {link.original for link in match_tensors(ours, theirs)} == {"1.bias"}


def test_numbers_in_names_that_moved() -> None:
    torch.manual_seed(0)
    original = nn.Sequential(
        nn.Linear(6, 6), nn.ReLU(), nn.LayerNorm(6), nn.Linear(6, 6), nn.ReLU(), nn.LayerNorm(6)
    )
    ported = nn.Sequential(original[0], original[2], original[3], original[5])
    links = {link.original: link.ported[0] for link in match_tensors(known_of(original), known_of(ported))}
    assert links == {
        f"{old}.{leaf}": f"{new}.{leaf}"
        for old, new in ((0, 0), (2, 1), (3, 2), (5, 3))
        for leaf in ("weight", "bias")
    }


def test_two_networks_under_other_names() -> None:
    def make(names: list[str]) -> nn.ModuleDict:
        torch.manual_seed(0)
        parts = {
            name: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 4)) for name in ("g", "d")
        }
        return nn.ModuleDict(OrderedDict((new, parts[old]) for new, old in (n.split("=") for n in names)))

    links = match_tensors(known_of(make(["G=g", "D=d"])), known_of(make(["critic=d", "maker=g"])))
    pairs = {"G": "maker", "D": "critic"}
    assert len(links) == 18
    for link in links:
        root, _, rest = link.original.partition(".")
        assert link.ported == (f"{pairs[root]}.{rest}",)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_renamed_and_reordered_weights_are_found_by_their_values(data: st.DataObject) -> None:
    shapes = data.draw(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=8))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    ours = [
        Known(f"m.{i}.weight", torch.randn(shape, generator=generator, dtype=torch.float64))
        for i, shape in enumerate(shapes)
        if torch.Size(shape).numel() > 1
    ]
    order = data.draw(st.permutations(range(len(ours))))
    theirs = []
    for place in order:
        values = ours[place].values
        turned = values.permute(data.draw(st.permutations(range(values.ndim)))).contiguous()
        theirs.append(Known(f"x.{data.draw(st.integers(0, 9))}{place}.w", turned))
    links = match_tensors(ours, theirs)
    assert len(links) == len(ours)
    held = {known.name: known.values for known in theirs}
    for link, original in zip(links, ours, strict=True):
        assert link.original == original.name
        assert torch.equal(link.layout.to_original([held[n] for n in link.ported]), original.values)


def test_find_layout_of_other_numbers_is_none() -> None:
    assert find_layout(torch.arange(6.0), torch.arange(6.0) + 1) is None
    assert find_layout(torch.arange(6.0), torch.arange(5.0)) is None


def test_nothing_to_match() -> None:
    assert match_tensors([], []) == []
    assert match_tensors([Known("a", torch.ones(3))], []) == []


class Twins(nn.Module):
    """Layers of one shape, made in one order and called in another."""

    def __init__(self, made: str, called: str) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.called = called
        for name in made:
            setattr(self, name, nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in self.called:
            x = torch.relu(getattr(self, name)(x))
        return x


@pytest.mark.parametrize("made", ["bac", "cab", "cba"])
def test_layers_of_one_shape_that_are_made_in_another_order_keep_their_names(made: str) -> None:
    x = torch.randn(2, 4)
    original, ported = Twins("abc", "abc"), Twins(made, "abc")
    links = copy_over(original, ported, x)
    assert all(link.ported == (link.original,) for link in links)
    assert torch.equal(original(x), ported(x))


def test_layers_that_exchanged_their_names_are_found_by_the_order_of_their_calls() -> None:
    x = torch.randn(2, 4)
    original, ported = Twins("abc", "abc"), Twins("bac", "bac")
    links = copy_over(original, ported, x)
    assert {link.original: link.ported for link in links}["a.weight"] == ("b.weight",)
    assert torch.equal(original(x), ported(x))


def test_names_that_moved_on_by_one_are_no_exchange() -> None:
    original = nn.Sequential(*(nn.Linear(3, 3) for _ in range(3)))
    ported = nn.Sequential(nn.Identity(), *(nn.Linear(3, 3) for _ in range(3)))
    for ours, theirs in zip(original, ported[1:], strict=True):
        theirs.load_state_dict(ours.state_dict())
    links = match_tensors(known_of(original), known_of(ported))
    assert {link.original: link.ported[0] for link in links}["0.weight"] == "1.weight"
    assert {link.original: link.ported[0] for link in links}["1.weight"] == "2.weight"
