"""What is known of torch for turning a model from sequence first to batch first."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Literal

from portwright.port.rewrite import argument, const, has_star, keyword
from portwright.port.rule import File

# same: as before. turned: its first two dimensions change places. rows: flattened from a turned tensor, so that its
# rows come in another order. pair: what attention returns, an output that is turned and weights that are not.
# mixed: turned on one way through a loop and not on another, so that nothing may read it.
Layout = Literal["same", "turned", "rows", "pair", "mixed"]

OURS = "portwright.layers"


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


@dataclass(frozen=True)
class AttentionLayer:
    """A layer that takes sequences: its arguments in their order, those that are sequences, and where batch_first stands."""

    arguments: tuple[str, ...]
    sequences: tuple[str, ...]
    batch_first: int = -1


_DECODER = (
    "tgt", "memory", "tgt_mask", "memory_mask", "tgt_key_padding_mask", "memory_key_padding_mask",
    "tgt_is_causal", "memory_is_causal",
)  # fmt: skip
ATTENTION_LAYERS = {
    "Transformer": AttentionLayer(
        (
            "src",
            "tgt",
            "src_mask",
            "tgt_mask",
            "memory_mask",
            "src_key_padding_mask",
            "tgt_key_padding_mask",
            "memory_key_padding_mask",
            "src_is_causal",
            "tgt_is_causal",
            "memory_is_causal",
        ),
        ("src", "tgt"),
        10,
    ),
    "TransformerEncoder": AttentionLayer(("src", "mask", "src_key_padding_mask", "is_causal"), ("src",)),
    "TransformerEncoderLayer": AttentionLayer(
        ("src", "src_mask", "src_key_padding_mask", "is_causal"), ("src",), 6
    ),
    "TransformerDecoder": AttentionLayer(_DECODER, ("tgt", "memory")),
    "TransformerDecoderLayer": AttentionLayer(_DECODER, ("tgt", "memory"), 6),
    "MultiheadAttention": AttentionLayer(
        (
            "query",
            "key",
            "value",
            "key_padding_mask",
            "need_weights",
            "attn_mask",
            "average_attn_weights",
            "is_causal",
        ),
        ("query", "key", "value"),
        8,
    ),
}
STACKS = {
    "TransformerEncoder": "TransformerEncoderLayer",
    "TransformerDecoder": "TransformerDecoderLayer",
}

# What treats each position alone, wherever it stands.
POSITION_WISE = words(
    """
    Embedding Linear Dropout Identity ReLU GELU Tanh Sigmoid SiLU Mish ELU SELU CELU LeakyReLU ReLU6 Softplus Softsign
    Hardswish Hardtanh LogSigmoid LayerNorm RMSNorm
    """
)
POSITION_WISE_FUNCTIONS = words(
    """
    relu gelu tanh sigmoid silu mish elu selu leaky_relu relu6 softplus dropout logsigmoid exp log sqrt abs
    square neg sin cos
    """
)
POSITION_WISE_METHODS = words(
    """
    float long int bool half double to cuda cpu type contiguous clone detach relu tanh sigmoid exp log sqrt abs
    square neg logical_not requires_grad_
    """
)
COMPARISONS = words("eq ne lt le gt ge")
LAST_DIM = frozenset({"softmax", "log_softmax", "argmax", "argmin", "sum", "mean"})
WHOLE = words("sum mean any all max min numel dim nelement item element_size retain_grad")
FREE_ATTRIBUTES = frozenset({"device", "dtype", "is_cuda", "requires_grad", "ndim"})
ELEMENTWISE_LOSSES = frozenset(
    {"MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "BCELoss", "BCEWithLogitsLoss"}
)
ROW_LOSSES = ELEMENTWISE_LOSSES | {"CrossEntropyLoss", "NLLLoss"}
LOSS_FUNCTIONS = {
    "mse_loss": "MSELoss",
    "l1_loss": "L1Loss",
    "smooth_l1_loss": "SmoothL1Loss",
    "binary_cross_entropy": "BCELoss",
    "binary_cross_entropy_with_logits": "BCEWithLogitsLoss",
    "cross_entropy": "CrossEntropyLoss",
    "nll_loss": "NLLLoss",
}


def attention_layer(file: File, func: ast.expr) -> str | None:
    """The name of torch's or our layer for sequences that is made here."""
    head, _, last = (file.resolve(func) or "").rpartition(".")
    return last if head in ("torch.nn", OURS) and last in ATTENTION_LAYERS else None


def takes_sequence_first(call: ast.Call, name: str) -> bool:
    given = argument(call, ATTENTION_LAYERS[name].batch_first, "batch_first")
    return not has_star(call) and (given is None or const(given) is False)


def is_swap(call: ast.Call) -> bool:
    """`.t()`, `.transpose(0, 1)` or `.permute(1, 0, 2)`: the first two dimensions change places."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if call.keywords:
        return False
    if name == "t":
        return not call.args
    listed = (
        call.args[0].elts
        if len(call.args) == 1 and isinstance(call.args[0], (ast.Tuple, ast.List))
        else call.args
    )
    numbers = [const(a) for a in listed]
    if name in ("transpose", "swapaxes", "swapdims"):
        return numbers in ([0, 1], [1, 0])
    return name == "permute" and len(numbers) > 1 and numbers == [1, 0, *range(2, len(numbers))]


def dim_of(call: ast.Call, position: int) -> object:
    return const(argument(call, position, "dim"))


def is_position_wise(file: File, value: ast.expr) -> bool:
    """Whether a module, as it is made here, treats each position alone."""
    if not isinstance(value, ast.Call):
        return False
    head, _, last = (file.resolve(value.func) or "").rpartition(".")
    if head != "torch.nn":
        return False
    if last == "Sequential":
        return bool(value.args) and all(is_position_wise(file, part) for part in value.args)
    if last in ("Softmax", "LogSoftmax"):
        return dim_of(value, 0) == -1
    if last in ("LayerNorm", "RMSNorm"):
        return bool(value.args) and not isinstance(value.args[0], (ast.List, ast.Tuple, ast.Attribute))
    return last in POSITION_WISE


def reduces(call: ast.Call) -> bool:
    """Whether a loss gives one number whatever the order of its rows."""
    given = keyword(call, "reduction")
    return (given is None or const(given.value) in ("mean", "sum")) and not has_star(call)
