"""The emulator's PEF: a JSON document that says what was compiled, with a checksum. It holds no code and no weights.

A real PEF is a binary program; ours is only what running is checked against, and says `emulated` in its first line.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from portwright.emulate.sambaflow._refusal import SambaFlowError
from portwright.job.atomic import atomic_write_text, explain_os_error

FORMAT = "Portwright's emulated PEF, version 1: no RDU can run it"
_LARGEST = 256 << 20


@dataclass(frozen=True)
class TensorEntry:
    name: str
    shape: tuple[int, ...]
    dtype: str
    batch_dim: int | None = None

    def __str__(self) -> str:
        return f"{self.dtype.removeprefix('torch.')}{list(self.shape)}"


@dataclass(frozen=True)
class OptimizerEntry:
    kind: str
    parameters: tuple[str, ...]
    static: Mapping[str, Any]  # what the program is made of
    defaults: Sequence[Mapping[str, float]]  # of the hyperparameters, a group each: what a run may change


@dataclass(frozen=True)
class Pef:
    """What a program was compiled for."""

    name: str
    system: str
    num_tiles: int | None
    precision: str
    inference: bool
    init_output_grads: bool
    inputs: tuple[TensorEntry, ...]
    outputs: tuple[TensorEntry, ...]
    weights: tuple[TensorEntry, ...]
    optimizers: tuple[OptimizerEntry, ...]
    ops: tuple[str, ...]
    torch: str
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        body = json.dumps(asdict(self), sort_keys=True)
        document = {"format": FORMAT, "emulated": "SambaFlow", "sha256": _digest(body), "program": body}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise explain_os_error(error, path) from error
        atomic_write_text(path, json.dumps(document, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Pef:
        document = _read_document(path)
        body = document.get("program")
        if not isinstance(body, str) or _digest(body) != document.get("sha256"):
            raise SambaFlowError(
                f"the PEF {path} is damaged: its checksum does not fit.", "Compile it again."
            )
        return _READER.validate_json(body)

    def differences(self, other: Pef) -> list[str]:
        """How what is there now (`other`) differs from what was compiled (self), most telling first."""
        found = [
            *compare_tensors("input", self.inputs, other.inputs),
            *compare_tensors("weight", self.weights, other.weights),
            *_compare_optimizers(self.optimizers, other.optimizers),
        ]
        if self.inference != other.inference:
            compiled = "inference" if self.inference else "training"
            found.append(f"it was compiled for {compiled}")
        found += compare_tensors("output", self.outputs, other.outputs)
        if not found and self.ops != other.ops:
            found.append(_first_other_op(self.ops, other.ops))
            if self.torch != other.torch:
                found.append(f"it was compiled with torch {self.torch}, and this is {other.torch}")
        return found


_READER = TypeAdapter(Pef)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read_document(path: Path) -> dict[str, Any]:
    compile_first = (
        "Compile first: python SCRIPT.py compile --pef-name NAME, then run --pef=out/NAME/NAME.pef."
    )
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise SambaFlowError(f"the PEF {path} {what}.", compile_first)
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError("too large")
        document = json.loads(path.read_bytes())
        if document["format"] != FORMAT:
            raise ValueError("another format")
    except OSError as error:
        raise SambaFlowError(f"the PEF {path} cannot be read: {error.strerror}.", compile_first) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SambaFlowError(
            f"{path} is no PEF of this emulator.",
            "A real PEF runs on an RDU only; for the emulator compile again with it.",
        ) from error
    return dict(document)


def shorten(problems: Sequence[str]) -> str:
    """The first three of several differences, and how many more there are."""
    return "; ".join(problems[:3]) + (f" ({len(problems) - 3} more)" if len(problems) > 3 else "")


def compare_tensors(kind: str, compiled: Sequence[TensorEntry], given: Sequence[TensorEntry]) -> list[str]:
    there, here = {e.name: e for e in compiled}, {e.name: e for e in given}
    found = [f"the {kind} '{name}' was not compiled for" for name in here if name not in there]
    found += [f"the {kind} '{name}' that was compiled for is missing" for name in there if name not in here]
    for name in there:
        if name in here and str(there[name]) != str(here[name]):
            found.append(f"the {kind} '{name}' is {here[name]}, compiled for {there[name]}")
    if not found and [e.name for e in compiled] != [e.name for e in given]:
        found.append(f"the {kind}s come in another order: {', '.join(here)}, compiled for {', '.join(there)}")
    return found


def _compare_optimizers(compiled: Sequence[OptimizerEntry], given: Sequence[OptimizerEntry]) -> list[str]:
    there, here = [e.kind for e in compiled], [e.kind for e in given]
    if there != here:
        return [f"the optimizer is {', '.join(here) or 'none'}, compiled for {', '.join(there) or 'none'}"]
    found = []
    for one, other in zip(compiled, given, strict=True):
        for key in one.static:
            if one.static[key] != other.static.get(key):
                found.append(f"{one.kind} has {key}={other.static.get(key)}, compiled for {one.static[key]}")
        if one.parameters != other.parameters:
            found.append(f"{one.kind} trains {len(other.parameters)} weight(s), compiled for {len(one.parameters)}"
                         if len(one.parameters) != len(other.parameters) else f"{one.kind} trains other weights")  # fmt: skip
    return found


def _first_other_op(compiled: Sequence[str], given: Sequence[str]) -> str:
    for there, here in zip(compiled, given, strict=False):
        if there != here:
            return f"the model computes {here[:160]}, compiled for {there[:160]}"
    return f"the model computes {len(given)} ops, compiled for {len(compiled)}"
