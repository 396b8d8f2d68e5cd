"""What `portwright plan` is asked to plan, of which framework that is, and how to plan it; nothing of it is run here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portwright.discover import FRAMEWORKS, find_all_models, find_targets, get_target
from portwright.errors import UserError, suggest
from portwright.graph.plans.fit import parse_mode
from portwright.job.framework import imports_of
from portwright.job.sizes import parse_bytes
from portwright.target import Hardware, Target

_PATH_KEYS = ("_dir", "_path", "_file", "_dirs", "_paths", "_files")


@dataclass(frozen=True)
class Request:
    """The part of the command line that says what to plan."""

    path: str
    params: Path | None = None
    overrides: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    batch_size: int | None = None
    optimizer: str | None = None
    compat: str | None = None


@dataclass(frozen=True)
class Data:
    """What is known of a subject's training data, for the key metrics; None is not known."""

    num_samples: int | None = None
    why_no_samples: str = ""
    paths: tuple[Path, ...] = ()  # existing ones that params name


def data_paths(section: Any) -> tuple[Path, ...]:
    """Files and folders that the section of an input names, as far as they exist."""
    found = []
    for key, value in section.items() if isinstance(section, Mapping) else ():
        if not str(key).endswith(_PATH_KEYS):
            continue
        for path in value if isinstance(value, list) else [value]:
            if isinstance(path, str) and path and Path(path).expanduser().exists():
                found.append(Path(path).expanduser())
    return tuple(found)


def find_script(path: str) -> Path | None:
    """The run.py that a path stands for; None where it names a callable in a file."""
    given = Path(path)
    if given.is_dir():
        if not (given / "run.py").is_file():
            raise UserError(f"'{path}' has no run.py.", "Give a model folder, a run.py or FILE.py:CALLABLE.")
        return (given / "run.py").resolve()
    if given.is_file():
        if given.suffix != ".py":
            raise UserError(
                f"'{path}' is not a Python file.", "Give a model folder, a run.py or FILE.py:CALLABLE."
            )
        return given.resolve()
    if ".py:" in path:
        return None
    models = find_all_models()
    if path in models:
        return models[path] / "run.py"
    raise UserError(
        f"'{path}' is neither a run.py, a folder with one, FILE.py:CALLABLE, nor a reference model.",
        suggest(path, models),
    )


def framework_of(request: Request) -> str:
    """pytorch or tensorflow, by what the script, or else the files beside it, import; pytorch where neither is."""
    script = find_script(request.path) or Path(request.path.rpartition(":")[0])
    if not script.is_file():
        return FRAMEWORKS[0]  # its loader explains what is wrong
    beside = [path for path in sorted(script.parent.glob("*.py")) if path != script]
    for file in (script, *beside):
        imported = imports_of(file)
        if not imported.isdisjoint(("tensorflow", "portwright.tensorflow")):
            return "tensorflow"
        if "torch" in imported:
            return "pytorch"
    return FRAMEWORKS[0]


@dataclass(frozen=True)
class PlanOptions:
    """The part of the command line that says how to plan."""

    targets: tuple[Target, ...]
    mode: str | None = None
    memory: str | None = None
    legalise: bool = False


def parse_targets(text: str) -> tuple[Target, ...]:
    """Reads csx, csx,gpu or all; `all` are the targets whose hardware is described."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UserError("--target names no target.", "Give csx, csx,gpu or all.")
    if any(name.lower() == "all" for name in names):
        return tuple(target for target in find_targets().values() if target.hardware is not None)
    chosen = {target.name: target for target in map(get_target, names)}
    for target in chosen.values():
        if target.hardware is None:
            raise UserError(
                f"nothing is known of the machine of target {target.name}.", "Plan for another target."
            )
    return tuple(chosen.values())


def check_options(options: PlanOptions) -> None:
    """Refuses a mode or a size of memory that a target cannot have."""
    mode, memories = parse_mode(options.mode), parse_memory(options.memory, options.targets)
    for target in options.targets:
        machine = machine_of(target, memories)
        if mode is not None and mode not in machine.modes:
            raise UserError(
                f"{machine.name} has no execution mode {mode}.", f"It has: {', '.join(machine.modes)}."
            )


def machine_of(target: Target, memories: Mapping[str, int]) -> Hardware:
    assert target.hardware is not None
    machine = target.hardware()
    if target.name not in memories:
        return machine
    sources = {**machine.sources, "memory_bytes": "--memory"}
    sources.pop("core_memory_bytes", None)
    return dataclasses.replace(
        machine, memory_bytes=memories[target.name], core_memory_bytes=None, sources=sources
    )


def parse_memory(text: str | None, targets: Sequence[Target]) -> dict[str, int]:
    """Reads 24GB, for the one target or for those of this machine, or gpu=24GB,csx=10GB."""
    if text is None:
        return {}
    memories: dict[str, int] = {}
    for part in text.split(","):
        name, is_named, size = part.rpartition("=")
        if is_named:
            known = {target.name: target for target in targets}
            if name.strip().upper() not in known:
                raise UserError(
                    f"--memory names '{name}', which is not planned for.", suggest(name.upper(), known)
                )
            memories[name.strip().upper()] = parse_bytes(size)
            continue
        meant = [t for t in targets if len(targets) == 1 or t.kernels is None]
        if not meant:
            raise UserError(
                f"--memory {part} could be of any of {', '.join(t.name.lower() for t in targets)}.",
                f"Say whose: --memory {targets[0].name.lower()}={part}.",
            )
        memories.update(dict.fromkeys((t.name for t in meant), parse_bytes(part)))
    return memories
