"""What each vendor's branch says: its import, its wrapper, its step, and when weights come back to the host."""

from __future__ import annotations

import ast
from dataclasses import dataclass

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


class Dialect:
    """One vendor's way of running a training step."""

    target: str
    package: str
    device: str  # for people
    import_lines: tuple[str, ...]
    name: str  # that the import binds
    optimizers: tuple[str, ...]  # of torch's, those that the device has
    evaluates: bool  # whether it has an executor for evaluation of its own

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
        """An executor for evaluation alone, where nothing is trained."""

    def rate_changed(self, names: Names, optimizer: str) -> str | None:
        return None

    def to_host(self, names: Names) -> str:
        raise NotImplementedError

    def absent(self) -> str:
        return (
            f'raise RuntimeError("the {self.device} was asked for, but the package {self.package} is not installed: '
            f"it comes with the vendor's SDK\")"
        )


class Ipu(Dialect):
    target = "ipu"
    package = "poptorch"
    device = "Graphcore IPU"
    name = "poptorch"
    import_lines = ("try:", "    import poptorch", "except ImportError:", "    poptorch = None")
    optimizers = ("SGD", "Adam", "AdamW", "RMSprop")
    evaluates = True

    def loss(self, text: str) -> str:
        return f'poptorch.identity_loss({text}, reduction="mean")'

    def open(self, script: Script, names: Names, wrapped: str, optimizer: str, depth: int) -> None:
        script.line(
            f"{names.training} = poptorch.trainingModel({wrapped}, poptorch.Options(), {optimizer})", depth
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
        return f"{names.training}.copyWeightsToHost()"


class Rdu(Dialect):
    target = "rdu"
    package = "sambaflow"
    device = "SambaNova RDU"
    name = "samba"
    import_lines = (
        "try:",
        "    import sambaflow.samba.utils as samba_utils",
        "    from sambaflow import samba",
        "except ImportError:",
        "    samba = samba_utils = None",
    )
    optimizers = ("SGD", "AdamW")
    evaluates = False

    def is_loss_first(self) -> bool:
        return True

    def helper(self, script: Script, names: Names) -> None:
        for depth, text in _RDU_STEP:
            script.line(text.replace("RduTraining", names.helper), depth)
        script.line("").line("")

    def open(self, script: Script, names: Names, wrapped: str, optimizer: str, depth: int) -> None:
        script.line(f"{names.training} = {names.helper}({wrapped}, {optimizer})", depth)

    def to_host(self, names: Names) -> str:
        return f"{names.training}.to_host()"


_RDU_STEP = (
    (0, "class RduTraining:"),
    (1, '"""Runs training steps on an RDU.'),
    (0, ""),
    (
        1,
        "The first batch fixes names, shapes and types. Without RDU_PEF in the environment the step is compiled, and the",
    ),
    (1, "program ends; with it, the compiled step is traced and run."),
    (1, '"""'),
    (0, ""),
    (1, "def __init__(self, model, optimizer):"),
    (2, "if len(optimizer.param_groups) != 1:"),
    (3, 'raise NotImplementedError("an RDU takes one group of parameters, and the optimizer has several")'),
    (2, "settings = dict(optimizer.param_groups[0])"),
    (2, "samba.from_torch_model_(model)"),
    (2, "self.model, self.host_optimizer, self.is_traced = model, optimizer, False"),
    (2, "kind = type(optimizer).__name__"),
    (2, 'if kind == "SGD":'),
    (3, 'kept = ("lr", "momentum", "weight_decay")'),
    (2, 'elif kind == "AdamW":'),
    (3, 'kept = ("lr", "betas", "eps", "weight_decay")'),
    (2, "else:"),
    (3, 'raise NotImplementedError(f"SambaFlow has no {kind}: use SGD or AdamW")'),
    (2, "chosen = {name: settings[name] for name in kept}"),
    (2, "self.optimizer = getattr(samba.optim, kind)(model.parameters(), **chosen)"),
    (0, ""),
    (1, "def __call__(self, *tensors):"),
    (
        2,
        'inputs = [samba.from_torch_tensor(t, name=f"input_{i}", batch_dim=0) for i, t in enumerate(tensors)]',
    ),
    (2, "if not self.is_traced:"),
    (3, "self.trace(inputs)"),
    (2, 'rates = {"lr": self.host_optimizer.param_groups[0]["lr"]}'),
    (2, "outputs = samba.session.run("),
    (3, "input_tensors=inputs,"),
    (3, "output_tensors=self.model.output_tensors,"),
    (3, "hyperparam_dict=rates,"),
    (3, 'section_types=["fwd", "bckwd", "opt"],'),
    (2, ")"),
    (2, "loss, *others = (samba.to_torch(output) for output in outputs)"),
    (2, "return (*others, loss.mean()) if others else loss.mean()"),
    (0, ""),
    (1, "def trace(self, inputs):"),
    (2, 'pef = os.environ.get("RDU_PEF")'),
    (2, "if pef is None:"),
    (3, "folder = samba_utils.get_file_dir(__file__)"),
    (3, 'samba.session.compile(self.model, inputs, self.optimizer, name="training_step", app_dir=folder)'),
    (3, 'raise SystemExit("the step is compiled: run again with RDU_PEF=<the .pef file that was made>")'),
    (2, "samba_utils.trace_graph(self.model, inputs, self.optimizer, pef=pef)"),
    (2, "self.is_traced = True"),
    (0, ""),
    (1, "def to_host(self):"),
    (2, '"""Brings the weights back, for evaluation and checkpoints."""'),
    (2, "if self.is_traced:"),
    (3, "samba.session.to_cpu(self.model)"),
)

DIALECTS: dict[str, Dialect] = {dialect.target: dialect for dialect in (Ipu(), Rdu())}


def module_base(file: File) -> str | None:
    """nn.Module as this file can write it; None where it imports neither torch nor torch.nn."""
    for dotted, form in (("torch.nn", "{}.Module"), ("torch", "{}.nn.Module"), ("torch.nn.Module", "{}")):
        for name, bindings in file.tree.scope.bindings.items():
            if any(b.kind == "import" and b.dotted == dotted and b.level == 0 for b in bindings):
                return form.format(name)
    return None


def binds_top(file: File, name: str) -> bool:
    return name in file.tree.scope.bindings


def has_import(file: File, dotted: str) -> bool:
    return any(
        isinstance(node, ast.Import) and any(a.name == dotted and a.asname is None for a in node.names)
        for node in file.tree.module.body
    )
