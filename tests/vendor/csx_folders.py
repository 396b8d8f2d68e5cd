"""Runs run.py of many model folders with the SDK imported once: a forked child each, since a process has one backend.

python csx_folders.py OUT.json '["CSX", "--validate_only", ...]' FOLDER...
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

RUN = """
from model import Model
from data import get_data
from portwright import run

run(Model, get_data, get_data)
"""
DATA = """
import torch

def get_data(params):
    x = torch.randn(16, *params["train_input"].get("shape", [8]))
    y = torch.randint(0, 4, (16,))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4, drop_last=True)
"""
PARAMS = """
train_input: {shape: SHAPE}
eval_input: {shape: SHAPE}
model: {}
optimizer: {optimizer_type: SGD, learning_rate: 0.1}
runconfig: {max_steps: 2}
"""


def make_folder(place: Path, model: str, shape: str = "[8]", params: str | None = None) -> Path:
    """A model folder of the taught layout around one model."""
    (place / "configs").mkdir(parents=True)
    (place / "model.py").write_text(model)
    (place / "data.py").write_text(DATA)
    (place / "run.py").write_text(RUN)
    (place / "configs" / "params.yaml").write_text(params or PARAMS.replace("SHAPE", shape))
    return place


def _run_here(folder: str, arguments: list[str]) -> None:
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.argv = ["run.py", *arguments]
    os.dup2(os.open("stdout", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    os.dup2(os.open("stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    try:
        runpy.run_path("run.py", run_name="__main__")
    except SystemExit as stop:
        os._exit(int(stop.code or 0))
    except BaseException:
        traceback.print_exc()
        os._exit(99)
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    from front_end import import_sdk

    import_sdk()
    import portwright.runtime.run
    import portwright.targets.csx.front_end  # noqa: F401  # all children share these

    gc.freeze()
    out, arguments = Path(sys.argv[1]), json.loads(sys.argv[2])
    results: dict[str, Any] = {}
    for folder in sys.argv[3:]:
        pid = os.fork()
        if pid == 0:
            _run_here(folder, arguments)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        text = (Path(folder) / "stdout").read_text()
        results[Path(folder).name] = {
            "status": status,
            "document": json.loads(text) if text.strip().startswith("{") else None,
            "stderr": (Path(folder) / "stderr").read_text(),
        }
    out.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
