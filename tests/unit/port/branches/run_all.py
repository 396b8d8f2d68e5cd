"""Runs an original script, its ports, and its ports under the emulators, each in a child of this process.

Prints as JSON what each of them printed, and what the emulators counted. usage: run_all.py ORIGINAL FOLDER
{"target": [PORTED, [ASK, ...]], ...}
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any

PACKAGES = {"ipu": "poptorch", "rdu": "sambaflow"}


def run(script: str, *words: str, package: str = "") -> tuple[str, dict[str, Any]]:
    """What a script prints, with or without an emulator; a fork, so that none sees another's modules."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        said, counts = io.StringIO(), {}
        try:
            flags = [word for word in words if "=" not in word]
            os.environ.update(dict(word.split("=", 1) for word in words if "=" in word))
            sys.argv, sys.path[:1] = [script, *flags], [str(Path(script).parent)]
            if package:
                importlib.import_module("portwright.emulate").lend(package)
            with contextlib.redirect_stdout(said):
                runpy.run_path(script, run_name="__main__")
        except BaseException as error:
            said.write(f"{type(error).__name__}: {error}\n")
        if package:
            counts = importlib.import_module("portwright.emulate.ledger").LEDGERS[package].call_counts()
        with os.fdopen(writer, "w", encoding="utf-8") as pipe:
            json.dump([said.getvalue(), counts], pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as pipe:
        text, counts = json.load(pipe)
    os.waitpid(child, 0)
    return text, counts


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    original, folder, ports = sys.argv[1:]
    import pydantic  # noqa: F401  once, for all children: an emulator imports it
    import torch._dynamo  # noqa: F401  and each optimizer this

    gc.freeze()
    results: dict[str, Any] = {"original": run(original)[0]}
    for target, (ported, ask) in json.loads(ports).items():
        results[f"{target} ported"] = run(ported)[0]
        results[f"{target} absent"] = run(ported, *ask)[0]
        if target == "rdu":
            compiled = f"RDU_COMMAND=compile --pef-name=step --output-folder={folder} --graphamp-preset=mp0 --unlisted-ops=warn --num-tiles=4"
            results["rdu compiled"] = run(ported, *ask, compiled, package=PACKAGES[target])[0]
            ask = [*ask, f"RDU_COMMAND=run --pef={folder}/step/step.pef --num-tiles=4"]
        results[f"{target} emulated"], results[f"{target} counts"] = run(
            ported, *ask, package=PACKAGES[target]
        )
    print(json.dumps(results))
