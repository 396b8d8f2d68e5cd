"""The emulator's names and signatures are PopTorch 3.4's own, without a difference."""

import ast
import functools
import inspect
import json
import sys
from importlib import resources
from pathlib import Path

import pytest

from portwright.emulate.poptorch._surface import Entry, find, read_api

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


def _difference(entry):
    """What is not as in the real package, or None."""
    try:
        thing = find(entry)
    except AttributeError as error:
        return f"missing: {error}"
    owner = find(entry._replace(member=None))
    qualname = f"{owner.__qualname__}.{entry.member}" if entry.member else owner.__qualname__
    node = _definition(owner.__module__, qualname)
    if entry.bases is not None:
        bases = tuple(ast.unparse(base) for base in node.bases)
        return None if bases == entry.bases else f"inherits from {bases}, not {entry.bases}"
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


@pytest.mark.parametrize("entry", API, ids=str)
def test_signature_is_the_vendors(entry):
    assert _difference(entry) is None


def test_the_facts_are_all_there():
    told = json.loads(resources.files("portwright.emulate").joinpath("poptorch_api.json").read_text())
    assert {entry.module for entry in API} == set(told)
    assert len(API) == sum(
        1 + (len(w["members"]) if isinstance(w, dict) else 0) for m in told.values() for w in m.values()
    )


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (Entry("options", "Options", "deviceIteration", "(self, n: int)"), "missing"),
        (Entry("options", "Option", None, "", ()), "missing"),
        (Entry("nothing", "Options", None, "", ()), "No module named"),
        (Entry("options", "Options", "deviceIterations", "(self, device_iterations)"), "not"),
        (Entry("options", "Options", "deviceIterations", "(self, device_iterations: int = 1)"), "not"),
        (Entry("options", "Options", "deviceIterations", "(self, *, device_iterations: int)"), "not"),
        (Entry("options", "Options", "deviceIterations", "property"), "not a property"),
        (Entry("options", "Options", "Training", "(self)"), "a property"),
        (Entry("options", "Options", None, "", ("dict",)), "inherits"),
        (Entry("_utils", "flattenTensorStructure", None, "(canonical_structure, tensors = None)"), "not"),
    ],
    ids=str,
)
def test_a_difference_is_seen(entry, why):
    if entry.module == "nothing":
        with pytest.raises(ModuleNotFoundError, match=why):
            _difference(entry)
    else:
        assert why in _difference(entry)
