"""Weights of the public CosmicTagger under our names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from network_options import NetworkOptions
from torch import Tensor

from portwright import UserError

_DDP_PREFIX = "module."


def state_from_original(state: Mapping[str, Tensor], options: NetworkOptions) -> dict[str, Tensor]:
    """The `state_dict` of its UResNet or UResNet3D, for `load_state_dict` of ours with the same options.

    3D kernels lose the axis that they do not reach over; those that reach over three planes become 1 x 1 kernels over
    the channels of all three. What distributed training put before the names is taken off.
    """
    theirs = {name.removeprefix(_DDP_PREFIX): tensor for name, tensor in state.items()}
    made: dict[str, Tensor] = {}
    for ours, original in _layers(options):
        for part in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
            if f"{original}.{part}" in theirs:
                made[f"{ours}.{part}"] = _flat(theirs.pop(f"{original}.{part}"))
    if theirs:
        raise UserError(
            f"{len(theirs)} of the original's tensors have no place here, the first one {next(iter(theirs))}.",
            "Give the options that the original was trained with.",
        )
    return made


def _flat(tensor: Tensor) -> Tensor:
    if tensor.dim() < 5:
        return tensor
    return tensor.transpose(1, 2).flatten(1, 2)


def _layers(options: NetworkOptions) -> Iterator[tuple[str, str]]:
    """Pairs of names, ours and the original's, of everything that may have weights."""
    yield from _block("stem", "initial_convolution")
    core = "net_core"
    for level in range(options.depth):
        down, up = f"down.{level}", f"up.{level}"
        yield from _series(f"{down}.blocks", f"{core}.down_blocks", options.blocks_per_layer, options)
        if options.downsampling == "max_pooling":
            yield from _block(f"{down}.shrink.block", f"{core}.downsample.bottleneck")
        else:
            yield from _block(f"{down}.shrink", f"{core}.downsample")
        is_interpolated = options.upsampling == "interpolation"
        yield from _block(
            f"{up}.grow", f"{core}.upsample.bottleneck" if is_interpolated else f"{core}.upsample"
        )
        yield from _block(f"{up}.skip", f"{core}.connection.bottleneck")
        yield from _series(f"{up}.blocks", f"{core}.up_blocks", options.blocks_per_layer, options)
        core += ".main_module"
    core += ".main_module"
    enter, leave = ("merger", "splitter") if options.is_3d else ("bottleneck", "unbottleneck")
    yield from _block("deepest.enter", f"{core}.{enter}")
    yield from _series("deepest.blocks", f"{core}.blocks", options.blocks_deepest_layer, options)
    yield from _block("deepest.leave", f"{core}.{leave}")
    yield from _series("final", "final_layer", options.blocks_final, options)
    yield "head", "bottleneck"


def _block(ours: str, original: str) -> Iterator[tuple[str, str]]:
    for part in ("conv", "norm"):
        yield f"{ours}.{part}", f"{original}.{part}"


def _series(ours: str, original: str, num_blocks: int, options: NetworkOptions) -> Iterator[tuple[str, str]]:
    for number in range(num_blocks):
        block = f"{original}.block_{number}" if options.is_3d else f"{original}.blocks.{number}"
        if options.residual:
            yield from _block(f"{ours}.{number}.first", f"{block}.convolution_1")
            yield from _block(f"{ours}.{number}.second", f"{block}.convolution_2")
        else:
            yield from _block(f"{ours}.{number}", block)
