"""Layers with torch.nn's interface and numbers, the model zoo's options, and fused kernels throughout."""

from portwright.layers.activations import get_activation, is_gated
from portwright.layers.attention import MultiheadAttention, MultiQueryAttention
from portwright.layers.block_parts import BlockOptions
from portwright.layers.blocks import GPTJDecoderLayer, TransformerDecoderLayer, TransformerEncoderLayer
from portwright.layers.cache import DecoderLayerCache, KVCache
from portwright.layers.convert import Conversion, from_torch, to_torch
from portwright.layers.embedding import EmbeddingLayer
from portwright.layers.feed_forward import FeedForwardNetwork, SingleFeedForwardLayer
from portwright.layers.initializers import get_initializer
from portwright.layers.linformer import LinformerAttention
from portwright.layers.masks import (
    build_broadcastable_attention_mask,
    create_2D_autoregressive_mask,
    create_autoregressive_mask,
    create_broadcasted_autoregressive_mask,
    create_sliding_window_mask,
    generate_square_subsequent_mask,
    get_extended_attention_mask,
    make_key_padding_mask_broadcastable,
    make_sparse_mask_broadcastable,
)
from portwright.layers.norms import RMSNorm, get_norm
from portwright.layers.positions import (
    AlibiPositionEmbeddingLayer,
    FixedPositionEmbeddingLayer,
    RelativePositionEmbedding,
    RelativePositionEmbeddingLayer,
)
from portwright.layers.rotary import RotaryPositionEmbeddingHelper
from portwright.layers.transformer import Transformer, TransformerDecoder, TransformerEncoder

__all__ = [
    "AlibiPositionEmbeddingLayer",
    "BlockOptions",
    "Conversion",
    "DecoderLayerCache",
    "EmbeddingLayer",
    "FeedForwardNetwork",
    "FixedPositionEmbeddingLayer",
    "GPTJDecoderLayer",
    "KVCache",
    "LinformerAttention",
    "MultiQueryAttention",
    "MultiheadAttention",
    "RMSNorm",
    "RelativePositionEmbedding",
    "RelativePositionEmbeddingLayer",
    "RotaryPositionEmbeddingHelper",
    "SingleFeedForwardLayer",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "build_broadcastable_attention_mask",
    "create_2D_autoregressive_mask",
    "create_autoregressive_mask",
    "create_broadcasted_autoregressive_mask",
    "create_sliding_window_mask",
    "from_torch",
    "generate_square_subsequent_mask",
    "get_activation",
    "get_extended_attention_mask",
    "get_initializer",
    "get_norm",
    "is_gated",
    "make_key_padding_mask_broadcastable",
    "make_sparse_mask_broadcastable",
    "to_torch",
]
