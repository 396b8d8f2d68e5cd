"""run(): the one entry of a user's run.py."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portwright.discover import peek_target
from portwright.errors import ExitStatus, PortwrightError, UnsupportedError, UserError
from portwright.job.hand_over import command_words, hand_over_if_elsewhere
from portwright.job.logs import Console
from portwright.job.params import Params, load_params
from portwright.job.signals import StopSignals
from portwright.job.user_schema import schema_of_namespace
from portwright.runtime.arguments import Arguments, parse_arguments, script_folder
from portwright.target import Backend, JobSpec, Session

if TYPE_CHECKING:
    from portwright.runtime.trainer import Outcome


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
    as_json = "--json" in argv
    parts = _Parts(model_fn, train_data_fn, eval_data_fn, default_params_fn, extra_args_parser_fn)
    _go_where_the_target_is(argv)
    with _own_stdout(as_json):
        document, lines = _attempt(argv, parts)
    if _process_number() == 0:
        _print_result([json.dumps(document, indent=2, default=str, allow_nan=False)] if as_json else lines)
    if document["status"] != ExitStatus.OK:
        raise SystemExit(document["status"])
    return document


def _go_where_the_target_is(argv: Sequence[str]) -> None:
    """Goes on in the target's own environment, if it has one; whatever is wrong with the command line is told there."""
    target, words = peek_target(argv), command_words(argv)
    if target is None or words is None:
        return

    def note(line: str) -> None:
        with suppress(UserError):  # an unknown --logging
            Console(level=_level(argv)).note(line)

    try:
        hand_over_if_elsewhere(target.environment, words, note)
    except PortwrightError as error:
        Console().error(str(error))
        raise SystemExit(int(error.status)) from error


@dataclass(frozen=True)
class _Parts:
    """What a user's run.py passes."""

    model_fn: Any
    train_data_fn: Any
    eval_data_fn: Any
    default_params_fn: Any
    extra_args_parser_fn: Any

    def check(self) -> None:
        for name in (
            "model_fn",
            "train_data_fn",
            "eval_data_fn",
            "default_params_fn",
            "extra_args_parser_fn",
        ):
            value = getattr(self, name)
            if not callable(value) and (value is not None or name == "model_fn"):
                raise UserError(f"run() got {name}={value!r}.", "Pass a function or a class.")


def _attempt(argv: Sequence[str], parts: _Parts) -> tuple[dict[str, Any], list[str]]:
    """The outcome as JSON and as lines for a person; a failure is told on stderr, and is an outcome too."""
    debug, console = "--debug" in argv, Console()
    try:
        console = Console(level=_level(argv))
        if _process_number() > 0:
            console = Console("ERROR", prefix=f"process {_process_number()}: ")
        with StopSignals(console.note) as signals:
            arguments = parse_arguments(argv, parts.extra_args_parser_fn)
            for line in arguments.notes:
                console.note(line)
            parts.check()
            outcome = _execute(arguments, parts, console, signals)
            return outcome.as_json(), outcome.lines
    except PortwrightError as error:
        failure = error
    except KeyboardInterrupt:
        failure = PortwrightError(
            "interrupted.", "What is in model_dir is whole; the same command goes on from there."
        )
        failure.status = ExitStatus.INTERRUPTED
    except Exception as error:
        failure = _blame(error)
        failure.__cause__ = error
    if debug:
        traceback.print_exception(failure)
    console.error(str(failure))
    told = {"status": int(failure.status), "error": failure.message, "cure": failure.cure}
    return {**failure.details, **told}, []


def _process_number() -> int:
    """This process among those of torchrun or srun, before torch is there to be asked."""
    name = "RANK" if "RANK" in os.environ else "SLURM_PROCID" if "SLURM_STEP_ID" in os.environ else ""
    number = os.environ.get(name, "0")
    return int(number) if number.isdecimal() else 0


def _print_result(lines: Sequence[str]) -> None:
    try:
        for line in lines:
            print(line)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


@contextmanager
def _own_stdout(wanted: bool) -> Iterator[None]:
    """Sends what anybody else prints, data workers and C code too, to stderr, so that stdout holds our document alone."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _execute(arguments: Arguments, parts: _Parts, console: Console, signals: StopSignals) -> Outcome:
    params = _load(arguments, parts)
    unused = () if arguments.target.has_cluster else params.runconfig.cluster_keys()
    if unused:
        console.note(f"runconfig.{', runconfig.'.join(unused)}: no effect on {arguments.target.name}.")
    model_dir = _model_dir(arguments, params)
    reason = None if arguments.flags.get("emulate") else arguments.target.why_not()
    if reason is not None:
        raise UnsupportedError(f"the target {arguments.target.name} cannot run here:", reason)
    # A target with an environment of its own has a compiler of its own, too.
    has_compiler = arguments.target.has_compiler or arguments.target.environment is not None
    if (params.runconfig.compile or arguments.compile_only) and not has_compiler:
        from portwright.runtime.compile import prepare_compile

        prepare_compile(arguments.compile_dir or model_dir / "compile", console)
    if arguments.compile_only and not has_compiler:
        params = params.with_runconfig(compile=True)
    backend: Backend = arguments.target.make_backend(arguments.flags, console.note)
    emulates = getattr(backend, "emulates", None)  # a target of another package may know nothing of it
    if emulates is not None:
        console.note(
            f"emulated: the rules of {emulates} on this machine's CPU; no {arguments.target.name} was used, and times say nothing."
        )
    job = JobSpec(
        params,
        parts.model_fn,
        parts.train_data_fn,
        parts.eval_data_fn,
        arguments.mode,  # type: ignore[arg-type]
        model_dir / "artifacts",
    )
    session: Session | None = None
    try:
        session = backend.world.agree_on_failure(lambda: backend.open(job))
        from portwright.runtime.modes import run_mode

        return run_mode(arguments, job, session, backend.world, model_dir, console, signals, emulates)
    finally:
        if session is not None:
            session.close()
        backend.close()


def _load(arguments: Arguments, parts: _Parts) -> Params:
    from portwright.discover import find_targets

    params = load_params(
        arguments.params,
        overrides=arguments.overrides,
        default_params_fn=parts.default_params_fn,
        user_schemas=_user_schemas(parts),
        target_sections=arguments.target.sections,
        known_target_sections=[name for target in find_targets().values() for name in target.sections],
        config=arguments.config,
    )
    params.values["runconfig"].update(arguments.extra)
    return params


def _user_schemas(parts: _Parts) -> Mapping[str, Any]:
    """PARAMS_SCHEMA of the module that set_defaults is in, or of the user's utils.py."""
    for name in (getattr(parts.default_params_fn, "__module__", None), "utils"):
        module = sys.modules.get(name) if name else None
        schema = schema_of_namespace(vars(module), module.__name__) if module is not None else None
        if schema is not None:
            return schema
    return {}


def _model_dir(arguments: Arguments, params: Params) -> Path:
    chosen = arguments.model_dir if arguments.model_dir is not None else params.runconfig.model_dir
    if chosen is None:
        return script_folder() / "model_dir"
    try:
        return Path(chosen).expanduser()
    except RuntimeError as error:  # ~somebody who has no home
        raise UserError(
            f"cannot use model_dir '{chosen}': {error}", "Choose another folder with --model_dir."
        ) from error


def _level(argv: Sequence[str]) -> str:
    """The level is needed before the command line is parsed, to report what is wrong with it."""
    for index, word in enumerate(argv):
        if word.startswith("--logging="):
            return word.partition("=")[2].upper()
        if word == "--logging" and index + 1 < len(argv):
            return argv[index + 1].upper()
    return "INFO"


def _blame(error: Exception) -> PortwrightError:
    """An exception that is not ours, most often from the user's model or data: say where, in one line."""
    text = " ".join(str(error).split()) or "no message"
    if "onnection closed by peer" in text or "onnection reset by peer" in text:
        return UserError("another process of this run has ended.", "Its own message says why.")
    frames = traceback.extract_tb(error.__traceback__)
    own = os.sep + "portwright" + os.sep
    models = own + "models" + os.sep
    place = next(
        (
            f
            for f in reversed(frames)
            if "site-packages" not in f.filename and (own not in f.filename or models in f.filename)
        ),
        frames[-1],
    )
    where = f"{place.filename}:{place.lineno} in {place.name}"
    return UserError(
        f"{type(error).__name__} at {where}: {text[:400]}", "Run again with --debug to see the traceback."
    )
