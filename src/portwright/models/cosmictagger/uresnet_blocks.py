"""The parts of UResNet: convolution blocks, ways down and up, and skips between equal resolutions."""

from __future__ import annotations

import torch
from network_options import NetworkOptions
from plane_norm import finish
from torch import Tensor, nn
from torch.nn import functional as F

from portwright.layers.plain_ops import is_eager
from portwright.networks.image_memory import double

NUM_PLANES = 3
LEAK = 0.01


class NormedConv(nn.Module):
    """A convolution and what follows it; the batch norm has statistics of each plane in 2D, and of all in 3D and where
    `merged` says that the input holds all planes of an event in its channels."""

    def __init__(
        self,
        conv: nn.Module,
        num_out: int,
        options: NetworkOptions,
        slope: float = LEAK,
        merged: bool = False,
    ) -> None:
        super().__init__()
        self.conv = conv
        self.norm = nn.BatchNorm2d(num_out) if options.normalization == "batch" else None
        self.slope, self.num_norms = slope, 1 if merged or options.is_3d else NUM_PLANES

    def finish(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return finish(x, self.norm, self.num_norms, self.slope, residual)


class ConvBlock(NormedConv):
    """A convolution, norm and rectifier."""

    def __init__(
        self,
        num_in: int,
        num_out: int,
        options: NetworkOptions,
        kernel: int = 3,
        stride: int = 1,
        slope: float = LEAK,
        merged: bool = False,
    ) -> None:
        padding = 0 if stride > 1 else (kernel - 1) // 2
        conv = nn.Conv2d(num_in, num_out, kernel, stride, padding, bias=options.bias)
        super().__init__(conv, num_out, options, slope, merged)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return self.finish(self.conv(x), residual)


class ResidualBlock(nn.Module):
    """Two convolutions whose result is added to their input."""

    def __init__(self, num_filters: int, options: NetworkOptions, kernel: int, merged: bool) -> None:
        super().__init__()
        self.first = ConvBlock(num_filters, num_filters, options, kernel, merged=merged)
        self.second = ConvBlock(num_filters, num_filters, options, kernel, merged=merged)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x), residual=x)


def make_series(
    num_blocks: int, num_filters: int, options: NetworkOptions, kernel: int = 3, merged: bool = False
) -> nn.Sequential:
    if options.residual:
        return nn.Sequential(
            *(ResidualBlock(num_filters, options, kernel, merged) for _ in range(num_blocks))
        )
    return nn.Sequential(
        *(ConvBlock(num_filters, num_filters, options, kernel, merged=merged) for _ in range(num_blocks))
    )


class PooledDown(nn.Module):
    """Half the resolution by maxima, then a 1 x 1 convolution."""

    def __init__(self, num_in: int, num_out: int, options: NetworkOptions) -> None:
        super().__init__()
        self.block = ConvBlock(num_in, num_out, options, kernel=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(F.max_pool2d(x, 2))


class InterpolatedUp(NormedConv):
    """A 1 x 1 convolution and twice the resolution: bilinear in 2D, by the nearest neighbour in 3D.

    The original interpolates first. Both are linear and interpolation weights sum to one, so that the order is free, and
    a quarter of the pixels is cheaper.
    """

    def __init__(self, num_in: int, num_out: int, options: NetworkOptions) -> None:
        super().__init__(nn.Conv2d(num_in, num_out, 1, bias=options.bias), num_out, options)
        self.mode = "nearest" if options.is_3d else "bilinear"

    def forward(self, x: Tensor) -> Tensor:
        return self.finish(double(self.conv(x), self.mode))


class TransposedUp(NormedConv):
    """Twice the resolution by a transposed convolution, 2 x 2 with stride 2."""

    def __init__(self, num_in: int, num_out: int, options: NetworkOptions) -> None:
        conv = nn.ConvTranspose2d(num_in, num_out, 2, 2, bias=options.bias)
        super().__init__(conv, num_out, options, slope=0.0 if options.is_3d else LEAK)

    def forward(self, x: Tensor) -> Tensor:
        return self.finish(self.conv(x))


class ConcatSkip(NormedConv):
    """A 1 x 1 convolution over both tensors' channels, as two convolutions, to avoid concatenating them."""

    def __init__(self, num_filters: int, options: NetworkOptions) -> None:
        conv = nn.Conv2d(2 * num_filters, num_filters, 1, bias=options.bias)
        super().__init__(conv, num_filters, options)

    def forward(self, x: Tensor, skipped: Tensor) -> Tensor:
        of_x, of_skipped = self.conv.weight.chunk(2, dim=1)
        both, second = F.conv2d(x, of_x, self.conv.bias), F.conv2d(skipped, of_skipped)
        both = both.add_(second) if is_eager(both) else both + second
        return self.finish(both)


class SumSkip(nn.Module):
    def forward(self, x: Tensor, skipped: Tensor) -> Tensor:
        return x + skipped


class NoSkip(nn.Module):
    def forward(self, x: Tensor, skipped: Tensor) -> Tensor:
        return x


class MergedPlanes(nn.Module):
    """The deepest level of the 2D network: the planes of an event as channels of one image."""

    def __init__(self, num_filters: int, options: NetworkOptions) -> None:
        super().__init__()
        self.merged = not options.block_concat
        width = num_filters * NUM_PLANES if self.merged else num_filters
        inner, kernel = options.bottleneck_deepest, options.filter_size_deepest
        self.enter = ConvBlock(width, inner, options, kernel=1, merged=self.merged)
        self.blocks = make_series(options.blocks_deepest_layer, inner, options, kernel, self.merged)
        self.leave = ConvBlock(inner, width, options, kernel=1, merged=self.merged)

    def forward(self, x: Tensor) -> Tensor:
        if self.merged:
            x = torch.cat(x.chunk(NUM_PLANES), dim=1)
        x = self.leave(self.blocks(self.enter(with_channels_first(x))))
        return with_channels_last(torch.cat(x.chunk(NUM_PLANES, dim=1)) if self.merged else x)


class NeighbourPlanes(nn.Module):
    """The deepest level of the 3D network: kernels that reach over three planes enter and leave it.

    Such a kernel is a 1 x 1 convolution over the channels of a plane and of its two neighbours, where those of the first
    and last plane that are missing hold zeros.
    """

    def __init__(self, num_filters: int, options: NetworkOptions) -> None:
        super().__init__()
        inner, kernel = options.bottleneck_deepest, options.filter_size_deepest
        self.enter = ConvBlock(num_filters * 3, inner, options, kernel=1)
        self.blocks = make_series(options.blocks_deepest_layer, inner, options, kernel)
        self.leave = ConvBlock(inner * 3, num_filters, options, kernel=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.enter(with_neighbours(with_channels_first(x))))
        return with_channels_last(self.leave(with_neighbours(x)))


def with_neighbours(x: Tensor) -> Tensor:
    planes = x.chunk(NUM_PLANES)
    nothing = torch.zeros_like(planes[0])
    before, after = torch.cat([nothing, *planes[:-1]]), torch.cat([*planes[1:], nothing])
    return torch.cat([before, x, after], dim=1)


def with_channels_first(x: Tensor) -> Tensor:
    """Channels first in memory on a CPU: at this depth weights outnumber pixels, and their gradients are twice as fast."""
    return x.contiguous() if is_eager(x) and x.device.type == "cpu" else x


def with_channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if is_eager(x) else x
