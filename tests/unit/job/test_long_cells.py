"""csv's bound while readers take turns."""

from __future__ import annotations

import csv

from portwright.job.long_cells import begin_long_cells, end_long_cells


def test_readers_that_end_in_any_order_leave_the_bound_as_it_was() -> None:
    before = csv.field_size_limit()
    begin_long_cells()
    begin_long_cells()
    end_long_cells()
    assert csv.field_size_limit() == 1 << 30
    end_long_cells()
    assert csv.field_size_limit() == before
