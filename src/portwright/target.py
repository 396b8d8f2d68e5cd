"""The seam between a run and the machine that executes it.

A vendor owns more than a step: the model's construction, the loader, backward and the optimizer, and when a
value may be read. So a run hands a backend factories and specifications, and gets back a Session that it
drives in stretches; docs/decisions/0001 says what taught us this shape.
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

Mode = Literal["train", "eval", "train_and_eval", "eval_all", "predict"]


@dataclass(frozen=True)
class Event:
    """Something that a session reports, in order, and possibly later than the step it is about.

    `log`: values of a logged step. `boundary`: every step up to `step` is finished and `Session.state()` may be
    read; the session waits there until it is iterated further.
    """

    kind: Literal["log", "boundary"]
    step: int
    values: Mapping[str, float] = field(default_factory=dict)
    losses: tuple[float, ...] = ()  # of every step since the last logged one


@dataclass(frozen=True)
class Stretch:
    """A piece of training that a session runs without being asked anything.

    Step numbers are absolute, so that logging and saving fall on the same steps after a resume. A step is one
    update of the weights.
    """

    first_step: int  # steps done before this stretch
    last_step: int  # steps done after it
    log_steps: int  # 0: never
    boundary_steps: int  # state may be wanted each time a multiple of this is done; 0: only at the end
    should_stop: Callable[
        [], bool
    ]  # asked between steps, cheap; True ends the stretch early, with a boundary

    def is_logged(self, step: int) -> bool:
        return step == self.last_step or (self.log_steps > 0 and step % self.log_steps == 0)

    def is_boundary(self, step: int) -> bool:
        return step == self.last_step or (self.boundary_steps > 0 and step % self.boundary_steps == 0)


@dataclass(frozen=True)
class Shard:
    """One named piece of a session's state, in host memory and in its canonical layout.

    Names are `model/<state_dict name>`, `optimizer/<parameter name>/<state name>`, `rng/<rank>/<generator>`.
    The tensor is the receiver's to keep: later steps do not change it.
    """

    name: str
    tensor: torch.Tensor


class DataStream(Protocol):
    """Tasks that read data for the one that trains."""

    def channel(self, name: str, job: JobSpec) -> Any:
        """Call it right before the input is made: the others make theirs from the same random numbers."""
        ...

    def values(self) -> dict[str, float]:
        """What is logged of it beside a step."""
        ...


@dataclass(frozen=True)
class JobSpec:
    """What a run asks of a backend: how to make the parts, never the parts themselves."""

    params: Params
    model_fn: Callable[..., Any]
    train_data_fn: Callable[[Any], Any] | None
    eval_data_fn: Callable[[Any], Any] | None
    mode: Mode
    artifact_dir: Path | None = None  # where a vendor's software may leave what it makes
    stream: DataStream | None = None  # where other tasks of the launch read the data


class Session(Protocol):
    """A model on its target, ready to be trained and evaluated."""

    def steps_in(self, num_epochs: int) -> int | None:
        """Steps that so many passes over the training data take; None where that is not known."""
        ...

    @property
    def steps_per_call(self) -> int:
        """Steps that the device takes between two moments at which the host can look: events come at multiples of it."""
        ...

    def sample_batches(self, name: str, num_batches: int) -> list[Any]:
        """The first batches of train_input or eval_input, to look at."""
        ...

    def train(self, stretch: Stretch) -> Iterator[Event]: ...

    def evaluate(
        self, num_steps: int | None, on_step: Callable[[int], None] | None = None
    ) -> dict[str, float]: ...

    def predict(self, num_steps: int | None) -> Iterator[Mapping[str, torch.Tensor]]: ...

    def state(self) -> Iterator[Shard]:
        """Tensors of the state; read at a boundary, or before the first step."""
        ...

    def counters(self) -> dict[str, Any]:
        """The rest of the state, as JSON: data position, schedule, loss scale."""
        ...

    def load_state(self, shards: Iterable[Shard], counters: Mapping[str, Any] | None) -> None:
        """Takes back what `state` and `counters` gave; without counters only the weights count."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Lowered:
    """What a vendor's own compiler makes of a step without running it."""

    lines: tuple[str, ...]  # for a person
    details: Mapping[str, Any]  # for --json


@runtime_checkable
class CompilerSession(Protocol):
    """A session that has a vendor's compiler to ask; a refusal is an UnsupportedError that names the user's line."""

    def lower(self, phases: tuple[str, ...]) -> Lowered:
        """Asks about the steps named, of train and eval; runs nothing."""
        ...

    def compile(self, folder: Path, phases: tuple[str, ...]) -> Lowered:
        """Goes as far as the compiler goes here, and leaves what it made in `folder`."""
        ...


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
        """The vendor's software whose rules are followed here without the software, such as "PopTorch 3.4"; None: nothing is."""
        ...

    def open(self, job: JobSpec) -> Session: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Flag:
    """A command-line flag of run.py that speaks to one target; every target accepts it, since old scripts pass them all."""

    names: tuple[str, ...]
    help: str
    is_switch: bool = False
    is_list: bool = False
    chooses: bool = False  # given without a target, it means this one

    @property
    def dest(self) -> str:
        return next(name for name in self.names if name.startswith("--")).lstrip("-").replace("-", "_")


ExecutionMode = Literal["resident", "layer_pipelined", "weight_streaming"]


@dataclass(frozen=True)
class Hardware:
    """Published constants of a target's machine; what has no public source stays None."""

    name: str
    memory_bytes: int  # that a step can live in: on chip, or the device's memory
    modes: tuple[ExecutionMode, ...]
    sources: Mapping[str, str]  # field name: where its figure is from
    num_cores: int | None = None
    core_memory_bytes: int | None = None
    fabric: tuple[int, int] | None = None  # usable columns and rows of cores
    streaming_bytes: int | None = None  # memory beside the chip that weights can stream from
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
    commands: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # words that may follow the target's name, as in its vendor's scripts, and the flags that each stands for
    has_cluster: bool = False  # the keys of runconfig that speak to a vendor's cluster matter here
    kernels: Callable[[], KernelTable] | None = None  # None: whatever torch runs, it runs
    hardware: Callable[[], Hardware] | None = None  # what `plan` measures a model against
    environment: VendorEnvironment | None = None  # where its software lives, if not beside ours
    emulator: str | None = None  # the vendor's package that `--emulate` stands in for
    has_compiler: bool = False  # of the vendor's: torch.compile has no place there
    preference: int = 0  # of the targets that can run here, a command without one takes the highest; 0: never
    executions: tuple[str, ...] = ("resident",)  # values that runconfig.execution may have here, beside auto
    execution_note: str = (
        ""  # what to say instead where the vendor's software decides; "": others are refused
    )
    tensorflow_device: str | None = None  # what TensorFlow calls it, if it trains there by itself
