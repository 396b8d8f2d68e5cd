"""U-Net beside a plain re-statement of the paper's equations: functional convolutions, pools and concatenations, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from portwright.errors import UserError
from portwright.networks import UNet
from portwright.networks.image_memory import _double_along, double, fit, put_channels_last

SMALL = {"encoder_filters": [4, 6, 8], "decoder_filters": [6, 4]}
Weights = dict[str, Tensor]


def restate(weights: Weights, x: Tensor, o: dict[str, Any], training: bool = True) -> Tensor:
    """U-Net with the canonical names of its weights; what is said here is the paper's, and the options' in so many words."""
    valid = o.get("padding") == "valid"

    def norm(name: str, y: Tensor) -> Tensor:
        if not o.get("batch_norm"):
            return y
        statistics = weights[f"{name}.running_mean"].clone(), weights[f"{name}.running_var"].clone()
        return F.batch_norm(y, *statistics, weights[f"{name}.weight"], weights[f"{name}.bias"], training)

    def conv(name: str, y: Tensor, stride: int = 1, activates: bool = True) -> Tensor:
        kernel = weights[f"{name}.conv.weight"]
        padding = 0 if valid and stride == 1 else kernel.shape[2] // 2
        y = norm(f"{name}.norm", F.conv2d(y, kernel, weights.get(f"{name}.conv.bias"), stride, padding))
        return activation(y) if activates else y

    def activation(y: Tensor) -> Tensor:
        return F.gelu(y) if o.get("nonlinearity") == "gelu" else F.relu(y)

    def block(name: str, y: Tensor) -> Tensor:
        number = len(o.get("convs_per_block", (1, 2)))
        made = y
        for index in range(number):
            is_last = index == number - 1
            made = conv(f"{name}.convs.{index}", made, activates=not (is_last and o.get("residual_blocks")))
        if not o.get("residual_blocks"):
            return made
        through = y if y.shape[1] == made.shape[1] else conv(f"{name}.shortcut", y, activates=False)
        cut = (through.shape[2] - made.shape[2]) // 2, (through.shape[3] - made.shape[3]) // 2
        return activation(
            made + through[:, :, cut[0] : cut[0] + made.shape[2], cut[1] : cut[1] + made.shape[3]]
        )

    if o.get("initial_conv_filters"):
        x = conv("initial", x)
    kept = []
    for depth in range(len(o["decoder_filters"])):
        x = block(f"encoders.{depth}", x)
        kept.append(x)
        x = (
            conv(f"downs.{depth}", x, stride=2)
            if o.get("downscale_method") == "strided_conv"
            else F.max_pool2d(x, 2)
        )
    x = block("bottleneck", x)
    for depth in range(len(o["decoder_filters"])):
        if o.get("upscale_method") == "bilinear":  # in the order of words: interpolated, then convolved
            x = F.interpolate(x, scale_factor=2, mode="bilinear")
            x = F.conv2d(x, weights[f"ups.{depth}.conv.weight"], weights.get(f"ups.{depth}.conv.bias"))
        else:
            x = F.conv_transpose2d(x, weights[f"ups.{depth}.weight"], weights.get(f"ups.{depth}.bias"), 2)
        skip = kept.pop()
        if valid:
            down, across = (skip.shape[2] - x.shape[2]) // 2, (skip.shape[3] - x.shape[3]) // 2
            skip = skip[:, :, down : down + x.shape[2], across : across + x.shape[3]]
        else:
            more = skip.shape[2] - x.shape[2], skip.shape[3] - x.shape[3]
            first = int(more[0] / 2), int(more[1] / 2)  # negative ones cut
            x = F.pad(x, (first[1], more[1] - first[1], first[0], more[0] - first[0]))
        x = block(f"decoders.{depth}", torch.cat([skip, x], 1) if o.get("skip_connect", True) else x)
    return F.conv2d(x, weights["head.weight"], weights.get("head.bias"))


CASES: dict[str, dict[str, Any]] = {
    "as published": {"padding": "valid", "num_outputs": 2},
    "padded": {},
    "batch norm": {"batch_norm": True, "num_outputs": 3, "input_channels": 3},
    "no skips": {"skip_connect": False},
    "strided": {"downscale_method": "strided_conv", "batch_norm": True},
    "bilinear": {"upscale_method": "bilinear"},
    "residual": {"residual_blocks": True, "batch_norm": True},
    "residual, valid": {"residual_blocks": True, "padding": "valid"},
    "one convolution and a first one": {
        "convs_per_block": ["3x3_conv", "1x1_conv", "3x3_conv"],
        "initial_conv_filters": 5,
        "enable_bias": False,
    },
    "first one, valid": {"initial_conv_filters": 5, "padding": "valid", "convs_per_block": ["3x3_conv"]},
    "another nonlinearity": {"nonlinearity": "gelu", "upscale_method": "bilinear", "batch_norm": True},
}


@pytest.mark.parametrize("size", [(64, 64), (61, 47)], ids=["even", "odd"])
@pytest.mark.parametrize("name", CASES)
def test_logits_and_gradients_are_those_of_the_equations(name: str, size: tuple[int, int]) -> None:
    torch.manual_seed(1)
    options = {**SMALL, **CASES[name]}
    network = UNet(options).double()
    images = torch.randn(2, options.get("input_channels", 1), *size, dtype=torch.float64)
    own = {key: value.detach().clone() for key, value in network.state_dict().items()}
    trained = dict(network.named_parameters())
    plain = {key: value.requires_grad_(key in trained) for key, value in own.items()}
    first, second = images.clone().requires_grad_(), images.clone().requires_grad_()
    logits, stated = network(first), restate(plain, second, options)
    assert logits.shape[2:] == network.output_size(*size)
    torch.testing.assert_close(logits, stated, rtol=1e-10, atol=1e-11)
    weight = torch.randn_like(logits)
    (logits * weight).sum().backward()
    (stated * weight).sum().backward()
    torch.testing.assert_close(first.grad, second.grad, rtol=1e-8, atol=1e-9)
    for key, parameter in network.named_parameters():
        torch.testing.assert_close(parameter.grad, plain[key].grad, rtol=1e-8, atol=1e-8, msg=key)
    network.eval()
    told = {key: value.detach() for key, value in network.state_dict().items()}
    torch.testing.assert_close(network(images), restate(told, images, options, training=False))


def test_the_published_network_has_the_published_sizes() -> None:
    with torch.device("meta"):
        network = UNet({"padding": "valid", "num_outputs": 2})
        assert network(torch.empty(1, 1, 572, 572)).shape == (1, 2, 388, 388)
    assert network.output_size(572, 572) == (388, 388)
    assert sum(parameter.numel() for parameter in network.parameters()) == 31_030_658


@settings(max_examples=25, deadline=None)
@given(height=st.integers(4, 40), width=st.integers(4, 40), strided=st.booleans(), bilinear=st.booleans())
def test_every_size_comes_out_as_it_went_in(height: int, width: int, strided: bool, bilinear: bool) -> None:
    options = {
        **SMALL,
        "downscale_method": "strided_conv" if strided else "max_pool",
        "upscale_method": "bilinear" if bilinear else "transposed_conv",
    }
    assert UNet(options)(torch.zeros(1, 1, height, width)).shape == (1, 1, height, width)


@settings(max_examples=25, deadline=None)
@given(height=st.integers(1, 90), initial=st.booleans())
def test_what_is_left_without_padding_is_foretold(height: int, initial: bool) -> None:
    network = UNet({**SMALL, "padding": "valid", "initial_conv_filters": 3 if initial else None})
    try:
        expected = network.output_size(height, 64)
    except UserError:
        with pytest.raises((UserError, RuntimeError)):
            network(torch.zeros(1, 1, height, 64))
        return
    assert network(torch.zeros(1, 1, height, 64)).shape[2:] == expected


def test_no_bias_is_kept_where_a_norm_would_take_it_away() -> None:
    names = [name for name, _ in UNet({**SMALL, "batch_norm": True}).named_parameters()]
    assert not [name for name in names if name.endswith("conv.bias")]
    assert "ups.0.bias" in names
    assert "head.bias" in names


def test_memory_stays_channels_last_from_the_image_to_the_logits() -> None:
    seen = []
    network = UNet({**SMALL, "batch_norm": True, "num_outputs": 4})
    for module in network.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_hook(lambda _m, args, made: seen.extend([args[0], made]))
    network(torch.randn(2, 1, 16, 16))
    assert len(seen) > 10
    assert all(x.is_contiguous(memory_format=torch.channels_last) for x in seen)


def test_initial_weights_are_those_asked_for() -> None:
    torch.manual_seed(0)
    options = {"initializer": {"name": "kaiming_normal", "nonlinearity": "relu"}, "bias_initializer": "ones"}
    network = UNet(options)
    weight = network.bottleneck.convs[1].conv.weight
    assert weight.std().item() == pytest.approx((2 / (9 * 1024)) ** 0.5, rel=0.01)
    up = network.ups[0].weight  # every output sees 1024 inputs by each of four weights
    assert up.std().item() == pytest.approx((2 / (4 * 1024)) ** 0.5, rel=0.01)
    assert (network.head.bias == 1).all()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"encoder_filters": [4, 8], "decoder_filters": [8, 4]}, "one more encoder depth"),
        ({"encoder_filters": [4], "decoder_filters": []}, "one more encoder depth"),
        ({"convs_per_block": []}, "convs_per_block"),
        ({"convs_per_block": ["3x3"]}, "3x3_conv"),
        ({"downscale_method": "maxpool"}, "Did you mean 'max_pool'"),
        ({"upscale_method": "nearest"}, "bilinear"),
        ({"padding": "full"}, "valid"),
        ({"padding": "valid", "convs_per_block": ["1x1_conv"]}, "3x3_conv"),
        ({"nonlinearity": "rellu"}, "relu"),
        ({"initializer": "glorot"}, "glorot_uniform"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError, match=text):
        UNet({**SMALL, **options})


@pytest.mark.parametrize("shape", [(1, 3, 16, 16), (1, 16, 16), (1, 1, 3, 16)])
def test_images_that_do_not_fit_are_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="images"):
        UNet(SMALL)(torch.zeros(shape))


def test_doubling_without_a_kernel_is_doubling() -> None:
    x = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    torch.testing.assert_close(_double_along(_double_along(x, 2), 3), double(x, "bilinear"))
    one = torch.randn(1, 1, 1, 1)
    torch.testing.assert_close(_double_along(_double_along(one, 2), 3), double(one, "bilinear"))


def test_fitting_cuts_and_pads_evenly() -> None:
    x = torch.arange(25.0).reshape(1, 1, 5, 5)
    assert fit(x, 5, 5) is x
    assert fit(x, 3, 3).equal(x[:, :, 1:4, 1:4])
    assert fit(x, 8, 5).equal(F.pad(x, (0, 0, 1, 2)))
    assert fit(x, 3, 6).equal(F.pad(x[:, :, 1:4], (0, 1)))
    assert fit(x, 4, 2).equal(x[:, :, 0:4, 1:3])
    assert fit(x, 4, 6).equal(F.pad(x[:, :, 0:4], (0, 1)))


def test_one_channel_is_marked_as_channels_last() -> None:
    x = put_channels_last(torch.randn(2, 1, 4, 6))
    assert x.stride() == (24, 1, 6, 1)
    assert put_channels_last(torch.randn(2, 3, 4, 6)).is_contiguous(memory_format=torch.channels_last)
