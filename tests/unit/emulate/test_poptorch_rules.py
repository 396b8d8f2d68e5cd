"""Each rule of PopTorch about what may be in a model, broken on purpose.

From the user guide of PopTorch 3.4 (section) or the passes of its sources, and the test that breaks it:

| rule | test |
| --- | --- |
| values are not to be had while a model is compiled (dispatcher: aten::item) | test_a_value_cannot_be_read |
| `x[t : t + 2]` with a tensor as start (PopTorch ops: dynamic_slice) | test_a_value_cannot_be_read [slice] |
| shapes are fixed (supported operations) | test_a_shape_cannot_depend_on_values |
| only listed operations, with their caveats (supported operations) | test_an_op_that_is_not_listed, test_caveats |
| a tensor cannot leave for the CPU or another device (dispatcher: copy_) | test_a_tensor_stays_on_the_ipu |
| gradients and updates are PopTorch's (The training loop) | test_no_backward_and_no_optimizer_inside |
| a model is given as it was written | test_a_compiled_module |
| float64 becomes float32, int64 int32 (type coercion) | test_64_bits_become_32, test_an_integer_of_more_than_32_bits |
| weights take the type of their layer's input (16-bit float support) | test_half_and_float_together |
| a loss is needed (passes: RemoveSurplusIdentityLosses) | test_no_loss |
| one final loss (Multiple/custom losses) | test_two_losses, test_losses_that_make_one |
| known losses always take part (Loss functions) | test_a_loss_that_is_only_looked_at_counts |
| gradients start at the loss itself (identity_loss) | test_what_comes_behind_the_loss_has_no_part |
| reductions are sum, mean and none (identity_loss) | test_identity_loss_reductions, test_identity_loss_checks |
| no backward on the host (poptorch.trainingModel) | test_backward_on_the_host, test_optimizer_on_the_host |

Blocks, stages and IPUs: test_poptorch_stages.py. Functions of poptorch: test_poptorch_ops.py.
"""

from __future__ import annotations

import gc
import logging
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from portwright.emulate import poptorch
from portwright.emulate.poptorch import _rules

HERE = __file__.rpartition("/")[2]


class Net(nn.Module):
    """A layer, then what a test does with its output, then a loss."""

    def __init__(self, action: Any = None, loss: Any = F.cross_entropy) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.action, self.loss = action, loss

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        out = self.layer(x)
        if self.action is not None:
            self.action(out)
        return out, self.loss(out, y)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(5, 4), torch.randint(0, 3, (5,))


def train(model: nn.Module, options: Any = None) -> Any:
    return poptorch.trainingModel(model, options)(*batch())


def infer(model: nn.Module, options: Any = None) -> Any:
    return poptorch.inferenceModel(model, options)(*batch())


BOTH = pytest.mark.parametrize("run", [train, infer], ids=["training", "inference"])

READS = {
    "item": lambda o: o * o.sum().item(),
    "bool": lambda o: o if o.sum() > 0 else -o,
    "int": lambda o: torch.zeros(int(o.sum().abs())),
    "float": lambda o: float(o.sum()),
    "index": lambda o: [1, 2, 3][o.argmax()] if o.numel() == 1 else range(o.argmax()),
    "slice": lambda o: o[o.argmax() : o.argmax() + 2],
    "tolist": lambda o: o.tolist(),
    "numpy": lambda o: o.detach().numpy(),
    "repr": lambda o: repr(o),
    "format": lambda o: f"{o.sum():.3f}",
    "contains": lambda o: 0.5 in o,
    "equal": lambda o: torch.equal(o, o),
    "allclose": lambda o: torch.allclose(o, o),
    "all": lambda o: all(o > 0),
    "while": lambda o: [None for _ in iter(lambda: bool((o > 0).any()), True)],
    "made_in_forward": lambda o: torch.zeros(3).sum().item(),
    "weight_norm": lambda o: o / max(o.norm(), 1e-3),
}


@BOTH
@pytest.mark.parametrize("action", READS.values(), ids=READS)
def test_a_value_cannot_be_read(action: Any, run: Any) -> None:
    with pytest.raises(poptorch.Error, match=f"{HERE}:") as caught:
        run(Net(action))
    assert "compiled" in str(caught.value)


def test_the_error_names_line_module_and_cure() -> None:
    class Gate(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum().item() > 0 else -x

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = Gate()

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.gate(x)

    with pytest.raises(poptorch.Error) as caught:
        infer(Model())
    line = Gate.forward.__code__.co_firstlineno + 1
    assert f"{HERE}:{line}" in str(caught.value)
    assert "in Gate 'gate'" in str(caught.value)
    assert "torch.where" in str(caught.value)
    assert caught.value.location.endswith(f":{line}")


@pytest.mark.parametrize(
    "action",
    [
        lambda o: torch.zeros(3, device="cpu").sum().item(),
        lambda o: o.shape[0] if o.shape[0] > 2 else o,
        lambda o: len(o),
        lambda o: o.numel(),
        lambda o: o.new_zeros(2) if o.is_floating_point() else o,
    ],
)
def test_the_host_may_read_its_own_and_shapes(action: Any) -> None:
    model, given = Net(action), batch()
    torch.testing.assert_close(poptorch.inferenceModel(model)(*given), model(*given))


def test_a_plain_attribute_is_the_hosts() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.tensor(3.0)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x * self.scale.item()

    x, y = batch()
    torch.testing.assert_close(poptorch.inferenceModel(Model())(x, y), x * 3)


SHAPES = {
    "mask": lambda o: o[o > 0],
    "nonzero": torch.nonzero,
    "where": lambda o: torch.where(o > 0),
    "masked_select": lambda o: torch.masked_select(o, o > 0),
    "unique": torch.unique,
    "unique_consecutive": torch.unique_consecutive,
    "repeat_interleave": lambda o: o.repeat_interleave((o[:, 0] > 0).long(), 0),
}


@BOTH
@pytest.mark.parametrize("action", SHAPES.values(), ids=SHAPES)
def test_a_shape_cannot_depend_on_values(action: Any, run: Any) -> None:
    with pytest.raises(poptorch.Error, match=f"{HERE}:"):
        run(Net(action))


OPS = {
    "svd": (lambda o: torch.linalg.svd(o), "not supported by PopTorch"),
    "adaptive_max_pool": (lambda o: F.adaptive_max_pool2d(o[None], 2), "MaxPool2d"),
    "addbmm": (lambda o: torch.addbmm(o @ o.T, o[None], o.T[None]), "addbmm"),
    "bfloat16": (lambda o: o.to(torch.bfloat16), "bfloat16"),
    "complex": (lambda o: torch.fft.fft(o), "fft"),
    "cholesky": (lambda o: torch.linalg.cholesky(o @ o.T + torch.diag(torch.full((5,), 9.0))), "cholesky"),
}


@BOTH
@pytest.mark.parametrize(("action", "said"), OPS.values(), ids=OPS)
def test_an_op_that_is_not_listed(action: Any, said: str, run: Any) -> None:
    with pytest.raises(poptorch.Error, match=f"{HERE}:") as caught:
        run(Net(action))
    assert said in str(caught.value)


def test_all_refused_ops_are_told_at_once() -> None:
    def action(o: torch.Tensor) -> None:
        torch.linalg.svd(o)
        torch.topk(o, 2, sorted=False)

    with pytest.raises(poptorch.Error) as caught:
        infer(Net(action))
    lines = [action.__code__.co_firstlineno + n for n in (1, 2)]
    assert all(f"{HERE}:{line}" in str(caught.value) for line in lines)


CAVEATS = {
    "topk": (lambda o: torch.topk(o, 2, sorted=False), "sorted=True"),
    "padding_idx": (lambda o: F.embedding(o.argmax(1), o, padding_idx=0), "padding_idx"),
    "class_weight": (lambda o: F.nll_loss(o, o.argmax(1), weight=torch.ones(3)), "weight"),
    "bilinear": (lambda o: F.interpolate(o[None, None], scale_factor=1.5, mode="bilinear"), "scale_factor"),
    "align_corners": (
        lambda o: F.interpolate(o[None, None], scale_factor=2, mode="bicubic", align_corners=True),
        "align_corners",
    ),
    "pool_indices": (lambda o: F.max_pool2d(o[None], 2, return_indices=True)[1] * 2, "return_indices"),
    "triu": (torch.triu, "triu"),
}


@pytest.mark.parametrize(("action", "said"), CAVEATS.values(), ids=CAVEATS)
def test_caveats(action: Any, said: str) -> None:
    with pytest.raises(poptorch.Error, match=f"{HERE}:") as caught:
        infer(Net(action))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (nn.LSTM(4, 3, num_layers=2), "several layers"),
        (nn.GRU(4, 3, bidirectional=True), "both directions"),
        (nn.LSTM(4, 3, bias=False), "without biases"),
    ],
)
def test_recurrent_layers(layer: nn.Module, said: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return self.layer(x[:, None])[0]

    with pytest.raises(poptorch.Error, match=said):
        infer(Model())


@pytest.mark.parametrize(
    "action",
    [
        lambda o: F.dropout(o, 0.5),
        lambda o: F.scaled_dot_product_attention(o[None], o[None], o[None]),
        lambda o: F.layer_norm(o, (3,), torch.ones(3), torch.zeros(3)),
        lambda o: torch.where(o > 0, o, o.new_zeros(())).masked_fill(o > 1, 0.0),
        lambda o: o[torch.arange(5), o.argmax(1)],
        lambda o: F.one_hot(o.argmax(1), 5),
        lambda o: torch.cat([o, torch.ones(5, 1)], 1).softmax(1).topk(2),
        lambda o: torch.distributions.Normal(o, o.exp()).log_prob(o),
        lambda o: F.interpolate(o[None, None], scale_factor=2, mode="bilinear"),
        lambda o: torch.ones(3, 3).triu(),
    ],
)
@BOTH
def test_what_is_listed_goes_through(action: Any, run: Any) -> None:
    out, loss = run(Net(action))
    assert out.shape == (5, 3)
    assert torch.isfinite(loss)


MOVES = {
    "cpu": lambda o: o.cpu(),
    "to_cpu": lambda o: o.to("cpu"),
    "to_device": lambda o: o.to(torch.device("cpu"), torch.float16),
    "cuda": lambda o: o.cuda(),
    "to_cuda": lambda o: o.to("cuda:0"),
    "made_elsewhere": lambda o: torch.zeros(3, device="cuda"),
    "new_elsewhere": lambda o: o.new_zeros(3, device="cuda"),
}


@BOTH
@pytest.mark.parametrize("action", MOVES.values(), ids=MOVES)
def test_a_tensor_stays_on_the_ipu(action: Any, run: Any) -> None:
    with pytest.raises(poptorch.Error, match=f"{HERE}:"):
        run(Net(action))


def test_the_device_of_a_tensor_is_the_ipu() -> None:
    seen: list[Any] = []

    def action(o: torch.Tensor) -> None:
        seen.extend([o.device.type, poptorch.isRunningOnIpu()])
        assert o.to(o.device).device == o.device
        assert (o + torch.zeros(3, device=o.device)).device == o.device
        assert torch.zeros(3).to("ipu").device == o.device
        assert torch.zeros(3, device="cpu").device.type == "cpu"

    x, y = batch()
    model = Net(action)
    out, _ = poptorch.inferenceModel(model)(x, y)
    assert seen == ["ipu", True]
    assert not poptorch.isRunningOnIpu()
    assert out.device.type == "cpu"


def step_inside(out: torch.Tensor) -> None:
    torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1).step()


def zero_grad_inside(out: torch.Tensor) -> None:
    torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1).zero_grad()


GRADIENTS = {
    "backward": lambda o: o.sum().backward(),
    "autograd_backward": lambda o: torch.autograd.backward([o.sum()]),
    "autograd_grad": lambda o: torch.autograd.grad(o.sum(), o),
    "step": step_inside,
    "zero_grad": zero_grad_inside,
}


@pytest.mark.parametrize("action", GRADIENTS.values(), ids=GRADIENTS)
def test_no_backward_and_no_optimizer_inside(action: Any) -> None:
    with pytest.raises(poptorch.Error, match="inside of the model") as caught:
        train(Net(action))
    assert f"{HERE}:" in str(caught.value)
    optimizer = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1)
    optimizer.zero_grad()  # outside nothing has changed
    optimizer.step()


@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_module(in_place: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer: Any = nn.Linear(4, 3)
            if in_place:
                self.layer.compile(backend="eager")
            else:
                self.layer = torch.compile(self.layer, backend="eager")

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return self.layer(x)

    with pytest.raises(poptorch.Error, match=r"torch\.compile"):
        infer(Model())


def test_64_bits_become_32(caplog: pytest.LogCaptureFixture) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            assert torch.zeros(2, dtype=torch.float64).dtype is torch.float32
            assert x.to(torch.float64).dtype is torch.float32
            return x.double() * 2, y + 1

    with caplog.at_level(logging.WARNING, logger="poptorch"):
        logging.getLogger("poptorch").propagate = True
        doubled, counted = infer(Model())
    assert doubled.dtype is torch.float32
    assert counted.dtype is torch.int32
    assert "float64" in caplog.text


@pytest.mark.parametrize("of_input", [torch.float16, torch.float32])
@pytest.mark.parametrize("layer", [nn.Linear(4, 3), nn.Conv1d(5, 2, 3), nn.LayerNorm(4)])
def test_half_and_float_together(layer: Any, of_input: torch.dtype) -> None:
    """16-bit float support: a layer's weights take the type of its input."""
    of_weights = torch.float32 if of_input is torch.float16 else torch.float16
    layer = layer.to(of_weights)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return self.layer(x), x.half() @ x.float().T

    x, y = batch()
    x = x.to(of_input)
    result, product = poptorch.inferenceModel(Model())(x, y)
    assert result.dtype is of_input
    torch.testing.assert_close(result, layer.to(of_input)(x))
    torch.testing.assert_close(product, x.half().float() @ x.float().T)


def test_an_integer_of_more_than_32_bits() -> None:
    with pytest.raises(poptorch.Error, match="4294967296"):
        infer(Net(lambda o: o + torch.tensor(2**32)))
    with pytest.raises(poptorch.Error, match="32-bit"):
        infer(Net(lambda o: torch.full((2,), -(2**40))))
    infer(Net(lambda o: o + torch.tensor(2**31 - 1)))


def no_loss(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (out.logsumexp(1) - out.gather(1, y[:, None])[:, 0]).mean()


def test_no_loss() -> None:
    with pytest.raises(poptorch.Error, match="no loss"):
        train(Net(loss=no_loss))
    infer(Net(loss=no_loss))


def two_losses(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(out, y) + 5 * F.nll_loss(out.log_softmax(1), y)


def test_two_losses() -> None:
    with pytest.raises(poptorch.Error, match="2 losses are independent") as caught:
        train(Net(loss=two_losses))
    line = two_losses.__code__.co_firstlineno + 1
    assert str(caught.value).count(f"{HERE}:{line}") >= 2
    assert "identity_loss" in str(caught.value)
    infer(Net(loss=two_losses))


def losses_of_one_step(
    model: nn.Module, loss: Any, steps: int = 3
) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """What plain torch computes."""
    x, y = batch_of_seed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(model.layer(x), y)
        value.backward()
        optimizer.step()
        seen.append(value.detach().clone())
    return seen, {name: p.detach().clone() for name, p in model.named_parameters()}


def batch_of_seed() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(5, 4, generator=generator), torch.randint(0, 3, (5,), generator=generator)


def check_trains_on(model: Net, plain_loss: Any) -> None:
    """That the emulator's gradients are those of `plain_loss`."""
    twin = Net()
    twin.load_state_dict(model.state_dict())
    _, expected = losses_of_one_step(twin, plain_loss)
    training = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        training(*batch_of_seed())
    training.copyWeightsToHost()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), expected[name])


def test_losses_that_make_one() -> None:
    check_trains_on(Net(loss=lambda o, y: poptorch.identity_loss(two_losses(o, y), "none")), two_losses)


def test_a_loss_that_is_only_looked_at_counts() -> None:
    with pytest.raises(poptorch.Error, match="independent"):
        train(Net(action=lambda o: F.mse_loss(o, torch.zeros(5, 3)), loss=F.cross_entropy))


def test_what_comes_behind_the_loss_has_no_part(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("poptorch").propagate = True
    with caplog.at_level(logging.WARNING, logger="poptorch"):
        check_trains_on(Net(loss=lambda o, y: F.cross_entropy(o, y) * 100), F.cross_entropy)
    assert "has no part" in caplog.text


@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
def test_identity_loss_reductions(reduction: str) -> None:
    reduce = {"sum": torch.sum, "mean": torch.mean, "none": torch.sum}[reduction]
    given = reduce if reduction == "none" else lambda losses: losses
    check_trains_on(
        Net(loss=lambda o, y: poptorch.identity_loss(given((o - 1) ** 2), reduction)),
        lambda o, y: reduce((o - 1) ** 2),
    )
    x = torch.randn(4)
    plain = {"sum": x.sum(), "mean": x.mean(), "none": x}[reduction]
    torch.testing.assert_close(poptorch.identity_loss(x, reduction), plain)


def test_identity_loss_checks() -> None:
    with pytest.raises(AssertionError, match="median"):
        poptorch.identity_loss(torch.ones(2), "median")
    with pytest.raises(poptorch.Error, match="float"):
        poptorch.identity_loss(1.0, "none")  # type: ignore[arg-type]
    with pytest.raises(poptorch.Error, match="no gradient"):
        train(Net(loss=lambda o, y: poptorch.identity_loss(y, "sum")))


@pytest.mark.parametrize(
    "loss", [lambda o, y: F.cross_entropy(o.detach(), y), lambda o, y: F.mse_loss(y * 1.0, y * 2.0)]
)
def test_a_loss_without_weights(loss: Any) -> None:
    with pytest.raises(poptorch.Error, match="depends on no weight"):
        train(Net(loss=loss))


def pair(out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return out, torch.zeros(5, 3)


def sign(y: torch.Tensor) -> torch.Tensor:
    return (y > 0).float() * 2 - 1


LOSSES = {
    "L1Loss": lambda o, y: nn.L1Loss()(*pair(o)),
    "MSELoss": lambda o, y: nn.MSELoss()(*pair(o)),
    "CrossEntropyLoss": lambda o, y: nn.CrossEntropyLoss()(o, y),
    "NLLLoss": lambda o, y: nn.NLLLoss()(o.log_softmax(1), y),
    "BCELoss": lambda o, y: nn.BCELoss()(o.sigmoid(), torch.zeros(5, 3)),
    "KLDivLoss": lambda o, y: nn.KLDivLoss(reduction="sum")(o.log_softmax(1), torch.full((5, 3), 1 / 3)),
    "PoissonNLLLoss": lambda o, y: nn.PoissonNLLLoss()(*pair(o)),
    "HingeEmbeddingLoss": lambda o, y: nn.HingeEmbeddingLoss()(o[:, 0], sign(y)),
    "BCEWithLogitsLoss": lambda o, y: nn.BCEWithLogitsLoss()(*pair(o)),
    "SmoothL1Loss": lambda o, y: nn.SmoothL1Loss()(*pair(o)),
    "SoftMarginLoss": lambda o, y: nn.SoftMarginLoss()(o[:, 0], sign(y)),
    "CosineEmbeddingLoss": lambda o, y: nn.CosineEmbeddingLoss()(o, o + 1, sign(y)),
    "MarginRankingLoss": lambda o, y: nn.MarginRankingLoss()(o[:, 0], o[:, 1], sign(y)),
    "TripletMarginLoss": lambda o, y: nn.TripletMarginLoss()(o, o + 1, o - 2),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_each_listed_loss_is_found(loss: Any) -> None:
    check_trains_on(Net(loss=loss), loss)


def test_ctc_loss_is_found() -> None:
    model = Net(
        loss=lambda o, y: nn.CTCLoss()(
            o[:, None].log_softmax(2), torch.ones(1, 2, dtype=torch.long), (5,), (2,)
        )
    )
    with _rules.watching(poptorch.Options(), training=True) as watch:
        out, loss = model(*batch())
        assert watch.find_loss((out, loss)) is loss


def test_backward_on_the_host() -> None:
    model = Net()
    training = poptorch.trainingModel(model)
    training(*batch())
    with pytest.raises(poptorch.Error, match="backward") as caught:
        model(*batch())[1].backward()
    assert f"{HERE}:" in str(caught.value)
    with pytest.raises(poptorch.Error, match="backward"):
        torch.autograd.grad(model(*batch())[1], list(model.parameters()))
    other = nn.Linear(4, 3)
    other(torch.randn(2, 4)).sum().backward()
    torch.optim.SGD(other.parameters(), lr=0.1).step()
    training.destroy()
    model(*batch())[1].backward()
    assert model.layer.weight.grad is not None


def test_optimizer_on_the_host() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), lr=0.1))
    training(*batch())
    with pytest.raises(poptorch.Error, match=r"SGD\.step\(\)"):
        optimizer.step()
    training.destroy()
    optimizer.step()


def test_an_inference_model_may_be_trained_on_the_host() -> None:
    model = Net()
    poptorch.inferenceModel(model)(*batch())
    before = model.layer.weight.detach().clone()
    model(*batch())[1].backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert not torch.equal(model.layer.weight, before)


def test_the_guard_keeps_nothing_alive() -> None:
    import weakref

    model = Net()
    training = poptorch.trainingModel(model)
    training(*batch())
    gone = weakref.ref(training)
    del training
    gc.collect()
    assert gone() is None
    model(*batch())[1].backward()


def test_a_failed_trace_leaves_no_trace() -> None:
    for action in (READS["item"], GRADIENTS["step"], OPS["svd"][0]):
        with pytest.raises(poptorch.Error):
            train(Net(action))
        assert not poptorch.isRunningOnIpu()
        assert poptorch.Block._stages_manager is None
    x, y = batch()
    plain = Net()
    loss = plain(x, y)[1]
    assert loss.item() > 0
    loss.backward()
    train(Net())


def test_an_error_of_the_models_own_stays_itself() -> None:
    def action(o: torch.Tensor) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        train(Net(action))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        infer(Net(lambda o: o @ o))
