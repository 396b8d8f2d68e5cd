"""How long `portwright check` takes over 500 real Python files: all rules, all targets, beside ast.parse and ruff, in one run.

The files are torch's own, as large as they come, copied to a folder of their own so that nothing else is part of the project.
Two processes at most. Beside the whole: one process against ast.parse of the same texts, and a second run with the cache.
"""

from __future__ import annotations

import ast
import os
import resource
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from measure import Claim, finish, interleave, paired_ratio, parse_arguments

from portwright import __version__
from portwright.port.config import Config, make_selection
from portwright.port.files import find_files
from portwright.port.many import check_files

NUM_FILES = 500


def copy_files(folder: Path) -> list[Path]:
    """Every third file of torch's, in its own place below the folder, until there are enough."""
    home = Path(sysconfig.get_paths()["purelib"])
    sources = sorted((home / "torch").rglob("*.py"))
    chosen = sources[:: max(1, len(sources) // NUM_FILES)][:NUM_FILES]
    for source in chosen:
        target = folder / source.relative_to(home)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    return find_files([folder])


def timed(
    action: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> Callable[[], float]:
    """Seconds on the wall, or of this process alone, which others on the machine do not lengthen."""

    def run() -> float:
        start = clock()
        action()
        return clock() - start

    return run


def parse_all(texts: list[bytes]) -> None:
    for text in texts:
        ast.parse(text)


def main() -> int:
    arguments = parse_arguments(__doc__)
    num_rounds = 1 if arguments.quick else 5
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        os.environ["XDG_CACHE_HOME"] = str(Path(name) / "cache")
        folder = Path(name) / "project"
        files = copy_files(folder)
        (folder / "pyproject.toml").write_text("")
        texts = [path.read_bytes() for path in files]
        selection = make_selection(Config(), [], [], [])
        found = check_files(files, selection, jobs=2)  # fills the cache
        ruff = [
            sys.executable,
            "-m",
            "ruff",
            "check",
            "--isolated",
            "--no-cache",
            "--exit-zero",
            "-q",
            str(folder),
        ]
        seconds = interleave(
            {
                "ast.parse, CPU": timed(lambda: parse_all(texts), time.process_time),
                "check, one process, CPU": timed(
                    lambda: check_files(files, selection, jobs=1, use_cache=False), time.process_time
                ),
                "check, two processes": timed(lambda: check_files(files, selection, jobs=2, use_cache=False)),
                "check again, cached": timed(lambda: check_files(files, selection)),
                "ruff, its own rules": timed(
                    lambda: subprocess.run(ruff, check=True, stdout=subprocess.DEVNULL)
                ),
            },
            num_rounds,
        )
    ours, peers = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    peak_mb = (ours.ru_maxrss + peers.ru_maxrss) / 1024
    ones = [1.0] * num_rounds
    claims = [
        Claim(f"seconds for {len(files)} files, two processes", paired_ratio(seconds["check, two processes"], ones), 15, False),
        Claim("times ast.parse, CPU time of one process", paired_ratio(seconds["check, one process, CPU"], seconds["ast.parse, CPU"]), 4, False),
        Claim("seconds for a second run", paired_ratio(seconds["check again, cached"], ones), 2, False),
        Claim("GB of memory, both processes together", paired_ratio([peak_mb / 1024], [1.0]), 1, False),
    ]  # fmt: skip
    figures = {
        "files": len(files),
        "megabytes": sum(map(len, texts)) / 1e6,
        "findings": len(found),
        "rules": len(selection.rules),
        "peak_mb": peak_mb,
        "seconds": seconds,
    }
    for name, values in seconds.items():
        print(f"{name:<26}{sorted(values)[len(values) // 2]:8.2f} s")
    return finish(arguments, claims, figures, portwright=__version__)


if __name__ == "__main__":
    sys.exit(main())
