"""sambaflow.samba.lazy_param: weights that are made when they are first needed. Here they are made at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from portwright.emulate.sambaflow._refusal import not_emulated


@contextmanager
def lazy_param(*args: object, **options: object) -> Iterator[None]:
    """Accepted, no effect: it saves memory on the host and changes no value."""
    yield


_WHY = "weights are made at once here, by torch's own generator."
RNGProvider = not_emulated("samba.lazy_param.RNGProvider", _WHY)
RNGProviderFactory = not_emulated("samba.lazy_param.RNGProviderFactory", _WHY)
