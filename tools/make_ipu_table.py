"""Writes src/portwright/targets/ipu/kernels.tsv: python tools/make_ipu_table.py (or --check, which fails when it is stale).

PopTorch documents the names that users write; a captured graph holds aten ops. So each documented name is really called, under
a recorder, and the ops that it ran are looked up among those for which PopTorch's sources register a handler.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).parent / "ipu")]

import extra  # noqa: E402
from samples import samples  # noqa: E402

from portwright.graph.tables import base_name  # noqa: E402

TABLE = ROOT / "src/portwright/targets/ipu/kernels.tsv"
NOT_OPS = {"Int", "size", "is_complex", "convolution_overrideable", "mkldnn_convolution"}
DTYPES = "bool uint8 int8 int16 int32 int64 float16 float32 float64"
HEADER = "op\tapi\thow\tdtypes\tconstraints\tsource\treason\tcure"


class Recorder(TorchDispatchMode):
    """Keeps the names of the ops that run."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: dict[str, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops[base_name(func.name().replace("::", "."))] = None
        return func(*args, **(kwargs or {}))


def documented() -> list[str]:
    text = (ROOT / "tools/ipu/supported_ops.txt").read_text().split("## Documented caveats")[0]
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def handlers() -> dict[str, str]:
    lines = (ROOT / "tools/ipu/handlers.tsv").read_text().splitlines()
    pairs = [line.split("\t") for line in lines if not line.startswith("#")]
    return {base_name(f"aten.{name}"): file for name, file in pairs if name not in NOT_OPS}


def record() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The ops that each documented name runs, forward and backward."""
    forward, backward = {}, {}
    torch.manual_seed(0)
    for api, call in samples().items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Recorder() as recorder:
                result = call()
            forward[api] = list(recorder.ops)
            losses = [t.sum() for t in _tensors(result) if t.requires_grad and api != "torch.floor_divide"]
            with Recorder() as recorder:
                torch.autograd.backward(losses)
            backward[api] = [op for op in recorder.ops if "_backward" in op]
    return forward, backward


def _tensors(result: Any) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, tuple | list):
        for part in result:
            yield from _tensors(part)


def rows() -> dict[str, list[str]]:
    """Cells of each row by its op: api, how, dtypes, constraints, source, reason, cure."""
    known, (forward, backward) = handlers(), record()
    apis: dict[str, list[str]] = {}
    for api, ops in forward.items():
        for op in _rows_of(api, ops, known):
            apis.setdefault(op, []).extend(_spellings(api))
    for api in extra.OVER_SCATTER_ADD:
        apis["aten.scatter_add"].append(api)
    made: dict[str, list[str]] = {}
    for op, file in known.items():
        by_guide = op in apis
        source = f"{extra.GUIDE}; " if by_guide else ""
        names = apis.get(op) or _public_name(op.removeprefix("aten."))
        how = "free" if op.removeprefix("aten.") in extra.FREE.split() else "native"
        made[op] = _cells(op, names, how, f"{source}{extra.SOURCES}, {file}")
    for op, (how, api, constraints, source) in extra.OTHERS.items():
        made.setdefault(op, _cells(op, [*api.split(), *apis.get(op, [])], how, source, constraints))
    for op, (api, parts) in extra.PARTS.items():
        for part in parts.split():
            assert f"aten.{part}" in made, (op, part)
        made[op] = _cells(op, api.split(), "decomposed", f"made of listed ops: {', '.join(parts.split())}")
    for op, other in extra.SAME_KERNEL.items():
        made[op] = _cells(
            op, [], "native", f"today's name of {other}, which is listed", extra.CONSTRAINTS.get(other, "")
        )
    for api, ops in forward.items():
        for op in ops:
            if op not in made and op not in ("aten._local_scalar_dense", "aten.aminmax"):
                made[op] = _cells(op, _spellings(api), "decomposed", f"{extra.GUIDE} ({api}, which runs it)")
    for ops in backward.values():
        for op in ops:
            made.setdefault(op, _cells(op, [], "native", "a gradient, which PopTorch derives itself"))
    for op, (api, reason, cure) in extra.ABSENT.items():
        reason = f"{op} is not supported by PopTorch: {reason or 'it has no handler for it'}"
        made[op] = [
            api,
            "refused",
            "",
            "",
            f"absent from the {extra.GUIDE}, and from the handlers of its sources",
            reason,
            cure,
        ]
        if op in known:
            made[op][4] = f"{extra.SOURCES}, {known[op]}"
    return made


def _rows_of(api: str, ops: list[str], known: dict[str, str]) -> list[str]:
    """The rows that speak of a documented name: its own op, the whole that PopTorch takes, or else all that it runs."""
    if api in extra.WHOLE:
        return [f"aten.{extra.WHOLE[api]}"]
    own = base_name(f"aten.{api.rpartition('.')[2]}")
    if own in ops or own in known:
        return [own]
    bookkeeping = {f"aten.{name}" for name in [*extra.FREE.split(), "empty", "clone", "copy", "_to_copy"]}
    return [op for op in ops if op not in bookkeeping] or ops


def _spellings(api: str) -> list[str]:
    if not api.startswith("torch.nn.") or ".functional." in api:
        return [api]
    name = api.rpartition(".")[2]
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    for candidate in (extra.FUNCTIONS.get(api, ""), snake, name.lower(), re.sub(r"\dd$", "", snake)):
        if candidate and hasattr(F, candidate):
            return [api, f"torch.nn.functional.{candidate}"]
    return [api]


def _public_name(name: str) -> list[str]:
    if name in extra.PUBLIC_NAMES:
        return extra.PUBLIC_NAMES[name].split()
    for owner, prefix in ((torch, "torch"), (F, "torch.nn.functional"), (torch.Tensor, "torch.Tensor")):
        if hasattr(owner, name) and not name.startswith("_"):
            return [f"{prefix}.{name}"]
    return []


def _cells(op: str, api: list[str], how: str, source: str, constraints: str = "") -> list[str]:
    dtypes = "bool int16 int32 int64" if op in extra.INTEGERS_ONLY else DTYPES
    found = extra.CONSTRAINTS.get(op) or extra.SAME_CONSTRAINTS.get(op) or constraints
    return [" ".join(dict.fromkeys(api)), how, dtypes, found, source, "", ""]


def table() -> str:
    lines = [
        "# Written by tools/make_ipu_table.py; edit what it reads instead.",
        f"# recorded on torch {torch.__version__.partition('+')[0]}",
        HEADER,
    ]
    lines += ["\t".join([op, *cells]) for op, cells in sorted(rows().items())]
    return "\n".join(lines) + "\n"


def main() -> int:
    text = table()
    if "--check" in sys.argv:
        stale = not TABLE.is_file() or TABLE.read_text() != text
        if stale:
            print(f"{TABLE} is stale: run tools/make_ipu_table.py")
        return int(stale)
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
