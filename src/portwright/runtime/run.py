"""run(): the one entry of a user's run.py."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portwright.errors import UnsupportedError, UserError
from portwright.job.arguments import Arguments, parse_arguments, script_folder
from portwright.job.blame import refusing_exits
from portwright.job.command import continue_in_target_environment, run_and_report
from portwright.job.data_paths import telling_missing_paths
from portwright.job.execution import check_execution
from portwright.job.logs import Console
from portwright.job.outcome import Outcome
from portwright.job.reads import check_overrides
from portwright.job.run_params import find_model_dir, load_run_params
from portwright.job.signals import StopSignals
from portwright.runtime.rank_watch import failing_together
from portwright.target import Backend, JobSpec, Session

if TYPE_CHECKING:
    from portwright.stream.roles import Role


def run(
    model_fn: Callable[..., Any],
    train_data_fn: Callable[[Any], Any] | None = None,
    eval_data_fn: Callable[[Any], Any] | None = None,
    default_params_fn: Callable[[dict[str, Any]], Any] | None = None,
    extra_args_parser_fn: Callable[..., Any] | None = None,
    *,
    argv: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Does what the command line asks of a model, and returns the outcome; ends the process when it is not good.

    `model_fn(params)` or `model_fn(params, device)` gives a PyTorchBaseModel, or an nn.Module that returns its loss;
    the data functions take params and give a DataLoader; `default_params_fn` changes params in place or returns them.
    """
    argv = sys.argv[1:] if argv is None else argv
    parts = Parts(model_fn, train_data_fn, eval_data_fn, default_params_fn, extra_args_parser_fn)
    continue_in_target_environment(argv)

    def work(console: Console, signals: StopSignals) -> Outcome:
        arguments = parse_arguments(argv, parts.extra_args_parser_fn)
        for line in arguments.notes:
            console.note(line)
        parts.check()
        with refusing_exits(lambda: f"the run of mode {arguments.mode}"):
            return _execute(arguments, parts, console, signals)

    return run_and_report(argv, work)


@dataclass(frozen=True)
class Parts:
    """What a user's run.py passes."""

    model_fn: Any
    train_data_fn: Any
    eval_data_fn: Any
    default_params_fn: Any
    extra_args_parser_fn: Any

    def check(self) -> None:
        for name, value in vars(self).items():
            if not callable(value) and (value is not None or name == "model_fn"):
                raise UserError(f"run() got {name}={value!r}.", "Pass a function or a class.")


def _execute(arguments: Arguments, parts: Parts, console: Console, signals: StopSignals) -> Outcome:
    params = load_run_params(arguments, parts.default_params_fn)
    check_overrides(params, (parts.model_fn, parts.train_data_fn, parts.eval_data_fn), script_folder())
    said = check_execution(params.runconfig, arguments.target)
    if said is not None:
        console.note(said)
    unused = [] if arguments.target.has_cluster else list(params.runconfig.cluster_keys())
    if len(arguments.target.executions) > 1 and "execution_strategy" in unused:
        unused.remove("execution_strategy")  # read by execution where it is auto
    if unused:
        console.note(f"runconfig.{', runconfig.'.join(unused)}: no effect on {arguments.target.name}.")
    model_dir = find_model_dir(arguments, params)
    job = JobSpec(
        params,
        parts.model_fn,
        parts.train_data_fn,
        parts.eval_data_fn,
        arguments.mode,  # type: ignore[arg-type]
        model_dir / "artifacts",
    )
    with telling_missing_paths(params, console.warning, always=arguments.validate_only):
        return _take_part(arguments, job, model_dir, console, signals)


def _take_part(
    arguments: Arguments, job: JobSpec, model_dir: Path, console: Console, signals: StopSignals
) -> Outcome:
    """What this process does among the tasks of its launch."""
    role = _take_role(arguments) if arguments.stream_data else None
    if role is not None and not role.is_coordinator:
        from portwright.runtime.stream_batches import serve

        outcome = Outcome(arguments.mode, arguments.target.name, str(model_dir), is_shown=False)
        return serve(role, job, model_dir, console.note, signals, outcome)
    if role is None:
        return _carry_out(arguments, job, model_dir, console, signals)
    from portwright.runtime.stream_batches import BatchStream

    # Made before anything that may fail in this process alone: the workers wait for it, and it ends them.
    stream = BatchStream(role, model_dir, console.note)
    try:
        if arguments.target.has_cluster and not arguments.flags.get("on_cpu"):
            console.note(
                f"{arguments.target.name}'s own software streams the data: the other tasks of this launch only wait."
            )
        outcome = _carry_out(arguments, replace(job, stream=stream), model_dir, console, signals)
        stream.finish(outcome)
        return outcome
    finally:
        stream.close(lambda: signals.requested)


def _carry_out(
    arguments: Arguments, job: JobSpec, model_dir: Path, console: Console, signals: StopSignals
) -> Outcome:
    """What the command line asks, in the process that does it."""
    reason = None if arguments.flags.get("emulate") else arguments.target.why_not()
    if reason is not None:
        raise UnsupportedError(f"the target {arguments.target.name} cannot run here:", reason)
    # A target with an environment of its own has a compiler of its own, too.
    has_compiler = arguments.target.has_compiler or arguments.target.environment is not None
    if (job.params.runconfig.compile or arguments.compile_only) and not has_compiler:
        from portwright.runtime.dry_run import prepare_compile

        prepare_compile(arguments.compile_dir or model_dir / "compile", console)
    if arguments.compile_only and not has_compiler:
        job = replace(job, params=job.params.with_runconfig(compile=True))
    backend: Backend = arguments.target.make_backend(arguments.flags, console.note)
    emulates = getattr(backend, "emulates", None)  # a target of another package may lack it
    if emulates is not None:
        console.note(
            f"emulated: the rules of {emulates} on this machine's CPU; no {arguments.target.name} was used, and times say nothing."
        )
    session: Session | None = None
    try:
        with failing_together(backend.world):
            session = backend.world.agree_on_failure(lambda: backend.open(job))
            from portwright.runtime.modes import run_mode

            outcome = run_mode(arguments, job, session, backend.world, model_dir, console, signals, emulates)
        execution = getattr(backend, "execution", None)  # of backends that have a choice
        if execution is not None:
            measure = getattr(session, "measured", dict)  # further numbers of a session, such as memory
            outcome.more["execution"] = execution.as_json({**outcome.rates, **measure()})
        return outcome
    finally:
        if session is not None:
            session.close()
        backend.close()


def _take_role(arguments: Arguments) -> Role:
    """What this process is among the tasks of its launch, of which only the first one trains."""
    if arguments.mode not in ("train", "train_and_eval") or arguments.validate_only or arguments.compile_only:
        raise UserError(
            "--stream_data is for training.",
            "Leave it out, and start one process: evaluations, validation and compilation read their data themselves.",
        )
    from portwright.stream.roles import read_role, stand_alone

    role = read_role()
    if role.is_coordinator:
        stand_alone()
    return role
