"""Reads what the front end leaves: the lowered step in CIRH, the vendor's MLIR dialect, or an error, explained by op, line, reason and cure.

The SDK keeps the Python stack of every op. In the backward pass that stack ends in torch's engine. So the name of the SDK's
scope gets a mark for each gradient function, by which the line that made the function is found.
"""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

from portwright.graph.match import Refusal
from portwright.legal_forms import cure_for
from portwright.watching.place import Place
from portwright.watching.places import PlaceFinder

_MARK = re.compile(r"@pw(?P<number>\d+)$")


class SourceLines:
    """Follows one trace of a step whose code is `boundary`."""

    def __init__(self, backend: Any, boundary: CodeType) -> None:
        self._backend, self.boundary = backend, boundary
        self.finder = PlaceFinder()
        self._noted: list[tuple[Place, str]] = []  # place and module, by the mark's number
        self.current: tuple[Place, str] | None = None  # of the call whose gradient is being computed

    @contextmanager
    def following(self) -> Iterator[None]:
        from cerebras.pytorch.core.function_mode import register_function_mode_forward_hook

        handle = register_function_mode_forward_hook(self._on_call)
        try:
            yield
        finally:
            handle.remove()

    def _on_call(self, func: Callable[..., Any], types: Any, args: Any, kwargs: Any, result: Any) -> None:
        made = result if isinstance(result, tuple | list) else (result,)
        functions = [value.grad_fn for value in made if isinstance(value, torch.Tensor)]
        nodes = {id(node): node for node in functions if node is not None}
        if not nodes:
            return
        place, _ = self.finder.find(sys._getframe(1), (self.boundary,))
        if place is None:
            return
        scope = str(self._backend._impl.current_scope_name)
        number = len(self._noted)
        self._noted.append((place, scope))
        for node in nodes.values():
            node.register_prehook(lambda grads, number=number: self._enter(number))

    def _enter(self, number: int) -> None:
        from cerebras.pytorch.core.name_scope import ScopeName

        self.current = self._noted[number]
        scope = self.current[1].replace(".fwd", ".bwd")
        self._backend._impl.set_scope_name(ScopeName(f"{scope}@pw{number}"))

    def noted(self, scope: str) -> tuple[Place, str] | None:
        """The forward line and module that a scope of the backward pass was marked with."""
        match = _MARK.search(scope)
        return self._noted[int(match["number"])] if match else None

    def among(self, frames: Iterable[tuple[str, int, str]]) -> Place | None:
        """The user's innermost line among recorded frames (file, line, function), outermost first."""
        best: tuple[int, Place] | None = None
        inside = False
        for file, line, function in frames:
            if inside:
                kind = self.finder._kind(file)
                if kind and (best is None or kind >= best[0]):
                    best = kind, Place(file, line, function)
            inside = inside or (file == self.boundary.co_filename and function == self.boundary.co_name)
        return None if best is None else best[1]


def strip_mark(scope: str) -> str:
    return _MARK.sub("", scope)


_UNSUPPORTED = re.compile(r"does not yet support `(?P<op>aten::[\w.]+)")
_NO_META = re.compile(r"^(?P<op>aten::[\w.]+): attempted to run this operator with Meta tensors")
_LEGALIZE = re.compile(r"failed to legalize operation 'torch\.(?P<op>[\w.]+)'")
_LOCATION = re.compile(r'loc\("(?P<scope>[^"]*)/(?P<op>aten::[\w.]+)"')
_SCOPE = re.compile(r"\.(fwd|bwd)(@pw\d+)?$")
_CALL = re.compile(r"\.call\d+")
_HOST_READ = ("Trying to materialize a tensor outside", "_local_scalar_dense", "device type tensor to numpy")
_HOST_CURE = "Keep the value a tensor: torch.where instead of if, a mask instead of a slice; read and print it only outside the step."
_UNKNOWN_CURE = (
    "If 'run.py CPU --validate_only' fails at the same line, the model itself is at fault; else rewrite the line, or try --legalise: half "
    "precision is always on here, and a traced tensor has no values."
)
_LOADER = "/cerebras/pytorch/utils/data/"
_LOADER_CURE = (
    "Give all tensors of a batch the same first dimension, of one size for all batches; what is no part of a batch (a graph, a "
    "mask of the whole) belongs into the model, as a buffer."
)
_CURE = "Rewrite this line with ops that 'portwright ops --target csx' lists, or try --legalise."


def explain(error: BaseException, lines: SourceLines, root: nn.Module) -> Refusal | None:
    """The refusal that an exception of the SDK means; None where it is not about the user's step."""
    lowering = _lowering_error(error)
    if lowering is not None:
        return _explain_lowering(lowering, lines, root)
    text = str(error)
    place = lines.finder.find_raised(error, (lines.boundary,))
    module, kind = _module_of(error, root)
    found = _UNSUPPORTED.search(text) or _NO_META.search(text)
    op = _dotted(found["op"]) if found else _op_of(error, kind)
    phase = "forward"
    is_in_backward = any(frame.f_code.co_name == "_engine_run_backward" for frame in _frames(error))
    if lines.current is not None and is_in_backward:
        # The error is from torch's autograd engine: the line is that of the forward call whose gradient it computed.
        (place, scope), phase = lines.current, "backward"
        module = _path(scope, root)
    if place is None:
        return _explain_loader(error)
    reason = _first_line(text)
    return Refusal.at(place, op, module, reason, _cure(op, reason), phase)


def _explain_loader(error: BaseException) -> Refusal | None:
    """A refusal of the SDK's loader, which does not take a batch; None for an error of the user's data set."""
    frames = list(_frames(error))
    if not frames or _LOADER not in Path(frames[-1].f_code.co_filename).as_posix():
        return None
    return Refusal.at(None, "the batch", "", _first_line(str(error)), _LOADER_CURE, "loader")


def _explain_lowering(document: dict[str, Any], lines: SourceLines, root: nn.Module) -> Refusal:
    reason = str(document.get("message", "")).strip() or "lowering failed"
    notes = " ".join(
        str(note.get("message", "")) for note in document.get("compileMetadata", {}).get("notes", [])
    )
    located, legalized = _LOCATION.search(notes), _LEGALIZE.search(reason)
    scope = located["scope"] if located else ""
    op = _dotted(located["op"]) if located else legalized["op"] if legalized else "unknown"
    frames = [
        (str(frame.get("filename", "")), int(frame.get("line", 0)), str(frame.get("function", "")))
        for frame in document.get("traceback", [])
    ]
    noted = lines.noted(scope)
    if noted is not None:
        return Refusal.at(noted[0], op, _path(noted[1], root), reason, _cure(op, reason), "backward")
    phase = "backward" if ".bwd" in scope else "forward"
    return Refusal.at(lines.among(frames), op, _path(scope, root), reason, _cure(op, reason), phase)


def _cure(op: str, reason: str) -> str:
    if any(part in reason for part in _HOST_READ) or "_local_scalar_dense" in op:
        return _HOST_CURE
    known = cure_for(op, "csx")
    if known:
        return f"{known} --legalise swaps in what it can."
    if "f64" in reason or "float64" in reason:
        return "Use float32: the wafer has no float64; convert tables from numpy once, where they are made."
    return _UNKNOWN_CURE if op == "unknown" else _CURE


def _lowering_error(error: BaseException) -> dict[str, Any] | None:
    """The SDK's diagnostic, found in the chain of causes of its exception."""
    for one in _chain(error):
        text = str(one)
        if "MLIR Compile Lowering Exception" in text and "\n" in text:
            try:
                document = json.loads(text.split("\n", 1)[1])
            except ValueError:
                continue
            return document if isinstance(document, dict) else None
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _frames(error: BaseException) -> Iterator[FrameType]:
    """The frames of an error, the innermost last."""
    return (frame for frame, _ in traceback.walk_tb(error.__traceback__))


def _module_of(error: BaseException, root: nn.Module) -> tuple[str, str]:
    """Path and class of the innermost module that was running."""
    paths = {id(module): path for path, module in root.named_modules()}
    found = ("", "")
    for frame in _frames(error):
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and id(owner) in paths:
            found = paths[id(owner)], type(owner).__name__
    return found


def _op_of(error: BaseException, module_kind: str) -> str:
    """What the user's line called, where the error names no op: a function of torch, or a torch module."""
    name = ""
    for frame in _frames(error):
        function = frame.f_locals.get("func")
        if frame.f_code.co_name == "__torch_function__" and function is not None:
            name = getattr(function, "__name__", "")
    if name == "__repr__":
        return "print"
    if name:
        return f"Tensor.{name}" if not name.startswith("_") else name
    return f"torch.nn.{module_kind}" if module_kind and hasattr(nn, module_kind) else "unknown"


def _dotted(name: str) -> str:
    return name.replace("::", ".")


def _path(scope: str, root: nn.Module) -> str:
    """A module's path in the user's model from the name of a scope, such as net.layers.0.fwd; '' is the model itself."""
    name = _CALL.sub("", _SCOPE.sub("", strip_mark(scope)))
    name = name.removeprefix("net.") if name.startswith("net.") else name
    paths = {path for path, _ in root.named_modules()}
    return name if name in paths else ""


def _first_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "no message")
    return line if len(line) <= 300 else f"{line[:297]}..."


_OP = re.compile(r'^\s*(?:%[\w:, %]+ = )?"?cirh\.(?P<name>\w+)')
_TENSOR = re.compile(r"tensor<(?:[0-9?]+x)*(?P<dtype>[^<>x,]+)>")
_LOCATION_LINE = re.compile(r"^#loc\d* = ")


@dataclass(frozen=True)
class Cirh:
    """The ops and number formats of a lowered step."""

    ops: dict[str, int]  # how often each occurs, the most frequent first
    dtypes: dict[str, int]  # the number of tensors in the text, by number format

    @property
    def num_ops(self) -> int:
        return sum(self.ops.values())


def read_cirh(path: Path) -> Cirh | None:
    """None where the file is missing, empty or without an op: then nothing was lowered, whatever the exit status said."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    ops: Counter[str] = Counter()
    dtypes: Counter[str] = Counter()
    for line in text.splitlines():
        if _LOCATION_LINE.match(line):
            continue
        if found := _OP.match(line):
            ops[found["name"]] += 1
            dtypes.update(dtype["dtype"] for dtype in _TENSOR.finditer(line))
    return Cirh(dict(ops.most_common()), dict(dtypes.most_common())) if ops else None
