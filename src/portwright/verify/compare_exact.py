"""Compares what must agree without tolerance: tensors, batches, dropout, the optimizer's options."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from portwright.verify.measure import change, norm
from portwright.verify.recording import Draw, Recording, Step, Tensor, TensorDigest

# Options that choose an implementation, or that schedulers keep for themselves.
_WITHOUT_EFFECT = frozenset(
    {"foreach", "fused", "capturable", "differentiable", "initial_lr", "swa_lr", "max_lr", "min_lr", "name"}
    | {
        "max_momentum",
        "base_momentum",
        "lr_scale",
        "adjust_learning_rate",
        "step_count",
        "t0",
        "decoupled_weight_decay",
    }
)
_STANDARD_ERRORS = 6.0  # by which means or deviations must differ to count as different distributions


@dataclass(frozen=True)
class LostParameter:
    """A trained parameter that only one of the two scripts has."""

    name: str
    step: int  # the first step that trained it
    in_original: bool


def lost_parameters(original: Recording, ported: Recording) -> list[LostParameter]:
    """Parameters without a counterpart, except those that never had a gradient."""
    found = []
    for recording, names, in_original in (
        (original, ported.missing, True),
        (ported, ported.unmatched, False),
    ):
        kinds = {t.name: t.kind for t in recording.tensors}
        for name in names:
            if kinds.get(name, "parameter") != "parameter":
                continue
            step = next(
                (s.index for s in recording.steps if norm(recording.sketch("gradient", s.index, name))), None
            )
            if step is not None:
                found.append(LostParameter(name, step, in_original))
    return found


def lost_statistics(original: Recording, ported: Recording) -> list[str]:
    """Running means and variances that the original updates and the port lacks."""
    return [
        name
        for name in ported.missing
        if name.endswith(("running_mean", "running_var"))
        and any(norm(change(original, step.index, name)) for step in original.steps)
    ]


@dataclass(frozen=True)
class InitialDifference:
    """A tensor that the port initialises from another distribution."""

    name: str
    original: Tensor
    ported: Tensor


def initial_differences(original: Recording, ported: Recording) -> list[InitialDifference]:
    """Tensors whose own initial values in the port had another mean or deviation than the original's."""
    mine, theirs = ({t.name: t for t in r.tensors} for r in (original, ported))
    found = []
    for originals, ports in _fusions(ported):
        if not any(m.initial == "copied" for m in ported.matches if m.original in originals):
            continue
        a = [mine[n] for n in originals if n in mine]
        b = [theirs[n] for n in ports if n in theirs]
        if a and b and _is_other_distribution(_pooled(a), _pooled(b)):
            found += [InitialDifference(t.name, _pooled(a), _pooled(b)) for t in a[:1]]
    order = list(mine)
    return sorted(found, key=lambda d: order.index(d.name))


def _fusions(ported: Recording) -> list[tuple[list[str], list[str]]]:
    """Groups of tensors that correspond only together, such as q, k, v in one script and qkv in the other."""
    groups: list[tuple[list[str], list[str]]] = []
    for match in ported.matches:
        together = [g for g in groups if set(g[1]) & set(match.ported)]
        rest = [g for g in groups if g not in together]
        originals = [n for g in together for n in g[0]] + [match.original]
        ports = [n for g in together for n in g[1]]
        ports += [n for n in match.ported if n not in ports]
        groups = [*rest, (originals, ports)]
    return groups


def _pooled(tensors: list[Tensor]) -> Tensor:
    """Describes several tensors as one, with the mean and deviation of all their values."""
    if len(tensors) == 1:
        return tensors[0]
    sizes = [max(1, math.prod(t.shape)) for t in tensors]
    count = sum(sizes)
    mean = sum(t.mean * n for t, n in zip(tensors, sizes, strict=True)) / count
    square = sum((t.deviation**2 + t.mean**2) * n for t, n in zip(tensors, sizes, strict=True)) / count
    return Tensor(
        " + ".join(t.name for t in tensors),
        (count,),
        tensors[0].dtype,
        tensors[0].kind,
        mean,
        math.sqrt(max(0.0, square - mean**2)),
    )


def _is_other_distribution(a: Tensor, b: Tensor) -> bool:
    count = max(1, min(math.prod(a.shape), math.prod(b.shape)))
    spread = max(a.deviation, b.deviation)
    if a.kind == "buffer" and spread:  # computed, not drawn: it may differ by rounding only
        return max(abs(a.mean - b.mean), abs(a.deviation - b.deviation)) > 1e-5 * spread
    if spread <= 1e-6 * max(abs(a.mean), abs(b.mean)):  # constants on both sides
        return not math.isclose(a.mean, b.mean, rel_tol=1e-5, abs_tol=1e-12)
    if min(a.deviation, b.deviation) <= 1e-6 * spread and count > 1:  # constant on one side only
        return True
    if count < 8:  # too few to tell two draws from two distributions
        return False
    off = abs(a.mean - b.mean) / spread * math.sqrt(count / 2)
    ratio = abs(math.log(a.deviation / b.deviation)) * math.sqrt(count)
    return off > _STANDARD_ERRORS or ratio > _STANDARD_ERRORS


def same_batch(mine: Step, theirs: Step, perturbed: Step | None = None) -> bool:
    """Whether all tensors of one script's batch are in the other's, in any layout; extra tensors may be unused.

    Tensors that differ in the `perturbed` run depend on the weights, such as a generator's output: they are no data and not compared.
    """
    a, b = list(mine.batch), list(theirs.batch)
    if perturbed is not None:
        computed = [d for d in a if not any(same_values(d, o) for o in perturbed.batch)]
        a = [d for d in a if d not in computed]
        for digest in computed:
            size = math.prod(digest.shape)
            like = [o for o in b if math.prod(o.shape) == size and not any(same_values(o, d) for d in a)]
            b = [o for o in b if o not in like[:1]]
    if not a or not b:
        return True  # nothing to compare
    return _all_among(a, b) or _all_among(b, a) or _same_sums(a, b)


def _all_among(some: list[TensorDigest], others: list[TensorDigest]) -> bool:
    left = list(others)
    for digest in some:
        found = next((other for other in left if same_values(digest, other)), None)
        if found is None:
            return False
        left.remove(found)
    return True


def same_values(a: TensorDigest, b: TensorDigest) -> bool:
    if math.prod(a.shape) != math.prod(b.shape):
        return False
    if a.values and b.values:
        return a.values == b.values
    return _close_sums(a.total, b.total, a.square, b.square, math.prod(a.shape))


def _same_sums(a: list[TensorDigest], b: list[TensorDigest]) -> bool:
    """Whether both hold the same values split into different tensors, as with gradient accumulation."""
    sizes = [sum(math.prod(d.shape) for d in side) for side in (a, b)]
    totals = [math.fsum(d.total for d in side) for side in (a, b)]
    squares = [math.fsum(d.square for d in side) for side in (a, b)]
    return sizes[0] == sizes[1] and _close_sums(totals[0], totals[1], squares[0], squares[1], sizes[0])


def _close_sums(total: float, other_total: float, square: float, other_square: float, count: int) -> bool:
    if not all(map(math.isfinite, (total, other_total, square, other_square))):
        return math.isnan(total) == math.isnan(other_total)
    scale = math.sqrt(max(square, other_square) * max(1, count))
    near_total = abs(total - other_total) <= 1e-9 * scale
    return near_total and abs(square - other_square) <= 1e-9 * max(square, other_square)


def dropped(draws: Iterable[Draw]) -> dict[float, int]:
    """How many values dropout was applied to, by its rate, summed over its calls."""
    counts: Counter[float] = Counter()
    for draw in draws:
        if draw.rate:
            counts[round(draw.rate, 9)] += draw.size
    return dict(sorted(counts.items()))


@dataclass(frozen=True)
class OptionDifference:
    """One option of the optimizer that parameters are updated with differently."""

    option: str
    original: Any
    ported: Any
    parameters: tuple[str, ...]  # with the original's names, in its order
    same_class: bool


def option_differences(mine: Step, theirs: Step, ported: Recording) -> list[OptionDifference]:
    """Options of one step that differ, the learning rate first; last, parameters that the port does not update."""
    a, b = _options_by_parameter(mine), _options_by_parameter(theirs)
    same_class = _plain_class(mine.optimizer) == _plain_class(theirs.optimizer)
    found: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    values: dict[tuple[str, str, str], tuple[Any, Any]] = {}
    for name, options in a.items():
        for key, value in options.items():
            if key in _WITHOUT_EFFECT or key not in b.get(name, {}):
                continue
            other = b[name][key]
            if not _same_option(value, other):
                where = (key, repr(value), repr(other))
                found[where].append(name)
                values[where] = (value, other)
    differences = [OptionDifference(w[0], *values[w], tuple(names), same_class) for w, names in found.items()]
    if a and b:
        left_out = tuple(n for n in a if n not in b and n not in ported.missing)
        if left_out:
            differences.append(OptionDifference("parameters", "updated", "not updated", left_out, same_class))
    return sorted(differences, key=lambda d: (d.option != "lr", d.option == "parameters"))


def _options_by_parameter(step: Step) -> dict[str, Mapping[str, Any]]:
    return {name: group.options for group in step.groups for name in group.parameters}


def _plain_class(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _same_option(a: Any, b: Any) -> bool:
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(_same_option(x, y) for x, y in zip(a, b, strict=True))
    numbers = (int, float)
    if isinstance(a, numbers) and isinstance(b, numbers) and not isinstance(a, bool):
        return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-15)
    return (a or None) == (b or None)  # False, 0, None and "" all turn an option off
