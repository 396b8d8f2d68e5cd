"""Asks the real Cerebras front end whether it takes a model: a child process a question, one validate_only step each.

Only in the SDK's environment. `ask(make_model, batch)` builds the model on the SDK's device, traces forward, backward and
optimizer (or forward alone), and lowers them; `ask_function(function, batch)` does so for a bare function. Accepted means that
a non-empty cirh.mlir came out: lowered by the front end, not placed on a wafer.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

MakeModel = Callable[[], nn.Module]
LossOf = Callable[[Any, Any], Tensor]
"""Given the compiled model and a batch, the scalar loss."""


@dataclass(frozen=True)
class Verdict:
    """What the front end said; `message` is empty when it accepted, `ops` counts the CIRH ops when it did."""

    accepted: bool
    message: str = ""
    ops: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    details: str = ""
    """The end of what the SDK printed, for a person who looks into a refusal."""

    def __bool__(self) -> bool:
        return self.accepted


def ask(
    make_model: MakeModel,
    batch: Any,
    train: bool = True,
    loss_of: LossOf | None = None,
    limit_seconds: float = 180.0,
) -> Verdict:
    """One question. A batch is a tensor, or a tuple, list or dict of tensors: a tuple or list is passed as arguments, a dict
    as keywords. Without `loss_of`, a scalar output is the loss and any other is squared and averaged, so that the
    gradient depends on it."""
    sdk = prepare()
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="front-end-"))
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _answer_and_exit(sdk, make_model, batch, train, loss_of or _loss_of, folder, writer)
    os.close(writer)
    try:
        said = _read_until(reader, started + limit_seconds)
        if said is None:
            return Verdict(False, f"no answer within {limit_seconds:g} s", seconds=limit_seconds)
        seconds = time.monotonic() - started
        details = _tail(folder / "output.txt")
        if not said:
            return Verdict(False, "the SDK's process died without an answer", {}, seconds, details)
        answer = json.loads(said)
        return Verdict(answer["accepted"], answer["message"], answer["ops"], seconds, details)
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(
                child, signal.SIGKILL
            )  # the child leads a group of its own: its loader's workers go too
        os.waitpid(child, 0)
        shutil.rmtree(folder, ignore_errors=True)


def ask_function(function: Callable[..., Any], batch: Any, train: bool = True, **options: Any) -> Verdict:
    """One question about a function: its floating-point arguments are made to depend on a parameter."""
    return ask(lambda: Lifted(function), batch, train, **options)


class Lifted(nn.Module):
    """A function as a model: a gradient flows into each of its floating-point arguments."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        def lift(value: Any) -> Any:
            is_float = isinstance(value, Tensor) and value.is_floating_point()
            return value * self.scale.to(value.dtype).reshape([1] * value.dim()) if is_float else value

        return self.function(*map(lift, args), **{name: lift(value) for name, value in kwargs.items()})


def prepare() -> Any:
    """Imports the SDK once a process, before any fork; its own `lib` goes first on PATH because pip's wrapper scripts drop exit
    statuses."""
    import cerebras.pytorch as cstorch

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    lib = str(Path(cstorch.__file__).parent / "lib")
    if not os.environ["PATH"].startswith(lib + os.pathsep):
        os.environ["PATH"] = lib + os.pathsep + os.environ["PATH"]
    return cstorch


def _answer_and_exit(
    sdk: Any, make_model: MakeModel, batch: Any, train: bool, loss_of: LossOf, folder: Path, writer: int
) -> None:
    """The child's whole life. It never returns, and what it prints goes to a file."""
    try:
        os.setsid()
        os.chdir(folder)
        output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115  (pytest may have replaced them)
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
        try:
            ops = _lower(sdk, make_model, batch, train, loss_of, folder)
            answer = {"accepted": True, "message": "", "ops": ops}
        except BaseException as error:
            traceback.print_exc()
            sys.stderr.flush()
            answer = {
                "accepted": False,
                "message": _first_meaningful(
                    f"{type(error).__name__}: {error}", _tail(folder / "output.txt")
                ),
                "ops": {},
            }
        with os.fdopen(writer, "w") as pipe:
            json.dump(answer, pipe)
    finally:
        os._exit(0)


def _lower(
    sdk: Any, make_model: MakeModel, batch: Any, train: bool, loss_of: LossOf, folder: Path
) -> dict[str, int]:
    backend = sdk.backend("CSX", artifact_dir=str(folder / "artifacts"), validate_only=True)
    with backend.device:
        model = make_model()
    model.train(train)
    net = sdk.compile(model, backend)
    optimizer = sdk.optim.SGD(model.parameters(), lr=0.1) if train else None
    packed = _PackedBatch(batch)
    loader = sdk.utils.data.DataLoader(
        lambda: torch.utils.data.DataLoader([packed.tensors] * 2, batch_size=None)
    )

    @sdk.trace
    def step(tensors: Any) -> Tensor:
        unpacked = packed.unpack(tensors)
        if optimizer is None:
            with torch.no_grad():
                return loss_of(net, unpacked)
        loss = loss_of(net, unpacked)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    @sdk.step_closure
    def keep(loss: Tensor) -> None:
        """Makes the loss an output, so that nothing before it is dropped as unused."""

    for tensors in sdk.utils.data.DataExecutor(loader, num_steps=1):
        keep(step(tensors))
    texts = [path.read_text(errors="replace") for path in folder.rglob("cirh.mlir")]
    if not any(text.strip() for text in texts):
        raise RuntimeError("the front end left an empty cirh.mlir")
    return dict(Counter(_names(texts)))


def _names(texts: list[str]) -> Iterator[str]:
    """The op names of an MLIR text, in its generic ("cirh.Add"(...)) or pretty (= cirh.Add ...) form."""
    for text in texts:
        for match in re.finditer(r'^\s*(?:%[\w:, %]+=\s*)?"?cirh\.([A-Z]\w*)', text, re.MULTILINE):
            yield match.group(1)


class _PackedBatch:
    """The SDK wants the tensors of a batch to share their first dimension: ones that do not travel as a batch of one."""

    def __init__(self, batch: Any) -> None:
        named = (
            batch
            if isinstance(batch, Mapping)
            else {
                str(place): tensor
                for place, tensor in enumerate(batch if isinstance(batch, tuple | list) else [batch])
            }
        )
        self._is_dict = isinstance(batch, Mapping)
        self._shapes = {name: tensor.shape for name, tensor in named.items()}
        firsts = {shape[0] if shape else None for shape in self._shapes.values()}
        self._fits = len(firsts) == 1 and None not in firsts
        self.tensors = dict(named) if self._fits else {name: t.unsqueeze(0) for name, t in named.items()}

    def unpack(self, tensors: Mapping[str, Tensor]) -> Any:
        own = {name: tensors[name] if self._fits else tensors[name].squeeze(0) for name in self._shapes}
        return own if self._is_dict else tuple(own.values())


def _loss_of(net: Any, batch: Any) -> Tensor:
    output = net(**batch) if isinstance(batch, Mapping) else net(*batch)
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
    if len(leaves) == 1 and leaves[0].dim() == 0 and leaves[0].is_floating_point():
        return leaves[0]
    parts = [(leaf * leaf if leaf.is_floating_point() else leaf).float().mean() for leaf in leaves]
    return torch.stack(parts).sum() if len(parts) > 1 else parts[0]


_MEANINGFUL = (
    r"does not yet support `([^`(]+)",
    r"Lowering failed due to `([^`]+)`",
    r"error: ([^\n]+)",
    r"Unimplemented Error:[\s\S]*?compute_shape_(\w+)",
    r"(aten::\w+: attempted to run[^\n.]+)",
    r"(The tensor has a non-zero number of elements[^\n.]+)",
    r"(Trying to materialize a tensor[^\n]+)",
)


def _first_meaningful(error: str, output: str) -> str:
    """The line that says what is wrong; the SDK wraps it in its own stack and in advice."""
    for text in (error, output):
        for pattern in _MEANINGFUL:
            if found := re.search(pattern, text):
                return found.group(1).strip()[:300]
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return " ".join(lines[:2])[:300]


def _read_until(reader: int, deadline: float) -> bytes | None:
    """All that comes until the other end closes; None past the deadline."""
    parts: list[bytes] = []
    while (left := deadline - time.monotonic()) > 0:
        if select.select([reader], [], [], left)[0]:
            part = os.read(reader, 65536)
            if not part:
                return b"".join(parts)
            parts.append(part)
    return None


def _tail(path: Path, num_chars: int = 6000) -> str:
    return path.read_text(errors="replace")[-num_chars:] if path.is_file() else ""
