"""Training speed of GPT-2 124M, BERT-base and U-Net against `transformers` and a plain U-Net, on one GPU, in one run.

Both sides of a pair have the same sizes, batch, dropout, bf16 autocast with float32 weights, memory format, fused AdamW and
scaled_dot_product_attention, and learn from the same tokens; eager and under torch.compile. MFU is the work that the mathematics of the
model needs (masked tokens alone have a head in BERT) over the GPU's dense bf16 peak, the same for both sides. What bounds a step is read from the
kernels of a profiled one. On a CPU, `--quick` shows that it runs; figures of a CPU make no claim.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from measure import Claim, finish, interleave, paired_ratio
from peers.plain_unet import PlainUNet
from torch import Tensor, nn

H200_BF16_FLOPS = 989.5e12  # dense, of NVIDIA's data sheet
KINDS = {  # of kernels, by what their names contain; the first that fits
    "attention": ("flash", "fmha", "attention", "sdpa"),
    "optimizer": ("adam", "multi_tensor"),
    "convolutions": ("fprop", "wgrad", "dgrad", "implicit_gemm", "cudnn::"),
    "matrix products": ("gemm", "nvjet", "cutlass", "sm90_xmma", "cublas", "splitk"),
    "loss": ("_row_kernel", "softmax", "nll_loss"),
    "norms": ("norm", "statistics", "_merge_kernel", "_backward_sums", "_backward_kernel"),
}


@dataclass(frozen=True)
class Work:
    """A model beside its peer, and what a step of both is."""

    unit: str
    units_a_step: int
    flops_a_step: float
    ours: Callable[[], tuple[nn.Module, Callable[[], Tensor]]]
    peer: Callable[[], tuple[nn.Module, Callable[[], Tensor]]]


def gpt2(small: bool, device: str) -> Work:
    from transformers import GPT2Config, GPT2LMHeadModel

    from portwright.networks.gpt import Gpt

    width, depth, heads, words, batch, length = (
        (64, 2, 2, 1000, 2, 64) if small else (768, 12, 12, 50257, 16, 1024)
    )
    tokens = torch.randint(0, words, (batch, length + 1), device=device)

    def make_ours() -> tuple[nn.Module, Callable[[], Tensor]]:
        net = Gpt(
            {
                "vocab_size": words,
                "hidden_size": width,
                "num_hidden_layers": depth,
                "num_heads": heads,
                "filter_size": 4 * width,
                "max_position_embeddings": length,
                "nonlinearity": "gelu_new",
                "dropout_rate": 0.1,
                "attention_dropout_rate": 0.1,
            }
        ).to(device)
        inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        return net, lambda: net(inputs, labels=labels)

    def make_peer() -> tuple[nn.Module, Callable[[], Tensor]]:
        config = GPT2Config(
            vocab_size=words,
            n_embd=width,
            n_layer=depth,
            n_head=heads,
            n_positions=length,
            attn_implementation="sdpa",
            use_cache=False,
        )
        net = GPT2LMHeadModel(config).to(device)
        inputs = tokens[:, :-1].contiguous()
        return net, lambda: net(input_ids=inputs, labels=inputs).loss

    per_token = 6 * 12 * depth * width**2 + 6 * words * width + 6 * depth * width * length
    return Work("tokens", batch * length, per_token * batch * length, make_ours, make_peer)


def bert(small: bool, device: str) -> Work:
    from transformers import BertConfig, BertForPreTraining

    from portwright.job.model_params import BertParams
    from portwright.networks.bert_heads import BertForPreTraining as Ours

    width, depth, heads, words, batch, length, masked = (
        (64, 2, 2, 1000, 2, 64, 10) if small else (768, 12, 12, 30522, 256, 128, 20)
    )
    input_ids = torch.randint(0, words, (batch, length), device=device)
    segments = torch.zeros_like(input_ids)
    segments[:, length // 2 :] = 1
    positions = torch.rand(batch, length // 2, device=device).topk(masked).indices.sort().values
    labels = torch.randint(0, words, (batch, masked), device=device)
    follows = torch.randint(0, 2, (batch,), device=device)
    lengths = torch.full((batch, 1), length, device=device)  # one in ten is shorter, as where documents end
    lengths[::10] = torch.randint(length // 2, length, lengths[::10].shape, device=device)
    mask = (torch.arange(length, device=device) < lengths).int()

    def make_ours() -> tuple[nn.Module, Callable[[], Tensor]]:
        params = BertParams(
            vocab_size=words,
            hidden_size=width,
            num_hidden_layers=depth,
            num_heads=heads,
            filter_size=4 * width,
            max_position_embeddings=max(length, 512),
        ).model_dump()
        net = Ours(params).to(device)
        given = {
            "input_ids": input_ids,
            "attention_mask": mask,
            "token_type_ids": segments,
            "masked_lm_positions": positions,
            "masked_lm_weights": torch.ones_like(labels, dtype=torch.float32),
            "labels": labels,
            "next_sentence_label": follows,
        }
        return net, lambda: net.loss(given)

    def make_peer() -> tuple[nn.Module, Callable[[], Tensor]]:
        config = BertConfig(
            vocab_size=words,
            hidden_size=width,
            num_hidden_layers=depth,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            attn_implementation="sdpa",
        )
        net = BertForPreTraining(config).to(device)
        everywhere = torch.full_like(input_ids, -100).scatter(1, positions, labels)
        return (
            net,
            lambda: (
                net(
                    input_ids=input_ids,
                    token_type_ids=segments,
                    labels=everywhere,
                    next_sentence_label=follows,
                ).loss
            ),
        )

    per_token = 6 * 12 * depth * width**2 + 12 * depth * width * length
    heads_flops = 6 * (words * width + width**2) * masked * batch
    return Work("tokens", batch * length, per_token * batch * length + heads_flops, make_ours, make_peer)


def unet(small: bool, device: str) -> Work:
    from torch.utils.flop_counter import FlopCounterMode

    from portwright.networks.unet import UNet

    filters, batch, size = ((8, 16, 32), 2, 32) if small else ((64, 128, 256, 512, 1024), 16, 512)
    images = torch.rand(batch, 3, size, size, device=device).contiguous(memory_format=torch.channels_last)
    masks = (torch.rand(batch, 1, size, size, device=device) > 0.5).float()

    def make_ours() -> tuple[nn.Module, Callable[[], Tensor]]:
        net = UNet(
            {
                "input_channels": 3,
                "num_outputs": 1,
                "encoder_filters": filters,
                "decoder_filters": filters[-2::-1],
                "batch_norm": True,
            }
        )
        net = net.to(device, memory_format=torch.channels_last)
        return net, lambda: F.binary_cross_entropy_with_logits(net(images).float(), masks)

    def make_peer() -> tuple[nn.Module, Callable[[], Tensor]]:
        net = PlainUNet(3, 1, filters).to(device, memory_format=torch.channels_last)
        return net, lambda: F.binary_cross_entropy_with_logits(net(images).float(), masks)

    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        PlainUNet(3, 1, filters)(torch.empty(batch, 3, size, size))
    return Work("images", batch, 3 * counter.get_total_flops(), make_ours, make_peer)


MODELS = {"GPT-2 124M": gpt2, "BERT-base": bert, "U-Net": unet}


class Trainer:
    """A model with a fused optimizer; calling it trains some steps and gives units a second."""

    def __init__(self, work: Work, side: str, compiled: bool, device: str, steps: int) -> None:
        torch.manual_seed(0)
        self.work, self.device, self.steps = work, device, steps
        net, compute = work.ours() if side == "ours" else work.peer()
        net.train()
        self.compute = torch.compile(compute) if compiled else compute
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
        self.losses: list[float] = []

    def step(self) -> Tensor:
        with torch.autocast(self.device, dtype=torch.bfloat16):
            loss = self.compute()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def __call__(self) -> float:
        synchronize(self.device)
        start = time.perf_counter()
        for _ in range(self.steps):
            loss = self.step()
        synchronize(self.device)
        seconds = time.perf_counter() - start
        self.losses.append(loss.item())
        return self.steps * self.work.units_a_step / seconds

    def peak_gib(self) -> float | None:
        if self.device != "cuda":
            return None
        torch.cuda.reset_peak_memory_stats()
        self.step()
        return torch.cuda.max_memory_allocated() / 2**30


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def profile(trainer: Trainer, step_milliseconds: float, steps: int = 3) -> dict[str, Any]:
    """Milliseconds a step by kind of kernel, and what of a step that nobody watched is left: the GPU had nothing to do."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    synchronize(trainer.device)
    with record(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as recorded:
        for _ in range(steps):
            trainer.step()
        synchronize(trainer.device)
    kinds: dict[str, float] = defaultdict(float)
    names: dict[str, float] = defaultdict(float)
    for event in recorded.events():
        is_kernel = event.device_type == torch.autograd.DeviceType.CUDA
        if is_kernel and not event.name.startswith(("Optimizer.", "ProfilerStep")):
            milliseconds = event.self_device_time_total / 1e3 / steps
            kinds[kind_of(event.name)] += milliseconds
            names[event.name[:110]] += milliseconds
    kinds["other passes over memory"] = kinds.pop("other", 0.0)
    busy = sum(kinds.values())
    kinds["nothing (waits for the host)"] = max(0.0, step_milliseconds - busy)
    top = sorted(names.items(), key=lambda item: -item[1])[:25]
    return {"milliseconds": dict(sorted(kinds.items(), key=lambda item: -item[1])), "kernels": top}


def kind_of(name: str) -> str:
    lower = name.lower()
    return next((kind for kind, words in KINDS.items() if any(word in lower for word in words)), "other")


@contextmanager
def quiet_transformers() -> Iterator[None]:
    from transformers.utils import logging

    logging.set_verbosity_error()
    yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--json", type=Path, default=None, metavar="FILE", help="write the figures to this file"
    )
    parser.add_argument(
        "--quick", action="store_true", help="small models and few rounds; the claims are not judged on it"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20, help="of a timing")
    parser.add_argument("--only", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--eager-only", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        arguments.quick = True
    rounds, steps = (2, 2) if arguments.quick else (arguments.rounds, arguments.steps)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    claims: list[Claim] = []
    figures: dict[str, Any] = {}
    with quiet_transformers():
        for name in arguments.only:
            work = MODELS[name](arguments.quick, arguments.device)
            figures[name] = measure_model(name, work, arguments, rounds, steps, claims)
    import transformers

    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    if arguments.device == "cuda":
        versions["gpu"] = torch.cuda.get_device_name()
    status = finish(arguments, claims, figures, **versions)
    sys.exit(0 if arguments.quick else status)


def measure_model(
    name: str, work: Work, arguments: argparse.Namespace, rounds: int, steps: int, claims: list[Claim]
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "unit": work.unit,
        "units_a_step": work.units_a_step,
        "flops_a_step": work.flops_a_step,
    }
    for compiled, target in ((False, 1.15), (True, 1.0)):
        if compiled and arguments.eager_only:
            continue
        how = "torch.compile" if compiled else "eager"
        print(f"{name}, {how}", file=sys.stderr)
        trainers = {side: Trainer(work, side, compiled, arguments.device, steps) for side in ("ours", "peer")}
        speeds = interleave(trainers, rounds)
        ratio = paired_ratio(speeds["ours"], speeds["peer"])
        claims.append(Claim(f"{name}, {how}: {work.unit} a second over the peer's", ratio, target))
        found[how] = {"ratio": ratio.median, "interval": [ratio.low, ratio.high]}
        for side, trainer in trainers.items():
            speed = statistics.median(speeds[side])
            mfu = speed / work.units_a_step * work.flops_a_step / H200_BF16_FLOPS
            row: dict[str, Any] = {
                f"{work.unit}_a_second": speed,
                "mfu": mfu,
                "last_loss": trainer.losses[-1],
            }
            row["peak_gib"] = trainer.peak_gib()
            if arguments.device == "cuda":
                row.update(profile(trainer, 1e3 * work.units_a_step / speed))
                row["bound_by"] = next(iter(row["milliseconds"]))
            found[how][side] = row
            shown = f"{speed:,.0f} {work.unit}/s, MFU {mfu:.3f}, peak {row['peak_gib'] or 0:.1f} GiB"
            print(f"  {side}: {shown}")
            if "milliseconds" in row:
                parts = [
                    f"{kind} {value:.1f} ms" for kind, value in row["milliseconds"].items() if value >= 0.05
                ]
                print(f"     bound by {row['bound_by']}: {', '.join(parts)}")
        print(f"  ratio {ratio}")
        del trainers
        torch.compiler.reset()
        if arguments.device == "cuda":
            torch.cuda.empty_cache()
    return found


if __name__ == "__main__":
    main()
