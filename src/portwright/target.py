"""The interface between a run and the machine that executes it.

A vendor's software owns more than a step: it constructs the model, the loader and the optimizer, runs backward, and
decides when a value may be read. So a run gives a backend factories and specifications, and gets a Session that it
runs in stretches; docs/decisions/0001 has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel

    from portwright.graph.kernels import KernelTable
    from portwright.job.params import Params
    from portwright.job.vendor_env import VendorEnvironment
    from portwright.needs import Answer

Mode = Literal["train", "eval", "train_and_eval", "eval_all", "predict"]


@dataclass(frozen=True)
class Event:
    """A report of a session; reports are in order, but may come later than their step.

    `log`: values of a logged step. `boundary`: every step up to `step` is finished and `Session.state()` may be
    read; the session waits until the next event is asked for.
    """

    kind: Literal["log", "boundary"]
    step: int
    values: Mapping[str, float] = field(default_factory=dict)
    losses: tuple[float, ...] = ()  # of every step since the last logged one


@dataclass(frozen=True)
class Stretch:
    """A part of training that a session runs without calls in between.

    Step numbers are absolute, so that logging and saving fall on the same steps after a resume. A step is one
    update of the weights.
    """

    first_step: int  # steps done before this stretch
    last_step: int  # steps done after it
    log_steps: int  # 0: never
    boundary_steps: int  # a boundary event after each multiple of this; 0: only at the end
    # called between steps, so it must be cheap; True ends the stretch early, with a boundary
    should_stop: Callable[[], bool]

    def is_logged(self, step: int) -> bool:
        return step == self.last_step or (self.log_steps > 0 and step % self.log_steps == 0)

    def is_boundary(self, step: int) -> bool:
        return step == self.last_step or (self.boundary_steps > 0 and step % self.boundary_steps == 0)


@dataclass(frozen=True)
class Shard:
    """One named piece of a session's state, in host memory and in its canonical layout.

    Names are `model/<state_dict name>`, `optimizer/<parameter name>/<state name>`, `rng/<rank>/<generator>`.
    The receiver may keep the tensor: later steps do not change it.
    """

    name: str
    tensor: torch.Tensor


class DataStream(Protocol):
    """The tasks of a launch that read data for the task that trains."""

    def channel(self, name: str, job: JobSpec) -> Any:
        """The way to the tasks that read input `name`. Call it right before the input is made, with generators alike everywhere."""

    def values(self) -> dict[str, float]:
        """Values to log beside those of a step."""


@dataclass(frozen=True)
class JobSpec:
    """What a run gives a backend: functions that make the parts, never the parts themselves."""

    params: Params
    model_fn: Callable[..., Any]
    train_data_fn: Callable[[Any], Any] | None
    eval_data_fn: Callable[[Any], Any] | None
    mode: Mode
    artifact_dir: Path | None = None  # where a vendor's software may put the files it makes
    stream: DataStream | None = None  # where other tasks of the launch read the data


class Session(Protocol):
    """A model on its target, ready to be trained and evaluated; it, or the vendor's software below it, takes each batch there."""

    def steps_in(self, num_epochs: int) -> int | None:
        """The number of steps in `num_epochs` passes over the training data; None where it is not known."""

    @property
    def steps_per_call(self) -> int:
        """Steps that the device runs before the host can read a value; events come at multiples of it."""

    def sample_batches(self, name: str, num_batches: int) -> list[Any]:
        """The first batches of train_input or eval_input, for inspection."""

    def train(self, stretch: Stretch) -> Iterator[Event]: ...

    def evaluate(
        self, num_steps: int | None, on_step: Callable[[int], None] | None = None
    ) -> dict[str, float]: ...

    def predict(self, num_steps: int | None) -> Iterator[Mapping[str, torch.Tensor]]: ...

    def state(self) -> Iterator[Shard]:
        """The state's tensors; to be read at a boundary or before the first step."""

    def counters(self) -> dict[str, Any]:
        """The rest of the state, as JSON: data position, schedule, loss scale."""

    def load_state(self, shards: Iterable[Shard], counters: Mapping[str, Any] | None) -> None:
        """Loads what `state` and `counters` gave; without counters only the weights."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Lowered:
    """What a vendor's own compiler makes of a step without running it."""

    lines: tuple[str, ...]  # for a person
    details: Mapping[str, Any]  # for --json


@runtime_checkable
class CompilerSession(Protocol):
    """A session with a vendor's compiler; its refusal is an UnsupportedError that names the user's line."""

    def lower(self, phases: tuple[str, ...]) -> Lowered:
        """Compiles the steps of these phases (train, eval) as far as needed to know whether they are accepted; runs nothing."""

    def compile(self, folder: Path, phases: tuple[str, ...]) -> Lowered:
        """Compiles as far as is possible here, and leaves the result in `folder`."""


class World(Protocol):
    """The processes of one run, as far as a trainer needs to know them."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def is_main(self) -> bool: ...

    def barrier(self) -> None: ...

    def gather(self, value: Any) -> list[Any]: ...

    def agree_on_failure(self, action: Callable[[], Any]) -> Any: ...

    def close(self) -> None: ...


class Backend(Protocol):
    """Opens sessions on one target."""

    @property
    def world(self) -> World: ...

    @property
    def emulates(self) -> str | None:
        """The vendor's software that is emulated here, such as "PopTorch 3.4"; None: none is."""

    def open(self, job: JobSpec) -> Session: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Flag:
    """A command-line flag of run.py for one target; every target accepts it, since old scripts pass them all."""

    names: tuple[str, ...]
    help: str
    is_switch: bool = False
    is_list: bool = False
    chooses: bool = False  # without a target on the command line, the flag selects this one
    runs_on_host: bool = (
        False  # with the flag a step runs in this process, where tensors can be read; without it they cannot
    )

    @property
    def dest(self) -> str:
        return next(name for name in self.names if name.startswith("--")).lstrip("-").replace("-", "_")


ExecutionMode = Literal["resident", "layer_pipelined", "weight_streaming"]


@dataclass(frozen=True)
class Hardware:
    """Published constants of a target's machine; what has no public source stays None."""

    name: str
    memory_bytes: int  # for a step's tensors: on the chip, or the device's memory
    modes: tuple[ExecutionMode, ...]
    sources: Mapping[str, str]  # where each figure is from, by field name
    num_cores: int | None = None
    core_memory_bytes: int | None = None
    fabric: tuple[int, int] | None = None  # usable columns and rows of cores
    streaming_bytes: int | None = None  # memory outside the chip from which weights can stream
    io_bytes_per_second: float | None = None
    flops_per_second: float | None = None
    num_chips: int = 1


@dataclass(frozen=True)
class Target:
    """One kind of machine; a file in targets/ defines `TARGET`."""

    name: str  # as on the command line, in capitals
    summary: str
    make_backend: Callable[[Mapping[str, Any], Callable[[str], None]], Backend]  # flags, note
    why_not: Callable[[], str | None]  # why it cannot run here, with the cure; None when it can
    sections: Mapping[str, type[BaseModel]] = field(default_factory=dict)  # of params.yaml
    flags: tuple[Flag, ...] = ()
    # words that may follow the target's name, as in its vendor's scripts, and the flags that each stands for
    commands: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    has_cluster: bool = False  # whether runconfig's keys for a vendor's cluster matter here
    kernels: Callable[[], KernelTable] | None = None  # None: it runs whatever torch runs
    hardware: Callable[[], Hardware] | None = None  # what `plan` measures a model against
    environment: VendorEnvironment | None = None  # the environment with its software, if not ours
    emulator: str | None = None  # the vendor's package that `--emulate` stands in for
    has_compiler: bool = False  # the vendor's own, so that torch.compile is not used
    preference: int = 0  # a command without a target takes the runnable one with the highest; 0: never
    executions: tuple[str, ...] = ("resident",)  # values that runconfig.execution may have here, beside auto
    execution_note: str = ""  # the message where the vendor's software decides; "": others are refused
    tensorflow_device: str | None = None  # TensorFlow's name of it, if TensorFlow trains there by itself
    no_tensorflow: str = "Portwright has no way to train it there"  # why not, where it does not
    aliases: tuple[
        str, ...
    ] = ()  # what else people call it: the vendor, its machines; small letters and digits
    package: str = ""  # the vendor's package; a training loop that uses it runs here unchanged
    torch_device: str | None = None  # torch's name of it, if torch trains there by itself
    device_types: tuple[
        str, ...
    ] = ()  # that torch shows for tensors on it; none where a vendor's own software holds them
    # its answer for each need of needs.py that matters to it
    needs: Mapping[str, Answer] = field(default_factory=dict)
