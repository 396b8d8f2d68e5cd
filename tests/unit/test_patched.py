from __future__ import annotations

import pytest

from portwright.patched import patched


class Parent:
    @staticmethod
    def asked() -> str:
        return "parent"


class Child(Parent):
    pass


def test_a_value_is_there_for_a_while_and_an_error_ends_it() -> None:
    raw = vars(Parent)["asked"]

    def fail() -> None:
        with patched(Parent, "asked", lambda: "other"):
            raise KeyError(Parent.asked())

    with pytest.raises(KeyError, match="other"):
        fail()
    assert vars(Parent)["asked"] is raw


def test_what_was_inherited_is_inherited_again() -> None:
    with patched(Child, "asked", staticmethod(lambda: "child")):
        assert Child.asked() == "child"
        assert Parent.asked() == "parent"
    assert "asked" not in vars(Child)
    assert Child.asked() == "parent"


def test_a_name_that_is_not_there_is_a_mistake() -> None:
    with pytest.raises(AttributeError), patched(Child, "answered", None):
        pass
    assert not hasattr(Child, "answered")
