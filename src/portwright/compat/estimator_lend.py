"""Lending tf.estimator, tf.contrib and Cerebras's TensorFlow packages to a program, in the one process that asks for it."""

from __future__ import annotations

import sys
from collections.abc import Callable

from portwright.compat.estimator_names import make_finder
from portwright.compat.old_python import give_back_old_names, give_back_to_numpy
from portwright.compat.tensorflow_loaded import AfterLoading, give_back_to_keras, give_back_to_tensorflow
from portwright.compat.tensorflow_views import ImportGate
from portwright.errors import UserError
from portwright.tensorflow import prepare


def lend_estimator(script: str) -> Callable[[], None]:
    """Loads nothing yet: TensorFlow comes when the program imports it, with its legacy Keras."""
    if "keras" in sys.modules and "tensorflow" not in sys.modules:
        raise UserError(
            "Keras 3 was imported before --compat estimator could lend anything.",
            "Start the script with portwright run, without importing keras before.",
        )
    prepare()
    give_back_old_names()
    finder = make_finder()
    finder.install()
    loading = AfterLoading(
        {"tensorflow": give_back_to_tensorflow, "tf_keras": give_back_to_keras, "numpy": give_back_to_numpy}
    )
    loading.install()
    gate = ImportGate(script)
    gate.install()

    def take_back() -> None:
        gate.remove()
        loading.remove()
        finder.remove()

    return take_back
