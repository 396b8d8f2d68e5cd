"""Breaks each rule in small ways and runs its tests: a mutant that passes them all shows what no fixture looks at.

    python tools/mutate_rules.py                 # all rules; ends with status 1 where a mutant survives
    python tools/mutate_rules.py PW201 to-device # some of them
    python tools/mutate_rules.py --list PW201    # every mutant, with its fate

A mutant negates a condition, empties the rule's words, drops a yield, or spoils a text that goes into the rewritten file;
with --fine also leaves out one side of an `and` or `or`. One that only changes the words of a message counts apart. The tests are the rule's own: its fixture pair, a second port of it, and its page.
Survivors that change nothing anyone can see are listed, with the reason, in tools/mutants_accepted.tsv.
"""

from __future__ import annotations

import argparse
import ast
import copy
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from unit.port import rule_fixtures  # noqa: E402
from unit.port import test_rules as tests  # noqa: E402

from portwright.discover import find_rules, rules_of  # noqa: E402
from portwright.port.check import find  # noqa: E402
from portwright.port.rule import Rule  # noqa: E402

ACCEPTED = Path(__file__).with_name("mutants_accepted.tsv")
_PEOPLE = (
    "message",
    "cure",
    "reason",
    "what",
    "why",
)  # keywords whose texts are for people, not for the file


@dataclass(frozen=True)
class Mutant:
    """One rule with one thing wrong in it."""

    rule: str
    line: int
    what: str
    tree: ast.Module

    @property
    def key(self) -> str:
        return f"{self.rule}\t{self.what}"


def mutants(rule: Rule, fine: bool) -> Iterator[Mutant]:
    """Every mutant; `fine` ones leave out one side of an `and` or `or`."""
    source = Path(inspect.getfile(type(rule))).read_text(encoding="utf-8")
    original = ast.parse(source)
    into_file = _texts_for_the_file(original)
    for path, node in _own_code(original, rule):
        for what, change in _changes(node, path, into_file, fine):
            tree = copy.deepcopy(original)
            change(_follow(tree, path))
            ast.fix_missing_locations(tree)
            text = " ".join(ast.unparse(node).split())
            yield Mutant(
                rule.code, getattr(node, "lineno", 0), f"{what}: {textwrap.shorten(text, 110)}", tree
            )
    words = copy.deepcopy(original)
    for statement in ast.walk(words):
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "words":
            statement.value = ast.Tuple([ast.Constant("no file has this word")], ast.Load())
            ast.fix_missing_locations(words)
            yield Mutant(rule.code, statement.lineno, "words emptied", words)


Path_ = tuple[tuple[str, int | None], ...]


def _own_code(tree: ast.Module, rule: Rule) -> list[tuple[Path_, ast.AST]]:
    """Nodes of the rule's functions, each with the way that leads to it from the root; of a row, those that it names."""
    found: list[tuple[Path_, ast.AST]] = []
    rows = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "legal_form"]
    others = [row for row in rows if ast.literal_eval(row.args[0]) != rule.code]
    foreign: set[str] = set()
    reached: list[ast.AST] = [*others]
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    while reached:
        names = {n.id for n in ast.walk(reached.pop()) if isinstance(n, ast.Name)} - foreign
        reached += [functions[name] for name in names & set(functions)]
        foreign |= names & set(functions)

    def visit(node: ast.AST, path: Path_, inside: bool) -> None:
        if node in others or (isinstance(node, ast.FunctionDef) and node.name in foreign):
            return
        inside = inside or isinstance(node, (ast.FunctionDef, ast.Lambda))
        if inside:
            found.append((path, node))
        for name, value in ast.iter_fields(node):
            if name in ("decorator_list", "returns", "annotation"):
                continue
            if isinstance(value, list):
                for i, item in enumerate(value):
                    if isinstance(item, ast.AST):
                        visit(item, (*path, (name, i)), inside)
            elif isinstance(value, ast.AST):
                visit(value, (*path, (name, None)), inside)

    visit(tree, (), False)
    return found


def _follow(node: ast.AST, path: Path_) -> tuple[ast.AST, str, int | None]:
    """The parent of the node at a path, and where in it the node stands."""
    for name, index in path[:-1]:
        value = getattr(node, name)
        node = value if index is None else value[index]
    return (node, *path[-1])


Change = Callable[[tuple[ast.AST, str, int | None]], None]


def _put(new: Callable[[ast.AST], ast.AST]) -> Change:
    def change(at: tuple[ast.AST, str, int | None]) -> None:
        parent, name, index = at
        value = getattr(parent, name)
        if index is None:
            setattr(parent, name, new(value))
        else:
            value[index] = new(value[index])

    return change


def _changes(node: ast.AST, path: Path_, into_file: set[ast.AST], fine: bool) -> Iterator[tuple[str, Change]]:
    place = path[-1][0] if path else ""
    if isinstance(node, ast.expr) and place in ("test", "ifs"):
        yield "negated", _put(lambda n: ast.UnaryOp(ast.Not(), n))  # type: ignore[arg-type]
    if isinstance(node, ast.Return) and isinstance(node.value, (ast.Compare, ast.BoolOp, ast.UnaryOp)):
        yield "negated return", _put(lambda n: ast.Return(ast.UnaryOp(ast.Not(), n.value)))  # type: ignore[attr-defined]
    if fine and isinstance(node, ast.BoolOp):
        for i, side in enumerate(node.values):
            if _is_narrowing(side):
                continue  # for the type checker: what it keeps out has no such attribute
            yield f"without side {i + 1}", _put(lambda n, i=i: _without(n, i))  # type: ignore[misc]
    if isinstance(node, ast.Expr) and isinstance(node.value, (ast.Yield, ast.YieldFrom)):
        yield "dropped yield", _put(lambda n: ast.Pass())
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node in into_file:
        yield "spoilt text", _put(lambda n: ast.Constant(n.value + "_x"))  # type: ignore[attr-defined]


def _is_narrowing(side: ast.expr) -> bool:
    """A side that only tells the type checker what is there: isinstance(...), `is None`, `or ""`."""
    if isinstance(side, ast.Constant):
        return True
    if isinstance(side, ast.Compare) and isinstance(side.ops[0], (ast.Is, ast.IsNot)):
        return isinstance(side.comparators[0], ast.Constant) and side.comparators[0].value is None
    if isinstance(side, ast.UnaryOp) and isinstance(side.op, ast.Not):
        side = side.operand
    return isinstance(side, ast.Call) and isinstance(side.func, ast.Name) and side.func.id == "isinstance"


def _without(node: ast.AST, index: int) -> ast.AST:
    assert isinstance(node, ast.BoolOp)
    rest = [v for i, v in enumerate(node.values) if i != index]
    return rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)


def _texts_for_the_file(tree: ast.Module) -> set[ast.AST]:
    """Texts among the arguments of calls that make edits."""
    makers = {"replace", "Edit", "set_keyword", "swap_method", "insert_before", "unwrap"}
    found: set[ast.AST] = set()
    for call in ast.walk(tree):
        if isinstance(call, ast.Call):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            is_text = name == "replace" and ast.unparse(call.func) != "file.replace"
            if name in makers and not is_text:
                for argument in (*call.args, *(k.value for k in call.keywords if k.arg not in _PEOPLE)):
                    found.update(n for n in ast.walk(argument) if isinstance(n, ast.Constant))
    return found


def load(mutant: Mutant, rule: Rule) -> Rule:
    """The mutated file's own rule."""
    original = sys.modules[type(rule).__module__]
    module = ModuleType(original.__name__)
    module.__file__ = original.__file__
    exec(compile(mutant.tree, str(original.__file__), "exec"), module.__dict__)
    return next(changed for changed in rules_of(module) if changed.code == rule.code)


def is_killed(rule: Rule, tmp: Path) -> bool:
    """Whether one of the rule's own tests fails."""
    name = tests.fixture_of(rule)
    try:
        if rule_fixtures.mistakes(rule, name):
            return True
        tests.test_page_shows_what_is_found_and_what_is_not(rule, tmp)
        tests.test_fixture_is_stable_after_one_port(rule)
    except Exception:
        return True
    return False


def says(rule: Rule) -> list[tuple[int, str, str]]:
    """What a rule tells a person about its fixture, which the fixture does not pin down."""
    source = rule_fixtures.load(tests.fixture_of(rule))
    found = find(source, rule_fixtures.project(), rule_fixtures.select(rule))
    return [(f.line, f.message, f.cure) for f in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("rules", nargs="*", help="codes or names; all without")
    parser.add_argument("--fine", action="store_true", help="leave out sides of conditions too")
    parser.add_argument("--list", action="store_true", help="say what became of each mutant")
    arguments = parser.parse_args()
    accepted = _accepted()
    rules = [
        r for r in find_rules().values() if not arguments.rules or {r.code, r.name} & set(arguments.rules)
    ]
    total = survived = 0
    for rule in rules:
        for mutant in mutants(rule, arguments.fine):
            total += 1
            broken = load(mutant, rule)
            fate = (
                "killed" if is_killed(broken, ROOT / "tests")
                else "accepted" if mutant.key in accepted
                else "wording" if says(broken) != says(rule)
                else "SURVIVED"
            )  # fmt: skip
            survived += fate == "SURVIVED"
            if fate == "SURVIVED" or arguments.list:
                print(f"{fate}\t{mutant.rule}\t{mutant.line}\t{mutant.what}", flush=True)
    print(
        f"{total} mutants of {len(rules)} rules: {total - survived} killed, accepted or wording, {survived} survived"
    )
    return 1 if survived else 0


def _accepted() -> set[str]:
    if not ACCEPTED.exists():
        return set()
    rows = [
        line.split("\t") for line in ACCEPTED.read_text(encoding="utf-8").splitlines() if line[:2] == "PW"
    ]
    return {f"{row[0]}\t{row[1]}" for row in rows}


if __name__ == "__main__":
    sys.exit(main())
