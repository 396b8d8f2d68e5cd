"""Lets a port be recorded under the original's names and layouts, starting from the original's weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from portwright.verify.matching import Known, Link, match_tensors
from portwright.verify.record_names import Named
from portwright.verify.record_seeds import Streams
from portwright.verify.recording import Match, Recording, load
from portwright.verify.sketch import Sketcher


class Links:
    """Which watched tensors are which of the original's; without an original each is its own."""

    def __init__(self, streams: Streams, against: Path | None, perturb: float) -> None:
        self._streams, self._perturb = streams, perturb
        self._sketch = Sketcher()
        self.initial: dict[str, torch.Tensor] = {}  # by the recording's own names
        self.sketches: dict[str, npt.NDArray[np.float64]] = {}
        self.matches: list[Match] = []
        self._named: dict[str, Named] = {}
        self._links: list[Link] = []
        self._is_settled = True
        self._original: Recording | None = None
        self._values: dict[str, torch.Tensor] = {}
        if against is not None:
            from safetensors.torch import load_file

            self._original = load(against)
            self._values = load_file(against / "initial.safetensors")

    def begin(self, fresh: list[Named]) -> None:
        """Takes further tensors before anything was computed with them."""
        for named in fresh:
            self._named[named.name] = named
            if self._perturb and named.kind == "parameter" and named.tensor.is_floating_point():
                self._disturb(named)
            self.initial[named.name] = _copy(named.tensor)
        if self._original is None:
            for named in fresh:
                self.sketches[named.name] = self._sketch(named.tensor)
        else:
            self._match()

    def _disturb(self, named: Named) -> None:
        generator = torch.Generator().manual_seed(self._streams.derive("perturb", named.name))
        noise = torch.randn(named.tensor.shape, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            disturbed = named.tensor.detach().double().cpu() * (1 + self._perturb * noise)
            named.tensor.copy_(disturbed.to(named.tensor.dtype))

    def settle(self) -> None:
        """Decides what only a first forward pass could tell."""

    def _match(self) -> None:
        assert self._original is not None
        done = {link.original for link in self._links}
        used = {name for link in self._links for name in link.ported}
        originals = [
            Known(t.name, self._values[t.name], t.kind, t.owner, t.aliases, t.called)
            for t in self._original.tensors
            if t.name not in done
        ]
        ported = [
            Known(n.name, n.tensor.detach(), n.kind, type(n.owner).__name__, tuple(n.aliases))
            for n in self._named.values()
            if n.name not in used
        ]
        for link in match_tensors(originals, ported):
            self._take(link)

    def _take(self, link: Link) -> None:
        tensors = [self._named[name].tensor.detach() for name in link.ported]
        values = self._values[link.original]
        now = link.layout.to_original(tensors)
        initial: Literal["identical", "copied"] = "identical"
        if now.dtype != values.dtype or not torch.equal(now.cpu(), values):
            initial = "copied"
            with torch.no_grad():
                link.layout.set_ported(values.to(now.dtype).to(now.device), tensors)
        self._links.append(link)
        self.matches.append(Match(link.original, link.ported, link.layout.words, link.by, initial))
        self.sketches[link.original] = self._sketch(link.layout.to_original(tensors))

    @property
    def unmatched(self) -> list[str]:
        if self._original is None:
            return []
        used = {name for link in self._links for name in link.ported}
        return [name for name in self._named if name not in used]

    @property
    def missing(self) -> list[str]:
        if self._original is None:
            return []
        done = {link.original for link in self._links}
        return [t.name for t in self._original.tensors if t.name not in done]

    def in_original(
        self, tensors: Mapping[str, torch.Tensor | None]
    ) -> Iterator[tuple[str, torch.Tensor | None]]:
        """The same tensors under the original's names and in its layouts; None where there is no value."""
        if self._original is None:
            yield from tensors.items()
            return
        used: set[str] = set()
        for link in self._links:
            if not all(name in tensors for name in link.ported):
                continue
            used.update(link.ported)
            parts = [tensors[name] for name in link.ported]
            if all(part is None for part in parts):
                yield link.original, None
                continue
            whole = [
                torch.zeros_like(self._named[name].tensor) if part is None else _dense(part)
                for name, part in zip(link.ported, parts, strict=True)
            ]
            yield link.original, link.layout.to_original(whole)
        taken = {link.original for link in self._links}
        for name, tensor in tensors.items():
            if name not in used:
                yield (f"ported:{name}" if name in taken else name), tensor

    def names_in_original(self, names: Iterable[str]) -> list[str]:
        if self._original is None:
            return list(names)
        found: dict[str, None] = {}
        for name in names:
            own = [link.original for link in self._links if name in link.ported] or [name]
            found.update(dict.fromkeys(own))
        return list(found)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return tensor.cpu().clone(memory_format=torch.contiguous_format)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()
