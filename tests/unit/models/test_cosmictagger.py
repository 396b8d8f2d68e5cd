"""UResNet's shapes, its losses and metrics on what they must survive, and both of its ways to compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from unit.models.cosmic_folder import FOLDER, load

from portwright import UserError
from portwright.job.params import load_params
from portwright.layers import legal
from portwright.networks import image_memory

uresnet, blocks, plane_norm = load("uresnet"), load("uresnet_blocks"), load("plane_norm")
losses, metrics = load("plane_losses"), load("plane_metrics")
utils = load("utils")
NUM_PARAMETERS = {
    "uresnet2d": 18_382_131,
    "a21": 8_510_547,
    "scc21": 18_367_891,
    "polaris": 1_926_403,
    "uresnet3d": 18_381_459,
}
SMALL: dict[str, Any] = {
    "depth": 2,
    "n_initial_filters": 4,
    "bottleneck_deepest": 8,
    "blocks_final": 1,
    "blocks_deepest_layer": 1,
    "blocks_per_layer": 1,
}


def read(config: str, *overrides: str) -> dict[str, Any]:
    path = FOLDER / "configs" / f"{config}.yaml"
    schemas = utils.PARAMS_SCHEMA
    return load_params(
        path, overrides=overrides, default_params_fn=utils.set_defaults, user_schemas=schemas
    ).values


@pytest.mark.parametrize("config", NUM_PARAMETERS)
def test_published_configurations(config: str) -> None:
    with torch.device("meta"):
        network = uresnet.UResNet(blocks.NetworkOptions(**read(config)["model"]))
    assert sum(parameter.numel() for parameter in network.parameters()) == NUM_PARAMETERS[config]


def test_every_configuration_is_tested() -> None:
    assert {path.stem for path in (FOLDER / "configs").glob("*.yaml")} == {*NUM_PARAMETERS, "params"}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.filter_size_deepest=4", "an even kernel"),
        ("model.connections=add", "connections"),
        ("model.deph=4", "depth"),
        ("model.n_initial_filters=0", "n_initial_filters"),
        ("train_input.downsample=-1", "downsample"),
    ],
)
def test_bad_params(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read("params", override)


def test_learning_rate_of_ones_own_is_kept() -> None:
    assert read("a21", "optimizer.learning_rate=0.5")["optimizer"]["learning_rate"] == 0.5
    rates = read("a21")["optimizer"]["learning_rate"]
    assert (rates[0]["initial_learning_rate"], rates[0]["end_learning_rate"]) == (1e-4, 3e-4)
    assert rates[0]["total_iters"] == 21538
    assert load("rate_schedule").published_schedule(0.3)[0]["total_iters"] > 0


# -- the network ---------------------------------------------------------------------------------------------


def make(**options: Any) -> Any:
    torch.manual_seed(1)
    return uresnet.UResNet(blocks.NetworkOptions(**{**SMALL, **options}))


@pytest.mark.parametrize("conv_mode", ["conv_2D", "conv_3D"])
@pytest.mark.parametrize("batch", [1, 2])
def test_shapes(conv_mode: str, batch: int) -> None:
    assert make(conv_mode=conv_mode)(torch.randn(batch, 3, 8, 12)).shape == (3 * batch, 3, 8, 12)


@pytest.mark.parametrize("shape", [(2, 3, 8), (2, 2, 8, 8), (3, 8, 8)])
def test_not_three_planes(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="3 planes"):
        make()(torch.zeros(shape))


def test_sizes_that_cannot_be_halved() -> None:
    with pytest.raises(UserError, match="8 x 10 cannot be halved 2 times"):
        make()(torch.zeros(1, 3, 8, 10))


def test_planes_share_weights_but_not_statistics() -> None:
    """A plane's logits do not depend on how bright another is, where the deepest level keeps them apart."""
    network = make(block_concat=True)
    images = torch.randn(2, 3, 8, 8)
    before = network(images).chunk(3)
    brighter = images * torch.tensor([1.0, 1.0, 50.0]).view(1, 3, 1, 1)
    after = network(brighter).chunk(3)
    torch.testing.assert_close(after[0], before[0])
    torch.testing.assert_close(after[1], before[1])


def step(network: nn.Module, images: Tensor) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    network.zero_grad()
    logits = network(images)
    labels = (images.transpose(0, 1).flatten(0, 1) > 1).int()
    losses.plane_loss(logits, labels).backward()
    gradients = {name: parameter.grad.clone() for name, parameter in network.named_parameters()}  # type: ignore[union-attr]
    return logits.detach(), gradients, {k: v.clone() for k, v in network.state_dict().items()}


@pytest.mark.parametrize("normalization", ["batch", "none"])
@pytest.mark.parametrize("conv_mode", ["conv_2D", "conv_3D"])
def test_both_ways_to_compute(conv_mode: str, normalization: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What other targets get, in plain ops, gives the numbers of what is saved by hand here."""
    images = torch.randn(2, 3, 8, 12, dtype=torch.float64)
    options = {"conv_mode": conv_mode, "normalization": normalization}
    eager = step(make(**options).double(), images)
    for module in (plane_norm, blocks, image_memory):
        monkeypatch.setattr(module, "is_eager", lambda _: False)
    plain = step(make(**options).double(), images)
    # The loss is in single precision.
    torch.testing.assert_close(plain[0], eager[0], rtol=1e-9, atol=1e-9)
    for ours, other in zip(plain[1:], eager[1:], strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-6)


def test_half_precision() -> None:
    """Autocast gives the fused norm half-precision inputs and single-precision weights."""
    images = torch.randn(2, 3, 16, 16)
    exact, _, _ = step(make(), images)
    with torch.autocast("cpu", torch.bfloat16):
        logits, gradients, _ = step(make(), images)
    assert logits.dtype == torch.bfloat16
    assert float((logits.float() - exact).abs().mean() / exact.abs().mean()) < 0.15
    assert all(gradient.isfinite().all() for gradient in gradients.values())


def test_it_compiles_whole() -> None:
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    network = make().double()
    compiled = torch.compile(make().double(), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(images), network(images), rtol=1e-9, atol=1e-9)


def test_tensors_without_data_take_plain_ops() -> None:
    with FakeTensorMode():
        x = torch.empty(3, 4, 8, 8)
        assert not plane_norm.is_eager(x)
        assert make()(torch.empty(1, 3, 8, 8)).shape == (3, 3, 8, 8)
    assert plane_norm.is_eager(torch.empty(1))


def test_who_watches_ops_sees_plain_ones() -> None:
    """An emulated device refuses ops by their names; ours by hand have none that it could know."""

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.add(str(func))
            return func(*args, **(kwargs or {}))

    seen: set[str] = set()
    network, images = make().double(), torch.randn(1, 3, 8, 8, dtype=torch.float64)
    expected = network(images)
    with Watch():
        watched = network(images)
    torch.testing.assert_close(watched, expected)
    assert "aten.native_batch_norm.default" in seen
    assert not {op for op in seen if op.endswith((".out", "_.default", "_.Tensor"))} - {"aten.add_.Tensor"}


def test_the_fused_norms_derivative() -> None:
    """Against finite differences, with a residual and without."""
    norm = nn.BatchNorm2d(2).double()
    inputs = [torch.randn(6, 2, 3, 2, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(lambda x, r: plane_norm.finish(x, norm, 3, 0.01, r), inputs)
    assert torch.autograd.gradcheck(lambda x: plane_norm.finish(x, norm, 3, 0.0), inputs[:1])


def test_what_comes_in_is_not_overwritten() -> None:
    for normalization in ("batch", "none"):
        network, images = make(normalization=normalization), torch.randn(1, 3, 8, 8)
        kept = images.clone()
        first = network(images)
        assert torch.equal(images, kept)
        assert torch.equal(network(images), first)


def test_gradients_of_the_images() -> None:
    images = torch.randn(1, 3, 8, 8, requires_grad=True)
    make()(images).sum().backward()
    assert images.grad is not None
    assert images.grad.abs().sum() > 0


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(1, 1), (1, 4), (5, 3), (6, 8)])
def test_doubling(mode: str, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_memory, "is_eager", lambda _: False)
    x = torch.randn(2, 3, *size, requires_grad=True)
    expected, got = F.interpolate(x, scale_factor=2, mode=mode), image_memory.double(x, mode)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(got, legal.interpolate(x, scale_factor=2.0, mode=mode))
    weight = torch.randn_like(expected)
    gradients = [torch.autograd.grad((y * weight).sum(), x)[0] for y in (expected, got)]
    torch.testing.assert_close(gradients[1], gradients[0])


# -- losses and metrics --------------------------------------------------------------------------------------


def perfect(labels: Tensor) -> Tensor:
    return F.one_hot(labels.long(), 3).permute(0, 3, 1, 2).float() * 1000


@pytest.mark.parametrize("balance", ["none", "light", "even", "focal"])
def test_losses_without_some_classes(balance: str) -> None:
    """The original fails or divides by zero where a class is missing or everything is right."""
    for value in range(3):
        labels = torch.full((3, 4, 4), value)
        logits = torch.randn(3, 3, 4, 4, requires_grad=True)
        loss = losses.plane_loss(logits, labels, balance)
        loss.backward()
        assert loss.isfinite()
        assert logits.grad is not None
        assert logits.grad.isfinite().all()
        assert float(losses.plane_loss(perfect(labels), labels, balance)) == 0.0


def test_a_class_weighs_what_it_says() -> None:
    """One pixel of each class, all equally wrong: what a class adds is its weight."""
    labels = torch.tensor([0, 0, 1, 2]).view(1, 2, 2).expand(3, 2, 2)
    logits = torch.zeros(3, 3, 2, 2)
    logits[:, 0] = torch.tensor([[0.0, 0.0], [0.0, 5.0]])
    entropy = F.cross_entropy(logits, labels, reduction="none")[0].flatten()
    light = (entropy[0] + entropy[1] + 1.5 * entropy[2] + 10 * entropy[3]) / 13.5
    even_weights = 1 / torch.tensor([3.0, 3.0, 2.0, 2.0])
    even = (entropy * even_weights).sum() / even_weights.sum()
    torch.testing.assert_close(losses.plane_loss(logits, labels, "light"), 3 * light)
    torch.testing.assert_close(losses.plane_loss(logits, labels, "even"), 3 * even)
    torch.testing.assert_close(losses.plane_loss(logits, labels, "none"), 3 * entropy.mean())


def test_an_unknown_balance() -> None:
    with pytest.raises(UserError, match="unknown loss balance 'focl'"):
        losses.plane_loss(torch.zeros(3, 3, 2, 2), torch.zeros(3, 2, 2), "focl")


def compute(labels: Tensor, predictions: Tensor) -> dict[str, float]:
    made = {name: metrics.PlaneMetric(name) for name in metrics.NAMES}
    for metric in made.values():
        metric(labels=labels, predictions=predictions)
    return {name: metric.compute() for name, metric in made.items()}


def test_metrics_of_a_known_image() -> None:
    labels = torch.tensor([[[0, 0, 1, 1], [2, 2, 2, 0]]])
    predictions = torch.tensor([[[0, 1, 1, 1], [2, 2, 0, 0]]])
    assert compute(labels, predictions) == pytest.approx(
        {
            "accuracy": 6 / 8,
            "non_background_accuracy": 4 / 5,
            "cosmic_iou": 2 / 3,
            "neutrino_iou": 2 / 3,
            "mean_iou": 2 / 3,
        }
    )
    nothing = compute(labels, torch.zeros_like(labels))
    assert nothing["mean_iou"] == nothing["cosmic_iou"] == nothing["non_background_accuracy"] == 0.0
    assert set(compute(labels, labels).values()) == {1.0}


def test_an_empty_plane_has_no_accuracy_of_the_rest() -> None:
    labels = torch.tensor([[[0, 0]], [[1, 0]]])
    values = compute(labels, torch.zeros_like(labels))
    assert values["non_background_accuracy"] == 0.0, "only the plane with a track counts"
    assert values["neutrino_iou"] == 1.0
    with pytest.raises(UserError, match="no event had a pixel"):
        compute(labels[:1], labels[:1])


def test_golden_losses() -> None:
    """Twenty steps on synthetic events from seed 1: a change of data, network, loss or initialisation shows here."""
    data, model = load("data"), load("model")
    overrides = [
        "train_input.downsample=6",
        "train_input.shuffle=false",
        "model.depth=2",
        "model.n_initial_filters=4",
    ]
    params = read("params", *overrides)
    torch.manual_seed(1)
    tagger = model.CosmicTaggerModel(params)
    optimizer = torch.optim.Adam(tagger.parameters(), lr=3e-4)
    got = []
    for _, batch in zip(range(20), data.get_train_dataloader(params), strict=False):
        loss = tagger(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        got.append(loss.item())
    assert got == pytest.approx(GOLDEN, rel=5e-3)
    classes = tagger.predict(batch)["label"]
    assert classes.shape == batch["label"].shape


GOLDEN = [
    4.98252,
    4.96883,
    5.0237,
    4.63304,
    4.89388,
    4.66773,
    4.32469,
    4.84018,
    4.6782,
    4.93624,
    4.63016,
    4.97119,
    4.51365,
    4.63382,
    4.27742,
    4.97953,
    4.56168,
    4.29152,
    4.58879,
    4.38713,
]
