from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from portwright.errors import UserError
from portwright.losses import token_cross_entropy, tokens


@settings(max_examples=80, deadline=None)
@given(
    shape=st.sampled_from([(5,), (3, 4), (2, 2, 3), (1, 1), (0, 3)]),
    vocab=st.integers(1, 12),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    smoothing=st.sampled_from([0.0, 0.3]),
    target_type=st.sampled_from([torch.int64, torch.int32, torch.uint8]),
    seed=st.integers(0, 100),
)
def test_equals_cross_entropy_of_widened_logits(shape, vocab, dtype, smoothing, target_type, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(*shape, vocab, generator=generator) * 3).to(dtype).requires_grad_()
    targets = torch.randint(0, vocab, shape, generator=generator).to(target_type)
    wide = torch.promote_types(dtype, torch.float32)
    expected = F.cross_entropy(
        logits.to(wide).reshape(-1, vocab),
        targets.reshape(-1).long(),
        reduction="none",
        label_smoothing=smoothing,
    ).reshape(shape)
    losses = token_cross_entropy(logits, targets, label_smoothing=smoothing)
    torch.testing.assert_close(losses, expected)
    ramp = torch.arange(losses.numel(), dtype=wide).reshape(shape)
    (ours,) = torch.autograd.grad((losses * ramp).sum(), [logits])
    (theirs,) = torch.autograd.grad((expected * ramp).sum(), [logits])
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_many_chunks_give_what_one_gives(monkeypatch, dtype):
    logits = torch.randn(200, 7).to(dtype).requires_grad_()
    targets = torch.randint(0, 7, (200,))
    targets[::5] = -100
    whole = token_cross_entropy(logits, targets)
    (expected,) = torch.autograd.grad(whole.sum(), [logits])
    monkeypatch.setattr(tokens, "chunk_length", lambda vocab_size, device: 64)
    parts = token_cross_entropy(logits, targets)
    assert torch.equal(whole, parts)
    assert torch.equal(expected, torch.autograd.grad(parts.sum(), [logits])[0])
    assert not whole[::5].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_compiles_and_exports_as_plain_operators(dtype):
    class Loss(torch.nn.Module):
        def forward(self, logits, targets):
            return token_cross_entropy(logits, targets)

    logits, targets = torch.randn(6, 5).to(dtype), torch.randint(0, 5, (6,))
    expected = token_cross_entropy(logits, targets)
    compiled = torch.compile(Loss(), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(logits, targets), expected)
    program = torch.export.export(Loss(), (logits, targets))
    torch.testing.assert_close(program.module()(logits, targets), expected)
    targets_of_graph = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert targets_of_graph
    assert all(name.startswith("aten.") for name in targets_of_graph)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_works_on_tensors_without_values(dtype):
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        logits = torch.randn(6, 5, dtype=dtype, requires_grad=True)
        losses = token_cross_entropy(logits, torch.zeros(6, dtype=torch.long))
        losses.sum().backward()
    assert losses.shape == (6,)
    assert logits.grad is not None


def test_maps_over_an_ensembles_logits():
    logits, targets = torch.randn(4, 6, 5), torch.randint(0, 5, (4, 6))
    mapped = torch.func.vmap(token_cross_entropy)(logits, targets)
    torch.testing.assert_close(mapped, token_cross_entropy(logits, targets))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.tensor([0, 9]), "Target 9 is outside a vocabulary of 4"),
        (torch.tensor([0, -5]), "Target -5"),
        (torch.tensor([0.0, 1.0]), "float32"),
        (torch.tensor([True, False]), "bool"),
        (torch.tensor([0]), r"\(1,\)"),
    ],
)
def test_bad_targets_are_named(dtype, targets, message):
    with pytest.raises(UserError, match=message):
        token_cross_entropy(torch.randn(2, 4, dtype=dtype), targets)
