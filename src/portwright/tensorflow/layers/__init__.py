"""Layers for a model_fn: torch-like names and numbers, Keras layers inside.

Sequences are [batch, sequence, width]. Bool masks are True for what is hidden; `mask_of_zeros(input_mask)` makes one
of BERT's input_mask. `training` is False unless given, and is True or False, never a tensor. Every layer takes `name`
and `dtype`, a type or a Keras policy ("mixed_float16"); weights are named by layer: `encoder_0/self_attn/query/kernel`.

| name | what it is |
| --- | --- |
| MultiheadAttention, MultiQueryAttention | attention(query, key, value, key_padding_mask, ..., is_causal, position_bias, rotary_position_embedding_helper, past_kv) -> (output, weights) |
| LinformerAttention | keys and values mixed down to a fixed number; `tie_kernel_projections` for share-layerwise |
| TransformerEncoderLayer, TransformerDecoderLayer, GPTJDecoderLayer | pre and post norm, cross attention, the model zoo's options (`BlockOptions`) |
| TransformerEncoder, TransformerDecoder, Transformer | stacks of such layers |
| EmbeddingLayer | words, positions of every kind, segments, scale, dropout; `.weight` for tied logits |
| PositionEmbeddingLayer, SegmentEmbeddingLayer | added to embeddings, as in the model zoo |
| RotaryPositionEmbeddingHelper, RelativePositionEmbeddingLayer, AlibiPositionEmbedding, FixedPositionEmbedding | positions of other kinds |
| Dense, SharedWeightsDense, FeedForwardNetwork | products; gated activations give value and gate from one product |
| Conv2D, Conv2DTranspose, MaxPool2D, UNetBlock | images, channels last |
| LayerNorm, RMSNorm, get_norm | norms in float32 |
| PoolerLayer, BertPooler | from a sequence to one vector |
| Dropout, use_stateless_dropout | as tf.nn.dropout, or by seed and global_step alone |
| token_cross_entropy, masked_cross_entropy, CrossEntropyFromLogitsLayer | label masks and smoothing |
| get_activation, get_initializer | by name, with an error that names the valid ones |
| create_autoregressive_mask, create_sliding_window_mask, generate_square_subsequent_mask, make_padding_mask, mask_of_zeros | masks |
"""

# ruff: noqa: E402

from portwright.tensorflow import prepare

prepare()

from portwright.tensorflow.layers.activations import get_activation, is_gated
from portwright.tensorflow.layers.attention import MultiheadAttention, MultiQueryAttention
from portwright.tensorflow.layers.base import BaseLayer
from portwright.tensorflow.layers.blocks import (
    BlockOptions,
    GPTJDecoderLayer,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
)
from portwright.tensorflow.layers.conv import (
    Conv2D,
    Conv2DLayer,
    Conv2DTranspose,
    Conv2DTransposeLayer,
    MaxPool2D,
    MaxPool2DLayer,
    UNetBlock,
)
from portwright.tensorflow.layers.dense import (
    BertPooler,
    Dense,
    DenseLayer,
    FeedForwardNetwork,
    PoolerLayer,
    SharedWeightsDense,
    SharedWeightsDenseLayer,
)
from portwright.tensorflow.layers.embedding import (
    EmbeddingLayer,
    PositionEmbeddingLayer,
    SegmentEmbeddingLayer,
)
from portwright.tensorflow.layers.initializers import get_initializer
from portwright.tensorflow.layers.linformer import LinformerAttention
from portwright.tensorflow.layers.losses import (
    CrossEntropyFromLogitsLayer,
    masked_cross_entropy,
    token_cross_entropy,
)
from portwright.tensorflow.layers.masks import (
    create_autoregressive_mask,
    create_sliding_window_mask,
    generate_square_subsequent_mask,
    make_padding_mask,
    mask_of_zeros,
)
from portwright.tensorflow.layers.norms import (
    Dropout,
    DropoutLayer,
    LayerNorm,
    RMSNorm,
    get_norm,
    use_stateless_dropout,
)
from portwright.tensorflow.layers.positions import (
    AlibiPositionEmbedding,
    AlibiPositionEmbeddingLayer,
    FixedPositionEmbedding,
    FixedPositionEmbeddingLayer,
    RelativePositionEmbedding,
    RelativePositionEmbeddingLayer,
    alibi_slopes,
    relative_position_bucket,
    sinusoids,
)
from portwright.tensorflow.layers.rotary import RotaryPositionEmbeddingHelper
from portwright.tensorflow.layers.transformer import (
    Transformer,
    TransformerDecoder,
    TransformerEncoder,
)

__all__ = [
    "AlibiPositionEmbedding",
    "AlibiPositionEmbeddingLayer",
    "BaseLayer",
    "BertPooler",
    "BlockOptions",
    "Conv2D",
    "Conv2DLayer",
    "Conv2DTranspose",
    "Conv2DTransposeLayer",
    "CrossEntropyFromLogitsLayer",
    "Dense",
    "DenseLayer",
    "Dropout",
    "DropoutLayer",
    "EmbeddingLayer",
    "FeedForwardNetwork",
    "FixedPositionEmbedding",
    "FixedPositionEmbeddingLayer",
    "GPTJDecoderLayer",
    "LayerNorm",
    "LinformerAttention",
    "MaxPool2D",
    "MaxPool2DLayer",
    "MultiQueryAttention",
    "MultiheadAttention",
    "PoolerLayer",
    "PositionEmbeddingLayer",
    "RMSNorm",
    "RelativePositionEmbedding",
    "RelativePositionEmbeddingLayer",
    "RotaryPositionEmbeddingHelper",
    "SegmentEmbeddingLayer",
    "SharedWeightsDense",
    "SharedWeightsDenseLayer",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "UNetBlock",
    "alibi_slopes",
    "create_autoregressive_mask",
    "create_sliding_window_mask",
    "generate_square_subsequent_mask",
    "get_activation",
    "get_initializer",
    "get_norm",
    "is_gated",
    "make_padding_mask",
    "mask_of_zeros",
    "masked_cross_entropy",
    "relative_position_bucket",
    "sinusoids",
    "token_cross_entropy",
    "use_stateless_dropout",
]
