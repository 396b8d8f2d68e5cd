"""Writes docs/cosmictagger_port.md: what `portwright port --style branches` changes in the public CosmicTagger, hunk by hunk.

PORTWRIGHT_CORPUS=DIR names a folder with coreyjadams+CosmicTagger. With --run the losses are measured anew and kept in
benchmarks/results/cosmictagger_port.json, for which hydra-core, omegaconf and tensorboard must be importable.
usage: PORTWRIGHT_CORPUS=DIR python tools/make_cosmictagger_diff.py [--run]
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from portwright.job.atomic import atomic_write_text
from portwright.port.branches.api import port_branches

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "cosmictagger_port.md"
FIGURES = ROOT / "benchmarks" / "results" / "cosmictagger_port.json"
DRIVER = ROOT / "tests" / "corpus" / "drivers" / "cosmictagger.py"
FILES = ("src/config/config.py", "bin/exec.py", "src/utils/torch/trainer.py")
SETTINGS = (
    "mode=train framework=torch data=synthetic run.distributed=False run.id=x data.downsample=3 network.depth=4 "
    "run.minibatch_size=1 run.iterations=6 data.seed=1"
)
OFF_CHIP = "TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))"
# The first pattern that a hunk's added lines hold says why it is there; a hunk without one is an error.
REASONS: tuple[tuple[str, str], ...] = (
    (r"^    [IR][PD]U   = \d", "A member of the enumeration: every member that the code asks for is defined, with a value that no other has."),
    (r"import inspect", "For the next hunk."),
    (r"HYDRA_VERSION = ", "The project pins Hydra 1.1, which has no `version_base`, and is written for 1.2. The published port dropped the argument, which gives a "
     "newer Hydra the behaviour of 1.1; here it is given to a Hydra that has it."),
    (r"hydra.job.chdir", "The same for an override that came with Hydra 1.2."),
    (r"import poptorch", "The import is guarded. Model and loss become one module, the step's own statements: the loss goes through `identity_loss`, and without "
     "labels it is the model alone, for evaluation. Options can be given in a file."),
    (r"import sambaflow", "The imports are guarded, and each is used. Model and loss become one module, loss first; `RduTraining` makes of it SambaFlow's compile and run: "
     "plain tensors with names, the optimizer in SambaFlow's class, the learning rate as a hyperparameter of each step. SambaFlow gets a copy of the model, so that "
     "the host's own stays plain."),
    (r"^    \w+_training = None", "Until the device is opened there is no executor; the executor has a name of its own, so that no `.to(device)` puts the bare model in its place."),
    (r"poptorch.trainingModel\(", "The executor is made where network, loss and optimizer are known, after the quantization-aware branch and after weights were restored, "
     "with the optimizer of the user. The evaluating executor is made from it and follows its weights."),
    (r"RduTraining\(", "The executor is made where network, loss and optimizer are known. This branch trains; inference asked for there is an error, not a silent run on the CPU."),
    (r"poptorch.optim|and poptorch is None", "The optimizer is PopTorch's own class when the IPU is asked for: torch's would train too, but its state would stay empty, and a "
     "checkpoint would lose the moments."),
    (r"copyWeightsToHost|\.to_host\(\)$", "Weights come back to the host before they are read there: checkpoints, tracing, histograms."),
    (r"return logits_image, labels_image, loss", "One call computes outputs, loss, gradients and update. What needs no output (labels to long, chunked by plane, viewed) "
     "stays on the host, before the call. In evaluation the weights are those of training."),
    (r"grad_accum != 1", "Several batches an update are refused, since each call updates."),
    (r"logits_image, labels_image, loss = self.forward_pass", "The training step takes the loss with the outputs."),
    (r"self.loss_calculator\(", "The host computes the loss only where the host trains."),
    (r"zero_grad\(\)|loss.backward\(\)|self._opt.step\(\)", "Cleared gradients, backward and update are the host's alone. The branches with a gradient scaler are for "
     "GPUs and stay as they are."),
    (r"setOptimizer", "The schedule reaches the device: a new learning rate counts only after `setOptimizer`."),
)  # fmt: skip


def main() -> int:
    corpus = os.environ.get("PORTWRIGHT_CORPUS")
    original = Path(corpus or ".") / "coreyjadams+CosmicTagger"
    if not (original / FILES[-1]).is_file():
        print(f"PORTWRIGHT_CORPUS names no folder with {original.name}.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        folders = {}
        for target in ("ipu", "rdu", "both"):
            folders[target] = Path(scratch) / target
            shutil.copytree(original, folders[target], ignore=shutil.ignore_patterns(".git", "output"))
            for one in ("ipu", "rdu") if target == "both" else (target,):
                port_branches([folders[target]], [one], write=True)
        if "--run" in sys.argv:
            plain = Path(scratch) / "plain"
            shutil.copytree(original, plain, ignore=shutil.ignore_patterns(".git", "output"))
            figures = measure(plain, folders["both"], Path(scratch))
            atomic_write_text(FIGURES, json.dumps(figures, indent=2) + "\n")
        diffs = {target: "\n".join(show(original, folders[target])) for target in ("ipu", "rdu")}
    figures = json.loads(FIGURES.read_text()) if FIGURES.is_file() else {}
    atomic_write_text(PAGE, page(diffs, figures))
    return 0


def show(original: Path, ported: Path) -> Iterator[str]:
    for name in FILES:
        before, after = ((folder / name).read_text().splitlines() for folder in (original, ported))
        lines = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
        yield f"#### {name}\n"
        for hunk in _hunks(lines):
            added = [line[1:] for line in hunk if line.startswith("+")]
            yield f"{_reason(added)}\n\n```diff\n" + "\n".join(hunk) + "\n```\n"


def _hunks(lines: list[str]) -> Iterator[list[str]]:
    hunk: list[str] = []
    for line in lines:
        if line.startswith("@@") and hunk:
            yield hunk
            hunk = []
        hunk.append(line)
    if hunk:
        yield hunk


def _reason(added: list[str]) -> str:
    for pattern, sentence in REASONS:
        if any(re.search(pattern, line) for line in added):
            return sentence
    raise SystemExit("no reason is known for a hunk that adds:\n" + "\n".join(added))


def measure(plain: Path, ported: Path, scratch: Path) -> dict[str, Any]:
    """The losses of 6 steps: the original, the port on the CPU, and the port on both emulators."""
    options = scratch / "options.txt"
    options.write_text(OFF_CHIP + "\n")
    pef = f"--pef={scratch}/step/step.pef --num-tiles=4"
    compiling = f"compile --pef-name=step --output-folder={scratch} --num-tiles=4 --graphamp-preset=mp0 --unlisted-ops=warn"
    losses = {
        "original, CPU": _run(plain, scratch, "CPU"),
        "port, CPU": _run(ported, scratch, "CPU"),
        "port, IPU (emulated)": _run(ported, scratch, "IPU", "poptorch", IPU_OPTIONS=str(options)),
    }
    failed = _run(ported, scratch, "RDU", "sambaflow", RDU_COMMAND=compiling)
    losses["port, RDU (emulated)"] = failed or _run(
        ported, scratch, "RDU", "sambaflow", RDU_COMMAND=f"run {pef}"
    )
    return {"settings": SETTINGS, "python": sys.version.split()[0], "torch": _version(), "losses": losses}


def _version() -> str:
    import torch

    return str(torch.__version__)


def _run(folder: Path, scratch: Path, mode: str, package: str = "", **variables: str) -> list[float] | str:
    """The losses in full, or the last line of what went wrong."""
    lend = ["--lend", package] if package else []
    words = [sys.executable, str(DRIVER), str(scratch / "losses"), *lend, *SETTINGS.split()]
    done = subprocess.run(
        [*words, f"run.compute_mode={mode}", f"output_dir={scratch}/output/{folder.name}-{mode}"],
        cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
    )  # fmt: skip
    if done.returncode:
        said = [
            line for line in done.stderr.splitlines() if re.match(r"\S*(Error|Exception)\b", line)
        ] or done.stderr.splitlines()
        return said[-1].replace(str(scratch), "...")[:300]
    found: list[float] = json.loads((scratch / "losses").read_text())
    return found


def page(diffs: dict[str, str], figures: dict[str, Any]) -> str:
    head = (ROOT / "tools" / "cosmictagger_port_head.md").read_text()
    return head.replace("FIGURES\n", "\n".join(table(figures)) + "\n").replace("IPU_DIFF\n", diffs["ipu"]).replace("RDU_DIFF\n", diffs["rdu"])  # fmt: skip


def table(figures: dict[str, Any]) -> Iterator[str]:
    if not figures:
        yield "Not measured: run tools/make_cosmictagger_diff.py --run."
        return
    reference = figures["losses"]["original, CPU"]
    yield "| run | loss, step 1 | loss, step 6 | largest relative distance from the original |"
    yield "| --- | --- | --- | --- |"
    for name, losses in figures["losses"].items():
        if isinstance(losses, str):
            yield f"| {name} | | | failed: {losses} |"
            continue
        worst = max(abs(a - b) / abs(b) for a, b in zip(losses, reference, strict=True))
        yield f"| {name} | {losses[0]:.6f} | {losses[-1]:.6f} | {worst:.1e} |"
    yield ""
    yield f"torch {figures['torch']}, float32, `python bin/exec.py {figures['settings']} run.compute_mode=...`, torch seeded with 0."


if __name__ == "__main__":
    sys.exit(main())
