"""Explains the front end's errors: the op, the user's line, the reason and the cure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

from portwright.graph.match import Refusal
from portwright.targets.csx.source_lines import SourceLines, strip_mark
from portwright.watching.place import Place

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
    if lines.current is not None and _is_in_backward(error):
        # The error is from torch's autograd engine: the line is that of the forward call whose gradient it computed.
        (place, scope), phase = lines.current, "backward"
        module = _path(scope, root)
    if place is None:
        return _explain_loader(error)
    return _refusal(op, module, place, _first_line(text), phase)


def _explain_loader(error: BaseException) -> Refusal | None:
    """A refusal of the SDK's loader, which does not take a batch; None for an error of the user's data set."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or _LOADER not in Path(trace.tb_frame.f_code.co_filename).as_posix():
        return None
    return Refusal(
        op="the batch", module="", file=None, line=None, reason=_first_line(str(error)), cure=_LOADER_CURE, phase="loader"
    )  # fmt: skip


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
        place: Place | None = noted[0]
        return _refusal(op, _path(noted[1], root), place, reason, "backward")
    place = lines.among(frames)
    phase = "backward" if ".bwd" in scope else "forward"
    return _refusal(op, _path(scope, root), place, reason, phase)


def _refusal(op: str, module: str, place: Place | None, reason: str, phase: str) -> Refusal:
    return Refusal(
        op=op,
        module=module,
        file=place.file if place else None,
        line=place.line if place else None,
        reason=reason,
        cure=_cure(op, reason),
        phase=phase,
    )


def _cure(op: str, reason: str) -> str:
    if any(part in reason for part in _HOST_READ) or "_local_scalar_dense" in op:
        return _HOST_CURE
    try:
        from portwright.legal_forms import cure_for
    except ImportError:
        known = None
    else:
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


def _frames(error: BaseException) -> Iterator[Any]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _is_in_backward(error: BaseException) -> bool:
    return any(frame.f_code.co_name == "_engine_run_backward" for frame in _frames(error))


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
