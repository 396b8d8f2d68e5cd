"""Models of public projects, unmodified, with their layers streamed: the same bits as resident.

They come from the folder that PORTWRIGHT_CORPUS names (OWNER+NAME); without it these are skipped and counted.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from portwright.job.execution import StreamingSection
from portwright.runtime.streaming.engine import Streaming
from portwright.runtime.streaming.gradients import Gradients

CORPUS = os.environ.get("PORTWRIGHT_CORPUS")
pytestmark = pytest.mark.skipif(CORPUS is None, reason="PORTWRIGHT_CORPUS names no folder of public projects")

Step = Callable[[nn.Module], Tensor]


def tokens(high: int, *shape: int) -> Tensor:
    return torch.randint(1, high, shape)


def classify(net: nn.Module, *shape: int) -> Tensor:
    logits = net(torch.randn(*shape))
    return F.cross_entropy(logits, torch.randint(0, logits.shape[1], (shape[0],)))


def nano_gpt(load: Callable[[str], Any]) -> tuple[nn.Module, Step]:
    model = load("model")
    shape = model.GPTConfig(block_size=16, vocab_size=64, n_layer=4, n_head=2, n_embd=32, dropout=0.1)
    return model.GPT(shape), lambda net: net(tokens(64, 2, 16), tokens(64, 2, 16))[1]


def mini_gpt(load: Callable[[str], Any]) -> tuple[nn.Module, Step]:
    kind = load("mingpt.model").GPT
    shape = kind.get_default_config()
    shape.merge_from_dict(
        {"model_type": None, "n_layer": 3, "n_head": 2, "n_embd": 32, "vocab_size": 64, "block_size": 16}
    )
    return kind(shape), lambda net: net(tokens(64, 2, 16), tokens(64, 2, 16))[1]


def unet(load: Callable[[str], Any]) -> tuple[nn.Module, Step]:
    labels = torch.randint(0, 2, (1, 32, 32))
    return load("unet").UNet(3, 2), lambda net: F.cross_entropy(net(torch.randn(1, 3, 32, 32)), labels)


def transformer(load: Callable[[str], Any]) -> tuple[nn.Module, Step]:
    net = load("transformer.Models").Transformer(
        40, 40, 0, 0, d_word_vec=32, d_model=32, d_inner=64, n_layers=2, n_head=2, d_k=16, d_v=16
    )
    return net, lambda net: F.cross_entropy(net(tokens(40, 2, 9), tokens(40, 2, 7)), tokens(40, 14))


def tcn(load: Callable[[str], Any]) -> tuple[nn.Module, Step]:
    body = load("TCN.tcn").TemporalConvNet(3, [8, 8, 8])
    return nn.Sequential(body, nn.Flatten(), nn.Linear(160, 4)), lambda net: classify(net, 2, 3, 20)


def pointnet(load: Callable[[str], Any]) -> tuple[nn.Module, Step]:
    net = load("pointnet.model").PointNetCls(k=3, feature_transform=True)
    return net, lambda net: F.nll_loss(net(torch.randn(4, 3, 50))[0], torch.randint(0, 3, (4,)))


def bert(load: Callable[[str], Any]) -> tuple[nn.Module, Step]:
    model = load("bert_pytorch.model")
    net = model.BERTLM(model.BERT(50, hidden=32, n_layers=3, attn_heads=2), 50)
    return net, lambda net: -sum(out.mean() for out in net(tokens(50, 2, 12), torch.randint(0, 3, (2, 12))))


def efficient_net(load: Callable[[str], Any]) -> tuple[nn.Module, Step]:
    net = load("efficientnet_pytorch").EfficientNet.from_name("efficientnet-b0", num_classes=5)
    return net, lambda net: classify(net, 2, 3, 64, 64)


MODELS = {
    "karpathy+nanoGPT": nano_gpt,
    "karpathy+minGPT": mini_gpt,
    "milesial+Pytorch-UNet": unet,
    "jadore801120+attention-is-all-you-need-pytorch": transformer,
    "locuslab+TCN": tcn,
    "fxia22+pointnet.pytorch": pointnet,
    "codertimo+BERT-pytorch": bert,
    "lukemelas+EfficientNet-PyTorch": efficient_net,
}


def train(
    net: nn.Module, step: Step, is_streamed: bool, is_half: bool
) -> tuple[list[float], dict[str, Tensor]]:
    torch.manual_seed(5)
    net.train()
    engine = None
    if is_streamed:
        half = torch.bfloat16 if is_half else None
        engine = Streaming(net, torch.device("cpu"), StreamingSection(slots=2), print, half=half)
    whole = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    optimizer = whole if engine is None else engine.train_with(whole)
    losses = []
    for number in range(1, 5):
        if engine is not None:
            engine.begin_step(number)
            engine.begin_pass()
        with torch.autocast("cpu", torch.bfloat16, enabled=is_half, cache_enabled=False):
            loss = step(net)
        loss.backward()
        if engine is not None:
            engine.end_pass()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if engine is not None:
        engine.wait()
        engine.close()
    return losses, {name: value.clone() for name, value in net.state_dict().items()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_half", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("project", MODELS)
def test_streamed_bit_for_bit(project: str, is_half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(str(CORPUS)) / project
    if not folder.is_dir():
        pytest.skip(f"{project} is not in the corpus")
    monkeypatch.setattr(Gradients, "alone_from", 500)
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    try:
        made = []
        for _ in range(2):
            torch.manual_seed(0)
            made.append(MODELS[project](importlib.import_module))
        losses, weights = train(*made[0], is_streamed=False, is_half=is_half)
        streamed_losses, streamed_weights = train(*made[1], is_streamed=True, is_half=is_half)
    finally:
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "") or "").startswith(str(folder)):
                del sys.modules[name]
    assert streamed_losses == losses
    assert all(torch.equal(streamed_weights[name], weights[name]) for name in weights)
