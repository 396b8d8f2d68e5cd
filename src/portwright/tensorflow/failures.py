"""Explains exceptions of TensorFlow, and of user code that it calls, in one line with the user's file and line."""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from portwright.errors import ExitStatus, NonFiniteError, PortwrightError, UserError
from portwright.job.atomic import explain_os_error
from portwright.job.blame import blame, is_users

# Text that TensorFlow puts around a message: where a node was made, which nodes failed too, hints for other APIs.
_AROUND = re.compile(
    r"Graph execution error|Detected at node|Original stack trace|Errors may have originated|Node: '|\d+ root error"
    r"|\d+ successful operations|\d+ derived errors|Hint: If you want|Input Source operations|\s+File \"|\s+\[\[|\s{4,}\S"
)
_INSIDE = re.compile(
    r"\{\{(function_node|node) [^}]*\}\}|\[\[[^\]]*\]\]|\[Op:\w+\]|^\s*\(\d+\) \w+: "
    r"|Error in user-defined function passed to \w+(:\d+)? transformation with iterator: [\w:\[\]]+: "
)
_INPUT_OPS = ("IteratorGetNext", "IteratorGetNextSync", "MakeIterator", "IteratorV2")


def explain(error: Exception) -> PortwrightError:
    """The error to show for an exception that is not Portwright's."""
    if isinstance(error, tf.errors.OpError):
        return explain_op_error(error)
    return blame(error)


def explain_op_error(error: tf.errors.OpError) -> UserError:
    """The error to show for an op that failed: its message, and the user's line that made it."""
    kind = type(error).__name__
    said = _plain(str(error.message or error))
    op = error.op
    if (op is not None and op.type in _INPUT_OPS) or (op is None and "IteratorGetNext" in str(error)):
        return UserError(
            f"the input pipeline failed: {kind}: {said}",
            "Look at the files that params.yaml names, and at the functions that the dataset maps.",
        )
    full = re.search(r"([^\s;]*); (No space left on device|Disk quota exceeded)", said)
    if full is not None:
        return explain_os_error(OSError(errno.ENOSPC, ""), Path(full[1]))
    where = _place_of_op(op)
    cure = "Run again with --debug to see the traceback."
    if isinstance(error, tf.errors.ResourceExhaustedError):
        cure = "Lower batch_size, or use a smaller model."
    return UserError(f"{kind} at {where}: {said}", cure)


def explain_non_finite(step: int, bad_data: str | None, recent: Sequence[float]) -> NonFiniteError:
    """The error for a loss that is not finite, with what its batch and the losses before it tell about the reason.

    If the first batch of a run is to blame, nothing was trained yet, and the exit status is that of bad input.
    """
    if bad_data is not None:
        error = NonFiniteError(
            f"the loss is not finite at step {step}: {bad_data}.",
            "Clean the data set, or mask such values in data.py.",
        )
        if step == 1:
            error.status = ExitStatus.USAGE
        return error
    before = ", ".join(f"{loss:.4g}" for loss in recent)
    if len(recent) > 1 and recent[-1] > 2 * min(recent):
        return NonFiniteError(
            f"the loss is not finite at step {step}: it grew before ({before}), so the training diverges.",
            "Lower optimizer.learning_rate, or set optimizer.max_gradient_norm.",
        )
    after = f" after {before}" if before else ""
    return NonFiniteError(
        f"the loss is not finite at step {step}{after}: a batch holds values that are not finite, or the loss has "
        "log(0), a division by zero or an empty mask.",
        "Look at data.py and at the loss; or lower optimizer.learning_rate.",
    )


def _place_of_op(op: Any) -> str:
    if op is None:
        return "a step"
    frames = [frame for frame in op.traceback if is_users(frame.filename)]
    if not frames:
        return f"the op '{op.name}'"
    return f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}"


def _plain(message: str) -> str:
    lines = [line for line in message.splitlines() if line.strip() and not _AROUND.match(line)]
    text = " ".join(" ".join(_INSIDE.sub("", line) for line in lines).split())
    return text[:400] or " ".join(message.split())[:400] or "no message"
