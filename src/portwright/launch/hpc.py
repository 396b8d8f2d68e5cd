"""Jobs with programs of the Cerebras SDK on a CS-2, compiled by cslc and run by cs_python.

Their YAML has two sections, and an optional place of the programs:

    sdk: ${SDK_INSTALL_PATH}           # without it cslc and cs_python are found on PATH
    compile:
      source: layout.csl
      fabric_dims: [757, 996]
      fabric_offsets: [1, 1]
      params: {M: 4, N: 6}
      colors: {x_in: 1, b_in: 2}
      output: out
    run:
      script: run.py
      arguments: [--tolerance, "0.01"]
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from portwright.errors import UserError
from portwright.job.problems import check_model
from portwright.job.section import Section
from portwright.launch.job import Step
from portwright.launch.words import variables_in

STEPS = ("compile", "run")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _one_line(text: str) -> str:
    if not text or not text.isprintable():
        raise ValueError(f"expected text on one line, received {text!r}")
    return text


def _named(value: dict[str, Any]) -> dict[str, Any]:
    for name, given in value.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"expected a name of letters, digits and _, received {name!r}")
        if isinstance(given, str) and not re.fullmatch(r"[^\s,:]+", given):
            raise ValueError(f"expected a word without commas and colons for {name}, received {given!r}")
    return value


Word = Annotated[str, AfterValidator(_one_line)]
Pair = tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]]
# cslc's params are integers, booleans, floats and types, such as f16.
Values = Annotated[dict[str, bool | int | float | str], AfterValidator(_named)]
Colors = Annotated[dict[str, Annotated[int, Field(ge=0)]], AfterValidator(_named)]


class CompileSection(Section):
    """What cslc is told."""

    source: Word = Field(default="layout.csl", description="The program, from the folder on.")
    arch: Word = Field(default="wse2", description="The wafer: wse2 is the CS-2's.")
    fabric_dims: Pair = Field(default=(757, 996), description="Width and height of the fabric.")
    fabric_offsets: Pair = Field(default=(1, 1), description="Where on it the program's rectangle begins.")
    params: Values = Field(default_factory=dict, description="Values of the program's params.")
    colors: Colors = Field(default_factory=dict, description="Numbers of its colors.")
    memcpy: bool = Field(default=False, description="Whether the host copies through the memcpy framework.")
    channels: int | None = Field(default=None, ge=1, description="Channels of memcpy.")
    output: Word = Field(default="out", description="Folder of the compiled program.")
    flags: tuple[Word, ...] = Field(default=(), description="Further flags, a word each.")


class RunSection(Section):
    """What cs_python is told."""

    script: Word = Field(default="run.py", description="The host's program, from the folder on.")
    cmaddr: Word | None = Field(
        default="${CS_IP_ADDR}:9000", description="Where the machine is; null runs it in the simulator."
    )
    arguments: tuple[bool | int | float | Word, ...] = Field(
        default=(), description="Further words of the script, in which ${NAME} is expanded."
    )


class HpcParams(Section):
    """The whole file."""

    sdk: Word | None = Field(default=None, description="The folder of cslc and cs_python.")
    compile: CompileSection = CompileSection()
    run: RunSection = RunSection()


def hpc_steps(folder: Path, params: Mapping[str, Any], names: Sequence[str] = STEPS) -> tuple[Step, ...]:
    """The chain of a folder with a CSL program: compile, then run; both in that folder, and not in the job's container."""
    given, problems = check_model(HpcParams, params, ())
    if problems or given is None:
        raise UserError(problems[0].describe(), details={"problems": [p.describe() for p in problems]})
    files = {"compile": given.compile.source, "run": given.run.script}
    for name in names:
        if not (folder / files[name]).is_file():
            raise UserError(
                f"there is no {files[name]} in {folder}.",
                "Name the program in compile.source, and the host's script in run.script.",
            )
    words = {"compile": _compile_words(given), "run": _run_words(given)}
    return tuple(
        Step(
            name,
            1,
            tuple(words[name]),
            literal=tuple(place for place, word in enumerate(words[name]) if variables_in(word)),
            folder=folder,
            contained=False,
        )
        for name in names
    )


def needs_machine(steps: Sequence[Step]) -> bool:
    """Whether one of the steps runs on a CS-2; cslc and the simulator run on the host alone."""
    return any(step.name == "run" and any(w.startswith("--cmaddr") for w in step.words) for step in steps)


def lacks_compiled(folder: Path, steps: Sequence[Step]) -> str | None:
    """The compiled program that the steps run without having made it, where it is not there yet."""
    if [step.name for step in steps] != ["run"]:
        return None
    words = steps[0].words
    output = words[words.index("--name") + 1]
    return None if variables_in(output) or (folder / output).is_dir() else output


def _compile_words(given: HpcParams) -> list[str]:
    told = given.compile
    # so that a name is not taken for a flag
    source = told.source if told.source.startswith(("/", "./", "../")) else f"./{told.source}"
    words = [_program(given, "cslc"), f"--arch={told.arch}", source]
    words += [f"--fabric-dims={_pair(told.fabric_dims)}", f"--fabric-offsets={_pair(told.fabric_offsets)}"]
    if told.params:
        words.append(f"--params={_named_values(told.params)}")
    if told.colors:
        words.append(f"--colors={_named_values(told.colors)}")
    if told.memcpy:
        words.append("--memcpy")
    if told.channels is not None:
        words.append(f"--channels={told.channels}")
    return [*words, *told.flags, "-o", told.output]


def _run_words(given: HpcParams) -> list[str]:
    words = [_program(given, "cs_python"), given.run.script, "--name", given.compile.output]
    if given.run.cmaddr is not None:
        words += ["--cmaddr", given.run.cmaddr, "--fabdims", _pair(given.compile.fabric_dims)]
    return [*words, *(_value(word) for word in given.run.arguments)]


def _program(given: HpcParams, name: str) -> str:
    return name if given.sdk is None else f"{given.sdk.rstrip('/')}/{name}"


def _pair(pair: tuple[int, int]) -> str:
    return f"{pair[0]},{pair[1]}"


def _named_values(values: Mapping[str, bool | int | float | str]) -> str:
    return ",".join(f"{name}:{_value(value)}" for name, value in values.items())


def _value(value: bool | int | float | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
