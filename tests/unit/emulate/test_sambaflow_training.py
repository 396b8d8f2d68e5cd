"""What the emulated device computes: torch's own numbers in fp32, near them in bf16, from the device's own weights."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from unit.emulate.sambaflow_case import Case, Classifier, adamw, sgd, start_again, weights

from portwright.emulate.sambaflow import samba
from portwright.emulate.sambaflow._refusal import SambaFlowError
from portwright.emulate.sambaflow.logging import samba_logger
from portwright.emulate.sambaflow.samba import utils

pytestmark = pytest.mark.filterwarnings("ignore:TF32 acceleration")  # of torch, when mkldnn is switched off


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    start_again()
    samba_logger.forget()
    yield
    start_again()


def train_both(
    case: Case, make: Callable[[Any], torch.optim.Optimizer], rates: list[float]
) -> Iterator[tuple[float, float]]:
    """Losses of the device and of torch on the same batches, step by step."""
    theirs = make(case.reference.parameters())
    for step, rate in enumerate(rates):
        case.inputs = case.draw(seed=step)
        torch.manual_seed(step)
        ours = float(samba.to_torch(case.run(lr=rate)[0]))
        torch.manual_seed(step)
        theirs.zero_grad()
        for group in theirs.param_groups:
            group["lr"] = rate
        loss = case.reference(*case.plain())[0]
        loss.backward()
        theirs.step()
        yield ours, float(loss.detach())


OPTIMIZERS = [
    (lambda m: sgd(m), lambda p: torch.optim.SGD(p, lr=0.1)),
    (lambda m: sgd(m, momentum=0.9, weight_decay=0.01), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01)),
    (lambda m: adamw(m), lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.9, 0.997), weight_decay=0)),
    (lambda m: adamw(m, weight_decay=0.1, betas=(0.8, 0.9), amsgrad=True),
     lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.8, 0.9), weight_decay=0.1, amsgrad=True)),
]  # fmt: skip


@pytest.mark.parametrize(("ours", "theirs"), OPTIMIZERS)
def test_fp32_is_torchs_own(ours: Any, theirs: Any, tmp_path: Path) -> None:
    case = Case(tmp_path, lambda: Classifier(dropout=0.2), ours)
    case.trace()
    for loss, expected in train_both(case, theirs, [0.1, 0.05, 0.2, 0.01, 0.1]):
        assert loss == pytest.approx(expected, abs=1e-6)
    samba.session.to_cpu(case.model)
    for name, tensor in weights(case.model).items():
        torch.testing.assert_close(tensor, weights(case.reference)[name])


def test_bf16_is_the_default_and_near(tmp_path: Path) -> None:
    case = Case(tmp_path, config={"graphamp_preset": None})
    outputs = case.trace()
    assert [output.dtype for output in outputs] == [torch.bfloat16, torch.bfloat16]
    assert case.inputs[0].dtype == torch.float32  # the host's tensors keep their type
    pairs = list(train_both(case, lambda p: torch.optim.SGD(p, lr=0.1), [0.1] * 5))
    for loss, expected in pairs:
        assert loss == pytest.approx(expected, abs=0.03)
    assert any(loss != expected for loss, expected in pairs), "it was computed in float32"


def test_a_bfloat16_model_keeps_float32_weights_only_where_asked(tmp_path: Path) -> None:
    """With steps too small for bfloat16 to hold, a float32 copy still moves."""
    moved = {}
    for keeps in (False, True):
        start_again()
        case = Case(
            tmp_path,
            lambda: Classifier().bfloat16(),
            lambda m, keeps=keeps: adamw(m, fp32_params=keeps),  # type: ignore[misc]
            config={"graphamp_preset": None, "pef_name": f"keeps_{keeps}"},
        )
        case.inputs = (case.inputs[0].bfloat16(), case.inputs[1])
        case.trace()
        before = weights(case.model)["last.weight"]
        for _ in range(60):
            case.run(lr=2e-5)
        samba.session.to_cpu(case.model)
        moved[keeps] = float((weights(case.model)["last.weight"] - before).abs().float().mean())
    assert moved[True] > 3 * moved[False]


def test_clipping_is_by_the_norm_of_all_gradients(tmp_path: Path) -> None:
    case = Case(tmp_path, optimizer=lambda m: [
        samba.optim.AdamW(m.first.parameters(), lr=0.1, max_grad_norm=0.05),
        samba.optim.AdamW(m.last.parameters(), lr=0.1, max_grad_norm=0.05),
    ])  # fmt: skip
    case.trace()
    theirs = torch.optim.AdamW(case.reference.parameters(), lr=0.1, betas=(0.9, 0.997), weight_decay=0)
    for _ in range(3):
        case.run(lr=0.1)
        theirs.zero_grad()
        case.reference(*case.plain())[0].backward()
        nn.utils.clip_grad_norm_(case.reference.parameters(), 0.05)
        theirs.step()
    samba.session.to_cpu(case.model)
    for name, tensor in weights(case.model).items():
        torch.testing.assert_close(tensor, weights(case.reference)[name])


@pytest.mark.parametrize(
    "calls", [[["fwd"], ["bckwd", "opt"]], [["fwd"], ["bckwd"], ["opt"]], [["fwd", "bckwd"], ["opt"]]]
)
def test_sections_one_by_one_are_all_at_once(calls: list[list[str]], tmp_path: Path) -> None:
    """Also with dropout: backward goes through the very forward pass that was run, whatever was drawn since."""
    results = []
    for sections in ([["fwd", "bckwd", "opt"]], calls):
        start_again()
        case = Case(tmp_path, lambda: Classifier(dropout=0.5))
        case.trace()
        torch.manual_seed(3)
        for _ in range(2):
            for number, part in enumerate(sections):
                with torch.random.fork_rng(enabled=number > 0):
                    case.run(*part)
                    torch.rand(5 * number)
        samba.session.to_cpu(case.model)
        results.append(weights(case.model))
    for name, tensor in results[0].items():
        assert tensor.equal(results[1][name]), name


class _Logits(nn.Module):
    """A model whose loss is the host's affair."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.layer(image)
        return logits


def test_a_loss_on_the_host_gives_backward_its_start(tmp_path: Path) -> None:
    case = Case(tmp_path, _Logits)
    case.inputs, label = case.inputs[:1], samba.to_torch(case.inputs[1])
    case.trace(pef=case.compile(init_output_grads=False), init_output_grads=False)
    output = samba.to_torch(case.run("fwd")[0]).requires_grad_()
    nn.functional.cross_entropy(output, label).backward()
    with pytest.raises(SambaFlowError, match=r"no gradient to start from.*grad_of_outputs"):
        case.run("bckwd", "opt")
    case.run("bckwd", "opt", grad_of_outputs=[output.grad])
    theirs = torch.optim.SGD(case.reference.parameters(), lr=0.1)
    nn.functional.cross_entropy(case.reference(samba.to_torch(case.inputs[0])), label).backward()
    theirs.step()
    samba.session.to_cpu(case.model)
    torch.testing.assert_close(case.model.layer.weight, case.reference.layer.weight, check_dtype=True)


def test_gradients_of_outputs_must_fit_them(tmp_path: Path) -> None:
    case = Case(tmp_path, _Logits)
    case.inputs = case.inputs[:1]
    case.trace()
    for bad, said in (
        ([torch.ones(6, 3)], r"float32\[6, 3\]"),
        ([torch.ones(6, 4, dtype=torch.bfloat16)], "bfloat16"),
        ([], "0 gradient"),
    ):
        with pytest.raises(SambaFlowError, match=said):
            case.run("fwd", "bckwd", grad_of_outputs=bad)


def test_sn_grad_and_ones_are_starts_too(tmp_path: Path) -> None:
    case = Case(tmp_path, _Logits)
    case.inputs = case.inputs[:1]
    (output,) = case.trace()
    case.run("fwd", "bckwd")
    with_ones = case.model.layer.bias.sn_grad
    torch.testing.assert_close(with_ones, torch.full((4,), 6.0))
    output.sn_grad = torch.full((6, 4), 0.5)
    case.run("fwd", "bckwd")
    torch.testing.assert_close(case.model.layer.bias.sn_grad, with_ones / 2)
    output.sn_grad = None
    utils.init_output_grads([output], customized_tensors_dict={output.sn_name: torch.zeros(6, 4)})
    case.run("fwd", "bckwd")
    assert float(case.model.layer.bias.sn_grad.abs().sum()) == 0.0
    utils.init_output_grads([output], unspecified_tensor_grad=[output.sn_name])
    assert output.sn_grad.equal(torch.ones(6, 4))
    with pytest.raises(SambaFlowError, match="no output is named 'x'"):
        utils.init_output_grads([output], unspecified_tensor_grad=["x"])


class _TwoLosses(Classifier):
    def forward(self, image: Tensor, label: Tensor) -> Any:
        loss, logits = super().forward(image, label)
        return loss, logits.softmax(-1)


def test_an_ambiguous_loss_must_be_named(tmp_path: Path) -> None:
    case = Case(tmp_path, _TwoLosses)
    pef = case.compile()
    case.trace(pef)
    with pytest.raises(SambaFlowError, match=r"2 outputs that could be its loss.*loss_indices=\[0\]"):
        case.run()
    case.trace(pef, loss_indices=[0])
    case.run()
    case.trace(pef, loss_indices=[(0,)])
    for bad in ([2], [-1], ["a"], [True]):
        with pytest.raises(SambaFlowError, match="loss_indices"):
            case.trace(pef, loss_indices=bad)


def test_inputs_that_want_a_gradient_get_it(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.inputs[0].requires_grad_()
    case.trace()
    case.run("fwd", "bckwd")
    image, label = (tensor.detach() for tensor in case.plain())
    image.requires_grad_()
    case.reference(image, label)[0].backward()
    torch.testing.assert_close(case.inputs[0].sn_grad, image.grad)


def test_only_hyperparam_dict_reaches_the_device(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    case = Case(tmp_path)
    case.trace()
    case.optimizer.param_groups[0]["lr"] = 100.0
    before = weights(case.model)["last.bias"]
    with caplog.at_level(logging.WARNING, "sambaflow"):
        case.run(lr=None)
        case.run(lr=None)
    assert [r.message for r in caplog.records] == [
        "no lr in hyperparam_dict: the device uses the compiled one, 0.1, and the optimizer on the host says 100"
    ]
    samba.session.to_cpu(case.model)
    assert float((weights(case.model)["last.bias"] - before).abs().max()) < 1.0
    still = weights(case.model)["last.bias"]
    case.run(lr=0.0)
    samba.session.to_cpu(case.model)
    assert weights(case.model)["last.bias"].equal(still)


def test_other_values_of_the_host_that_do_not_reach_the_device_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pef = Case(tmp_path, optimizer=lambda m: sgd(m, weight_decay=0.1)).compile()
    case = Case(tmp_path, optimizer=lambda m: sgd(m, weight_decay=0.5))
    case.trace(pef)
    with caplog.at_level(logging.WARNING, "sambaflow"):
        case.run()
        assert "no weight_decay in hyperparam_dict: the device uses the compiled one, 0.1" in caplog.text
        caplog.clear()
        samba_logger.forget()
        case.run(hyperparam_dict={"lr": 0.1, "weight_decay": 0.5})
    assert not caplog.records


class _InPlace(Classifier):
    def forward(self, image: Tensor, label: Tensor) -> Any:
        return super().forward(image.add_(1.0), label)


def test_a_change_in_place_stays_on_the_device(tmp_path: Path) -> None:
    case = Case(tmp_path, _InPlace, config={"unlisted_ops": "warn"})
    case.trace()
    before = case.plain()[0].clone()
    losses = [float(case.run("fwd")[0]) for _ in range(2)]
    assert losses[0] == losses[1]
    case.run("bckwd", "opt")
    assert case.plain()[0].equal(before)


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.last.weight = self.first.weight
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.frozen(self.last(self.first(image).relu())), label)


def test_tied_and_frozen_weights_are_torchs(tmp_path: Path) -> None:
    case = Case(tmp_path, _Tied)
    case.trace()
    theirs = torch.optim.SGD(case.reference.parameters(), lr=0.1)
    for _ in range(3):
        case.run()
        theirs.zero_grad()
        case.reference(*case.plain()).backward()
        theirs.step()
    samba.session.to_cpu(case.model)
    torch.testing.assert_close(case.model.last.weight.detach(), case.reference.last.weight.detach())
    assert case.model.last.weight is case.model.first.weight
    assert case.model.frozen.weight.equal(case.reference.frozen.weight)


def test_a_converted_model_can_be_copied_saved_and_cast(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.trace()
    case.run()
    samba.session.to_cpu(case.model)
    twin = copy.deepcopy(case.model)
    assert weights(twin)["last.bias"].equal(weights(case.model)["last.bias"])
    torch.save(case.model.state_dict(), tmp_path / "w.pt")
    assert torch.load(tmp_path / "w.pt", weights_only=True)["last.bias"].equal(weights(twin)["last.bias"])
    samba.from_torch_model_(twin)
    with pytest.raises(SambaFlowError, match="backward"):
        twin(*case.plain())[0].backward()
    twin.bfloat16()
    assert twin.first.weight.sn_name == "classifier__first__weight"


def test_weights_without_values_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SambaFlowError, match=r"'first.weight' is on the device 'meta'"):
        Case(tmp_path, lambda: Classifier().to("meta")).compile()


def test_the_dropout_rate_is_a_hyperparameter(tmp_path: Path) -> None:
    case = Case(tmp_path, lambda: Classifier(dropout=0.5))
    case.trace()
    off = [case.run("fwd", hyperparam_dict={"p": 0.0})[0] for _ in range(2)]
    on = [case.run("fwd")[0] for _ in range(2)]
    assert off[0].equal(off[1])
    assert not on[0].equal(on[1])
    assert float(off[0]) == pytest.approx(float(case.reference.eval()(*case.plain())[0].detach()), abs=1e-6)
    assert case.model.dropout.p == 0.5


def test_the_host_is_stale_until_to_cpu(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    case = Case(tmp_path)
    case.trace()
    before = weights(case.model)
    case.run()
    assert all(tensor.equal(before[name]) for name, tensor in weights(case.model).items())
    with caplog.at_level(logging.WARNING, "sambaflow"):
        case.model(*case.plain())
        case.model.state_dict()
    assert sum("to_cpu" in record.message for record in caplog.records) == 1
    name = "classifier__last__bias"
    on_device = samba.session.get_tensors_by_name([name])[0]
    assert not on_device.equal(before["last.bias"])
    samba.session.to_cpu(case.model)
    assert weights(case.model)["last.bias"].equal(samba.to_torch(on_device))
    caplog.clear()
    samba_logger.forget()
    with caplog.at_level(logging.WARNING, "sambaflow"):
        case.model(*case.plain())
    assert not caplog.records


def test_host_weights_reach_the_device_by_tracing_or_to_rdu_alone(tmp_path: Path) -> None:
    case = Case(tmp_path)
    pef = case.compile()
    case.trace(pef)
    first = float(case.run("fwd")[0])
    with torch.no_grad():
        case.model.last.bias += torch.arange(4.0)
    assert float(case.run("fwd")[0]) == first
    samba.session.to_rdu(case.model)
    second = float(case.run("fwd")[0])
    assert second != first
    with torch.no_grad():
        case.model.last.bias -= torch.arange(4.0)
    case.trace(pef)
    assert float(case.run("fwd")[0]) == pytest.approx(first)


def test_optimizer_state_goes_through_the_host(tmp_path: Path) -> None:
    """As the vendor's LeNet saves and resumes: to_cpu, state_dict; load_state_dict, trace."""
    whole = Case(tmp_path, optimizer=adamw)
    pef = whole.compile()
    whole.trace(pef)
    for _ in range(3):
        whole.run()
    assert not whole.optimizer.state
    whole.optimizer.cpu()
    assert float(whole.optimizer.state[whole.model.first.weight]["step"]) == 3
    samba.session.to_cpu(whole.model)
    saved = copy.deepcopy((whole.model.state_dict(), whole.optimizer.state_dict()))
    whole.run()
    samba.session.to_cpu(whole.model)
    expected = weights(whole.model)
    start_again()
    resumed = Case(tmp_path, optimizer=adamw)
    resumed.model.load_state_dict(saved[0])
    resumed.optimizer.load_state_dict(saved[1])
    resumed.trace(pef)
    resumed.run()
    samba.session.to_cpu(resumed.model)
    for name, tensor in weights(resumed.model).items():
        assert tensor.equal(expected[name]), name
    assert float(resumed.optimizer.state[resumed.model.first.weight]["step"]) == 4


class _Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(8, 4), nn.BatchNorm1d(4)

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.norm(self.layer(image)), label)


@pytest.mark.parametrize("calls", [[["fwd", "bckwd", "opt"]], [["fwd"], ["bckwd", "opt"]]])
@pytest.mark.parametrize("preset", ["mp0", None])
def test_statistics_move_once_a_step_and_come_back(
    calls: list[list[str]], preset: str | None, tmp_path: Path
) -> None:
    case = Case(tmp_path, _Normed, config={"unlisted_ops": "warn", "graphamp_preset": preset})
    case.trace()
    for sections in calls:
        case.run(*sections)
    assert case.model.norm.num_batches_tracked == 0
    samba.session.to_cpu(case.model)
    case.reference(*case.plain())
    assert case.model.norm.num_batches_tracked == 1
    torch.testing.assert_close(
        case.model.norm.running_mean, case.reference.norm.running_mean, atol=2e-3, rtol=1e-2
    )


def test_python_runs_while_compiling_and_never_after(tmp_path: Path) -> None:
    calls: list[int] = []

    class Counted(Classifier):
        def forward(self, image: Tensor, label: Tensor) -> Any:
            calls.append(1)
            return super().forward(image, label)

    case = Case(tmp_path, Counted)
    case.trace()
    seen = len(calls)
    for _ in range(3):
        case.run()
    assert len(calls) == seen
    case.model.eval()  # a program stays as it was compiled
    case.run()
    assert len(calls) == seen


def test_tracing_draws_nothing_from_the_generators(tmp_path: Path) -> None:
    case = Case(tmp_path, lambda: Classifier(dropout=0.5))
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    case.trace()
    assert torch.rand(3).equal(expected)


class Focal(Classifier):
    def forward(self, image: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.last(self.first(image).relu())
        wanted = nn.functional.one_hot(label, num_classes=4)
        return ((logits.softmax(-1) - wanted) ** 2).mean(), logits


def test_one_hot_of_known_width_needs_no_values(tmp_path: Path) -> None:
    case = Case(tmp_path, Focal, sgd, config={"unlisted_ops": "warn"})
    case.trace()
    for loss, expected in train_both(case, lambda p: torch.optim.SGD(p, lr=0.1), [0.1, 0.1, 0.1]):
        assert loss == pytest.approx(expected, abs=1e-6)
