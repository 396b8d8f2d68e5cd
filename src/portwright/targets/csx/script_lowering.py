"""Lowers one update of a user's script, as it was watched on the CPU: the same modules, loss, backward pass and optimizer."""

from __future__ import annotations

import inspect
import os
import traceback
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cerebras.pytorch as cstorch
import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from portwright.errors import PortwrightError
from portwright.targets.csx.refusal import SourceLines, explain, read_cirh
from portwright.targets.csx.session import sdk_version
from portwright.verify.replay import ReplayedStep
from portwright.verify.step_watch import WatchedStep
from portwright.verify.tape import OnDevice
from portwright.verify.tensor_trees import iter_tensors, replace_tensors

_STATE = frozenset({"_parameters", "_buffers", "_modules"})
_OWN = frozenset({"_plan", "_paths", "_kept"})  # of this class, not of the user's model


class ScriptLowering:
    """Lowers one step; once a process, since the SDK allows one backend a process."""

    def __init__(self, watched: WatchedStep, folder: Path) -> None:
        self._watched, self._folder = watched, folder
        self._stage = "build"
        self._notes = [*watched.notes, *watched.plan.notes]
        calls = Counter(id(entry.module) for entry in watched.plan.entries if entry.module is not None)
        if any(count > 1 for count in calls.values()):
            # The SDK names a model's state at each call, and refuses state that an earlier call has changed.
            self._notes.append(
                "a module is called several times: one compiled module stands around the calls"
            )
        self._optimizer_name = ""
        self._lines: SourceLines | None = None
        self._root: ReplayedStep | None = None

    def lower(self) -> dict[str, Any]:
        try:
            self._lower()
        except Exception as error:
            traceback.print_exc()
            return self._answer(False) | self._refusal(error)
        found = [(path, read_cirh(path)) for path in sorted(self._folder.rglob("cirh.mlir"))]
        lowered = [(path, cirh) for path, cirh in found if cirh is not None]
        if not lowered:
            words = "the front end gave no error and no lowered step: cirh.mlir is empty or missing"
            return self._answer(False) | {"stage": "lowering", "words": words}
        path, cirh = lowered[0]
        return self._answer(True) | {"ops": cirh.num_ops, "cirh_bytes": path.stat().st_size}

    def _answer(self, accepted: bool) -> dict[str, Any]:
        plan = self._watched.plan
        return {
            "accepted": accepted,
            "sdk": sdk_version(),
            "stage": self._stage,
            "words": "",
            "ops": 0,
            "cirh_bytes": 0,
            "optimizer": self._optimizer_name,
            "num_optimizers": self._watched.num_optimizers,
            "num_fed": len(plan.fed),
            "num_constants": len(plan.constants),
            "modules": list(self._watched.names),
            "num_reads": len(self._watched.reads),
            "notes": list(dict.fromkeys(self._notes)),
        }

    def _lower(self) -> None:
        watched = self._watched
        backend = cstorch.backend("CSX", artifact_dir=str(self._folder / "artifacts"), validate_only=True)
        # Else the SDK cuts the folders of sys.path off the file names in its debug information, and we could not find the files.
        os.environ["LTC_IR_DEBUG_ROOT_PATH"] = ""
        device = backend.device.torch_device
        root = self._root = ReplayedStep(watched.plan, watched.names)
        was_training = [(part, part.training) for part in root.modules()]
        net = cstorch.compile(root, backend)
        root.train()
        for part, training in was_training:
            part.training = training
        now = root.current()
        _move_attributes(root, now, device, watched.host_made)
        self._stage = "update"
        optimizer, self._optimizer_name, notes = make_optimizer(cstorch, watched, now)
        self._notes += notes
        clippings = [
            (clip.function, [now[id(p)] for p in clip.parameters if id(p) in now], clip.args, clip.kwargs)
            for clip in watched.clippings
        ]
        on_device = OnDevice(device)

        def step(fed: Sequence[Tensor]) -> Tensor:
            self._stage = "forward"
            with on_device:
                losses = net(*fed)
            self._stage = "backward"
            for loss, gradient in losses:
                loss.backward(gradient)
            self._stage = "update"
            for function, parameters, args, kwargs in clippings:
                function(parameters, *args, **kwargs)
            optimizer.step()
            optimizer.zero_grad()
            self._stage = "lowering"
            first: Tensor = losses[0][0]
            return first

        @cstorch.step_closure  # type: ignore[untyped-decorator]
        def read(loss: Tensor) -> None:
            pass  # keeps the loss in the lowered step

        lines = self._lines = SourceLines(backend, step.__code__)
        traced = cstorch.trace(step)
        self._stage = "loader"
        fed = [_plain(tensor) for tensor in watched.plan.fed]
        loader = cstorch.utils.data.DataLoader(make_batches, fed)
        with lines.following():
            for batch in cstorch.utils.data.DataExecutor(loader, num_steps=1):
                read(traced(batch))

    def _refusal(self, error: Exception) -> dict[str, Any]:
        if isinstance(error, PortwrightError):
            return {"words": str(error), "stage": self._stage}
        words = _first_words(error)
        if self._lines is None or self._root is None or self._stage in ("build", "loader"):
            return {"words": words}
        refusal = explain(error, self._lines, self._root)
        if refusal is None:
            return {"words": words}
        stage = self._stage if self._stage == "update" else refusal.phase
        return {
            "stage": stage,
            "words": refusal.reason,
            "op": refusal.op,
            "module": refusal.module,
            "file": refusal.file,
            "line": refusal.line,
            "cure": refusal.cure,
        }


def make_batches(fed: list[Tensor]) -> Any:
    """The function that the SDK's loader calls: the script's batch, twice, since the SDK fetches ahead."""
    return torch.utils.data.DataLoader([fed] * 2, batch_size=None)  # type: ignore[arg-type]


def _plain(tensor: Tensor) -> Tensor:
    """A tensor as a loader gives it: without gradient, not a view; a sparse one is left for the SDK to refuse."""
    copied = tensor.detach().clone()
    return copied.contiguous() if copied.layout is torch.strided else copied


def _first_words(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines)
    text = text or type(error).__name__
    return text if len(text) <= 400 else f"{text[:397]}..."


def _move_attributes(root: nn.Module, now: dict[int, Tensor], device: torch.device, host_made: Any) -> None:
    """Moves tensors that a module keeps unregistered to the device, where they would be had it been built there.

    Attributes that refer to a parameter, such as a recurrent layer's list of weights, get the moved one. Tensors that share
    memory with numpy stay, since they can only be built on the host.
    """
    moved: dict[int, Tensor] = dict(now)

    def move(tensor: Tensor) -> Tensor:
        if id(tensor) not in moved:
            stays = tensor.device.type != "cpu" or tensor in host_made
            moved[id(tensor)] = tensor if stays else tensor.detach().to(device)
        return moved[id(tensor)]

    for module in root.modules():
        for name, value in list(vars(module).items()):
            if name in _STATE or (module is root and name in _OWN) or isinstance(value, nn.Module):
                continue
            if next(iter_tensors(value), None) is not None:
                object.__setattr__(module, name, replace_tensors(value, move))
        if isinstance(module, nn.RNNBase):  # else it would flatten its weights again in the step
            module._flat_weight_refs = [weakref.ref(w) for w in module._flat_weights if w is not None]


# Options that choose an implementation, and the keys that are no options.
_NOT_COPIED = frozenset({"foreach", "fused", "capturable", "differentiable", "params", "initial_lr"})
# The SDK's fixed behaviour where it has no option.
_FIXED_OPTIONS = {"maximize": False, "amsgrad": False, "centered": False, "decoupled_weight_decay": False}


def make_optimizer(
    cstorch: Any, watched: WatchedStep, now: Mapping[int, Tensor]
) -> tuple[Any, str, list[str]]:
    """The SDK's optimizer of the same name, else its SGD; its name, and notes on what differs."""
    given = watched.optimizer
    if given is None:
        parameters = [p for p in now.values() if p.requires_grad]
        note = "the script updates its weights by hand: asked with SGD in its place"
        return cstorch.optim.SGD(parameters, lr=0.01), "SGD", [note]
    kind = _kind_of(cstorch, given)
    groups = [
        {**{k: v for k, v in group.items() if k != "params"}, "params": _mapped(group["params"], now)}
        for group in given.param_groups
    ]
    groups = [group for group in groups if group["params"]]
    name = type(given).__name__
    if kind is None:
        lr = _number(groups[0].get("lr", 0.01)) if groups else 0.01
        plain = [{"params": group["params"]} for group in groups]
        return cstorch.optim.SGD(plain, lr=lr), "SGD", [f"the SDK has no {name}: asked with SGD in its place"]
    accepted = set(inspect.signature(kind.__init__).parameters) - {"self", "params"}
    notes = []
    for key, value in groups[0].items() if groups else ():
        if (
            key not in accepted
            and key not in _NOT_COPIED
            and key in given.defaults
            and value not in (_FIXED_OPTIONS.get(key), None)
        ):
            notes.append(f"{name}'s {key}={value} has no counterpart in the SDK")
    common = {key: _number(value) for key, value in (groups[0] if groups else {}).items() if key in accepted}
    own = [
        {
            "params": group["params"],
            **{_group_key(name, k): _number(v) for k, v in group.items() if k in accepted},
        }
        for group in groups
    ]
    return kind(own, **common), name, notes


def _kind_of(cstorch: Any, given: Optimizer) -> Any:
    """The SDK's class for an optimizer of torch's or ours; none for a subclass, whose step may do anything."""
    kind = type(given)
    if not kind.__module__.startswith(("torch.optim", "portwright.")):
        return None
    found = getattr(cstorch.optim, kind.__name__, None)
    return found if inspect.isclass(found) and kind.__name__ != "Muon" else None


def _group_key(name: str, key: str) -> str:
    """The key of an option in a group; the SDK's Adam ignores weight decay under its own signature's name."""
    return "l2_regularization_rate" if name == "Adam" and key == "weight_decay" else key


def _mapped(parameters: Any, now: Mapping[int, Tensor]) -> list[Tensor]:
    return list({id(now[id(p)]): now[id(p)] for p in parameters if id(p) in now}.values())


def _number(value: Any) -> Any:
    """A number for the SDK; in torch a rate may be a tensor of one element."""
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
