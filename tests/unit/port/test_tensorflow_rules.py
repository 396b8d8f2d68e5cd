"""What the rules for TensorFlow have in common: whose files they look at, which names there are, and that a port is settled."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import portwright.tensorflow
from portwright.discover import find_rules
from portwright.port.check import Selection, find
from portwright.port.patch import make_patch
from portwright.port.project import Project
from portwright.port.rule import File
from portwright.port.source import Source
from portwright.port.tensorflow_contrib import advice, home_of
from portwright.port.tensorflow_homes import ESTIMATOR, INNER, TPU, VENDOR, estimator_home
from portwright.port.tensorflow_names import row_of, table, tensorflow_of
from portwright.tensorflow import _PLACES

RULES = tuple(find_rules().values())
OURS = tuple(rule for rule in RULES if rule.framework == "tensorflow")
CSX = frozenset({"csx"})


def codes(text: str, tmp_path: Path) -> set[str]:
    source = Source(tmp_path / "x.py", text.encode())
    return {f.code for f in find(source, Project(tmp_path), Selection(RULES, CSX))}


def port(text: str, tmp_path: Path, *, unsafe: bool = False) -> str:
    source = Source(tmp_path / "x.py", text.encode())
    allow = ("safe", "unsafe") if unsafe else ("safe",)
    after = make_patch(source, Project(tmp_path), Selection(RULES, CSX), allow).after  # type: ignore[arg-type]
    again = make_patch(after, Project(tmp_path), Selection(RULES, CSX), allow).after  # type: ignore[arg-type]
    assert again.data == after.data
    ast.parse(after.text)
    return after.text


def test_rules_of_tensorflow_are_those_from_610_on() -> None:
    assert {rule.code for rule in OURS} == {r.code for r in RULES if "PW610" <= r.code < "PW700"}
    assert len(OURS) >= 20
    assert {rule.group() for rule in OURS} == {"TensorFlow"}
    assert next(r for r in RULES if r.code == "PW601").group() == "traps of published ports"


def test_a_tensorflow_file_gets_no_findings_about_torch(tmp_path: Path) -> None:
    text = (
        "import tensorflow as tf\n\n\ndef model_fn(features, labels, mode, params):\n"
        "    x = tf.nn.relu(features)\n    nn = x\n    for i in range(3):\n        x = nn.view(-1)\n"
        "        x.add_(1)\n        x.item()\n        x.backward()\n        x.step()\n    return x.cuda()\n"
    )
    assert codes(text, tmp_path) == set()


def test_a_torch_file_gets_no_findings_about_tensorflow(tmp_path: Path) -> None:
    text = (
        "import torch\n\n\ndef model_fn(features, labels, mode):\n    print(features)\n    return features.shape[0].value\n\n\n"
        "def input_fn(tf):\n    return tf.data.Dataset.range(3).batch(2)\n"
    )
    assert not {c for c in codes(text, tmp_path) if c >= "PW610"}


def test_a_file_with_both_gets_both(tmp_path: Path) -> None:
    text = (
        "import tensorflow as tf\nimport torch\n\nx = torch.zeros(3).cuda()\ny = tf.placeholder(tf.float32)\n"
    )
    assert {"PW502", "PW610"} <= codes(text, tmp_path)


def test_version_2_is_left_alone(tmp_path: Path) -> None:
    text = (
        "import tensorflow as tf\n\n\n@tf.function\ndef step(x, w):\n    y = tf.where(x > 0, x, 0.0)\n"
        "    z = tf.nn.dropout(y, 0.5) + tf.reduce_sum(y, 1, True)\n    return tf.Variable(z), tf.random_normal_initializer()\n"
    )
    assert codes(text, tmp_path) == set()
    assert port(text, tmp_path) == text


@pytest.mark.parametrize(
    "sign",
    [
        "tf.placeholder(tf.float32)", "tf.reduce_sum(x, keep_dims=True)", "tf.contrib.layers.flatten(x)", "tf.flags.FLAGS",
        "tf.logging.info('x')",
    ],
)  # fmt: skip
def test_signs_of_version_1(sign: str, tmp_path: Path) -> None:
    source = Source(tmp_path / "x.py", f"import tensorflow as tf\nx = 1\n{sign}\n".encode())
    assert tensorflow_of(File(source, Project(tmp_path), CSX)).is_version_1


def test_version_1_by_import(tmp_path: Path) -> None:
    text = "import tensorflow.compat.v1 as tf\n\nx = tf.placeholder(tf.float32)\ntf.disable_v2_behavior()\n"
    assert codes(text, tmp_path) == set()


def test_the_early_import_comes_before_all_that_may_load_tensorflow(tmp_path: Path) -> None:
    text = (
        '"""Doc."""\nfrom __future__ import annotations\n\nimport os\n\nimport helpers\nimport tensorflow as tf\n\n'
        "spec = tf.estimator.EstimatorSpec\nlayer = tf.layers.dense\n"
    )
    assert port(text, tmp_path) == (
        '"""Doc."""\nfrom __future__ import annotations\n\nimport os\n\nimport portwright.tensorflow as ptf\nimport helpers\n'
        "import tensorflow as tf\n\nspec = ptf.EstimatorSpec\nlayer = tf.compat.v1.layers.dense\n"
    )


def test_a_name_that_is_taken(tmp_path: Path) -> None:
    text = "import tensorflow as tf\n\nptf = 3\nspec = tf.estimator.EstimatorSpec\n"
    after = port(text, tmp_path)
    assert "import portwright.tensorflow as portwright_tensorflow\n" in after
    assert "spec = portwright_tensorflow.EstimatorSpec\n" in after


def test_a_cell_of_contrib_brings_the_legacy_keras(tmp_path: Path) -> None:
    after = port("import tensorflow as tf\n\ncell = tf.contrib.rnn.LSTMCell(3)\n", tmp_path)
    assert after == (
        "import portwright.tensorflow as ptf\nimport tensorflow as tf\n\ncell = tf.compat.v1.nn.rnn_cell.LSTMCell(3)\n"
    )


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("head", ["", "\ufeff", "#!/usr/bin/env python\n# Ä\n"])
def test_bytes_that_no_rewrite_touches_stay(newline: str, head: str, tmp_path: Path) -> None:
    text = f"{head}import tensorflow as tf{newline}{newline}x = tf.placeholder(tf.float32)  # über{newline}"
    source = Source(tmp_path / "x.py", text.removeprefix("\ufeff").encode())
    after = make_patch(source, Project(tmp_path), Selection((*OURS,), CSX), ("safe",)).after
    assert "tf.compat.v1.placeholder(tf.float32)  # über" + newline in after.text
    assert after.text.count("\r\n") == after.text.count("\n") * (newline == "\r\n") or head.startswith("#!")


def test_every_home_is_there() -> None:
    """Of names that the rules write, each is one that portwright.tensorflow has."""
    assert (ESTIMATOR | VENDOR) - set(_PLACES) == set()
    folder = Path(portwright.tensorflow.__file__).parent
    for module, names in {**INNER, "tpu": TPU}.items():
        assert module in portwright.tensorflow._MODULES
        tree = ast.parse((folder / f"{module}.py").read_text())
        listed = next(
            n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"
        )
        assert names - set(ast.literal_eval(listed)) == set()
    assert estimator_home("experimental.KMeans") is None
    assert estimator_home("ModeKeys.TRAIN") == "ModeKeys.TRAIN"
    assert estimator_home("export.ServingInputReceiver") == "export.ServingInputReceiver"
    assert estimator_home("export.Nothing") is None


def test_homes_of_contrib() -> None:
    assert home_of("data.map_and_batch").name == "compat.v1.data.experimental.map_and_batch"  # type: ignore[union-attr]
    assert home_of("layers.layer_norm").package == "portwright.compat.contrib_norms"  # type: ignore[union-attr]
    assert home_of("estimator.stop_if_lower_hook").package == "portwright.tensorflow"  # type: ignore[union-attr]
    assert home_of("nobody.knows") is None
    assert "tf_slim" in advice("slim.arg_scope")
    assert advice("nobody.knows") == advice("")


def test_the_table_of_names() -> None:
    rows = table()
    assert row_of("placeholder").kind == "gone"  # type: ignore[union-attr]
    assert row_of("gfile.GFile.read").kind == "module"  # type: ignore[union-attr]
    assert row_of("matmul") is None
    assert row_of("reduce_sum").shared == 4  # type: ignore[union-attr]
    assert row_of("nn.dropout").shared == 1  # type: ignore[union-attr]
    assert 700 < len(rows) < 1200


def test_the_switch_comes_before_what_shares_a_line_with_the_import(tmp_path: Path) -> None:
    after = port("import tensorflow as tf; x = tf.placeholder(tf.float32)\n", tmp_path)
    assert after == (
        "import tensorflow as tf; tf.compat.v1.disable_v2_behavior(); x = tf.compat.v1.placeholder(tf.float32)\n"
    )


def test_a_switch_that_is_there_is_not_set_again(tmp_path: Path) -> None:
    text = (
        "import tensorflow.compat.v1 as tf\n\ntf.disable_eager_execution()\nx = tf.placeholder(tf.float32)\n"
    )
    assert codes(text, tmp_path) == set()


def test_what_is_lent_already_is_not_lent_again(tmp_path: Path) -> None:
    head = "from portwright.tensorflow import Estimator\nimport tensorflow as tf\n"
    after = port(head + "\nnorm = tf.contrib.layers.layer_norm\n", tmp_path)
    assert after == head + "from portwright.compat import contrib_norms\n\nnorm = contrib_norms.layer_norm\n"
    after = port(head + "from tensorflow.contrib.layers import layer_norm\n\nnorm = layer_norm\n", tmp_path)
    assert after == head + "from portwright.compat.contrib_norms import layer_norm\n\nnorm = layer_norm\n"


def test_modules_of_contrib_by_other_names(tmp_path: Path) -> None:
    text = (
        "import tensorflow.compat.v1 as tf\nfrom tensorflow.contrib import cluster_resolver as resolver\n"
        "from tensorflow.contrib import tpu as contrib_tpu\n\n"
        "optimizer = contrib_tpu.CrossShardOptimizer(tf.train.AdamOptimizer())\nmode = tf.estimator.ModeKeys.TRAIN\n"
        "spec = contrib_tpu.TPUEstimatorSpec(mode)\ncluster = resolver.TPUClusterResolver('x')\n"
    )
    assert port(text, tmp_path) == (
        "import portwright.tensorflow as ptf\nimport tensorflow.compat.v1 as tf\n\n"
        "optimizer = tf.train.AdamOptimizer()\nmode = ptf.ModeKeys.TRAIN\nspec = ptf.tpu.TPUEstimatorSpec(mode)\n"
        "cluster = tf.distribute.cluster_resolver.TPUClusterResolver('x')\n"
    )


def test_check_loads_neither_framework() -> None:
    code = (
        "import os, sys; from portwright.discover import find_rules; find_rules();"
        "import portwright.port.keras_layout.api;"
        "print([m for m in ('torch', 'tensorflow', 'keras') if m in sys.modules], os.environ.get('TF_USE_LEGACY_KERAS'))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == "[] None"


HELD_BACK = {
    "meaning that the arguments do not show": (
        "tf.flags.FLAGS\nx = tf.nn.embedding_lookup([a, b], ids)\ny = tf.strings.split(s)\nz = tf.constant(s, shape=[4])\n",
        ["v1.nn.embedding_lookup(", "v1.strings.split(", "v1.constant(s, shape"], [],
    ),
    "a value alone is the same constant": ("tf.flags.FLAGS\nz = tf.constant(3, tf.int32)\n", ["= tf.constant(3"], []),
    "for both versions, by the version": (
        "if tf.__version__ < '2':\n    x = tf.log(s)\ny = tf.where(s, a, b)\n", ["v1.log(", "= tf.where("], ["v1.where("],
    ),
    "for both versions, by trying": (
        "try:\n    log = tf.log\nexcept AttributeError:\n    log = tf.math.log\ny = tf.nn.dropout(s, 0.5)\n",
        ["= tf.nn.dropout("], ["v1.nn.dropout("],
    ),
    "for both versions, by asking for a name": (
        "x = tf.log(s) if hasattr(tf, 'log') else s\nfrom tensorflow import where, placeholder\n",
        ["from tensorflow import where"], ["from tensorflow.compat.v1 import where"],
    ),
    "eager code beside a graph of its own": (
        "with tf.Graph().as_default():\n    s = tf.compat.v1.Session()\nprint(tf.ones(2).numpy())\n",
        [], ["disable_v2_behavior"],
    ),
    "a placeholder in a function that need not be called": (
        "def f():\n    return tf.compat.v1.placeholder(tf.float32)\n", [], ["disable_v2_behavior"],
    ),
    "a session that is gone": ("def f():\n    return tf.Session()\n", ["disable_v2_behavior"], []),
    "a ready-made estimator of version 1": (
        "tf.flags.FLAGS\ne = tf.estimator.DNNClassifier([3], c)\n", ["canned_v1.DNNClassifier(", "ptf\n"], [],
    ),
    "a ready-made estimator of compat.v1": (
        "e = tf.compat.v1.estimator.LinearRegressor(c)\n", ["canned_v1.LinearRegressor("], [],
    ),
    "a ready-made estimator of either": (
        "e = tf.estimator.DNNClassifier([3], c)\n", ["tf.estimator.DNNClassifier("], ["ptf.DNNClassifier("],
    ),
    "an import of either": (
        "from tensorflow.estimator import DNNClassifier\n", ["tensorflow.estimator import"], ["portwright.tensorflow import"],
    ),
    "a module of which a part has no home": (
        "from tensorflow import estimator as e\nx = e.Estimator(f)\ny = e.experimental.KMeans(3)\n",
        ["from tensorflow import estimator as e"], [],
    ),
    "a class with a method of that name": (
        "def f(feed):\n    return feed.make_one_shot_iterator()\n", ["feed.make_one"], ["make_one_shot_iterator(feed)"],
    ),
    "a shape of the file's own": (
        "class C:\n    def __init__(self):\n        self.shape = [a]\n\n\ndef f(c):\n    return c.shape[0].value\n",
        ["c.shape[0].value"], [],
    ),
    "both names of ours taken": (
        "ptf = portwright_tensorflow = 3\nspec = tf.estimator.EstimatorSpec\n", ["as portwright_tensorflow_2", "portwright_tensorflow_2.EstimatorSpec"], [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HELD_BACK)
def test_what_cannot_be_argued_is_not_called_safe(case: str, tmp_path: Path) -> None:
    """Texts that the safe port has, and those that only the unsafe one has."""
    body, safe, unsafe = HELD_BACK[case]
    text = f"import tensorflow as tf\n\n{body}"
    done = {allowed: port(text, tmp_path, unsafe=allowed) for allowed in (False, True)}
    assert all(part in done[False] for part in safe), done[False]
    assert not any(part in done[False] for part in unsafe), done[False]
    assert all(part in done[True] for part in unsafe), done[True]
