"""Cerebras CS systems, through the vendor's own SDK (`cerebras.pytorch`).

What runs so far is the SDK's CPU backend (`--on_cpu`): the vendor owns the model's construction, the loader, tracing and the
optimizer there just as on the wafer, so it is what our seam was cut along. The SDK pins torch 2.4 and lives in an environment
of its own.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from portwright.errors import NonFiniteError, UnsupportedError, UserError
from portwright.job.vendor_env import find_known
from portwright.target import Event, JobSpec, Shard, Stretch
from portwright.targets.csx.environment import ENVIRONMENT

if TYPE_CHECKING:
    import torch

    from portwright.data.loader import ResumableLoader


class CsxBackend:
    """The SDK's backend, of which a process can have only one."""

    def __init__(self, flags: Mapping[str, Any], note: Callable[[str], None]) -> None:
        if not ENVIRONMENT.is_here():
            known = find_known(ENVIRONMENT)
            raise UnsupportedError(
                f"the Cerebras SDK is not in {sys.executable}, and this call stands inside another program.",
                f"Call run() in a process of {known.python if known else 'an environment that has it'}.",
            )
        if not flags.get("on_cpu"):
            raise UnsupportedError(
                "this release drives the Cerebras SDK on its CPU backend only, not a CS system.",
                "Add --on_cpu.",
            )
        from portwright.runtime.world import Launch, World

        self.world = World(Launch(), "cpu", None)
        self._note = note

    def open(self, job: JobSpec) -> CsxSession:
        return CsxSession(job, self._note)

    def close(self) -> None:
        self.world.close()


class CsxSession:
    """A model in the SDK's hands; values come back only through its closures, and state only at its checkpoints."""

    def __init__(self, job: JobSpec, note: Callable[[str], None]) -> None:
        import cerebras.pytorch as cstorch

        from portwright.runtime.base_model import make_model
        from portwright.runtime.rng import seed_all

        self._cstorch, self._job, self._note = cstorch, job, note
        folder = job.artifact_dir or tempfile.mkdtemp(prefix="portwright-csx-")
        backend = (
            cstorch.backend() if _has_backend(cstorch) else cstorch.backend("CPU", artifact_dir=str(folder))
        )
        seed_all(job.params.runconfig.seed)
        with backend.device:
            self._module = make_model(job.model_fn, job.params.values, None)
        self._compiled = cstorch.compile(self._module, backend)
        self._position: dict[str, Any] | None = None
        self._optimizer: Any = None
        if job.mode in ("train", "train_and_eval"):
            self._optimizer = _make_optimizer(cstorch, self._module.net, job)
            self._schedule = job.params.optimizer.schedule
        self._num_samples = 0

    def steps_in(self, num_epochs: int) -> int | None:
        num_batches = self._make_loader("train_input").num_batches
        return None if num_batches is None else num_batches * num_epochs

    @property
    def steps_per_call(self) -> int:
        return 1

    def sample_batches(self, name: str, num_batches: int) -> list[Any]:
        return [batch for batch, _ in zip(self._make_loader(name), range(num_batches), strict=False)]

    def _make_loader(self, name: str) -> ResumableLoader:
        from portwright.data.loader import ResumableLoader

        trains = name == "train_input"
        data_fn = self._job.train_data_fn if trains else self._job.eval_data_fn
        if data_fn is None:
            raise UserError(f"mode {self._job.mode} needs a function for {name}.", "Pass it to run().")
        loader = ResumableLoader(
            data_fn(self._job.params.values), name=name, seed=self._job.params.runconfig.seed, repeat=trains
        )
        if trains and self._position is not None:
            loader.seek(self._position)
        return loader

    def train(self, stretch: Stretch) -> Iterator[Event]:
        """The SDK runs a stretch as one executor, which starts its loader anew: so the loader starts at our position."""
        cstorch, optimizer, compiled = self._cstorch, self._optimizer, self._compiled
        from portwright.runtime.base_model import split_loss

        self._module.train()
        losses: list[float] = []
        start = self._make_loader("train_input")
        position, batch_size = start.position(), start.batch_size or 0
        num_steps = stretch.last_step - stretch.first_step

        @cstorch.trace  # type: ignore[untyped-decorator]
        def step_once(batch: Any) -> Any:
            loss, _ = split_loss(compiled(batch))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            return loss

        @cstorch.step_closure  # type: ignore[untyped-decorator]
        def keep(loss: torch.Tensor) -> None:
            losses.append(loss.item())

        executor = cstorch.utils.data.DataExecutor(
            cstorch.utils.data.DataLoader(lambda: self._make_loader("train_input")),
            num_steps=num_steps,
            checkpoint_steps=stretch.boundary_steps or None,
        )
        step, batches = stretch.first_step, iter(executor)
        batch = next(batches, None)
        while batch is not None:
            for group in optimizer.param_groups:
                group["lr"] = self._schedule(step)
            keep(step_once(batch))
            step += 1
            # Closures run when the next batch is asked for: only then are this step's loss and state there to be read.
            batch = next(batches, None)
            stopping = stretch.should_stop()
            if self._job.params.runconfig.check_loss_values and not math.isfinite(losses[-1]):
                raise NonFiniteError(
                    f"the loss is {losses[-1]} at step {step}.",
                    "Lower the learning rate, or look at the data.",
                )
            self._num_samples += batch_size
            if stretch.is_logged(step) or stopping:
                values = {
                    "loss": losses[-1],
                    "learning_rate": self._schedule(step - 1),
                    "num_samples": float(self._num_samples),
                }
                yield Event("log", step, values, tuple(losses))
                losses.clear()
            if stretch.is_boundary(step) or stopping:
                # The SDK fetches ahead, so the position follows from the steps done and not from the loader.
                self._position = _advance(position, step - stretch.first_step, start.num_batches)
                yield Event("boundary", step)
            if stopping:
                return

    def evaluate(
        self, num_steps: int | None, on_step: Callable[[int], None] | None = None
    ) -> dict[str, float]:
        cstorch, compiled = self._cstorch, self._compiled
        import torch

        from portwright.runtime import metrics
        from portwright.runtime.base_model import split_loss

        self._module.eval()
        metrics.reset_all_metrics()
        total, num_samples = 0.0, 0
        loader = self._make_loader("eval_input")

        @cstorch.trace  # type: ignore[untyped-decorator]
        def forward(batch: Any) -> Any:
            return split_loss(compiled(batch))[0]

        executor = cstorch.utils.data.DataExecutor(
            cstorch.utils.data.DataLoader(lambda: self._make_loader("eval_input")),
            num_steps=num_steps or loader.num_batches,
        )
        with torch.no_grad():
            for index, batch in enumerate(executor):
                size = next(iter(_tensors(batch))).shape[0]
                total += float(forward(batch)) * size
                num_samples += size
                if on_step is not None:
                    on_step(index + 1)
        self._module.train()
        return {"loss": total / num_samples, **metrics.compute_all_metrics(say=self._note)}

    def predict(self, num_steps: int | None) -> Iterator[Mapping[str, torch.Tensor]]:
        raise UnsupportedError(
            "predict is not supported on CSX.", "Use --mode predict on CPU or GPU with the same checkpoint."
        )

    def state(self) -> Iterator[Shard]:
        for name, tensor in self._module.net.state_dict().items():
            yield Shard(f"model/{name}", tensor.detach().cpu().clone())
        if self._optimizer is None:
            return
        names = {parameter: name for name, parameter in self._module.net.named_parameters()}
        for parameter, state in self._optimizer.state.items():
            for key, value in state.items():
                yield Shard(f"optimizer/{names[parameter]}/{key}", value.detach().cpu().clone())

    def counters(self) -> dict[str, Any]:
        position = self._position or self._make_loader("train_input").position()
        return {"data": position, "num_samples": self._num_samples, "scaler": None, "world_size": 1}

    def load_state(self, shards: Iterable[Shard], counters: Mapping[str, Any] | None) -> None:
        import torch

        from portwright.runtime.checkpoint import match_names

        own = self._module.net.state_dict()
        parameters = dict(self._module.net.named_parameters())
        for shard in match_names(shards, own, self._note):
            kind, _, name = shard.name.partition("/")
            if kind == "model":
                with torch.no_grad():
                    own[name].copy_(shard.tensor)
            elif kind == "optimizer" and counters is not None and self._optimizer is not None:
                parameter, _, key = name.rpartition("/")
                state = self._optimizer.state[parameters[parameter]]
                if key not in state:
                    raise UserError(
                        f"the checkpoint has the optimizer state '{key}', and the SDK's {type(self._optimizer).__name__} keeps {', '.join(state) or 'none'}.",
                        "A CSX run resumes from its own checkpoints; take the weights alone with --is_pretrained_checkpoint.",
                    )
                state[key].copy_(shard.tensor)
        if counters is not None:
            self._position = dict(counters["data"])
            self._num_samples = int(counters["num_samples"])

    def close(self) -> None:
        pass


def _has_backend(cstorch: Any) -> bool:
    from cerebras.pytorch.backend import current_backend

    return current_backend(raise_exception=False, raise_warning=False) is not None


def _make_optimizer(cstorch: Any, net: torch.nn.Module, job: JobSpec) -> Any:
    """The SDK's optimizer of the same name, with those settings that it has."""
    import inspect

    from portwright.runtime.param_groups import make_param_groups

    spec = job.params.optimizer
    for key, usual in (
        ("grad_accum_steps", 1),
        ("loss_scaling_factor", 1.0),
        ("max_gradient_norm", None),
        ("max_gradient_value", None),
    ):
        if getattr(spec, key) != usual:
            raise UnsupportedError(
                f"optimizer.{key}={getattr(spec, key)} is not supported on CSX yet.", f"Leave {key} out."
            )
    kind = getattr(cstorch.optim, spec.optimizer_type)
    settings = spec.model_dump()
    for whole, parts in (
        ("betas", ("beta1", "beta2")),
        ("etas", ("eta1", "eta2")),
        ("step_sizes", ("step_size_min", "step_size_max")),
    ):
        if all(part in settings for part in parts):
            settings[whole] = tuple(settings[part] for part in parts)
    settings["nesterov"] = settings.get("use_nesterov", False)
    accepted = set(inspect.signature(kind.__init__).parameters) - {"self", "params", "lr", "weight_decay"}
    options = {name: value for name, value in settings.items() if name in accepted}
    groups = [
        {"params": group["params"], "weight_decay": group["weight_decay"]}
        for group in make_param_groups(net, spec)
    ]
    return kind(groups, lr=spec.schedule(0), **options)


def _advance(position: Mapping[str, Any], num_done: int, num_batches: int | None) -> dict[str, Any]:
    """Where the data stand after so many batches, of which the loader itself knows nothing."""
    if num_batches is None:
        raise UnsupportedError(
            "CSX needs training data whose length is known.",
            "Return a DataLoader over a data set with a length.",
        )
    epoch, batch = divmod(position["epoch"] * num_batches + position["batch"] + num_done, num_batches)
    return {
        **position,
        "epoch": epoch,
        "batch": batch,
        "samples": position["samples"] + num_done * (position["batch_size"] or 0),
    }


def _tensors(batch: Any) -> Iterator[Any]:
    from portwright.runtime.batches import walk_tensors

    for _, tensor in walk_tensors(batch):
        yield tensor
