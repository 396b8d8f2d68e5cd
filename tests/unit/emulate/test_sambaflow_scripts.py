"""What scripts are made of: the commands and flags, common_app_driver, and a script of the vendor's shape from compile to resume."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from unit.emulate.sambaflow_case import Classifier, sgd, start_again

from portwright.emulate.ledger import LEDGERS
from portwright.emulate.sambaflow import _state, samba
from portwright.emulate.sambaflow._no_effect import lazy_param, op_fusion
from portwright.emulate.sambaflow._refusal import SambaFlowError
from portwright.emulate.sambaflow.logging import SambaLogger
from portwright.emulate.sambaflow.samba import utils
from portwright.emulate.sambaflow.samba.utils.argparser import parse_app_args, parse_yaml_to_args
from portwright.emulate.sambaflow.samba.utils.common import common_app_driver
from portwright.emulate.sambaflow.samba.utils.dataset.mnist import dataset_transform
from portwright.emulate.sambaflow.sambacollections import OrderedSet

_ledger = LEDGERS["sambaflow"]
pytestmark = pytest.mark.filterwarnings("ignore:TF32 acceleration")  # of torch, when mkldnn is switched off


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    start_again()
    yield
    start_again()


# -- arguments -------------------------------------------------------------------------------------------------


def add_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("-b", "--batch-size", type=int, default=6)  # the vendor's scripts define it again


def test_the_documented_command_lines_are_taken() -> None:
    args = parse_app_args(
        argv=["compile", "-b=2", "--pef-name=lenet", "--output-folder=pef", "-o1", "--num-tiles", "4"]
    )
    assert (args.command, args.batch_size, args.pef_name, args.output_folder) == (
        "compile",
        2,
        "lenet",
        "pef",
    )
    assert (args.inference, args.num_tiles, args.optimization) == (False, 4, "o1")
    args = parse_app_args(
        argv=["run", "--pef=pef/lenet/lenet.pef"], common_parser_fn=add_args, run_parser_fn=add_args
    )
    assert (args.pef, args.lr, args.batch_size, args.mapping) == ("pef/lenet/lenet.pef", 0.1, 6, "section")
    assert (args.data_parallel, args.reduce_on_rdu) == (False, False)
    args = parse_app_args(argv=["measure-performance", "-p", "x.pef", "-n", "3"], dev_mode=True)
    assert (args.pef, args.num_iterations) == ("x.pef", 3)
    assert _state.command == "measure-performance"


def test_functions_of_one_command_add_to_it_alone() -> None:
    def only(name: str) -> Any:
        return lambda parser: parser.add_argument(f"--{name}", action="store_true")

    options = {"compile_parser_fn": only("c"), "run_parser_fn": only("r"), "test_parser_fn": only("t")}
    assert parse_app_args(argv=["compile", "--c"], **options).c
    assert parse_app_args(argv=["run", "--r"], **options).r
    assert parse_app_args(argv=["test", "--t"], **options).t


@pytest.mark.parametrize(
    "words", [[], ["compiled"], ["run", "--pef-name=x"], ["compile", "--arch=sn99"], ["compile", "--pe=x"]]
)
def test_other_words_end_the_script_as_argparse_does(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_app_args(argv=words)
    assert ended.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_a_yaml_file_takes_the_place_of_arguments(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("num-tiles: 4\nlr: 0.5\n")
    args = parse_yaml_to_args(str(tmp_path / "a.yaml"), parse_app_args(argv=["compile"]))
    assert (args.num_tiles, args.lr, args.command) == (4, 0.5, "compile")
    for text in ("[1, 2]", "a: [", "!!python/object/apply:os.getcwd []"):
        (tmp_path / "a.yaml").write_text(text)
        with pytest.raises(SambaFlowError, match=r"a\.yaml"):
            parse_yaml_to_args(str(tmp_path / "a.yaml"), args)
    with pytest.raises(SambaFlowError, match="cannot be read"):
        parse_yaml_to_args(str(tmp_path / "none.yaml"), args)


# -- a whole script --------------------------------------------------------------------------------------------


def script(argv: list[str], steps: int = 4, checkpoint: Path | None = None) -> list[float]:
    """The shape of the vendor's own examples: convert, optimizer, compile or trace, a loop of runs, to_cpu, save."""
    utils.set_seed(256)
    args = parse_app_args(argv=argv, common_parser_fn=add_args)
    model = Classifier()
    samba.from_torch_model_(model)
    inputs = (
        samba.randn(args.batch_size, 8, name="image", batch_dim=0).bfloat16().float(),
        samba.randint(4, (args.batch_size,), name="label", batch_dim=0),
    )
    optimizer = None if args.inference else sgd(model, lr=args.lr, momentum=0.9)
    common_app_driver(args, model, inputs, optimizer, name="script", app_dir=utils.get_file_dir(__file__))
    if args.command != "run":
        return []
    if checkpoint is not None and checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    traced = utils.trace_graph(model, inputs, optimizer, pef=args.pef, mapping=args.mapping)
    losses = []
    for _ in range(steps):
        loss, logits = samba.session.run(
            input_tensors=list(inputs),
            output_tensors=traced,
            hyperparam_dict={"lr": args.lr, "momentum": 0.9},
            data_parallel=args.data_parallel,
            reduce_on_rdu=args.reduce_on_rdu,
        )
        losses.append(float(samba.to_torch(loss).mean()))
        assert samba.to_torch(logits).shape == (6, 4)
    samba.session.to_cpu(model)
    if checkpoint is not None:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint)
    return losses


def test_a_script_compiles_runs_and_resumes(tmp_path: Path) -> None:
    script(["compile", "--pef-name=s", "--graphamp-preset=mp0"])
    run = ["run", "--pef=out/s/s.pef"]
    whole = script(run, steps=6)
    assert whole[-1] < whole[0]
    halves = script(run, steps=3, checkpoint=tmp_path / "c.pt") + script(
        run, steps=3, checkpoint=tmp_path / "c.pt"
    )
    assert halves == whole
    assert _ledger.call_counts() == {"compile": 1, "trace_graph": 3, "run": 12, "to_cpu": 3}
    assert _ledger.unused_executors() == []
    assert [made.kind for made in _ledger.executors] == ["compilation", "training", "training", "training"]
    assert "test_sambaflow_scripts.py:" in _ledger.executors[1].where


def test_a_traced_program_that_is_never_run_is_told() -> None:
    script(["compile", "--pef-name=s"])
    args = argparse.Namespace(pef="out/s/s.pef")
    model = Classifier()
    samba.from_torch_model_(model)
    inputs = (samba.randn(6, 8, name="image", batch_dim=0), samba.randint(4, (6,), name="label", batch_dim=0))
    utils.trace_graph(model, inputs, sgd(model), config_dict=vars(args))  # as older scripts hand over the PEF
    assert [made.model for made in _ledger.unused_executors()] == ["Classifier"]


def test_measuring_runs_and_measures_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    script(["compile", "--pef-name=s"])
    script(["measure-performance", "--pef=out/s/s.pef", "-n", "2"])
    assert "emulated: 2 iteration(s)" in capsys.readouterr().out
    with pytest.raises(SambaFlowError, match="no times worth"):
        script(["measure-sections", "--pef=out/s/s.pef"])


def test_run_before_compile_says_so() -> None:
    with pytest.raises(SambaFlowError, match=r"trace_graph got no PEF.*samba.session.compile"):
        script(["run"])
    with pytest.raises(SambaFlowError, match=r"out/s/s.pef does not exist.*Compile first"):
        script(["run", "--pef=out/s/s.pef"])


# -- small things ----------------------------------------------------------------------------------------------


def test_an_ordered_set_keeps_its_order() -> None:
    layer = torch.nn.Linear(2, 2)
    made = OrderedSet([layer.weight, layer.bias, layer.weight])
    assert len(made) == 2
    assert layer.bias in made
    assert list(OrderedSet("cab")) == ["c", "a", "b"]
    made.discard(layer.bias)
    made.add(layer.bias)
    assert list(made)[1] is layer.bias


def test_a_logger_tells_so_often_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    logger = SambaLogger()
    for _ in range(3):
        logger.warning("once", log_limit=1)
        logger.error("each %s", "time")
    assert [record.message for record in caplog.records].count("once") == 1
    assert [record.message for record in caplog.records].count("each time") == 3


def test_hints_change_nothing() -> None:
    with lazy_param(), op_fusion(func_name="x"), samba.patched_torch():
        assert torch.ones(1) + 1 == 2
    assert utils.parse_dtype("bf16") == torch.bfloat16
    with pytest.raises(SambaFlowError, match="unknown type 'float99'"):
        utils.parse_dtype("float99")
    assert utils.is_main_process()


def test_images_of_mnist_become_vectors() -> None:
    vector = dataset_transform({})(np.full((28, 28), 255, np.uint8))
    assert vector.shape == (784,)
    assert float(vector[0]) == pytest.approx((1 - 0.1307) / 0.3081)


def test_seeds_make_runs_equal() -> None:
    utils.set_seed(3)
    first = torch.rand(2), np.random.rand()
    utils.set_seed(3)
    assert first[0].equal(torch.rand(2))
    assert first[1] == np.random.rand()
