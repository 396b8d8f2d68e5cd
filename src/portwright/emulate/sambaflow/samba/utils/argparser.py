"""sambaflow.samba.utils.argparser: the subcommands and flags that every SambaFlow script has."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from portwright.emulate.sambaflow import _state
from portwright.emulate.sambaflow._compiler import STRICTNESS, SYSTEMS
from portwright.emulate.sambaflow._refusal import SambaFlowError

COMMANDS = ("compile", "run", "test", "measure-performance", "measure-sections")
_NO_EFFECT = "accepted, no effect"
AddFlags = Callable[[argparse.ArgumentParser], Any]


def parse_app_args(
    argv: Sequence[str] | None = None,
    common_parser_fn: AddFlags | None = None,
    compile_parser_fn: AddFlags | None = None,
    run_parser_fn: AddFlags | None = None,
    test_parser_fn: AddFlags | None = None,
    trace_parser_fn: AddFlags | None = None,
    dev_mode: bool = False,
) -> argparse.Namespace:
    """Parses `compile`, `run`, `test` and `measure-performance` with their flags; a script's own flags take the place of ours."""
    parser = argparse.ArgumentParser(description="emulated by Portwright: no RDU is used.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="|".join(COMMANDS))
    for command in COMMANDS:
        # Scripts define -b and others again: theirs count, as with the vendor's.
        sub = commands.add_parser(command, conflict_handler="resolve", allow_abbrev=False)
        _add_common(sub)
        (_add_compile if command == "compile" else _add_run)(sub)
        own = {"compile": compile_parser_fn, "test": test_parser_fn or run_parser_fn}.get(
            command, run_parser_fn
        )
        for add in (common_parser_fn, own):
            if add is not None:
                add(sub)
    args = parser.parse_args(list(sys.argv[1:] if argv is None else argv))
    _state.command = args.command
    return args


def _add_common(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-b", "--batch-size", type=int, default=1, help="samples of a batch")
    add("--microbatch-size", type=int, help=_NO_EFFECT)
    add("--inference", action="store_true", help="forward alone")
    add("--num-tiles", type=int, help="tiles of the RDU to use")
    add("--num-chips", "--n-chips", dest="n_chips", type=int, default=1, help=_NO_EFFECT)
    add("--data-parallel", action="store_true", help="refused when it is run: one process is one RDU here")
    add("--reduce-on-rdu", action="store_true", help=_NO_EFFECT)
    add("-ws", "--world-size", type=int, default=1, help=_NO_EFFECT)
    add("--mapping", default="section", choices=("section", "spatial"), help="section alone is emulated")
    add("--num-spatial-batches", type=int, default=1, help="1 alone is emulated")
    add("--debug", action="store_true", help=_NO_EFFECT)
    add("-v", "--verbose", action="store_true", help=_NO_EFFECT)
    add("--log-level", help=_NO_EFFECT)
    add("--visualize", action="store_true", help=_NO_EFFECT)


def _add_compile(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--pef-name", help="name of the PEF and of its folder")
    add("--output-folder", default="out", help="folder that the PEF's folder goes into")
    add("--arch", default="native", choices=("native", *SYSTEMS), help="the system to compile for")
    add("--graphamp-preset", help="mp0: the types of the model; else everything in BF16")
    for mode in ("o0", "o1", "o3"):
        flags, how = (f"-{mode}", f"-{mode.upper()}"), f"how ops are fused: {_NO_EFFECT}"
        add(*flags, dest="optimization", action="store_const", const=mode, help=how)
    add("--unlisted-ops", choices=STRICTNESS, help="the emulator's own: ops that no public document shows")
    add("--mac-v2", action="store_true", help=_NO_EFFECT)
    add("--resources-scaling-factors", nargs="+", type=float, help=_NO_EFFECT)
    for flag in ("--compiler-mode", "--compiler-configs-file", "--mac-human-decision", "--tensor-parallel"):
        add(flag, help=_NO_EFFECT)


def _add_run(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-p", "--pef", default="", help="the PEF that was compiled")
    add("-n", "--num-iterations", type=int, default=100, help="of measure-performance")
    add("--run-graph-only", action="store_true", help=_NO_EFFECT)
    add("--json", help=_NO_EFFECT)
    add("--compiled-stats-json", help=_NO_EFFECT)
    add("--min-duration", type=float, default=0.0, help=_NO_EFFECT)


def parse_yaml_to_args(path: str, args: argparse.Namespace) -> argparse.Namespace:
    """The arguments with what a YAML file says in their place."""
    try:
        given = yaml.safe_load(Path(path).read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SambaFlowError(
            f"{path} cannot be read: {' '.join(str(error).split())[:200]}.", "Give a YAML file."
        ) from error
    if not isinstance(given, dict):
        raise SambaFlowError(
            f"{path} holds {type(given).__name__}, not names and values.", "Give a YAML mapping."
        )
    return argparse.Namespace(**{**vars(args), **{str(k).replace("-", "_"): v for k, v in given.items()}})
