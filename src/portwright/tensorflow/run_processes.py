"""A run's place among the processes of TF_CONFIG: the chief does what a run does alone, the others train along."""

from __future__ import annotations

from portwright.errors import UserError
from portwright.job.arguments import Arguments
from portwright.job.logs import Console
from portwright.job.params import Params
from portwright.job.signals import StopSignals
from portwright.tensorflow.cluster import TaskType
from portwright.tensorflow.monitor import Monitor
from portwright.tensorflow.processes import Processes
from portwright.tensorflow.run_config import RunConfig
from portwright.tensorflow.training import join_processes


class FollowerConsole(Console):
    """Says notes, warnings and errors of a process that is not the chief, with its name, and leaves the rest to the chief."""

    def __init__(self, given: Console, name: str) -> None:
        super().__init__(prefix=f"{name}: ")
        self._least = given._least

    @property
    def shows_info(self) -> bool:
        return False

    def info(self, message: str) -> None:
        pass


def find_place(arguments: Arguments, trains: bool) -> RunConfig:
    """What TF_CONFIG says of this process."""
    place = RunConfig()
    if trains and place.task_type == TaskType.EVALUATOR:
        raise UserError(
            f"TF_CONFIG makes this process an evaluator, and --mode {arguments.mode} has the chief evaluate.",
            "Leave the evaluator out; or start it with --mode eval, without TF_CONFIG, when there is a checkpoint.",
        )
    return place


def join(params: Params, console: Console, signals: StopSignals) -> Processes | None:
    """The processes that train together, when all of them are there; None where this one is alone."""
    return join_processes(RunConfig(tf_random_seed=params.runconfig.seed), Monitor(console, signals))
