"""Has Cerebras's front end lower a whole training step, which needs no cluster."""

from __future__ import annotations

import json
import logging
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import cerebras.pytorch as cstorch
import torch

from portwright.errors import UnsupportedError
from portwright.job.atomic import atomic_write_text
from portwright.target import Lowered
from portwright.targets.csx.cluster import missing_setting
from portwright.targets.csx.refusal import SourceLines, read_cirh
from portwright.targets.csx.session import CsxSession, sdk_version
from portwright.targets.csx.step import metrics_through_closures

WORDS = "lowered by Cerebras's front end (SDK {version}): accepted by the front end, not placed on a wafer"


class FrontEndSession(CsxSession):
    """A session that traces and lowers a step, and runs none."""

    def lower(self, phases: tuple[str, ...]) -> Lowered:
        """Lowers a training step, an evaluation step, or both; a refusal is an UnsupportedError that names the user's line."""
        details: dict[str, Any] = {"accepted": True, "sdk": sdk_version()}
        lines = [WORDS.format(version=sdk_version())]
        for phase in phases:
            traced = self._lower_one(phase)
            found = traced.details()
            # The figures of the first phase are at the top level too, since there is usually only one.
            details = {**found, **details, phase: found}
            lines += traced.lines(phase)
        if self._legalised is not None:
            swaps = [asdict(swap) for swap in self._legalised.swaps]
            details["legalised"] = swaps
            lines.append(f"with --legalise: {len(swaps)} part(s) of the model run in an equal form")
            lines += [
                f"  {swap['what']} -> {swap['form']}"
                + (f" at {swap['file']}:{swap['line']}" if swap["line"] else "")
                for swap in swaps
            ]
        return Lowered(tuple(lines), details)

    def _lower_one(self, phase: str) -> _Traced:
        trains = phase == "train"
        self._module.train(trains)
        traced = _Traced(phase)
        body, name = (
            (self._updater().make_step(self._call), "train_input")
            if trains
            else (self._make_forward(), "eval_input")
        )
        lines = SourceLines(self._backend, body.__code__)
        executor = self._executor(name, 1, num_merged=self._num_merged if trains else 1)
        step = cstorch.trace(body)

        @cstorch.step_closure  # type: ignore[untyped-decorator]
        def read(outputs: Any) -> None:
            pass  # keeps the outputs in the lowered step, as in a real run

        if trains:
            self._updater().start_at(0)
        try:
            with (
                traced.noting_warnings(),
                lines.following(),
                torch.set_grad_enabled(trains),
                metrics_through_closures(cstorch, not trains),
            ):
                for batch in executor:
                    read(step(batch))
        except Exception as error:
            raise self._explained(error, lines, phase) from error
        traced.folder = self._real_folder(Path(executor.artifact_dir))
        cirh = read_cirh(traced.cirh)
        if cirh is None:
            raise UnsupportedError(
                f"the front end gave no error and no lowered step: {traced.cirh} is empty or missing.",
                "That is a failure of its own tools; look at the artefacts there, and report it to Cerebras.",
            )
        traced.ops, traced.dtypes = cirh.ops, cirh.dtypes
        return traced

    def _real_folder(self, folder: Path) -> Path:
        """The user's name of a folder: the SDK may have got another path of the same folder."""
        wanted = self._job.artifact_dir
        return folder if wanted is None else wanted / folder.relative_to(self._backend.artifact_dir)

    def compile(self, folder: Path, phases: tuple[str, ...]) -> Lowered:
        """Leaves what the front end made in `folder`; without a cluster no more is compiled, and the answer says so."""
        folder.mkdir(parents=True, exist_ok=True)
        manifest: dict[str, Any] = {"sdk": sdk_version(), "mode": self._job.mode}
        try:
            lowered = self.lower(phases)
        except UnsupportedError as error:
            _write(folder, manifest | {"verdict": "refused by the front end", **error.details})
            raise
        details = dict(lowered.details)
        for phase in phases:
            source = Path(lowered.details[phase]["cirh"]).parent
            place = folder if phase == phases[0] else folder / phase
            place.mkdir(exist_ok=True)
            for name in ("torch.mlir", "cirh.mlir"):
                shutil.copyfile(source / name, place / name)
            details[phase] = details[phase] | _places(place)
        details |= _places(folder)
        has_cluster = self._settings.address is not None
        verdict = (
            "compiled by the cluster"
            if has_cluster
            else "accepted by the front end; not compiled, since no cluster is configured"
        )
        _write(folder, manifest | {"verdict": verdict, **details})
        if not has_cluster:
            raise UnsupportedError(
                f"{lowered.lines[0]}; torch.mlir, cirh.mlir and manifest.json are in {folder}, but the kernel compiler lives on the "
                "cluster, and none is configured.",
                missing_setting(),
                details={"compiled": {**details, "compile_dir": str(folder), "placed": False}},
            )
        return Lowered(
            (*lowered.lines, f"compile artefacts: {folder}"), {**details, "compile_dir": str(folder)}
        )


@dataclass
class _Traced:
    """One step as the front end traced and lowered it."""

    phase: str
    folder: Path = field(default_factory=Path)
    ops: dict[str, int] = field(default_factory=dict)
    dtypes: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def cirh(self) -> Path:
        return self.folder / "cirh.mlir"

    def details(self) -> dict[str, Any]:
        return {
            "cirh_ops": self.ops,
            "dtypes": self.dtypes,
            "warnings": self.warnings,
            "cirh": str(self.cirh),
            "torch_mlir": str(self.folder / "torch.mlir"),
        }

    def lines(self, phase: str) -> list[str]:
        most = ", ".join(f"{name} {count}" for name, count in list(self.ops.items())[:8])
        more = f" and {len(self.ops) - 8} more kinds" if len(self.ops) > 8 else ""
        return [
            f"{phase} step: {sum(self.ops.values())} CIRH ops ({most}{more})",
            f"number formats: {', '.join(f'{name} {count}' for name, count in self.dtypes.items())}",
            *(f"warning of the SDK: {line}" for line in self.warnings),
            f"CIRH: {self.cirh}",
        ]

    @contextmanager
    def noting_warnings(self) -> Iterator[None]:
        """Notes each warning of the SDK once, by its first line."""
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: self._note(record.getMessage())  # type: ignore[method-assign]
        logger = logging.getLogger("cerebras")
        logger.addHandler(handler)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                yield
        finally:
            logger.removeHandler(handler)
            for warning in caught:
                self._note(str(warning.message))

    def _note(self, message: str) -> None:
        line = next((" ".join(line.split()) for line in message.splitlines() if line.strip()), "")
        if line and line not in self.warnings:
            self.warnings.append(line)


def _places(folder: Path) -> dict[str, str]:
    return {"cirh": str(folder / "cirh.mlir"), "torch_mlir": str(folder / "torch.mlir")}


def _write(folder: Path, manifest: dict[str, Any]) -> None:
    atomic_write_text(folder / "manifest.json", json.dumps(manifest, indent=2) + "\n")
