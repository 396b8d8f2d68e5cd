"""What each vendor's branch says: its import, its wrapper, its step, and when weights come back to the host."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from portwright.discover import find_targets
from portwright.port.branches.text import Script
from portwright.port.rule import File


@dataclass(frozen=True)
class Names:
    """What a branch is called in one file."""

    training: str  # the executor, as code there names it
    inference: str
    wrapper: str  # the class with the loss in it
    helper: str  # the class that runs a step, where the vendor has none
    module: str  # nn.Module, as the file writes it
    options: str  # the function that gives the vendor's options
    averages: bool = False  # whether the executor's loss may be one number a batch


class Dialect:
    """One vendor's way of running a training step."""

    package: str  # of the vendor's software, by which its target is known
    device: str  # for people
    import_lines: tuple[str, ...]
    name: str  # that the import binds
    optimizers: tuple[str, ...]  # of torch's, those that the device has
    optimizer_limits = ""  # what else an optimizer must keep to, for people
    optim = ""  # the vendor's optimizers that take torch's arguments and keep their state in state_dict()
    evaluates: bool  # whether it has an executor for evaluation of its own
    step_calls: tuple[str, ...]  # what a file with a branch calls
    averages = False

    @property
    def target(self) -> str:
        """The target that the package belongs to, in small letters."""
        return next(t.name.lower() for t in find_targets().values() if t.package == self.package)

    def takes(self, kind: str, creation: ast.Call) -> bool:
        """Whether the device has an optimizer that computes what this one does."""
        return kind in self.optimizers

    def loss(self, text: str) -> str:
        """The loss as the wrapper returns it."""
        return text

    def is_loss_first(self) -> bool:
        return False

    def helper(self, script: Script, names: Names) -> None:
        """Definitions beside the wrapper."""

    def open(self, script: Script, names: Names, wrapped: str, optimizer: str, depth: int) -> None:
        raise NotImplementedError

    def open_inference(self, script: Script, names: Names, model: str, depth: int) -> None:
        """What is done where nothing is trained: an executor for evaluation alone, or an error."""
        script.line(
            f'raise NotImplementedError("this branch trains on the {self.device}: evaluate on another device")',
            depth,
        )

    def rate_changed(self, names: Names, optimizer: str) -> str | None:
        return None

    def to_host(self, names: Names) -> str:
        raise NotImplementedError

    def absent(self) -> str:
        return (
            f'raise RuntimeError("the {self.device} was asked for, but the package {self.package} is not installed: '
            f"it comes with the vendor's SDK\")"
        )


class PopTorch(Dialect):
    package = "poptorch"
    device = "Graphcore IPU"
    name = "poptorch"
    import_lines = ("try:", "    import poptorch", "except ImportError:", "    poptorch = None")
    optimizers = ("SGD", "Adam", "AdamW", "RMSprop")
    evaluates = True
    step_calls = ("poptorch.trainingModel",)
    optim = "poptorch.optim"
    averages = True

    def loss(self, text: str) -> str:
        return f'poptorch.identity_loss({text}, reduction="mean")'

    def helper(self, script: Script, names: Names) -> None:
        _copy_lines(script, "ipu_options.txt", {"ipu_options": names.options})

    def open(self, script: Script, names: Names, wrapped: str, optimizer: str, depth: int) -> None:
        script.line(
            f"{names.training} = poptorch.trainingModel({wrapped}, {names.options}(), {optimizer})", depth
        )
        if names.inference:
            # Made from the executor, so that it takes over the weights as they are trained.
            script.line(
                f"{names.inference} = poptorch.inferenceModel({names.training}, poptorch.Options())", depth
            )

    def open_inference(self, script: Script, names: Names, model: str, depth: int) -> None:
        script.line(f"{names.inference} = poptorch.inferenceModel({model}.eval(), poptorch.Options())", depth)

    def rate_changed(self, names: Names, optimizer: str) -> str | None:
        return f"{names.training}.setOptimizer({optimizer})"

    def to_host(self, names: Names) -> str:
        return f"{names.training}.copyWeightsToHostIfNeeded()"  # the plain call fails before the first step


class SambaFlow(Dialect):
    package = "sambaflow"
    device = "SambaNova RDU"
    name = "samba"
    import_lines = (
        "try:",
        "    import sambaflow.samba.utils as samba_utils",
        "    from sambaflow import samba",
        "    from sambaflow.samba.utils.argparser import parse_app_args",
        "    from sambaflow.samba.utils.common import common_app_driver",
        "    from sambaflow.samba.utils.pef_utils import get_pefmeta",
        "except ImportError:",
        "    samba = samba_utils = parse_app_args = common_app_driver = get_pefmeta = None",
    )
    optimizers = ("SGD", "AdamW", "Adam")
    optimizer_limits = " with these settings"
    evaluates = False
    step_calls = ("sambaflow.samba.session.run",)

    def is_loss_first(self) -> bool:
        return True

    def takes(self, kind: str, creation: ast.Call) -> bool:
        """SambaFlow's Adam is AdamW, which is the same as long as no weights decay; the rest is looked at when it runs."""
        given = {k.arg: k.value.value for k in creation.keywords if isinstance(k.value, ast.Constant)}
        decays = len(creation.args) > 4 or given.get("weight_decay")
        absent = any(given.get(name) for name in ("amsgrad", "maximize", "nesterov", "dampening"))
        return kind in self.optimizers and not absent and not (kind == "Adam" and decays)

    def helper(self, script: Script, names: Names) -> None:
        _copy_lines(script, "rdu_step.txt", {"RduTraining": names.helper, "MODULE": names.module})

    def open(self, script: Script, names: Names, wrapped: str, optimizer: str, depth: int) -> None:
        script.line(f"{names.training} = {names.helper}({wrapped}, {optimizer})", depth)

    def to_host(self, names: Names) -> str:
        return f"{names.training}.to_host()"


def _copy_lines(script: Script, file: str, replaced: dict[str, str]) -> None:
    text = (Path(__file__).parent / file).read_text(encoding="utf-8")
    for old, new in replaced.items():
        text = text.replace(old, new)
    for line in text.splitlines():
        bare = line.lstrip(" ")
        script.line(bare, (len(line) - len(bare)) // 4)
    script.line("").line("")


@cache
def find_dialects() -> dict[str, Dialect]:
    """By target."""
    return {dialect.target: dialect for dialect in (PopTorch(), SambaFlow())}


def module_base(file: File) -> str | None:
    """nn.Module as this file can write it; None where it imports neither torch nor torch.nn."""
    for dotted, form in (("torch.nn", "{}.Module"), ("torch", "{}.nn.Module"), ("torch.nn.Module", "{}")):
        for name, bindings in file.tree.scope.bindings.items():
            if any(b.kind == "import" and b.dotted == dotted and b.level == 0 for b in bindings):
                return form.format(name)
    return None


def has_import(file: File, dotted: str) -> bool:
    return any(
        isinstance(node, ast.Import) and any(a.name == dotted and a.asname is None for a in node.names)
        for node in file.tree.module.body
    )
