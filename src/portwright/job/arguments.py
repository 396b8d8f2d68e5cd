"""The command line of run.py: the flags of the model zoo, old and new, in one parser."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from portwright.discover import find_target, find_targets, get_target
from portwright.errors import UserError, suggest
from portwright.target import Flag, Target

MODES = ("train", "eval", "train_and_eval", "eval_all", "predict")

EPILOG = """examples:
  python run.py CPU --mode train --params configs/params.yaml
  python run.py CPU --mode train --params configs/params.yaml --validate_only
  python run.py GPU --mode train_and_eval --params configs/params.yaml -D optimizer.learning_rate=0.01
  python run.py CPU --mode eval --params configs/params.yaml --checkpoint_path model_dir/checkpoint_1000
  torchrun --nproc_per_node 2 run.py CPU --mode train --params configs/params.yaml

The same model_dir continues where it stopped. Exit status: 0 good, 1 unsupported, 2 bad input,
3 non-finite loss, 85 saved and wants to be requeued, 130 interrupted."""


@dataclass(frozen=True)
class CommandStyle:
    """How the command lines of the frameworks differ."""

    epilog: str
    why_not: Callable[[Target], str | None]  # why a target cannot run here, to choose a default target
    has_torch_processes: bool  # the flags that speak to torch.distributed


PYTORCH_STYLE = CommandStyle(EPILOG, lambda target: target.why_not(), has_torch_processes=True)


@dataclass(frozen=True)
class Arguments:
    """A parsed command line."""

    target: Target
    mode: str
    params: Path
    overrides: tuple[str, ...]
    flags: Mapping[str, Any]  # everything else, by name
    extra: Mapping[str, Any]  # what the user's own parser added
    notes: tuple[str, ...]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.flags[name]
        except KeyError:
            raise AttributeError(name) from None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message[:1].lower()}{message[1:]}.", f"See '{self.prog} --help'.")


def parse_arguments(
    argv: Sequence[str],
    extra_args_parser_fn: Callable[..., Any] | None = None,
    style: CommandStyle = PYTORCH_STYLE,
) -> Arguments:
    """Reads `TARGET --flags` and the older form without a target."""
    targets = find_targets()
    rest, notes = list(argv), []
    target: Target | None = None
    if rest and not rest[0].startswith("-"):
        target = get_target(rest.pop(0))
    second = next((a for a in rest[:1] if find_target(a) is not None), None)
    if target is not None and second is not None:
        raise UserError(f"two targets are given, {target.name} and {second}.", "Give one.")
    if target is not None and rest[:1] in (["pipeline"], ["pipelined"], ["weight_streaming"]):
        notes.append(
            f"'{rest.pop(0)}' is accepted for the sake of release 1.8 and has no effect on {target.name}."
        )
    if target is not None and rest[:1] and rest[0] in target.commands:
        rest[:1] = target.commands[rest[0]]
    elif target is not None and target.commands and rest[:1] and not rest[0].startswith("-"):
        raise UserError(f"unknown command '{rest[0]}' of {target.name}.", suggest(rest[0], target.commands))
    parser = make_parser(target, Path(sys.argv[0]).name or "run.py", style)
    own = _add_user_flags(parser, extra_args_parser_fn, target)
    parsed, unknown = parser.parse_known_args(rest)
    if unknown:
        _reject(unknown, parser)
    if target is None:
        target, why = _choose_target(parsed, style)
        notes.append(f"no target given: using {target.name} ({why}).")
    given = vars(parsed)
    overrides = [*given.pop("override")]
    overrides += [
        f"runconfig.{name}={given[name]}"
        for name in ("max_steps", "eval_steps", "num_epochs")
        if given[name] is not None
    ]
    if given.get("emulate") and target.emulator is None:
        have = [other.name for other in targets.values() if other.emulator is not None]
        raise UserError(
            f"there is no emulator of {target.name}.",
            f"Leave --emulate out, or choose {' or '.join(have)}.",
        )
    for flag in dict.fromkeys(flag for other in targets.values() for flag in other.flags):
        if flag not in target.flags and given[flag.dest] and not flag.chooses:
            notes.append(f"{flag.names[-1]} has no effect on {target.name}.")
    return Arguments(
        target=target,
        mode=given.pop("mode"),
        params=_find_params(given.pop("params"), notes),
        overrides=tuple(overrides),
        extra={name: given[name] for name in own},
        flags={name: value for name, value in given.items() if name not in own},
        notes=tuple(notes),
    )


def script_folder() -> Path:
    """Where the user's run.py is."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(path).resolve().parent if path else Path.cwd()


def _find_params(given: Path, notes: list[str]) -> Path:
    """The params file in the current folder; where there is none, that beside run.py, with a note."""
    beside = script_folder() / given
    if given.exists() or not beside.is_file():
        return given
    notes.append(f"--params {given} is not in this folder: using {beside}, beside run.py.")
    return beside


def make_parser(target: Target | None, script: str, style: CommandStyle = PYTORCH_STYLE) -> _Parser:
    names = ",".join(find_targets())
    parser = _Parser(
        prog=f"python {script} {target.name if target else '{' + names + '}'}",
        description="Validates, compiles, trains and evaluates one model on one target.\n\ntargets:\n"
        + "\n".join(f"  {t.name:<6}{t.summary}" for t in find_targets().values()),
        epilog=style.epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    main = parser.add_argument_group("what to do")
    main.add_argument(
        "-p", "--params", type=Path, required=True, metavar="FILE", help="the params.yaml of this run"
    )
    main.add_argument(
        "-m", "--mode", type=_mode, required=True, metavar="MODE",
        help="train, eval, train_and_eval, eval_all (each checkpoint in turn) or predict",
    )  # fmt: skip
    which = main.add_mutually_exclusive_group()
    which.add_argument(
        "--validate_only", action="store_true",
        help="check params, data paths, shapes and dtypes and run one step; writes no weights",
    )  # fmt: skip
    which.add_argument(
        "--compile_only", action="store_true", help="compile, keep the result in compile_dir, and stop"
    )
    main.add_argument(
        "-o", "--model_dir", type=Path, default=None, metavar="DIR",
        help="where checkpoints and logs go; the same folder resumes (default: model_dir beside the script; a reference model's: NAME_run here)",
    )  # fmt: skip
    main.add_argument(
        "--checkpoint_path", type=Path, default=None, metavar="PATH", help="start from this checkpoint"
    )
    main.add_argument(
        "--is_pretrained_checkpoint",
        action="store_true",
        help="take only the weights of checkpoint_path, and start at step 0",
    )
    main.add_argument(
        "-c", "--compile_dir", type=Path, default=None, metavar="DIR", help="default: MODEL_DIR/compile"
    )
    values = parser.add_argument_group("values of params.yaml")
    values.add_argument(
        "-D", "--override", action="append", default=[], metavar="KEY=VALUE",
        help="change a value, such as -D optimizer.learning_rate=0.01; may be repeated",
    )  # fmt: skip
    values.add_argument(
        "--config", default=None, metavar="KEY", help="use only this top-level key of the params file"
    )
    for name, text in (
        ("max_steps", "steps in all"),
        ("eval_steps", "batches of an evaluation"),
        ("num_epochs", "passes over the data"),
    ):
        values.add_argument(
            f"--{name}", type=int, default=None, metavar="N", help=f"{text} (runconfig.{name})"
        )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--json", action="store_true", help="print the outcome as one JSON document on stdout"
    )
    output.add_argument("--logging", default="INFO", metavar="LEVEL", help="DEBUG, INFO, WARNING or ERROR")
    output.add_argument("--debug", action="store_true", help="show the Python traceback of an error")
    spread = parser.add_argument_group("several processes (torchrun and srun set what is needed)")
    spread.add_argument(
        "--stream_data",
        action="store_true",
        help="of the tasks that were started, one trains and the others read the data for it",
    )
    if style.has_torch_processes:
        _add_torch_processes(spread)
    for names, flags in _flags_by_target().items():
        group = parser.add_argument_group(f"{names} (no effect on other targets)")
        for flag in flags:
            if flag.is_switch:
                group.add_argument(*flag.names, dest=flag.dest, action="store_true", help=flag.help)
            else:
                group.add_argument(
                    *flag.names,
                    dest=flag.dest,
                    default=None,
                    nargs="+" if flag.is_list else None,
                    metavar="X",
                    help=flag.help,
                )
    return parser


def _add_torch_processes(spread: argparse._ArgumentGroup) -> None:
    spread.add_argument("--dist_addr", default=None, metavar="HOST:PORT", help="where the processes meet")
    spread.add_argument("--dist_backend", choices=("nccl", "mpi", "gloo"), default=None)
    spread.add_argument(
        "--init_method", default=None, metavar="URL", help="rendezvous of torch.distributed (default: env://)"
    )
    spread.add_argument(
        "--multireplica",
        action="store_true",
        help="accepted for old scripts; replicas follow from the processes",
    )


def _flags_by_target() -> dict[str, list[Flag]]:
    """The flags under the targets that take them; one that several targets share comes once."""
    grouped: dict[str, list[Flag]] = {target.name: [] for target in find_targets().values()}
    owners: dict[Flag, list[str]] = {}
    for target in find_targets().values():
        for flag in target.flags:
            owners.setdefault(flag, []).append(target.name)
    for flag, names in owners.items():
        grouped.setdefault(", ".join(names), []).append(flag)
    return {names: flags for names, flags in grouped.items() if flags}


def _mode(text: str) -> str:
    if text not in MODES:
        raise UserError(f"unknown mode '{text}'.", suggest(text, MODES))
    return text


def _add_user_flags(
    parser: _Parser, extra_args_parser_fn: Callable[..., Any] | None, target: Target | None
) -> list[str]:
    """Adds the user's own flags: a parser, a list of parsers, a dict by target, or a function that adds to ours."""
    if extra_args_parser_fn is None:
        return []
    before = {action.dest for action in parser._actions}
    takes_parser = bool(inspect.signature(extra_args_parser_fn).parameters)
    made = extra_args_parser_fn(parser) if takes_parser else extra_args_parser_fn()
    if isinstance(made, Mapping):
        wanted = {"ALL", target.name if target else ""}
        made = [
            p
            for key, value in made.items()
            if str(getattr(key, "name", key)).upper() in wanted
            for p in _listed(value)
        ]
    for extra in _listed(made):
        if extra is not parser:
            for action in extra._actions:
                if not isinstance(action, argparse._HelpAction) and action.dest not in before:
                    parser._add_action(action)
    return sorted({action.dest for action in parser._actions} - before)


def _listed(value: Any) -> list[argparse.ArgumentParser]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _reject(unknown: Sequence[str], parser: _Parser) -> NoReturn:
    first = unknown[0]
    if find_target(first) is not None:
        raise UserError(
            f"the target {first} stands behind the flags.",
            f"Put it first: python run.py {first.upper()} --mode ...",
        )
    flags = [
        option for action in parser._actions for option in action.option_strings if option.startswith("--")
    ]
    if first.startswith("-"):
        raise UserError(f"unknown flag '{first}'.", suggest(first.split("=")[0], flags))
    raise UserError(
        f"unexpected argument '{first}'.",
        f"Values follow their flag; the flags are {', '.join(sorted(flags))}.",
    )


def _choose_target(parsed: argparse.Namespace, style: CommandStyle) -> tuple[Target, str]:
    targets = find_targets().values()
    for target in targets:
        for flag in target.flags:
            if flag.chooses and getattr(parsed, flag.dest):
                return target, flag.names[0]
    preferred = sorted((t for t in targets if t.preference), key=lambda t: -t.preference)
    return next((t, "the first choice that can run here") for t in preferred if style.why_not(t) is None)
