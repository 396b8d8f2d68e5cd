"""Calls and layers that have a legal form, by rule: the inputs `a`, `b`, `c` and arguments that they are given."""

from __future__ import annotations

import ast

from audit.harness import Pattern
from audit.patterns import tensor
from audit.programs import Draw, Piece

from portwright.discover import find_rules
from portwright.port.legal_form import LegalForm

FLOATS = "float grad double strided"
ANY = "float grad double strided int bool half complex"
# Torch's name: kinds of inputs | shapes of inputs, or how one is made | arguments, one alternative a `;`
CALLS = """
torch.nn.functional.conv1d: float grad strided | 2,4,8 ; 6,4,3 | a, b ; a, b, padding=1 ; a, b, None, 2 ; a, b, stride=2, dilation=2
torch.nn.functional.conv_transpose1d: float grad | 2,4,8 ; 4,6,3 | a, b ; a, b, stride=2, padding=1 ; a, b, None, 2, 1, 1
torch.nn.functional.conv2d: float grad strided | 2,4,5,6 ; 4,2,3,3 | a, b, groups=2 ; a, b, None, 1, 1, 1, 2 ; a, b, padding='same', groups=2
torch.nn.functional.conv3d: float grad | 1,4,4,4,4 ; 4,2,3,3,3 | a, b, groups=2 ; a, b, None, 1, 1, 1, 2
torch.nn.functional.conv_transpose2d: float grad | 2,4,4,5 ; 4,3,3,3 | a, b, groups=2 ; a, b, None, 2, 1, 1, 2
torch.nn.functional.one_hot: int | =torch.randint(0, 5, (2, 3)) | a, 5 ; a, num_classes=7 ; a[0], 5 ; a[0, 0], 5 ; a, 3
torch.nn.functional.interpolate: float grad strided | 2,3,4,6 | a, scale_factor=2 ; a, (8, 6) ; a, size=(7, 5), mode='nearest' ; a, scale_factor=2, mode='bilinear' ; a, scale_factor=(0.5, 1), mode='bilinear', align_corners=True ; a, scale_factor=2, mode='bicubic' ; a, size=5, mode='area' ; a, scale_factor=1.5, recompute_scale_factor=True
torch.nn.functional.instance_norm: float grad strided double | 2,3,4,5 ; 3 | a ; a, weight=b, bias=b ; a, eps=1e-2 ; a, None, None, b
torch.flip: float grad double strided int bool complex half | 2,3,4 | a, (0,) ; a, [0, -1] ; a, dims=(1, 2) ; a, (-1,) ; a, ()
torch.fliplr: float grad int bool | 2,3,4 | a ; a[0] ; a[0, 0]
torch.flipud: float grad int bool | 2,3,4 | a ; a[0, 0]
torch.roll: float grad int bool complex | 2,3,4 | a, 1 ; a, 1, 0 ; a, (1, -2), (0, 2) ; a, shifts=-1, dims=-1 ; a, 7, 1
torch.rot90: float grad int bool | 2,3,4 | a ; a, 2 ; a, -1, (1, 2) ; a, k=3, dims=[0, -1] ; a, 4
torch.nn.functional.unfold: float grad strided | 2,3,4,6 | a, 2 ; a, (2, 3), padding=1 ; a, 2, 1, 1, 2 ; a, kernel_size=3, stride=2
torch.nn.functional.fold: float grad | 2,12,4 | a, (4, 4), 2, stride=2 ; a, output_size=(3, 3), kernel_size=(2, 2)
Tensor.unfold: float grad int | 2,3,6 | a, 2, 3, 1 ; a, -1, 2, 2 ; a, 1, 2, 1
torch.median: float grad double int | 3,5 | a ; a, 1 ; a, dim=0 ; a, -1, True ; a, 0, keepdim=True
torch.kthvalue: float grad double | 3,5 | a, 2 ; a, 2, 0 ; a, k=1, dim=-1, keepdim=True
torch.quantile: float grad double | 3,5 ; =torch.tensor([0.1, 0.5]) | a, 0.5 ; a, 0.3, 1 ; a, b, dim=0 ; a, 0.25, dim=-1, keepdim=True
torch.cummax: float grad int | 3,5 | a, 1 ; a, dim=0 ; a, -1
torch.cummin: float grad int | 3,5 | a, 1 ; a, dim=0
torch.logcumsumexp: float grad double | 3,5 | a, 1 ; a, dim=0
torch.searchsorted: float | =torch.arange(6.0) ; 3,4 | a, b ; a, b, right=True ; a, b, out_int32=True ; a, 2.5
torch.bucketize: float | 3,4 ; =torch.arange(6.0) | a, b ; a, b, right=True ; a, b, out_int32=True
torch.bincount: int | =torch.randint(0, 5, (7,)) | a, minlength=8 ; a, None, 8
torch.count_nonzero: float int bool | 3,5 | a ; a, 0 ; a, dim=(0, 1)
torch.nansum: float grad int | 3,5 | a ; a / 0 - a / 0, 1 ; a, dim=0, keepdim=True ; a, dtype=torch.float64
torch.nanmean: float grad | 3,5 | a ; a, 1 ; a, dim=0, keepdim=True
torch.var_mean: float grad double | 3,5 | a ; a, 1 ; a, dim=0, correction=0 ; a, 1, True ; a, (0, 1), keepdim=True
torch.std_mean: float grad double | 3,5 | a ; a, 1 ; a, dim=0, correction=0 ; a, 1, False
torch.nn.functional.binary_cross_entropy: float | =torch.rand(3, 4).requires_grad_() ; =torch.rand(3, 4) ; =torch.rand(4) | a, b ; a, b, c ; a, b, reduction='sum' ; a, b, weight=c, reduction='none' ; a * 2, b ; a.round(), b
torch.nn.functional.smooth_l1_loss: float grad double | 3,4 ; 3,4 | a, b ; a, b, beta=0.5 ; a, b, reduction='none', beta=0.0 ; a, b[0]
torch.nn.functional.huber_loss: float grad double | 3,4 ; 3,4 | a, b ; a, b, delta=0.5 ; a, b, 'sum', 2.0
torch.nn.functional.gaussian_nll_loss: float grad | 3,4 ; 3,4 ; =torch.rand(3, 4) | a, b, c ; a, b, c, full=True ; a, b, c, reduction='none' ; a, b, c[:, :1]
torch.nn.functional.multi_margin_loss: float grad | 3,4 ; =torch.tensor([0, 3, 1]) ; =torch.rand(4) | a, b ; a, b, p=2 ; a, b, margin=0.5, reduction='none' ; a, b, weight=c
torch.nn.functional.soft_margin_loss: float grad | 3,4 ; 3,4 | a, b.sign() ; a, b.sign(), reduction='sum'
torch.nn.functional.pad: float grad strided | 2,3,4,5 | a, (1, 2), 'circular' ; a, (1, 2), mode='replicate' ; a, (1, 2, 1, 0), 'reflect' ; a, (2, 1, 1, 1), mode='replicate'
torch.tril: float grad int bool complex | 2,4,3 | a ; a, 1 ; a, diagonal=-1 ; a[0]
torch.triu: float grad int bool complex | 2,4,3 | a ; a, 1 ; a, diagonal=-1 ; a[0]
torch.diag: float grad int bool | 4 ; 3,4 | a ; b ; a, 1 ; b, diagonal=-1
torch.diagonal: float grad int | 2,4,3 | a ; a, 1 ; a, -1, 1, 2 ; a, dim1=-2, dim2=-1 ; a, offset=1, dim1=2, dim2=0
torch.diag_embed: float grad int bool | 2,3 | a ; a, 1 ; a, -1, 0, 2 ; a, dim1=0, dim2=1
torch.trace: float grad int | 3,4 | a
torch.cross: float grad int | 2,3 ; 2,3 | a, b ; a, b, 1 ; a, b, dim=-1
torch.linalg.cross: float grad | 2,3 ; 2,3 | a, b ; a, b, dim=-1 ; a, b[0]
torch.nn.functional.prelu: float grad | 2,3,4 ; 3 | a, b ; a, b[:1]
torch.nn.functional.selu: float grad double half | 2,3 | a
torch.nn.functional.celu: float grad double | 2,3 | a ; a, 0.5 ; a, alpha=2.0
torch.nn.functional.hardsigmoid: float grad double | 2,3 | a * 4
torch.nn.functional.softshrink: float grad double | 2,3 | a ; a, 0.2 ; a, lambd=1.0
torch.nn.functional.hardshrink: float grad double | 2,3 | a ; a, 0.2 ; a, lambd=1.0
torch.nn.functional.channel_shuffle: float grad | 2,4,3,3 | a, 2 ; a, groups=4
torch.lerp: float grad double | 2,3 ; 2,3 ; 3 | a, b, 0.3 ; a, b, c ; a, end=b, weight=0.9
torch.nan_to_num: float grad int half | 2,3 | a / 0 ; a ; a / 0, 1.0 ; a / 0, nan=2.0, posinf=3.0, neginf=-4.0
torch.logaddexp: float grad double | 2,3 ; 3 | a, b ; a * 100, b ; a / 0, a / 0
torch.hypot: float grad double | 2,3 ; 3 | a, b ; a * 1e20, b
torch.exp2: float grad int | 2,3 | a
torch.asinh: float grad int | 2,3 | a ; a * 1e4 ; a * 1e30
torch.atanh: float | =torch.rand(3).requires_grad_() | a ; a * 2 ; a * 0 + 1
torch.erfc: float grad double | 2,3 | a ; a * 5 ; a * 20
torch.trunc: float grad double int half | 2,3 | a * 3 ; a
torch.frac: float grad double | 2,3 | a * 3
torch.logit: float | =torch.rand(4).requires_grad_() | a ; a, 0.1 ; a, eps=1e-3 ; a * 2 - 0.5
torch.mv: float grad double | 3,4 ; 4 | a, b
torch.vdot: float grad | 4 ; 4 | a, b
torch.linspace: float | =0.0 ; =2.0 | a, b, 5 ; a, b, steps=3 ; 0, 1, 4, dtype=torch.float64
torch.fmax: float grad int | 2,3 ; 3 | a, b ; a / 0 - a / 0, b
torch.fmin: float grad int | 2,3 ; 3 | a, b ; a, b / 0 - b / 0
torch.dist: float grad double | 2,3 ; 2,3 | a, b ; a, b, 1 ; a, b, p=3.0 ; a, a
torch.nn.functional.adaptive_max_pool1d: float grad | 2,3,8 | a, 4 ; a, output_size=2 ; a, 3 ; a, 4, True
torch.nn.functional.adaptive_max_pool2d: float grad | 2,3,8,6 | a, 2 ; a, (4, 3) ; a, (None, 3) ; a, (3, 4)
torch.nn.functional.adaptive_max_pool3d: float grad | 1,2,4,4,4 | a, 2 ; a, (2, 1, 4)
torch.nn.functional.avg_pool1d: float grad | 2,3,8 | a, 2 ; a, kernel_size=3, stride=1, padding=1 ; a, 3, 2, 1, True ; a, 3, 1, 1, count_include_pad=False
torch.nn.functional.avg_pool2d: float grad | 2,3,8,6 | a, 2 ; a, (3, 2), stride=1, padding=(1, 0) ; a, 3, 2, 1, True, False ; a, 2, divisor_override=3
torch.nn.functional.avg_pool3d: float grad | 1,2,4,4,4 | a, 2 ; a, 3, 1, 1
torch.nn.functional.max_unpool2d: float grad | 1,2,2,2 ; =torch.tensor([0, 3, 9, 15]).expand(1, 2, 4).reshape(1, 2, 2, 2) | a, b, 2 ; a, b, 2, output_size=(4, 4)
torch.nn.functional.grid_sample: float grad | 2,3,4,5 ; =torch.rand(2, 3, 3, 2) * 2.4 - 1.2 | a, b ; a, b, align_corners=True ; a, b, 'nearest' ; a, b, mode='bilinear', padding_mode='border', align_corners=False ; a, b, padding_mode='reflection'
torch.nn.functional.affine_grid: float grad | 2,2,3 | a, (2, 3, 4, 5) ; a, [2, 1, 3, 3], align_corners=True ; a, size=(2, 3, 4, 5), align_corners=False
torch.index_select: float grad int bool complex strided | 3,4 ; =torch.tensor([2, 0, 2]) | a, 0, b ; a, 1, b ; a, dim=-1, index=b ; a, 1, b.int() ; a, 1, b - 1
torch.index_add: float grad int | 3,4 ; 3,2 ; =torch.tensor([3, 3]) | a, 1, c, b ; a, -1, c, b, alpha=2 ; a, dim=1, index=c, source=b
torch.index_fill: float grad int bool | 3,4 ; =torch.tensor([2, 0]) | a, 0, b, 1 ; a, 1, b, 2.5 ; a, -1, b, value=0
torch.index_copy: float grad int | 3,4 ; 3,2 ; =torch.tensor([3, 1]) | a, 1, c, b ; a, dim=1, index=c, source=b
torch.index_put: float grad int | 3,4 ; =torch.tensor([2, 0]) ; 2 | a, (b, b), c ; a, (b,), c[:1] ; a, (b, b), c, True ; a, (b, b), values=c, accumulate=True
torch.take: float grad int bool | 3,4 ; =torch.tensor([[2, 0], [11, 5]]) | a, b ; a, index=b ; a, b[0]
torch.scatter_reduce: float grad int | 3,4 ; =torch.randint(0, 3, (3, 4)) ; 3,4 | a, 0, b, c, 'sum' ; a, 0, b, c, reduce='amax' ; a, 1, b, c, 'mean' ; a, 0, b, c, 'sum', include_self=False
torch.norm: float grad double strided | 2,3,4 | a, 1 ; a, p=1, dim=-1 ; a, float('inf'), 1 ; a, 3, (1, 2) ; a, p=0.5, dim=1, keepdim=True ; a, p=1, dim=1, dtype=torch.float64 ; a, 0, 1 ; a * 0, 3, 1
torch.nn.functional.normalize: float grad double | 2,3 | a, 1 ; a, p=1, dim=0 ; a, 3.0, -1 ; a, p=1.0, eps=1.0 ; a * 0, 1
torch.nn.functional.pairwise_distance: float grad | 2,3 ; 2,3 | a, b, 1 ; a, b, p=1.0, keepdim=True ; a, a, 3.0 ; a, b, 3, 1e-3
torch.linalg.vector_norm: float grad double | 2,3,4 | a, 1 ; a, ord=3, dim=1 ; a, float('inf') ; a, 0, (0, 1), True ; a, 1, dtype=torch.float64
torch.utils.checkpoint.checkpoint: float grad | 2,3 | torch.sin, a, use_reentrant=False ; torch.nn.functional.dropout, a, use_reentrant=False ; lambda x: x * 2, a * 1, use_reentrant=True
"""
# Torch's name: shape of what goes in, or how it is made | arguments, one alternative a `;`
LAYERS = """
torch.nn.Conv1d: 2,4,8 | 4, 6, 3 ; 4, 4, 3, padding=1, groups=2 ; 4, 2, kernel_size=3, bias=False ; 4, 4, 3, padding='same', padding_mode='circular' ; 4, 4, 3, 2, 1, 2
torch.nn.ConvTranspose1d: 2,4,8 | 4, 6, 3 ; 4, 4, 3, stride=2, padding=1, output_padding=1 ; 4, 4, 3, groups=2, bias=False
torch.nn.Conv2d: 2,4,5,6 | 4, 4, 3, groups=2 ; 4, 8, 3, padding=1, groups=4, bias=False ; 4, 4, (3, 1), 1, 1, 1, 2 ; 4, 4, 3, groups=2, padding=1, padding_mode='reflect'
torch.nn.Conv3d: 1,4,4,4,4 | 4, 4, 3, groups=2 ; 4, 4, 3, padding=1, groups=4
torch.nn.ConvTranspose2d: 2,4,4,5 | 4, 4, 3, groups=2 ; 4, 4, 3, 2, 1, 1, 2
torch.nn.ConvTranspose3d: 1,4,3,3,3 | 4, 4, 2, groups=2
torch.nn.LSTM: 4,5,3 | 3, 4 ; 3, 4, 2, batch_first=True ; 3, 4, bidirectional=True ; input_size=3, hidden_size=2, num_layers=2, dropout=0.5 ; 3, 4, bias=False ; 3, 4, proj_size=2
torch.nn.GRU: 4,5,3 | 3, 4 ; 3, 4, 2, batch_first=True, bidirectional=True ; 3, 4, bias=False
torch.nn.RNN: 4,5,3 | 3, 4 ; 3, 4, nonlinearity='relu' ; 3, 4, 2, batch_first=True
torch.nn.LSTMCell: 4,3 | 3, 5 ; 3, 5, bias=False
torch.nn.GRUCell: 4,3 | 3, 5 ; 3, 5, bias=False
torch.nn.RNNCell: 4,3 | 3, 5 ; 3, 5, nonlinearity='relu'
torch.nn.Upsample: 2,3,4,6 | scale_factor=2 ; (8, 6) ; scale_factor=2, mode='bilinear', align_corners=True ; scale_factor=2, mode='bicubic'
torch.nn.UpsamplingNearest2d: 2,3,4,6 | scale_factor=2 ; (8, 9)
torch.nn.UpsamplingBilinear2d: 2,3,4,6 | scale_factor=2 ; (8, 9)
torch.nn.InstanceNorm1d: 2,3,4 | 3 ; 3, affine=True ; 3, track_running_stats=True ; 3, eps=0.1
torch.nn.InstanceNorm2d: 2,3,4,5 | 3 ; 3, affine=True, track_running_stats=True, momentum=0.5 ; 3, momentum=None, track_running_stats=True
torch.nn.InstanceNorm3d: 2,3,2,4,2 | 3 ; 3, affine=True
torch.nn.Unfold: 2,3,4,6 | 2 ; (2, 3), padding=1
torch.nn.Fold: 2,12,4 | (4, 4), 2, stride=2
torch.nn.ReflectionPad1d: 2,3,4 | 1 ; (2, 1)
torch.nn.ReflectionPad2d: 2,3,4,5 | 1 ; (2, 1, 0, 3)
torch.nn.ReflectionPad3d: 2,3,4,5,4 | 1
torch.nn.ReplicationPad1d: 2,3,4 | 1 ; (2, 1)
torch.nn.ReplicationPad2d: 2,3,4,5 | 1 ; (2, 1, 0, 3)
torch.nn.ReplicationPad3d: 2,3,4,5,4 | 1
torch.nn.PReLU: 2,3,4 |  ; 3 ; 3, 0.1 ; init=0.5
torch.nn.SELU: 2,3 |  ; inplace=True
torch.nn.CELU: 2,3 |  ; 0.5 ; alpha=2.0
torch.nn.Hardsigmoid: 2,3 |
torch.nn.Softshrink: 2,3 |  ; 0.2
torch.nn.Hardshrink: 2,3 |  ; 0.2
torch.nn.ChannelShuffle: 2,4,3,3 | 2 ; groups=4
torch.nn.EmbeddingBag: =torch.randint(0, 5, (2, 3)) | 5, 4 ; 5, 4, mode='sum' ; 5, 4, padding_idx=0 ; 5, 4, mode='max'
torch.nn.AdaptiveMaxPool1d: 2,3,8 | 4 ; 3
torch.nn.AdaptiveMaxPool2d: 2,3,8,6 | 2 ; (4, 3) ; (None, 2)
torch.nn.AdaptiveMaxPool3d: 1,2,4,4,4 | 2
"""
LOSSES = """
torch.nn.BCELoss: =torch.rand(3, 4) ; =torch.rand(3, 4) |  ; reduction='sum' ; weight=torch.rand(4)
torch.nn.SmoothL1Loss: 3,4 ; 3,4 |  ; beta=0.5 ; reduction='none'
torch.nn.HuberLoss: 3,4 ; 3,4 |  ; delta=0.5 ; reduction='sum'
torch.nn.MultiMarginLoss: 3,4 ; =torch.tensor([0, 3, 1]) |  ; p=2 ; margin=0.5
torch.nn.SoftMarginLoss: 3,4 ; =torch.randn(3, 4).sign() |  ; reduction='sum'
torch.nn.GaussianNLLLoss: 3,4 ; 3,4 ; =torch.rand(3, 4) |  ; full=True
"""
# What programs ask of a layer once it is made.
QUESTIONS = (
    "print(model)", "print(list(model.state_dict()))", "print([type(m).__name__ for m in model.modules()])",
    "again = copy.deepcopy(model)", "print([n for n, _ in model.named_parameters()])", "model.eval()",
    "print([isinstance(m, {of}) for m in model.modules()])", "print([m.__class__.__name__.find('Conv') for m in model.modules()])",
    "model.load_state_dict(again.state_dict() if 'again' in globals() else model.state_dict())",
    "print([type(m) is {of} for m in model.modules()])", "print(model.own.extra_repr())", "print({of}.__name__)",
    "print({{{of}: 'known'}}.get(type(model.own)))", "print([m._get_name() for m in model.modules()])",
    "print(type(model.own) in (torch.nn.Linear, {of}))", "model.double()", "print(model.own.__class__ == {of})",
)  # fmt: skip


def rows(table: str) -> dict[str, list[list[str]]]:
    """Of each name the fields of its row, each a list of alternatives."""
    found = {}
    for line in table.strip().splitlines():
        name, _, rest = line.partition(":")
        found[name] = [[part.strip() for part in field.split(" ; ")] for field in rest.split("|")]
    return found


def made(draw: Draw, how: str, kinds: str) -> str:
    return how.removeprefix("=") if how.startswith("=") else tensor(draw, ", ".join(how.split(",")), kinds)


def call(draw: Draw, rule: LegalForm) -> Piece:
    """A function, or the tensor's method of that name, with one of its lists of arguments."""
    known = {
        n: r for n, r in CALLS_OF.items() if n in rule.functions or n.removeprefix("Tensor.") in rule.methods
    }
    name = draw.one(*known)
    (kinds,), shapes, arguments = known[name]
    inputs = {n: made(draw, how, kinds) for n, how in zip("abc", shapes, strict=False)}
    chosen = draw.one(*arguments)
    last = name.rpartition(".")[2]
    is_method = last in rule.methods and (name.startswith("Tensor.") or draw.chance(0.5))
    if is_method and not name.startswith("torch.nn"):
        parsed = ast.parse(f"f({chosen})", mode="eval").body
        first, rest = ast.unparse(parsed.args.pop(0)), ast.unparse(parsed)[2:-1]
        first = first if first.isidentifier() else f"({first})"
        return Piece(f"{first}.{last}({rest})", inputs)
    return Piece(f"{draw.of(name)}({chosen})", inputs)


def layer(draw: Draw, rule: LegalForm) -> Piece:
    """A layer of the model, made in one of several ways."""
    table = {n: r for n, r in {**LAYERS_OF, **LOSSES_OF}.items() if n in rule.layers}
    name = draw.one(*table)
    shapes, alternatives = table[name]
    inputs = {n: made(draw, how, "float grad") for n, how in zip("abc", shapes, strict=False)}
    arguments, of = draw.one(*alternatives), draw.of(name)
    setup = []
    constructor = draw.one(
        "{of}({arguments})", "torch.nn.Sequential({of}({arguments}))", "(lambda kind: kind({arguments}))({of})",
        "torch.nn.ModuleList([{of}({arguments}) for _ in range(2)])[1]", "{of}({arguments}) if len('a') else None",
    ) if name in LAYERS_OF else "{of}({arguments})"  # fmt: skip
    if draw.chance(0.1):
        own = draw.name()
        setup = [f"class {own}({of}):\n    def forward(self, *x):\n        return super().forward(*x)"]
        of = own
    questions = [draw.one(*QUESTIONS).format(of=of) for _ in range(draw.random.randint(0, 2))]
    expression = f"self.own({', '.join(inputs)})"
    return Piece(
        expression, inputs, {"own": constructor.format(of=of, arguments=arguments)}, setup, after=questions
    )


def _pattern(rule: LegalForm) -> Pattern:
    names = {*rule.functions, *(f"Tensor.{n}" for n in rule.methods)}
    kinds = [call] * bool(names & CALLS_OF.keys()) + [layer] * bool(rule.layers)
    return Pattern(lambda draw: draw.one(*kinds)(draw, rule), rtol=1e-4, takes_more=True)


CALLS_OF, LAYERS_OF, LOSSES_OF = rows(CALLS), rows(LAYERS), rows(LOSSES)
# Functions that are another name of one above.
SAME = {"torch.conv1d", "torch.conv2d", "torch.conv3d", "torch.fix", "torch.prelu", "torch.selu", "torch.celu", "torch.hardshrink"}  # fmt: skip
PATTERNS = {
    rule.code: _pattern(rule)
    for rule in find_rules().values()
    if isinstance(rule, LegalForm) and rule.library == "portwright.layers.legal"
}
