"""Whole scripts under the recorder. All recordings are made once, a few at a time."""

from __future__ import annotations

import filecmp
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import recorded_scripts as scripts

from portwright.errors import UserError
from portwright.verify.launch import Recorder, ScriptFailed, record
from portwright.verify.recording import Recording

LAYOUT = "port/run.py CPU --mode train --params port/params.yaml"
FILES = {
    "transformer.py": scripts.TRANSFORMER,
    "rewritten.py": scripts.REWRITTEN,
    "busy.py": scripts.BUSY,
    "sibling.py": scripts.SIBLING,
    "by_hand.py": scripts.BY_HAND,
    "mixed.py": scripts.MIXED,
    "plain.py": scripts.LAYOUT_ORIGINAL,
    "network.py": scripts.LAYOUT_NETWORK,
    "port/run.py": scripts.LAYOUT_RUN,
    "port/network.py": scripts.LAYOUT_NETWORK,
    "port/params.yaml": scripts.LAYOUT_PARAMS,
    "package/__init__.py": "",
    "package/parts.py": scripts.SIBLING,
    "package/train.py": "from .parts import make_net\nimport sys\nassert sys.argv[1:] == ['--input', 'x y'], sys.argv\n"
    "input('how many? ')\n",
    "crash.py": scripts.BY_HAND + "\nraise ValueError('bad thing €')\n",
    "never.py": "print('hello')\n",
    "hang.py": "import time\nprint('waiting', flush=True)\ntime.sleep(600)\n",
}
Get = Callable[[str], Recording]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def get(folder: Path, warm_recorder: None) -> Get:
    """Recordings by name; a failed one raises when it is asked for."""
    plain, out = Recorder(steps=6), folder / "recordings"

    def against(name: str, options: Recorder = plain) -> Recorder:
        running[name].result()
        return replace(options, against=out / name)

    with ThreadPoolExecutor(2) as pool:
        running: dict[str, Future[Recording]] = {}

        def start(name: str, command: str, make: Callable[[], Recorder] = lambda: plain) -> None:
            running[name] = pool.submit(lambda: record(command, out / name, make(), folder))

        start("transformer", "transformer.py", lambda: replace(plain, dropout="off"))
        start("plain", "python -u plain.py")
        start("rewritten", "rewritten.py", lambda: against("transformer", replace(plain, dropout="off")))
        start("layout", LAYOUT, lambda: against("plain"))
        start("busy", "busy.py")
        start("busy again", "busy.py")
        start("perturbed", "plain.py", lambda: replace(plain, perturb=1e-4, steps=2))
        start("in float64", LAYOUT, lambda: replace(plain, dtype="float64", steps=2))
        start("mixed", "mixed.py")
        start("mixed again", "mixed.py", lambda: against("mixed"))
        start("by hand", "by_hand.py")
        start("crash", "crash.py")
        start("never", "never.py")
        start("asks", "-m package.train --input 'x y'")
        start("hangs", "hang.py", lambda: replace(plain, timeout_seconds=3))
    return lambda name: running[name].result()


def losses(recording: Recording) -> list[tuple[float, ...]]:
    return [step.losses for step in recording.steps]


def distance(one: Recording, other: Recording, what: str) -> float:
    """The largest relative distance over all steps and tensors of the one."""
    keys = [key for key in one.arrays if key.startswith(f"{what}/")]
    assert keys
    return max(
        float(np.linalg.norm(one.arrays[key] - other.arrays[key]) / (np.linalg.norm(one.arrays[key]) + 1e-6))
        for key in keys
    )


def test_rewritten_network_computes_the_same(get: Get) -> None:
    original, ported = get("transformer"), get("rewritten")
    assert ported.ended == original.ended == "steps"
    assert len(original.steps) == len(ported.steps) == 6
    assert not ported.unmatched
    assert not ported.missing
    assert [step.batch for step in ported.steps] == [step.batch for step in original.steps]
    np.testing.assert_allclose(losses(ported), losses(original), rtol=1e-5)
    assert distance(original, ported, "initial") == 0
    assert distance(original, ported, "weight") < 1e-4
    matches = {match.original: match for match in ported.matches}
    fused = matches["blocks.1.attn.in_proj_weight"]
    assert fused.ported == ("h.1.q_proj.weight", "h.1.k_proj.weight", "h.1.v_proj.weight")
    assert (fused.layout, fused.initial) == ("joined along 0", "copied")
    assert matches["blocks.0.fc1.weight"].layout == "permuted 1 0"
    assert matches["blocks.0.norm2.bias"].ported == ("h.0.second.bias",)
    assert matches["blocks.0.norm2.bias"].initial == "identical"
    assert set(ported.steps[0].groups[0].parameters) == {tensor.name for tensor in original.tensors}


def test_dropout_that_is_off_is_still_told(get: Get) -> None:
    for name in ("transformer", "rewritten"):
        drawn = [(draw.rate, draw.size) for draw in get(name).steps[0].draws]
        assert drawn == [(0.1, 8 * 2 * 8 * 8), (0.1, 8 * 8 * 32)] * 2


def test_layout_port_sees_the_batches_of_the_original(get: Get, folder: Path) -> None:
    original, ported = get("plain"), get("layout")
    assert [step.batch for step in ported.steps] == [step.batch for step in original.steps]
    assert len(original.steps[0].batch) == 2  # the batch that was only looked at is none of them
    np.testing.assert_allclose(losses(ported), losses(original), rtol=1e-6)
    assert distance(original, ported, "weight") < 1e-5
    assert {match.initial for match in ported.matches} == {"identical"}
    assert (original.target, ported.target) == ("", "CPU")
    assert not (folder / "port" / "model_dir").exists()
    assert not (folder / "model_dir").exists()


def test_epochs_are_shuffled_anew(get: Get) -> None:
    steps = get("plain").steps  # five batches an epoch
    assert steps[5].batch != steps[0].batch
    assert steps[1].batch != steps[0].batch


@pytest.mark.parametrize("file", ["recording.json", "arrays.safetensors", "initial.safetensors"])
def test_the_same_script_gives_the_same_bits(get: Get, folder: Path, file: str) -> None:
    get("busy")
    get("busy again")
    one, other = (folder / "recordings" / name / file for name in ("busy", "busy again"))
    assert filecmp.cmp(one, other, shallow=False)


def test_a_step_is_an_update_with_all_that_led_to_it(get: Get, folder: Path) -> None:
    recording = get("busy")
    assert len(recording.steps) == 6
    for number, step in enumerate(recording.steps):
        assert step.optimizer == "SGD"
        assert len(step.losses) == 2
        assert [digest.shape for digest in step.batch] == [(5, 6), (5,)] * 2
        assert [output.kind for output in step.outputs].count("Linear") == 4
        assert step.outputs[0].module == "0"
        assert step.outputs[0].line.endswith(f"{folder.name}/busy.py:31")
        assert [(draw.function, draw.rate, draw.size) for draw in step.draws] == [("dropout", 0.5, 40)] * 2
        assert step.groups[0].options["lr"] == pytest.approx(0.1 * 0.5**number)
        assert step.zeroed
        assert step.devices == ("cpu",)
        norms = [
            np.linalg.norm(recording.arrays[f"gradient/{step.index}/{n}"]) for n in step.groups[0].parameters
        ]
        assert np.linalg.norm(norms) < 0.02  # as the optimizer sees them: clipped to 0.01
    assert not np.array_equal(
        recording.arrays["weight/2/1.running_mean"], recording.arrays["weight/1/1.running_mean"]
    )
    assert recording.steps[0].batch != recording.steps[1].batch


def test_nothing_of_the_users_is_written(get: Get, folder: Path) -> None:
    assert any("net.pt" in note for note in get("busy").notes)
    assert not (folder / "net.pt").exists()


def test_weights_without_module_or_optimizer(get: Get) -> None:
    recording = get("by hand")
    assert recording.ended == "script ended"
    assert [tensor.name for tensor in recording.tensors] == ["w", "b"]
    assert len(recording.steps) == 3
    for step in recording.steps:
        before = recording.sketch("weight", step.index - 1, "w")
        after, gradient = (recording.sketch(what, step.index, "w") for what in ("weight", "gradient"))
        assert before is not None
        assert after is not None
        assert gradient is not None
        np.testing.assert_allclose(after, before - 0.1 * gradient, atol=1e-6)


def test_several_roots_and_optimizers(get: Get) -> None:
    recording = get("mixed")
    assert [step.optimizer for step in recording.steps[:2]] == ["AdamW", "Adam"]
    assert [step.optimizer_number for step in recording.steps[:2]] == [1, 0]
    trained = {tensor.name: tensor.trained for tensor in recording.tensors}
    assert trained["maker.first.weight"]
    assert not trained["critic.1.bias"]
    assert not trained["teacher.weight"]
    assert recording.steps[1].no_gradient == ("critic.1.bias",)
    assert recording.sketch("weight", 1, "teacher.weight") is None
    assert recording.sketch("initial", 0, "teacher.weight") is not None
    assert [draw.function for draw in recording.steps[0].draws] == ["LSTM", "dropout"]
    assert recording.steps[0].groups[0].options["lr"] == 0.5
    assert recording.steps[0].batch != recording.steps[2].batch
    assert recording.steps[1].batch == ()  # of the second update in a round no loader gave another
    assert losses(get("mixed again")) == losses(recording)
    assert distance(recording, get("mixed again"), "gradient") == 0


def test_float64_all_through(get: Get) -> None:
    double = get("in float64")
    assert {tensor.dtype for tensor in double.tensors} == {"float64", "int64"}
    assert {step.loss_dtype for step in double.steps} == {"float64"}
    assert {digest.dtype for digest in double.steps[0].batch} == {"float64", "int64"}
    assert double.dtype == "float64"


def test_noise_is_as_large_as_asked(get: Get) -> None:
    plain, noisy = get("plain"), get("perturbed")
    relative = distance(plain, noisy, "initial")
    assert 1e-5 < relative < 1e-3
    assert noisy.perturbed == 1e-4
    assert noisy.steps[0].batch == plain.steps[0].batch
    assert 0 < abs(noisy.steps[0].losses[0] - plain.steps[0].losses[0]) < 1e-2


@pytest.mark.parametrize(
    ("name", "num_steps", "said"),
    [
        ("crash", 3, "ValueError: bad thing €"),
        ("never", 0, "without a single step"),
        ("asks", 0, "asks for input"),
        ("hangs", 0, "the last it said: waiting"),
    ],
)
def test_scripts_that_fail_say_why(get: Get, name: str, num_steps: int, said: str) -> None:
    with pytest.raises(ScriptFailed, match=said) as caught:
        get(name)
    assert caught.value.num_steps == num_steps
    assert caught.value.cure


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("", "is empty"),
        ("nosuch.py", "There is no script nosuch.py"),
        ("torchrun --nproc_per_node 2 never.py", "launcher"),
        ("-m", "no module"),
        ("python -c pass", "flag -c"),
        ("never.py 'open", "cannot be split"),
    ],
)
def test_commands_that_cannot_be(folder: Path, tmp_path: Path, command: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        record(command, tmp_path, Recorder(), folder)


def test_a_notebook_is_no_command(tmp_path: Path) -> None:
    (tmp_path / "book.ipynb").write_text("{}")
    with pytest.raises(UserError, match=r"book\.ipynb is a notebook") as caught:
        record("book.ipynb", tmp_path / "out", Recorder(), tmp_path)
    assert "nbconvert" in caught.value.cure


def test_on_csx_a_step_cannot_be_read(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ScriptFailed, match="on CSX a step runs on the system"):
        record(LAYOUT.replace("CPU", "CSX"), tmp_path, Recorder(), folder)


def test_a_pool_that_trains_and_is_left_open(tmp_path: Path) -> None:
    """Python lets a pool finish when a program ends; a recorder that waited for its threads alone would wait for ever."""
    script = tmp_path / "pool.py"
    script.write_text(
        "import torch\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "pool = ThreadPoolExecutor(2)\n"
        "model = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "def train():\n"
        "    for _ in range(3):\n"
        "        optimizer.zero_grad()\n"
        "        model(torch.ones(3, 2)).sum().backward()\n"
        "        optimizer.step()\n"
        "pool.submit(train)\n"
    )
    recording = record(str(script), tmp_path / "recording", Recorder(steps=5, timeout_seconds=120))
    assert len(recording.steps) == 3
    assert recording.ended == "script ended"
