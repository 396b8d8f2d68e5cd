"""Each rule of SambaFlow broken on purpose has its error, which says what was received."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from unit.emulate.sambaflow_case import Case, Classifier, adamw, sgd, start_again

from portwright.emulate.sambaflow import _state, samba
from portwright.emulate.sambaflow._refusal import SambaFlowError
from portwright.emulate.sambaflow.samba import utils
from portwright.errors import PortwrightError

pytestmark = pytest.mark.filterwarnings("ignore:TF32 acceleration")  # of torch, when mkldnn is switched off


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    start_again()
    yield
    start_again()


# -- compile ---------------------------------------------------------------------------------------------------


def test_an_unconverted_model_is_refused(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.model, case.optimizer = Classifier(), None
    with pytest.raises(SambaFlowError, match=r"not converted.*from_torch_model_"):
        case.compile()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda image, label: (samba.to_torch(image), label), "tensor 0 is a Tensor, not a SambaTensor"),
        (
            lambda image, label: (image, samba.from_torch_tensor(samba.to_torch(label), batch_dim=0)),
            "tensor 1.*has no name",
        ),
        (
            lambda image, label: (image, samba.from_torch_tensor(samba.to_torch(label), name="image")),
            "two tensors are named 'image'",
        ),
        (lambda image, label: (image.double(), label), "float64"),
        (lambda image, label: (), "no tensor was given"),
        (
            lambda image, label: (image, samba.randint(4, (4,), name="label", batch_dim=0)),
            "image: 6, label: 4",
        ),
    ],
)
def test_inputs_need_names_and_one_batch(
    change: Callable[[Any, Any], Any], said: str, tmp_path: Path
) -> None:
    case = Case(tmp_path)
    case.inputs = change(*case.inputs)
    with pytest.raises(SambaFlowError, match=said):
        case.compile()


@pytest.mark.parametrize(
    ("config", "works"),
    [
        ({}, False),
        ({"arch": "sn10"}, True),
        ({"arch": "sn40l"}, True),
        ({"num_tiles": 4}, True),
        ({"num_tiles": 8}, False),
    ],
)
def test_an_sn30_wants_an_even_batch(config: dict[str, Any], works: bool, tmp_path: Path) -> None:
    case = Case(tmp_path, batch=3, config=config)
    if works:
        assert Path(case.compile()).is_file()
    else:
        with pytest.raises(SambaFlowError, match=r"batch size is 3.*even.*Use 4"):
            case.compile()


def test_the_system_can_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORTWRIGHT_RDU_SYSTEM", "sn40l")
    Case(tmp_path, batch=3).compile()
    monkeypatch.setenv("PORTWRIGHT_RDU_SYSTEM", "sn99")
    with pytest.raises(SambaFlowError, match=r"unknown system 'sn99'.*Valid: sn10, sn30, sn40l"):
        Case(tmp_path).compile()


def test_torchs_own_optimizers_are_refused(tmp_path: Path) -> None:
    case = Case(tmp_path, optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(SambaFlowError, match=r"torch.optim.sgd.SGD.*samba.optim.SGD"):
        case.compile()


def test_an_optimizer_of_another_model_and_a_weight_with_two_are_refused(tmp_path: Path) -> None:
    case = Case(tmp_path, optimizer=lambda model: sgd(nn.Linear(2, 2)))
    with pytest.raises(SambaFlowError, match="no weight of this model"):
        case.compile()
    case = Case(tmp_path, optimizer=lambda model: [sgd(model), sgd(model)])
    with pytest.raises(SambaFlowError, match=r"two optimizers have the weight 'first.weight'"):
        case.compile()


def test_samba_has_no_adam(tmp_path: Path) -> None:
    with pytest.raises(SambaFlowError, match=r"samba.optim.Adam is not emulated.*AdamW with weight_decay=0"):
        samba.optim.Adam(nn.Linear(2, 2).parameters(), lr=0.1)


@pytest.mark.parametrize("options", [{"lr": -1.0}, {"lr": "a"}, {"lr": True}, {"weight_decay": float("nan")}])
def test_an_optimizers_settings_are_numbers(options: dict[str, Any]) -> None:
    for make in (sgd, adamw):
        with pytest.raises(SambaFlowError, match=next(iter(options))):
            make(nn.Linear(2, 2), **options)
    with pytest.raises(SambaFlowError, match="betas"):
        adamw(nn.Linear(2, 2), betas=(0.9, 1.0))


class _Gelu(Classifier):
    def forward(self, image: Tensor, label: Tensor) -> Any:
        logits = self.last(nn.functional.gelu(self.first(image)))
        return self.criterion(logits, label), logits


def test_ops_are_judged_in_the_precision_that_they_run_in(tmp_path: Path) -> None:
    """SambaFlow's documentation has gelu in BF16 alone."""
    with pytest.raises(SambaFlowError, match=r"aten\.gelu.*not supported on float32.*Use one of bfloat16"):
        Case(tmp_path, _Gelu).compile()
    assert Path(Case(tmp_path, _Gelu, config={"graphamp_preset": None}).compile()).is_file()


class _Sorts(Classifier):
    def forward(self, image: Tensor, label: Tensor) -> Any:
        return super().forward(image.sort(dim=1).values, label)


class _Reads(Classifier):
    def forward(self, image: Tensor, label: Tensor) -> Any:
        return super().forward(image if image.sum() > 0 else -image, label)


def test_an_op_that_is_not_public_is_refused_by_name_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SambaFlowError, match=r"aten.sort.*test_sambaflow_rules.py:\d+.*conservative"):
        Case(tmp_path, _Sorts).compile()
    assert Path(Case(tmp_path, _Sorts, config={"unlisted_ops": "warn"}).compile()).is_file()
    monkeypatch.setenv("PORTWRIGHT_RDU_UNLISTED_OPS", "maybe")
    with pytest.raises(SambaFlowError, match=r"--unlisted-ops is 'maybe'.*refuse, warn"):
        Case(tmp_path).compile()


@pytest.mark.parametrize("unlisted", ["refuse", "warn"])
def test_a_value_read_while_tracing_is_refused_always(unlisted: str, tmp_path: Path) -> None:
    with pytest.raises(PortwrightError, match=r"test_sambaflow_rules.py:\d+"):
        Case(tmp_path, _Reads, config={"unlisted_ops": unlisted}).compile()


@pytest.mark.parametrize(
    ("options", "config", "said"),
    [
        ({}, {"graphamp_preset": "mp1"}, "mp1 is not emulated"),
        ({}, {"mapping": "spatial"}, "spatial"),
        ({}, {"num_spatial_batches": 2}, "spatial"),
        ({}, {"inference": True}, "an optimizer was given, and inference"),
        ({"inference": True}, {}, "an optimizer was given, and inference"),
        ({}, {"pef_name": "a/b"}, "--pef-name is 'a/b'"),
        ({}, {"pef_name": ".."}, "--pef-name is"),
    ],
)
def test_what_cannot_be_compiled(
    options: dict[str, Any], config: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(SambaFlowError, match=said):
        Case(tmp_path, config=config).compile(**options)


def test_float64_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SambaFlowError, match=r"'first.weight' is torch.float64"):
        Case(tmp_path, lambda: Classifier().double()).compile()


# -- run -------------------------------------------------------------------------------------------------------


def test_run_needs_a_traced_program(tmp_path: Path) -> None:
    case = Case(tmp_path)
    for call in (
        lambda: samba.session.run(case.inputs),
        lambda: samba.session.to_cpu(case.model),
        lambda: samba.session.get_tensors_by_name(["x"]),
    ):
        with pytest.raises(SambaFlowError, match="no PEF was loaded"):
            call()
    case.compile()  # compiling alone puts nothing on the device
    with pytest.raises(SambaFlowError, match="no PEF was loaded"):
        samba.session.run(case.inputs)
    with pytest.raises(SambaFlowError, match="trace_graph got no PEF"):
        case.trace(pef="")


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (lambda c: c.draw(4), r"'image' is float32\[4, 8\], compiled for float32\[6, 8\]"),
        (lambda c: (c.inputs[0].bfloat16(), c.inputs[1]), r"'image' is bfloat16"),
        (lambda c: (c.inputs[0], c.inputs[1].int()), r"'label' is int32\[6\], compiled for int64\[6\]"),
        (lambda c: c.inputs[:1], "'label' that was compiled for is missing"),
        (lambda c: (*c.inputs, samba.ones(6, name="more")), "'more' was not compiled for"),
        (lambda c: c.plain(), "not a SambaTensor"),
    ],
)
def test_inputs_must_be_those_that_were_compiled_for(
    inputs: Callable[[Case], Any], said: str, tmp_path: Path
) -> None:
    case = Case(tmp_path)
    case.trace()
    with pytest.raises(SambaFlowError, match=said):
        case.run(inputs=inputs(case))


def test_inputs_are_matched_by_name_whatever_their_order(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.trace()
    image, label = case.inputs
    expected = case.run("fwd")[0]
    assert case.run("fwd", inputs=[label, image])[0].equal(expected)
    assert case.run("fwd", inputs={"label": label, "image": image})[0].equal(expected)


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ([["bckwd"]], "'bckwd' was asked for before 'fwd'"),
        ([["opt"]], "'opt' was asked for before 'bckwd'"),
        ([["fwd", "opt"]], "'opt' was asked for before 'bckwd'"),
        ([["fwd"], ["opt"]], "'opt' was asked for before 'bckwd'"),
        ([["fwd", "bckwd"], ["opt"], ["opt"]], "'opt' was asked for before 'bckwd'"),
        ([["fwd", "bckwd", "opt"], ["bckwd"]], "'bckwd' was asked for before 'fwd'"),
        ([["bckwd", "fwd"]], "asked for as bckwd, fwd"),
        ([["fwd", "fwd"]], "asked for as fwd, fwd"),
        ([["backward"]], "unknown section 'backward'.*Did you mean 'bckwd'"),
        ([["fwd", "bckwd", "gradnorm", "opt"]], "has no gradnorm"),
    ],
)
def test_sections_have_an_order(calls: list[list[str]], said: str, tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.trace()
    for sections in calls[:-1]:
        case.run(*sections)
    with pytest.raises(SambaFlowError, match=said):
        case.run(*calls[-1])


def test_no_section_is_refused_and_capitals_are_taken(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.trace()
    with pytest.raises(SambaFlowError, match="section_types is empty"):
        samba.session.run(case.inputs, section_types=[])
    case.run("FWD", "BCKWD", "OPT")


def test_backward_must_be_of_the_forward_before_it(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.trace()
    case.run("fwd")
    with pytest.raises(SambaFlowError, match="other inputs"):
        case.run("bckwd", inputs=case.draw(seed=2))


def test_opt_needs_gradnorm_where_gradients_are_clipped(tmp_path: Path) -> None:
    case = Case(tmp_path, optimizer=lambda model: adamw(model, max_grad_norm=1.0))
    case.trace()
    with pytest.raises(SambaFlowError, match="without 'gradnorm'"):
        case.run("fwd", "bckwd", "opt")
    case.run("FWD", "BCKWD", "GRADNORM", "OPT")
    case.run()


def test_an_inference_pef_has_no_backward(tmp_path: Path) -> None:
    case = Case(tmp_path, optimizer=None)
    case.trace()
    assert len(case.run(lr=None)) == 2
    with pytest.raises(SambaFlowError, match=r"'bckwd'.*compiled for inference"):
        case.run("fwd", "bckwd", lr=None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"learning_rate": 0.1}, "'learning_rate', which this program has not.*lr"),
        ({"lr": float("nan")}, "is nan"),
        ({"lr": "0.1"}, "is '0.1'"),
        ({"lr": True}, "is True"),
        ({"lr": 0.1, "betas": 0.9}, "'betas'"),
    ],
)
def test_hyperparameters_are_those_of_the_program(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.trace()
    with pytest.raises(SambaFlowError, match=said):
        case.run(hyperparam_dict=given)


def test_outputs_are_those_of_the_program(tmp_path: Path) -> None:
    case = Case(tmp_path)
    loss, logits = case.trace()
    assert samba.session.run(case.inputs, logits, section_types=["fwd"])[0].shape == (6, 4)
    with pytest.raises(SambaFlowError, match="named 'other'"):
        samba.session.run(case.inputs, [samba.ones(1, name="other")])
    assert loss.sn_name != logits.sn_name


def test_several_processes_are_not_emulated(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.trace()
    with pytest.raises(SambaFlowError, match="data_parallel=True"):
        case.run(data_parallel=True)
    case.run(data_parallel=False, reduce_on_rdu=True)


@pytest.mark.parametrize("options", [{"mapping": "spatial"}, {"data_parallel_mode": "other"}])
def test_what_tracing_does_not_take(options: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(SambaFlowError, match="not emulated"):
        Case(tmp_path).trace(**options)


# -- the host --------------------------------------------------------------------------------------------------


def test_the_host_neither_differentiates_nor_steps(tmp_path: Path) -> None:
    case = Case(tmp_path)
    with pytest.raises(SambaFlowError, match=r"backward\(\) reached a weight"):
        case.model(*case.plain())[0].backward()
    with pytest.raises(SambaFlowError, match=r"SGD.step\(\) was called on the host"):
        case.optimizer.step()
    case.optimizer.zero_grad()  # harmless


def test_the_command_test_may_compare_with_the_host(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.trace()
    _state.command = "test"
    case.model(*case.plain())[0].mean().backward()
    gold = case.model.first.weight.grad
    case.run()
    utils.assert_close(gold, case.model.first.weight.sn_grad, "first__weight__grad", threshold=1e-5)
    with pytest.raises(AssertionError, match="largest difference"):
        utils.assert_close(gold + 1, case.model.first.weight.sn_grad, "first__weight__grad")


def test_a_loss_of_the_host_may_be_differentiated_up_to_the_outputs(tmp_path: Path) -> None:
    case = Case(tmp_path, optimizer=None)
    case.trace()
    output = samba.to_torch(case.run(lr=None)[1]).requires_grad_()
    output.sum().backward()
    assert output.grad is not None


def test_another_model_is_not_on_the_device(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.trace()
    with pytest.raises(SambaFlowError, match="not on the device"):
        samba.session.to_cpu(Classifier())


def test_unknown_names_of_the_session_say_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match="Did you mean 'to_cpu'"):
        samba.session.to_cpus  # noqa: B018
    with pytest.raises(SambaFlowError, match="several graphs"):
        samba.session.add_graph(1)
    Case(tmp_path).trace()
    with pytest.raises(
        SambaFlowError, match=r"no tensor 'classifier__first__weigh'.*classifier__first__weight"
    ):
        samba.session.get_tensors_by_name(["classifier__first__weigh"])
