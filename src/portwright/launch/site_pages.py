"""The output of `portwright sites`: the list, and the page of one site."""

from __future__ import annotations

import json
import shlex
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from portwright.errors import UserError
from portwright.launch.site import Site
from portwright.launch.site_files import SiteFile, find_site, find_sites, is_folder, load_site, user_folder

_PROGRAMS = {"slurm": ("sbatch",), "csctl": ("csctl", "cszoo"), "none": ()}
_TASKS = {
    "stream": "one trains, the others read its data",
    "parallel": "all train",
    "single": "one",
}
_TABLES = ("job", "launch", "container", "environment", "storage", "interactive", "login")
_COMMANDS = frozenset({"srun", "prefix", "run_flags", "flags", "quota"})  # words of a command line
_INDENT = "    "


def why_not_here(site: Site) -> str | None:
    """Why jobs cannot be submitted to the site from this machine; None where they probably can."""
    missing = [name for name in _PROGRAMS[site.scheduler] if shutil.which(name) is None]
    if missing:
        return f"{missing[0]} is not on PATH"
    elsewhere = [folder for folder in site.storage.shared if not is_folder(Path(folder))]
    return f"{elsewhere[0]} is not here" if elsewhere else None


def describe_sites() -> list[dict[str, Any]]:
    """One row a site, for --json and for the list; the row of an invalid file has its error."""
    rows = []
    for file in find_sites():
        try:
            rows.append(describe_site(file.name)[1])
        except UserError as error:
            rows.append({**_origin(file), "error": str(error)})
    return rows


def describe_site(name_or_path: str) -> tuple[Site, dict[str, Any]]:
    """One site and its row; its errors are raised."""
    site = load_site(name_or_path)
    reason = why_not_here(site)
    return site, {
        **_origin(find_site(name_or_path)),
        "summary": site.summary,
        "scheduler": site.scheduler,
        "target": site.target,
        "targets": list(site.targets),
        "tasks": site.tasks,
        # of the default target; others may have another
        "container": site.for_target(site.target).container.kind,
        "here": reason is None,
        "why_not": reason,
        "error": None,
    }


def _origin(file: SiteFile) -> dict[str, Any]:
    return {
        "name": file.name,
        "path": str(file.path),
        "shipped": file.is_shipped,
        "instead_of": [str(path) for path in file.hidden],
    }


def render_list(rows: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    """The list for a person; the error of an invalid file stands under its name."""
    heads = ("name", "scheduler", "targets", "tasks", "container", "can be used here")
    cells = [
        (row["name"], row["scheduler"], ", ".join(row["targets"]), row["tasks"], row["container"], _here(row))
        for row in rows
        if not row["error"]
    ]
    widths = [max(len(line[column]) for line in [heads, *cells]) for column in range(len(heads) - 1)]
    lines = [_line(heads, widths)]
    good = iter(cells)
    for row in rows:
        if row["error"]:
            lines.append(f"{row['name']}: this file is wrong")
            lines += [_INDENT + line for line in row["error"].splitlines()]
        else:
            lines.append(_line(next(good), widths))
            lines += _wrap(row["summary"], width)
        lines += _wrap(_whose(row), width)
    return lines


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join([*(cell.ljust(width) for cell, width in zip(cells, widths, strict=False)), cells[-1]])


def _here(row: Mapping[str, Any]) -> str:
    return "yes" if row["here"] else f"no: {row['why_not']}"


def _whose(row: Mapping[str, Any]) -> str:
    if row["shipped"]:
        return ""
    instead = f", instead of {', '.join(row['instead_of'])}" if row["instead_of"] else ""
    return f"yours: {row['path']}{instead}"


def _wrap(text: str, width: int, indent: str = _INDENT) -> list[str]:
    return textwrap.wrap(
        text, max(width, 40), initial_indent=indent, subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def render_site(site: Site, row: Mapping[str, Any]) -> list[str]:
    """The page of one site: its values, and how to extend it to a site of one's own."""
    others = [name for name in site.targets if name != site.target]
    top = {
        "file": row["path"] if row["shipped"] else f"{row['path']} (yours)",
        "instead of": ", ".join(row["instead_of"]),
        "facts from": site.source,
        "used here": _here(row),
        "scheduler": site.scheduler,
        "target": site.target + (f"; also {', '.join(others)}" if others else ""),
        "compile only": ", ".join(site.compile_only),
        "tasks": f"{site.tasks} ({_TASKS[site.tasks]})",
        "hpc": "has cslc and cs_python (submit --hpc)" if site.hpc else "",
    }
    lines = [f"{site.name}: {site.summary}" if site.summary else site.name, *_pairs(top)]
    for name in _TABLES:
        table: BaseModel = getattr(site, name)
        pairs = {
            key: _say(key, value) for key, value in table if name == "job" or key in table.model_fields_set
        }
        pairs = {key: text for key, text in pairs.items() if text}
        if name == "container" and site.container.kind != "none" and site.container.image is None:
            pairs["image"] = "none; name one with --image"
        if pairs:
            lines += ["", name, *_pairs(pairs)]
    for target, changes in site.on.items():
        lines += ["", f"on {target}", *_pairs(_flat(changes))]
    own = user_folder() / f"my-{site.name}.toml"
    is_named = any(file.name == site.name and str(file.path) == row["path"] for file in find_sites())
    base = (
        site.name if is_named else str(Path.cwd() / row["path"])
    )  # outside of the folders that are searched
    example = [_INDENT + line if line else "" for line in example_toml(site, base).splitlines()]
    return [
        *lines, "", f"A site of your own that begins from this one, in {own}:", "", *example, "",
        f"Submit with --site my-{site.name}. The whole file: portwright sites {shlex.quote(base)} --toml.",
    ]  # fmt: skip


def _pairs(pairs: Mapping[str, str]) -> list[str]:
    longest = max((len(key) for key in pairs), default=0) + 2
    return [f"  {key:<{longest}}{text}" for key, text in pairs.items() if text]


def _flat(changes: Mapping[str, Any], before: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in changes.items():
        if isinstance(value, Mapping) and key != "variables":
            flat |= _flat(value, f"{before}{key}.")
        else:
            flat[f"{before}{key}"] = _say(key, value) or "none"
    return flat


def _say(key: str, value: Any) -> str:
    if value is None or value in ("", (), [], {}):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={text}" for name, text in value.items())
    if isinstance(value, (list, tuple)):
        # The shell expands a word with ${NAME} in it, so it is not quoted here either.
        return (
            " ".join(w if "${" in w else shlex.quote(w) for w in value)
            if key in _COMMANDS
            else ", ".join(value)
        )
    return str(value)


def example_toml(site: Site, base: str | None = None) -> str:
    """A small valid file that extends the site, which `base` names; a start for one's own."""
    lines = [
        f"extends = {json.dumps(base or site.name, ensure_ascii=False)}",
        f'summary = "{site.name}, as my group uses it"',
    ]
    lines += ["", "[job]", f'time = "{site.job.time}"']
    if site.scheduler == "slurm":
        flags = json.dumps([*site.job.flags, "--qos=low"])
        lines += [f'partition = "{site.job.partition or "debug"}"', f"flags = {flags}"]
    if site.tasks != "single":
        lines.append(f"ntasks = {site.job.ntasks}")
    lines += ["", "[environment]", 'variables = { OMP_NUM_THREADS = "8" }']
    return "\n".join(lines) + "\n"
