"""Our UResNet beside the public one: the same weights give the same outputs, gradients and running statistics."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from unit.models.cosmic_folder import load, original, original_options

uresnet, blocks, weights = load("uresnet"), load("uresnet_blocks"), load("original_weights")
SMALL: dict[str, Any] = {
    "depth": 2,
    "n_initial_filters": 4,
    "bottleneck_deepest": 10,
    "blocks_final": 2,
    "blocks_deepest_layer": 2,
}
CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "3D": {"conv_mode": "conv_3D"},
    "multiplicative": {"growth_rate": "multiplicative"},
    "strided": {"downsampling": "convolutional"},
    "transposed": {"upsampling": "convolutional"},
    "sum": {"connections": "sum"},
    "no skips": {"connections": "none"},
    "no norms": {"normalization": "none"},
    "plain blocks": {"residual": False},
    "no biases": {"bias": False},
    "planes apart": {"block_concat": True},
    "no blocks": {"blocks_final": 0, "blocks_per_layer": 0, "blocks_deepest_layer": 0},
    "flat": {"depth": 0},
    "kernel of 7": {"filter_size_deepest": 7},
    "A21": {"residual": False, "blocks_final": 0, "connections": "sum"},
    "3D convolutional": {"conv_mode": "conv_3D", "downsampling": "convolutional", "upsampling": "convolutional"},
    "3D sum, no norms": {"conv_mode": "conv_3D", "connections": "sum", "normalization": "none", "residual": False},
    "3D no skips": {"conv_mode": "conv_3D", "connections": "none", "growth_rate": "multiplicative"},
}  # fmt: skip


def make_pair(theirs: Any, options: Any) -> tuple[nn.Module, nn.Module]:
    """The original with weights and statistics off their starting points, and ours with the same."""
    torch.manual_seed(3)
    given = original_options(options, theirs.config)
    if options.is_3d:
        peer = theirs.uresnet3d.UResNet3D(given, None)
    else:
        peer = theirs.uresnet2d.UResNet(given)
    with torch.no_grad():
        for name, tensor in peer.state_dict().items():
            if tensor.dtype == torch.float32:
                drawn = torch.randn_like(tensor) * 0.1
                tensor.copy_(1 + drawn.abs() if name.endswith("running_var") else tensor + drawn)
    network = uresnet.UResNet(options)
    network.load_state_dict(weights.state_from_original(peer.state_dict(), options))
    return peer, network


def squares(planes: Any) -> Tensor:
    return torch.stack([(plane.double() ** 2).mean() * (p + 1) for p, plane in enumerate(planes)]).sum()


@pytest.mark.parametrize("is_training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("case", CASES)
def test_outputs_gradients_and_statistics(case: str, is_training: bool) -> None:
    options = blocks.NetworkOptions(**{**SMALL, **CASES[case]})
    with original() as theirs:
        peer, network = make_pair(theirs, options)
    # In double precision a wrong operation cannot hide behind rounding.
    peer, network = peer.double().train(is_training), network.double().train(is_training)
    images = torch.randn(2, 3, 24, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    outputs = [peer(images), network(images).chunk(3)]
    for expected, got in zip(*outputs, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-10)
    for each in outputs:
        squares(each).backward()
    gradients = {name: parameter.grad for name, parameter in peer.named_parameters()}
    expected_gradients = weights.state_from_original(gradients, options)
    assert set(expected_gradients) == {name for name, _ in network.named_parameters()}
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(
            network.get_parameter(name).grad,
            gradient,
            rtol=1e-7,
            atol=1e-10,
            msg=lambda m, n=name: f"{n}: {m}",
        )
    state = network.state_dict()
    for name, tensor in weights.state_from_original(peer.state_dict(), options).items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-10, atol=1e-12)


def test_ten_steps_of_training() -> None:
    """Both with the same optimizer: what is saved by hand for backward stays right from step to step."""
    options = blocks.NetworkOptions(**SMALL)
    with original() as theirs:
        peer, network = make_pair(theirs, options)
    losses: list[list[float]] = []
    for each in (peer.double(), network.double()):
        generator = torch.Generator().manual_seed(2)
        optimizer = torch.optim.SGD(each.parameters(), lr=1e-3, momentum=0.9)
        losses.append([])
        for _ in range(10):
            out = each(torch.randn(2, 3, 24, 16, dtype=torch.float64, generator=generator))
            loss = squares(out.chunk(3) if each is network else out)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-8)
    assert losses[0][-1] < losses[0][0]


@pytest.mark.parametrize("name", ["UResNet", "A21", "SCC21", "Polaris", "UResNet3D"])
def test_the_published_configurations_have_the_same_weights(name: str) -> None:
    """Every tensor of the original finds its place, with its shape."""
    with original() as theirs, torch.device("meta"):
        published = getattr(theirs.config, name)()
        fields = {
            key: getattr(value, "name", value)
            for key, value in vars(published).items()
            if key in blocks.NetworkOptions.model_fields
        }
        options = blocks.NetworkOptions(**fields)
        given = original_options(options, theirs.config)
        peer = theirs.uresnet3d.UResNet3D(given, None) if options.is_3d else theirs.uresnet2d.UResNet(given)
        network = uresnet.UResNet(options)
        made = weights.state_from_original(peer.state_dict(), options)
    assert {k: v.shape for k, v in made.items()} == {k: v.shape for k, v in network.state_dict().items()}


def test_names_of_a_distributed_run() -> None:
    options = blocks.NetworkOptions(**SMALL)
    with original() as theirs:
        peer, network = make_pair(theirs, options)
    state = {f"module.{name}": tensor for name, tensor in peer.state_dict().items()}
    assert set(weights.state_from_original(state, options)) == set(network.state_dict())


def test_weights_of_other_options_are_refused() -> None:
    from portwright import UserError

    with original() as theirs:
        peer, _ = make_pair(theirs, blocks.NetworkOptions(**SMALL))
    with pytest.raises(UserError, match=r"have no place here, the first one net_core"):
        weights.state_from_original(peer.state_dict(), blocks.NetworkOptions(**{**SMALL, "depth": 1}))
