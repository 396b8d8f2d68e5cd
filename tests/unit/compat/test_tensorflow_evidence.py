"""Which of TensorFlow's APIs a file was written for."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from portwright.compat.tensorflow_evidence import Api, is_users_file, judge, judge_program
from portwright.tensorflow import prepare

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("tensorflow is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def apis() -> Any:
    prepare()
    import tensorflow as tf

    return tf.compat.v1, tf


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import tensorflow as tf\nx = tf.placeholder(tf.float32)", Api.V1),
        ("import tensorflow\nx = tensorflow.placeholder(tensorflow.float32)", Api.V1),
        ("import tensorflow as tf\nflags = tf.flags", Api.V1),
        ("import tensorflow as tf\nwith tf.gfile.GFile('x') as f: pass", Api.V1),
        ("import tensorflow as tf\nopt = tf.train.AdamOptimizer()", Api.V1),
        ("import tensorflow as tf\nx = tf.metrics.accuracy(a, b)", Api.V1),
        ("import tensorflow as tf\nx = tf.layers.dense(x, 2)", Api.V1),
        ("import tensorflow as tf\nx = tf.contrib.layers.layer_norm(x)", Api.V1),
        ("from tensorflow.contrib import slim", Api.V1),
        ("import tensorflow.contrib.slim as slim", Api.V1),
        ("from tensorflow import flags", Api.V1),
        ("from tensorflow.examples.tutorials.mnist import input_data", Api.V1),
        ("import tensorflow as tf\nx = tf.reduce_sum(x, axis=0, keep_dims=True)", Api.V1),
        ("import tensorflow as tf\nx = tf.nn.dropout(x, keep_prob=0.5)", Api.V1),
        ("import tensorflow as tf\nx = tf.argmax(x, dimension=1)", Api.V1),
        ("import tensorflow as tf\nx = tf.compat.v1.placeholder(tf.float32)", Api.V2),
        ("import tensorflow as tf\nx = tf.metrics.Accuracy()", Api.V2),
        ("import tensorflow as tf\nx = tf.math.reduce_sum(x)\ny = tf.estimator.Estimator", Api.EITHER),
        ("import tensorflow as tf\nx = tf.nn.dropout(x, 0.5)", Api.EITHER),
        ("import tensorflow as tf\nfrom tensorflow.python.framework import ops", Api.EITHER),
        # says v1 itself, and works with eager execution or without
        ("import tensorflow.compat.v1 as tf\nx = tf.train.AdamOptimizer()", Api.EITHER),
        ("import tensorflow.compat.v1 as tf\nx = tf.placeholder(tf.float32)", Api.V1),
        ("import tensorflow.compat.v1 as tf\ntf.app.run()", Api.V1),
        ("from tensorflow.compat import v1 as tf\nflags = tf.flags", Api.V1),
        # both at once: what only version 1 has cannot work otherwise
        ("import tensorflow as tf\ntf.metrics.Accuracy()\ntf.placeholder(tf.float32)", Api.V1),
        # other modules of the name
        ("import mytf as tf\nx = tf.placeholder()", Api.EITHER),
        ("from tensorflow import *", Api.EITHER),
        ("", Api.EITHER),
    ],
)
def test_judges_by_names(source: str, expected: Api, apis: Any) -> None:
    assert judge(ast.parse(source), *apis) is expected


def test_a_program_is_judged_with_the_files_it_leads_to(tmp_path: Path, apis: Any) -> None:
    (tmp_path / "main.py").write_text("import tensorflow as tf\nfrom package import deep\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "deep.py").write_text("from . import deeper\n")
    (tmp_path / "package" / "deeper.py").write_text(
        "import tensorflow as tf\nx = tf.placeholder(tf.float32)\n"
    )
    assert judge_program(str(tmp_path / "main.py"), *apis) is Api.V1


def test_a_circle_of_imports_and_a_broken_file_end(tmp_path: Path, apis: Any) -> None:
    (tmp_path / "main.py").write_text("import one\nimport broken\n")
    (tmp_path / "one.py").write_text("import main\nimport two\n")
    (tmp_path / "two.py").write_text("import one\n")
    (tmp_path / "broken.py").write_text("print 'python 2'\n")
    assert judge_program(str(tmp_path / "main.py"), *apis) is Api.EITHER


def test_whose_files(tmp_path: Path) -> None:
    assert is_users_file(str(tmp_path / "a.py"))
    assert not is_users_file(ast.__file__)
    assert not is_users_file(pytest.__file__)
    assert not is_users_file(judge.__code__.co_filename)
    assert not is_users_file("<string>")
