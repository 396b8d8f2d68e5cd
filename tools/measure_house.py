"""Measures the size and the order of src/portwright: statements, lines and files by package, imports, and target names.

    python tools/measure_house.py                      # a table of the working tree
    python tools/measure_house.py --json house.json    # the same for machines
    python tools/measure_house.py --before house.json  # beside an earlier measurement
    python tools/measure_house.py --floors             # who may import whom, as docs/architecture.md shows it

Statements are counted by `ast`, so neither longer lines nor shorter docstrings change them. An import cycle is a set of modules
that import each other, eagerly or inside functions. An import points upward where its package stands on the same floor as the
one that it names, or below. A place that names a target is a text such as "csx" in code outside of targets/, docstrings left out; "cpu" in small letters is torch's
name of the host and not counted.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src"
PACKAGE = "portwright"
# Who may import whom: a package imports from the floors below its own, eagerly or inside functions, and never from its own floor.
# The lowest comes first. tests/unit/test_floors.py holds the source against it.
FLOORS = (
    "errors callable_package patched",
    "extras needs",
    "target discover base_model",
    "job gpu_kernels legal_forms",
    "stream layers report",
    "losses data watching",
    "text images graph",
    "text_tasks runtime tensorflow",
    "generation",
    "networks optim compat emulate",
    "huggingface models port",
    "verify",
    "targets",
    "planning launch",
    "cli",
    "__main__",
)
TARGET_NAMES = frozenset({"csx", "ipu", "rdu", "hpu", "gpu", "cpu"})


@dataclass
class Size:
    """How large a package is."""

    files: int = 0
    lines: int = 0
    statements: int = 0


@dataclass
class House:
    """One measurement of the whole source."""

    packages: dict[str, Size] = field(default_factory=dict)
    cycles: list[list[str]] = field(default_factory=list)
    upward: list[tuple[str, str]] = field(default_factory=list)
    same_class_names: dict[str, int] = field(default_factory=dict)
    target_names_outside: list[str] = field(default_factory=list)  # the module of each place

    @property
    def total(self) -> Size:
        sizes = self.packages.values()
        return Size(
            sum(s.files for s in sizes), sum(s.lines for s in sizes), sum(s.statements for s in sizes)
        )

    def as_json(self) -> dict[str, object]:
        return {
            "total": vars(self.total),
            "packages": {name: vars(size) for name, size in sorted(self.packages.items())},
            "import_cycles": self.cycles,
            "upward_imports": self.upward,
            "same_class_names": self.same_class_names,
            "target_names_outside_targets": len(self.target_names_outside),
        }


def measure(root: Path) -> House:
    house, imports, classes = House(), dict[str, set[str]](), Counter[str]()
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(root.rglob("*.py"))}
    modules = {_module_name(path, root): path for path in trees}
    for name, path in modules.items():
        tree, parts = trees[path], name.split(".")
        size = house.packages.setdefault(parts[1] if _is_in_a_folder(path, root) else "(top)", Size())
        size.files += 1
        size.lines += path.read_text(encoding="utf-8").count("\n")
        size.statements += sum(isinstance(node, ast.stmt) for node in ast.walk(tree))
        imports[name] = {found for found in _imported(tree, name, path, modules) if found != name}
        classes.update(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
        if "targets" not in parts:
            house.target_names_outside += [name for _ in _target_names(tree)]
    house.cycles = _cycles(imports)
    house.upward = list(_upward(imports))
    house.same_class_names = {name: count for name, count in classes.most_common() if count > 2}
    return house


def _upward(imports: Mapping[str, set[str]]) -> Iterator[tuple[str, str]]:
    """Imports of another package that is not on a lower floor; a package without a floor is an error."""
    floor_of = {name: number for number, floor in enumerate(FLOORS) for name in floor.split()}
    if homeless := sorted({_package(module) for module in imports} - {*floor_of, ""}):
        raise SystemExit(f"no floor is known of {', '.join(homeless)}: add it to FLOORS in {__file__}")
    for module, imported in sorted(imports.items()):
        own = _package(module)
        for other in sorted(imported):
            package = _package(other)
            if own and package and own != package and floor_of[package] >= floor_of[own]:
                yield module, other


def _package(module: str) -> str:
    """The folder or module right below portwright; nothing for portwright itself, which imports none of them by name."""
    return module.partition(".")[2].partition(".")[0]


def draw_floors() -> Iterator[str]:
    """The floors from the top down, as text."""
    width = max(map(len, FLOORS))
    for floor in reversed(FLOORS):
        yield "   ".join(floor.split()).center(width + 8).rstrip()


def _module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_in_a_folder(path: Path, root: Path) -> bool:
    return len(path.relative_to(root).parts) > 1


def _imported(tree: ast.Module, name: str, path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    """Modules of ours that a module imports anywhere in its text, but not for the type checker alone."""
    for node in _without_type_checking(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                keep = len(name.split(".")) - node.level + (path.name == "__init__.py")
                base = ".".join([*name.split(".")[:keep], *([base] if base else [])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                if whole in modules:
                    yield whole
                elif base in modules:
                    yield base


def _without_type_checking(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        yield child
        yield from _without_type_checking(child)


def _cycles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Strongly connected modules (Tarjan's algorithm, without recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    on_stack: set[str] = set()
    stack: list[str] = []
    found: list[list[str]] = []
    for start in imports:
        if start in index:
            continue
        work = [(start, iter(sorted(imports[start])))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while work:
            node, rest = work[-1]
            following = next(rest, None)
            if following is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    members = []
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        members.append(member)
                        if member == node:
                            break
                    if len(members) > 1:
                        found.append(sorted(members))
            elif following not in index:
                index[following] = low[following] = len(index)
                stack.append(following)
                on_stack.add(following)
                work.append((following, iter(sorted(imports.get(following, ())))))
            elif following in on_stack:
                low[node] = min(low[node], index[following])
    return sorted(found, key=len, reverse=True)


def _target_names(tree: ast.Module) -> Iterator[ast.Constant]:
    """Texts that are a target's name, in whatever case."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.lower() in TARGET_NAMES
            and node.value != "cpu"
        ):
            yield node


def render(house: House, before: Mapping[str, dict[str, int]] | None) -> Iterator[str]:
    yield f"{'package':<14}{'files':>8}{'lines':>10}{'statements':>12}" + (
        f"{'lines before':>15}{'change':>9}" if before else ""
    )
    rows = [*sorted(house.packages.items(), key=lambda row: -row[1].lines), ("total", house.total)]
    for name, size in rows:
        line = f"{name:<14}{size.files:>8}{size.lines:>10}{size.statements:>12}"
        if before:
            was = before.get(name, {}).get("lines", 0)
            line += f"{was:>15}{size.lines - was:>+9}"
        yield line
    modules = sum(len(cycle) for cycle in house.cycles)
    yield f"import cycles: {len(house.cycles)}, of {modules} modules"
    yield f"imports that point upward: {len(house.upward)}"
    yield f"class names that three modules or more use: {len(house.same_class_names)}"
    yield f"places outside targets/ that name a target: {len(house.target_names_outside)}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the measurement to this file")
    parser.add_argument("--before", type=Path, help="an earlier measurement to show beside")
    parser.add_argument("--floors", action="store_true", help="print who may import whom, and nothing else")
    options = parser.parse_args()
    if options.floors:
        print("\n".join(draw_floors()))
        return 0
    house = measure(ROOT / PACKAGE)
    before = None
    if options.before:
        earlier = json.loads(options.before.read_text())
        before = {**earlier["packages"], "total": earlier["total"]}
    print("\n".join(render(house, before)))
    if options.json:
        options.json.write_text(json.dumps(house.as_json(), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
