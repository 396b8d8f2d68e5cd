"""How long a run trains, of whichever keys say so."""

from __future__ import annotations

from typing import Any

import pytest

from portwright.errors import UserError
from portwright.job.runconfig import RunConfig, find_last_step


@pytest.mark.parametrize(
    ("config", "steps_in_epoch", "last"),
    [
        ({"max_steps": 7}, 5, 7),
        ({"num_epochs": 2}, 5, 10),
        ({"num_epochs": 2, "max_steps": 7}, 5, 7),
        ({"num_epochs": 1, "max_steps": 7}, 5, 5),
        (
            {"num_epochs": 2, "max_steps": 7},
            None,
            7,
        ),  # nobody knows how long an epoch is, and max_steps is an end
    ],
)
def test_the_first_end_that_is_known(config: dict[str, Any], steps_in_epoch: int | None, last: int) -> None:
    steps_in = (lambda n: None) if steps_in_epoch is None else (lambda n: n * steps_in_epoch)
    assert find_last_step(RunConfig(**config), 0, steps_in) == last


def test_epochs_alone_need_a_length() -> None:
    with pytest.raises(UserError, match="not known"):
        find_last_step(RunConfig(num_epochs=2), 0, lambda n: None)
