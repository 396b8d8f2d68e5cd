"""The emulator's names and signatures are PopTorch 3.4's own, without a difference."""

import ast
import functools
import inspect
import sys
from pathlib import Path

import pytest
from docs_pages.poptorch_names import Entry, find, read_api

from portwright.emulate.poptorch._names import is_made, read_table

API = read_api()


class _Unquote(ast.NodeTransformer):
    def visit_Constant(self, node):
        return ast.parse(node.value, mode="eval").body if isinstance(node.value, str) else node


def _annotation(node):
    return None if node is None else ast.unparse(_Unquote().visit(node))


def _shape(arguments):
    """Kind, name, annotation and default of each parameter; annotations of * and ** are not in the facts."""
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + arguments.defaults
    shape = [
        ("/" if a in arguments.posonlyargs else "", a.arg, _annotation(a.annotation), d and ast.unparse(d))
        for a, d in zip(plain, defaults, strict=True)
    ]
    if arguments.vararg:
        shape.append(("*", arguments.vararg.arg, None, None))
    for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        shape.append(("keyword", a.arg, _annotation(a.annotation), d and ast.unparse(d)))
    if arguments.kwarg:
        shape.append(("**", arguments.kwarg.arg, None, None))
    return shape


def _wanted(signature):
    return _shape(ast.parse(f"def f{signature}: ...").body[0].args)


@functools.cache
def _tree(module):
    # Errors go by the script's name for their module once the package was lent, as other tests in this process do.
    ours = module if module.startswith("portwright.") else f"portwright.emulate.{module}"
    return ast.parse(Path(sys.modules[ours].__file__).read_text())


def _definition(module, qualname):
    """The last definition of that name in a module's source: of a property with a setter, the setter."""
    body = _tree(module).body
    for part in qualname.split("."):
        found = [n for n in body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name == part]
        assert found, f"{qualname} is not defined in {module}"
        body = found[-1].body
    return found[-1]


def _unlike_table(entry, function):
    """What is not as in the table of a function that was made from it: names, kinds and which have a default."""
    marks = {"/": "", "": "", "*": "*", "keyword": "keyword", "**": "**"}
    theirs = [(marks[kind], name, default is not None) for kind, name, _, default in _wanted(entry.signature)]
    kinds = {"VAR_POSITIONAL": "*", "KEYWORD_ONLY": "keyword", "VAR_KEYWORD": "**"}
    empty = inspect.Parameter.empty
    ours = [
        (kinds.get(p.kind.name, ""), p.name, p.default is not empty)
        for p in inspect.signature(function).parameters.values()
    ]
    return None if ours == theirs else f"{ours}\nnot {theirs}"


def _difference(entry):
    """What is not as in the real package, or None."""
    try:
        thing = find(entry)
    except AttributeError as error:
        return f"missing: {error}"
    if is_made(thing):
        return None if inspect.isclass(thing) or isinstance(thing, property) else _unlike_table(entry, thing)
    owner = find(entry._replace(member=None))
    qualname = f"{owner.__qualname__}.{entry.member}" if entry.member else owner.__qualname__
    node = _definition(owner.__module__, qualname)
    if entry.bases is not None:
        bases = tuple(ast.unparse(base).rpartition(".")[2] for base in node.bases)
        theirs = tuple(base.rpartition(".")[2] for base in entry.bases)
        return None if bases == theirs else f"inherits from {bases}, not {entry.bases}"
    if any(isinstance(d, ast.Name) and d.id == "property" for d in node.decorator_list):
        return None if entry.signature == "property" else f"a property, not {entry.signature}"
    if entry.signature == "property":
        return "not a property"
    ours, theirs = _shape(node.args), _wanted(entry.signature)
    if ours != theirs:
        return f"{ours}\nnot {theirs}"
    called = thing.fset if isinstance(thing, property) else getattr(thing, "__func__", thing)
    at_run_time = [name for _, name, _, _ in theirs]
    return (
        None
        if list(inspect.signature(called).parameters) == at_run_time
        else f"called as {inspect.signature(called)}"
    )


def test_signatures_are_the_vendors():
    differences = {str(entry): difference for entry in API if (difference := _difference(entry))}
    assert len(API) > 200
    assert not differences


def test_every_name_of_a_public_module_is_there():
    names = {(entry.module, entry.name) for entry in API}
    for module in ("__init__", "enums", "ops", "options", "optim", "profiling", "testing"):
        assert {(module, name) for name in read_table()[module] if name[0] != "_"} <= names
    assert ("_poplar_executor", "PoplarExecutor") in names


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (Entry("options", "Options", "deviceIteration", "(self, n: int)"), "missing"),
        (Entry("options", "Option", None, "", ()), "missing"),
        (Entry("options", "Options", "deviceIterations", "(self, device_iterations)"), "not"),
        (Entry("options", "Options", "deviceIterations", "(self, device_iterations: int = 1)"), "not"),
        (Entry("options", "Options", "deviceIterations", "(self, *, device_iterations: int)"), "not"),
        (Entry("options", "Options", "deviceIterations", "property"), "not a property"),
        (Entry("options", "Options", "Training", "(self)"), "a property"),
        (Entry("options", "Options", None, "", ("dict",)), "inherits"),
        (Entry("__init__", "poptorchAtExit", None, "(filename)"), "not"),
    ],
    ids=str,
)
def test_a_difference_is_seen(entry, why):
    assert why in _difference(entry)
