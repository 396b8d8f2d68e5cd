"""Every name of SambaFlow that public code uses is there: emulated, accepted, or refused when it is called."""

from __future__ import annotations

import ast
import importlib
import os
from pathlib import Path

import pytest

from portwright.emulate import lend
from portwright.emulate.sambaflow import _names
from portwright.emulate.sambaflow._refusal import SambaFlowError

ROWS = list(_names.rows())


def test_names_are_many_and_unique() -> None:
    names = [name for name, _, _ in ROWS]
    assert len(names) == len(set(names)) > 100
    assert {status for _, status, _ in ROWS} == {"emulated", "accepted, no effect", "refused"}


def test_every_name_that_is_not_refused_is_there() -> None:
    for name, status, _ in ROWS:
        if status != "refused":
            _names.find(name)


@pytest.mark.parametrize("name", [name for name, status, _ in ROWS if status == "refused"])
def test_a_refused_name_raises_when_it_is_called(name: str) -> None:
    with pytest.raises(SambaFlowError, match="not emulated by Portwright"):
        _names.find(name)()  # type: ignore[operator]


def test_every_refusal_says_why() -> None:
    assert all(why for _, status, why in ROWS if status == "refused")
    page = _names.page("")
    assert "| `sambaflow.samba.session.run` | emulated |" in page
    assert "`sambaflow.samba.optim.Adam` | refused: " in page


def test_lent_modules_are_the_same_objects() -> None:
    package = lend("sambaflow")
    import sambaflow.samba.utils as utils  # type: ignore[import-not-found]
    from sambaflow import samba
    from sambaflow.samba.nn.parameter import SambaParameter
    from sambaflow.samba.optim.adam import AdamW
    from sambaflow.samba.utils.trainer.torch import train  # type: ignore[import-not-found]

    from portwright.emulate.sambaflow import samba as ours
    from portwright.emulate.sambaflow.samba import utils as our_utils

    assert package.__version__.endswith("+emulated")
    assert samba is ours
    assert utils is our_utils
    assert SambaParameter is ours.SambaParameter
    assert AdamW is ours.optim.AdamW
    assert train is _names.find("sambaflow.samba.utils.trainer.torch.train")
    assert package.samba.directives is ours.directives


def test_the_session_stays_an_object_also_when_its_module_is_imported() -> None:
    lend("sambaflow")
    from sambaflow.samba.session import SambaSession  # type: ignore[import-not-found]

    from portwright.emulate.sambaflow import samba

    importlib.import_module("sambaflow.samba.session")
    assert isinstance(samba.session, SambaSession)


def _used_names(source: str) -> set[str]:
    """Dotted names of sambaflow that a file imports, or reaches through what it imports."""
    tree, known, used = ast.parse(source), {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "sambaflow":
                    known[alias.asname or "sambaflow"] = alias.name if alias.asname else "sambaflow"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sambaflow":
            for alias in node.names:
                used.add(f"{node.module}.{alias.name}")
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        words, part = [], node
        while isinstance(part, ast.Attribute):
            words.append(part.attr)
            part = part.value
        if words and isinstance(part, ast.Name) and part.id in known:
            used.add(".".join([known[part.id], *reversed(words)]))
    return used


@pytest.mark.skipif("PORTWRIGHT_CORPUS" not in os.environ, reason="PORTWRIGHT_CORPUS names no folder")
def test_every_name_that_the_vendors_tutorials_use_is_there() -> None:
    folder = Path(os.environ["PORTWRIGHT_CORPUS"]) / "sambanova+tutorials"
    files = sorted(folder.rglob("*.py"))
    assert files
    missing = set()
    for file in files:
        for name in _used_names(file.read_text()):
            try:
                _names.find(name)
            except (AttributeError, ModuleNotFoundError):
                missing.add(name)
            except SambaFlowError:
                pass  # refused by name
    assert not missing
