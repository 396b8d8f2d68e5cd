"""legalise: everything torch's becomes legal in place, and nothing else changes."""

from __future__ import annotations

import copy
import inspect
import io
import json
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from unit.layers.legal.composite_models import COMPOSITES, Tagger, UNet
from unit.layers.legal.equality import IS_OLD, assert_equal_modules
from unit.layers.legal.legal_cases import CASES, Case, SubclassedLSTM

from portwright.errors import UnsupportedError, UserError
from portwright.layers import legal
from portwright.layers.legal.redirects import _FUNCTIONS, LAYERS, redirects_for
from portwright.legal_forms import FORMS

pytestmark = [
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel"),
    pytest.mark.filterwarnings("ignore:.*torch.cpu.amp.autocast:FutureWarning"),  # torch's own, in checkpoint
]
ROUNDED_BY_TORCH = {"CELU", "Hardsigmoid"}
"""Torch keeps constants of these in single precision even for double."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_legalised_model_equals_the_original(case: Case) -> None:
    if IS_OLD and case.name == "ChannelShuffle":
        pytest.skip("this torch has no backward of it")
    torch.manual_seed(0)
    original = case.make().double()
    legalised = legal.legalise(copy.deepcopy(original))
    assert list(legalised.model.state_dict()) == list(original.state_dict())
    batch = [x.double() if x.is_floating_point() else x for x in case.batch()]
    rtol = 1e-6 if case.name in ROUNDED_BY_TORCH else None
    assert_equal_modules(original, legalised.model, *batch, rtol=rtol)
    assert legalised.swaps, "nothing was reported"
    for swap in legalised.swaps:
        assert swap.form.startswith("legal.")
        assert hasattr(legal, swap.form.removeprefix("legal.")) or swap.form == "legal.checkpoint"


@pytest.mark.parametrize(("make", "batch"), COMPOSITES, ids=lambda value: getattr(value, "__name__", ""))
def test_composite_models(make, batch) -> None:
    torch.manual_seed(0)
    original = make().double()
    legalised = legal.legalise(copy.deepcopy(original))
    before = {name: id(p) for name, p in legalised.model.named_parameters()}
    for step in range(2):
        assert_equal_modules(original, legalised.model, *batch, seed=step)
    assert {name: id(p) for name, p in legalised.model.named_parameters()} == before
    original.eval(), legalised.model.eval()
    torch.testing.assert_close(legalised.model(*batch), original(*batch))
    fresh = make().double()
    fresh.load_state_dict(legalised.model.state_dict(), strict=True)
    legalised.model.load_state_dict(fresh.state_dict(), strict=True)


def test_swaps_name_module_form_and_line() -> None:
    legalised = legal.legalise(UNet())
    assert [(s.module, s.what, s.form, s.line) for s in legalised.swaps] == [
        ("up", "nn.Upsample", "legal.Upsample", 0),
        ("act", "nn.PReLU", "legal.PReLU", 0),
    ]
    for _ in range(2):
        legalised.model(torch.rand(1, 3, 8, 8), torch.rand(1, 1, 8, 8))
    calls = [s for s in legalised.swaps if s.line]
    assert [s.what for s in calls] == ["F.interpolate", "F.binary_cross_entropy"]
    where = inspect.getsourcefile(UNet) or ""
    source = Path(where).read_text().splitlines()
    assert all(s.file == where and s.what in source[s.line - 1] for s in calls)
    report = legalised.report()
    assert report.count("\n") == 4
    assert f"{where}:{calls[0].line}" in report
    read = json.loads(legalised.as_json())
    assert read["target"] == "csx"
    assert [swap["what"] for swap in read["swaps"]] == [s.what for s in legalised.swaps]


def test_a_call_in_a_submodule_is_reported_with_its_path() -> None:
    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flip(1)

    legalised = legal.legalise(nn.Sequential(nn.Identity(), nn.ModuleDict({"deep": Inner()})["deep"]))
    legalised.model(torch.rand(2, 3))
    assert [(s.module, s.what) for s in legalised.swaps] == [("1", "Tensor.flip")]


def test_a_model_that_needs_nothing_gets_nothing() -> None:
    legalised = legal.legalise(nn.Sequential(nn.Conv2d(2, 2, 3), nn.ReLU(), nn.BatchNorm2d(2)))
    legalised.model(torch.rand(2, 2, 5, 5))
    assert legalised.swaps == ()
    assert "Nothing" in legalised.report()


def test_only_refused_calls_are_redirected() -> None:
    class Calls(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = (
                x.flip(0).roll(1, 0).sum((0, 1), keepdim=True)
                + x.tril()
                + x[[0, 1, 0]]
                + F.pad(x, (1, 1))[:, 1:-1]
            )
            return x.norm() + F.conv2d(x[None, None], x[None, None])

    legalised = legal.legalise(Calls())
    legalised.model(torch.rand(3, 3))
    assert legalised.swaps == ()


def test_twice_is_once() -> None:
    model = UNet()
    first = legal.legalise(model)
    kind = type(model)
    second = legal.legalise(first.model)
    assert second.model is model
    assert type(model) is kind
    model(torch.rand(1, 3, 8, 8), torch.rand(1, 1, 8, 8))
    assert first.swaps == second.swaps
    assert len(first.swaps) == 4


def test_a_part_made_legal_before_reports_to_the_whole() -> None:
    part = UNet()
    inputs = torch.rand(1, 3, 8, 8), torch.rand(1, 1, 8, 8)
    legal.legalise(part).model(*inputs)

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = part

        def forward(self, *inputs: Tensor) -> Tensor:
            return self.part(*inputs)

    whole = legal.legalise(Whole())
    whole.model(*inputs)
    assert [(s.module, s.what) for s in whole.swaps] == [
        ("part.up", "nn.Upsample"), ("part.act", "nn.PReLU"), ("part", "F.interpolate"), ("part", "F.binary_cross_entropy"),
    ]  # fmt: skip


def test_a_forward_set_on_the_instance() -> None:
    model = nn.Identity()
    model.forward = lambda x: x.flip(1)
    legalised = legal.legalise(model)
    legalised.model(torch.rand(2, 3))
    assert [s.what for s in legalised.swaps] == ["Tensor.flip"]


def test_the_root_itself_may_be_torchs() -> None:
    lstm = nn.LSTM(3, 4)
    weight = lstm.weight_ih_l0
    legalised = legal.legalise(lstm)
    assert legalised.model is lstm
    assert type(lstm) is legal.LSTM
    assert lstm.weight_ih_l0 is weight
    assert legalised.swaps[0].module == ""
    assert isinstance(lstm, nn.LSTM)


def test_what_a_module_carries_stays() -> None:
    model = nn.Sequential(nn.Conv1d(2, 2, 3, dtype=torch.float64).eval())
    seen: list[str] = []
    model[0].register_forward_hook(lambda *_: seen.append("hook"))
    model[0].note = "mine"
    legal.legalise(model)
    assert not model[0].training
    assert model[0].note == "mine"
    assert model(torch.rand(1, 2, 5, dtype=torch.float64)).dtype == torch.float64
    assert seen == ["hook"]


def test_shared_modules_are_swapped_once() -> None:
    shared = nn.Conv1d(2, 2, 3, padding=1)
    legalised = legal.legalise(nn.Sequential(shared, nn.ReLU(), shared))
    assert len(legalised.swaps) == 1
    assert legalised.model[0] is legalised.model[2]


def test_a_users_subclass_keeps_its_forward() -> None:
    torch.manual_seed(0)
    original = nn.Sequential(SubclassedLSTM(3, 4))
    ours = legal.legalise(copy.deepcopy(original)).model
    assert type(ours[0]).__name__ == "SubclassedLSTM"
    assert isinstance(ours[0], SubclassedLSTM)
    x = torch.rand(5, 2, 3)
    torch.testing.assert_close(ours(x), original(x))


def test_nothing_is_left_behind_after_an_exception() -> None:
    class Breaks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x.flip(1)
            raise KeyboardInterrupt

    legalised = legal.legalise(Breaks())
    checkpoint = torch.utils.checkpoint.CheckpointFunction
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            legalised.model(torch.rand(2, 2))
        assert torch._C._len_torch_function_stack() == 0
        assert torch.utils.checkpoint.CheckpointFunction is checkpoint
    assert len(legalised.swaps) == 1


def test_a_model_that_calls_itself() -> None:
    class Recursive(nn.Module):
        def forward(self, x: Tensor, depth: int = 2) -> Tensor:
            return self(x.flip(1), depth - 1) + x if depth else x.flip(1)

    original = Recursive()
    x = torch.rand(2, 3)
    expected = original(x)
    legalised = legal.legalise(original)
    torch.testing.assert_close(legalised.model(x), expected)
    assert torch._C._len_torch_function_stack() == 0


def test_deepcopy_pickle_and_state_dict() -> None:
    legalised = legal.legalise(UNet())
    inputs = torch.rand(1, 3, 8, 8), torch.rand(1, 1, 8, 8)
    expected = legalised.model(*inputs)
    again = copy.deepcopy(legalised.model)
    torch.testing.assert_close(again(*inputs), expected)
    assert again.out.weight is not legalised.model.out.weight
    stream = io.BytesIO()
    torch.save(legalised.model.state_dict(), stream)
    stream.seek(0)
    fresh = UNet()
    fresh.load_state_dict(torch.load(stream, weights_only=True))
    torch.testing.assert_close(legal.legalise(fresh).model(*inputs), expected)


def test_a_whole_model_survives_being_copied_by_its_reduction() -> None:
    model = legal.legalise(nn.Sequential(SubclassedLSTM(3, 4), nn.Conv1d(5, 5, 1))).model
    make, arguments, state = model.__reduce_ex__(4)
    revived = make(*arguments)
    revived.__dict__.update(state)
    x = torch.rand(2, 5, 3)
    torch.testing.assert_close(revived(x), model(x))


def test_under_fake_tensors() -> None:
    with FakeTensorMode():
        model = legal.legalise(UNet()).model
        loss = model(torch.rand(1, 3, 8, 8), torch.rand(1, 1, 8, 8))
        loss.backward()
        assert model.out.weight.grad.shape == (1, 8, 1, 1)
        tagged = legal.legalise(Tagger()).model(torch.zeros(2, 6, dtype=torch.int64))
        assert tagged.shape == (2, 6, 4)


def test_inside_another_function_mode() -> None:
    seen = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    model = legal.legalise(
        nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv1d(1, 1, 1))[:1]
    ).model
    with Watch():
        model(torch.rand(1, 1, 2, 2))
    assert torch.matmul in seen
    assert F.interpolate not in seen


def test_a_wrapped_function_is_known_by_what_it_wraps(monkeypatch) -> None:
    """The SDK puts wrappers in torch's modules, before or after we are imported."""
    import functools

    original = F.interpolate

    @functools.wraps(original)
    def wrapper(*args, **kwargs):
        return original(*args, **kwargs)

    class Calls(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.interpolate(x, scale_factor=2.0)

    monkeypatch.setattr(F, "interpolate", wrapper)
    for clear in (False, True):
        if clear:
            redirects_for.cache_clear()
        legalised = legal.legalise(Calls())
        legalised.model(torch.rand(1, 1, 4))
        assert [s.what for s in legalised.swaps] == ["F.interpolate"]
    redirects_for.cache_clear()


def test_threads_do_not_disturb_each_other() -> None:
    model = legal.legalise(UNet()).model
    inputs = torch.rand(1, 3, 8, 8), torch.rand(1, 1, 8, 8)
    expected = model(*inputs)
    results: list[Tensor] = []
    threads = [threading.Thread(target=lambda: results.append(model(*inputs))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for result in results:
        torch.testing.assert_close(result, expected)


def test_a_loss_outside_the_forward() -> None:
    legalised = legal.legalise(nn.Linear(3, 3))
    with legalised.redirecting():
        F.smooth_l1_loss(legalised.model(torch.rand(2, 3)), torch.rand(2, 3))
    assert [s.what for s in legalised.swaps] == ["F.smooth_l1_loss"]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.flip(1), lambda x: x.flip(3), lambda x: x.roll(6, 3), lambda x: x.roll(0, 1), lambda x: x[:, [0, 1]],
        lambda x: x[:, [0]], lambda x: x[:, :, [0, 2]], lambda x: x[:, :, [1, 1]], lambda x: F.pad(x, (0, 0, 0, 0), "reflect"), lambda x: F.pad(x, (0, -1, 0, 0), "replicate"),
        lambda x: F.interpolate(x, size=(6, 3)), lambda x: F.interpolate(x, size=(3, 3)), lambda x: F.interpolate(x, scale_factor=1.0, mode="bilinear"),
        lambda x: x.logcumsumexp(0), lambda x: x.nan_to_num(), lambda x: x.rot90(4, (1, 2)), lambda x: x.index_select(1, torch.tensor([0, 1])),
        lambda x: x.cummax(0).values, lambda x: F.channel_shuffle(x, 2),
    ],
)  # fmt: skip
def test_where_torch_gives_a_copy_so_do_we(call) -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = call(x)
            y += 1.0
            return x * 1.0

    x = torch.rand(1, 2, 6, 3)
    before = x.clone()
    legalised = legal.legalise(Writes())
    assert torch.equal(legalised.model(x), before)


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.diagonal().fill_(0.0), lambda x: x.diagonal()[1:].zero_(), lambda x: x.unfold(0, 2, 1).mul_(2),
        lambda x: x.diagonal().__setitem__(0, 1.0), lambda x: x.diagonal().__iadd__(1.0),
    ],
)  # fmt: skip
def test_where_torch_gives_a_view_a_write_is_refused(write) -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.clone()
            write(y)
            return y

    with pytest.raises(UnsupportedError, match="a view of the input in torch"):
        legal.legalise(Writes()).model(torch.rand(3, 3))


def test_wrong_arguments_still_raise() -> None:
    class Calls(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flip(7)

    with pytest.raises(IndexError):
        legal.legalise(Calls()).model(torch.rand(2, 2))


@pytest.mark.parametrize("target", ["cxs", "", "wafer"])
def test_an_unknown_target(target) -> None:
    with pytest.raises(UserError, match="Valid: csx"):
        legal.legalise(nn.Linear(2, 2), target)


def test_what_cannot_be_legalised() -> None:
    with pytest.raises(UserError, match=r"nn\.Module"):
        legal.legalise(lambda x: x)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("op", "form"),
    [
        ("aten.flip.default", "legal.flip"), ("aten::flip", "legal.flip"), ("torch.aten.flip", "legal.flip"),
        ("torch.flip", "legal.flip"), ("torch.ops.aten.one_hot.default", "legal.one_hot"), ("nn.LSTM", "legal.LSTM"),
        ("torch.nn.LSTM", "legal.LSTM"), ("torch.nn.functional.pad", "legal.pad"), ("aten.lstm.input", "legal.LSTM"),
        ("aten.upsample_bilinear2d_backward.default", "legal.interpolate"), ("aten.masked_select.default", "legal.masked_mean"),
        ("aten._fft_r2c.default", "legal.rfft_parts"), ("aten.convolution.default", "legal.Conv2d"),
    ],
)  # fmt: skip
def test_cures(op, form) -> None:
    assert form in legal.cure_for(op, "csx")


def test_no_cure() -> None:
    assert legal.cure_for("aten.nonzero.default", "csx") is None
    assert legal.cure_for("aten.flip.default", "cpu") is None
    with pytest.raises(UserError):
        legal.forms_for("cpu")
    assert "legal.flip" in legal.forms_for("csx")["aten.flip"]


def test_the_table_of_forms_and_the_code_agree() -> None:
    names = [form.name for form in FORMS]
    assert len(names) == len(set(names))
    known = {*_FUNCTIONS, *(f"nn.{kind.__name__}" for kind in LAYERS)}
    by_other_means = {"F.upsample", "torch.utils.checkpoint.checkpoint"}
    named = {name for form in FORMS for name in form.replaces}
    assert named - known - by_other_means == set()
    assert known - named == set()
    for form in FORMS:
        assert hasattr(legal, form.name), form.name
        assert f"`{form.name}`" in legal.forms_table()


def test_every_form_has_a_case_that_the_front_end_is_asked_about() -> None:
    used = set()
    for case in CASES:
        legalised = legal.legalise(case.make())
        legalised.model(*case.batch())
        used |= {swap.what for swap in legalised.swaps}
    assert [form.name for form in FORMS if form.replaces and not used & set(form.replaces)] == []


def test_torch_compile_runs_a_legalised_model() -> None:
    model = legal.legalise(UNet()).model
    inputs = torch.rand(1, 3, 8, 8), torch.rand(1, 1, 8, 8)
    expected = model(*inputs)
    torch.testing.assert_close(torch.compile(model, backend="eager")(*inputs), expected)
