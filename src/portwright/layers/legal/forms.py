"""Which calls a target refuses and which legal form stands in for each: data, without torch.

A row says what it replaces by torch's own names, the aten ops that a captured graph shows for it, how the form computes the
same, and why torch's is refused. Every row was tried on the real front end, whole training step, both ways.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

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
    targets: tuple[str, ...] = ("csx",)
    source: str = "tried on SDK 2.10.0"

    @property
    def cure(self) -> str:
        return f"Use legal.{self.name}, or legalise the model: {self.how}."


def _calls(*names: str) -> tuple[str, ...]:
    """Both spellings of a function that is a method too."""
    return tuple(prefix + name for name in names for prefix in ("torch.", "Tensor."))


_NO_OP = "the front end does not know the op"
_NO_BACKWARD = "the front end has no backward of it"
_INDEX = "its backward is an index_put in a later dimension, which is not lowered"
_READS = "it reads a value back into Python while the step is traced"
_BATCH_NORM = (
    "aten.native_batch_norm",
    "aten._native_batch_norm_legit",
    "aten._native_batch_norm_legit_functional",
)
_GROUPS = "convolutions of several groups are not lowered"

FORMS: tuple[Form, ...] = (
    Form(
        "Conv1d",
        ("nn.Conv1d", "F.conv1d"),
        ("aten.conv1d", "aten.convolution", "aten.convolution_backward"),
        "a 2-D convolution of height 1",
        "1-D convolutions have no backward",
    ),
    Form(
        "Conv2d",
        ("nn.Conv2d", "F.conv2d"),
        ("aten.conv2d", "aten.convolution", "aten.convolution_backward"),
        "one convolution a group, then cat; depthwise by shifted products; many groups by a masked dense weight",
        _GROUPS,
    ),
    Form(
        "Conv3d",
        ("nn.Conv3d", "F.conv3d"),
        ("aten.conv3d", "aten.convolution", "aten.convolution_backward"),
        "one convolution a group, then cat",
        _GROUPS,
    ),
    Form(
        "ConvTranspose1d",
        ("nn.ConvTranspose1d", "F.conv_transpose1d"),
        ("aten.conv_transpose1d",),
        "a 2-D transposed convolution of height 1",
        "1-D convolutions have no backward",
    ),
    Form(
        "ConvTranspose2d",
        ("nn.ConvTranspose2d", "F.conv_transpose2d"),
        ("aten.conv_transpose2d",),
        "one transposed convolution a group, then cat",
        _GROUPS,
    ),
    Form(
        "ConvTranspose3d",
        ("nn.ConvTranspose3d", "F.conv_transpose3d"),
        ("aten.conv_transpose3d",),
        "one transposed convolution a group, then cat",
        _GROUPS,
    ),
    Form(
        "LSTM",
        ("nn.LSTM",),
        ("aten.lstm", "aten.mkldnn_rnn_layer", "aten.mkldnn_rnn_layer_backward"),
        "the cell unrolled over the steps of the input",
        "fused recurrent layers are not lowered",
    ),
    Form(
        "GRU",
        ("nn.GRU",),
        ("aten.gru",),
        "the cell unrolled over the steps of the input",
        "fused recurrent layers are not lowered",
    ),
    Form(
        "RNN",
        ("nn.RNN",),
        ("aten.rnn_tanh", "aten.rnn_relu"),
        "the cell unrolled over the steps of the input",
        "it takes no input in half precision, which the SDK turns on",
    ),
    Form(
        "LSTMCell",
        ("nn.LSTMCell",),
        ("aten.lstm_cell", "aten._thnn_fused_lstm_cell"),
        "products and pointwise functions",
        "its state would mix precisions",
    ),
    Form(
        "GRUCell",
        ("nn.GRUCell",),
        ("aten.gru_cell", "aten._thnn_fused_gru_cell"),
        "products and pointwise functions",
        "its state would mix precisions",
    ),
    Form(
        "interpolate",
        ("F.interpolate", "F.upsample", "nn.Upsample", "nn.UpsamplingNearest2d", "nn.UpsamplingBilinear2d"),
        tuple(
            f"aten.{op}{end}"
            for op in (
                "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
                "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
                "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
                "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
            )
            for end in ("", "_backward")
        ),
        "views and slices for nearest, products with interpolation matrices for the smooth modes",
        _NO_OP,
    ),
    Form(
        "instance_norm",
        ("F.instance_norm", "nn.InstanceNorm1d", "nn.InstanceNorm2d", "nn.InstanceNorm3d"),
        ("aten.instance_norm", *_BATCH_NORM),
        "a group norm of one channel a group",
        "it is a batch norm without running statistics, which is not lowered",
    ),
    Form(
        "batch_norm",
        ("F.batch_norm",),
        _BATCH_NORM,
        "a batch norm with running statistics that are forgotten",
        "a batch norm without running statistics is not lowered",
    ),
    Form("one_hot", ("F.one_hot",), ("aten.one_hot",), "comparison with an arange", _READS),
    Form("flip", _calls("flip"), ("aten.flip",), "cat of slices in reverse order", _INDEX),
    Form("fliplr", _calls("fliplr"), ("aten.fliplr",), "cat of slices in reverse order", _INDEX),
    Form("rot90", _calls("rot90"), ("aten.rot90",), "a transposition and cat of slices", _NO_OP),
    Form("roll", _calls("roll"), ("aten.roll",), "cat of two slices", _INDEX),
    Form(
        "index_select", _calls("index_select"), ("aten.index_select",), "a gather", _INDEX
    ),
    Form(
        "getitem",
        ("Tensor.__getitem__",),
        ("aten.index",),
        "slices for positions in a list, a gather for an index tensor",
        _INDEX,
    ),
    Form(
        "index_put",
        ("torch.index_put", "Tensor.index_put", "Tensor.index_put_", "Tensor.__setitem__"),
        ("aten.index_put", "aten.index_put_", "aten._index_put_impl_"),
        "a scatter; where for a mask and one value",
        "index_put is not lowered",
    ),
    Form("index_fill", (*_calls("index_fill"), "Tensor.index_fill_"), ("aten.index_fill", "aten.index_fill_"), "where on a comparison with an arange", _NO_OP),
    Form("index_copy", (*_calls("index_copy"), "Tensor.index_copy_"), ("aten.index_copy", "aten.index_copy_"), "a scatter", _NO_OP),
    Form("index_add", (*_calls("index_add"), "Tensor.index_add_"), ("aten.index_add", "aten.index_add_"), "a scatter_add", _INDEX),
    Form("take", _calls("take"), ("aten.take",), "a gather of the flattened input", _NO_OP),
    Form("channel_shuffle", ("F.channel_shuffle", "nn.ChannelShuffle"), ("aten.channel_shuffle", "aten.native_channel_shuffle"), "a view and a transposition", _NO_OP),
    Form("unfold", ("F.unfold", "nn.Unfold"), ("aten.im2col", "aten.col2im"), "a stack of strided slices", _NO_OP),
    Form("fold", ("F.fold", "nn.Fold"), ("aten.col2im", "aten.im2col"), "a transposed convolution with fixed places", _NO_OP),
    Form("unfold_dimension", ("Tensor.unfold",), ("aten.unfold", "aten.unfold_backward"), "a stack of strided slices", _NO_BACKWARD),
    Form(
        "pad",
        ("F.pad", "nn.ReflectionPad1d", "nn.ReflectionPad2d", "nn.ReflectionPad3d",
         "nn.ReplicationPad1d", "nn.ReplicationPad2d", "nn.ReplicationPad3d"),
        tuple(f"aten.{kind}_pad{n}d{end}" for kind in ("reflection", "replication") for n in (1, 2, 3) for end in ("", "_backward")),
        "cat of slices",
        _NO_BACKWARD,
    ),
    Form("adaptive_max_pool1d", ("F.adaptive_max_pool1d", "nn.AdaptiveMaxPool1d"), ("aten.adaptive_max_pool1d",), "an ordinary pool, or a maximum over each window", _NO_BACKWARD),
    Form("adaptive_max_pool2d", ("F.adaptive_max_pool2d", "nn.AdaptiveMaxPool2d"), ("aten.adaptive_max_pool2d", "aten.adaptive_max_pool2d_backward"), "an ordinary pool, or a maximum over each window", _NO_BACKWARD),
    Form("adaptive_max_pool3d", ("F.adaptive_max_pool3d", "nn.AdaptiveMaxPool3d"), ("aten.adaptive_max_pool3d", "aten.adaptive_max_pool3d_backward"), "an ordinary pool, or a maximum over each window", _NO_BACKWARD),
    Form("avg_pool1d", ("F.avg_pool1d",), ("aten.avg_pool1d",), "a pool of the padded input, divided by a pool of ones", "windows that overhang (ceil_mode) are not lowered"),
    Form("avg_pool2d", ("F.avg_pool2d",), ("aten.avg_pool2d",), "a pool of the padded input, divided by a pool of ones", "windows that overhang (ceil_mode) are not lowered"),
    Form("avg_pool3d", ("F.avg_pool3d",), ("aten.avg_pool3d",), "a pool of the padded input, divided by a pool of ones", "windows that overhang (ceil_mode) are not lowered"),
    Form("max_unpool2d", ("F.max_unpool2d", "nn.MaxUnpool2d"), ("aten.max_unpool2d",), "a scatter into zeros", _NO_OP),
    Form("median", _calls("median"), ("aten.median",), "the last column of a topk", _NO_OP),
    Form("kthvalue", _calls("kthvalue"), ("aten.kthvalue",), "the last column of a topk", _NO_OP),
    Form("quantile", _calls("quantile"), ("aten.quantile",), "a sort and two of its columns", "lerp is not lowered"),
    Form("cummax", _calls("cummax"), ("aten.cummax", "aten._cummax_helper"), "maxima over distances that double", _NO_OP),
    Form("cummin", _calls("cummin"), ("aten.cummin", "aten._cummin_helper"), "minima over distances that double", _NO_OP),
    Form("logcumsumexp", _calls("logcumsumexp"), ("aten.logcumsumexp", "aten._logcumsumexp"), "sums over distances that double", _NO_OP),
    Form("sum", _calls("sum"), ("aten.sum",), "the same dimensions in rising order", "dimensions in falling order are not lowered"),
    Form("amax", _calls("amax"), ("aten.amax",), "the same dimensions in rising order", "dimensions in falling order are not lowered"),
    Form("amin", _calls("amin"), ("aten.amin",), "the same dimensions in rising order", "dimensions in falling order are not lowered"),
    Form("logsumexp", _calls("logsumexp"), ("aten.logsumexp",), "the same dimensions in rising order", "dimensions in falling order are not lowered"),
    Form("var", _calls("var"), ("aten.var",), "the same dimensions in rising order", "dimensions in falling order are not lowered"),
    Form("std", _calls("std"), ("aten.std",), "the same dimensions in rising order", "dimensions in falling order are not lowered"),
    Form("nansum", _calls("nansum"), ("aten.nansum",), "a sum where the value is a number", _NO_OP),
    Form("nanmean", _calls("nanmean"), ("aten.nanmean",), "a mean where the value is a number", _NO_OP),
    Form("var_mean", ("torch.var_mean",), ("aten.var_mean",), "var and mean apart", _NO_OP),
    Form("std_mean", ("torch.std_mean",), ("aten.std_mean",), "std and mean apart", _NO_OP),
    Form("count_nonzero", _calls("count_nonzero"), ("aten.count_nonzero",), "a sum of comparisons", _NO_OP),
    Form("bincount", _calls("bincount"), ("aten.bincount",), "sums of comparisons with an arange, when minlength is given", "its length depends on the data"),
    Form("searchsorted", ("torch.searchsorted",), ("aten.searchsorted",), "a count of the boundaries below", _NO_OP),
    Form("bucketize", ("torch.bucketize",), ("aten.bucketize",), "a count of the boundaries below", _NO_OP),
    Form("masked_sum", (), ("aten.masked_select",), "where with zeros, then sum, instead of masked_select(...).sum()", "the number of selected values depends on the data"),
    Form("masked_mean", (), ("aten.masked_select",), "where with zeros, sum, divided by the count, instead of masked_select(...).mean()", "the number of selected values depends on the data"),
    Form("diagonal", _calls("diagonal"), ("aten.diagonal", "aten.diagonal_copy", "aten.diagonal_scatter", "aten.diagonal_backward"), "a masked sum over rows", _NO_BACKWARD),
    Form("diag_embed", _calls("diag_embed"), ("aten.diag_embed",), "where on a comparison of aranges", _NO_OP),
    Form("diag", _calls("diag"), ("aten.diag",), "where on a comparison of aranges", _NO_BACKWARD),
    Form("trace", _calls("trace"), ("aten.trace",), "the sum of the diagonal", _NO_BACKWARD),
    Form("tril", _calls("tril"), ("aten.tril",), "a comparison of aranges", "of a bool mask it is not lowered"),
    Form("triu", _calls("triu"), ("aten.triu",), "a comparison of aranges", "of a bool mask it is not lowered"),
    Form("cross", _calls("cross"), ("aten.cross", "aten.linalg_cross"), "products and differences of the three parts", _NO_OP),
    Form("linalg_cross", ("torch.linalg.cross",), ("aten.linalg_cross",), "products and differences of the three parts", _NO_OP),
    Form("prelu", ("F.prelu", "torch.prelu", "nn.PReLU"), ("aten.prelu", "aten._prelu_kernel", "aten._prelu_kernel_backward"), "where on the sign", _NO_OP),
    Form("selu", ("F.selu", "torch.selu", "nn.SELU"), ("aten.selu",), "where on the sign, with expm1", "elu with a scale is not lowered"),
    Form("celu", ("F.celu", "torch.celu", "nn.CELU"), ("aten.celu",), "where on the sign, with expm1", _NO_OP),
    Form("hardsigmoid", ("F.hardsigmoid", "nn.Hardsigmoid"), ("aten.hardsigmoid", "aten.hardsigmoid_backward"), "where on three ranges", _NO_BACKWARD),
    Form("softshrink", ("F.softshrink", "nn.Softshrink"), ("aten.softshrink", "aten.softshrink_backward"), "where on three ranges", _NO_BACKWARD),
    Form("hardshrink", ("F.hardshrink", "torch.hardshrink", "Tensor.hardshrink", "nn.Hardshrink"), ("aten.hardshrink", "aten.hardshrink_backward"), "where on the range", _NO_BACKWARD),
    Form("lerp", (*_calls("lerp"), "Tensor.lerp_"), ("aten.lerp", "aten.lerp_"), "input + (end - input) * weight", "lerp is not lowered"),
    Form("nan_to_num", (*_calls("nan_to_num"), "Tensor.nan_to_num_"), ("aten.nan_to_num", "aten.nan_to_num_"), "where on three comparisons", _NO_OP),
    Form("logaddexp", _calls("logaddexp"), ("aten.logaddexp",), "the maximum and a log1p", _NO_OP),
    Form("fmax", _calls("fmax"), ("aten.fmax",), "where on two comparisons", _NO_OP),
    Form("fmin", _calls("fmin"), ("aten.fmin",), "where on two comparisons", _NO_OP),
    Form("pairwise_distance", ("F.pairwise_distance",), (), "such a norm of the difference", "norms other than the 2-norm are not lowered"),
    Form("dist", _calls("dist"), ("aten.dist",), "the norm of the difference", _NO_OP),
    Form("scatter_reduce", _calls("scatter_reduce"), ("aten.scatter_reduce",), "a scatter_add, for sums", _NO_OP),
    Form("hypot", _calls("hypot"), ("aten.hypot",), "the root of the sum of squares", _NO_OP),
    Form("exp2", (*_calls("exp2"), "torch.special.exp2"), ("aten.exp2",), "exp with a factor", _NO_OP),
    Form("asinh", _calls("asinh"), ("aten.asinh",), "log1p", _NO_OP),
    Form("atanh", _calls("atanh"), ("aten.atanh",), "two log1p", _NO_OP),
    Form("erfc", (*_calls("erfc"), "torch.special.erfc"), ("aten.erfc",), "1 - erf", _NO_OP),
    Form("trunc", _calls("trunc", "fix"), ("aten.trunc",), "floor or ceil, by the sign", _NO_OP),
    Form("frac", _calls("frac"), ("aten.frac",), "the value less its whole part", _NO_OP),
    Form("logit", (*_calls("logit"), "torch.special.logit"), ("aten.logit",), "log and log1p", _NO_OP),
    Form("mv", _calls("mv"), ("aten.mv",), "a matrix product with one column", _NO_OP),
    Form("vdot", _calls("vdot"), ("aten.vdot",), "the sum of products", _NO_OP),
    Form("norm", _calls("norm"), ("aten.norm",), "absolute values, then sum or maximum", "norms other than the 2-norm are not lowered"),
    Form("normalize", ("F.normalize",), (), "division by such a norm", "norms other than the 2-norm are not lowered"),
    Form("linspace", ("torch.linspace",), ("aten.linspace",), "an arange, scaled", _NO_OP),
    Form("binary_cross_entropy", ("F.binary_cross_entropy", "nn.BCELoss"), ("aten.binary_cross_entropy", "aten.binary_cross_entropy_backward"), "written out, in single precision", "the SDK bans it in half precision, which it always turns on"),
    Form("smooth_l1_loss", ("F.smooth_l1_loss", "nn.SmoothL1Loss"), ("aten.smooth_l1_loss", "aten.smooth_l1_loss_backward"), "where on the size of the error", _NO_OP),
    Form("huber_loss", ("F.huber_loss", "nn.HuberLoss"), ("aten.huber_loss", "aten.huber_loss_backward"), "where on the size of the error", _NO_OP),
    Form("gaussian_nll_loss", ("F.gaussian_nll_loss", "nn.GaussianNLLLoss"), (), "the same without a look for negative variances", _READS),
    Form("multi_margin_loss", ("F.multi_margin_loss", "nn.MultiMarginLoss"), ("aten.multi_margin_loss", "aten.multi_margin_loss_backward"), "gather and where", _NO_OP),
    Form("embedding_bag", ("nn.EmbeddingBag",), ("aten._embedding_bag", "aten.embedding_bag", "aten._embedding_bag_forward_only"), "an embedding and a sum, mean or maximum, for bags of equal size", _NO_OP),
    Form("grid_sample", ("F.grid_sample",), tuple(f"aten.grid_sampler_{n}d{end}" for n in (2, 3) for end in ("", "_backward")), "gathers of the neighbours, weighted", _NO_OP),
    Form("affine_grid", ("F.affine_grid",), ("aten.affine_grid_generator", "aten.affine_grid_generator_backward"), "broadcast sums over aranges", _NO_OP),
    Form("rfft_parts", (), ("aten._fft_r2c", "aten.fft_rfft"), "products with cosines and sines, of a fixed small size; real and imaginary part as a pair", "complex numbers are not lowered"),
    Form("irfft_parts", (), ("aten._fft_c2r", "aten.fft_irfft"), "products with cosines and sines, of a fixed small size", "complex numbers are not lowered"),
    Form("fft_parts", (), ("aten._fft_c2c", "aten.fft_fft"), "products with cosines and sines, of a fixed small size; real and imaginary part as a pair", "complex numbers are not lowered"),
    Form("stft_parts", (), ("aten.stft",), "sliced frames and products with cosines and sines", "complex numbers are not lowered"),
    Form("multi_head_attention_forward", ("F.multi_head_attention_forward",), ("aten.baddbmm",), "written out: a product, the mask added, softmax, a product", "its mask is in single precision and its scores in half"),
    Form("soft_margin_loss", ("F.soft_margin_loss", "nn.SoftMarginLoss"), ("aten.soft_margin_loss", "aten.soft_margin_loss_backward"), "a softplus", "its log1p is not lowered"),
    Form("TransformerEncoder", ("nn.TransformerEncoder",), (), "the mask taken as it is", "it reads back whether the mask is causal"),
    Form("TransformerDecoder", ("nn.TransformerDecoder",), (), "the mask taken as it is", "it reads back whether the mask is causal"),
    Form("vector_norm", ("torch.linalg.vector_norm",), ("aten.linalg_vector_norm",), "absolute values, then sum or maximum", "norms other than the 2-norm are not lowered"),
    Form("checkpoint", ("torch.utils.checkpoint.checkpoint",), (), "a plain call: the compiler decides what to keep", "it looks for a torch module of the device's name"),
)  # fmt: skip


def valid_targets() -> tuple[str, ...]:
    return tuple(sorted({target for form in FORMS for target in form.targets}))


def check_target(target: str) -> str:
    """The target's name in lower case; UserError where no forms are known for it."""
    name = target.lower() if isinstance(target, str) else target
    if name not in valid_targets():
        raise UserError(
            f"there are no legal forms for target {target!r}.", suggest(str(target), valid_targets())
        )
    return name


@lru_cache(maxsize=8)
def forms_for(target: str) -> Mapping[str, str]:
    """The cure by name, for aten ops (aten.flip, without overload) and torch's names (torch.flip, F.pad, nn.LSTM) alike."""
    found: dict[str, list[str]] = {}
    for form in _forms_of(check_target(target)):
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


def _forms_of(target: str) -> tuple[Form, ...]:
    return tuple(form for form in FORMS if target in form.targets)
