"""Every name that is lent exists, and nothing is lent to a process that did not ask."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from portwright.compat.lend import lend
from portwright.errors import UserError

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("tensorflow is not installed", allow_module_level=True)

RESOLVE_ALL = """
import builtins, importlib, json, sys
from portwright.compat.lend import lend
before = builtins.__import__
take_back = lend("estimator", __file__)
assert "tensorflow" not in sys.modules  # nothing is loaded before the program asks
from portwright.compat.estimator_names import make_finder
missing, names = [], 0
for module, held in make_finder()._lent.items():
    loaded = importlib.import_module(module)
    for name in held:
        names += 1
        try:
            getattr(loaded, name)
        except Exception as error:
            missing.append(f"{module}.{name}: {error!r}")
take_back()
assert builtins.__import__ is before
assert not [finder for finder in sys.meta_path if type(finder).__module__.startswith("portwright")]
try:
    importlib.import_module("tensorflow.contrib.other")
except ModuleNotFoundError as error:
    assert "lends" not in str(error)
print("RESULT", json.dumps([names, missing, "torch" in sys.modules]))
"""

NOT_ASKED = """
import builtins, collections, importlib.util, inspect, json, sys
first = builtins.__import__
import portwright
from portwright.tensorflow import Estimator, run
import numpy, tensorflow as tf
print("RESULT", json.dumps({
    "estimator": tf.estimator is not portwright.tensorflow or hasattr(tf.compat.v1, "estimator"),
    "contrib": hasattr(tf.compat.v1, "contrib"),
    "module": importlib.util.find_spec("tensorflow_estimator") is not None,
    "cerebras": importlib.util.find_spec("cerebras") is not None,
    "getargspec": hasattr(inspect, "getargspec") and sys.version_info >= (3, 11),
    "mapping": hasattr(collections, "Mapping"),
    "numpy": "int" in vars(numpy),
    "import": builtins.__import__ is not first,
    "experimental": hasattr(tf.keras.mixed_precision, "experimental"),
    "compat": any(name.startswith("portwright.compat") for name in sys.modules),
    "eager": not tf.executing_eagerly(),
}))
"""


def in_a_process(source: str, folder: Path) -> object:
    script = folder / "script.py"
    script.write_text(source)
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(
        next(line for line in done.stdout.splitlines() if line.startswith("RESULT")).partition(" ")[2]
    )


def test_every_lent_name_exists(tmp_path: Path) -> None:
    names, missing, has_torch = in_a_process(RESOLVE_ALL, tmp_path)  # type: ignore[misc]
    assert missing == []
    assert names > 800
    assert not has_torch


def test_nothing_leaks_into_a_process_that_did_not_ask(tmp_path: Path) -> None:
    found = in_a_process(NOT_ASKED, tmp_path)
    assert isinstance(found, dict)
    assert [name for name, is_there in found.items() if is_there and name != "cerebras"] == []


def test_an_unknown_library_is_told_those_that_are_lent() -> None:
    with pytest.raises(UserError, match=r"unknown library 'estimators'.*Did you mean 'estimator'"):
        lend("estimators")
