from __future__ import annotations

import subprocess
import sys

import pytest

NAMES = ["check", "plan", "port", "verify", "run", "PyTorchBaseModel", "get_params", "UserError"]
MODULES = "import portwright.port.api, portwright.verify.api, portwright.planning.api"
ALL_CALLABLE = f"""
import portwright
for name in {NAMES}:
    assert callable(getattr(portwright, name)) and name in dir(portwright), name
"""


@pytest.mark.parametrize("first", ["", MODULES])
def test_public_names_can_be_called_whatever_was_imported_before(first: str) -> None:
    subprocess.run([sys.executable, "-c", first + ALL_CALLABLE], check=True)


def test_packages_that_are_called_stay_packages() -> None:
    import portwright
    import portwright.port.api
    import portwright.verify.api

    assert portwright.port.api.port.__name__ == "port"
    assert portwright.verify.api.verify.__name__ == "verify"
    with pytest.raises(portwright.UserError, match="There is no script nowhere"):
        portwright.verify("nowhere.py", "nothing.py")


def test_importing_portwright_stays_light() -> None:
    heavy = "{'torch', 'numpy', 'tensorflow', 'pydantic', 'rich'}"
    code = (
        f"import sys, portwright, portwright.port, portwright.verify; assert not {heavy} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_lists_the_known_ones() -> None:
    import portwright

    with pytest.raises(AttributeError, match="it has check, plan"):
        portwright.nothing  # noqa: B018
