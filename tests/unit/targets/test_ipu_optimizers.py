"""Optimizers of params.yaml as PopTorch's: what maps, what is refused by name, and state that moves both ways."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from portwright.emulate import lend
from portwright.errors import UnsupportedError, UserError
from portwright.job.optimizer import OPTIMIZERS, OptimizerParams, optimizer_schema
from portwright.runtime.optimizer_state import load_optimizer_state, optimizer_state
from portwright.runtime.optimizers import make_optimizer as make_torchs
from portwright.targets.ipu.optimizers import OURS, load_state, make_optimizer, read_state

poptorch: Any = lend("poptorch")


def spec_of(name: str, **options: Any) -> OptimizerParams:
    return optimizer_schema(name).model_validate({"optimizer_type": name, "learning_rate": 0.1, **options})


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))


def make(spec: OptimizerParams, net: nn.Module | None = None, notes: list[str] | None = None) -> Any:
    return make_optimizer(
        poptorch, net or make_net(), spec, is_half=False, note=(notes if notes is not None else []).append
    )


@pytest.mark.parametrize(
    ("name", "options", "kind", "expected"),
    [
        ("SGD", {"momentum": 0.9, "use_nesterov": True}, "SGD", {"momentum": 0.9, "nesterov": True}),
        ("Adam", {"betas": [0.8, 0.9], "eps": 1e-5}, "Adam", {"betas": (0.8, 0.9), "eps": 1e-5}),
        ("AdamW", {}, "AdamW", {"betas": (0.9, 0.999), "eps": 1e-6}),
        ("RMSprop", {"alpha": 0.5, "centered": True}, "RMSprop", {"alpha": 0.5, "centered": True}),
        ("Lamb", {"clamp_value": 3.0}, "LAMB", {"max_weight_norm": 3.0, "bias_correction": False}),
    ],
)
def test_settings_reach_poptorch(
    name: str, options: dict[str, Any], kind: str, expected: dict[str, Any]
) -> None:
    made = make(spec_of(name, weight_decay_rate=0.5, **options))
    assert type(made) is getattr(poptorch.optim, kind)
    assert {g["weight_decay"]: len(g["params"]) for g in made.param_groups} == {0.5: 2, 0.0: 4}
    group = made.param_groups[0]
    for key, value in expected.items():
        assert group.get(key, getattr(made, key, None)) == value, key
    assert group["lr"] == 0.1


@pytest.mark.parametrize("name", sorted(set(OPTIMIZERS) - set(OURS)))
def test_other_optimizers_are_refused_with_the_nearest(name: str) -> None:
    with pytest.raises(UnsupportedError) as raised:
        make(spec_of(name))
    assert name in raised.value.message
    assert "Valid: Adam, AdamW, Lamb, RMSprop, SGD" in raised.value.cure


@pytest.mark.parametrize(
    ("name", "options", "word"),
    [
        ("Adam", {"amsgrad": True}, "amsgrad"),
        ("Adam", {"correct_bias": False}, "correct_bias"),
        ("AdamW", {"correct_bias": False}, "correct_bias"),
        ("SGD", {"momentum": 0.9, "dampening": 0.1}, "dampening"),
        ("SGD", {"maximize": True}, "maximize"),
        ("Lamb", {"adam": True}, "optimizer.adam"),
        ("Adam", {"max_gradient_value": 1.0}, "max_gradient_value is 1.0"),
        ("RMSprop", {"max_gradient_norm": 1.0}, "RMSprop does not clip"),
        ("Lamb", {"max_gradient_norm": 1.0}, "LAMB does not clip"),
    ],
)
def test_settings_without_a_counterpart_are_refused(name: str, options: dict[str, Any], word: str) -> None:
    with pytest.raises(UnsupportedError) as raised:
        make(spec_of(name, **options))
    assert word in raised.value.message
    assert raised.value.cure


def test_clipping_and_scaling_are_poptorchs_own() -> None:
    made = make(spec_of("AdamW", max_gradient_norm=2.0, loss_scaling_factor=8.0))
    assert (made.max_grad_norm, made.loss_scaling) == (2.0, 8.0)


def test_dynamic_scaling_is_left_out_in_float32_aloud() -> None:
    notes: list[str] = []
    made = make(spec_of("Adam", loss_scaling_factor="dynamic", log_summaries=True), notes=notes)
    assert made.loss_scaling == 1.0
    assert ["dynamic" in notes[0], "log_summaries" in notes[1]] == [True, True]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Adam", {}),
        ("AdamW", {"weight_decay_rate": 0.1}),
        ("SGD", {}),
        ("SGD", {"momentum": 0.9, "loss_scaling_factor": 4.0}),
        ("RMSprop", {}),
        ("RMSprop", {"momentum": 0.5, "centered": True}),
        ("Lamb", {}),
        ("Lamb", {"correct_bias": True}),
    ],
)
def test_state_moves_from_torch_and_back(name: str, options: dict[str, Any]) -> None:
    spec, net = spec_of(name, **options), make_net()
    names = dict(net.named_parameters())
    torchs = make_torchs(net, spec)
    for _ in range(2):
        net(torch.randn(5, 3)).square().mean().backward()
        torchs.step()
        torchs.zero_grad()
    by_tensor = {parameter: path for path, parameter in names.items()}
    before = dict(optimizer_state(torchs, by_tensor))
    items: dict[str, dict[str, torch.Tensor]] = {}
    for label, tensor in before.items():
        path, _, key = label.rpartition("/")
        items.setdefault(path, {})[key] = tensor.clone()
    made = make(spec, net)
    load_state(made, names, spec, "net.", items)
    slots = made.state_dict()["ipu_state"] or {}
    assert all("___net." in label and slot.dtype == torch.float32 for label, slot in slots.items())
    after = dict(read_state(made, names, spec, "net.", num_updates=2))
    assert after.keys() == before.keys()
    for label, tensor in before.items():
        torch.testing.assert_close(after[label], tensor)
    load_optimizer_state(make_torchs(net, spec), by_tensor, after.items())  # torch takes it


def test_before_the_first_step_there_is_no_state_to_lose() -> None:
    spec, net = spec_of("Adam"), make_net()
    names = dict(net.named_parameters())
    shards = dict(read_state(make(spec, net), names, spec, "net.", 0))
    assert shards.keys() == {f"{name}/untouched" for name in names}
    load_state(
        make(spec, net), names, spec, "net.", {name: {"untouched": torch.tensor(True)} for name in names}
    )


@pytest.mark.parametrize(
    ("items", "word"),
    [
        ({"nobody": {"step": torch.ones(())}}, "does not train"),
        ({"0.weight": {"momentum_buffer": torch.ones(4, 3)}}, "keeps step, exp_avg, exp_avg_sq"),
        (
            {"0.weight": {"step": torch.ones(()), "exp_avg": torch.ones(2), "exp_avg_sq": torch.ones(4, 3)}},
            r"has shape \[2\]",
        ),
    ],
)
def test_state_of_another_optimizer_is_refused(items: dict[str, dict[str, torch.Tensor]], word: str) -> None:
    spec, net = spec_of("Adam"), make_net()
    names = {"0.weight": net[0].weight}
    with pytest.raises(UserError, match=word):
        load_state(make(spec, net), names, spec, "net.", items)
