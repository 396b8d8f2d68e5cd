"""What the table of the docs says of each name is what the code does."""

import ast
import importlib
import inspect
import json
import os
import sys
import textwrap
from pathlib import Path

import pytest
from docs_pages.poptorch_names import find, is_public, mark, public_name, read_api, rows

from portwright.emulate import lend, poptorch
from portwright.emulate.poptorch import Error
from portwright.emulate.poptorch._names import Mark, accepted, is_made, mark_of, partly

PUBLIC = [entry for entry in read_api() if is_public(entry)]
REFUSED = [entry for entry in read_api() if mark(entry).status == "refused"]

# Every name that Graphcore's public tutorials (graphcore/examples, folder tutorials) use, code and notebooks.
TUTORIALS = [
    "poptorch.AsynchronousDataAccessor",
    "poptorch.AutoStage",
    "poptorch.AutoStage.AutoIncrement",
    "poptorch.BeginBlock",
    "poptorch.Block",
    "poptorch.ConnectionType",
    "poptorch.ConnectionType.OnDemand",
    "poptorch.DataLoader",
    "poptorch.DataLoaderMode",
    "poptorch.DataLoaderMode.Async",
    "poptorch.MultiConv",
    "poptorch.Options",
    "poptorch.OutputMode",
    "poptorch.OutputMode.All",
    "poptorch.OutputMode.Final",
    "poptorch.PipelinedExecution",
    "poptorch.ShardedExecution",
    "poptorch.Stage",
    "poptorch.TensorLocationSettings",
    "poptorch.custom_op",
    "poptorch.identity_loss",
    "poptorch.inferenceModel",
    "poptorch.optim",
    "poptorch.optim.Adam",
    "poptorch.optim.AdamW",
    "poptorch.optim.SGD",
    "poptorch.recomputationCheckpoint",
    "poptorch.setLogLevel",
    "poptorch.trainingModel",
]
# Methods of options and wrapped models that they call.
METHODS = [
    "Precision",
    "TensorLocations",
    "Training",
    "anchorTensor",
    "connectionType",
    "copyWeightsToHost",
    "destroy",
    "detachFromDevice",
    "deviceIterations",
    "enableExecutableCaching",
    "enableStochasticRounding",
    "enableSyntheticData",
    "getAnchoredTensor",
    "getTensorNames",
    "gradientAccumulation",
    "ipu",
    "outputMode",
    "randomSeed",
    "replicationFactor",
    "setAccumulatorLocation",
    "setActivationLocation",
    "setAvailableMemoryProportion",
    "setExecutionStrategy",
    "setOptimizer",
    "setOptimizerLocation",
    "setPartialsType",
    "setWeightLocation",
    "terminate",
    "useIpuModel",
    "useOnChipStorage",
    "useReplicatedTensorSharding",
]


def _function(entry):
    """The function behind a method, property or class's constructor, without what decorators put around it."""
    thing = find(entry)
    if inspect.isclass(thing):
        thing = vars(thing).get("__init__")
    if isinstance(thing, property):
        thing = thing.fget
    thing = getattr(thing, "__func__", thing)
    return None if thing is None else inspect.unwrap(thing)


def _body(function):
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    body = tree.body[0].body
    has_doc = (
        isinstance(body[0], ast.Expr)
        and isinstance(body[0].value, ast.Constant)
        and body[0].value.value is not ...
    )
    return body[1:] if has_doc else body


def test_what_is_refused_raises():
    assert len(REFUSED) > 20
    for entry in REFUSED:
        _check_raises(entry)


def _check_raises(entry):
    thing = find(entry)
    if inspect.isclass(thing):
        call = thing
    else:
        call = thing.fget if isinstance(thing, property) else getattr(thing, "__func__", thing)
    empty, kinds = inspect.Parameter.empty, (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [
        p for p in inspect.signature(call).parameters.values() if p.default is empty and p.kind not in kinds
    ]
    with pytest.raises(TypeError):  # checked against the signature
        call(*needed, nothing_of_that_name=1)
    with pytest.raises(Error, match=r"not emulated by Portwright: .") as caught:
        call(*needed)
    assert mark(entry).why in caught.value.message


def test_what_raises_is_not_called_emulated():
    assert len(PUBLIC) > 200
    for entry in PUBLIC:
        _check_honest(entry)


def _check_honest(entry):
    function = _function(entry)
    if function is None:
        return
    status = mark(entry).status
    if is_made(function):
        assert status in ("accepted", "refused"), entry
        return
    body = _body(function)
    if entry.name == "ipuHardwareVersion":
        return  # raises as the real one does without an IPU
    if body and all(isinstance(statement, ast.Raise) for statement in body):
        assert status == "refused", entry
    called = {n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name)}
    if "not_emulated" in called:
        assert status in ("partly", "refused"), entry
    is_empty = all(
        isinstance(s, ast.Pass) or (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
        for s in body
    )
    is_abstract = getattr(find(entry), "__isabstractmethod__", False)
    if is_empty and not is_abstract:
        assert status in ("accepted", "refused"), f"{entry}: a body that does nothing is not emulation"


def test_every_mark_says_why():
    for entry in read_api():
        status, why = mark(entry)
        assert (status == "emulated") == (not why), entry
        assert status == "emulated" or why.endswith("."), entry


def test_marks():
    @accepted("it is quick.")
    def quick(): ...

    @partly("half of it.")
    def half(): ...

    assert mark_of(quick) == Mark("accepted", "it is quick.")
    assert mark_of(property(half)).status == mark_of(staticmethod(half)).status == "partly"
    assert mark_of(lambda: None) == Mark("emulated", "")

    class Marked:
        __init__ = partly("no.")(lambda self: None)

    class Derived(Marked):
        def __init__(self):
            pass

    assert mark_of(vars(Marked)["__init__"]).status == "partly"
    assert mark_of(vars(Derived)["__init__"]).status == "emulated"


def test_the_table_has_every_public_name_once():
    names = [row.name for row in rows()]
    assert len(names) == len(set(names))
    for name in (
        "Options.deviceIterations",
        "Options.Training.gradientAccumulation",
        "PoplarExecutor.copyWeightsToHost",
    ):
        assert name in names
    assert {"trainingModel", "DataLoader", "optim.LAMB", "OutputMode", "Block", "isRunningOnIpu"} <= set(
        names
    )
    assert not [name for name in names if "._" in name.replace("Options._Popart", "")]


def test_every_public_name_is_in_the_package():
    for entry in PUBLIC:
        if (
            entry.member is None
            and entry.module not in ("optim", "profiling", "testing")
            and entry.name[0] != "_"
        ):
            assert getattr(poptorch, entry.name) is find(entry), entry


def test_a_script_finds_the_same_objects():
    assert lend("poptorch") is poptorch
    for name in ("options", "enums", "optim", "ops", "poptorch_core", "profiling", "testing"):
        assert importlib.import_module(f"poptorch.{name}") is importlib.import_module(
            f"{poptorch.__name__}.{name}"
        )
    assert poptorch.__version__ == "3.4.0+emulated"
    assert sys.modules["poptorch"].Error is Error


def test_what_the_tutorials_use_is_emulated():
    told = {public_name(entry): mark(entry).status for entry in PUBLIC}
    for name in TUTORIALS:
        thing = poptorch
        for part in name.split(".")[1:]:
            thing = getattr(thing, part)
        assert told.get(name.removeprefix("poptorch."), "emulated") != "refused", name
    for method in METHODS:
        statuses = {mark(entry).status for entry in PUBLIC if entry.member == method}
        assert statuses, method
        assert "refused" not in statuses, method


def _sources(folder):
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".py":
            yield path.read_text(errors="replace")
        elif path.suffix == ".ipynb":
            for cell in json.loads(path.read_text(errors="replace"))["cells"]:
                if cell["cell_type"] == "code":
                    lines = "".join(cell["source"]).split("\n")
                    yield "\n".join(line for line in lines if not line.lstrip().startswith(("%", "!")))


def _dotted(node):
    if isinstance(node, ast.Name):
        return node.id
    return f"{_dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else "?"


def _collect(folder):
    """Names below `poptorch.`, and methods called that are members of public classes of options or executors."""
    owners = ("Options", "TensorLocationSettings", "Stage", "PoplarExecutor", "MultiConv", "DataLoader")
    members = {e.member for e in PUBLIC if e.member and (e.name in owners or e.name.startswith("_"))}
    common = {
        "set",
        "update",
        "clone",
        "compile",
        "load_state_dict",
        "model",
        "options",
        "save",
        "stage",
        "phase",
        "disable",
    }
    names, methods = set(), set()
    for text in _sources(folder):
        if "poptorch" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute):
                dotted = _dotted(node)
                if dotted.startswith("poptorch."):
                    names.add(dotted)
                elif node.attr in members - common:
                    methods.add(node.attr)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "poptorch":
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names if alias.name.startswith("poptorch.")}
    return names, methods


def test_the_lists_are_what_the_tutorials_use():
    corpus = os.environ.get("PORTWRIGHT_CORPUS")
    if not corpus or not (Path(corpus) / "graphcore+examples").is_dir():
        pytest.skip("PORTWRIGHT_CORPUS names no folder with graphcore+examples in it")
    names, methods = _collect(Path(corpus) / "graphcore+examples" / "tutorials")
    assert names == set(TUTORIALS)
    assert methods == set(METHODS)
