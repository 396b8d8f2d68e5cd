"""Calls an input function as a run would, and checks its dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from portwright.errors import UserError
from portwright.tensorflow.input_check.findings import InputFinding, Pipeline, look
from portwright.tensorflow.input_check.stages import Stage, read_stages
from portwright.watching.place import Place

IDEAL = "shard, interleave, cache, shuffle, repeat, batch with drop_remainder, map, prefetch"
_MODEL_DTYPES = (tf.float32, tf.float16, tf.bfloat16, tf.int32, tf.int16, tf.uint16, tf.bool)


@dataclass(frozen=True)
class InputReport:
    """The stages of an input function's dataset, and the findings about them."""

    name: str
    stages: tuple[Stage, ...]
    findings: tuple[InputFinding, ...]
    elements: tuple[str, ...]  # what a batch holds, for a person
    batch_size: int | None
    measured: dict[str, Any] = field(default_factory=dict)

    @property
    def has_errors(self) -> bool:
        return any(finding.severity == "error" for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        return {
            "input": self.name,
            "stages": [
                {"kind": s.kind, "op": s.op, "place": None if s.place is None else str(s.place)}
                for s in self.stages
            ],
            "elements": list(self.elements),
            "batch_size": self.batch_size,
            "findings": [finding.as_dict() for finding in self.findings],
            "measured": self.measured,
        }


def check_input(
    input_fn: Callable[[], Any],
    *,
    name: str = "train_input_fn",
    is_training: bool = True,
    num_workers: int = 1,
    root: Path | None = None,
) -> InputReport:
    """Calls `input_fn()` in a graph of its own and reads the pipeline it builds; no data are read."""
    with tf.Graph().as_default():
        dataset = make_dataset(input_fn, name)
        return look_at(dataset, name=name, is_training=is_training, num_workers=num_workers, root=root)


def make_dataset(input_fn: Callable[[], Any], name: str) -> Any:
    """Calls an input function, and refuses a result that is no dataset."""
    made = input_fn()
    if isinstance(made, tf.data.Dataset | tf.compat.v1.data.Dataset):
        return made
    cure = "Return the tf.data.Dataset itself, so that its order can be checked, saved and streamed."
    if isinstance(made, tuple | list | dict) or tf.is_tensor(made):
        raise UserError(f"{name} returns tensors ({type(made).__name__}) instead of a dataset.", cure)
    raise UserError(f"{name} returns {type(made).__name__} instead of a dataset.", cure)


def look_at(
    dataset: Any, *, name: str, is_training: bool, num_workers: int = 1, root: Path | None = None
) -> InputReport:
    """Reports on a dataset that was made in the current graph."""
    stages = read_stages(dataset, root)
    pipeline = Pipeline(stages, is_training, _num_samples(stages), num_workers)
    place = stages[-1].place
    findings = [*_unknown_shapes(dataset, place), *look(pipeline), *_dtypes(dataset, place)]
    if any(f.name in ("kept-remainder", "missing-batch") for f in findings):
        findings = [f for f in findings if f.name != "unknown-batch-size"]
    return InputReport(name, stages, tuple(findings), tuple(_elements(dataset)), _batch_size(dataset))


def _num_samples(stages: tuple[Stage, ...]) -> int | None:
    """The number of samples; None if a stage before the first shuffle may change it."""
    number = stages[0].number("num_elements")
    for stage in stages[1:]:
        if stage.kind in ("shuffle", "shuffle_and_repeat"):
            return number
        if stage.kind not in ("map", "cache", "prefetch", "options"):
            return None
    return number


def _flatten(spec: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(spec, dict):
        for key, value in spec.items():
            yield from _flatten(value, f"{path}['{key}']")
    elif isinstance(spec, tuple | list):
        for number, value in enumerate(spec):
            part = {0: "features", 1: "labels"}.get(number) if not path and len(spec) == 2 else None
            yield from _flatten(value, part or f"{path}[{number}]")
    else:
        yield path or "features", spec


def _elements(dataset: Any) -> Iterator[str]:
    for name, spec in _flatten(dataset.element_spec):
        shape = getattr(spec, "shape", None)
        dtype = getattr(spec, "dtype", None)
        sizes = "unknown" if shape is None or shape.rank is None else str(shape.as_list())
        yield f"{name}: {dtype.name if dtype is not None else type(spec).__name__} {sizes}"


def _batch_size(dataset: Any) -> int | None:
    for _, spec in _flatten(dataset.element_spec):
        shape = getattr(spec, "shape", None)
        if shape is not None and shape.rank and shape[0] is not None:
            return int(shape[0])
    return None


def _unknown_shapes(dataset: Any, place: Place | None) -> Iterator[InputFinding]:
    for name, spec in _flatten(dataset.element_spec):
        shape = getattr(spec, "shape", None)
        if isinstance(spec, tf.RaggedTensorSpec | tf.SparseTensorSpec):
            yield InputFinding(
                "ragged-batch",
                "error",
                place,
                f"{name} is a {type(spec).__name__.removesuffix('Spec')}: its shape is not static.",
                "Pad to one length: .padded_batch(batch_size, padded_shapes=..., drop_remainder=True), or tf.sparse.to_dense in the map.",
            )
            continue
        if shape is None or shape.rank is None:
            yield InputFinding(
                "unknown-shape", "error", place, f"{name} has no known shape.",
                "Give it one in the map: tensor.set_shape([...]) or tf.ensure_shape.",
            )  # fmt: skip
        elif shape.rank and shape[0] is None:
            yield InputFinding(
                "unknown-batch-size", "error", place, f"the batch size of {name} is unknown.",
                "Say .batch(..., drop_remainder=True).",
            )  # fmt: skip
        for axis, size in enumerate(shape[1:] if shape is not None and shape.rank else (), start=1):
            if size is None:
                yield InputFinding(
                    "unknown-shape", "error", place, f"axis {axis} of {name} has no known size: {shape}.",
                    "Pad or crop to one size: padded_batch(padded_shapes=...) with numbers, or tensor.set_shape in the map.",
                )  # fmt: skip


def _dtypes(dataset: Any, place: Place | None) -> Iterator[InputFinding]:
    for name, spec in _flatten(dataset.element_spec):
        dtype = getattr(spec, "dtype", None)
        if dtype == tf.string:
            yield InputFinding(
                "text-in-batch", "error", place, f"{name} is text, which no accelerator takes.",
                "Turn it into numbers in the input function.",
            )  # fmt: skip
        elif dtype is not None and dtype not in _MODEL_DTYPES:
            wide = {tf.int64: "tf.int32", tf.float64: "tf.float32"}.get(dtype, "a type of 16 or 32 bits")
            yield InputFinding(
                "wide-type", "advice", place, f"{name} is {dtype.name}.",
                f"Cast it to {wide} in the input function: half the bytes to stream.",
            )  # fmt: skip
