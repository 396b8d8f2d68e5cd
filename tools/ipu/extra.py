"""What the recorded calls and PopTorch's handlers do not say: other names of the same kernels, and equal forms of what is missing."""

from __future__ import annotations

GUIDE = "PopTorch 3.4 user guide, supported operations"
SOURCES = "PopTorch 3.4 sources"

# Layers that PopTorch takes whole, where torch runs several ops: the op that has a handler.
WHOLE = {
    "torch.nn.RNN": "rnn_tanh",
    "torch.nn.GRU": "gru",
    "torch.nn.LSTM": "lstm",
    "torch.nn.Linear": "linear",
    "torch.nn.Bilinear": "bilinear",
    "torch.nn.CrossEntropyLoss": "cross_entropy_loss",
    "torch.nn.KLDivLoss": "kl_div",
    "torch.nn.L1Loss": "l1_loss",
    "torch.nn.NLLLoss": "nll_loss_nd",
    "torch.nn.PoissonNLLLoss": "poisson_nll_loss",
    "torch.nn.HingeEmbeddingLoss": "hinge_embedding_loss",
    "torch.nn.CosineEmbeddingLoss": "cosine_embedding_loss",
    "torch.nn.MarginRankingLoss": "margin_ranking_loss",
    "torch.nn.TripletMarginLoss": "triplet_margin_loss",
    "torch.nn.SoftMarginLoss": "soft_margin_loss",
    "torch.nn.BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "torch.nn.CTCLoss": "ctc_loss",
    "torch.nn.functional.one_hot": "one_hot",
    "torch.nn.dropout": "dropout",
    "torch.nn.EmbeddingBag": "embedding_bag",
    "torch.nn.utils.weight_norm": "_weight_norm",
    "torch.linalg.norm": "linalg_norm",
    "torch.linalg.matrix_norm": "linalg_matrix_norm",
    **{f"torch.nn.InstanceNorm{n}d": "instance_norm" for n in (1, 2, 3)},
    **{f"torch.nn.BatchNorm{n}d": "native_batch_norm" for n in (1, 2, 3)},
    **{f"torch.nn.AdaptiveAvgPool{n}d": f"adaptive_avg_pool{n}d" for n in (1, 2, 3)},
}

# The functional form, where its name is not the class's name in small letters.
FUNCTIONS = {
    "torch.nn.BCELoss": "binary_cross_entropy",
    "torch.nn.BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "torch.nn.CrossEntropyLoss": "cross_entropy",
    "torch.nn.CTCLoss": "ctc_loss",
    "torch.nn.KLDivLoss": "kl_div",
    "torch.nn.L1Loss": "l1_loss",
    "torch.nn.LeakyReLU": "leaky_relu",
    "torch.nn.LogSoftmax": "log_softmax",
    "torch.nn.MSELoss": "mse_loss",
    "torch.nn.NLLLoss": "nll_loss",
    "torch.nn.PoissonNLLLoss": "poisson_nll_loss",
    "torch.nn.SmoothL1Loss": "smooth_l1_loss",
    "torch.nn.Upsample": "interpolate",
    "torch.nn.ZeroPad2d": "pad",
    "torch.nn.dropout": "dropout",
}

FREE = "alias contiguous detach expand expand_as flatten lift_fresh narrow numpy_T permute reshape squeeze t transpose unsqueeze view"

# Handlers whose public name is not that of the op.
PUBLIC_NAMES = {
    "col2im": "torch.nn.functional.fold torch.nn.Fold",
    "copy": "torch.Tensor.copy_",
    "im2col": "torch.nn.functional.unfold torch.nn.Unfold",
    "index": "",
    "log_sigmoid": "torch.nn.LogSigmoid",
    "pixel_shuffle": "torch.nn.PixelShuffle torch.pixel_shuffle",
    "random": "torch.Tensor.random_",
    "unfold": "torch.Tensor.unfold",
    "upsample_bilinear2d": "torch.nn.Upsample torch.nn.functional.interpolate",
}

# op: (how, api, constraints, source)
OTHERS: dict[str, tuple[str, str, str, str]] = {
    "aten.empty": ("native", "torch.empty", "", f"{SOURCES}, RegisterOptionalAtenOps.cpp.inc"),
    "aten.empty_strided": ("native", "", "", f"{SOURCES}, RegisterOptionalAtenOps.cpp.inc"),
    "aten.linspace": ("native", "torch.linspace", "", "PopTorch 3.4 tests, math_ops_test.py, which runs it in a model"),
    "aten.alias": ("free", "torch.nn.Identity", "", f"{SOURCES}, RegisterOptionalAtenOps.cpp.inc"),
    "aten.lift_fresh": ("free", "torch.tensor", "", "bookkeeping of torch's own, which computes nothing"),
    "aten._to_copy": ("native", "torch.Tensor.to torch.Tensor.half torch.Tensor.float", "", f"{SOURCES}, ReshapeOps.cpp (to)"),
    "aten.fill": ("native", "", "", f"{GUIDE} (tensor.fill)"),
    "aten.zero": ("native", "torch.Tensor.zero_", "", f"{SOURCES}, InplaceOpsPyTorch.hpp_nolint"),
    "aten.linalg_norm": ("native", "", "", f"{GUIDE}; {SOURCES}, RegisterAtenOverloads.cpp"),
    "aten.linalg_matrix_norm": ("native", "", "", f"{GUIDE}; {SOURCES}, RegisterAtenOverloads.cpp"),
    "torch_scatter.scatter_max": ("native", "torch_scatter.scatter", "", f"{GUIDE}; {SOURCES}, PyGTorchScatterOps.cpp"),
    "torch_scatter.scatter_min": ("native", "torch_scatter.scatter", "", f"{GUIDE}; {SOURCES}, PyGTorchScatterOps.cpp"),
    "torch_scatter.scatter_mul": ("native", "torch_scatter.scatter", "", f"{GUIDE}; {SOURCES}, PyGTorchScatterOps.cpp"),
    "torch_spline_conv.spline_basis": ("native", "torch_spline_conv.spline_basis", "", GUIDE),
    "torch_spline_conv.spline_weighting": ("native", "torch_spline_conv.spline_weighting", "", GUIDE),
}  # fmt: skip

# Python functions over ops of the list; torch_scatter need not be installed here to know that.
OVER_SCATTER_ADD = (
    "torch_scatter.scatter",
    "torch_scatter.composite.scatter_log_softmax",
    "torch_scatter.composite.scatter_softmax",
    "torch_scatter.composite.scatter_std",
    "torch_scatter.composite.scatter_logsumexp",
)

# Kernels that torch has for a whole of which PopTorch runs the parts, or takes the whole under an older name: (api, made of)
PARTS = {
    "aten.scaled_dot_product_attention": (
        "torch.nn.functional.scaled_dot_product_attention torch.nn.MultiheadAttention",
        "matmul _softmax",
    ),
    "aten._scaled_dot_product_attention_math": ("", "matmul _softmax"),
    "aten._scaled_dot_product_flash_attention_for_cpu": ("", "matmul _softmax"),
    "aten._scaled_dot_product_flash_attention": ("", "matmul _softmax"),
    "aten._scaled_dot_product_efficient_attention": ("", "matmul _softmax"),
    "aten._scaled_dot_product_cudnn_attention": ("", "matmul _softmax"),
    "aten._scaled_dot_product_fused_attention_overrideable": ("", "matmul _softmax"),
    "aten._safe_softmax": ("", "_softmax where"),
    "aten._fused_rms_norm": (
        "torch.nn.RMSNorm torch.nn.functional.rms_norm",
        "pow mean add rsqrt mul",
    ),
    "aten.native_dropout": ("torch.nn.Dropout", "dropout"),
    "aten.addr": ("torch.addr", "mul add"),
    "aten.block_diag": ("torch.block_diag", "zeros slice copy"),
    "aten.dist": ("torch.dist", "sub norm"),
    "aten.isinf": ("torch.isinf", "abs eq"),
    "aten.ldexp": ("torch.ldexp", "mul pow"),
    "aten.rot90": ("torch.rot90", "flip transpose"),
    "aten.randn_like": ("torch.randn_like", "empty normal"),
    "aten.rand_like": ("torch.rand_like", "empty uniform"),
    "aten.randint_like": ("torch.randint_like", "empty random"),
    "aten.new_empty": ("torch.Tensor.new_empty", "empty"),
    "aten.new_empty_strided": ("", "empty_strided"),
    "aten.empty_like": ("torch.empty_like", "empty"),
    "aten.scalar_tensor": ("", "full"),
}
SAME_KERNEL = {
    "aten._native_batch_norm_legit": "aten.native_batch_norm",
    "aten._native_batch_norm_legit_functional": "aten.native_batch_norm",
    "aten._native_batch_norm_legit_no_training": "aten.native_batch_norm",
    "aten._batch_norm_with_update": "aten.native_batch_norm",
    "aten._batch_norm_with_update_functional": "aten.native_batch_norm",
    "aten._batch_norm_no_update": "aten.native_batch_norm",
    "aten._embedding_bag_forward_only": "aten._embedding_bag",
    "aten._fused_dropout": "aten.dropout",
}

CONSTRAINTS = {
    "aten.topk": "sorted_only",
    "aten.linalg_norm": "no_spectral_norm",
    "aten.linalg_matrix_norm": "no_spectral_norm",
    "aten.convolution": "no_dilated_transpose",
    "aten._convolution": "no_dilated_transpose",
    **{f"aten.max_pool{n}d_with_indices": "indices_unused" for n in (1, 2, 3)},
    "aten.native_batch_norm": "has_scale_second",
    "aten.batch_norm": "has_scale_second",
    "aten.instance_norm": "has_scale_second",
    "aten.native_group_norm": "has_scale_second",
    "aten.group_norm": "has_scale_third",
    "aten.native_layer_norm": "has_scale_third",
    "aten.layer_norm": "has_scale_third",
    "aten.embedding": "plain_embedding",
    "aten._embedding_bag": "plain_embedding_bag",
    "aten.embedding_bag": "plain_embedding_bag",
    **{f"aten.{name}": "no_class_weight" for name in ("nll_loss_forward", "nll_loss2d_forward", "nll_loss2d", "nll_loss_nd", "cross_entropy_loss")},
    "aten.ctc_loss": "reduced_ctc",
    "aten.upsample_bicubic2d": "no_align_corners",
    "aten.upsample_bilinear2d": "whole_factor",
    "aten.triu": "constant_input",
    **{f"aten.{name}": "one_layer_one_way" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
}  # fmt: skip
SAME_CONSTRAINTS = {"aten.mkldnn_rnn_layer": "one_layer_one_way"}

INTEGERS_ONLY = {f"aten.bitwise_{name}" for name in ("and", "or", "xor", "not")}

# Ops that models use and PopTorch has no handler for: (api, reason, equal form)
ABSENT = {
    "aten._linalg_svd": ("torch.linalg.svd", "the 2-norm and the nuclear norm of a matrix need it", "Use the Frobenius norm, torch.linalg.matrix_norm(x)."),
    "aten._unique2": ("torch.unique", "its result has a size that depends on the data", "Count with torch.bincount, or sort and compare neighbours."),
    "aten.adaptive_max_pool2d": ("torch.nn.AdaptiveMaxPool2d", "", "Use torch.nn.MaxPool2d with kernel and stride set to input size / output size."),
    "aten.as_strided": ("torch.as_strided", "its handler reports an internal error", "Use view, slices, expand or unfold."),
    "aten.addbmm": ("torch.addbmm", "", "Use torch.bmm(a, b).sum(0) and add the input."),
    "aten.channel_shuffle": ("torch.nn.ChannelShuffle", "", "Reshape to (N, groups, C / groups, H, W), transpose 1 and 2, reshape back."),
    "aten.diag_embed": ("torch.diag_embed", "", "Multiply by an identity matrix kept as a buffer: x.unsqueeze(-1) * eye."),
    "aten.diagonal": ("torch.diagonal", "", "Multiply by an identity matrix kept as a buffer and sum over the last dimension."),
    "aten.exp2": ("torch.exp2", "", "Use torch.exp(x * math.log(2))."),
    "aten.eye": ("torch.eye", "", "Make it once in __init__ and keep it as a buffer."),
    "aten.grid_sampler_2d": ("torch.nn.functional.grid_sample", "", "Gather the four neighbours by index and weigh them."),
    "aten.huber_loss": ("torch.nn.HuberLoss", "", "Use torch.nn.SmoothL1Loss(beta=delta) times delta."),
    "aten.index_add": ("torch.index_add", "", "Use torch.scatter_add with the index expanded to the source's shape."),
    "aten.index_copy": ("torch.index_copy", "", "Use torch.scatter with the index expanded to the source's shape."),
    "aten.kthvalue": ("torch.kthvalue", "", "Use torch.topk(x, k, largest=False) and take the last column."),
    "aten.lerp": ("torch.lerp", "", "Write it out: start + weight * (end - start)."),
    "aten.logaddexp": ("torch.logaddexp", "", "Use torch.logsumexp(torch.stack([a, b]), 0)."),
    "aten.logcumsumexp": ("torch.logcumsumexp", "", "Subtract the maximum, then exp, cumsum and log."),
    "aten.logical_xor": ("torch.logical_xor", "", "Use torch.ne on the two boolean tensors."),
    "aten.logit": ("torch.logit", "", "Use torch.log(x / (1 - x))."),
    "aten.masked_select": ("torch.masked_select", "its result has a size that depends on the data", "Keep the shape: torch.where(mask, x, 0), and divide by mask.sum() for a mean."),
    "aten.multinomial": ("torch.multinomial", "", "Add -log(-log(u)) of torch.rand to the log-probabilities and take argmax (or topk)."),
    "aten.nan_to_num": ("torch.nan_to_num", "", "Use torch.where(torch.isnan(x), 0, x)."),
    "aten.nonzero": ("torch.nonzero", "its result has a size that depends on the data", "Keep the shape: use the mask itself, by torch.where or a product."),
    "aten.pixel_unshuffle": ("torch.nn.PixelUnshuffle", "", "Reshape to (N, C, H / r, r, W / r, r), permute to (0, 1, 3, 5, 2, 4), reshape."),
    "aten.searchsorted": ("torch.searchsorted", "", "Use torch.bucketize for one row of boundaries, or compare and sum."),
    "aten.sgn": ("torch.sgn", "", "Use torch.sign on real tensors."),
    "aten.take": ("torch.take", "", "Use torch.gather on the flattened tensor."),
    "aten.trace": ("torch.trace", "", "Multiply by an identity matrix kept as a buffer and sum."),
    "aten.tril": ("torch.tril", "", "Make the mask once in __init__ and keep it as a buffer; masked_fill and where are supported."),
    "aten.upsample_linear1d": ("torch.nn.Upsample", "its handler says that only nearest is supported", "Use mode='nearest', or a matmul with a fixed interpolation matrix."),
    "aten.upsample_trilinear3d": ("torch.nn.Upsample", "its handler says that only nearest is supported", "Use mode='nearest', or matmuls with fixed interpolation matrices."),
}  # fmt: skip
