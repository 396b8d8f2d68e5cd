"""The hand-picked cases: layers, losses, ops and habits that models of the field have, and the reference models.

They need neither the SDK nor a given torch version, so that `match` can be asked about them anywhere; what the real front end
says of each is kept in verdicts/.
"""

from __future__ import annotations

from vendor.case import Case
from vendor.cases_layers import LAYER_FAMILIES
from vendor.cases_models import models
from vendor.cases_networks import networks
from vendor.cases_ops import OP_FAMILIES


def all_cases() -> list[Case]:
    found = [case for family in (*LAYER_FAMILIES, *OP_FAMILIES, networks, models) for case in family()]
    names = [case.name for case in found]
    assert len(set(names)) == len(names), "two cases share a name"
    return found
