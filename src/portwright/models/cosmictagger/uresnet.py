"""UResNet: a U-Net of residual blocks over the three planes of a detector, which share all weights but the deepest."""

from __future__ import annotations

from network_options import NetworkOptions
from torch import Tensor, nn
from uresnet_blocks import (
    LEAK,
    NUM_PLANES,
    ConcatSkip,
    ConvBlock,
    InterpolatedUp,
    MergedPlanes,
    NeighbourPlanes,
    NoSkip,
    PooledDown,
    SumSkip,
    TransposedUp,
    make_series,
)

from portwright import UserError
from portwright.networks.image_memory import put_channels_last

NUM_CLASSES = 3


class Descent(nn.Module):
    """Blocks of one resolution and the step down to the next; gives the next input and the tensor kept for the way up."""

    def __init__(self, level: int, options: NetworkOptions) -> None:
        super().__init__()
        here, below = options.num_filters(level), options.num_filters(level + 1)
        self.blocks = make_series(options.blocks_per_layer, here, options)
        if options.downsampling == "max_pooling":
            self.shrink: nn.Module = PooledDown(here, below, options)
        else:
            slope = 0.0 if options.is_3d else LEAK
            self.shrink = ConvBlock(here, below, options, kernel=2, stride=2, slope=slope)
        self.is_3d = options.is_3d

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        made = self.blocks(x)
        return self.shrink(made), made if self.is_3d else x


class Ascent(nn.Module):
    """The step up to a resolution, its blocks, and the join with the tensor kept there: before the blocks in 2D, after them in 3D."""

    def __init__(self, level: int, options: NetworkOptions) -> None:
        super().__init__()
        here, below = options.num_filters(level), options.num_filters(level + 1)
        up = InterpolatedUp if options.upsampling == "interpolation" else TransposedUp
        self.grow = up(below, here, options)
        self.skip = make_skip(here, options)
        self.blocks = make_series(options.blocks_per_layer, here, options)
        self.is_3d = options.is_3d

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        x = self.grow(x)
        return self.skip(self.blocks(x), kept) if self.is_3d else self.blocks(self.skip(x, kept))


def make_skip(num_filters: int, options: NetworkOptions) -> nn.Module:
    if options.connections == "concat":
        return ConcatSkip(num_filters, options)
    return SumSkip() if options.connections == "sum" else NoSkip()


class UResNet(nn.Module):
    """Images [batch, 3 planes, height, width] to logits [3 planes * batch, 3 classes, height, width].

    The logits of the first plane come first; `chunk(3)` gives the three tensors that the original returns.
    """

    def __init__(self, options: NetworkOptions) -> None:
        super().__init__()
        self.options = options
        first, deepest = options.num_filters(0), options.num_filters(options.depth)
        self.stem = ConvBlock(1, first, options, kernel=5)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()  # of each level, full resolution first
        for level in range(options.depth):
            self.down.append(Descent(level, options))
            self.up.append(Ascent(level, options))
        self.deepest = (NeighbourPlanes if options.is_3d else MergedPlanes)(deepest, options)
        self.final = make_series(options.blocks_final, first, options)
        self.head = nn.Conv2d(first, NUM_CLASSES, 1, bias=options.bias)
        if not options.is_3d:
            by_level = [part for pair in zip(self.down, self.up, strict=True) for part in pair]
            for part in (self.stem, *by_level, self.deepest, self.final, self.head):
                part.apply(init_xavier)

    def forward(self, images: Tensor) -> Tensor:
        self._check(images)
        x = self.stem(put_channels_last(images.transpose(0, 1).flatten(0, 1).unsqueeze(1)))
        skipped = []
        for descend in self.down:
            x, kept = descend(x)
            skipped.append(kept)
        x = self.deepest(x)
        for ascend in reversed(self.up):
            x = ascend(x, skipped.pop())
        return self.head(self.final(x))

    def _check(self, images: Tensor) -> None:
        factor = 1 << self.options.depth
        if images.dim() != 4 or images.shape[1] != NUM_PLANES:
            raise UserError(
                f"images have the shape {tuple(images.shape)}.", "Give [batch, 3 planes, height, width]."
            )
        if images.shape[2] % factor or images.shape[3] % factor:
            raise UserError(
                f"images of {images.shape[2]} x {images.shape[3]} cannot be halved {self.options.depth} times.",
                f"Take multiples of {factor}, or a smaller model.depth.",
            )


def init_xavier(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
