"""U-Net (Ronneberger, Fischer, Brox 2015): halves the resolution, doubles it again, and joins both ways at each resolution.

Tensors are [batch, channels, height, width], in channels_last memory where torch's own kernels run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from portwright.errors import UserError, suggest
from portwright.layers.activations import get_activation
from portwright.layers.initializers import get_initializer
from portwright.layers.norm_relu import norm_relu
from portwright.networks.image_memory import double, fit, put_channels_last

_KERNELS = {"3x3_conv": 3, "1x1_conv": 1}
_IN_PLACE = {"relu": nn.ReLU, "leaky_relu": nn.LeakyReLU, "elu": nn.ELU}
_CHOICES = {
    "downscale_method": ("max_pool", "strided_conv"),
    "upscale_method": ("transposed_conv", "bilinear"),
    "padding": ("same", "valid"),
}


@dataclass(frozen=True)
class UNetOptions:
    """The options of a U-Net, named as in the model zoo; defaults are the paper's, but for `padding`."""

    input_channels: int = 1
    num_outputs: int = 1
    encoder_filters: Sequence[int] = (64, 128, 256, 512, 1024)  # the bottleneck last
    decoder_filters: Sequence[int] = (512, 256, 128, 64)
    initial_conv_filters: int | None = None
    convs_per_block: Sequence[str] = ("3x3_conv", "3x3_conv")
    skip_connect: bool = True
    residual_blocks: bool = False
    downscale_method: str = "max_pool"
    upscale_method: str = "transposed_conv"
    padding: str = "same"  # "valid", as in the paper: the output is smaller than the image
    batch_norm: bool = False
    enable_bias: bool = True  # no bias before a batch norm, which would cancel it
    nonlinearity: str = "relu"
    dropout_rate: float = 0.0  # at the end of the way down
    initializer: Any = "glorot_uniform"
    bias_initializer: Any = "zeros"

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> UNetOptions:
        """The options in the section `model` of params.yaml; keys of other parts are ignored."""
        options = cls(**{each.name: params[each.name] for each in fields(cls) if each.name in params})
        options.check()
        return options

    def check(self) -> None:
        if not self.decoder_filters or len(self.encoder_filters) != len(self.decoder_filters) + 1:
            raise UserError(
                f"model.encoder_filters has {len(self.encoder_filters)} depths and decoder_filters {len(self.decoder_filters)}.",
                "Give one more encoder depth, the bottleneck, and at least one decoder depth.",
            )
        if not self.convs_per_block:
            raise UserError("model.convs_per_block is empty.", "Give at least one, such as 3x3_conv.")
        for kind in self.convs_per_block:
            if kind not in _KERNELS:
                raise UserError(f"model.convs_per_block has '{kind}'.", suggest(str(kind), _KERNELS))
        for name, valid in _CHOICES.items():
            value = getattr(self, name)
            if value not in valid:
                raise UserError(f"model.{name} is '{value}'.", suggest(str(value), valid))
        if self.padding == "valid" and not self.lost_by_a_block:
            raise UserError(
                "model.padding is 'valid', and no convolution of convs_per_block would pad.",
                "Have a 3x3_conv among them, or leave padding at same.",
            )

    @property
    def lost_by_a_block(self) -> int:
        """The number of rows that a block's convolutions remove where they do not pad."""
        return sum(_KERNELS[kind] - 1 for kind in self.convs_per_block) if self.padding == "valid" else 0


class UNet(nn.Module):
    """Images [batch, input_channels, height, width] to logits [batch, num_outputs, height, width], of any size.

    With `padding: valid` convolutions do not pad, and there are logits only for the middle of the image, of size
    `output_size`.
    """

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__()
        self.options = options = UNetOptions.from_params(params)
        *encoder, bottleneck = options.encoder_filters
        width = options.input_channels
        if options.initial_conv_filters:
            self.initial: nn.Module = ConvNorm(width, options.initial_conv_filters, 3, options)
            width = options.initial_conv_filters
        else:
            self.initial = nn.Identity()
        self.encoders, self.downs = nn.ModuleList(), nn.ModuleList()
        for filters in encoder:
            self.encoders.append(ConvBlock(width, filters, options))
            self.downs.append(make_down(filters, options))
            width = filters
        self.bottleneck = ConvBlock(width, bottleneck, options)
        self.dropout = nn.Dropout(options.dropout_rate)
        self.ups, self.decoders = nn.ModuleList(), nn.ModuleList()
        width = bottleneck
        for filters, passed in zip(options.decoder_filters, reversed(encoder), strict=True):
            self.ups.append(make_up(width, filters, options))
            joined = filters + passed if options.skip_connect else filters
            self.decoders.append(ConvBlock(joined, filters, options))
            width = filters
        self.head = nn.Conv2d(width, options.num_outputs, 1, bias=options.enable_bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the weights anew; in a transposed convolution's weight the inputs are the first dimension."""
        fill, fill_bias = (
            get_initializer(self.options.initializer),
            get_initializer(self.options.bias_initializer),
        )
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
                    is_transposed = isinstance(module, nn.ConvTranspose2d)
                    fill(module.weight.transpose(0, 1) if is_transposed else module.weight)
                    if module.bias is not None:
                        fill_bias(module.bias)
                elif isinstance(module, nn.BatchNorm2d):
                    module.reset_parameters()

    def forward(self, images: Tensor) -> Tensor:
        self._check(images)
        x = self.initial(put_channels_last(images))
        passed = []
        for encode, shrink in zip(self.encoders, self.downs, strict=True):
            x = encode(x)
            passed.append(x)
            x = shrink(x)
        x = self.dropout(self.bottleneck(x))
        for grow, decode in zip(self.ups, self.decoders, strict=True):
            x = decode(self._join(grow(x), passed.pop()))
        return self.head(x)

    def _join(self, x: Tensor, passed: Tensor) -> Tensor:
        """Joins both at one size: where convolutions pad, that of the image, else the smaller one."""
        if self.options.padding == "valid":
            return torch.cat([fit(passed, *x.shape[2:]), x], 1) if self.options.skip_connect else x
        x = fit(x, *passed.shape[2:])
        return torch.cat([passed, x], 1) if self.options.skip_connect else x

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of an image's logits; a UserError where none would be left."""
        return self._output_length(height, "height"), self._output_length(width, "width")

    def _output_length(self, length: int, name: str) -> int:
        options, lost = self.options, self.options.lost_by_a_block
        size = length - (2 if options.initial_conv_filters and lost else 0)
        for depth in range(len(options.decoder_filters)):
            size = size - lost
            size = (size + 1) // 2 if options.downscale_method == "strided_conv" else size // 2
            if size < 1:
                raise UserError(
                    f"images of {name} {length} are gone after {depth + 1} of {len(options.decoder_filters)} halvings.",
                    "Take larger images, fewer entries of encoder_filters and decoder_filters, or padding: same.",
                )
        if not lost:
            return length
        size = size - lost
        for _ in options.decoder_filters:
            size = 2 * size - lost
        if size < 1:
            raise UserError(
                f"images of {name} {length} leave no pixel that all convolutions see whole.",
                "Take larger images, or padding: same.",
            )
        return size

    def _check(self, images: Tensor) -> None:
        if images.dim() != 4 or images.shape[1] != self.options.input_channels:
            raise UserError(
                f"images have the shape {tuple(images.shape)}.",
                f"Give [batch, {self.options.input_channels}, height, width], or set model.input_channels.",
            )
        self.output_size(images.shape[2], images.shape[3])


class ConvNorm(nn.Module):
    """A convolution, an optional batch norm, and the nonlinearity unless it is applied later."""

    def __init__(
        self,
        num_in: int,
        num_out: int,
        kernel: int,
        options: UNetOptions,
        stride: int = 1,
        activates: bool = True,
    ) -> None:
        super().__init__()
        padding = kernel // 2 if options.padding == "same" or stride > 1 else 0
        has_bias = options.enable_bias and not options.batch_norm
        self.conv = nn.Conv2d(num_in, num_out, kernel, stride, padding, bias=has_bias)
        self.norm = nn.BatchNorm2d(num_out) if options.batch_norm else nn.Identity()
        self.activation = make_activation(options.nonlinearity) if activates else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        if isinstance(self.activation, nn.ReLU) and isinstance(self.norm, nn.BatchNorm2d):
            return norm_relu(self.norm, x)
        return self.activation(self.norm(x))


class ConvBlock(nn.Module):
    """The convolutions of one resolution; a residual block adds its input before the last nonlinearity."""

    def __init__(self, num_in: int, num_out: int, options: UNetOptions) -> None:
        super().__init__()
        kernels = [_KERNELS[kind] for kind in options.convs_per_block]
        last = len(kernels) - 1 if options.residual_blocks else None
        sizes = [num_in, *[num_out] * len(kernels)]
        self.convs = nn.Sequential(
            *(
                ConvNorm(sizes[index], num_out, kernel, options, activates=index != last)
                for index, kernel in enumerate(kernels)
            )
        )
        self.is_residual = options.residual_blocks
        if self.is_residual:
            equal = num_in == num_out
            self.shortcut = nn.Identity() if equal else ConvNorm(num_in, num_out, 1, options, activates=False)
            self.activation = make_activation(options.nonlinearity)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.convs(x)
        if self.is_residual:
            made = self.activation(made + fit(self.shortcut(x), *made.shape[2:]))
        return made


class BilinearUp(nn.Module):
    """A 1 x 1 convolution, then twice the resolution: both are linear, and in this order the convolution has fewer pixels."""

    def __init__(self, num_in: int, num_out: int, options: UNetOptions) -> None:
        super().__init__()
        self.conv = nn.Conv2d(num_in, num_out, 1, bias=options.enable_bias)

    def forward(self, x: Tensor) -> Tensor:
        return double(self.conv(x), "bilinear")


class DoublingConv(nn.ConvTranspose2d):
    """A transposed convolution of 2 x 2 with stride 2: its windows do not overlap, so that it is one matrix product.

    A compiler on a GPU gets that product, since it can fuse moving the pixels into the concatenation that follows.
    """

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        if torch.compiler.is_compiling() and input.is_cuda and output_size is None:
            return double_by_product(input, self.weight, self.bias)
        return super().forward(input, output_size)


def double_by_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """F.conv_transpose2d(x, weight, bias, stride=2) for a weight [in, out, 2, 2]."""
    batch, _, height, width = x.shape
    num_out = weight.shape[1]
    flat = weight.permute(2, 3, 1, 0).reshape(4 * num_out, -1)
    made = torch.nn.functional.linear(x.permute(0, 2, 3, 1), flat, None if bias is None else bias.repeat(4))
    corners = made.view(batch, height, width, 2, 2, num_out).permute(0, 1, 3, 2, 4, 5)
    return corners.reshape(batch, 2 * height, 2 * width, num_out).permute(0, 3, 1, 2)


class Activation(nn.Module):
    """A nonlinearity of portwright.layers, by its name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.function = get_activation(name)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def make_activation(name: str) -> nn.Module:
    """A nonlinearity, in place where its gradient needs only the result; the layer before it keeps only its own input."""
    return _IN_PLACE[name](inplace=True) if name in _IN_PLACE else Activation(name)


def make_down(filters: int, options: UNetOptions) -> nn.Module:
    if options.downscale_method == "max_pool":
        return nn.MaxPool2d(2)
    return ConvNorm(filters, filters, 3, options, stride=2)


def make_up(num_in: int, num_out: int, options: UNetOptions) -> nn.Module:
    if options.upscale_method == "bilinear":
        return BilinearUp(num_in, num_out, options)
    return DoublingConv(num_in, num_out, 2, stride=2, bias=options.enable_bias)
