"""The alphabet's models: the conversion changes no number, and the seed's literal form does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from portwright.losses import GPTLMHeadModelLoss
from portwright.models.alphabet import (
    cb_transformer,
    literal_transformer,
    pytorch_transformer,
    tutorial_transformer,
)

SIZES = [
    {"ntoken": 26, "d_model": 64, "nhead": 2, "d_hid": 64, "nlayers": 2, "max_len": 10},  # params.yaml's
    {"ntoken": 7, "d_model": 6, "nhead": 3, "d_hid": 5, "nlayers": 1, "max_len": 4, "activation": "relu"},
    {"ntoken": 30, "d_model": 16, "nhead": 1, "d_hid": 40, "nlayers": 3, "max_len": 25},
]


def make(module: Any, seed: int = 1, **sizes: Any) -> Any:
    torch.manual_seed(seed)
    return module.TransformerModel(**{"dropout": 0.0, **sizes})


def converted(original: nn.Module, **sizes: Any) -> Any:
    model = make(cb_transformer, seed=2, **sizes)
    model.load_state_dict(cb_transformer.state_from_pytorch(original.state_dict()))
    return model


def letters(ntoken: int, length: int, batch: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(ntoken, (batch, length), generator=generator, dtype=torch.int32)


def mask(length: int) -> Tensor:
    return pytorch_transformer.generate_square_subsequent_mask(length)


@pytest.mark.parametrize("sizes", SIZES)
def test_the_three_modifications_keep_the_numbers(sizes: dict[str, Any]) -> None:
    tutorial, modified = make(tutorial_transformer, **sizes), make(pytorch_transformer, **sizes)
    ids = letters(sizes["ntoken"], sizes["max_len"])
    before = tutorial(ids.T, tutorial_transformer.generate_square_subsequent_mask(sizes["max_len"]))
    torch.testing.assert_close(
        modified(ids, mask(sizes["max_len"])), before.transpose(0, 1), rtol=0, atol=2e-6
    )


def test_the_mask_is_half_and_finite() -> None:
    made = mask(4)
    assert made.dtype == torch.float16
    assert made.isfinite().all()
    assert made[0, 1] == torch.finfo(torch.float16).min
    assert made.tril().count_nonzero() == 0


@pytest.mark.parametrize("length", [1, 3, 10])
def test_short_sequences_fit(length: int) -> None:
    """They do not with the axis that the seed slices."""
    model = make(pytorch_transformer, **SIZES[0])
    ids = letters(26, length)
    scores = model(ids, mask(length))
    assert scores.shape == (5, length, 26)
    torch.testing.assert_close(converted(model, **SIZES[0])(ids, mask(length)), scores, rtol=0, atol=1e-5)
    embedded, as_in_the_seed = model.encoder(ids), model.pos_encoder.pe[: ids.size(1)]
    if length == 1:
        assert (embedded + as_in_the_seed).shape == (5, 10, 64), "one letter became ten"
    elif length < 10:
        with pytest.raises(RuntimeError, match="size of tensor"):
            _ = embedded + as_in_the_seed


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("is_training", [True, False])
def test_the_layers_give_the_same_scores_and_gradients(sizes: dict[str, Any], is_training: bool) -> None:
    original = make(pytorch_transformer, **sizes).train(is_training)
    model = converted(original, **sizes).train(is_training)
    ids = letters(sizes["ntoken"], sizes["max_len"])
    scores = [each(ids, mask(sizes["max_len"])) for each in (original, model)]
    torch.testing.assert_close(scores[1], scores[0], rtol=0, atol=1e-5)
    for each in scores:
        each.square().mean().backward()
    gradients = {name: parameter.grad for name, parameter in original.named_parameters()}
    for name, gradient in cb_transformer.state_from_pytorch(gradients).items():
        torch.testing.assert_close(model.get_parameter(name).grad, gradient, rtol=0, atol=1e-5)


@pytest.mark.parametrize("variant", ["layers", "literal"])
def test_losses_over_twenty_steps(variant: str) -> None:
    """Equal to 1e-5 for the faithful conversion; the same test sees that the literal one is another model."""
    original = make(pytorch_transformer, **SIZES[0])
    if variant == "layers":
        model = converted(original, **SIZES[0])
    else:
        model = make(literal_transformer, **SIZES[0])
        state = cb_transformer.state_from_pytorch(original.state_dict())
        model.load_state_dict({name: state[name] for name in model.state_dict()})
    losses = [train(each, num_steps=20) for each in (original, model)]
    differences = [abs(a - b) for a, b in zip(*losses, strict=True)]
    if variant == "layers":
        assert max(differences) <= 1e-5
    else:
        assert min(differences) > 1e-3


def train(model: nn.Module, num_steps: int) -> list[float]:
    loss_fn = GPTLMHeadModelLoss(26, 1 / 26)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-6, weight_decay=0.01)
    generator = torch.Generator().manual_seed(4)
    losses = []
    for _ in range(num_steps):
        slices = torch.randint(16, (32, 1), generator=generator) + torch.arange(11)
        loss = loss_fn(model(slices[:, :-1], mask(10)), slices[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_dropout_comes_where_the_tutorial_has_it() -> None:
    sizes = {**SIZES[0], "dropout": 0.3}
    original = make(pytorch_transformer, **sizes)
    model = converted(original, **sizes)
    ids = letters(26, 10)
    torch.manual_seed(5)
    before = original.pos_encoder(original.encoder(ids) * 8.0)
    torch.manual_seed(5)
    torch.testing.assert_close(model.encoder(ids), before)
    assert (before == 0).float().mean() > 0.2
    torch.manual_seed(5)
    literal = make(literal_transformer, **sizes)
    assert (literal.encoder(ids) == 0).float().mean() < 0.1


def test_the_state_carries_over_by_name() -> None:
    original = make(pytorch_transformer, **SIZES[0])
    state = cb_transformer.state_from_pytorch(original.state_dict())
    model = make(cb_transformer, **SIZES[0])
    assert set(state) == set(model.state_dict())
    assert state["encoder.word_embeddings.weight"] is not None
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in original.parameters())


def test_the_literal_form_has_no_biases_but_those_of_norms_and_decoder() -> None:
    names = {
        name for name, _ in make(literal_transformer, **SIZES[0]).named_parameters() if name.endswith("bias")
    }
    assert names == {
        "decoder.bias",
        *(f"transformer_encoder.layers.{layer}.norm{norm}.bias" for layer in (0, 1) for norm in (1, 2)),
    }
