"""Records a port under the original's names and layouts, and starts it from the original's weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from portwright.verify.matching import Known, Link, match_tensors
from portwright.verify.record_digest import Sketcher
from portwright.verify.record_names import Named
from portwright.verify.record_seeds import Streams
from portwright.verify.recording import Match, Recording, Tensor, load

Rehearsal = Callable[[], Mapping[int, int]]
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class Links:
    """Links watched tensors to the original's; in a recording of the original each tensor keeps its name."""

    def __init__(self, streams: Streams, against: Path | None, perturb: float) -> None:
        self._streams, self._perturb = streams, perturb
        self._sketch = Sketcher()
        self.initial: dict[str, torch.Tensor] = {}  # by the recording's own names
        self.sketches: dict[str, npt.NDArray[np.float64]] = {}
        self.matches: list[Match] = []
        self._named: dict[str, Named] = {}
        self._given: dict[str, torch.Tensor] = {}
        self._links: list[Link] = []
        self._is_settled = True
        self._original: Recording | None = None
        self._values: dict[str, torch.Tensor] = {}
        if against is not None:
            from safetensors.torch import load_file

            self._original = load(against)
            self._values = load_file(against / "initial.safetensors")

    def begin(self, fresh: list[Named], rehearse: Rehearsal | None = None) -> None:
        """Adds tensors before anything is computed with them.

        `rehearse` finds the order in which modules are called, by calling them once; it is used only if the order decides.
        """
        for named in fresh:
            self._named[named.name] = named
            if self._perturb and named.kind == "parameter" and named.tensor.is_floating_point():
                self._disturb(named)
            self.initial[named.name] = _copy(named.tensor)
        if self._original is None:
            for named in fresh:
                self.sketches[named.name] = self._sketch(named.tensor)
            self._remember(fresh)
            return
        links = self._find(called={})
        if rehearse is not None and any(link.by == "order" and not self._is_equal(link) for link in links):
            called = rehearse()
            if called:
                links = self._find(called)
        for link in links:
            self._take(link)
        self._remember(fresh)
        self._is_settled = False

    def refresh(self) -> None:
        """Adds weights again that the script has loaded or drawn anew before training.

        Buffers are left out: the forward pass of the step changes them.
        """
        changed = [
            named
            for named in self._named.values()
            if named.kind == "parameter" and not _is_as(named.tensor, self._given.get(named.name))
        ]
        if not changed:
            return
        if self._original is None:
            self.begin(changed)
            return
        names = {named.name for named in changed}
        for named in changed:
            self.initial[named.name] = _copy(named.tensor)
        before = list(zip(self._links, self.matches, strict=True))
        self._links, self.matches = [], []
        for link, match in before:
            if names.isdisjoint(link.ported):
                self._links.append(link)
                self.matches.append(match)
            else:
                self._take(link)
        self._remember(changed)

    def _remember(self, fresh: list[Named]) -> None:
        """Keeps the initial values, to see later whether the script changes them."""
        for named in fresh:
            initial = self.initial[named.name]
            self._given[named.name] = initial if _is_as(named.tensor, initial) else _copy(named.tensor)

    def _disturb(self, named: Named) -> None:
        generator = torch.Generator("cpu").manual_seed(self._streams.derive("perturb", named.name))
        noise = torch.randn(named.tensor.shape, generator=generator, dtype=torch.float64, device="cpu")
        with torch.no_grad():
            disturbed = named.tensor.detach().double().cpu() * (1 + self._perturb * noise)
            # weights of no module are found only after their forward pass
            named.tensor.data.copy_(disturbed.to(named.tensor.dtype))

    def settle(self, called: Mapping[int, int]) -> None:
        """Matches tensors of equal initial values again, such as those of norms, now that the order of the calls is known."""
        self._given.clear()
        if self._is_settled or self._original is None:
            return
        self._is_settled = True
        doubtful = {
            link.original
            for link, match in zip(self._links, self.matches, strict=True)
            if link.by == "order" and match.initial == "identical" and link.layout.cut is None
        }
        if not doubtful:
            return
        kept = [
            (link, match)
            for link, match in zip(self._links, self.matches, strict=True)
            if link.original not in doubtful
        ]
        before = list(self._links)
        self._links, self.matches = [link for link, _ in kept], [match for _, match in kept]
        found = self._find(called)
        # Compares initial values, since running statistics have changed.
        started = all(self._is_equal(link, self.initial) for link in found)
        if {link.original for link in found} < doubtful or not started:
            found = [link for link in before if link.original in doubtful]
        for link in found:
            self._links.append(link)
            self.matches.append(Match(link.original, link.ported, link.layout.words, link.by, "identical"))
            self.sketches[link.original] = self._sketch(self._values[link.original])

    def _is_equal(self, link: Link, among: Mapping[str, torch.Tensor] | None = None) -> bool:
        tensors = [among[n] if among else self._named[n].tensor.detach() for n in link.ported]
        now, values = link.layout.to_original(tensors), self._values[link.original]
        return now.dtype == values.dtype and torch.equal(now.cpu(), values)

    def _find(self, called: Mapping[int, int]) -> list[Link]:
        assert self._original is not None
        done = {link.original for link in self._links}
        used = {name for link in self._links for name in link.ported}
        originals = [
            Known(t.name, self._values[t.name], t.kind, t.owner, t.aliases, t.called if called else -1)
            for t in self._original.tensors
            if t.name not in done
        ]
        ported = [
            Known(
                n.name,
                n.tensor.detach(),
                n.kind,
                type(n.owner).__name__ if n.owner is not None else "",
                tuple(n.aliases),
                called.get(id(n.owner), -1),
            )
            for n in self._named.values()
            if n.name not in used
        ]
        return match_tensors(originals, ported)

    def _take(self, link: Link) -> None:
        # .data hides the change from autograd: a tensor that is found late may be in a graph already.
        tensors = [self._named[name].tensor.data for name in link.ported]
        values = self._values[link.original]
        initial: Literal["identical", "copied"] = "identical"
        if not self._is_equal(link):
            initial = "copied"
            with torch.no_grad():
                link.layout.set_ported(values.to(tensors[0].dtype).to(tensors[0].device), tensors)
        self._links.append(link)
        self.matches.append(Match(link.original, link.ported, link.layout.words, link.by, initial))
        self.sketches[link.original] = self._sketch(link.layout.to_original(tensors))

    def unmatched(self, is_trained: Callable[[Named], bool]) -> list[str]:
        """Trained weights and running statistics of the port that the original lacks."""
        return [named.name for named in self._left() if is_trained(named) or _is_statistic(named.name)]

    def missing(self) -> list[str]:
        """Trained weights and running statistics of the original that the port lacks."""
        return [tensor.name for tensor in self._lost() if tensor.trained or _is_statistic(tensor.name)]

    def notes(self, is_trained: Callable[[Named], bool]) -> list[str]:
        """Tables, masks and frozen weights that only one script has, which is no difference."""
        counted = {*self.unmatched(is_trained), *self.missing()}
        lost = [tensor.name for tensor in self._lost() if tensor.name not in counted]
        new = [named.name for named in self._left() if named.name not in counted]
        return [f"The port has no {name}, which is not trained." for name in lost] + [
            f"The original has no {name}, which is not trained." for name in new
        ]

    def _left(self) -> list[Named]:
        used = {name for link in self._links for name in link.ported}
        return [] if self._original is None else [n for n in self._named.values() if n.name not in used]

    def _lost(self) -> list[Tensor]:
        done = {link.original for link in self._links}
        return [] if self._original is None else [t for t in self._original.tensors if t.name not in done]

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


def _is_as(tensor: torch.Tensor, values: torch.Tensor | None) -> bool:
    if values is None or tensor.layout is not torch.strided:
        return True
    now = tensor.detach().cpu()
    return now.dtype == values.dtype and now.shape == values.shape and _same_bits(now, values)


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one, other) or (torch.equal(one.isnan(), other.isnan()) and bool(one.isnan().any()))


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()


def _is_statistic(name: str) -> bool:
    return name.endswith(_STATISTICS)
