"""Checks many files in several processes, and caches the findings."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import portwright
from portwright.discover import find_rules
from portwright.port.cache import Cache, Checked, from_row, to_row
from portwright.port.callers import remember_members
from portwright.port.check import Selection, check_path
from portwright.port.finding import Finding
from portwright.port.project import Project, group_by_root

_FILES_A_COLLECTION = 20
_BYTES_FOR_A_PROCESS = 400_000  # with less work, starting another interpreter takes longer


def check_files(
    files: Sequence[Path], selection: Selection, jobs: int | None = None, use_cache: bool = True
) -> list[Finding]:
    """Findings of all files, sorted; the order and content do not depend on the number of processes."""
    found: list[Finding] = []
    for root, members in group_by_root(files).items():
        cache = Cache(root, selection, members) if use_cache else None
        known = cache.known(members) if cache else {}
        rest = [path for path in members if path not in known]
        checked = _check(root, rest, members, selection, jobs)
        if cache and checked:
            cache.add(checked)
        found += [f for findings in known.values() for f in findings]
        found += [f for each in checked for f in each.findings]
    return sorted(found, key=lambda f: f.place)


def check_here(
    root: Path, files: Iterable[Path], members: Sequence[Path], selection: Selection
) -> list[Checked]:
    """Checks some of a project's files in this process; `members` are the files of all processes."""
    project = Project(root)
    remember_members(project, members)
    checked = []
    was_enabled = gc.isenabled()
    gc.disable()  # syntax trees are many small objects, which slow down collections
    try:
        for number, path in enumerate(files):
            project.consulted = {}
            findings = [replace(f, edits=(), imports=()) for f in check_path(path, project, selection)]
            checked.append(Checked(path, findings, project.consulted))
            if number % _FILES_A_COLLECTION == 0:
                gc.collect()
    finally:
        if was_enabled:
            gc.enable()
    return checked


def _check(
    root: Path, files: Sequence[Path], members: Sequence[Path], selection: Selection, jobs: int | None
) -> list[Checked]:
    sizes = {path: _size(path) for path in files}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = min(cores, 8) if jobs is None else jobs
    num_processes = max(1, min(wanted, len(files), sum(sizes.values()) // _BYTES_FOR_A_PROCESS))
    if num_processes == 1:
        return check_here(root, files, members, selection)
    shares: list[list[Path]] = [[] for _ in range(num_processes)]
    loads = [0] * num_processes
    for path in sorted(files, key=lambda p: (-sizes[p], p)):
        least = loads.index(min(loads))
        shares[least].append(path)
        loads[least] += sizes[path] + 2000
    return _in_processes(root, shares, members, selection)


def _in_processes(
    root: Path, shares: Sequence[Sequence[Path]], members: Sequence[Path], selection: Selection
) -> list[Checked]:
    """Starts own child processes, since multiprocessing would import the caller's script again."""
    package = str(Path(portwright.__file__).parent.parent)
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    children = []
    for share in shares[1:]:
        child = subprocess.Popen(
            [sys.executable, "-m", "portwright.port.many"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        task = {
            "root": str(root), "files": [str(p) for p in sorted(share)], "targets": sorted(selection.targets),
            "codes": [rule.code for rule in selection.rules], "members": [str(p) for p in members],
        }  # fmt: skip
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the child died: its files are checked below
            child.stdin.write(json.dumps(task).encode())
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
        children.append((child, share))
    try:
        checked = check_here(root, sorted(shares[0]), members, selection)
        for child, share in children:
            assert child.stdout is not None
            answer = child.stdout.read()
            if child.wait() == 0:
                checked += [from_row(row) for row in json.loads(answer)]
            else:  # for example killed for memory: check its files here
                checked += check_here(root, sorted(share), members, selection)
    finally:
        for child, _ in children:
            if child.poll() is None:
                child.kill()
                child.wait()
            if child.stdout is not None:
                child.stdout.close()
    return checked


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def main() -> None:
    """A child process: reads the files to check from stdin, and writes the findings to stdout."""
    task = json.load(sys.stdin)
    rules = find_rules()
    selection = Selection(tuple(rules[code] for code in task["codes"]), frozenset(task["targets"]))
    files, members = ([Path(path) for path in task[name]] for name in ("files", "members"))
    checked = check_here(Path(task["root"]), files, members, selection)
    json.dump([to_row(each) for each in checked], sys.stdout)


if __name__ == "__main__":
    main()
