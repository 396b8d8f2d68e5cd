"""The options of the network, which the section `model` of params.yaml has too."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, field_validator


class NetworkOptions(BaseModel):
    """The shape of a UResNet; names and defaults are those of the public CosmicTagger. Other keys are passed over."""

    model_config = ConfigDict(frozen=True)

    conv_mode: Literal["conv_2D", "conv_3D"] = Field("conv_2D", description="UResNet2D or UResNet3D")
    n_initial_filters: PositiveInt = Field(16, description="filters at full resolution")
    depth: int = Field(6, ge=0, description="times that the resolution is halved on the way down")
    growth_rate: Literal["additive", "multiplicative"] = Field(
        "additive", description="n_initial_filters more a level, or twice as many"
    )
    blocks_per_layer: int = Field(
        2, ge=0, description="blocks of a level, on the way down and again on the way up"
    )
    blocks_final: int = Field(5, ge=0, description="blocks at full resolution before the last convolution")
    blocks_deepest_layer: int = Field(5, ge=0, description="blocks of the deepest level")
    bottleneck_deepest: PositiveInt = Field(256, description="filters of the deepest level")
    filter_size_deepest: PositiveInt = Field(5, description="kernel of the deepest level; odd")
    block_concat: bool = Field(False, description="keep the planes apart in the deepest level of UResNet2D")
    residual: bool = Field(
        True, description="blocks of two convolutions and a residual, or of one convolution"
    )
    bias: bool = Field(True, description="biases in convolutions")
    normalization: Literal["batch", "none"] = Field("batch", description="norm after each convolution")
    downsampling: Literal["max_pooling", "convolutional"] = "max_pooling"
    upsampling: Literal["interpolation", "convolutional"] = "interpolation"
    connections: Literal["concat", "sum", "none"] = Field(
        "concat", description="skips between equal resolutions"
    )

    @property
    def is_3d(self) -> bool:
        return self.conv_mode == "conv_3D"

    def num_filters(self, level: int) -> int:
        """Filters at a level; 0 is full resolution, `depth` the deepest."""
        if self.growth_rate == "multiplicative":
            return self.n_initial_filters << level
        return self.n_initial_filters * (level + 1)

    @field_validator("filter_size_deepest")
    @classmethod
    def _is_odd(cls, size: int) -> int:
        if size % 2 == 0:
            raise ValueError("an even kernel has no middle; take an odd one")
        return size
