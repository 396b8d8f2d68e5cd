"""run(): the one entry of a user's run.py."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portwright.errors import ExitStatus, PortwrightError, UnsupportedError, UserError
from portwright.job.logs import Console
from portwright.job.params import Params, load_params
from portwright.job.signals import StopSignals
from portwright.job.user_schema import schema_of_namespace
from portwright.runtime.arguments import Arguments, parse_arguments
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
    debug = "--debug" in argv
    console = Console(level=_level(argv))
    with StopSignals(console.note) as signals:
        try:
            arguments = parse_arguments(argv, extra_args_parser_fn)
            for line in arguments.notes:
                console.note(line)
            parts = _Parts(model_fn, train_data_fn, eval_data_fn, default_params_fn)
            outcome = _execute(arguments, parts, console, signals)
        except PortwrightError as error:
            _fail(error, console, debug)
        except KeyboardInterrupt:
            console.error("interrupted; the last checkpoint is whole, and the same command resumes from it.")
            raise SystemExit(int(ExitStatus.INTERRUPTED)) from None
        except Exception as error:
            if debug or isinstance(error, SystemExit):
                raise
            _fail_in_user_code(error, console)
    if outcome.is_shown and arguments.json:
        print(json.dumps(outcome.as_json(), indent=2, default=str, allow_nan=False))
    elif outcome.is_shown:
        for line in outcome.lines:
            print(line)
    if outcome.status != ExitStatus.OK:
        raise SystemExit(int(outcome.status))
    return outcome.as_json()


class _Parts:
    def __init__(self, model_fn: Any, train_data_fn: Any, eval_data_fn: Any, default_params_fn: Any) -> None:
        if not callable(model_fn):
            raise UserError(
                f"run() got model_fn={model_fn!r}.", "Pass the class or function that makes the model."
            )
        self.model_fn, self.train_data_fn, self.eval_data_fn = model_fn, train_data_fn, eval_data_fn
        self.default_params_fn = default_params_fn


def _execute(arguments: Arguments, parts: _Parts, console: Console, signals: StopSignals) -> Outcome:
    params = _load(arguments, parts)
    unused = () if arguments.target.has_cluster else params.runconfig.cluster_keys()
    if unused:
        console.note(f"runconfig.{', runconfig.'.join(unused)}: no effect on {arguments.target.name}.")
    model_dir = _model_dir(arguments, params)
    reason = arguments.target.why_not()
    if reason is not None:
        raise UnsupportedError(f"the target {arguments.target.name} cannot run here:", reason)
    if params.runconfig.compile or arguments.compile_only:
        from portwright.runtime.compile import prepare_compile

        prepare_compile(arguments.compile_dir or model_dir / "compile", console)
    if arguments.compile_only:
        params = params.with_runconfig(compile=True)
    backend: Backend = arguments.target.make_backend(arguments.flags, console.note)
    if not backend.world.is_main:
        console = Console("ERROR", prefix=f"process {backend.world.rank}: ")
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

        return run_mode(arguments, job, session, backend.world, model_dir, console, signals)
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
    chosen = arguments.model_dir or params.runconfig.model_dir
    return Path(chosen) if chosen is not None else _script_folder() / "model_dir"


def _script_folder() -> Path:
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    return Path(path).resolve().parent if path else Path.cwd()


def _level(argv: Sequence[str]) -> str:
    """The level is needed before the command line is parsed, to report what is wrong with it."""
    for index, word in enumerate(argv):
        if word.startswith("--logging="):
            return word.partition("=")[2].upper()
        if word == "--logging" and index + 1 < len(argv):
            return argv[index + 1].upper()
    return "INFO"


def _fail(error: PortwrightError, console: Console, debug: bool) -> None:
    if debug:
        traceback.print_exception(error)
    console.error(str(error))
    raise SystemExit(int(error.status)) from None


def _fail_in_user_code(error: Exception, console: Console) -> None:
    """An exception that is not ours, most often from the user's model or data: say where, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    own = os.sep + "portwright" + os.sep
    place = (
        next(
            (f for f in reversed(frames) if "site-packages" not in f.filename and own not in f.filename), None
        )
        or frames[-1]
    )
    text = " ".join(str(error).split()) or "no message"
    console.error(
        f"{type(error).__name__} at {place.filename}:{place.lineno} in {place.name}: {text[:400]} "
        "Run again with --debug to see the traceback."
    )
    raise SystemExit(int(ExitStatus.USAGE)) from None
