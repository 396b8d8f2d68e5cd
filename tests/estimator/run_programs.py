"""Runs drawn programs, each in a process of its own that has TensorFlow loaded already: what each tells, or how it ended.

`python run_programs.py WHICH FILE`: WHICH is `old` (TensorFlow 1, or tf.compat.v1 of a later one in its place), or `ours` and `plain` (today's,
with portwright.tensorflow first or without); FILE is a JSON list of programs, which is replaced by the list of outcomes.
It is read by Python 3.7 too, for which TensorFlow 1.15 is.
"""

import io
import json
import os
import shutil
import sys
import tempfile
import traceback
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"  # its kernels changed between the releases
os.environ["CUDA_VISIBLE_DEVICES"] = ""
warnings.simplefilter("ignore")
WHICH = sys.argv[1]
if WHICH == "ours":
    import portwright.tensorflow as ptf

    ptf.prepare()
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

if WHICH == "old" and not hasattr(tf, "Session"):
    tf.compat.v1.disable_v2_behavior()
    sys.modules["tensorflow"] = tf.compat.v1
tf.compat.v1.logging.set_verbosity("ERROR")


def plain(value):
    """A value as JSON can hold it."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {str(key): plain(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (np.ndarray, np.generic)):
        return [str(value.dtype), plain(value.tolist())]
    return value if isinstance(value, (int, float, str, type(None))) else type(value).__name__


def run(text):
    told, folder = [], tempfile.mkdtemp()

    def show(name, value):
        told.append([str(name), plain(value)])

    raised, where = None, ""
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            exec(
                compile(text, "<program>", "exec", dont_inherit=True),
                {"__name__": "__main__", "show": show, "folder": folder},
            )
    except BaseException as error:
        raised, where = (
            type(error).__name__,
            "".join(traceback.format_exception_only(type(error), error))[-1500:],
        )
    shutil.rmtree(folder, ignore_errors=True)
    return {"told": told, "raised": raised, "words": where}


def in_child(text):
    """Forked before TensorFlow has made any thread of its own, so that no program sees what another left."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        with os.fdopen(writes, "w") as pipe:
            pipe.write(json.dumps(run(text)))
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    return json.loads(found) if found else {"told": [], "raised": "Died", "words": "the process died"}


with Path(sys.argv[2]).open() as file:
    programs = json.load(file)
outcomes = [in_child(text) for text in programs]
with Path(sys.argv[2]).open("w") as file:
    json.dump(outcomes, file)
