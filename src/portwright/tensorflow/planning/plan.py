"""Plans of a TensorFlow step: the capture of this package, judged and measured as torch's are."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field

from portwright.errors import UserError
from portwright.graph.kernels import KernelTable, Verdict
from portwright.graph.match import MatchReport, match
from portwright.graph.plans.data import Data
from portwright.graph.plans.files import Planned
from portwright.graph.plans.fit import parse_mode
from portwright.graph.plans.plan import make_plan
from portwright.graph.plans.wish import Wish, machine_of, parse_memory
from portwright.target import Target
from portwright.tensorflow.capturing.capture import Captured

_RUN_TENSORFLOW = ("CPU", "GPU")  # targets whose machine TensorFlow itself runs on


@dataclass
class TensorFlowSubject:
    """A step to plan."""

    name: str
    capture: Callable[[], Captured]
    data: Data = field(default_factory=lambda: Data(why_no_samples="the input function does not say"))
    notes: list[str] = field(default_factory=list)


def find_table(target: Target) -> KernelTable | None:
    """A target's table of TensorFlow ops: the module tensorflow_kernels of its folder; None where it has none."""
    package = f"portwright.targets.{target.name.lower()}"
    try:
        if importlib.util.find_spec(f"{package}.tensorflow_kernels") is None:
            return None
    except ModuleNotFoundError:  # a target of one file, or of another package
        return None
    made: KernelTable = importlib.import_module(f"{package}.tensorflow_kernels").table()
    return made


def can_judge(target: Target) -> bool:
    """Whether something is known of TensorFlow on a target."""
    return target.name in _RUN_TENSORFLOW or find_table(target) is not None


def plan_step(subject: TensorFlowSubject, wish: Wish) -> Planned:
    """Plans on every target that was asked for; one that nothing is known of is an error, unless others are there too."""
    if wish.legalise:
        raise UserError(
            "--legalise was given for a TensorFlow model.",
            "Legal forms are torch layers; change what is refused as each cure says.",
        )
    judged = [target for target in wish.targets if can_judge(target)]
    left_out = [target.name for target in wish.targets if target not in judged]
    if not judged:
        raise UserError(
            f"there is no table of TensorFlow ops for {', '.join(left_out)}, so that nothing can be said of it.",
            "Plan for csx, gpu or cpu, or plan the model's PyTorch twin.",
        )
    captured = subject.capture()
    notes = [*subject.notes, *captured.graph.info["notes"]]
    if left_out:
        notes.append(f"no table of TensorFlow ops is known for {', '.join(left_out)}: left out.")
    if captured.graph.info["guards_update"]:
        notes.append(
            "the update is skipped where a gradient is not finite (loss scaling or a check of gradients)."
        )
    if not captured.graph.trains:
        notes.append(f"this is the plan of a forward pass in mode {captured.graph.info['mode']!r}.")
    mode, memories = parse_mode(wish.mode), parse_memory(wish.memory, wish.targets)
    planned = Planned(subject)
    for target in judged:
        planned.plans[target.name.lower()] = make_plan(
            _judge(captured, target),
            machine_of(target, memories),
            subject=subject.name,
            mode=mode,
            optimizer=captured.optimizer,
            notes=tuple(notes),
        )
    return planned


def _judge(captured: Captured, target: Target) -> MatchReport:
    table = find_table(target)
    if table is not None:
        return match(captured.graph, table, target.name)
    verdicts = tuple(Verdict("native") for _ in captured.graph.nodes)
    return MatchReport(target.name, "whatever TensorFlow runs here, it runs", captured.graph, verdicts, ())
