"""Asks Cerebras's front end about the training step of a user's script, in a process of the SDK's environment.

`python -m portwright.targets.csx.script_step --answer FILE --update N -- train.py ...` leaves its answer as JSON in FILE.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from portwright.errors import PortwrightError
from portwright.job.atomic import atomic_write_text
from portwright.targets.csx.backend import put_tools_first


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--answer", type=Path, required=True)
    parser.add_argument("--update", type=int, default=0, help="which of the script's optimizers")
    parser.add_argument("--capture-odd", action="store_true", help="feed nothing of another batch size")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    words = options.words[1:] if options.words[:1] == ["--"] else options.words
    _put_lent_last()
    answer_about(words, options.answer.absolute(), options.update, captures_odd=options.capture_odd)


def answer_about(words: Sequence[str], answer: Path, update: int = 0, *, captures_odd: bool = False) -> None:
    """Runs the script up to update number `update` and asks; the process then ends, in the middle of the script."""
    import torch

    from portwright.verify.step_watch import NoTrainingError, StepWatch, WatchedStep

    torch.set_num_threads(1)
    import cerebras.pytorch as cstorch

    put_tools_first(cstorch)

    def use(watched: WatchedStep) -> None:
        _leave(answer, _ask(watched))

    try:
        StepWatch(use, update, captures_odd=captures_odd).run(words)
    except NoTrainingError:
        _leave(answer, {"failed": "no training"})
    except ModuleNotFoundError as error:
        traceback.print_exc()
        _leave(answer, {"failed": "no module", "module": error.name or "", "words": str(error)})
    except PortwrightError as error:
        _leave(answer, {"failed": "not asked", "words": error.message, "cure": error.cure})
    except SystemExit as error:
        _leave(answer, {"failed": "crash", "words": f"SystemExit: {error}"})
    except BaseException as error:
        traceback.print_exc()
        place = traceback.extract_tb(error.__traceback__)[-1]
        words = f"{type(error).__name__}: {error}".removesuffix(": ")
        _leave(answer, {"failed": "crash", "words": f"{words} ({place.filename}:{place.lineno})"})


def _leave(answer: Path, document: dict[str, Any]) -> None:
    """Writes the answer and ends the process at once, without the script's exit handlers and threads."""
    atomic_write_text(answer, json.dumps(document))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _put_lent_last() -> None:
    """Moves packages lent by PYTHONPATH to the end of sys.path, so that none replaces one that the SDK needs."""
    lent = {str(Path(path).absolute()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path}
    own = [path for path in sys.path if str(Path(path).absolute()) not in lent]
    sys.path[:] = [*own, *(path for path in sys.path if path not in own)]


def _ask(watched: Any) -> dict[str, Any]:
    from portwright.targets.csx.script_lowering import ScriptLowering

    with tempfile.TemporaryDirectory(prefix="portwright-csx-") as folder:
        os.chdir(folder)
        try:
            return ScriptLowering(watched, Path(folder)).lower()
        finally:
            os.chdir("/")


if __name__ == "__main__":
    main()
