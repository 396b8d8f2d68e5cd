"""Runs one job in a resident session and in a streaming one, and compares all that they leave behind, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streaming_nets as nets
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from portwright import PyTorchBaseModel
from portwright.job.params import load_params
from portwright.runtime.backend import TorchBackend
from portwright.runtime.session import TorchSession
from portwright.runtime.streaming.session import StreamingSession
from portwright.target import JobSpec, Stretch

PARAMS = Path(__file__).with_name("streaming_params.yaml")
NUM_SAMPLES = 22  # an epoch ends in the middle of a stretch, with a short batch


@dataclass(frozen=True)
class Case:
    """A net, its loss, and one sample of its data by number."""

    net: Callable[[], nn.Module]
    sample: Callable[[torch.Generator], dict[str, Tensor]]
    loss: Callable[[nn.Module, dict[str, Tensor]], Tensor]


def vector(generator: torch.Generator) -> dict[str, Tensor]:
    x = torch.randn(nets.WIDTH, generator=generator)
    return {"x": x, "y": (x[:3] + x[3:6]).argmax()}


def tokens(generator: torch.Generator) -> dict[str, Tensor]:
    x = torch.randint(0, 11, (6,), generator=generator)
    return {"x": x, "y": (x + 1) % 11}


def image(generator: torch.Generator) -> dict[str, Tensor]:
    x = torch.randn(2, 8, 8, generator=generator)
    return {"x": x, "y": (x[0] > 0).long() + (x[1] > 0).long()}


def classes(net: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(net(batch["x"]).double().float(), batch["y"])


def every_place(net: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    scores = net(batch["x"])
    return F.cross_entropy(scores.flatten(0, 1).float(), batch["y"].flatten())


def of_its_own(net: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    loss: Tensor = net(batch["x"], labels=batch["y"]).loss
    return loss


def make_job(case: Case, *overrides: str, mode: str = "train_and_eval", model_fn: Any = None) -> JobSpec:
    class Model(PyTorchBaseModel):
        def __init__(self, params: dict[str, Any], device: torch.device | None = None) -> None:
            super().__init__(params, model=case.net(), device=device)

        def __call__(self, data: dict[str, Tensor]) -> Tensor:
            return case.loss(self.model, data)

    def data(params: dict[str, Any]) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(5)
        samples: Any = [case.sample(generator) for _ in range(NUM_SAMPLES)]
        return DataLoader(samples, batch_size=params["train_input"]["batch_size"], shuffle=True)

    params = load_params(PARAMS, overrides=overrides)
    return JobSpec(params, model_fn or Model, data, data, mode)  # type: ignore[arg-type]


def open_resident(job: JobSpec) -> TorchSession:
    backend = TorchBackend("cpu", {}, print)
    return TorchSession(job, backend.device, backend.world, print)


def open_streaming(job: JobSpec) -> StreamingSession:
    backend = TorchBackend("cpu", {}, print)
    return StreamingSession(job, backend.device, backend.world, print)


def stretch(first: int, last: int) -> Stretch:
    return Stretch(first, last, log_steps=1, boundary_steps=4, should_stop=lambda: False)


def train(session: TorchSession, first: int, last: int) -> list[float]:
    return [loss for event in session.train(stretch(first, last)) for loss in event.losses]


def everything(session: TorchSession) -> dict[str, Tensor]:
    return {shard.name: shard.tensor.clone() for shard in session.state()}


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    different = [name for name in a if not _same(a[name], b[name])]
    assert not different, different


def _same(a: Tensor, b: Tensor) -> bool:
    both_nan = a.isnan() & b.isnan() if a.is_floating_point() and a.shape == b.shape else None
    return a.equal(b) or (both_nan is not None and bool((both_nan | (a == b)).all()))


def assert_equal_runs(case: Case, *overrides: str, num_steps: int = 9) -> StreamingSession:
    """Losses, weights, optimizer state, buffers, generators, counters and evaluation; gives the closed streaming session."""
    job = make_job(case, *overrides)
    resident, streaming = open_resident(job), None
    wanted = train(resident, 0, num_steps)
    wanted_state, wanted_counters = everything(resident), resident.counters()
    wanted_values = resident.evaluate(None)
    streaming = open_streaming(job)
    try:
        assert train(streaming, 0, num_steps) == wanted
        assert_same(everything(streaming), wanted_state)
        assert streaming.counters() == wanted_counters
        assert streaming.evaluate(None) == wanted_values
        assert_same(everything(streaming), wanted_state)
    finally:
        streaming.close()
        resident.close()
    return streaming


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=6, n_embd=8, n_layer=3, n_head=2))


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(
        BertConfig(
            vocab_size=11, hidden_size=8, num_hidden_layers=3, num_attention_heads=2, intermediate_size=16
        )
    )


def _t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=11, d_model=8, d_kv=4, d_ff=16, num_layers=2, num_heads=2, decoder_start_token_id=0
        )
    )


def _words(generator: torch.Generator) -> dict[str, Tensor]:
    sample = tokens(generator)
    return {"x": sample["x"], "y": sample["y"][0] % 2}


CASES = {
    "mlp": Case(nets.make_mlp, vector, classes),
    "stack": Case(nets.Stack, vector, classes),
    "dropout": Case(lambda: nets.Stack(6, 0.3), vector, classes),
    "no_lists": Case(nets.NoLists, vector, classes),
    "gpt": Case(nets.Gpt, tokens, every_place),
    "gpt_untied": Case(lambda: nets.Gpt(tied=False), tokens, every_place),
    "unet": Case(nets.UNet, image, classes),
    "unet_channels_last": Case(lambda: nets.UNet(channels_last=True), image, classes),
    "shared": Case(nets.Shared, vector, classes),
    "wandering": Case(nets.Wandering, vector, classes),
    "frozen": Case(nets.Frozen, vector, classes),
    "first_only": Case(lambda: nets.Frozen(first_only=True), vector, classes),
    "lora": Case(nets.Lora, vector, classes),
    "sometimes": Case(nets.Sometimes, vector, classes),
    "structured": Case(nets.Structured, vector, classes),
    "side_loss": Case(nets.SideLoss, vector, classes),
    "remembering": Case(nets.Remembering, vector, classes),
    "in_place": Case(nets.InPlace, vector, classes),
    "writer": Case(nets.Writer, vector, classes),
    "queries": Case(nets.Queries, vector, classes),
    "odd": Case(nets.Odd, vector, classes),
    "late_batch_norm": Case(nets.LateBatchNorm, vector, classes),
    "attention": Case(nets.Attention, vector, classes),
    "recurrent": Case(nets.Recurrent, vector, classes),
    "normed": Case(nets.Normed, vector, classes),
    "checkpointed": Case(nets.Checkpointed, vector, classes),
    "two_towers": Case(nets.TwoTowers, vector, classes),
    "hooked": Case(nets.Hooked, vector, classes),
}
HUGGING_FACE = {
    "gpt2": Case(_gpt2, tokens, of_its_own),
    "bert": Case(_bert, _words, of_its_own),
    "t5": Case(_t5, tokens, of_its_own),
}
