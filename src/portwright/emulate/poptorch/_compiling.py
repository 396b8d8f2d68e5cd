"""What is different in the process while a model is compiled."""
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

from torch.distributions import Distribution

from portwright.emulate.poptorch import _impl


class _SetDefaultDeviceType:
    """Tensors made in a model are the IPU's by default; here that takes no change, and distributions are not to read theirs."""

    def __init__(self):
        self.overrides: dict[str, Any] = {}
        self.saved_distribution_validate_args: bool | None = None

    def replace(self):
        self.saved_distribution_validate_args = Distribution._validate_args
        Distribution.set_default_validate_args(False)

    def restore(self):
        if self.saved_distribution_validate_args is not None:
            Distribution.set_default_validate_args(self.saved_distribution_validate_args)


class _OverwriteContextManager:
    """Holds the replacements that compiling needs, and those that other packages register."""

    _subsitution_manager_types: ClassVar[list[Any]] = [_SetDefaultDeviceType]

    def __init__(self):
        self.substitution_managers = [kind() for kind in self._subsitution_manager_types]
        self._undo = ExitStack()

    def __enter__(self):
        with ExitStack() as undo:  # what was replaced before one of them fails is restored
            for manager in self.substitution_managers:
                manager.replace()
                undo.callback(manager.restore)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, exc_type, value, traceback):
        self._undo.close()

    @classmethod
    def registerSubsitutionManager(cls, type):
        if type not in cls._subsitution_manager_types:
            cls._subsitution_manager_types.append(type)


@contextmanager
def compiling(
    before: Mapping[int, Callable[[], Any]], after: Mapping[int, Callable[[], Any]]
) -> Iterator[None]:
    """Calls the users' hooks around a trace, and says meanwhile that there is one."""
    with _OverwriteContextManager():
        _impl.setDispatchTracing(True)
        try:
            for hook in list(before.values()):
                hook()
            yield
        finally:
            for hook in list(after.values()):
                hook()
            _impl.setDispatchTracing(False)
