"""Keras scripts as layouts: what is read, what is written, and what is refused. Nothing here loads TensorFlow."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from portwright.errors import UserError
from portwright.port.api import PortResult, port

HEAD = "import numpy as np\nimport tensorflow as tf\nfrom tensorflow import keras\n\n"
DATA = "x = np.zeros((8, 4), 'float32')\ny = np.zeros(8)\n"
MODEL = "model = keras.Sequential([keras.layers.Dense(1)])\n"
COMPILE = "model.compile('adam', 'mse')\n"
FIT = "model.fit(x, y)\n"


def make(text: str, tmp_path: Path) -> tuple[PortResult, Path]:
    script = tmp_path / "train.py"
    script.write_text(text, encoding="utf-8")
    out = tmp_path / "out"
    return port([script], ["csx"], style="layout", out=out), out


def params_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((out / "configs/params.yaml").read_text())
    return found


def test_the_smallest_script(tmp_path: Path) -> None:
    result, out = make(HEAD + DATA + MODEL + COMPILE + FIT, tmp_path)
    assert sorted(p.name for p in out.rglob("*.*") if p.is_file() and p.parent.name != ".portwright") == [
        "data.py", "model.py", "params.yaml", "run.py", "utils.py",
    ]  # fmt: skip
    for name in ("model", "data", "utils", "run"):
        ast.parse((out / f"{name}.py").read_text())
    params = params_of(out)
    assert params["train_input"] == {"batch_size": 32, "shuffle": True, "drop_last": False}
    assert params["optimizer"]["optimizer_type"] == "Adam"
    assert params["optimizer"]["eps"] == 1e-7
    assert params["runconfig"] == {"num_epochs": 1, "seed": 1}
    assert {f.code for f in result.left} == {"PW703"}
    again, _ = make(HEAD + DATA + MODEL + COMPILE + FIT, tmp_path)
    assert again.changed == result.changed


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        ("'sgd'", {"optimizer_type": "SGD", "learning_rate": 0.01, "momentum": 0.0}),
        ("tf.keras.optimizers.SGD(RATE * 2, momentum=0.9)", {"learning_rate": 0.2, "momentum": 0.9}),
        ("keras.optimizers.legacy.Adam(lr=1e-4, beta_1=0.8)", {"learning_rate": 1e-4, "beta1": 0.8, "eps": 1e-7}),
        ("keras.optimizers.get('rmsprop')", {"optimizer_type": "RMSprop", "alpha": 0.9}),
        ("keras.optimizers.AdamW(weight_decay=0.1)", {"optimizer_type": "AdamW", "weight_decay_rate": 0.1}),
        ("keras.optimizers.Adam(global_clipnorm=1.0, clipvalue=None)", {"max_gradient_norm": 1.0}),
        ("opt", {"optimizer_type": "Adagrad", "learning_rate": 0.5, "initial_accumulator_value": 0.1}),
        (
            "keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 100, alpha=0.5))",
            {"learning_rate": {"scheduler": "CosineDecay", "initial_learning_rate": 0.1, "total_iters": 100, "end_learning_rate": 0.05}},
        ),
        (
            "keras.optimizers.SGD(keras.optimizers.schedules.PiecewiseConstantDecay([2, 4], [0.1, 0.05, 0.01]))",
            {"learning_rate": {"scheduler": "PiecewiseConstant", "learning_rates": [0.1, 0.05, 0.01], "milestones": [3, 5]}},
        ),
    ],
)  # fmt: skip
def test_optimizers(optimizer: str, expected: dict[str, Any], tmp_path: Path) -> None:
    before = "RATE = 0.1\nopt = keras.optimizers.Adagrad(0.5)\n"
    _, out = make(HEAD + DATA + MODEL + before + f"model.compile({optimizer}, 'mse')\n" + FIT, tmp_path)
    section = params_of(out)["optimizer"]
    assert {key: section[key] for key in expected} == expected


REFUSED = {
    "no fit": (HEAD + DATA + MODEL + COMPILE + "model.fit_it()\n# .fit(\n", "no call of a Keras model's fit()"),
    "two fits": (HEAD + DATA + MODEL + COMPILE + FIT + FIT, "fit() is called twice"),
    "fit in a loop": (HEAD + DATA + MODEL + COMPILE + "for i in range(3):\n    model.fit(x, y)\n", "inside of a 'for'"),
    "not compiled": (HEAD + DATA + MODEL + FIT, "no compile() of 'model' was found"),
    "unknown optimizer": (HEAD + DATA + MODEL + "model.compile(keras.optimizers.Ftrl(), 'mse')\n" + FIT, "Ftrl"),
    "computed rate": (
        HEAD + DATA + MODEL + "import os\nmodel.compile(keras.optimizers.SGD(float(os.environ['R'])), 'mse')\n" + FIT,
        "the learning rate is 'float(...)'",
    ),
    "class weights": (HEAD + DATA + MODEL + COMPILE + "model.fit(x, y, class_weight={0: 1.0})\n", "class_weight"),
    "sample weights": (HEAD + DATA + MODEL + COMPILE + "model.fit(x, y, sample_weight=y)\n", "sample_weight"),
    "no loss": (HEAD + DATA + MODEL + "model.compile('adam')\n" + FIT, "without a loss"),
    "generator": (
        HEAD + MODEL + COMPILE + "g = keras.preprocessing.image.ImageDataGenerator().flow(1)\nmodel.fit(g)\n",
        "generator",
    ),
    "own train_step": (
        HEAD + DATA + "class M(keras.Model):\n    def train_step(self, data):\n        return {}\n\n\nmodel = M()\n" + COMPILE + FIT,
        "train_step",
    ),
    "starred": (HEAD + DATA + MODEL + COMPILE + "o = {}\nmodel.fit(x, y, **o)\n", "list or dict"),
    "an attribute": (
        HEAD + DATA + "class A: pass\n\n\na = A()\na.model = 3\na.model.compile('adam', 'mse')\na.model.fit(x, y)\n",
        "'a.model'",
    ),
    "Keras 3": ("import keras\nimport numpy as np\n" + DATA + "x = keras.ops.ones(3)\n" + MODEL + COMPILE + FIT, "Keras 3"),
    "split of a dataset": (
        HEAD + "d = tf.data.Dataset.range(3)\n" + MODEL + COMPILE + "model.fit(d, validation_split=0.1)\n",
        "validation_split",
    ),
    "a tape": (HEAD + DATA + MODEL + "with tf.GradientTape() as tape:\n    loss = model(x)\n", "no call of a Keras model's fit()"),
    "fit_generator": (HEAD + DATA + MODEL + "model.fit_generator(x)\n", "no compile() of 'model' was found"),
    "Keras beside torch": ("import keras\nimport torch\nmodel = keras.Sequential()\nmodel.train_on_batch(torch.ones(1))\n", "Keras model's fit()"),
    "a package of Keras's": ("import keras_nlp\nmodel = keras_nlp.models.GPT2()\nmodel.train_on_batch(1)\n", "Keras model's fit()"),
    "unreachable": (HEAD + "def train(x):\n    model = 1\n    model.fit(x)\n", "train"),
    "early return": (
        HEAD + "def main():\n    if np:\n        return\n    model.fit(1, 2)\n\n\nmain()\n", "returns early",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str, tmp_path: Path) -> None:
    text, reason = REFUSED[case]
    result, out = make(text, tmp_path)
    assert not out.exists()
    (finding,) = result.left
    assert finding.code == "PW702"
    assert reason in finding.message
    assert finding.cure.endswith(".")


@pytest.mark.parametrize(
    ("trains", "told"),
    [
        ("model.fit(x, y, epochs=2)\n", "no compile() of 'model' was found"),
        ("model.train_on_batch(x, y)\n", "no call of a Keras model's fit()"),
    ],
)
def test_keras_that_only_another_file_imports_is_keras(trains: str, told: str, tmp_path: Path) -> None:
    """What is said of a loop with backward() is said of torch's scripts alone."""
    (tmp_path / "nets.py").write_text(
        HEAD + "def build():\n    model = keras.Sequential()\n    " + COMPILE + "    return model\n"
    )
    result, _ = make(
        "import numpy as np\nfrom nets import *\n" + DATA + "model = build()\n" + trains, tmp_path
    )
    (finding,) = result.left
    assert told in finding.message
    assert "backward" not in f"{finding.message} {finding.cure}"


def test_what_is_not_python_is_told(tmp_path: Path) -> None:
    result, out = make("import keras\nmodel.fit(\n", tmp_path)
    assert [f.code for f in result.left] == ["PW001"]
    assert not out.exists()


def test_compiled_and_trained_in_functions(tmp_path: Path) -> None:
    text = HEAD + (
        "def build(width, rate=0.5):\n    net = keras.Sequential([keras.layers.Dense(width)])  # kept\n"
        "    net.compile(keras.optimizers.SGD(rate), loss='mae')\n    return net\n\n\n"
        "def main():\n    x = np.ones((4, 2))\n    model = build(3, rate=0.25)\n    model.fit(x, x[:, :1], epochs=3, batch_size=2)\n\n\n"
        "if __name__ == '__main__':\n    main()\n"
    )
    _, out = make(text, tmp_path)
    model = (out / "model.py").read_text()
    assert "net = keras.Sequential([keras.layers.Dense(width)])  # kept" in model
    assert "width = 3" in model
    assert "compile(" not in model
    params = params_of(out)
    assert params["optimizer"]["learning_rate"] == 0.25
    assert params["runconfig"]["num_epochs"] == 3
    assert params["train_input"]["batch_size"] == 2


def test_callbacks_and_what_is_left(tmp_path: Path) -> None:
    fit = (
        "stop = keras.callbacks.EarlyStopping()\n"
        "model.fit(x, y, callbacks=[stop, keras.callbacks.TensorBoard(), Mine()])\nmodel.save('m.keras')\nmodel.summary()\n"
    )
    result, _ = make(
        HEAD + DATA + "class Mine(keras.callbacks.Callback):\n    pass\n\n\n" + MODEL + COMPILE + fit,
        tmp_path,
    )
    told = " ".join(f.message for f in result.left if f.code == "PW701")
    assert "EarlyStopping" in told
    assert "Mine" in told
    assert "model.save" in told
    assert "TensorBoard" not in told
    assert any("event files" in row["into"] for row in result.dissolved)


def test_shared_definitions_and_constants(tmp_path: Path) -> None:
    text = HEAD + (
        "WIDTH = 3\nDEEP = WIDTH * 2\n\n\ndef scale(a):\n    return a * WIDTH\n\n\nclass Net(keras.Model):\n"
        "    def __init__(self):\n        super().__init__()\n        self.d = keras.layers.Dense(DEEP)\n\n"
        "    def call(self, x):\n        return scale(self.d(x))\n\n\nx = scale(np.ones((4, 2)))\nmodel = Net()\n"
    )
    _, out = make(text + "model.compile('sgd', 'mse')\nmodel.fit(x, x, shuffle=False)\n", tmp_path)
    utils, model, data = ((out / f"{name}.py").read_text() for name in ("utils", "model", "data"))
    assert "def scale(a)" in utils
    assert "WIDTH = 3" in utils
    assert "from utils import scale" in model
    assert "from utils import scale" in data
    assert "DEEP = WIDTH * 2" in model
    assert "class Net" not in data


def test_plain_keras_is_taken_from_tensorflow(tmp_path: Path) -> None:
    text = (
        "import numpy as np\nfrom keras.models import Sequential\nfrom keras.layers import Dense as D\n"
        + DATA
    )
    _, out = make(text + "model = Sequential([D(1)])\n" + COMPILE + FIT, tmp_path)
    model = (out / "model.py").read_text()
    assert "from tensorflow.keras.models import Sequential\n" in model
    assert "from tensorflow.keras.layers import Dense as D\n" in model
    assert model.index("portwright.tensorflow") < model.index("from tensorflow.keras")


def test_a_folder_of_ones_own_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("x")
    with pytest.raises(UserError, match="was not written by"):
        make(HEAD + DATA + MODEL + COMPILE + FIT, tmp_path)


def test_text_of_several_lines_and_unicode(tmp_path: Path) -> None:
    text = (
        HEAD
        + 'def main():\n    note = """eins\n  zwei ä"""\n    x = np.array([[len(note)]] * 4)\n    '
        + MODEL
    )
    _, out = make(text + "    model.compile('adam', 'mse')\n    model.fit(x, x)\n\n\nmain()\n", tmp_path)
    tree = ast.parse((out / "data.py").read_text(encoding="utf-8"))
    assert "eins\n  zwei ä" in [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)]


def test_modules_of_the_script_go_along(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text("import more\n\n\ndef widen(a):\n    return a\n")
    (tmp_path / "more.py").write_text("")
    text = "from helpers import widen\n" + HEAD + DATA + "x = widen(x)\n" + MODEL + COMPILE + FIT
    _, out = make(text, tmp_path)
    assert (out / "helpers.py").read_text() == (tmp_path / "helpers.py").read_text()
    assert (out / "more.py").is_file()
    assert "from helpers import widen" in (out / "data.py").read_text()


def test_a_module_of_the_same_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "utils.py").write_text("def widen(a):\n    return a\n")
    result, out = make(
        "from utils import widen\n" + HEAD + DATA + "x = widen(x)\n" + MODEL + COMPILE + FIT, tmp_path
    )
    assert not out.exists()
    assert "utils.py of its own" in result.left[0].message


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ("x, z, y, w = train_test_split(np.ones((8, 4)), np.ones(8))\n", True),
        ("x, z, y, w = train_test_split(np.ones((8, 4)), np.ones(8), random_state=3)\n", False),
        ("x = np.random.rand(8, 4)\ny = np.zeros(8)\n", True),
        ("np.random.seed(1)\nx = np.random.rand(8, 4)\ny = np.zeros(8)\n", False),
        ("x = np.random.default_rng(0).random((8, 4))\ny = np.zeros(8)\n", False),
    ],
)
def test_data_drawn_without_a_seed_are_told(data: str, told: bool, tmp_path: Path) -> None:
    head = "from sklearn.model_selection import train_test_split\n" + HEAD
    result, _ = make(head + data + MODEL + COMPILE + FIT, tmp_path)
    assert any("without a seed" in f.message for f in result.left) == told


def test_arguments_of_older_and_newer_keras(tmp_path: Path) -> None:
    _, out = make(HEAD + DATA + MODEL + COMPILE + "model.fit(x, y, nb_epoch=7)\n", tmp_path)
    assert params_of(out)["runconfig"]["num_epochs"] == 7
    result, _ = make(HEAD + DATA + MODEL + COMPILE + "model.fit(x, y, wings=7)\n", tmp_path)
    assert "fit() is given wings" in result.left[0].message


@pytest.mark.parametrize("style", ["in-place", "layout", "branches"])
def test_a_port_of_torch_without_a_target_does_not_say_that_some_were_named(
    style: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n" + HEAD)
    with pytest.raises(
        UserError, match=r"one target, and there are 3 \(all where none is named\): csx, ipu, rdu"
    ):
        port([script], [], style=style, out=tmp_path / "out")


def test_a_script_of_keras_or_tensorflow_1_is_ported_without_a_target(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HEAD + DATA + MODEL + COMPILE + FIT)
    assert port([tmp_path / "train.py"], [], style="layout", out=tmp_path / "out").changed
    (tmp_path / "old.py").write_text(
        "import tensorflow as tf\n\n\ndef model_fn(features, labels, mode, params):\n"
        "    tf.summary.histogram('x', features)\n"
        "    return tf.estimator.EstimatorSpec(mode, loss=tf.to_float(labels))\n"
    )
    done = port([tmp_path / "old.py"], [], write=True)
    assert {f.code for f in done.fixed} == {"PW610", "PW611"}
    assert done.left == []  # what only an accelerator refuses, such as the histogram, is none of it
    assert "ptf.EstimatorSpec(mode, loss=tf.compat.v1.to_float(" in (tmp_path / "old.py").read_text()


EVALUATIONS = [
    # what fit() is given, what the script evaluates afterwards, the features of eval_input, what is said to be left out
    ("validation_data=(v, w)", "model.evaluate(v, w)", '"eval": (v, w)', []),
    ("validation_data=(v, w)", "model.evaluate(t, u)", '"eval": (v, w)', ["model.evaluate(t, u) is left out: run.py --mode eval reads v"]),
    ("validation_data=(v, w)", "v = v * 2\nmodel.evaluate(v, w)", '"eval": (v, w)', ["model.evaluate(v, w) is left out"]),
    ("validation_split=0.25", "model.evaluate(t, u)", "split_at", ["model.evaluate(t, u) is left out: run.py --mode eval reads the validation_split of fit()"]),
    ("", "print(model.evaluate(t, u))", '"eval": (t, u)', []),
    ("", "model.evaluate(x, y)\nmodel.evaluate(t, u)", '"eval": (t, u)', ["model.evaluate(x, y) is left out: run.py --mode eval reads t"]),
    ("", "model.evaluate(x, y)", '"eval": (x, y)', []),
    ("", "model.evaluate(t, u)\nmodel.predict(t)", '"eval": (t, u)', []),
    ("", "model.evaluate(t, u)\nmodel.predict(x)", '"eval": (t, u)', ["model.predict(x) is left out: run.py --mode predict reads t"]),
    ("", "print(model.evaluate_generator(t))", None, ["model.evaluate_generator(t) is left out: run.py --mode eval reads no data"]),
    ("", "print(model.predict_classes(t))", None, ["model.predict_classes(t) is left out: run.py --mode predict reads no data"]),
    ("", "best = keras.models.load_model('m')\nprint(best.evaluate(t, u))", None, ["best = ", "best.evaluate(t, u) is left out: run.py --mode eval reads no data"]),
    ("", "def show(m):\n    print(m.evaluate(t, u))\n\nshow(model)", None, ["show(model), which evaluates or predicts"]),
]  # fmt: skip


@pytest.mark.parametrize(("given", "after", "data", "left"), EVALUATIONS)
def test_evaluation_data_are_those_of_the_script(
    given: str, after: str, data: str | None, left: list[str], tmp_path: Path
) -> None:
    more = "v, w = np.ones((4, 4)), np.ones(4)\nt, u = np.ones((6, 4)), np.ones(6)\n"
    text = HEAD + DATA + more + MODEL + COMPILE + f"model.fit(x, y, {given})\n{after}\n"
    result, out = make(text, tmp_path)
    written = (out / "data.py").read_text()
    assert ("eval_input_fn" in written) == (data is not None)
    assert data is None or data in written
    told = [
        f.message
        for f in result.left
        if f.code == "PW701" and "t, u = np" not in f.message and "v, w = np" not in f.message
    ]
    assert len(told) == len(left), told
    for words in left:
        assert any(words in message for message in told), told


def test_the_loss_scaling_of_mixed_float16_is_kept(tmp_path: Path) -> None:
    policy = "keras.mixed_precision.set_global_policy('mixed_float16')\n"
    _, out = make(HEAD + DATA + policy + MODEL + COMPILE + FIT, tmp_path)
    assert params_of(out)["optimizer"]["loss_scaling_factor"] == "dynamic"
    (tmp_path / "b").mkdir()
    _, out = make(
        HEAD + DATA + policy.replace("mixed_float16", "mixed_bfloat16") + MODEL + COMPILE + FIT,
        tmp_path / "b",
    )
    assert "loss_scaling_factor" not in params_of(out)["optimizer"]


def test_cures_name_only_what_there_is() -> None:
    """Names of portwright.tensorflow are looked up in its source, and keys of params.yaml in the schema; no TensorFlow is loaded."""
    from portwright.job.optimizer import OptimizerParams
    from portwright.job.runconfig import RunConfig
    from portwright.port.keras_layout import plan

    package = Path(plan.__file__).parents[2]
    texts = [*plan._CALLBACKS.values(), *plan._CURES.values()]
    found = [m for text in texts for m in re.findall(r"(\w+) of portwright\.([\w.]+\w)", text)]
    assert found
    for name, module in found:
        path = package / module.replace(".", "/")
        source = (path / "__init__.py") if path.is_dir() else path.with_suffix(".py")
        bound = {
            a.asname or a.name
            for n in ast.walk(ast.parse(source.read_text()))
            if isinstance(n, ast.ImportFrom)
            for a in n.names
        }
        assert name in bound, f"{name} is not in portwright.{module}"
    for text in texts:
        for section, key in re.findall(r"(runconfig|optimizer)\.(\w+)", text):
            fields = RunConfig.model_fields if section == "runconfig" else OptimizerParams.model_fields
            assert key in fields, text
        assert "log.jsonl" not in text  # no run of TensorFlow writes one
