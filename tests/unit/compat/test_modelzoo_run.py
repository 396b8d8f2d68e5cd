"""What release 1.6 put into params before a model's code saw them."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from portwright.compat.modelzoo_run import with_release_defaults
from portwright.job.arguments import Arguments, parse_arguments


def arguments(*words: str) -> Arguments:
    return parse_arguments([*words, "--params", "x.yaml"])


def complete(
    params: dict[str, Any], *words: str, default_params_fn: Any = None
) -> tuple[dict[str, Any], list[str]]:
    notes: list[str] = []
    function = with_release_defaults(default_params_fn, lambda: arguments(*words), notes.append)
    return function(params), notes


def test_the_command_line_stands_in_runconfig_before_the_models_own_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/run.py"])
    seen: list[dict[str, Any]] = []

    def own(params: dict[str, Any]) -> None:
        seen.append(dict(params["runconfig"]))
        params["model"]["added"] = 1

    values, _ = complete({"model": {}, "optimizer": {}}, "CPU", "--mode", "eval", default_params_fn=own)
    assert seen == [{"mode": "eval", "model_dir": "/somewhere/model_dir"}]
    assert values["model"] == {"added": 1, "mixed_precision": False}


def test_defaults_may_be_returned_or_changed_in_place() -> None:
    values, _ = complete(
        {"model": {}}, "CPU", "--mode", "train", default_params_fn=lambda params: {**params, "new": {}}
    )
    assert "new" in values


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        ({"optimizer_type": "AdamW"}, False),
        ({"optimizer_type": "adamw", "correct_bias": True}, True),
        ({"optimizer_type": "Adam"}, None),
    ],
)
def test_adamw_does_not_correct_its_bias_unless_told(
    optimizer: dict[str, Any], expected: bool | None
) -> None:
    values, _ = complete({"optimizer": optimizer}, "CPU", "--mode", "train")
    assert values["optimizer"].get("correct_bias") is expected


@pytest.mark.parametrize(
    ("target", "mixed", "runconfig", "precision"),
    [
        ("CPU", True, {}, "fp32"),
        ("CPU", True, {"precision": "bf16"}, "bf16"),
        ("CPU", False, {}, None),
        ("GPU", True, {}, None),
    ],
)
def test_mixed_precision_is_for_gpus(
    target: str, mixed: bool, runconfig: dict[str, Any], precision: str | None
) -> None:
    params = {"model": {"mixed_precision": mixed}, "runconfig": dict(runconfig)}
    values, notes = complete(params, target, "--mode", "train")
    assert values["runconfig"].get("precision") == precision
    assert bool(notes) == (precision == "fp32")


def test_a_function_that_returns_nonsense_is_reported_by_who_called() -> None:
    values, _ = complete({"model": {}}, "CPU", "--mode", "train", default_params_fn=lambda params: 5)
    assert values == 5
