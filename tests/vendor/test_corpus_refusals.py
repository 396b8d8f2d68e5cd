"""The real front end refuses the minimal programs of docs/corpus.md, in the words that are printed there."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from corpus.refusals import REFUSALS, Refusal

pytestmark = [
    pytest.mark.vendor,
    pytest.mark.skipif(
        importlib.util.find_spec("cerebras") is None, reason="the Cerebras SDK is not in this environment"
    ),
    pytest.mark.filterwarnings("default"),
]

# One step, with the batch fed as it is: the harness of the other tests packs it, and a loader's refusal would not show.
STEP = """
import cerebras.pytorch as cstorch

backend = cstorch.backend("CSX", validate_only=True)
with backend.device:
    model = make_model()
net = cstorch.compile(model, backend)
optimizer = cstorch.optim.SGD(model.parameters(), lr=0.1)
batches = [batch if isinstance(batch, tuple) else (batch,)] * 2
loader = cstorch.utils.data.DataLoader(lambda: torch.utils.data.DataLoader(batches, batch_size=None))


@cstorch.trace
def step(batch):
    loss = net(*batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


for batch in cstorch.utils.data.DataExecutor(loader, num_steps=1):
    step(batch)
print("accepted")
"""


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.projects[0])
def test_a_minimal_program_is_refused_in_these_words(refusal: Refusal, tmp_path: Path) -> None:
    lib = Path(str(importlib.util.find_spec("cerebras.pytorch").origin)).parent / "lib"  # type: ignore[union-attr]
    env = {**os.environ, "PATH": f"{lib}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    (tmp_path / "program.py").write_text(refusal.code + STEP)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300
    )
    assert "accepted" not in done.stdout.split()
    assert done.returncode != 0
    assert refusal.words in done.stdout + done.stderr
