"""The rules that replace an operation by its legal form without further code, one row each."""

from __future__ import annotations

import ast

from portwright.port.legal_form import Use, legal_form
from portwright.port.rewrite import const, has_star, is_constant, keyword


def _may_have_groups(use: Use) -> bool:
    """Whether a convolution may have several groups."""
    call = use.call
    if call is not None and keyword(call, "groups") is None and has_star(call):
        return any(given.arg is None for given in call.keywords) and _passes_groups_on(use)
    given = use.argument(7 if "ConvTranspose" in use.name else 6, "groups")
    return given is not None and not is_constant(given, 1)


def _passes_groups_on(use: Use) -> bool:
    """Whether the file passes `groups=` to code outside torch and portwright, which may pass it on to the convolution."""
    for call in use.file.tree.all(ast.Call):
        given = keyword(call, "groups")
        if given is None or is_constant(given.value, 1, None):
            continue
        if not (use.file.resolve(call.func) or "").startswith(("torch.", "portwright.")):
            return True
    return False


def _knows_classes(use: Use) -> bool | str:
    given = use.argument(1, "num_classes")
    if given is None or const(given) == -1:
        return "Give num_classes: the shape may not depend on the data."
    return True


def _is_of_known_length(use: Use) -> bool | str:
    if use.call is not None and use.name.endswith("bincount") and use.argument(2, "minlength") is None:
        return "Give minlength, above all values: the shape may not depend on the data."
    return use.call is None or keyword(use.call, "sorter") is None


def _overhangs_or_has_no_indices(use: Use) -> bool:
    if use.call is None:
        return True
    if "avg_pool" in use.name:
        return is_constant(use.argument(4, "ceil_mode"), True)
    return not is_constant(use.argument(1 if "Adaptive" in use.name else 2, "return_indices"), True)


def _is_no_2_norm(use: Use) -> bool:
    if use.name.endswith("vector_norm"):
        power = use.argument(1, "ord")
    else:
        power = use.argument(2 if use.name.endswith("pairwise_distance") else 1, "p")
    return power is not None and const(power) not in (2, 2.0, "fro", None)


RULES = (
    legal_form(
        "PW320", "one-dimensional-convolution", "Puts legal forms in the place of convolutions of one dimension.",
        why="The Cerebras front end traces the forward pass of a 1-D convolution and refuses its backward pass.",
        example="self.conv = nn.Conv1d(8, 16, 3)",
        safety="Safe: the form is a 2-D convolution of height 1 with the same parameters, names and initial values.",
        reason="one-dimensional convolutions have no backward pass there",
        forms="Conv1d ConvTranspose1d",
        also={"torch.conv1d": "conv1d", "torch.conv_transpose1d": "conv_transpose1d"},
    ),
    legal_form(
        "PW321", "grouped-convolution", "Puts legal forms in the place of convolutions that may have several groups.",
        why="The Cerebras front end lowers convolutions of one group only; depthwise ones have as many groups as channels.",
        example="self.depthwise = nn.Conv2d(width, width, 3, groups=width)",
        safety="Safe: one convolution a group, with the same parameters, names and initial values.",
        reason="convolutions of several groups are not lowered there",
        forms="Conv2d Conv3d ConvTranspose2d ConvTranspose3d",
        also={f"torch.{n}": n for n in ("conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d")},
        is_refused=_may_have_groups,
    ),
    legal_form(
        "PW322", "one-hot", "Puts the legal form in the place of F.one_hot.",
        why="F.one_hot looks at the values to see that they are in range, which reads them back to the host while the step is traced.",
        example="F.one_hot(x, 10)",
        safety="Safe where the number of classes is given: comparison with an arange. Without it the width would depend on the data, and a\n"
        "person has to say it.",
        reason="it reads values back to the host while the step is traced",
        forms="one_hot",
        is_refused=_knows_classes,
    ),
    legal_form(
        "PW323", "resampling", "Puts legal forms in the place of interpolation and upsampling layers.",
        why="The Cerebras front end knows no op for resampling an image.",
        example="F.interpolate(x, scale_factor=2.0)",
        safety="Safe: views and slices for the nearest neighbour, products with fixed matrices for the smooth modes. Mode area has no form.",
        reason="resampling is not lowered there",
        forms="interpolate",
        is_refused=lambda use: const(use.argument(-1, "mode")) != "area",
    ),
    legal_form(
        "PW324", "instance-norm", "Puts legal forms in the place of instance normalisation.",
        why="Torch computes it as a batch norm without running statistics, which the Cerebras front end does not lower.",
        example="self.norm = nn.InstanceNorm2d(16)",
        safety="Safe: a group norm of one channel a group, with the same parameters and buffers.",
        reason="instance norm is not lowered there",
        forms="instance_norm",
    ),
    legal_form(
        "PW325", "flip-and-roll", "Puts legal forms in the place of flips, rolls and rotations of a tensor.",
        why="The Cerebras front end traces their forward pass and refuses the backward one.",
        example="torch.flip(x, [1])",
        safety="Safe: slices put together again, the same values in the same places.",
        reason="it has no backward pass there",
        forms="flip fliplr rot90 roll",
        also={"torch.flipud": "flipud", "Tensor.flipud": "flipud"},
    ),
    legal_form(
        "PW326", "sliding-window", "Puts legal forms in the place of unfold and fold.",
        why="The Cerebras front end does not lower the op that copies sliding windows.",
        example="F.unfold(x, 3)",
        safety="Safe: windows are cut by slices; fold sums them by a transposed convolution, equal up to rounding.",
        reason="sliding windows are not lowered there",
        forms="unfold fold unfold_dimension",
    ),
    legal_form(
        "PW327", "order-statistic", "Puts legal forms in the place of medians, k-th values, quantiles, cumulative extremes and searches.",
        why="The Cerebras front end knows no op for them; topk, comparisons and sums it does know.",
        example="torch.median(x, dim=1).values",
        safety="Safe: the same values; where several elements are equal, the index that is returned can be another of them, as between any\n"
        "two devices.",
        reason="it is not lowered there",
        forms="median kthvalue quantile cummax cummin logcumsumexp nansum nanmean var_mean std_mean count_nonzero "
        "bincount searchsorted bucketize",
        is_refused=_is_of_known_length,
    ),
    legal_form(
        "PW328", "unlowered-loss", "Puts legal forms in the place of losses that the front end refuses.",
        why="Binary cross-entropy on probabilities is banned in half precision, which the Cerebras backend always turns on; the others\n"
        "have no op there, or read a value back.",
        example="self.loss = nn.BCELoss()",
        safety="Safe: the same formula, binary cross-entropy in float32.",
        reason="this loss is not lowered there",
        forms="binary_cross_entropy smooth_l1_loss huber_loss gaussian_nll_loss multi_margin_loss soft_margin_loss",
    ),
    legal_form(
        "PW329", "reflecting-pad", "Puts legal forms in the place of reflection and replication padding.",
        why="The Cerebras front end has no backward pass of it; padding with a constant it takes.",
        example="self.pad = nn.ReflectionPad2d(1)",
        safety="Safe: slices put together, the same values in the same places.",
        reason="it has no backward pass there",
        forms="pad",
        is_refused=lambda use: not use.name.endswith(".pad") or const(use.argument(2, "mode")) in ("reflect", "replicate"),
    ),
    legal_form(
        "PW330", "triangular-mask", "Finds triangles and diagonals cut out inside a step; for csx it puts the legal form in their place.",
        why="A mask made in forward is made again at each step. The Cerebras front end does not lower tril and triu of a bool mask, and\n"
        "PopTorch has neither.",
        example="torch.tril(torch.ones(9, 9, dtype=torch.bool, device=x.device))",
        safety="Safe for csx: a comparison of positions, the same values. For ipu and rdu make the mask once in `__init__`, keep it with\n"
        "register_buffer and slice it by fixed numbers.",
        reason="it is not lowered there, or not of a bool mask",
        forms="diagonal diag_embed diag trace tril triu cross linalg_cross",
    ),
    legal_form(
        "PW331", "unlowered-function", "Puts legal forms in the place of pointwise functions that the front end does not know.",
        why="The Cerebras front end lowers the common activations and functions, and refuses these, or their backward pass.",
        example="self.act = nn.PReLU()",
        safety="Safe: the same formula in functions that are lowered.",
        reason="it is not lowered there",
        forms="channel_shuffle prelu selu celu hardsigmoid softshrink hardshrink lerp nan_to_num logaddexp fmax "
        "fmin dist hypot exp2 asinh atanh erfc trunc frac logit mv vdot linspace embedding_bag",
    ),
    legal_form(
        "PW332", "unlowered-pooling", "Puts legal forms in the place of adaptive maximum pooling, unpooling, and windows that overhang.",
        why="The Cerebras front end has no backward pass of adaptive maxima and does not lower averages with ceil_mode.",
        example="self.pool = nn.AdaptiveMaxPool2d(1)",
        safety="Safe: the same windows by slices. With return_indices there is no form.",
        reason="this pooling is not lowered there",
        forms="adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d avg_pool1d avg_pool2d avg_pool3d "
        "max_unpool2d",
        is_refused=_overhangs_or_has_no_indices,
    ),
    legal_form(
        "PW333", "grid-sample", "Puts legal forms in the place of grid_sample and affine_grid.",
        why="The Cerebras front end knows no op for sampling an image at given points.",
        example="F.grid_sample(x, self.grid, align_corners=False)",
        safety="Safe: gathers and products, equal up to rounding.",
        reason="sampling at given points is not lowered there",
        forms="grid_sample affine_grid",
    ),
    legal_form(
        "PW335", "recomputation", "Puts the legal form in the place of torch.utils.checkpoint.checkpoint.",
        why="It looks for a torch module named after the device, which the Cerebras SDK has not; its compiler decides by itself what to keep.",
        example="torch.utils.checkpoint.checkpoint(self.block, x)",
        safety="Safe: the function is called plainly, so values and gradients are the same and only the memory differs. Unsafe in\n"
        "a file with batch norms: torch's recomputation moves their running statistics twice a step, and a plain call once.",
        reason="recomputation is decided by the compiler there",
        forms="checkpoint",
        unsafe_beside=("BatchNorm",),
    ),
    legal_form(
        "PW336", "other-norm", "Puts legal forms in the place of norms other than the 2-norm.",
        why="The Cerebras front end lowers the 2-norm alone.",
        example="x.norm(p=1, dim=-1)",
        instead="legal.norm(x, p=1, dim=-1)",
        safety="Safe: the same formula in sums and powers.",
        reason="norms other than the 2-norm are not lowered there",
        forms="pairwise_distance norm normalize vector_norm",
        is_refused=_is_no_2_norm,
    ),
)  # fmt: skip
