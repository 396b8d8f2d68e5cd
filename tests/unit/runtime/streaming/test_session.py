"""A streaming session when things go wrong: clear errors, nothing hangs, nothing is corrupted; and runs that change their mode."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import streaming_nets as nets
import torch
from streaming_cases import (
    CASES,
    Case,
    assert_same,
    classes,
    everything,
    make_job,
    open_resident,
    open_streaming,
    stretch,
    train,
    vector,
)
from torch import Tensor, nn

from portwright import PyTorchBaseModel
from portwright.errors import NonFiniteError, UserError
from portwright.runtime.session import TorchSession
from portwright.runtime.streaming.engine import Streaming
from portwright.runtime.streaming.fetch import Fetcher
from portwright.runtime.streaming.gradients import Gradients
from portwright.runtime.streaming.session import StreamingSession
from portwright.runtime.streaming.unit_update import TorchUpdate

CLIPPED = "optimizer.max_gradient_norm=1000.0"  # so that every step is speculative, and kept
pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings(
        r"ignore:.torch.cpu.amp.autocast\(args:FutureWarning"
    ),  # torch 2.4's own checkpoint
]


@pytest.fixture(autouse=True)
def no_thread_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Gradients, "alone_from", 100)
    before = set(threading.enumerate())
    yield
    assert {t.name for t in set(threading.enumerate()) - before if t.name.startswith("portwright")} == set()


class Trap(nn.Module):
    """Does something at one of its calls or backward passes; `where` says to which layer it belongs."""

    def __init__(self, at: int, action: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.num_calls, self._at, self._action = 0, at, action

    def forward(self, x: Tensor) -> Tensor:
        self.num_calls += self.training
        return self._action(x) if self.training and self.num_calls == self._at else x


class Trapped(nn.Module):
    def __init__(self, traps: dict[int, Trap], count: int = 5) -> None:
        super().__init__()
        self.blocks, self.head = nets.blocks(count), nn.Linear(nets.WIDTH, 3)
        self.traps = nn.ModuleDict({str(index): trap for index, trap in traps.items()})

    def forward(self, x: Tensor) -> Tensor:
        for index, block in enumerate(self.blocks):
            x = block(x)
            if str(index) in self.traps:
                x = self.traps[str(index)](x)
        scores: Tensor = self.head(x)
        return scores


def trapped(index: int, at: int, action: Callable[[Tensor], Tensor]) -> Case:
    return Case(lambda: Trapped({index: Trap(at, action)}), vector, classes)


def spoil_gradient(x: Tensor) -> Tensor:
    x.register_hook(lambda grad: grad * float("inf"))
    return x


def raise_in_backward(error: BaseException) -> Callable[[Tensor], Tensor]:
    def action(x: Tensor) -> Tensor:
        def hook(_: Tensor) -> None:
            raise error

        x.register_hook(hook)
        return x

    return action


def raise_now(error: BaseException) -> Callable[[Tensor], Tensor]:
    def action(_: Tensor) -> Tensor:
        raise error

    return action


def state_as_it_is(session: StreamingSession) -> dict[str, Tensor]:
    """Also after an error, when the session itself would say so again."""
    session._engine.settle()
    return {shard.name: shard.tensor.clone() for shard in TorchSession.state(session)}


def without_rng(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state.items() if not name.startswith("rng/")}


# -- numbers that are not finite ---------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("overrides", [(CLIPPED,), (CLIPPED, "optimizer.grad_accum_steps=2"), (CLIPPED, "optimizer.optimizer_type=SGD", "optimizer.momentum=0.9")])  # fmt: skip
def test_gradients_that_are_not_finite_are_rolled_back(overrides: tuple[str, ...], precision: str) -> None:
    """In a speculative step, whose first layers were updated already: weights, state and counters are those before it."""
    at = 9 if len(overrides) == 2 and "accum" in overrides[1] else 5
    session = open_streaming(
        make_job(trapped(2, at, spoil_gradient), *overrides, f"runconfig.precision={precision}")
    )
    train(session, 0, 4)
    before = everything(session)
    with pytest.raises(NonFiniteError, match="gradients of step 5 are not finite"):
        train(session, 4, 8)
    assert_same(without_rng(state_as_it_is(session)), without_rng(before))
    with pytest.raises(NonFiniteError):
        everything(session)  # nobody saves without having been told
    session.close()


def test_training_goes_on_from_a_checkpoint_after_a_roll_back() -> None:
    job = make_job(trapped(2, 5, spoil_gradient), CLIPPED)
    plain = open_resident(make_job(Case(lambda: Trapped({}), vector, classes), CLIPPED))
    train(plain, 0, 4)
    session = open_streaming(job)
    train(session, 0, 4)
    shards, counters = list(session.state()), session.counters()
    with pytest.raises(NonFiniteError):
        train(session, 4, 8)
    session.load_state(shards, counters)
    assert train(session, 4, 8) == train(plain, 4, 8)
    assert_same(everything(session), everything(plain))
    session.close()


@pytest.mark.parametrize("overrides", [(), (CLIPPED,), ("optimizer.grad_accum_steps=2",)])
def test_a_loss_that_is_not_finite_names_its_place_and_changes_nothing(overrides: tuple[str, ...]) -> None:
    session = open_streaming(make_job(trapped(1, 9, lambda x: x * float("nan")), *overrides))
    last = 4 if "accum" in str(overrides) else 8
    train(session, 0, last)
    before = everything(session)
    with pytest.raises(NonFiniteError, match="step"):
        train(session, last, last + 4)
    assert_same(without_rng(state_as_it_is(session)), without_rng(before))
    session.close()


def test_a_weight_that_is_not_finite_is_found_before_it_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without clipping nobody looks at gradients; the check at the boundary sees the finished update, however late it is."""
    apply = TorchUpdate.apply

    def slow(self: TorchUpdate, *args: Any, **kwargs: Any) -> None:
        threading.Event().wait(0.02)
        apply(self, *args, **kwargs)

    monkeypatch.setattr(TorchUpdate, "apply", slow)
    session = open_streaming(make_job(trapped(1, 4, spoil_gradient)))
    with pytest.raises(NonFiniteError, match="is not finite after the update of step 4"):
        train(session, 0, 8)
    session.close()


@pytest.mark.parametrize(
    "overrides", [(), ("optimizer.max_gradient_norm=1.0",), ("optimizer.grad_accum_steps=2",)]
)
def test_a_scaled_loss_skips_what_overflows(overrides: tuple[str, ...]) -> None:
    case = Case(lambda: Trapped({3: Trap(2, spoil_gradient), 1: Trap(5, spoil_gradient)}), vector, classes)
    job = make_job(
        case, "optimizer.loss_scaling_factor=dynamic", "optimizer.steps_per_increase=2", *overrides
    )
    resident, streaming = open_resident(job), None
    losses = train(resident, 0, 8)
    streaming = open_streaming(job)
    assert train(streaming, 0, 8) == losses
    assert streaming.counters()["scaler"] == resident.counters()["scaler"]
    assert streaming.counters()["scaler"]["num_skipped"] == 2
    assert_same(without_rng(everything(streaming)), without_rng(everything(resident)))
    streaming.close()


# -- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "overrides", [(), (CLIPPED,), ("optimizer.grad_accum_steps=2", CLIPPED)], ids=" ".join
)
@pytest.mark.parametrize("error", [ValueError("my own"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("make", [raise_now, raise_in_backward])
def test_an_error_of_the_users_model_is_raised_and_the_run_can_be_loaded_again(
    make: Callable[[BaseException], Callable[[Tensor], Tensor]],
    error: BaseException,
    overrides: tuple[str, ...],
) -> None:
    plain = open_resident(make_job(Case(lambda: Trapped({}), vector, classes), *overrides))
    train(plain, 0, 4)
    at = 9 if "accum" in str(overrides) else 5
    session = open_streaming(make_job(trapped(2, at, make(error)), *overrides))
    train(session, 0, 4)
    shards, counters = list(session.state()), session.counters()
    with pytest.raises(type(error)):
        train(session, 4, 8)
    if CLIPPED in overrides or make is raise_now:
        assert_same(without_rng(everything(session)), without_rng({s.name: s.tensor for s in shards}))
    session.load_state(shards, counters)
    assert train(session, 4, 8) == train(plain, 4, 8)
    assert_same(everything(session), everything(plain))
    session.close()


def test_a_step_that_was_broken_off_is_not_saved() -> None:
    """Two layers were updated for good when the error came: these weights are of no step."""
    session = open_streaming(make_job(trapped(0, 3, raise_in_backward(ValueError("my own")))))
    with pytest.raises(ValueError, match="my own"):
        train(session, 0, 4)
    with pytest.raises(UserError, match="ended step 3 when some of its layers were updated and others not"):
        everything(session)
    with pytest.raises(UserError, match="ended step 3"):
        train(session, 3, 4)
    session.close()


@pytest.mark.parametrize("overrides", [(), (CLIPPED,), ("optimizer.grad_accum_steps=2",)], ids=" ".join)
def test_an_error_in_the_update_thread_is_raised_where_the_weights_are_wanted(
    overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    apply, num_calls = TorchUpdate.apply, 0

    def fail(self: TorchUpdate, *args: Any, **kwargs: Any) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 23:
            raise RuntimeError("the optimizer is broken")
        apply(self, *args, **kwargs)

    session = open_streaming(make_job(CASES["stack"], *overrides))
    monkeypatch.setattr(TorchUpdate, "apply", fail)
    with pytest.raises(RuntimeError, match="the optimizer is broken"):
        train(session, 0, 8)
    with pytest.raises(RuntimeError, match="the optimizer is broken"):
        everything(session)
    session.close()


def test_an_error_in_the_fetch_thread_is_raised_where_the_layer_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill, num_calls = Fetcher._fill, 0

    def fail(self: Fetcher, *args: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 17:
            raise RuntimeError("the bus is broken")
        return fill(self, *args)

    monkeypatch.setattr(Fetcher, "_fill", fail)
    session = open_streaming(make_job(CASES["stack"]))
    with pytest.raises(RuntimeError, match="the bus is broken"):
        train(session, 0, 8)
    session.close()


def test_a_session_can_be_closed_in_the_middle_of_a_stretch_and_twice() -> None:
    session = open_streaming(make_job(CASES["stack"], CLIPPED))
    next(iter(session.train(stretch(0, 8))))
    session.close()
    session.close()


# -- what is refused ---------------------------------------------------------------------------------------------


class Outside(nets.Stack):
    """Uses a layer's weight outside the layer."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.blocks[1].net[0].weight.square().sum()


class Penalised(nets.Stack):
    """The gradient of a gradient."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        scores = super().forward(x)
        (grad,) = torch.autograd.grad(scores.sum(), x, create_graph=True)
        return scores + grad.square().sum()


class PartlyShared(nn.Module):
    """A layer that is called twice, and trains each of its weights in one of the calls."""

    def __init__(self, detached: bool = False) -> None:
        super().__init__()
        self.layers, self.head = nets.blocks(4, kind=nets.TwoWays), nn.Linear(nets.WIDTH, 3)
        if detached:
            self.layers[0].first.requires_grad_(False)
        self.stem = nn.Linear(nets.WIDTH, nets.WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[0](self.stem(x), second=False)
        for layer in self.layers[1:]:
            x = layer(x, second=True)
        scores: Tensor = self.head(self.layers[0](x, second=True))
        return scores


class HookedWeight(nets.Stack):
    def __init__(self) -> None:
        super().__init__()
        self.blocks[1].norm.weight.register_post_accumulate_grad_hook(lambda _: None)


@pytest.mark.parametrize("overrides", [(), (CLIPPED,)], ids=" ".join)
@pytest.mark.parametrize("detached", [False, True])
def test_a_layer_that_is_updated_before_backward_is_through_with_it_is_refused(
    detached: bool, overrides: tuple[str, ...]
) -> None:
    session = open_streaming(make_job(Case(lambda: PartlyShared(detached), vector, classes), *overrides))
    with pytest.raises(UserError, match=r"'layers.0' (is called several times|got another gradient)"):
        train(session, 0, 2)
    session.close()


def test_a_hook_that_would_never_run_is_refused() -> None:
    with pytest.raises(UserError, match=r"'blocks.1.norm.weight' has a hook"):
        open_streaming(make_job(Case(HookedWeight, vector, classes)))


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (Outside, r"'blocks.1.net.0.weight' of the streamed layer 'blocks.1' is used outside"),
        (Penalised, r"gradient through the streamed layer 'blocks.\d' is taken with create_graph"),
    ],
)
def test_what_streaming_cannot_do_is_refused(net: type[nn.Module], message: str) -> None:
    session = open_streaming(make_job(Case(net, vector, classes)))
    with pytest.raises(UserError, match=message):
        train(session, 0, 2)
    session.close()


class WritesLater(nets.Stack):
    """Writes into a layer's input from its third step on."""

    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.num_calls += 1
        x = self.blocks[0](x)
        y = self.blocks[1](x)
        if self.num_calls > 2:
            x.mul_(2)
        return super().forward(y + x)


def test_an_input_that_is_written_to_after_the_call_is_refused() -> None:
    session = open_streaming(make_job(Case(WritesLater, vector, classes)))
    with pytest.raises((UserError, RuntimeError), match=r"written|modified by an inplace operation"):
        train(session, 0, 4)
    session.close()


def test_compiling_is_refused() -> None:
    with pytest.raises(UserError, match=r"runconfig.compile and weight streaming"):
        open_streaming(make_job(CASES["stack"], "runconfig.compile=true"))

    def compiled() -> nn.Module:
        net = nets.Stack()
        net.blocks[1]._compiled_call_impl = net.blocks[1].forward  # what compile() leaves
        return net

    with pytest.raises(UserError, match=r"'blocks.1' is compiled"):
        open_streaming(make_job(Case(compiled, vector, classes)))


def own_optimizer(make: Callable[[Any], torch.optim.Optimizer]) -> Any:
    class Model(PyTorchBaseModel):
        def __init__(self, params: dict[str, Any], device: torch.device | None = None) -> None:
            super().__init__(params, model=nets.Stack(), device=device)

        def __call__(self, data: dict[str, Tensor]) -> Tensor:
            return classes(self.model, data)

        def get_optimizer(self) -> torch.optim.Optimizer:
            return make(self.model)

    return Model


def two_groups(net: nets.Stack) -> torch.optim.Optimizer:
    groups = [{"params": net.blocks.parameters(), "lr": 0.02}, {"params": [net.head.weight]}]  # not the bias
    return torch.optim.RMSprop(groups, lr=0.01, momentum=0.9)


@pytest.mark.parametrize(
    "make",
    [two_groups, lambda net: torch.optim.SGD([net.head.weight], lr=0.1), lambda net: torch.optim.AdamW(net.parameters(), lr=torch.tensor(0.01), amsgrad=True)],
)  # fmt: skip
@pytest.mark.parametrize("overrides", [(), ("optimizer.max_gradient_norm=1.0",)], ids=" ".join)
def test_an_optimizer_of_the_users_own(make: Any, overrides: tuple[str, ...]) -> None:
    job = make_job(CASES["stack"], *overrides, model_fn=own_optimizer(make))
    resident = open_resident(job)
    losses = train(resident, 0, 6)
    session = open_streaming(job)
    assert train(session, 0, 6) == losses
    assert_same(without_rng(everything(session)), without_rng(everything(resident)))
    session.close()


class Strange(torch.optim.SGD):
    pass


@pytest.mark.parametrize("kind", [Strange, torch.optim.LBFGS])
def test_an_optimizer_that_may_look_at_everything_is_refused(kind: Any) -> None:
    with pytest.raises(UserError, match=f"{kind.__name__} may need all gradients at once"):
        open_streaming(
            make_job(CASES["stack"], model_fn=own_optimizer(lambda net: kind(net.parameters(), lr=0.1)))
        )


def test_a_run_that_cannot_begin_leaves_nothing_behind() -> None:
    """The fixture looks for threads; the net is as it was."""
    net = nets.Stack()
    with pytest.raises(UserError, match=r"names no module"):
        open_streaming(
            make_job(Case(lambda: net, vector, classes), "runconfig.streaming={layers: [nowhere]}")
        )
    assert all("forward" not in module.__dict__ for module in net.modules())


# -- the net and the run -----------------------------------------------------------------------------------------


def test_a_closed_session_leaves_the_net_to_its_owner() -> None:
    net = nets.Stack()
    session = open_streaming(make_job(Case(lambda: net, vector, classes), CLIPPED))
    train(session, 0, 4)
    wanted = {name: tensor for name, tensor in everything(session).items() if name.startswith("model/")}
    session.close()
    assert all("forward" not in module.__dict__ for module in net.modules())
    assert_same({f"model/{name}": tensor for name, tensor in net.state_dict().items()}, wanted)
    x = torch.randn(2, nets.WIDTH)
    net(x).sum().backward()
    assert all(p.grad is not None for p in net.parameters())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_moves_between_modes(precision: str) -> None:
    job = make_job(CASES["gpt"], "runconfig.precision=" + precision, "optimizer.max_gradient_norm=1.0")
    whole = open_resident(job)
    losses, runs = train(whole, 0, 12), []
    shards: Any = None
    counters: Any = None
    for number, open_session in enumerate((open_resident, open_streaming, open_resident, open_streaming)):
        session = open_session(job)
        if shards is not None:
            session.load_state(shards, counters)
        runs += train(session, 3 * number, 3 * number + 3)
        shards, counters = list(session.state()), session.counters()
        session.close()
    if precision == "fp32":
        assert runs == losses
        assert_same({shard.name: shard.tensor for shard in shards}, everything(whole))
    else:
        assert runs == pytest.approx(losses, rel=0.02)


def test_weights_alone_can_be_loaded() -> None:
    job = make_job(CASES["stack"])
    resident = open_resident(job)
    train(resident, 0, 4)
    shards = [shard for shard in resident.state() if shard.name.startswith("model/")]
    session = open_streaming(make_job(CASES["stack"], mode="eval"))
    session.load_state(shards, None)
    assert session.evaluate(None) == resident.evaluate(None)
    session.close()


def test_evaluation_is_in_eval_mode_without_gradients_and_keeps_the_order_of_training() -> None:
    job = make_job(CASES["unet"], "runconfig.streaming={slots: 2}")
    resident, session = open_resident(job), open_streaming(job)
    assert session.evaluate(1) == resident.evaluate(1)
    losses = train(resident, 0, 3)
    again = open_streaming(job)
    assert train(again, 0, 2) == losses[:2]
    again.evaluate(None)
    assert train(again, 2, 3) == losses[2:]
    session.close()
    again.close()


def test_the_engine_says_what_it_keeps_on_the_device() -> None:
    net = nets.Stack(6)
    from portwright.job.execution import StreamingSection

    engine = Streaming(net, torch.device("cpu"), StreamingSection(slots=2), print)
    one = engine.units[0].num_bytes
    assert engine.device_bytes["weight slots"] == 2 * one
    assert engine.device_bytes["weights outside the layers"] == sum(
        4 * p.numel() for p in net.head.parameters()
    )
    engine.close()
