from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "name", ["check", "plan", "port", "verify", "run", "PyTorchBaseModel", "get_params", "UserError"]
)
@pytest.mark.parametrize(
    "first", ["", "import portwright.port.api, portwright.verify.api, portwright.graph.plans.api"]
)
def test_a_public_name_can_be_called_whatever_was_imported_before(name: str, first: str) -> None:
    code = f"{first}\nimport portwright\nassert callable(portwright.{name}), portwright.{name}\nassert '{name}' in dir(portwright)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_packages_that_are_called_stay_packages() -> None:
    import portwright
    import portwright.port.api
    import portwright.verify.api

    assert portwright.port.api.port.__name__ == "port"
    assert portwright.verify.api.verify.__name__ == "verify"
    with pytest.raises(portwright.UserError, match="not a port|There is no script"):
        portwright.verify("nowhere.py", "nothing.py")


def test_importing_portwright_stays_light() -> None:
    heavy = "{'torch', 'numpy', 'tensorflow', 'pydantic', 'rich'}"
    code = f"import sys, portwright, portwright.port, portwright.verify; assert not {heavy} & set(sys.modules), sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_lists_the_known_ones() -> None:
    import portwright

    with pytest.raises(AttributeError, match="it has check, plan"):
        portwright.nothing  # noqa: B018
