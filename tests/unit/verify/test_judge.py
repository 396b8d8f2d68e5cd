"""How many runs a verdict takes, and which: with recordings made by hand in place of processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made_recordings import Made, make, with_step

from portwright.errors import UserError
from portwright.verify.api import make_proof, verify
from portwright.verify.judge import judge
from portwright.verify.launch import ScriptFailed
from portwright.verify.recording import Draw


def test_equal_runs_need_no_third(tmp_path: Path) -> None:
    runs = Made(tmp_path, original=make(), ported=make())
    found = judge(runs)
    assert (found.difference, found.settled_by) == (None, "identical")
    assert runs.asked == ["original", "ported"]


def test_an_option_is_seen_without_a_third_run(tmp_path: Path) -> None:
    runs = Made(tmp_path, original=make(), ported=make(lr=0.101))
    assert judge(runs).difference.diagnosis == "learning-rate"  # type: ignore[union-attr]
    assert runs.asked == ["original", "ported"]


def test_rounding_is_settled_by_the_noise_of_the_original(tmp_path: Path) -> None:
    runs = Made(tmp_path, original=make(), ported=make(noise=3e-5), original_noise=make(noise=2e-5))
    found = judge(runs)
    assert (found.difference, found.settled_by) == (None, "noise")
    assert runs.asked == ["original", "ported", "original_noise"]


def test_what_is_a_little_beyond_the_noise_is_asked_again_in_float64(tmp_path: Path) -> None:
    recordings = {"original": make(), "ported": make(noise=3e-3), "original_noise": make(noise=1e-5)}
    in_float64 = {"original_64": make(), "ported_64": make(noise=1e-12)}
    found = judge(Made(tmp_path, **recordings, **in_float64))
    assert (found.difference, found.settled_by) == (None, "float64")
    in_float64["ported_64"] = make(noise=3e-3)
    found = judge(Made(tmp_path, **recordings, **in_float64, original_64_noise=make(noise=1e-13)))
    assert found.difference is not None


def test_a_noise_that_swallows_everything_is_not_believed(tmp_path: Path) -> None:
    loud = {"original": make(), "ported": make(noise=0.2), "original_noise": make(noise=0.2)}
    equal = judge(Made(tmp_path, **loud, original_64=make(), ported_64=make(noise=1e-12)))
    assert (equal.difference, equal.settled_by) == (None, "float64")
    failing = ScriptFailed("it mixes dtypes.", "", "", 0)
    unsure = judge(Made(tmp_path, **loud, original_64=failing, ported_64=failing))
    assert (unsure.settled_by, unsure.difference) == ("noise", None)
    assert "at step 1 the loss is" in unsure.unsure
    close = {
        **loud,
        "ported": make(noise=1e-7),
    }  # whatever rounding might do there, it did not: nothing is hidden
    fine = judge(Made(tmp_path, **close, original_64=failing, ported_64=failing))
    assert (fine.difference, fine.unsure) == (None, "")


def test_a_noise_that_cannot_be_measured_leaves_the_verdict_to_the_dtype(tmp_path: Path) -> None:
    failing = ScriptFailed("it fails with other weights.", "", "", 0)
    found = judge(Made(tmp_path, original=make(), ported=make(factor=2.0), original_noise=failing))
    assert found.difference is not None
    assert "could not be measured" in found.notes[0]


def test_where_even_float64_is_no_help_nobody_can_tell(tmp_path: Path) -> None:
    loud = {"original": make(), "ported": make(noise=0.2), "original_noise": make(noise=0.2)}
    chaos = {"original_64": make(), "ported_64": make(noise=0.1), "original_64_noise": make(noise=0.1)}
    found = judge(Made(tmp_path, **loud, **chaos))
    assert (found.difference, found.settled_by) == (None, "float64")
    assert ", in float64)" in found.unsure
    proof = make_proof(Made(tmp_path, **loud, **chaos), found, tmp_path)
    assert (proof.verdict, proof.equal, proof.status) == ("cannot tell", False, 1)
    assert proof.bound > 0.1  # type: ignore[operator]


def test_losses_that_are_no_numbers_in_both_prove_nothing(tmp_path: Path) -> None:
    lost = with_step(make(), 4, losses=(float("nan"),))
    found = judge(Made(tmp_path, original=lost, ported=lost))
    assert found.difference is None
    assert "from step 4 on the loss is not a number in both runs" in found.unsure


def test_a_fault_below_the_noise_is_found_in_float64(tmp_path: Path) -> None:
    loud = {"original": make(), "ported": make(noise=0.2), "original_noise": make(noise=0.2)}
    late = make(keeps_gradient=True)  # from step 2 on
    found = judge(
        Made(tmp_path, **loud, original_64=make(), ported_64=late, original_64_noise=make(noise=1e-13))
    )
    assert found.difference is not None
    assert (found.difference.step, found.difference.diagnosis) == (2, "zero-grad")


def test_dropout_is_turned_off_where_drawn_runs_differ(tmp_path: Path) -> None:
    drawn = (Draw("dropout", 0.1, 64),)
    off = replace(make(draws=drawn), dropout="off")
    runs = Made(
        tmp_path,
        original=make(draws=drawn),
        ported=make(draws=drawn, shift=3),
        original_off=off,
        ported_off=off,
    )
    found = judge(runs)
    assert (found.difference, found.dropout) == (None, "off")
    assert runs.asked == ["original", "ported", "original_off", "ported_off"]


def test_a_port_that_crashes_is_different_and_with_an_original_that_does_nobody_can_tell(
    tmp_path: Path,
) -> None:
    failed = ScriptFailed("'b.py' failed after 2 recorded step(s).", "", "Traceback\nValueError: no", 2)
    found = judge(Made(tmp_path, original=make(), ported=failed))
    assert found.difference is not None
    assert (found.difference.step, found.difference.quantity, found.difference.ported) == (
        3,
        "crash",
        "ValueError: no",
    )
    proof = make_proof(Made(tmp_path, original=make(), ported=failed), found, tmp_path)
    assert not proof.equal
    assert proof.status == 1
    unsure = judge(Made(tmp_path, original=failed, ported=make()))
    assert (unsure.difference, unsure.comparison) == (None, None)
    assert unsure.unsure.startswith("the original fails. 'b.py' failed after 2")
    refused = judge(
        Made(tmp_path, original=make(), ported=ScriptFailed("It starts 3 processes.", "", "", 0, "", True))
    )
    assert (refused.difference, refused.unsure) == (
        None,
        "the port cannot be recorded. It starts 3 processes.",
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"steps": 0}, "--steps is 0"),
        ({"dropout": "of"}, "Did you mean 'off'"),
        ({"timeout_seconds": 0}, "--timeout is 0"),
    ],
)
def test_bad_options_are_said_before_anything_runs(
    tmp_path: Path, options: dict[str, object], said: str
) -> None:
    (tmp_path / "a.py").write_text("raise SystemExit('ran')")
    with pytest.raises(UserError, match=said):
        verify("a.py", "a.py", folder=tmp_path, **options)  # type: ignore[arg-type]


def test_a_wrong_port_command_is_said_before_the_original_runs(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("raise SystemExit('ran')")
    with pytest.raises(UserError, match="There is no script nowhere"):
        verify("a.py", "nowhere.py", folder=tmp_path)
