"""What `ask_front_end` makes of a vendor's answers; the vendor's environment itself is played here."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from portwright.cli import app
from portwright.errors import UnsupportedError, UserError
from portwright.job.vendor_env import Known
from portwright.verify import front_end
from portwright.verify.front_end import ask_front_end

ACCEPTED = {
    "accepted": True, "sdk": "2.10.0", "stage": "lowering", "words": "", "ops": 26, "cirh_bytes": 900,
    "optimizer": "SGD", "num_optimizers": 1, "num_constants": 0, "modules": ["model"], "num_reads": 0, "notes": [],
}  # fmt: skip
Answers = Callable[..., list[list[str]]]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Answers:
    """Plays a vendor's environment that gives these answers in turn; returns the commands that it was given."""
    (tmp_path / "train.py").write_text("")
    monkeypatch.setattr(
        front_end, "find_usable", lambda environment: Known(tmp_path / "python", "2.10.0", False)
    )

    def play(*documents: dict[str, Any] | str) -> list[list[str]]:
        asked: list[list[str]] = []
        left = list(documents)

        def run(place: Any, words: Sequence[str], command: Any) -> tuple[int, str, str]:
            asked.append(list(words))
            document = left.pop(0)
            if isinstance(document, str):
                return 1, document, "it said this last\n"
            Path(words[words.index("--answer") + 1]).write_text(json.dumps(document))
            return 0, "", ""

        monkeypatch.setattr(front_end._Runner, "run", run)
        return asked

    return play


def test_an_accepted_script(answers: Answers, tmp_path: Path) -> None:
    asked = answers(ACCEPTED | {"num_constants": 2, "num_reads": 1, "notes": ["something"]})
    verdict = ask_front_end("python train.py --lr 1", folder=tmp_path)
    assert verdict
    assert (verdict.ops, verdict.cirh_bytes, verdict.sdk) == (26, 900, "2.10.0")
    assert asked[0][-4:] == ["--", "train.py", "--lr", "1"]
    for part in ("model, its loss, backward, SGD", "2 tensor(s)", "left out", "something"):
        assert part in verdict.asked
    assert "not placed on a machine" in verdict.says
    assert verdict.as_dict()["says"] == verdict.says


def test_a_refusal_names_the_line_as_the_user_would(answers: Answers, tmp_path: Path) -> None:
    file = str(tmp_path.resolve() / "models" / "net.py")
    answers(
        ACCEPTED
        | {
            "accepted": False,
            "stage": "forward",
            "words": "no nonzero",
            "file": file,
            "line": 7,
            "op": "nonzero",
        }
    )
    verdict = ask_front_end(["train.py"], folder=tmp_path)
    assert not verdict
    assert verdict.words == "models/net.py:7: no nonzero"
    assert (verdict.file, verdict.line, verdict.op) == ("models/net.py", 7, "nonzero")


def test_every_optimizer_is_asked_until_one_is_refused(answers: Answers, tmp_path: Path) -> None:
    two = ACCEPTED | {"num_optimizers": 2}
    asked = answers(two, two | {"optimizer": "Adam"})
    verdict = ask_front_end("train.py", folder=tmp_path)
    assert verdict.accepted
    assert verdict.ops == 52
    assert "Adam" in verdict.asked
    assert [words[words.index("--update") + 1] for words in asked] == ["0", "1"]
    answers(two, two | {"accepted": False, "words": "refused"})
    assert not ask_front_end("train.py", folder=tmp_path)
    answers(two, {"failed": "no training"})
    verdict = ask_front_end("train.py", folder=tmp_path)
    assert verdict.accepted
    assert "not seen to update" in verdict.asked


def test_the_rest_of_a_step_whose_batch_is_refused(answers: Answers, tmp_path: Path) -> None:
    refused = ACCEPTED | {"accepted": False, "stage": "loader", "words": "Only uniform batch sizes."}
    asked = answers(refused, ACCEPTED)
    verdict = ask_front_end("train.py", folder=tmp_path)
    assert not verdict.accepted
    assert verdict.stage == "loader"
    assert verdict.words.startswith("Only uniform batch sizes.")
    assert "the rest of the step is accepted, 26 ops" in verdict.words
    assert "--capture-odd" in asked[1]
    assert verdict.details["rest"]["accepted"]


@pytest.mark.parametrize(
    ("document", "message", "cure"),
    [
        (
            {"failed": "no module", "module": "cv2.dnn"},
            "imports cv2",
            "pip install opencv-python-headless torch==",
        ),
        ({"failed": "no module", "module": "_pytest"}, "imports _pytest", "pip install pytest torch=="),
        (
            {"failed": "no module", "module": "nobody_has_this"},
            "imports nobody_has_this",
            "can be somebody else's",
        ),
        ({"failed": "crash", "words": "ValueError: no"}, "ValueError: no", "mend it first"),
        (
            {"failed": "crash", "words": "AttributeError: module 'torch' has no attribute 'x'"},
            "torch",
            "brings torch",
        ),
        ({"failed": "no training"}, "without an update", "that trains"),
        ({"failed": "not asked", "words": "because", "cure": "Do this."}, "because", "Do this."),
        ("", "it said this last", "mend it first"),
    ],
)
def test_a_script_that_cannot_be_asked_about(
    answers: Answers, tmp_path: Path, document: Any, message: str, cure: str
) -> None:
    answers(document)
    with pytest.raises(UserError) as raised:
        ask_front_end("train.py", folder=tmp_path)
    assert message in raised.value.message
    assert cure in raised.value.cure


def test_a_layout_is_asked_with_its_own_validate_only(answers: Answers, tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text("")
    (tmp_path / "cirh.mlir").write_text("lowered")
    found = {
        "accepted": True,
        "sdk": "2.10.0",
        "cirh_ops": {"Add": 2, "Mul": 3},
        "cirh": str(tmp_path / "cirh.mlir"),
    }
    asked = answers(json.dumps({"validated": found}))
    verdict = ask_front_end("run.py GPU --mode train --params p.yaml --model_dir mine", folder=tmp_path)
    assert (verdict.accepted, verdict.ops, verdict.cirh_bytes) == (True, 5, 7)
    assert asked[0][:6] == ["run.py", "CSX", "--mode", "train", "--params", "p.yaml"]
    assert "mine" not in asked[0]
    assert asked[0][-2:] == ["--validate_only", "--json"]
    refused = {
        "op": "item",
        "module": "",
        "file": "model.py",
        "line": 3,
        "reason": "no",
        "cure": "c",
        "phase": "forward",
    }
    answers(json.dumps({"validated": {"accepted": False, "sdk": "2.10.0", "refused": [refused]}}))
    verdict = ask_front_end("run.py CPU --params p.yaml", folder=tmp_path)
    assert (verdict.accepted, verdict.stage, verdict.words) == (False, "forward", "model.py:3: no")
    answers(json.dumps({"error": "p.yaml: no such file.", "cure": "Check."}))
    with pytest.raises(UserError, match="no such file"):
        ask_front_end("run.py CPU --params p.yaml", folder=tmp_path)


def test_targets_without_a_front_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no target"):
        ask_front_end("train.py", "csz", tmp_path)
    with pytest.raises(UnsupportedError, match="no front end"):
        ask_front_end("train.py", "gpu", tmp_path)
    monkeypatch.setattr(front_end, "find_usable", lambda environment: None)
    monkeypatch.setenv("PORTWRIGHT_ENVS", str(tmp_path / "none"))
    with pytest.raises(UnsupportedError) as raised:
        ask_front_end("train.py", "csx", tmp_path)
    assert "portwright env csx" in raised.value.cure


def test_the_flag_is_checked_before_anything_runs(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["verify", "a.py", "b.py", "--front-end", "nonsense"])
    assert isinstance(result.exception, UserError)
    assert "nonsense" in result.exception.message
