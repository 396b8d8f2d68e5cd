"""A session in which the SDK constructs the model, loads, traces and optimizes, here as on the wafer."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import cerebras.pytorch as cstorch
import torch

from portwright.base_model import LossModule, make_model, split_loss
from portwright.errors import NonFiniteError, PortwrightError, UnsupportedError, UserError
from portwright.runtime import metrics
from portwright.runtime.compiled_session import count_updates, take_weights
from portwright.target import Event, JobSpec, Shard, Stretch
from portwright.targets.csx.cluster import ENVIRONMENT, ClusterSettings, explain_cluster_error
from portwright.targets.csx.feed import advance, make_batches, make_feed
from portwright.targets.csx.optimizers import load_state, read_state
from portwright.targets.csx.refusal import SourceLines, explain
from portwright.targets.csx.step import Update, choose_precision, metrics_through_closures
from portwright.watching.random_states import capture_rng, restore_rng, seed_all
from portwright.watching.trees import walk_tensors

_CPU = torch.device("cpu")


class CsxSession:
    """Trains and evaluates through the SDK, which gives values only in closures and state only at checkpoints."""

    steps_per_call = 1

    def __init__(
        self,
        job: JobSpec,
        backend: Any,
        note: Callable[[str], None],
        flags: Mapping[str, Any],
        settings: ClusterSettings,
    ) -> None:
        self._job, self._backend, self._note = job, backend, note
        self._settings, self._flags = settings, flags
        self._traces = bool(backend.is_csx)
        autocast = choose_precision(cstorch, job.params, note, traces=self._traces)
        self._legalised: Any = None
        self._module = self._make_module()
        self._compiled = cstorch.compile(self._module, backend)
        self._position: dict[str, Any] | None = None
        self._num_samples, self._num_updates = 0, 0
        self._update: Update | None = None
        self._autocast = autocast
        self._kept: list[Shard] | None = None  # the state at a cluster's last checkpoint step
        if job.mode in ("train", "train_and_eval"):
            spec = job.params.optimizer
            self._update = Update(cstorch, self._module, spec, traces=self._traces, autocast=autocast)
            self._num_merged = spec.grad_accum_steps if self._traces else 1
            if self._num_merged > 1:
                note(
                    f"grad_accum_steps: {self._num_merged} batches become one of {self._num_merged} times the size, which gives the same "
                    "update where the loss is a mean over samples; the compiler splits it into micro-batches."
                )

    def _make_module(self) -> LossModule:
        """Makes the model on the SDK's device, so that a large model's weights are never in host memory."""
        try:
            return self._make_module_once()
        except AssertionError as error:
            if not _is_host_tensor(error):
                raise
        self._note(
            "the model makes tensors on the host while it is built, so all its weights are initialised there first."
        )
        cstorch.backends.csx.debug.lazy_initialization = False
        return self._make_module_once()

    def _make_module_once(self) -> LossModule:
        seed_all(self._job.params.runconfig.seed)
        with self._backend.device:
            module = make_model(self._job.model_fn, self._job.params.values, None)
            self._legalised = self._legalise(module) if self._flags.get("legalise") else None
        return module

    def _legalise(self, module: LossModule) -> Any:
        from portwright.layers.legal import legalise

        legalised = legalise(module.net, "csx")
        for swap in legalised.swaps:
            self._note(
                f"legalise: {swap.module or '(model)'}: {swap.what} -> {swap.form}, because {swap.reason}"
            )
        return legalised

    def _call(self, batch: Any) -> Any:
        """Calls the user's model; with --legalise its loss outside of the network is redirected too."""
        if self._legalised is None:
            return self._compiled(batch)
        with self._legalised.redirecting():
            return self._compiled(batch)

    # -- training ------------------------------------------------------------------------------------------

    def steps_in(self, num_epochs: int) -> int | None:
        num_batches = self._loader("train_input").num_batches
        return (
            None
            if num_batches is None
            else num_batches * num_epochs // self._job.params.optimizer.grad_accum_steps
        )

    def sample_batches(self, name: str, num_batches: int) -> list[Any]:
        return [batch for batch, _ in zip(self._loader(name), range(num_batches), strict=False)]

    def _loader(self, name: str) -> Any:
        return make_feed(self._job, name, self._position).loader()

    def _executor(self, name: str, num_steps: int, checkpoint_steps: Any = None, num_merged: int = 1) -> Any:
        stream = self._job.stream if self._backend.is_cpu else None
        channel = None if stream is None else stream.channel(name, self._job)
        feed = make_feed(self._job, name, self._position, num_merged, channel)
        loader = cstorch.utils.data.DataLoader(make_batches, feed)
        return cstorch.utils.data.DataExecutor(loader, num_steps=num_steps, checkpoint_steps=checkpoint_steps)

    def train(self, stretch: Stretch) -> Iterator[Event]:
        body = self._updater().make_step(self._call)
        try:
            yield from self._train(stretch, body)
        except Exception as error:
            raise self._explained(error, SourceLines(self._backend, body.__code__), "train") from error

    def _train(self, stretch: Stretch, body: Callable[[Any], Any]) -> Iterator[Event]:
        """Runs a stretch as one executor of the SDK, which starts its loader again; so the loader starts at our position."""
        update = self._updater()
        self._module.train()
        seen: list[dict[str, float]] = []
        losses: list[float] = []
        start = self._loader("train_input")
        position, batch_size = (
            start.position(),
            (start.batch_size or 0) * self._job.params.optimizer.grad_accum_steps,
        )
        per_update = update.num_accumulated
        update.start_at(stretch.first_step)
        step_once = cstorch.trace(body)

        @cstorch.step_closure  # type: ignore[untyped-decorator]
        def keep(outputs: Mapping[str, torch.Tensor]) -> None:
            if outputs:
                seen.append({name: tensor.item() for name, tensor in outputs.items()})
                losses.append(seen[-1]["loss"])

        @cstorch.checkpoint_closure  # type: ignore[untyped-decorator]
        def keep_state() -> None:
            self._kept = list(self._read_state())

        executor = self._executor(
            "train_input",
            (stretch.last_step - stretch.first_step) * per_update,
            _checkpoint_schedule(stretch, per_update),
            self._num_merged,
        )
        step, batches = stretch.first_step, iter(executor)
        batch = next(batches, None)
        update.set_learning_rate(step)
        while batch is not None:
            keep(step_once(batch))
            if self._traces:
                keep_state()
            # Closures run when the next batch is asked for: only then can this step's loss and state be read.
            batch = next(batches, None)
            if not update.is_due:
                continue
            step += 1
            self._num_updates += 1
            update.set_learning_rate(step)
            stopping = stretch.should_stop()
            self._check_loss(losses[-1], step)
            self._num_samples += batch_size
            if stretch.is_logged(step) or stopping:
                yield Event("log", step, self._logged(seen[-1], step), tuple(losses))
                seen.clear()
                losses.clear()
            if stretch.is_boundary(step) or stopping:
                done = (step - stretch.first_step) * self._job.params.optimizer.grad_accum_steps
                self._position = advance(position, done, start.num_batches)
                yield Event("boundary", step)
            if stopping:
                return

    def _explained(self, error: Exception, lines: SourceLines, phase: str) -> Exception:
        """An SDK error explained by its cluster or by the user's line; else the error itself."""
        if isinstance(error, PortwrightError) or not self._traces:
            return error
        known = explain_cluster_error(error, self._settings)
        refusal = explain(error, lines, self._module.net) if known is None else None
        if refusal is None:
            return known or error
        if refusal.file and "/site-packages/cerebras/" in refusal.file:
            return UnsupportedError(
                f"the SDK {sdk_version()} failed in its own code, {refusal.file}:{refusal.line}: {refusal.reason}",
                "Change what the step asks of it (optimizer, schedule, loss scaling), and see --debug.",
            )
        place = f"{refusal.file}:{refusal.line}" if refusal.file else "a line that the SDK does not name"
        where = "" if refusal.phase == "loader" else f" at {place}"
        module = f", module {refusal.module}" if refusal.module else ""
        gradient = " (in its gradient)" if refusal.phase == "backward" else ""
        named = ("op", "module", "file", "line", "reason", "cure", "phase")
        refused = {name: getattr(refusal, name) for name in named}
        verdict = {"accepted": False, "sdk": sdk_version(), "step": phase, "refused": [refused]}
        return UnsupportedError(
            f"Cerebras's front end (SDK {sdk_version()}) refuses {refusal.op}{where}{module}{gradient}: {refusal.reason}",
            refusal.cure,
            details={"refused": [refused], "validated": verdict},
        )

    def _updater(self) -> Update:
        if self._update is None:
            raise UserError(f"mode {self._job.mode} does not train.", "Use --mode train.")
        return self._update

    def _check_loss(self, loss: float, step: int) -> None:
        if self._job.params.runconfig.check_loss_values and not math.isfinite(loss):
            raise NonFiniteError(
                f"the loss is {loss} at step {step}.", "Lower the learning rate, or look at the data."
            )

    def _logged(self, outputs: Mapping[str, float], step: int) -> dict[str, float]:
        update = self._updater()
        values = {
            **outputs,
            "learning_rate": update.learning_rate(step - 1),
            "num_samples": float(self._num_samples),
        }
        if update.scaler is not None:
            values["loss_scale"] = float(update.scaler.current_scale())
            values["skipped_updates"] = float(update.scaler.num_skipped)
        return values

    # -- evaluation ----------------------------------------------------------------------------------------

    def evaluate(
        self, num_steps: int | None, on_step: Callable[[int], None] | None = None
    ) -> dict[str, float]:
        """Loss and metrics; losses are weighted by the samples of their batch, as on all targets."""
        self._module.eval()
        metrics.reset_all_metrics()
        sums = [0.0, 0]
        forward = cstorch.trace(self._make_forward())

        @cstorch.step_closure  # type: ignore[untyped-decorator]
        def keep(loss: torch.Tensor, size: int) -> None:
            sums[0] += loss.item() * size
            sums[1] += size

        steps = num_steps or self._loader("eval_input").num_batches
        if not steps:
            raise UserError(
                "the evaluation saw no sample, or the data have no length.",
                "Look at eval_input and set runconfig.eval_steps.",
            )
        with torch.no_grad(), metrics_through_closures(cstorch, self._traces):
            for index, batch in enumerate(self._executor("eval_input", steps)):
                keep(forward(batch), next(tensor.shape[0] for _, tensor in walk_tensors(batch)))
                if on_step is not None:
                    on_step(index + 1)
        self._module.train()
        return {"loss": sums[0] / sums[1], **metrics.compute_all_metrics(say=self._note)}

    def _make_forward(self) -> Callable[[Any], Any]:
        def forward(batch: Any) -> Any:
            with nullcontext() if self._autocast is None else self._autocast():
                return split_loss(self._call(batch))[0]

        return forward

    def predict(self, num_steps: int | None) -> Iterator[Mapping[str, torch.Tensor]]:
        raise UnsupportedError(
            "predict is not supported on CSX.", "Use --mode predict on CPU or GPU with the same checkpoint."
        )

    # -- state ---------------------------------------------------------------------------------------------

    def state(self) -> Iterator[Shard]:
        yield from self._kept if self._kept is not None else self._read_state()

    def _read_state(self) -> Iterator[Shard]:
        for name, tensor in self._module.net.state_dict().items():
            yield Shard(f"model/{name}", self._to_host(tensor))
        if self._update is not None:
            names: dict[torch.Tensor, str] = {p: name for name, p in self._module.net.named_parameters()}
            skipped = self._update.scaler.num_skipped if self._update.scaler is not None else 0
            spec, done = self._job.params.optimizer, self._num_updates - skipped
            for name, tensor in read_state(self._update.optimizer, names, spec, done):
                yield Shard(name, self._to_host(tensor))
        for name, tensor in capture_rng(_CPU).items():
            yield Shard(f"rng/0/{name}", tensor)

    def _to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        host: torch.Tensor = self._backend.to_cpu(tensor.detach()) if self._traces else tensor.detach()
        return host.clone()

    def counters(self) -> dict[str, Any]:
        scaler = self._update.scaler if self._update is not None else None
        return {
            "data": self._position or self._loader("train_input").position(),
            "num_samples": self._num_samples,
            "num_updates": self._num_updates,
            "scaler": None if scaler is None else scaler.state_dict(),
            "world_size": 1,
        }

    def load_state(self, shards: Iterable[Shard], counters: Mapping[str, Any] | None) -> None:
        own = self._module.net.state_dict()
        # States that only the SDK's optimizers have are kept under `csx`.
        optimizer, generators = take_weights(shards, own, self._note, optimizer_kinds=("optimizer", "csx"))
        self._kept = None
        if counters is None or self._update is None:
            return
        load_state(self._update.optimizer, dict(self._module.net.named_parameters()), optimizer)
        self._position = dict(counters["data"])
        self._num_samples = int(counters["num_samples"])
        self._num_updates = int(counters.get("num_updates", count_updates(optimizer)))
        if self._update.scaler is not None and counters.get("scaler"):
            self._update.scaler.load_state_dict(counters["scaler"])
        if generators:
            restore_rng(generators, _CPU)

    def close(self) -> None:
        pass


def sdk_version() -> str:
    return str(getattr(cstorch, "__version__", ENVIRONMENT.version))


def _is_host_tensor(error: AssertionError) -> bool:
    """Whether the SDK's bare assertion means that a parameter or buffer was not made on its device."""
    return traceback.extract_tb(error.__traceback__)[-1].name in ("buffer_hook", "parameter_hook")


def _checkpoint_schedule(stretch: Stretch, per_update: int) -> Any:
    """A stretch's boundaries as the SDK's schedule, counted from the stretch's start; the last step is one."""
    from cerebras.pytorch.utils.data.utils import Schedule

    num_steps = (stretch.last_step - stretch.first_step) * per_update
    every = stretch.boundary_steps or num_steps
    first = (every - stretch.first_step % every) * per_update if stretch.boundary_steps else num_steps
    start = min(first, num_steps) - 1
    step = every * per_update if stretch.boundary_steps else every
    return Schedule([Schedule.Range(start=start, end=num_steps, step=step, include_last=True)])
