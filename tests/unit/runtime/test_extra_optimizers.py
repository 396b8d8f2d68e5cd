"""Our own optimizers against their papers' equations, written out plainly, and against torch where settings meet."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from portwright.runtime.extra_optimizers import Adafactor, Lamb, Lion, Muon, orthogonalize, step_size

SHAPES = [(4, 3), (5,), (2, 3, 4), ()]


def tensors() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]


def gradients(num_steps: int = 8) -> Iterator[list[Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(num_steps):
        yield [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]


def run(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], num_steps: int = 8) -> list[Tensor]:
    parameters = [nn.Parameter(tensor) for tensor in tensors()]
    optimizer = make(parameters)
    for grads in gradients(num_steps):
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad
        optimizer.step()
    return [parameter.detach() for parameter in parameters]


def close(ours: list[Tensor], theirs: list[Tensor]) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("correct_bias", [False, True])
@pytest.mark.parametrize("clamp_value", [10.0, 0.5])
def test_lamb_is_the_papers_algorithm(correct_bias: bool, clamp_value: float) -> None:
    expected = []
    for index, w in enumerate(tensors()):
        m = v = torch.zeros_like(w)
        for step, grads in enumerate(gradients(), start=1):
            g = grads[index]
            m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g * g
            m_hat, v_hat = (m / (1 - 0.8**step), v / (1 - 0.95**step)) if correct_bias else (m, v)
            direction = m_hat / (v_hat.sqrt() + 1e-6) + 0.1 * w
            w = w - 0.01 * min(w.norm().item(), clamp_value) / direction.norm() * direction
        expected.append(w)
    ours = run(lambda p: Lamb(p, 0.01, (0.8, 0.95), 1e-6, 0.1, clamp_value, correct_bias))
    close(ours, expected)


def test_lamb_without_its_ratio_is_adamw() -> None:
    ours = run(lambda p: Lamb(p, 0.01, weight_decay=0.1, correct_bias=True, adam=True))
    theirs = run(lambda p: torch.optim.AdamW(p, 0.01, eps=1e-6, weight_decay=0.1, foreach=False))
    close(ours, theirs)


def test_lamb_moves_weights_that_are_zero() -> None:
    parameter = nn.Parameter(torch.zeros(3))
    optimizer = Lamb([parameter], lr=0.1)
    parameter.grad = torch.ones(3)
    optimizer.step()
    assert torch.isfinite(parameter).all()
    assert (parameter < 0).all()


def test_a_gradient_of_zeros_makes_no_nan() -> None:
    for make in (Lamb, Lion, Adafactor, Muon):
        parameters = [nn.Parameter(torch.ones(3, 3)), nn.Parameter(torch.ones(3))]
        optimizer = make([{"params": parameters[:1]}, {"params": parameters[1:], "use_muon": False}])
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        assert all(torch.isfinite(parameter).all() for parameter in parameters), make


def test_lion_is_the_papers_algorithm() -> None:
    expected = []
    for index, w in enumerate(tensors()):
        m = torch.zeros_like(w)
        for grads in gradients():
            g = grads[index]
            w = w - 0.01 * ((0.9 * m + 0.1 * g).sign() + 0.1 * w)
            m = 0.99 * m + 0.01 * g
        expected.append(w)
    close(run(lambda p: Lion(p, 0.01, (0.9, 0.99), 0.1)), expected)


@pytest.mark.parametrize("beta1", [None, 0.9])
@pytest.mark.parametrize("scale_parameter", [False, True])
@pytest.mark.parametrize("relative", ["no", "yes", "warm"])
def test_adafactor_is_the_papers_algorithm(beta1: float | None, scale_parameter: bool, relative: str) -> None:
    expected = []
    for index, w in enumerate(tensors()):
        mean = torch.zeros_like(w)
        row = col = full = torch.zeros(())
        for step, grads in enumerate(gradients(), start=1):
            g = grads[index]
            rate = 0.02 if relative == "no" else min(1e-6 * step if relative == "warm" else 1e-2, step**-0.5)
            if scale_parameter:
                rate = rate * max(1e-3, w.square().mean().sqrt().item())
            decay = 1 - step**-0.8
            square = g * g + 1e-30
            if w.ndim >= 2:
                row = decay * row + (1 - decay) * square.mean(-1)
                col = decay * col + (1 - decay) * square.mean(-2)
                estimate = row.unsqueeze(-1) * col.unsqueeze(-2) / row.mean(-1)[..., None, None]
            else:
                full = decay * full + (1 - decay) * square
                estimate = full
            update = g / estimate.sqrt()
            update = rate * update / max(1.0, update.square().mean().sqrt().item() / 0.7)
            if beta1 is not None:
                mean = beta1 * mean + (1 - beta1) * update
                update = mean
            w = w - 0.1 * rate * w - update
        expected.append(w)
    ours = run(
        lambda p: Adafactor(
            p,
            0.02,
            clip_threshold=0.7,
            beta1=beta1,
            weight_decay=0.1,
            scale_parameter=scale_parameter,
            relative_step=relative != "no",
            warmup_init=relative == "warm",
        )
    )
    close(ours, expected)


def test_adafactor_meets_torchs_where_their_settings_do() -> None:
    if not hasattr(torch.optim, "Adafactor"):
        pytest.skip("torch before 2.5 has no Adafactor")
    # Torch takes the smaller of lr and 1/sqrt(step), and lets lr alone decay the weights.
    ours = run(lambda p: Adafactor(p, 0.02))
    theirs = run(lambda p: torch.optim.Adafactor(p, 0.02, eps=(1e-15, 1e-3), foreach=False))
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)


def test_adafactor_shows_the_step_that_it_found() -> None:
    parameter = nn.Parameter(torch.ones(2, 2))
    optimizer = Adafactor([parameter], relative_step=True, warmup_init=True)
    for _ in range(3):
        parameter.grad = torch.ones(2, 2)
        optimizer.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(3e-6)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("rule", ["original", "match_rms_adamw"])
def test_muon_is_torchs_on_matrices(nesterov: bool, rule: str) -> None:
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("torch before 2.9 has no Muon")
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(shape)) for shape in [(6, 4), (4, 6), (5, 5)]]
    theirs = copy.deepcopy(ours)
    optimizers = [
        Muon(ours, 0.02, weight_decay=0.1, nesterov=nesterov, adjust_lr=rule),
        torch.optim.Muon(theirs, 0.02, weight_decay=0.1, nesterov=nesterov, adjust_lr_fn=rule),
    ]
    for _ in range(6):
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn_like(mine)
            other.grad = mine.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_muon_takes_adamw_where_told() -> None:
    ours = run(lambda p: Muon([{"params": p, "use_muon": False}], 0.01, weight_decay=0.1))
    theirs = run(lambda p: torch.optim.AdamW(p, 0.01, eps=1e-6, weight_decay=0.1, foreach=False))
    close(ours, theirs)


def test_muon_flattens_a_kernel() -> None:
    torch.manual_seed(0)
    kernel = nn.Parameter(torch.randn(4, 3, 2, 2))
    matrix = nn.Parameter(kernel.detach().reshape(4, 12).clone())
    kernel.grad = torch.randn_like(kernel)
    matrix.grad = kernel.grad.reshape(4, 12).clone()
    for parameter in (kernel, matrix):
        Muon([parameter], 0.1).step()
    assert torch.equal(kernel.reshape(4, 12), matrix)


@pytest.mark.parametrize("shape", [(8, 3), (3, 8), (6, 6), (1, 5)])
def test_orthogonal_means_singular_values_near_one(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    singular = torch.linalg.svdvals(orthogonalize(torch.randn(shape) * 100, 8).float())
    assert singular.min() > 0.6
    assert singular.max() < 1.3


def test_step_sizes_of_muon() -> None:
    assert step_size((100, 25), "match_rms_adamw") == pytest.approx(2.0)
    assert step_size((100, 25), "original") == pytest.approx(2.0)
    assert step_size((25, 100), "original") == 1.0
    assert step_size((4, 5, 5), "match_rms_adamw") == pytest.approx(1.0)


def test_parameters_without_a_gradient_stay() -> None:
    for make in (Lamb, Lion, Adafactor, Muon):
        still, moved = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
        optimizer = make([still, moved], weight_decay=0.1)
        moved.grad = torch.randn(2, 2)
        optimizer.step()
        assert torch.equal(still, torch.ones(2, 2)), make
        assert not torch.equal(moved, torch.ones(2, 2)), make
        assert still not in optimizer.state


def test_a_closure_is_called_with_gradients_on() -> None:
    for make in (Lamb, Lion, Adafactor, Muon):
        parameter = nn.Parameter(torch.ones(2, 2))
        optimizer = make([parameter])

        def closure(parameter: nn.Parameter = parameter) -> Tensor:
            loss = parameter.square().sum()
            loss.backward()
            return loss

        assert optimizer.step(closure).item() == 4.0
        assert not torch.equal(parameter, torch.ones(2, 2))
