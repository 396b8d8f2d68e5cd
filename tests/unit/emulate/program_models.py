"""Models of many kinds, each with inputs, for the tests of the frozen program."""

from __future__ import annotations

import copy
import runpy
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint
from unit.models.cosmic_folder import load

from portwright.emulate.poptorch import Options
from portwright.emulate.poptorch._program import Program
from portwright.emulate.poptorch._program_trace import trace as trace_program
from portwright.emulate.poptorch._rules import Watch, watching

ALPHABET = Path(__file__).parents[3] / "src" / "portwright" / "models" / "alphabet"
Inputs = list[Tensor]


class Scored(nn.Module):
    """Gives (what the body gives, the loss)."""

    def __init__(self, body: nn.Module, loss: Callable[..., Tensor] = F.mse_loss) -> None:
        super().__init__()
        self.body, self.loss = body, loss

    def forward(self, x: Tensor, y: Tensor) -> Any:
        out = self.body(x)
        return out, self.loss(out, y)


class Step(nn.Module):
    """A linear layer, and a function of (module, its output, target) that gives the result."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)
        self.function = function
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self, *inputs)


class Recurrent(nn.Module):
    def __init__(self, kind: Any, **settings: Any) -> None:
        super().__init__()
        self.cell = kind(6, 8, 2, batch_first=True, **settings)
        self.head = nn.Linear(16 if settings.get("bidirectional") else 8, 4)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        out, state = self.cell(x)
        return state, F.mse_loss(self.head(out), y)


class Tied(nn.Module):
    """A language model whose output layer is its embedding, behind a mask that is a buffer."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(16, 11, bias=False)
        self.out.weight = self.embedding.weight
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(5), persistent=False)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        logits = self.out(self.encoder(self.embedding(x), mask=self.mask))
        return logits, F.cross_entropy(logits.flatten(0, 1), y.flatten())


class Cubed(torch.autograd.Function):
    """Its gradient is not that of its forward, so that one sees which was taken."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradients[0] * x * 7


class Pair(NamedTuple):
    first: Tensor
    loss: Tensor


class Counting(nn.Module):
    """Counts its steps and keeps a mean of what it saw, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(6), persistent=False)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        self.steps += 1
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return self.linear(x - self.mean), F.mse_loss(self.linear(x - self.mean), y), self.steps


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(3, 3)
        self.first.requires_grad_(False)
        self.second.bias.requires_grad_(False)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return None, F.mse_loss(self.second(self.first(x).relu()), y)


class Planes(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        small = {"depth": 2, "n_initial_filters": 4, "bottleneck_deepest": 8, "blocks_final": 1}
        small |= {"blocks_deepest_layer": 1, "blocks_per_layer": 1, **options}
        self.network = load("uresnet").UResNet(load("uresnet_blocks").NetworkOptions(**small))

    def forward(self, x: Tensor, y: Tensor) -> Any:
        logits = self.network(x)
        return logits, F.cross_entropy(logits, y)


class Letters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        module = runpy.run_path(str(ALPHABET / "pytorch_transformer.py"))
        self.model = module["TransformerModel"](9, 16, 2, 32, 2, dropout=0.2, max_len=5)
        self.make_mask = module["generate_square_subsequent_mask"]

    def forward(self, x: Tensor, y: Tensor) -> Any:
        logits = self.model(x, self.make_mask(5))
        return logits, F.cross_entropy(logits.flatten(0, 1), y.flatten())


def rows() -> Inputs:
    return [torch.randn(3, 6), torch.randn(3, 4)]


def images(channels: int = 3, classes: int = 5) -> Inputs:
    return [torch.randn(4, channels, 8, 8), torch.randint(0, classes, (4,))]


def words(letters: int = 11) -> Inputs:
    return [torch.randint(0, letters, (3, 5)), torch.randint(0, letters, (3, 5))]


def sequences() -> Inputs:
    return [torch.randn(2, 5, 6), torch.randn(2, 5, 4)]


def mlp() -> nn.Module:
    return Scored(nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Dropout(0.4), nn.Linear(9, 4)))


def cnn() -> nn.Module:
    layers = [nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.3)]
    return Scored(nn.Sequential(*layers, nn.Flatten(), nn.Linear(6 * 16, 5)), F.cross_entropy)


def norms() -> nn.Module:
    layers = [
        nn.Conv2d(3, 8, 3),
        nn.GroupNorm(2, 8),
        nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
    ]
    more = [
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.LayerNorm(32),
        nn.BatchNorm1d(32, momentum=0.3),
        nn.RReLU(),
    ]
    return Scored(nn.Sequential(*layers, *more, nn.Linear(32, 5)), F.cross_entropy)


def scored(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(m.linear(x), y)


def in_place(m: nn.Module, x: Tensor, y: Tensor) -> Any:
    out = m.linear(x).clone()
    out[:, 1:3] *= 2
    out[0] = y[0]
    view = out.view(2, -1)
    view.t_().add_(1)
    out.relu_()
    return out, F.mse_loss(out, y), view


def handles(m: nn.Module, x: Tensor, y: Tensor) -> Any:
    """One tensor under several handles whose shapes change by themselves."""
    out = m.linear(x)
    other = out.detach()
    other.unsqueeze_(0).transpose_(1, 2)
    return other * 1, F.mse_loss(out, y), out.shape[0], other.dim()


def aliases(m: nn.Module, x: Tensor, y: Tensor) -> Any:
    return x, m.linear.weight, m.linear.bias[1:], scored(m, x, y), x.t()


def writes_input(m: nn.Module, x: Tensor, y: Tensor) -> Any:
    x.mul_(2)
    y[0].zero_()
    return x, scored(m, x, y)


def asks_training(m: nn.Module, x: Tensor, y: Tensor) -> Any:
    out = m.linear(x)
    out = F.dropout(out, 0.5, m.training) if m.training else out * 3
    return out, F.mse_loss(out, y)


def checkpointed(m: nn.Module, x: Tensor, y: Tensor, use_reentrant: bool = False) -> Any:
    out = checkpoint(nn.Sequential(m.linear, nn.Tanh(), m.drop, nn.Tanh()), x, use_reentrant=use_reentrant)
    return F.dropout(out, 0.5), F.mse_loss(m.linear(x) + out, y)


def reentrant(m: nn.Module, x: Tensor, y: Tensor) -> Any:
    return checkpointed(m, x.clone().requires_grad_(), y, use_reentrant=True)


def hot(m: nn.Module, x: Tensor, labels: Tensor) -> Any:
    out = m.linear(x).softmax(-1)
    wanted = F.one_hot(labels, 4)
    return wanted, ((out - wanted) ** 2).mean()


def searches(m: nn.Module, x: Tensor, y: Tensor) -> Any:
    values, places = m.linear(x).topk(2)
    return (
        [values, places],
        x.split([1, 2, 3], 1),
        list(x.unbind(0)),
        torch.einsum("bi,bj->ij", x, y),
        scored(m, x, y),
    )


def complex_numbers(m: nn.Module, x: Tensor, y: Tensor) -> Any:
    wave = torch.fft.rfft(m.linear(x)) * torch.tensor([1 + 2j, 1, -1j])
    return wave, F.mse_loss(torch.fft.irfft(wave, n=4), y)


def scalars(m: nn.Module, x: Tensor, factor: Tensor, y: Tensor) -> Any:
    return factor * 2, F.mse_loss(m.linear(x) * factor, y)


def attention(m: nn.Module, x: Tensor, y: Tensor) -> Any:
    out, weights = m.attend(x, x, x)
    return {"weights": weights}, F.mse_loss(m.linear(out), y)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Inputs]]] = {
    "mlp": (mlp, rows),
    "cnn": (cnn, images),
    "norms": (norms, images),
    "transposed": (lambda: Scored(nn.ConvTranspose2d(3, 2, 3, 2), F.l1_loss), lambda: [torch.randn(2, 3, 5, 5), torch.randn(2, 2, 11, 11)]),
    "lstm": (lambda: Recurrent(nn.LSTM, dropout=0.2), sequences),
    "gru": (lambda: Recurrent(nn.GRU, bidirectional=True), sequences),
    "rnn": (lambda: Recurrent(nn.RNN), sequences),
    "tied": (Tied, words),
    "attention": (lambda: Step(attention, attend=nn.MultiheadAttention(6, 2, 0.1, batch_first=True)), sequences),
    "letters": (Letters, lambda: words(9)),
    "planes": (Planes, lambda: [torch.randn(2, 3, 16, 16), torch.randint(0, 3, (6, 16, 16))]),
    "planes_transposed": (lambda: Planes(upsampling="convolutional", downsampling="convolutional", connections="sum"), lambda: [torch.randn(1, 3, 16, 16), torch.randint(0, 3, (3, 16, 16))]),
    "counting": (Counting, rows),
    "frozen": (Frozen, rows),
    "loss_alone": (lambda: Step(scored), rows),
    "in_place": (lambda: Step(in_place), lambda: [torch.randn(4, 6), torch.randn(4, 4)]),
    "handles": (lambda: Step(handles), rows),
    "aliases": (lambda: Step(aliases), rows),
    "writes_input": (lambda: Step(writes_input), rows),
    "asks_training": (lambda: Step(asks_training), rows),
    "checkpointed": (lambda: Step(checkpointed, drop=nn.Dropout(0.5)), rows),
    "reentrant": (lambda: Step(reentrant, drop=nn.Dropout(0.5)), rows),
    "one_hot": (lambda: Step(hot), lambda: [torch.randn(3, 6), torch.tensor([3, 0, 1])]),
    "searches": (lambda: Step(searches), rows),
    "normed_weight": (lambda: Scored(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4))), rows),
    "upsampled": (lambda: Scored(nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(3, 2, 3))), lambda: [torch.randn(1, 3, 4, 4), torch.randn(1, 2, 6, 6)]),
    "bag": (lambda: Scored(nn.EmbeddingBag(11, 4), lambda out, y: F.mse_loss(out, y[:, :4].float())), words),
    "empty_batch": (lambda: Step(lambda m, x: (m.linear(x), m.linear(x).sum())), lambda: [torch.randn(0, 6)]),
    "complex": (lambda: Step(complex_numbers), rows),
    "scalars": (lambda: Step(scalars), lambda: [torch.randn(3, 6), torch.tensor(2.5), torch.randn(3, 4)]),
    "function": (lambda: Step(lambda m, x, y: (Cubed.apply(m.linear(x)), F.mse_loss(Cubed.apply(m.linear(x)), y))), rows),
    "named": (lambda: Step(lambda m, x, y: Pair(m.linear(x), scored(m, x, y))), rows),
    "ordered": (lambda: Step(lambda m, x, y: OrderedDict(loss=scored(m, x, y), x=[x * 2])), rows),
    "empty": (lambda: Step(lambda m, x, y: (x[:0], torch.zeros(0), scored(m, x, y))), rows),
    "channels_last": (cnn, lambda: [images()[0].contiguous(memory_format=torch.channels_last), images()[1]]),
    "strided": (lambda: Step(lambda m, x, y: (x.as_strided((2, 3), (6, 1), 2), scored(m, x, y))), lambda: [torch.randn(5, 6)[1:4], torch.randn(6, 4)[::2]]),
    "expanded": (lambda: Step(lambda m, x, y: (x.add_(1), scored(m, x, y))), lambda: [torch.randn(1, 6).clone().expand(3, 6), torch.randn(3, 4)]),
    "renormed": (lambda: Scored(nn.Sequential(nn.Embedding(11, 4, max_norm=0.5), nn.Linear(4, 4)), lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten() % 4)), words),
}  # fmt: skip


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers under all of their names."""
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


def tensors_of(result: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


def find_loss(result: Any) -> Tensor:
    return [t for t in tensors_of(result) if t.dim() == 0 and t.requires_grad][-1]


def make(name: str, *, training: bool = True) -> tuple[nn.Module, Inputs]:
    torch.manual_seed(7)
    build, draw = MODELS[name]
    model, inputs = build(), draw()
    return model.train(training), inputs


@contextmanager
def unjudged(training: bool = True) -> Iterator[Watch]:
    """Around a trace of which it is not asked whether an IPU has the ops, and where the loss is."""
    with watching(Options(), training=training) as watch:
        watch.is_checked = True
        yield watch


def trace(model: nn.Module, inputs: Inputs, *, training: bool = True, **more: Any) -> Program:
    weights = weights_of(model)

    def call(given: dict[str, Tensor], tensors: Inputs) -> Any:
        return functional_call(model, given, tuple(tensors), tie_weights=False)

    trained = [name for name, weight in weights.items() if weight.requires_grad]
    with unjudged(training) as watch:

        def find(result: Any) -> Tensor:
            watch.phase = "backward"
            return find_loss(result)

        return trace_program(
            call, weights, inputs, training=training, find_loss=find, trained=trained, **more
        )


def run_eagerly(
    model: nn.Module, inputs: Inputs, *, training: bool = True
) -> tuple[list[Tensor], dict[str, Tensor], Any]:
    """Outputs, gradients and the result of the model as it is, which changes its buffers."""
    given = [tensor.clone() for tensor in inputs]
    with torch.set_grad_enabled(training):
        result = model(*given)
    if training:
        model.zero_grad()
        find_loss(result).backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return [tensor.detach().clone() for tensor in tensors_of(result)], gradients, result


def copy_of(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model)
