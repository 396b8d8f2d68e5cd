"""Which calls a target refuses and which legal form stands in for each: data, without torch.

A row says what it replaces by torch's own names, the aten ops that a captured graph shows for it, how the form computes the
same, and why torch's is refused. Every row was tried on the real front end, whole training step, both ways.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from portwright.discover import targets_that_answer
from portwright.errors import UserError, suggest


@dataclass(frozen=True)
class Form:
    """One legal form."""

    name: str
    """Its name in portwright.layers.legal."""
    replaces: tuple[str, ...]
    """Torch's names for what it stands in for: torch.flip, Tensor.flip, F.pad, nn.LSTM."""
    aten: tuple[str, ...]
    """The ops of a captured graph that it does away with, without overload."""
    how: str
    why: str
    source: str = "tried on SDK 2.10.0"

    @property
    def cure(self) -> str:
        return f"Use legal.{self.name}, or legalise the model: {self.how}."


def _forms(names: str, how: str, why: str, replaces: str = "", aten: str = "") -> Iterator[Form]:
    """Forms that work alike, their names apart by spaces.

    `replaces` has torch's names for what they stand in for, `*.flip` for the function and the method flip, which is meant where it is
    empty; `-` means none. `aten` has the ops without `aten.`, those that end with + also with _backward; empty, it is the name.
    """
    for name in names.split():
        there = (replaces or f"*.{name}").strip("-").split()
        ops = (aten or name).strip("-").split()
        yield Form(
            name,
            tuple(
                home + n.lstrip("*")
                for n in there
                for home in (("torch", "Tensor") if n[0] == "*" else ("",))
            ),
            tuple(
                f"aten.{op.rstrip('+')}{end}"
                for op in ops
                for end in ("", "_backward")[: 1 + op.endswith("+")]
            ),
            how,
            why,
        )


_NO_OP = "the front end does not know the op"
_NO_BACKWARD = "the front end has no backward of it"
_INDEX = "its backward is an index_put in a later dimension, which is not lowered"
_READS = "it reads a value back into Python while the step is traced"
_GROUPS = "convolutions of several groups are not lowered"
_FALLING = "dimensions in falling order are not lowered"
_NORMS = "norms other than the 2-norm are not lowered"
_COMPLEX = "complex numbers are not lowered"
_OVERHANG = "windows that overhang (ceil_mode) are not lowered"

FORMS: tuple[Form, ...] = (
    *_forms("Conv1d", "a 2-D convolution of height 1", "1-D convolutions have no backward", "nn.Conv1d F.conv1d", "conv1d convolution+"),
    *_forms("Conv2d", "one convolution a group, then cat; depthwise by shifted products; many groups by a masked dense weight", _GROUPS, "nn.Conv2d F.conv2d", "conv2d convolution+"),
    *_forms("Conv3d", "one convolution a group, then cat", _GROUPS, "nn.Conv3d F.conv3d", "conv3d convolution+"),
    *_forms("ConvTranspose1d", "a 2-D transposed convolution of height 1", "1-D convolutions have no backward", "nn.ConvTranspose1d F.conv_transpose1d", "conv_transpose1d"),
    *_forms("ConvTranspose2d", "one transposed convolution a group, then cat", _GROUPS, "nn.ConvTranspose2d F.conv_transpose2d", "conv_transpose2d"),
    *_forms("ConvTranspose3d", "one transposed convolution a group, then cat", _GROUPS, "nn.ConvTranspose3d F.conv_transpose3d", "conv_transpose3d"),
    *_forms("LSTM", "the cell unrolled over the steps of the input", "fused recurrent layers are not lowered", "nn.LSTM", "lstm mkldnn_rnn_layer+"),
    *_forms("GRU", "the cell unrolled over the steps of the input", "fused recurrent layers are not lowered", "nn.GRU", "gru"),
    *_forms("RNN", "the cell unrolled over the steps of the input", "it takes no input in half precision, which the SDK turns on", "nn.RNN", "rnn_tanh rnn_relu"),
    *_forms("LSTMCell", "products and pointwise functions", "its state would mix precisions", "nn.LSTMCell", "lstm_cell _thnn_fused_lstm_cell"),
    *_forms("GRUCell", "products and pointwise functions", "its state would mix precisions", "nn.GRUCell", "gru_cell _thnn_fused_gru_cell"),
    *_forms(
        "interpolate", "views and slices for nearest, products with interpolation matrices for the smooth modes", _NO_OP,
        "F.interpolate F.upsample nn.Upsample nn.UpsamplingNearest2d nn.UpsamplingBilinear2d",
        "upsample_nearest1d+ upsample_nearest2d+ upsample_nearest3d+ _upsample_nearest_exact1d+ "
        "_upsample_nearest_exact2d+ _upsample_nearest_exact3d+ upsample_linear1d+ upsample_bilinear2d+ "
        "upsample_trilinear3d+ upsample_bicubic2d+ _upsample_bilinear2d_aa+ _upsample_bicubic2d_aa+",
    ),
    *_forms(
        "instance_norm", "a group norm of one channel a group", "it is a batch norm without running statistics, which is not lowered",
        "F.instance_norm nn.InstanceNorm1d nn.InstanceNorm2d nn.InstanceNorm3d",
        "instance_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional",
    ),
    *_forms(
        "batch_norm", "a batch norm with running statistics that are forgotten", "a batch norm without running statistics is not lowered",
        "F.batch_norm", "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional",
    ),
    *_forms("one_hot", "comparison with an arange", _READS, "F.one_hot"),
    *_forms("flip fliplr", "cat of slices in reverse order", _INDEX),
    *_forms("rot90", "a transposition and cat of slices", _NO_OP),
    *_forms("roll", "cat of two slices", _INDEX),
    *_forms("index_select", "a gather", _INDEX),
    *_forms("getitem", "slices for positions in a list, a gather for an index tensor", _INDEX, "Tensor.__getitem__", "index"),
    *_forms(
        "index_put", "a scatter; where for a mask and one value", "index_put is not lowered",
        "*.index_put Tensor.index_put_ Tensor.__setitem__", "index_put index_put_ _index_put_impl_",
    ),
    *_forms("index_fill", "where on a comparison with an arange", _NO_OP, "*.index_fill Tensor.index_fill_", "index_fill index_fill_"),
    *_forms("index_copy", "a scatter", _NO_OP, "*.index_copy Tensor.index_copy_", "index_copy index_copy_"),
    *_forms("index_add", "a scatter_add", _INDEX, "*.index_add Tensor.index_add_", "index_add index_add_"),
    *_forms("take", "a gather of the flattened input", _NO_OP),
    *_forms("channel_shuffle", "a view and a transposition", _NO_OP, "F.channel_shuffle nn.ChannelShuffle", "channel_shuffle native_channel_shuffle"),
    *_forms("unfold", "a stack of strided slices", _NO_OP, "F.unfold nn.Unfold", "im2col col2im"),
    *_forms("fold", "a transposed convolution with fixed places", _NO_OP, "F.fold nn.Fold", "col2im im2col"),
    *_forms("unfold_dimension", "a stack of strided slices", _NO_BACKWARD, "Tensor.unfold", "unfold+"),
    *_forms(
        "pad", "cat of slices", _NO_BACKWARD,
        "F.pad nn.ReflectionPad1d nn.ReflectionPad2d nn.ReflectionPad3d nn.ReplicationPad1d nn.ReplicationPad2d nn.ReplicationPad3d",
        "reflection_pad1d+ reflection_pad2d+ reflection_pad3d+ replication_pad1d+ replication_pad2d+ replication_pad3d+",
    ),
    *_forms("adaptive_max_pool1d", "an ordinary pool, or a maximum over each window", _NO_BACKWARD, "F.adaptive_max_pool1d nn.AdaptiveMaxPool1d"),
    *_forms("adaptive_max_pool2d", "an ordinary pool, or a maximum over each window", _NO_BACKWARD, "F.adaptive_max_pool2d nn.AdaptiveMaxPool2d", "adaptive_max_pool2d+"),
    *_forms("adaptive_max_pool3d", "an ordinary pool, or a maximum over each window", _NO_BACKWARD, "F.adaptive_max_pool3d nn.AdaptiveMaxPool3d", "adaptive_max_pool3d+"),
    *_forms("avg_pool1d", "a pool of the padded input, divided by a pool of ones", _OVERHANG, "F.avg_pool1d"),
    *_forms("avg_pool2d", "a pool of the padded input, divided by a pool of ones", _OVERHANG, "F.avg_pool2d"),
    *_forms("avg_pool3d", "a pool of the padded input, divided by a pool of ones", _OVERHANG, "F.avg_pool3d"),
    *_forms("max_unpool2d", "a scatter into zeros", _NO_OP, "F.max_unpool2d nn.MaxUnpool2d"),
    *_forms("median kthvalue", "the last column of a topk", _NO_OP),
    *_forms("quantile", "a sort and two of its columns", "lerp is not lowered"),
    *_forms("cummax", "maxima over distances that double", _NO_OP, aten="cummax _cummax_helper"),
    *_forms("cummin", "minima over distances that double", _NO_OP, aten="cummin _cummin_helper"),
    *_forms("logcumsumexp", "sums over distances that double", _NO_OP, aten="logcumsumexp _logcumsumexp"),
    *_forms("sum amax amin logsumexp var std", "the same dimensions in rising order", _FALLING),
    *_forms("nansum", "a sum where the value is a number", _NO_OP),
    *_forms("nanmean", "a mean where the value is a number", _NO_OP),
    *_forms("var_mean", "var and mean apart", _NO_OP, "torch.var_mean"),
    *_forms("std_mean", "std and mean apart", _NO_OP, "torch.std_mean"),
    *_forms("count_nonzero", "a sum of comparisons", _NO_OP),
    *_forms("bincount", "sums of comparisons with an arange, when minlength is given", "its length depends on the data"),
    *_forms("searchsorted", "a count of the boundaries below", _NO_OP, "torch.searchsorted"),
    *_forms("bucketize", "a count of the boundaries below", _NO_OP, "torch.bucketize"),
    *_forms("einsum", "matmul of two batches of matrices, instead of torch.einsum", "einsum is refused where its sides differ in precision", "-", "-"),
    *_forms("masked_sum", "where with zeros, then sum, instead of masked_select(...).sum()", "the number of selected values depends on the data", "-", "masked_select"),
    *_forms("masked_mean", "where with zeros, sum, divided by the count, instead of masked_select(...).mean()", "the number of selected values depends on the data", "-", "masked_select"),
    *_forms("diagonal", "a masked sum over rows", _NO_BACKWARD, aten="diagonal diagonal_copy diagonal_scatter diagonal_backward"),
    *_forms("diag_embed", "where on a comparison of aranges", _NO_OP),
    *_forms("diag", "where on a comparison of aranges", _NO_BACKWARD),
    *_forms("trace", "the sum of the diagonal", _NO_BACKWARD),
    *_forms("tril triu", "a comparison of aranges", "of a bool mask it is not lowered"),
    *_forms("cross", "products and differences of the three parts", _NO_OP, aten="cross linalg_cross"),
    *_forms("linalg_cross", "products and differences of the three parts", _NO_OP, "torch.linalg.cross"),
    *_forms("prelu", "where on the sign", _NO_OP, "F.prelu torch.prelu nn.PReLU", "prelu _prelu_kernel+"),
    *_forms("selu", "where on the sign, with expm1", "elu with a scale is not lowered", "F.selu torch.selu nn.SELU"),
    *_forms("celu", "where on the sign, with expm1", _NO_OP, "F.celu torch.celu nn.CELU"),
    *_forms("hardsigmoid", "where on three ranges", _NO_BACKWARD, "F.hardsigmoid nn.Hardsigmoid", "hardsigmoid+"),
    *_forms("softshrink", "where on three ranges", _NO_BACKWARD, "F.softshrink nn.Softshrink", "softshrink+"),
    *_forms("hardshrink", "where on the range", _NO_BACKWARD, "F.hardshrink *.hardshrink nn.Hardshrink", "hardshrink+"),
    *_forms("lerp", "input + (end - input) * weight", "lerp is not lowered", "*.lerp Tensor.lerp_", "lerp lerp_"),
    *_forms("nan_to_num", "where on three comparisons", _NO_OP, "*.nan_to_num Tensor.nan_to_num_", "nan_to_num nan_to_num_"),
    *_forms("logaddexp", "the maximum and a log1p", _NO_OP),
    *_forms("fmax fmin", "where on two comparisons", _NO_OP),
    *_forms("pairwise_distance", "such a norm of the difference", _NORMS, "F.pairwise_distance", "-"),
    *_forms("dist", "the norm of the difference", _NO_OP),
    *_forms("scatter_reduce", "a scatter_add, for sums", _NO_OP),
    *_forms("hypot", "the root of the sum of squares", _NO_OP),
    *_forms("exp2", "exp with a factor", _NO_OP, "*.exp2 torch.special.exp2"),
    *_forms("asinh", "log1p", _NO_OP),
    *_forms("atanh", "two log1p", _NO_OP),
    *_forms("erfc", "1 - erf", _NO_OP, "*.erfc torch.special.erfc"),
    *_forms("trunc", "floor or ceil, by the sign", _NO_OP, "*.trunc *.fix"),
    *_forms("frac", "the value less its whole part", _NO_OP),
    *_forms("logit", "log and log1p", _NO_OP, "*.logit torch.special.logit"),
    *_forms("mv", "a matrix product with one column", _NO_OP),
    *_forms("vdot", "the sum of products", _NO_OP),
    *_forms("norm", "absolute values, then sum or maximum", _NORMS),
    *_forms("normalize", "division by such a norm", _NORMS, "F.normalize", "-"),
    *_forms("linspace", "an arange, scaled", _NO_OP, "torch.linspace"),
    *_forms(
        "binary_cross_entropy", "written out, in single precision", "the SDK bans it in half precision, which it always turns on",
        "F.binary_cross_entropy nn.BCELoss", "binary_cross_entropy+",
    ),
    *_forms("smooth_l1_loss", "where on the size of the error", _NO_OP, "F.smooth_l1_loss nn.SmoothL1Loss", "smooth_l1_loss+"),
    *_forms("huber_loss", "where on the size of the error", _NO_OP, "F.huber_loss nn.HuberLoss", "huber_loss+"),
    *_forms("gaussian_nll_loss", "the same without a look for negative variances", _READS, "F.gaussian_nll_loss nn.GaussianNLLLoss", "-"),
    *_forms("multi_margin_loss", "gather and where", _NO_OP, "F.multi_margin_loss nn.MultiMarginLoss", "multi_margin_loss+"),
    *_forms("embedding_bag", "an embedding and a sum, mean or maximum, for bags of equal size", _NO_OP, "nn.EmbeddingBag", "_embedding_bag embedding_bag _embedding_bag_forward_only"),
    *_forms("grid_sample", "gathers of the neighbours, weighted", _NO_OP, "F.grid_sample", "grid_sampler_2d+ grid_sampler_3d+"),
    *_forms("affine_grid", "broadcast sums over aranges", _NO_OP, "F.affine_grid", "affine_grid_generator+"),
    *_forms("rfft_parts", "products with cosines and sines, of a fixed small size; real and imaginary part as a pair", _COMPLEX, "-", "_fft_r2c fft_rfft"),
    *_forms("irfft_parts", "products with cosines and sines, of a fixed small size", _COMPLEX, "-", "_fft_c2r fft_irfft"),
    *_forms("fft_parts", "products with cosines and sines, of a fixed small size; real and imaginary part as a pair", _COMPLEX, "-", "_fft_c2c fft_fft"),
    *_forms("stft_parts", "sliced frames and products with cosines and sines", _COMPLEX, "-", "stft"),
    *_forms(
        "multi_head_attention_forward", "written out: a product, the mask added, softmax, a product", "its mask is in single precision and its scores in half",
        "F.multi_head_attention_forward", "baddbmm",
    ),
    *_forms("soft_margin_loss", "a softplus", "its log1p is not lowered", "F.soft_margin_loss nn.SoftMarginLoss", "soft_margin_loss+"),
    *_forms("TransformerEncoder", "the mask taken as it is", "it reads back whether the mask is causal", "nn.TransformerEncoder", "-"),
    *_forms("TransformerDecoder", "the mask taken as it is", "it reads back whether the mask is causal", "nn.TransformerDecoder", "-"),
    *_forms("vector_norm", "absolute values, then sum or maximum", _NORMS, "torch.linalg.vector_norm", "linalg_vector_norm"),
    *_forms("checkpoint", "a plain call: the compiler decides what to keep", "it looks for a torch module of the device's name", "torch.utils.checkpoint.checkpoint", "-"),
)  # fmt: skip


def valid_targets() -> tuple[str, ...]:
    """Targets that refuse what their compiler does not know, in small letters."""
    return targets_that_answer(("known_operations",))


def check_target(target: str | None) -> str:
    """The target's name in lower case, of none given the only one; UserError where no forms are known for it."""
    valid = valid_targets()
    name = target.lower() if isinstance(target, str) else target
    if name is None and len(valid) == 1:
        return valid[0]
    if name not in valid:
        raise UserError(f"there are no legal forms for target {target!r}.", suggest(str(target), valid))
    return name


@lru_cache(maxsize=8)
def forms_for(target: str) -> Mapping[str, str]:
    """The cure by name, for aten ops (aten.flip, without overload) and torch's names (torch.flip, F.pad, nn.LSTM) alike."""
    found: dict[str, list[str]] = {}
    check_target(target)
    for form in FORMS:
        for name in (*form.replaces, *form.aten):
            found.setdefault(name, []).append(form.cure)
    return {name: " ".join(dict.fromkeys(cures)) for name, cures in found.items()}


def cure_for(op: str, target: str) -> str | None:
    """What to do about an op that the target refuses: aten.flip.default, aten::flip, torch.flip, nn.LSTM; None if nothing is
    known, or the target has no legal forms."""
    if target.lower() not in valid_targets():
        return None
    cures = forms_for(target.lower())
    return next((cures[name] for name in _spellings(op) if name in cures), None)


def _spellings(op: str) -> Iterator[str]:
    name = op.strip().replace("::", ".")
    yield name
    name = re.sub(r"^(torch\.)?(ops\.)?aten\.", "aten.", name)
    name = (
        name.replace("torch.nn.functional.", "F.")
        .replace("torch.nn.", "nn.")
        .replace("torch.Tensor.", "Tensor.")
    )
    yield name
    if name.startswith("aten."):
        yield ".".join(name.split(".")[:2])
        yield ".".join(name.split(".")[:2]).removesuffix("_")


def forms_table() -> str:
    """The forms as a table in Markdown."""
    rows = [
        "| legal form | instead of | how | why torch's is refused | source |",
        "| --- | --- | --- | --- | --- |",
    ]
    for form in FORMS:
        instead = ", ".join(f"`{name}`" for name in form.replaces) or "called by hand"
        rows.append(f"| `{form.name}` | {instead} | {form.how} | {form.why} | {form.source} |")
    return "\n".join(rows) + "\n"
