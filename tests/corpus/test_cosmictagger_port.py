"""The public CosmicTagger, ported by `portwright port --style branches` as it is: its edits, and its losses on every device.

The original is no part of this repository. PORTWRIGHT_CORPUS=DIR names a folder with coreyjadams+CosmicTagger (commit
156c480, with its YAML files); to run it, the packages hydra-core, omegaconf and tensorboard must be importable here, or
in the folder that PORTWRIGHT_CORPUS_PACKAGES=DIR names. Without them these tests are skipped, and counted so.
"""

from __future__ import annotations

import ast
import importlib.machinery
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from portwright.port.branches.api import port_branches

HERE = Path(__file__).parent
CORPUS = os.environ.get("PORTWRIGHT_CORPUS")
PACKAGES = os.environ.get("PORTWRIGHT_CORPUS_PACKAGES")
NEEDED = ("hydra", "omegaconf", "tensorboard")
SETTINGS = (
    "mode=train", "framework=torch", "data=synthetic", "run.distributed=False", "run.id=x", "data.downsample=3",
    "network.depth=4", "run.minibatch_size=1", "run.iterations=6", "data.seed=1", "mode.checkpoint_iteration=5",
)  # fmt: skip
TRAINER, CONFIG, MAIN = "src/utils/torch/trainer.py", "src/config/config.py", "bin/exec.py"
TARGETS = {"ipu": ("ipu",), "rdu": ("rdu",), "both": ("ipu", "rdu"), "both, the other way": ("rdu", "ipu")}


def original_folder() -> Path:
    if CORPUS is None:
        pytest.skip("PORTWRIGHT_CORPUS=DIR names no folder of public projects")
    folder = Path(CORPUS) / "coreyjadams+CosmicTagger"
    if not (folder / TRAINER).is_file():
        pytest.skip("coreyjadams/CosmicTagger is not in PORTWRIGHT_CORPUS")
    return folder


def copy_and_port(into: Path, *targets: str) -> Path:
    shutil.copytree(original_folder(), into, ignore=shutil.ignore_patterns(".git", "output", ".portwright"))
    for target in targets:
        done = port_branches([into], [target], write=True)
        assert not [f.message for f in done.left if "branch was added" in f.message]
    return into


@pytest.fixture(scope="module", params=sorted(TARGETS))
def ported(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, tuple[str, ...]]:
    targets = TARGETS[request.param]
    return copy_and_port(tmp_path_factory.mktemp("port") / "ported", *targets), targets


def test_every_member_that_is_used_is_defined(ported: tuple[Path, tuple[str, ...]]) -> None:
    folder, targets = ported
    modes = next(n for n in ast.walk(ast.parse((folder / CONFIG).read_text())) if isinstance(n, ast.ClassDef) and n.name == "ComputeMode")  # fmt: skip
    members = {t.id: ast.literal_eval(s.value) for s in modes.body if isinstance(s, ast.Assign) for t in s.targets if isinstance(t, ast.Name)}  # fmt: skip
    assert set(members) == {"CPU", "GPU", "DPCPP", "XPU", *(t.upper() for t in targets)}
    assert len(set(members.values())) == len(members)
    used = set()
    for path in (folder / "src").rglob("*.py"):
        used |= set(re.findall(r"\bComputeMode\.(\w+)", path.read_text()))
    assert used - set(members) == set()


def test_vendors_packages_are_imported_under_guard_and_all_that_is_imported_is_used(
    ported: tuple[Path, tuple[str, ...]],
) -> None:
    folder, targets = ported
    tree = ast.parse((folder / TRAINER).read_text())
    packages = {"ipu": "poptorch", "rdu": "sambaflow"}
    guarded: dict[str, set[str]] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Try):
            for part in statement.body:
                for name, bound in _imports(part):
                    guarded.setdefault(name.partition(".")[0], set()).add(bound)
            caught = [h.type.id for h in statement.handlers if isinstance(h.type, ast.Name)]
            if {name for name, _ in _imports(statement.body[0])} & {"poptorch", "sambaflow.samba.utils"}:
                assert caught == ["ImportError"]
        else:
            assert not any(n.partition(".")[0] in packages.values() for n, _ in _imports(statement))
    for target in targets:
        bound = guarded[packages[target]]
        loaded = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        assert bound <= loaded
    if "rdu" in targets:
        assert {"samba", "samba_utils", "parse_app_args", "common_app_driver"} <= guarded["sambaflow"]


def _imports(statement: ast.stmt) -> Iterator[tuple[str, str]]:
    if isinstance(statement, ast.Import):
        yield from ((a.name, a.asname or a.name.partition(".")[0]) for a in statement.names)
    elif isinstance(statement, ast.ImportFrom) and not statement.level:
        yield from ((f"{statement.module}.{a.name}", a.asname or a.name) for a in statement.names)


def test_the_edits_of_seed_004_are_there(ported: tuple[Path, tuple[str, ...]]) -> None:
    folder, targets = ported
    before = (original_folder() / TRAINER).read_text()
    after = (folder / TRAINER).read_text()
    quantized = before[before.index("if self.is_training() and self.args.mode.quantization_aware:") :]
    quantized = quantized[: quantized.index("def initialize")]
    assert quantized in after
    for target in targets:
        training = f"self.{target}_training"
        tree = ast.parse(after)
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        host = {"loss.backward()", "self._opt.step()", "self._opt.zero_grad()"}
        met = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr) and ast.unparse(node) in host:
                met.add(ast.unparse(node))
                assert f"{training} is None" in _conditions(parents, node)
        assert met == host
        # Nothing is ever assigned to the executor but by the branch itself: no .to(device) can replace it.
        assert len(re.findall(rf"^\s*{re.escape(training)} = ", after, re.MULTILINE)) == 1
        assert f"ComputeMode.{target.upper()}:" in after
    if "ipu" in targets:
        assert 'poptorch.identity_loss(loss, reduction="mean")' in after
        assert "poptorch.trainingModel(ModelWithLoss(self._net, self.loss_calculator), ipu_options(), self._opt)" in after.replace("IpuModelWithLoss", "ModelWithLoss")  # fmt: skip
        assert "self.ipu_training.setOptimizer(self._opt)" in after
        assert "poptorch.optim.Adam(self._net.parameters(), 1.0)" in after
        assert "poptorch.optim.RMSprop(self._net.parameters(), 1.0, eps=1e-4)" in after
        saving = after[after.index("def save_model") :]
        assert saving.index("copyWeightsToHostIfNeeded") < saving.index("self._net.state_dict()")
    if "rdu" in targets:
        saving = after[after.index("def save_model") :]
        assert saving.index("self.rdu_training.to_host()") < saving.index("self._net.state_dict()")
    assert "@hydra.main(**HYDRA_VERSION, " in (folder / MAIN).read_text()


def _conditions(parents: dict[ast.AST, ast.AST], node: ast.AST) -> set[str]:
    found = set()
    while node in parents:
        outer = parents[node]
        if isinstance(outer, ast.If) and node in outer.body:
            found.add(ast.unparse(outer.test))
        node = outer
    return found


def test_a_second_port_changes_nothing(ported: tuple[Path, tuple[str, ...]]) -> None:
    folder, targets = ported
    for target in targets:
        assert port_branches([folder], [target]).changed == []


# -- run -----------------------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    paths = [PACKAGES] if PACKAGES else []
    missing = [
        name for name in NEEDED if importlib.machinery.PathFinder.find_spec(name, [*paths, *sys.path]) is None
    ]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (hydra-core, omegaconf, tensorboard)")
    if not (original_folder() / "src/config/config.yaml").is_file():
        pytest.skip("the CosmicTagger in PORTWRIGHT_CORPUS is without its YAML files")
    found = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    if paths:
        found["PYTHONPATH"] = os.pathsep.join([*paths, found.get("PYTHONPATH", "")])
    return found


def run(folder: Path, losses: Path, *words: str, **variables: str) -> str:
    """The end of what a run prints; its losses in full are in the file."""
    done = subprocess.run(
        [sys.executable, str(HERE / "drivers" / "cosmictagger.py"), str(losses), *words],
        cwd=folder, capture_output=True, text=True, check=False, env={**environment(), **variables}, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout[-4000:]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The original's losses on this machine's CPU."""
    environment()
    folder = tmp_path_factory.mktemp("original")
    run(copy_and_port(folder / "copy"), folder / "losses", *SETTINGS, "run.compute_mode=CPU")
    losses: list[float] = json.loads((folder / "losses").read_text())
    assert len(losses) == 6
    assert losses[-1] < losses[0]
    return losses


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_trains_on_the_emulated_ipu_as_on_the_cpu(reference: list[float], tmp_path: Path) -> None:
    folder = copy_and_port(tmp_path / "ported", "ipu", "rdu")
    options = (
        tmp_path / "options.txt"
    )  # one IPU has no room for all of a step: the optimizer's state stays outside
    options.write_text(
        "TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))\n"
    )
    words = ("--lend", "poptorch", *SETTINGS, "run.compute_mode=IPU")
    run(folder, tmp_path / "losses", *words, IPU_OPTIONS=str(options))
    losses = json.loads((tmp_path / "losses").read_text())
    assert losses == pytest.approx(reference, rel=1e-5)
    assert_checkpoint(folder, with_moments=True)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_trains_on_the_emulated_rdu_as_on_the_cpu(reference: list[float], tmp_path: Path) -> None:
    folder = copy_and_port(tmp_path / "ported", "ipu", "rdu")
    words = ("--lend", "sambaflow", *SETTINGS, "run.compute_mode=RDU")
    # Tiles of one half, since the batch is 1; mp0 keeps float32; no public document shows this model's ops on an RDU.
    settings = "--num-tiles=4 --graphamp-preset=mp0 --unlisted-ops=warn"
    compiled = run(folder, tmp_path / "none", *words, RDU_COMMAND=f"compile --pef-name=step --output-folder={tmp_path} {settings}")  # fmt: skip
    assert "the step is compiled" in compiled
    run(folder, tmp_path / "losses", *words, RDU_COMMAND=f"run --pef={tmp_path}/step/step.pef --num-tiles=4")
    losses = json.loads((tmp_path / "losses").read_text())
    assert losses == pytest.approx(reference, rel=1e-5)
    assert_checkpoint(folder, with_moments=False)


def assert_checkpoint(folder: Path, with_moments: bool) -> None:
    """The checkpoint after step 5 has trained weights, and the optimizer's state where the vendor gives it."""
    import numpy
    import torch

    (path,) = (folder / "output").rglob("model-5.ckpt")
    scalars = [numpy.dtype, numpy.dtypes.Float64DType, numpy._core.multiarray.scalar]
    with torch.serialization.safe_globals(scalars):
        state = torch.load(path, weights_only=True)
    norms = {n: v for n, v in state["state_dict"].items() if n.endswith("num_batches_tracked")}
    assert norms
    assert all(int(count) >= 5 for count in norms.values())
    assert bool(state["optimizer"].get("ipu_state")) == with_moments


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("mode", "emulate"), [("CPU", None), ("IPU", "ipu")])
def test_verify_proves_it_equal(mode: str, emulate: str | None, tmp_path: Path) -> None:
    from portwright.verify.api import verify

    variables = environment()
    copy_and_port(tmp_path / "original")
    copy_and_port(tmp_path / "ported", "ipu", "rdu")
    settings = " ".join([*SETTINGS, "data.downsample=4"])
    path = f"PYTHONPATH={variables.get('PYTHONPATH', '')} "
    proof = verify(
        f"{path}original/bin/exec.py {settings} run.compute_mode=CPU output_dir={tmp_path}/a",
        f"{path}ported/bin/exec.py {settings} run.compute_mode={mode} output_dir={tmp_path}/b",
        steps=4, emulate=emulate, folder=tmp_path,
    )  # fmt: skip
    assert proof.is_good, proof.first_difference
    assert proof.steps == 4
    assert (proof.place.ran_on.get("vendor_calls") or {}) == (
        {"poptorch.trainingModel": 4} if emulate else {}
    )
