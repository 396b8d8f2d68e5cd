"""Runs an original script, its ports, and its ports on stand-ins for the vendor's software, in one process.

Prints what each of them printed, as JSON. usage: run_all.py ORIGINAL VENDORS {"target": [PORTED, [ASK, ...]], ...}, where the
last target may be one whose stand-in changes torch.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import sys
import warnings
from pathlib import Path


def run(script: str, *args: str) -> str:
    folder = str(Path(script).parent)
    sys.argv = [script, *args]
    sys.path.insert(0, folder)
    known = set(sys.modules)
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            runpy.run_path(script, run_name="__main__")
    except (RuntimeError, NotImplementedError, SystemExit) as error:
        said.write(f"{type(error).__name__}: {error}\n")
    finally:
        sys.path.remove(folder)
        for name in set(sys.modules) - known:
            if str(getattr(sys.modules[name], "__file__", "") or "").startswith(folder):
                del sys.modules[name]
    return said.getvalue()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    original, vendors, ports = sys.argv[1:]
    import torch  # noqa: F401  once, before any of them is measured against another

    results = {"original": run(original)}
    for target, (ported, ask) in json.loads(ports).items():
        flags = [word for word in ask if "=" not in word]
        results[f"{target} ported"] = run(ported)
        os.environ.update(dict(word.split("=", 1) for word in ask if "=" in word))
        results[f"{target} absent"] = run(ported, *flags)
        sys.path.insert(0, vendors)
        results[f"{target} vendor"] = run(ported, *flags)
        sys.path.remove(vendors)
        os.environ.pop("ACCELERATOR", None)
        for name in [n for n in sys.modules if n.partition(".")[0] in ("poptorch", "sambaflow")]:
            sys.modules.pop(name)
    print(json.dumps(results))
