"""sambaflow.samba.utils.argparser: the subcommands and flags that every SambaFlow script has."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from portwright.emulate.sambaflow import _state
from portwright.emulate.sambaflow._judge import STRICTNESS
from portwright.emulate.sambaflow._refusal import SambaFlowError
from portwright.emulate.sambaflow._systems import SYSTEMS

COMMANDS = ("compile", "run", "test", "measure-performance", "measure-sections")
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
    parser.add_argument("-b", "--batch-size", type=int, default=1, help="samples of a batch")
    parser.add_argument("--microbatch-size", type=int, default=None, help="accepted, no effect")
    parser.add_argument("--inference", action="store_true", help="forward alone")
    parser.add_argument("--num-tiles", type=int, default=None, help="tiles of the RDU to use")
    parser.add_argument(
        "--num-chips", "--n-chips", dest="n_chips", type=int, default=1, help="accepted, no effect"
    )
    parser.add_argument(
        "--data-parallel", action="store_true", help="refused when it is run: one process is one RDU here"
    )
    parser.add_argument("--reduce-on-rdu", action="store_true", help="accepted, no effect")
    parser.add_argument("-ws", "--world-size", type=int, default=1, help="accepted, no effect")
    parser.add_argument(
        "--mapping", default="section", choices=("section", "spatial"), help="section alone is emulated"
    )
    parser.add_argument("--num-spatial-batches", type=int, default=1, help="1 alone is emulated")
    parser.add_argument("--debug", action="store_true", help="accepted, no effect")
    parser.add_argument("-v", "--verbose", action="store_true", help="accepted, no effect")
    parser.add_argument("--log-level", default=None, help="accepted, no effect")
    parser.add_argument("--visualize", action="store_true", help="accepted, no effect")


def _add_compile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pef-name", default=None, help="name of the PEF and of its folder")
    parser.add_argument("--output-folder", default="out", help="folder that the PEF's folder goes into")
    parser.add_argument(
        "--arch", default="native", choices=("native", *SYSTEMS), help="the system to compile for"
    )
    parser.add_argument(
        "--graphamp-preset", default=None, help="mp0: the types of the model; else everything in BF16"
    )
    for mode in ("o0", "o1", "o3"):
        parser.add_argument(
            f"-{mode}", f"-{mode.upper()}", dest="optimization", action="store_const", const=mode, default=None,
            help="how ops are fused: accepted, no effect",
        )  # fmt: skip
    parser.add_argument(
        "--unlisted-ops",
        default=None,
        choices=STRICTNESS,
        help="the emulator's own: ops that no public document shows",
    )
    parser.add_argument("--mac-v2", action="store_true", help="accepted, no effect")
    parser.add_argument("--compiler-mode", default=None, help="accepted, no effect")
    parser.add_argument("--compiler-configs-file", default=None, help="accepted, no effect")
    parser.add_argument("--mac-human-decision", default=None, help="accepted, no effect")
    parser.add_argument(
        "--resources-scaling-factors", nargs="+", type=float, default=None, help="accepted, no effect"
    )
    parser.add_argument("--tensor-parallel", default=None, help="accepted, no effect")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-p", "--pef", default="", help="the PEF that was compiled")
    parser.add_argument("-n", "--num-iterations", type=int, default=100, help="of measure-performance")
    parser.add_argument("--run-graph-only", action="store_true", help="accepted, no effect")
    parser.add_argument("--json", default=None, help="accepted, no effect")
    parser.add_argument("--compiled-stats-json", default=None, help="accepted, no effect")
    parser.add_argument("--min-duration", type=float, default=0.0, help="accepted, no effect")


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
