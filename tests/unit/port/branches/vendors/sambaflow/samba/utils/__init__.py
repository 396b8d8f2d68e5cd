from __future__ import annotations

from pathlib import Path

from sambaflow.samba import session


def get_file_dir(file):
    return str(Path(file).parent)


def trace_graph(model, inputs, optimizer, pef):
    assert pef.endswith(".pef")
    session.trace(model, inputs, optimizer)
    return model.output_tensors
