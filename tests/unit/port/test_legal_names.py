"""The legal forms that rules write into source code, against those that there are; only here is torch needed."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest
import torch

from portwright.discover import find_rules
from portwright.layers import legal
from portwright.legal_forms import FORMS
from portwright.port.legal_form import LegalForm
from portwright.port.names import canonical
from portwright.port.torch_names import PUBLIC

FORM_RULES = [rule for rule in find_rules().values() if isinstance(rule, LegalForm)]
# Found and rewritten by a rule of another kind, or a shape that source code does not show.
ELSEWHERE = {
    *(
        f"{home}.{name}"
        for home in ("torch", "Tensor")
        for name in ("sum", "amax", "amin", "var", "std", "logsumexp")
    ),
    "Tensor.__getitem__",
    "Tensor.__setitem__",
    "F.batch_norm",
    "F.multi_head_attention_forward",
}


def full_name(name: str) -> str:
    for short, long in (("F.", "torch.nn.functional."), ("nn.", "torch.nn.")):
        if name.startswith(short):
            return long + name.removeprefix(short)
    return name


@pytest.mark.parametrize("rule", FORM_RULES, ids=lambda rule: rule.name)
def test_forms_exist_and_take_what_torch_takes(rule: LegalForm) -> None:
    home = importlib.import_module(rule.library)
    for name, form in {**rule.layers, **rule.functions}.items():
        made = getattr(home, form)
        assert callable(made)
        own = torch
        for part in name.split(".")[1:]:
            own = getattr(own, part)
        if name in rule.layers:
            assert issubclass(made, own), name  # so that isinstance still holds in the user's code
            theirs, ours = (list(inspect.signature(c.__init__).parameters) for c in (own, made))
            if "args" not in theirs and "args" not in ours:
                # The layers API has options of its own, behind torch's.
                assert theirs == (ours if home is legal else ours[: len(theirs)]), name
    for form in rule.methods.values():
        assert callable(getattr(legal, form))


@pytest.mark.parametrize("rule", FORM_RULES, ids=lambda rule: rule.name)
def test_a_rule_is_asked_wherever_one_of_its_names_stands(rule: LegalForm) -> None:
    for name in (*rule.layers, *rule.functions, *rule.methods):
        assert any(word in name.rpartition(".")[2] for word in rule.words), name


def test_every_form_has_a_rule() -> None:
    written = {name for rule in FORM_RULES for name in (*rule.layers, *rule.functions)}
    methods = {f"Tensor.{name}" for rule in FORM_RULES for name in rule.methods}
    missing = [
        name
        for form in FORMS
        for name in form.replaces
        if full_name(name) not in written
        and name not in methods
        and name not in ELSEWHERE
        and not name.endswith("_")
    ]
    assert missing == []


def test_public_names_are_torchs() -> None:
    for module, names in PUBLIC.items():
        home = torch
        for part in module.split(".")[1:]:
            home = getattr(home, part)
        assert {
            n
            for n in ("zeros", "Linear", "relu", "Adam", "StepLR", "DataLoader", "Function", "barrier")
            if n in names
        }
        assert sum(hasattr(home, name) for name in names) > 0.7 * len(names)


def test_canonical_names_are_the_same_objects() -> None:
    from torch.nn.modules.conv import Conv1d

    assert canonical(f"{Conv1d.__module__}.Conv1d") == "torch.nn.Conv1d"
    assert canonical(f"{torch.optim.Adam.__module__}.Adam") == "torch.optim.Adam"
    assert canonical(f"{torch.utils.data.DataLoader.__module__}.DataLoader") == "torch.utils.data.DataLoader"
    assert canonical("torch.optim.lr_scheduler.StepLR") == "torch.optim.lr_scheduler.StepLR"


def test_porting_imports_no_torch() -> None:
    code = (
        "import sys, portwright.cli, portwright.port.api, portwright.port.many, portwright.port.report_formats\n"
        "from portwright.discover import find_rules\nfind_rules()\n"
        "print([m for m in ('torch', 'numpy', 'tensorflow', 'pydantic') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
