from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from made_recordings import Made, make, with_step
from typer.testing import CliRunner

from portwright.cli import app
from portwright.errors import UserError
from portwright.verify.api import make_proof
from portwright.verify.difference import number
from portwright.verify.judge import judge
from portwright.verify.proof import Proof, find_place
from portwright.verify.proof_page import make_page, write_page
from portwright.verify.proof_text import render, show_losses


def proof_of(folder: Path, **recordings) -> Proof:
    runs = Made(folder, **recordings)
    return make_proof(runs, judge(runs), folder)


def test_an_equal_proof_says_so_first_and_names_what_it_rests_on(tmp_path: Path) -> None:
    proof = proof_of(tmp_path, original=make(), ported=make(noise=3e-5), original_noise=make(noise=2e-5))
    text = render(proof)
    assert text.startswith(
        "equal over 6 steps; largest bound 0.00017 of an update\n  distances are within what one"
    )
    assert "gradients: worst distance" in text
    assert "matched: 4 by name" in text
    assert "this machine's CPU" in text
    document = proof.as_dict()
    assert (document["verdict"], document["equal"], document["bound_quantity"]) == ("equal", True, "update")
    assert document["bound"] == pytest.approx(1.7e-4, rel=0.1)
    assert document["first_difference"] is None
    assert document["steps"] == 6
    assert document["front_end"] is None
    assert document["noise"]["relative"] == 2e-5
    assert document["scripts"]["original"]["sha256"] != document["scripts"]["ported"]["sha256"]
    assert set(document["tolerances"]) == {"loss", "gradient", "update"}


def test_a_difference_says_step_parameter_both_values_and_rule(tmp_path: Path) -> None:
    proof = proof_of(
        tmp_path, original=make(), ported=make(keeps_gradient=True), original_noise=make(noise=1e-6)
    )
    text = render(proof)
    assert text.startswith("different: they part at step 2, gradient of last.bias")
    assert "zero_grad" in text
    assert "likely rule: PW402" in text
    assert re.search(r"norm [\d.]+ in the original, [\d.]+ in the port; distance [\d.]+, allowed", text)
    assert "the 1 step before agree" in text
    found = proof.as_dict()["first_difference"]
    assert (found["step"], found["parameter"], found["rule"]) == (2, "last.bias", "PW402")


def test_a_proof_is_json_that_any_reader_takes_even_with_losses_that_are_no_numbers(tmp_path: Path) -> None:
    original = with_step(make(), 2, losses=(float("nan"),))
    proof = proof_of(
        tmp_path,
        original=original,
        ported=with_step(make(), 2, losses=(float("inf"),)),
        original_noise=original,
    )
    path = tmp_path / "deep" / "proof.json"
    path.parent.mkdir()
    proof.write(path)
    document = json.loads(path.read_text(), parse_constant=lambda word: pytest.fail(word))
    assert document["losses"]["original"][1] == ["nan"]
    assert document["first_difference"]["ported"] == "inf"
    assert "Infinity" not in path.read_text()
    assert "<svg" in make_page(proof)


@pytest.mark.parametrize(
    ("target", "devices", "ran_on", "on_target"),
    [
        ("", ("cpu",), {}, None),
        ("CPU", ("cpu",), {}, True),
        ("GPU", ("cpu",), {}, False),
        ("GPU", ("cuda:0",), {}, True),
        ("CSX", ("cpu",), {}, False),
        ("CSX", ("cpu",), {"vendor_modules": ["cerebras.pytorch"]}, False),
        ("CSX", ("cpu",), {"vendor_calls": ["cerebras.pytorch.step"]}, True),
        ("IPU", ("xla:0",), {"vendor_modules": ["poptorch"]}, True),
        ("GPU", (), {}, False),
    ],
)
def test_where_the_port_ran_is_held_against_what_was_asked(target, devices, ran_on, on_target) -> None:
    ported = replace(make(), target=target, ran_on=ran_on)
    ported.steps = [replace(s, devices=devices) for s in ported.steps]
    assert find_place(ported).on_target is on_target


def test_equal_on_another_device_than_asked_is_no_proof(tmp_path: Path) -> None:
    proof = proof_of(tmp_path, original=make(), ported=replace(make(), target="CSX"))
    assert proof.equal
    assert proof.status == 1
    assert render(proof).startswith("NOT A PROOF: The command asks for CSX")
    assert "<h1>Not a proof</h1>" in make_page(proof)


def test_a_page_is_whole_and_asks_for_nothing(tmp_path: Path) -> None:
    proof = proof_of(tmp_path, original=make(), ported=make(factor=1.01), original_noise=make(noise=1e-6))
    proof.commands["ported"] = "train.py --name '<script>alert(1)</script>'"
    path = tmp_path / "proof.html"
    write_page(proof, path)
    page = path.read_text()
    assert "Different: they part at step 1, gradient of last.bias" in page
    assert "<script" not in page
    assert not re.search(r'(src|href)="(?!data:,|#)', page)
    assert page.count("<polyline") >= 2 + 3
    assert "default-src 'none'" in page


def test_a_front_end_has_its_place(tmp_path: Path) -> None:
    proof = proof_of(tmp_path, original=make(), ported=make())
    assert "Was not asked" in make_page(proof)
    proof.front_end = {"target": "csx", "sdk": "2.10.0", "accepted": True, "ops": 1234}
    assert "CSX 2.10.0 lowers the port's step (1,234 ops); nothing ran on such a machine" in render(proof)
    proof.front_end = {
        "target": "csx",
        "sdk": "2.10.0",
        "accepted": False,
        "stage": "lowering",
        "words": "no <flip>",
    }
    assert "refuses it in lowering: no &lt;flip&gt;" in make_page(proof)


@pytest.mark.parametrize("steps", [1, 2, 150])
def test_a_page_is_drawn_for_any_number_of_steps(tmp_path: Path, steps: int) -> None:
    page = make_page(proof_of(tmp_path, original=make(steps), ported=make(steps)))
    assert f"Equal over {steps} step" in page
    assert "nan" not in page


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("as_json", [True, False])
def test_a_front_end_that_cannot_be_asked_hides_no_proof(
    equal: bool, as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proof = proof_of(tmp_path, original=make(), ported=make(keeps_gradient=not equal), original_noise=make())

    def refuse(*_: object, **__: object) -> None:
        raise UserError("'b.py' imports cv2, which the environment lacks.", "Install it there.")

    monkeypatch.setattr("portwright.verify.front_end.require_front_end", lambda target: None)
    monkeypatch.setattr("portwright.verify.front_end.ask_front_end", refuse)
    monkeypatch.setattr("portwright.verify.api.verify", lambda *_, **__: proof)
    words = ["verify", "a.py", "b.py", "--front-end", "csx", "--out", str(tmp_path / "proof.json")]
    done = CliRunner().invoke(app, words + ["--json"] * as_json)
    told = json.loads((tmp_path / "proof.json").read_text())
    assert (told["equal"], told["front_end"]) == (equal, None)
    assert "cv2" in told["notes"][-1]
    if not equal:
        assert done.exit_code == 1
        assert "cv2" in done.stdout
    else:
        assert isinstance(done.exception, UserError)
        assert done.stdout.startswith("equal over 6 steps") is not as_json


def test_the_last_loss_shown_is_that_of_the_last_step_that_has_one(tmp_path: Path) -> None:
    original, ported = (with_step(make(), 6, losses=()) for _ in range(2))
    proof = proof_of(tmp_path, original=original, ported=ported)
    assert show_losses(proof, -1) == number(original.steps[4].losses[0])
