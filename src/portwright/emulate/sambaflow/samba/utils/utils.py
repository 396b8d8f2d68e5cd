"""sambaflow.samba.utils.utils: where the vendor's API reference has trace_graph."""

from __future__ import annotations

from portwright.emulate.sambaflow.samba.utils import (  # noqa: F401
    assert_close,
    get_file_dir,
    init_output_grads,
    measure_performance,
    set_seed,
    trace_graph,
)
