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

from portwright.tensorflow import prepare

prepare()

from portwright.tensorflow.layers.activations import get_activation, is_gated  # noqa: E402
from portwright.tensorflow.layers.added_embeddings import (  # noqa: E402
    PositionEmbeddingLayer,
    SegmentEmbeddingLayer,
)
from portwright.tensorflow.layers.attention import MultiheadAttention, MultiQueryAttention  # noqa: E402
from portwright.tensorflow.layers.base import BaseLayer  # noqa: E402
from portwright.tensorflow.layers.block_parts import BlockOptions  # noqa: E402
from portwright.tensorflow.layers.blocks import (  # noqa: E402
    GPTJDecoderLayer,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
)
from portwright.tensorflow.layers.conv import (  # noqa: E402
    Conv2D,
    Conv2DLayer,
    Conv2DTranspose,
    Conv2DTransposeLayer,
    MaxPool2D,
    MaxPool2DLayer,
    UNetBlock,
)
from portwright.tensorflow.layers.dense import (  # noqa: E402
    Dense,
    DenseLayer,
    SharedWeightsDense,
    SharedWeightsDenseLayer,
)
from portwright.tensorflow.layers.dropout import Dropout, DropoutLayer, use_stateless_dropout  # noqa: E402
from portwright.tensorflow.layers.embedding import EmbeddingLayer  # noqa: E402
from portwright.tensorflow.layers.feed_forward import FeedForwardNetwork  # noqa: E402
from portwright.tensorflow.layers.initializers import get_initializer  # noqa: E402
from portwright.tensorflow.layers.linformer import LinformerAttention  # noqa: E402
from portwright.tensorflow.layers.losses import (  # noqa: E402
    CrossEntropyFromLogitsLayer,
    masked_cross_entropy,
    token_cross_entropy,
)
from portwright.tensorflow.layers.masks import (  # noqa: E402
    create_autoregressive_mask,
    create_sliding_window_mask,
    generate_square_subsequent_mask,
    make_padding_mask,
    mask_of_zeros,
)
from portwright.tensorflow.layers.norms import LayerNorm, RMSNorm, get_norm  # noqa: E402
from portwright.tensorflow.layers.pooler import BertPooler, PoolerLayer  # noqa: E402
from portwright.tensorflow.layers.positions import (  # noqa: E402
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
from portwright.tensorflow.layers.rotary import RotaryPositionEmbeddingHelper  # noqa: E402
from portwright.tensorflow.layers.transformer import (  # noqa: E402
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
