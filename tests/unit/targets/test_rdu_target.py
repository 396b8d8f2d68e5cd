"""The RDU target: what params.yaml and the command line say, in SambaFlow's words, and what it refuses by name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from conformance import contract

from portwright.discover import get_target
from portwright.errors import ExitStatus, NonFiniteError, PortwrightError, UnsupportedError, UserError
from portwright.job.arguments import parse_arguments
from portwright.target import CompilerSession, JobSpec
from portwright.targets.rdu.program import name_tensors, refusals
from portwright.targets.rdu.section import RduSection, read_settings
from portwright.targets.rdu.session import RduBackend, RduSession

pytestmark = pytest.mark.filterwarnings("ignore:TF32 acceleration")  # of torch, when mkldnn is switched off
FC_MNIST = contract.FC_MNIST


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # PEFs of jobs without a folder go here


def job(*overrides: str, **section: Any) -> JobSpec:
    made = contract.make_job("train", *overrides)
    made.params.values["rdu"] = {"precision": "fp32", **section}
    return made


def open_session(made: JobSpec, notes: list[str] | None = None, **flags: Any) -> RduSession:
    return RduBackend({"emulate": True, **flags}, (notes if notes is not None else []).append).open(made)


def settings(made: JobSpec, notes: list[str] | None = None, *, num_processes: int = 1, is_emulated: bool = True, **flags: Any) -> Any:  # fmt: skip
    return read_settings(
        made,
        flags,
        (notes if notes is not None else []).append,
        num_processes=num_processes,
        is_emulated=is_emulated,
    )


# -- settings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "override", "chosen"),
    [
        ("bf16", None, "bf16"),
        ("fp32", None, "fp32"),
        (None, "fp32", "fp32"),
        (None, "bf16", "bf16"),
        (None, None, "bf16"),
    ],
)
def test_precision_is_bf16_unless_said_otherwise(
    section: str | None, override: str | None, chosen: str
) -> None:
    notes: list[str] = []
    overrides = [] if override is None else [f"runconfig.precision={override}"]
    assert settings(job(*overrides, precision=section), notes).precision == chosen
    assert any("bf16, SambaFlow's default" in note for note in notes) == (
        section is None and override is None
    )


def test_contradicting_precisions_and_fp16_are_refused() -> None:
    with pytest.raises(UserError, match=r"rdu.precision is fp32 and runconfig.precision bf16"):
        settings(job("runconfig.precision=bf16"))
    with pytest.raises(UserError, match="fp16: an RDU computes in bf16 or fp32"):
        settings(job("runconfig.precision=fp16", precision=None))


def test_the_compile_command_is_in_the_vendors_words(tmp_path: Path) -> None:
    made = settings(job(num_tiles=4, mode="o1", system="sn40l"), compile_dir=tmp_path)
    words = made.compile_words("mlp")
    assert words[:5] == ["compile", "--pef-name=mlp", f"--output-folder={tmp_path}", "--num-tiles=4", "-o1"]
    assert "--graphamp-preset=mp0" in words
    assert "--arch=sn40l" in words
    real = settings(job(precision="bf16", data_parallel=True), is_emulated=False).compile_words("mlp")
    assert not any(word.startswith(("--arch", "--unlisted", "--graphamp")) for word in real)
    assert "--data-parallel" in real


def test_several_processes_need_data_parallel_and_a_device() -> None:
    with pytest.raises(UnsupportedError, match="several RDUs are not emulated"):
        settings(job(data_parallel=True))
    with pytest.raises(UserError, match=r"2 processes without rdu.data_parallel"):
        settings(job(), num_processes=2, is_emulated=False)
    assert settings(job(data_parallel=True), num_processes=2, is_emulated=False).section.data_parallel


def test_a_pef_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"rdu.pef: 'none.pef' does not exist"):
        settings(job(pef="none.pef"))
    (tmp_path / "a.pef").write_text("")
    assert settings(job(), pef=str(tmp_path / "a.pef")).pef == tmp_path / "a.pef"


@pytest.mark.parametrize("name", ["a/b", "..", "."])
def test_a_pef_has_a_name_and_not_a_path(name: str) -> None:
    with pytest.raises(UserError, match="--pef-name is"):
        settings(job(), pef_name=name)


@pytest.mark.parametrize(
    "bad", [{"system": "sn99"}, {"num_tiles": 0}, {"mode": "O9"}, {"pef_name": "a/b"}, {"nonsense": 1}]
)
def test_a_bad_section_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        RduSection.model_validate(bad)


def test_reducing_on_rdus_needs_several() -> None:
    with pytest.raises(
        ValueError, match=r"data_parallel is false; set data_parallel: true, or leave reduce_on_rdu out"
    ):
        RduSection.model_validate({"reduce_on_rdu": True})
    assert RduSection.model_validate({"reduce_on_rdu": True, "data_parallel": True}).reduce_on_rdu


def test_tensors_get_names_from_their_keys_or_places() -> None:
    one = torch.ones(1)
    assert [name for name, _ in name_tensors((one, one))] == ["input_0", "input_1"]
    assert [name for name, _ in name_tensors({"image": one, "label": [one, one]})] == [
        "image",
        "label_0",
        "label_1",
    ]
    assert [name for name, _ in name_tensors({"a b": one, "a.b": one, "ü": one})] == ["a_b", "a_b_", "ü"]
    assert [name for name, _ in name_tensors(one)] == ["input"]


# -- the command line ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["compile", "--pef-name=m", "--output-folder=pef"], {"mode": "train", "compile_only": True, "pef_name": "m", "output_folder": "pef"}),
        (["run", "--pef=pef/m/m.pef"], {"mode": "train", "compile_only": False, "pef": "pef/m/m.pef"}),
        (["test"], {"mode": "train", "validate_only": True}),
        (["run", "--mode", "eval"], {"mode": "eval"}),
        (["--mode", "train_and_eval"], {"mode": "train_and_eval"}),
    ],
)  # fmt: skip
def test_the_vendors_commands_are_taken(words: list[str], expected: dict[str, Any]) -> None:
    params = str(FC_MNIST / "configs" / "params.yaml")
    arguments = parse_arguments(["RDU", *words, "--params", params, "--emulate"])
    assert {name: getattr(arguments, name) for name in expected} == expected
    assert arguments.emulate


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("foo", r"unknown command 'foo' of RDU\. Valid: compile, run, test\."),
        ("compil", r"unknown command 'compil' of RDU\. Did you mean 'compile'\? Valid: compile, run, test\."),
        ("", "unknown command '' of RDU"),
    ],
)
def test_another_word_in_place_of_a_command_is_named(word: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        parse_arguments(["RDU", word])


def test_it_is_listed_with_its_emulator_and_its_section() -> None:
    target = get_target("rdu")
    assert (target.emulator, target.has_compiler) == ("sambaflow", True)
    assert target.sections == {"rdu": RduSection}
    assert RduBackend({"emulate": True}, print).emulates == "SambaFlow"


# -- sessions --------------------------------------------------------------------------------------------------


def test_an_odd_batch_is_refused_before_anything_is_compiled(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"batch of 7, and an SN30.*Use 8, or rdu.num_tiles: 4"):
        open_session(job("train_input.batch_size=7"))
    assert not list(tmp_path.iterdir())
    session = open_session(job("train_input.batch_size=7", system="sn40l"))
    assert list(session.train(contract.stretch(0, 1)))


def test_a_short_last_batch_is_left_out_and_told() -> None:
    """1,437 digits in batches of 600: two are full, the third has 237."""
    notes: list[str] = []
    session = open_session(job("train_input.batch_size=600", "train_input.drop_last=false"), notes)
    assert session.steps_in(3) == 6
    list(session.train(contract.stretch(0, 5)))
    assert sum("has 237 samples instead of 600" in note for note in notes) == 1


def test_bf16_is_near_fp32() -> None:
    losses = {}
    for precision in ("fp32", "bf16"):
        session = open_session(job(precision=precision))
        losses[precision] = [
            loss for event in session.train(contract.stretch(0, 12)) for loss in event.losses
        ]
    assert losses["bf16"] == pytest.approx(losses["fp32"], abs=0.03)
    assert losses["bf16"] != losses["fp32"]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["optimizer.optimizer_type=Lion"], "Lion: SambaFlow has SGD and AdamW"),
        (["optimizer.optimizer_type=Adam"], "Adam with weight_decay_rate 0.01"),
        (
            ["optimizer.optimizer_type=SGD", "optimizer.momentum=0.9", "optimizer.use_nesterov=true"],
            "use_nesterov",
        ),
        (["optimizer.optimizer_type=SGD", "optimizer.max_gradient_norm=1.0"], "max_gradient_norm"),
        (["optimizer.grad_accum_steps=2"], "grad_accum_steps is 2"),
        (["optimizer.max_gradient_value=1.0"], "max_gradient_value is 1.0"),
    ],
)
def test_optimizers_that_sambaflow_has_not_are_refused(overrides: list[str], said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        open_session(job(*overrides))


@pytest.mark.parametrize(
    "overrides",
    [
        ["optimizer.optimizer_type=SGD", "optimizer.momentum=0.9", "optimizer.learning_rate=0.1"],
        ["optimizer.optimizer_type=Adam", "optimizer.weight_decay_rate=0.0"],
        ["optimizer.max_gradient_norm=0.5"],
        ["model.dropout=0.3"],
    ],
)
def test_other_settings_give_the_cpus_losses(overrides: list[str]) -> None:
    from portwright.runtime.backend import TorchBackend

    session = open_session(job(*overrides))
    losses = [loss for event in session.train(contract.stretch(0, 12)) for loss in event.losses]
    theirs = TorchBackend("cpu", {}, print).open(contract.make_job("train", *overrides))
    expected = [loss for event in theirs.train(contract.stretch(0, 12)) for loss in event.losses]
    assert losses == pytest.approx(expected, abs=1e-5)


def test_a_pef_is_compiled_once_and_used_again(tmp_path: Path) -> None:
    def train(**options: Any) -> list[str]:
        notes: list[str] = []
        session = open_session(job(**options), notes, compile_dir=tmp_path / "c")
        list(session.train(contract.stretch(0, 2)))
        return notes

    assert not any("earlier run" in note for note in train())
    pef = tmp_path / "c" / "mnistmodel" / "mnistmodel.pef"
    first = pef.stat().st_mtime_ns
    assert any(f"using the PEF of an earlier run, {pef}" in note for note in train())
    assert pef.stat().st_mtime_ns == first
    assert not any("using" in note for note in train(num_tiles=4))  # another program
    assert pef.stat().st_mtime_ns != first
    pef.write_text("damaged")
    assert any("does not fit any more" in note for note in train(num_tiles=4))


def test_another_decay_is_another_program(tmp_path: Path) -> None:
    """It is compiled in: a PEF of other settings would train with those, and nobody would notice."""
    losses = []
    for decay in ("0.0", "5.0"):
        notes: list[str] = []
        session = open_session(job(f"optimizer.weight_decay_rate={decay}"), notes, compile_dir=tmp_path)
        losses.append([loss for event in session.train(contract.stretch(0, 4)) for loss in event.losses])
        assert not any("earlier run" in note for note in notes)
    assert losses[0][0] == losses[1][0]
    assert losses[0][-1] != losses[1][-1]


def test_what_is_no_tensor_in_a_batch_must_stay() -> None:
    made = job()
    count = iter(range(100))

    def with_text(params: Any) -> Any:
        loader = contract.make_job().train_data_fn(params)  # type: ignore[misc]
        loader.collate_fn = lambda rows: [*torch.utils.data.default_collate(rows), f"text {next(count) // 2}"]
        return loader

    class Model:
        def __init__(self, params: Any) -> None:
            inner = made.model_fn(params)
            self.model, self._inner = inner.model, inner

        def __call__(self, batch: Any) -> Any:
            return self._inner(batch[:2])

    changing = JobSpec(made.params, Model, with_text, made.eval_data_fn, "train")
    session = open_session(changing)
    with pytest.raises(
        UserError,
        match=r"batch\[2\], which is no tensor, changes from 'text 0' to 'text 1'.*a PEF keeps.*Leave it out",
    ):
        list(session.train(contract.stretch(0, 6)))


def test_a_pef_that_was_named_and_does_not_fit_is_an_error(tmp_path: Path) -> None:
    session = open_session(job(), compile_dir=tmp_path)
    pef = session.compile(tmp_path, ("train",)).details["pef"]
    other = open_session(job("train_input.batch_size=32", pef=pef))
    with pytest.raises(
        UnsupportedError, match=r"float32\[32, 64\], compiled for float32\[64, 64\]|compiled for"
    ):
        list(other.train(contract.stretch(0, 1)))


def test_compile_and_test_are_of_the_contract(tmp_path: Path) -> None:
    session = open_session(job(pef_name="digits"), compile_dir=tmp_path)
    assert isinstance(session, CompilerSession)
    lowered = session.compile(tmp_path, ("train",))
    assert lowered.details["pef"] == str(tmp_path / "digits" / "digits.pef")
    assert "emulated PEF, which no RDU can run" in lowered.lines[0]
    compared = session.lower(("train",))
    assert compared.details["loss"] == pytest.approx(compared.details["host_loss"], abs=1e-5)
    assert "emulated RDU" in compared.lines[1]


def test_a_loss_that_is_not_finite_stops(tmp_path: Path) -> None:
    session = open_session(job("optimizer.optimizer_type=SGD", "optimizer.learning_rate=1e30", "optimizer.weight_decay_rate=0.0"))  # fmt: skip
    with pytest.raises(NonFiniteError, match="loss is"):
        list(session.train(contract.stretch(0, 10)))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda items: {**items, "optimizer/more/exp_avg": torch.ones(1)},
            "'more', which this model does not train",
        ),
        (
            lambda items: {k: v for k, v in items.items() if not k.endswith("exp_avg_sq")},
            "keeps step, exp_avg, exp_avg_sq",
        ),
        (
            lambda items: {k: (torch.ones(1) if k.endswith("/exp_avg") else v) for k, v in items.items()},
            "has shape",
        ),
    ],
)
def test_optimizer_state_that_does_not_fit_is_refused(spoil: Callable[[Any], Any], said: str) -> None:
    from portwright.target import Shard

    first = open_session(job())
    list(first.train(contract.stretch(0, 2)))
    items = spoil({shard.name: shard.tensor for shard in first.state()})
    second = open_session(job())
    with pytest.raises(PortwrightError, match=said):
        second.load_state([Shard(name, tensor) for name, tensor in items.items()], first.counters())


def test_it_asks_no_more_of_sambaflow_than_its_public_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A package that is not ours and has nothing but what SambaNova's tutorials call; it gets none of the emulator's own flags."""
    from portwright.emulate.sambaflow import samba
    from portwright.emulate.sambaflow.samba import utils
    from portwright.emulate.sambaflow.samba.utils import argparser, pef_utils

    words: list[list[str]] = []

    def parse_app_args(argv: list[str]) -> Any:
        words.append(argv)
        return argparser.parse_app_args(argv=argv)

    session = {name: getattr(samba.session, name) for name in ("compile", "run", "to_cpu", "to_rdu")}
    parts: dict[str, dict[str, Any]] = {
        "sambaflow": {"__version__": "1.18.7"},
        "sambaflow.samba": {
            "session": SimpleNamespace(**session),
            "optim": SimpleNamespace(SGD=samba.optim.SGD, AdamW=samba.optim.AdamW),
            **{name: getattr(samba, name) for name in ("from_torch_model_", "from_torch_tensor", "to_torch")},
        },
        "sambaflow.samba.utils": {"trace_graph": utils.trace_graph},
        "sambaflow.samba.utils.argparser": {"parse_app_args": parse_app_args},
        "sambaflow.samba.utils.pef_utils": {"get_pefmeta": pef_utils.get_pefmeta},
    }
    for name, members in parts.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    notes: list[str] = []
    backend = RduBackend({"compile_dir": tmp_path}, notes.append)
    assert backend.emulates is None
    ours = backend.open(job())
    assert [event.kind for event in ours.train(contract.stretch(0, 3))] == ["log", "boundary"]
    assert ours.evaluate(1)["loss"] > 0
    assert any("takes minutes" in note for note in notes)
    assert words == [
        ["compile", "--pef-name=mnistmodel", f"--output-folder={tmp_path}", "--graphamp-preset=mp0"]
    ]

    inside = vars(sys.modules["sambaflow.samba"])
    exec("def fail(*args, **options): raise RuntimeError('no RDU\\nis free')", inside)
    monkeypatch.setattr(inside["session"], "run", inside["fail"])
    with pytest.raises(UnsupportedError, match=r"SambaFlow 1\.18\.7 refuses to run: no RDU is free"):
        list(ours.train(contract.stretch(3, 4)))


def _with_failure(fail: Callable[[torch.Tensor], object]) -> JobSpec:
    made = job()

    class Model:
        def __init__(self, params: Any) -> None:
            inner = made.model_fn(params)
            self.model, self._inner = inner.model, inner

        def __call__(self, batch: Any) -> Any:
            fail(batch[0])
            return self._inner(batch)

    return JobSpec(made.params, Model, made.train_data_fn, made.eval_data_fn, "train")


def _assert_three(inputs: torch.Tensor) -> None:
    assert inputs.shape[1] == 3, "three wanted."


@pytest.mark.parametrize(
    ("fail", "said"),
    [
        (_assert_three, r"AssertionError: three wanted\. Make"),
        (lambda inputs: inputs @ torch.ones(3, 3), r"RuntimeError: .*[^.]\. Make"),
    ],
)
def test_a_failure_of_the_model_itself_is_bad_input(
    fail: Callable[[torch.Tensor], object], said: str
) -> None:
    with pytest.raises(PortwrightError, match=said) as caught:
        list(open_session(_with_failure(fail)).train(contract.stretch(0, 1)))
    assert caught.value.status is ExitStatus.USAGE


def test_an_op_that_is_refused_is_unsupported() -> None:
    with pytest.raises(PortwrightError) as caught:
        list(open_session(_with_failure(lambda inputs: inputs.sum().item())).train(contract.stretch(0, 1)))
    assert caught.value.status is ExitStatus.FINDINGS


def test_only_what_sambaflow_raises_is_a_refusal() -> None:
    with pytest.raises(AssertionError, match="three wanted"), refusals("1", "compile"):
        _assert_three(torch.ones(2, 2))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), refusals("1", "compile"):
        torch.nn.Linear(3, 3)(torch.ones(2, 2))


def test_modes_that_do_not_train_need_no_sambaflow_program() -> None:
    made = contract.make_job("eval")
    made.params.values["rdu"] = {"precision": "fp32"}
    session = open_session(made)
    assert session.evaluate(1)["loss"] > 0
    assert session.steps_in(1) is None
    assert "nothing to compile" in session.lower(("eval",)).lines[0]
    with pytest.raises(UserError, match="does not train"):
        list(session.train(contract.stretch(0, 1)))
    assert set(next(iter(session.predict(1)))) == {"digit", "probabilities"}
