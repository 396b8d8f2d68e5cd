"""The training step in SambaFlow: compiled to a PEF once, traced, and run by sections with hyperparameters."""

from __future__ import annotations

import hashlib
import json
import re
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from portwright.base_model import LossModule, split_loss
from portwright.errors import PortwrightError, UnsupportedError, UserError
from portwright.job.atomic import atomic_write_text
from portwright.job.optimizer import OptimizerParams
from portwright.targets.rdu.section import Settings
from portwright.watching.trees import map_tensors, walk_tensors

_loaded: weakref.ref[Program] | None = None  # its step is in this process's only SambaFlow session


class Program:
    """Our step in SambaFlow's session; the first batch sets the shapes."""

    def __init__(
        self,
        step: Step,
        optimizers: Sequence[Any],
        spec: OptimizerParams,
        settings: Settings,
        title: str,
        note: Callable[[str], None],
    ) -> None:
        vendor, self._samba = import_module("sambaflow"), import_module("sambaflow.samba")
        self._utils = import_module("sambaflow.samba.utils")
        self.version = str(getattr(vendor, "__version__", "unknown"))
        self._step, self._settings, self._note = step, settings, note
        self._optimizers = list(optimizers)
        # The rate is a hyperparameter of each run; the optimizer's other settings are compiled into the program.
        self._compiled_settings = spec.model_dump(mode="json", exclude={"learning_rate"})
        self._name = settings.pef_name or re.sub(r"\W+", "_", title.lower()).strip("_") or "model"
        self.pef: Path | None = None
        self.is_traced = False
        self._samba.from_torch_model_(step)

    def name_inputs(self, batch: Any) -> list[Any]:
        """A batch as SambaTensors, whose first dimension is the batch."""
        return [
            self._samba.from_torch_tensor(tensor, name=name, batch_dim=0 if tensor.ndim else None)
            for name, tensor in name_tensors(batch)
        ]

    # -- compile -------------------------------------------------------------------------------------------

    def compile(self, batch: Any) -> Path:
        """Compiles for batches like this one, and writes beside the PEF what it was compiled for."""
        inputs = self._prepare(batch)
        args = import_module("sambaflow.samba.utils.argparser").parse_app_args(
            argv=self._settings.compile_words(self._name)
        )
        with refusals(self.version, "compile"):
            made = self._samba.session.compile(
                self._step,
                inputs,
                self._optimizers or None,
                name=self._name,
                app_dir=str(self._settings.folder),
                config_dict=vars(args),
                pef_metadata=import_module("sambaflow.samba.utils.pef_utils").get_pefmeta(args, self._step),
            )
        self.pef = Path(made) if made else self._default_pef()
        if not self.pef.is_file():
            raise UnsupportedError(
                f"SambaFlow {self.version} compiled, and left no PEF at {self.pef}.",
                "Look at its own output above.",
            )
        atomic_write_text(self._key_file(self.pef), json.dumps(self._key(batch), indent=1) + "\n")
        return self.pef

    def _prepare(self, batch: Any) -> list[Any]:
        named = name_tensors(batch)
        if not named:
            raise UserError(
                f"a batch of train_input holds no tensor: {type(batch).__name__}.", "Return tensors."
            )
        sizes = {tensor.shape[0] for _, tensor in named if tensor.ndim}
        if len(sizes) == 1:
            self._settings.check_batch(sizes.pop())
        self._step.like(batch)
        return self.name_inputs(batch)

    def _default_pef(self) -> Path:
        return self._settings.folder / self._name / f"{self._name}.pef"

    def _key_file(self, pef: Path) -> Path:
        return pef.with_suffix(".compiled_for.json")

    def _key(self, batch: Any) -> dict[str, Any]:
        """All that must be equal to use a PEF again, but for the ops, which tracing compares."""
        weights = [(name, str(t.dtype), list(t.shape)) for name, t in self._step.state_dict().items()]
        return {
            "sambaflow": self.version,
            "arguments": self._settings.compile_words(self._name)[3:],
            "inputs": [list(map(str, entry)) for entry in signature_of(batch)],
            "weights": hashlib.sha256(json.dumps(weights).encode()).hexdigest(),
            "optimizers": [type(optimizer).__name__ for optimizer in self._optimizers],
            "optimizer": self._compiled_settings,
        }

    def _can_use_again(self, pef: Path, batch: Any) -> bool:
        try:
            kept = json.loads(self._key_file(pef).read_text())
        except (OSError, ValueError):
            return False
        return pef.is_file() and kept == json.loads(json.dumps(self._key(batch)))

    # -- trace and run -------------------------------------------------------------------------------------

    def trace(self, batch: Any) -> None:
        """Traces with a fitting PEF, and puts the host's weights and optimizer state on the device."""
        pef = self._settings.pef or self.pef
        if pef is None and self._can_use_again(self._default_pef(), batch):
            try:
                self._trace(batch, self._default_pef())
                self._note(f"using the PEF of an earlier run, {self._default_pef()}.")
                return
            except PortwrightError as error:
                self._note(f"the PEF of an earlier run does not fit any more: {error.message}")
        if pef is None:
            if not self._settings.is_emulated:
                self._note(
                    "compiling a PEF, which takes minutes on the host; --compile_only does it beforehand."
                )
            pef = self.compile(batch)
        self._trace(batch, pef)

    def _trace(self, batch: Any, pef: Path) -> None:
        global _loaded
        inputs = self._prepare(batch)
        before = _loaded() if _loaded is not None else None
        if before is not None:  # its weights and state go to the host until it runs again
            before.to_host()
            before.is_traced = False
        with refusals(self.version, "trace_graph"):
            self._utils.trace_graph(self._step, inputs, self._optimizers or None, pef=str(pef))
        self.pef, self.is_traced, _loaded = pef, True, weakref.ref(self)

    def run(self, batch: Any, rate: float) -> Tensor:
        """Runs one update, all sections with the learning rate as a hyperparameter; gives the loss."""
        options: dict[str, Any] = {}
        if self._settings.section.data_parallel:
            options = {"data_parallel": True, "reduce_on_rdu": self._settings.section.reduce_on_rdu}
        return self._run(batch, hyperparam_dict={"lr": rate}, **options)

    def forward(self, batch: Any) -> Tensor:
        """The loss of a batch, by the section fwd only."""
        return self._run(batch, section_types=["fwd"])

    def _run(self, batch: Any, **options: Any) -> Tensor:
        with refusals(self.version, "run"):
            outputs = self._samba.session.run(
                input_tensors=self.name_inputs(batch),
                output_tensors=self._step.output_tensors,
                **options,
            )
        loss: Tensor = self._samba.to_torch(outputs[0])
        return loss

    def to_host(self) -> None:
        if self.is_traced:
            self._samba.session.to_cpu(self._step)

    def to_device(self) -> None:
        if self.is_traced:
            self._samba.session.to_rdu(self._step)


@contextmanager
def refusals(version: str, what: str) -> Iterator[None]:
    """Turns errors of SambaFlow into one line; our own errors stay."""
    try:
        yield
    except PortwrightError:
        raise
    except (RuntimeError, AssertionError, ValueError, NotImplementedError) as error:
        if not _is_vendors(error):
            raise
        text = " ".join(str(error).split())[:400] or type(error).__name__
        raise UnsupportedError(
            f"SambaFlow {version} refuses to {what}: {text}", "See --debug for where it comes from."
        ) from error


def _is_vendors(error: Exception) -> bool:
    """Whether SambaFlow raised an error rather than the user's code or torch; it has no error class, so the place tells."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        module = str(frame.f_globals.get("__name__", ""))
        root = module.partition(".")[0]
        if root == "sambaflow":
            return True
        if root != "torch" and (root != "portwright" or module.startswith("portwright.models.")):
            return False
    return True


PREFIX = "net."  # begins the weights' names in the converted module


class Step(nn.Module):
    """Takes a batch's tensors as arguments, and gives the loss."""

    def __init__(self, module: LossModule) -> None:
        super().__init__()
        self.net = module.net
        self.__dict__["whole"] = module  # not registered a second time
        self.__dict__["batch"] = None  # gives the structure of the flat tensors

    def like(self, batch: Any) -> None:
        """Sets the batch whose structure the inputs have."""
        self.__dict__["batch"] = batch

    def forward(self, *tensors: Tensor) -> Tensor:
        left = iter(tensors)
        batch = map_tensors(self.__dict__["batch"], lambda _: next(left))
        return split_loss(self.__dict__["whole"].call(batch))[0]


def name_tensors(batch: Any) -> list[tuple[str, Tensor]]:
    """Each tensor of a batch with a name for the device: its key, or its place."""
    named: list[tuple[str, Tensor]] = []
    for path, tensor in walk_tensors(batch):
        name = re.sub(r"\W+", "_", path.removeprefix("batch")).strip("_")
        name = name if name and not name[0].isdigit() else f"input_{name}".rstrip("_")
        taken = {other for other, _ in named}
        while name in taken:
            name += "_"
        named.append((name, tensor))
    return named


def signature_of(batch: Any) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    return tuple((name, str(tensor.dtype), tuple(tensor.shape)) for name, tensor in name_tensors(batch))
