"""The command `portwright`: parse, call, print, exit status; no logic."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from portwright import __version__
from portwright.cli import launch
from portwright.cli.data import data_app
from portwright.cli.generate import generate
from portwright.cli.launch import explain_log, sites
from portwright.cli.shared import Json, complete_models, end_with_findings, print_answer, print_json
from portwright.errors import ExitStatus, PortwrightError, UserError
from portwright.extras import explain as explain_missing_package
from portwright.job.stdout import printing


def describe_checkpoints(model_dir: Path) -> list[dict[str, Any]]:
    """One row a checkpoint, the oldest first, with what is wrong with it; the framework is imported that wrote them."""
    if not model_dir.is_dir():
        raise UserError(f"'{model_dir}' is not a folder.", "Give the model_dir of a run.")
    if any(model_dir.glob("model.ckpt-*.index")):
        return _of_tensorflow(model_dir)
    from portwright.runtime.checkpoint import list_checkpoints, verify_checkpoint

    return [
        {"step": c.step, "path": str(c.path), "problems": verify_checkpoint(c.path)}
        for c in list_checkpoints(model_dir)
    ]


def _of_tensorflow(model_dir: Path) -> list[dict[str, Any]]:
    from portwright.tensorflow import load

    load()
    from portwright.tensorflow.checkpoints import find_damage, step_in_name
    from portwright.tensorflow.run_checkpoints import list_checkpoints

    return [
        {
            "step": step_in_name(path),
            "path": path,
            "problems": [damage] if (damage := find_damage(path)) else [],
        }
        for path in list_checkpoints(model_dir)
    ]


class _Interrupted(Exception):
    """Ctrl-C."""


class _Commands(TyperGroup):
    """Tells Ctrl-C from a command that ends with the same status, which typer does not."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise _Interrupted from error


app = typer.Typer(
    name="portwright",
    cls=_Commands,
    help="Port deep-learning training to AI accelerators, prove that the port computes the same thing, and run it.",
    epilog="Exit status: 0 good, 1 findings or unsupported, 2 bad input, 3 non-finite loss, 85 saved and wants to be requeued, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: importing rich takes longer than all the rest
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_app, short_help="Prepare, pack, check and measure training data.")


def _version(asked: bool) -> None:
    if asked:
        print(f"portwright {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command(short_help="Make a model folder to start from.")
def new(
    name: Annotated[str, typer.Argument(help="The folder to make, such as mymodel.")],
    framework: Annotated[str, typer.Option(help="pytorch or tensorflow")] = "pytorch",
    model: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Reference model to start from; see `portwright models`.",
            autocompletion=complete_models,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a model folder in the taught layout: model.py, data.py, utils.py, configs/params.yaml, run.py."""
    from portwright.job.model_list import make_model_folder

    made = make_model_folder(Path(name), framework, model)
    if as_json:
        print_json(
            {
                "folder": str(made),
                "files": sorted(str(p.relative_to(made)) for p in made.rglob("*") if p.is_file()),
            }
        )
        return
    print(f"made {made} — it trains as it is; edit model.py, data.py and configs/params.yaml. Next:")
    print(
        f"  cd {shlex.quote(str(made))}\n  python run.py CPU --mode train --params configs/params.yaml --validate_only"
    )
    print("  python run.py CPU --mode train_and_eval --params configs/params.yaml")


@app.command(
    short_help="Run a model folder's run.py, or a reference model.",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def run(
    context: typer.Context,
    path: Annotated[
        str,
        typer.Argument(
            help="A run.py, a folder with one, or a reference model's name.", autocompletion=complete_models
        ),
    ],
    compat: Annotated[
        str | None,
        typer.Option(
            help="Lend the names of another library to the script: modelzoo (PyTorch folders of release 1.6, and layers of "
            "2.x) or estimator (tf.estimator, tf.contrib, and TensorFlow folders of 1.6; any script)."
        ),
    ] = None,
) -> None:
    """Run a model folder's run.py with the rest of the command line: portwright run DIR CPU --mode train.

    Without --params, the folder's configs/params.yaml is used; --params small means its configs/params_small.yaml.

    A run lies in model_dir beside the run.py, that of a reference model in NAME_run of the current folder; -o DIR puts it elsewhere.
    """
    from portwright.cli.run_script import run_script

    if path in ("-h", "--help"):  # after a path these are the script's own
        print(context.get_help())
        return
    run_script(path, context.args, compat=compat)


@app.command(short_help="List the reference models and their sizes.")
def models(as_json: Json = False) -> None:
    """List the reference models: parameters of the config that runs by itself, what each is, and names for --params.

    Those of TensorFlow are named tensorflow/NAME.
    """
    import shutil

    from portwright.job.model_list import describe_models, render_models

    rows = describe_models()
    width = shutil.get_terminal_size((110, 24)).columns
    print_answer(as_json, {"models": rows}, "\n".join(render_models(rows, width)))


@app.command(short_help="List the targets and what can run here.")
def targets(as_json: Json = False) -> None:
    """List the targets: whether each can run here, with which software, and what is missing and how to get it."""
    from portwright.job.target_list import describe_targets

    rows = describe_targets()
    lines = [f"{row['name']:<6}{row['summary']}: {row['says']}" for row in rows]
    print_answer(as_json, {"targets": rows}, "\n".join(lines))


@app.command(short_help="Make the environment that a vendor's software needs.")
def env(
    target: Annotated[str, typer.Argument(help="The target, such as csx.")],
    python: Annotated[
        Path | None,
        typer.Option(help="Use this interpreter, of an environment that has the software already."),
    ] = None,
    recreate: Annotated[bool, typer.Option("--recreate", help="Make it anew.")] = False,
    as_json: Json = False,
) -> None:
    """Make the environment that a target's software needs, outside of every project; quick where it is there already."""
    from portwright.job.target_list import provide_environment

    made = provide_environment(target, python, recreate, lambda line: print(line, file=sys.stderr))
    print_answer(as_json, made, f"{made['sdk_name']} {made['sdk']}: {made['interpreter']}")


@app.command(short_help="Say whether a model runs and fits on a target, and what to change.")
def plan(
    subject: Annotated[
        str,
        typer.Argument(
            help="A model folder, a run.py, FILE.py:CALLABLE, or a reference model's name.",
            autocompletion=complete_models,
        ),
    ],
    target: Annotated[str, typer.Option(help="Targets with commas between them, or all.")],
    params: Annotated[
        Path | None, typer.Option("--params", "-p", help="The params file; without it configs/params.yaml.")
    ] = None,
    override: Annotated[
        list[str] | None, typer.Option("-D", help="Change one key of the params: -D model.hidden_size=64.")
    ] = None,
    mode: Annotated[
        str | None, typer.Option(help="auto, resident, layer_pipelined or weight_streaming.")
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", help="A tensor of the batch instead of the project's own data: 'x:float32[8,784]'."
        ),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Plan for so many samples in a batch.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="Plan for this optimizer.")] = None,
    memory: Annotated[
        str | None, typer.Option(help="The machine's memory: 24GB, or gpu=24GB,cpu=64GB.")
    ] = None,
    legalise: Annotated[
        bool, typer.Option("--legalise", help="Plan the model with refused layers in their legal form.")
    ] = False,
    compat: Annotated[
        str | None, typer.Option(help="As for `portwright run`: modelzoo or estimator.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write plan.json, key_metrics.json and plan.html here.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say whether a model's training step runs and fits on a target, what it takes there, and what to change.

    Nothing is trained and nothing is asked of the vendor's software. Status 1 when an op is refused or it does not fit.
    """
    from portwright.planning.api import plan_and_print

    is_good = plan_and_print(
        subject,
        target,
        params=params,
        overrides=override or (),
        mode=mode,
        inputs=inputs or (),
        batch_size=batch_size,
        optimizer=optimizer,
        memory=memory,
        legalise=legalise,
        compat=compat,
        out=out,
        as_json=as_json,
    )
    end_with_findings(not is_good)


@app.command(name="input", short_help="Check the order and the speed of a TensorFlow input pipeline.")
def check_input_pipeline(
    path: Annotated[
        str, typer.Argument(help="A model folder, its run.py, or a reference model such as tensorflow/bert.")
    ],
    params: Annotated[
        Path | None,
        typer.Option("--params", "-p", help="params.yaml (default: configs/params.yaml beside run.py)"),
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option("-D", "--override", help="Change a value: -D train_input.batch_size=32."),
    ] = None,
    mode: Annotated[str, typer.Option(help="train or eval: which input function.")] = "train",
    workers: Annotated[int, typer.Option(help="How many workers will share the data.")] = 1,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also measure samples/s, and what a training step here needs.")
    ] = False,
    seconds: Annotated[float, typer.Option(help="How long to measure.")] = 3.0,
    as_json: Json = False,
) -> None:
    """Look at the tf.data graph that an input function builds: shard, interleave, cache, shuffle, repeat, batch, map, prefetch.

    Each fault comes with its line and cure. Status 1: a fault that gives wrong data or a shape that is not static.
    """
    from portwright.tensorflow import load

    load()
    from portwright.tensorflow.input_check.command import check_and_print

    is_good = check_and_print(path, params, override or [], mode, workers, measure, seconds, as_json)
    end_with_findings(not is_good)


@app.command(short_help="List the ops and layers that a target runs.")
def ops(
    target: Annotated[str, typer.Option(help="The target, such as csx.")],
    name: Annotated[
        str,
        typer.Argument(help="A part of a name, such as conv2d, torch.nn.LSTM or aten.flip; all without it."),
    ] = "",
    as_json: Json = False,
) -> None:
    """List the ops and layers that a target runs: dtypes, constraints, and where each row is known from.

    Status 1 when a training step with NAME is refused there; the reason and an equal form are told.
    """
    import shutil

    from portwright.discover import get_target
    from portwright.graph.ops import find_ops, render

    answer = find_ops(get_target(target), name)
    width = shutil.get_terminal_size((100, 24)).columns
    print_answer(as_json, answer.as_json(), "\n".join(render(answer, width)).rstrip())
    end_with_findings(answer.is_refusal)


@app.command(short_help="Print the JSON schema of params.yaml, for editors.")
def schema(
    folder: Annotated[
        Path | None, typer.Argument(help="A model folder whose utils.py may declare PARAMS_SCHEMA.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write to this file instead of stdout.")
    ] = None,
) -> None:
    """Print the JSON schema of params.yaml, for completion and checking in an editor."""
    from portwright.discover import find_targets
    from portwright.job.run_params import schema_of_folder
    from portwright.job.schema import json_schema

    sections = {
        name: section for target in find_targets().values() for name, section in target.sections.items()
    }
    text = json.dumps(json_schema(schema_of_folder(folder) if folder else None, sections), indent=2) + "\n"
    if out is None:
        sys.stdout.write(text)
    else:
        from portwright.job.atomic import atomic_write_text

        atomic_write_text(out, text)
        print(
            f"wrote {out}; put '# yaml-language-server: $schema={out}' at the top of params.yaml",
            file=sys.stderr,
        )


@app.command(short_help="List a run's checkpoints and verify their checksums.")
def checkpoints(
    model_dir: Annotated[Path, typer.Argument(help="The folder that holds checkpoint_* or model.ckpt-*.")],
    as_json: Json = False,
) -> None:
    """List the checkpoints of a run and verify each one's checksums; status 1 when one is bad."""
    rows = describe_checkpoints(model_dir)
    if as_json:
        print_json({"checkpoints": rows})
    else:
        for row in rows:
            print(f"{row['path']}: {'; '.join(row['problems']) or 'good'}")
        if not rows:
            print(f"{model_dir} has no checkpoint", file=sys.stderr)
    end_with_findings(any(row["problems"] for row in rows))


@app.command(short_help="Bring a HuggingFace checkpoint in, or take one of ours back.")
def convert(
    source: Annotated[
        Path,
        typer.Argument(
            help="--from hf: a HuggingFace folder. --to hf: a checkpoint, a model_dir or a model folder."
        ),
    ],
    out: Annotated[
        Path | None, typer.Argument(help="The folder to make; with --weights-only a file.")
    ] = None,
    given_from: Annotated[
        str | None, typer.Option("--from", help="What comes in: hf, or zoo for a .mdl of release 1.6.")
    ] = None,
    given_to: Annotated[str | None, typer.Option("--to", help="What to write: hf.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Our model, such as bert_classifier; left out where config.json says it."),
    ] = None,
    params: Annotated[
        Path | None,
        typer.Option(
            "--params", "-p", help="--to hf, --from zoo: the params of the model, if not beside it."
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="Convert weights to float32, bfloat16, float16; left out: every bit stays."),
    ] = None,
    shard_size: Annotated[str, typer.Option(help="--to: the most that a file may hold.")] = "5GB",
    weights_only: Annotated[
        bool,
        typer.Option("--weights-only", help="--from: write one .safetensors file instead of a model folder."),
    ] = False,
    new_head: Annotated[
        bool,
        typer.Option(
            "--new-head", help="--from: draw what the checkpoint lacks, and leave out what it has too much."
        ),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Run transformers and our network on one batch and compare.")
    ] = False,
    tolerance: Annotated[
        float, typer.Option(help="--check: how far logits may be apart, by the largest of them if above 1.")
    ] = 1e-4,
    force: Annotated[bool, typer.Option("--force", help="Replace what an earlier conversion made.")] = False,
    only_list: Annotated[
        bool, typer.Option("--list", help="Show the tensors of both sides; write nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Bring a HuggingFace checkpoint in as a model folder that runs, or take a checkpoint of ours back, bit for bit.

    Status 1 where --check finds a difference.

    portwright convert --from hf bert-base-uncased/ mybert --check

    portwright convert --to hf mybert/model_dir/checkpoint_1000 bert-tuned
    """
    from portwright.huggingface.command import Options, convert_and_print

    options = Options(
        source, out, model, params, dtype, shard_size, weights_only, new_head, check, tolerance, force, only_list
    )  # fmt: skip
    end_with_findings(not convert_and_print(given_from, given_to, options, as_json))


Targets = Annotated[
    list[str] | None,
    typer.Option("--target", "-t", help="A target, such as csx, ipu or rdu; may be given several times."),
]
Select = Annotated[
    list[str] | None,
    typer.Option("--select", help="Only these rules: PW201, PW2 for a group, or a name."),
]
Ignore = Annotated[list[str] | None, typer.Option("--ignore", help="Not these rules.")]
Paths = Annotated[list[Path], typer.Argument(help="Python files, notebooks or folders.")]


@app.command(short_help="Say whether a training script runs on a target, and what it does not take.")
def check(
    paths: Paths,
    target: Targets = None,
    select: Select = None,
    ignore: Ignore = None,
    format: Annotated[str, typer.Option("--format", help="text, json, sarif or html")] = "text",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write to this file instead of stdout.")
    ] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", help="Processes to use.", min=1)] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Check unchanged files again.")] = False,
    as_json: Json = False,
) -> None:
    """Say whether a training script runs on a target: as it is, after a port, or not without a person, and why.

    The files that it imports are looked at too, each place that the target does not take is told with its cure, and who
    owns the training loop. Without --target the answer is for every target that has rules.

    Status 0 where all runs as it is, else 1. A line ends `# portwright: ignore[PW201]` to be left
    out; pyproject.toml has select, ignore, targets and exclude in [tool.portwright].
    """
    from portwright.port.api import check as check_paths
    from portwright.port.report_formats import write_report

    result = check_paths(paths, target or [], select or [], ignore or [], jobs=jobs, use_cache=not no_cache)
    write_report(result, "json" if as_json else format, out)
    end_with_findings(not result.runs_as_it_is)


@app.command(short_help="Rewrite source code for a target.")
def port(
    paths: Paths,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            "-t",
            help="A target, such as csx, ipu or rdu; several for --style branches, none needed for TensorFlow.",
        ),
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Edit the files in place; undo puts them back.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write a ported copy to this folder.")
    ] = None,
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Also rewrite what can change results.")] = False,
    style: Annotated[
        str,
        typer.Option(
            "--style", help="in-place, layout (model.py, data.py, ... in --out DIR) or branches (of a vendor)"
        ),
    ] = "in-place",
    part: Annotated[
        str | None, typer.Option("--part", help="Port only the loaders (data), or only the model (model).")
    ] = None,
    try_out: Annotated[
        bool,
        typer.Option(
            "--try/--no-try", help="Run one step of a layout, with your code and data; or run nothing."
        ),
    ] = True,
    select: Select = None,
    ignore: Ignore = None,
    as_json: Json = False,
) -> None:
    """Rewrite source code for a target, and say what is left to do by hand; without --write or --out, show the diff.

    Status 0 where nothing is left, 1 where findings are, or where a layout was written whose one step failed or was not tried.
    """
    from portwright.port.api import port as port_paths
    from portwright.port.report import port_report, summarise_port

    done = port_paths(
        paths, target or [], select or [], ignore or [],
        unsafe=unsafe, write=write, out=out, style=style, part=part, try_out=try_out,
    )  # fmt: skip
    if as_json:
        rows = {name: [f.as_dict() for f in getattr(done, name)] for name in ("fixed", "left")}
        account: dict[str, Any] = {}
        if style == "layout":
            tried = vars(done.tried) if done.tried is not None else None
            account = {
                "placed": done.placed,
                "dissolved": done.dissolved,
                "literals": done.literals,
                "tried": tried,
            }
        print_json({"changed": done.changed, **rows, **account, "summary": summarise_port(done)})
    else:
        if not write and out is None:
            sys.stdout.write(done.diff)
        print(port_report(done, wrote=write or out is not None), file=sys.stderr)
    end_with_findings(not done.is_done)


class _QuotedCommands(TyperCommand):
    """Takes "-m package.train" for a command in quotes, and not for an option -m."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [f"python {a}" if a.startswith("-m ") else a for a in args])


@app.command(cls=_QuotedCommands, short_help="Prove that two training scripts compute the same.")
def verify(
    original: Annotated[
        str, typer.Argument(help='The original\'s command in quotes: "train.py --epochs 1".')
    ],
    ported: Annotated[
        str,
        typer.Argument(help='The port\'s: "ported/run.py CPU --mode train --params configs/params.yaml".'),
    ],
    steps: Annotated[int, typer.Option(help="Updates of the weights to compare.")] = 20,
    out: Annotated[Path, typer.Option("--out", "-o", help="Write the proof to this file.")] = Path(
        "proof.json"
    ),
    html: Annotated[
        Path | None, typer.Option(help="Write it as a page too, with both loss curves: proof.html.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Both runs draw from this seed.")] = 0,
    dropout: Annotated[
        str,
        typer.Option(
            help="auto draws it, and turns it off in both where the runs differ; keep draws it, off does not."
        ),
    ] = "auto",
    bisect: Annotated[
        bool, typer.Option("--bisect", help="Where they differ, find the rewrite that changes the numbers.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds that a run may take for one step.")] = 600,
    python: Annotated[Path | None, typer.Option(help="Run both with this interpreter.")] = None,
    front_end: Annotated[
        str | None,
        typer.Option("--front-end", help="Ask this target's own front end about the port's step too: csx."),
    ] = None,
    emulate: Annotated[
        str | None,
        typer.Option(
            help="Run the port under the rules of this target's emulated package, step for step: ipu."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Prove that two training scripts compute the same, or say where they part: step, parameter, both values, likely rule.

    Both commands run here as they are, for the first --steps updates; no file of yours is changed. Batches, losses,
    gradients, updates and the optimizer's options are compared, across renames and other layouts of the weights.

    The verdict is equal, different, or cannot tell. Status 0 equal; 1 different, cannot tell (also where the original
    fails), not on the target asked for or refused by its front end; 2 bad input.

    portwright verify "train.py --epochs 1" "ported/train.py --epochs 1" --steps 20 --html proof.html
    """
    from portwright.verify.front_end import ask_front_end, require_front_end
    from portwright.verify.launch import progress_on_stderr
    from portwright.verify.proof_text import render

    if front_end is not None:
        require_front_end(front_end)
    with progress_on_stderr() as report:
        from portwright.verify.api import verify as verify_commands

        proof = verify_commands(
            original,
            ported,
            steps=steps,
            seed=seed,
            dropout=dropout,
            out=out,
            html=html,
            bisect=bisect,
            timeout_seconds=timeout,
            python=python,
            report=report,
            emulate=emulate,
        )
        verdict, not_asked = None, None
        if front_end is not None:
            try:
                verdict = ask_front_end(ported, front_end, timeout_seconds=timeout)
            except PortwrightError as error:  # the verdict is printed even so
                not_asked = error
                proof.notes.append(f"The front end could not be asked: {error}")
    if front_end is not None:
        from portwright.verify.proof_page import write_page

        proof.front_end = verdict.as_dict() if verdict is not None else None
        proof.write(out)
        if html is not None:
            write_page(proof, html)
    if not as_json:
        print(render(proof))
        print(f"  proof: {out}{f', page: {html}' if html else ''}")
    elif not_asked is None or proof.status:  # else the failure is the only document
        print_json(proof.as_dict())
    if proof.status:
        raise typer.Exit(int(proof.status))
    if not_asked is not None:
        raise not_asked
    end_with_findings(verdict is not None and not verdict.accepted)


class _ScriptLast(TyperCommand):
    """Takes our own options before the script, on either side of the target; all words after it belong to the script."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ours: list[str] = []
        target: list[str] = []
        rest = list(args)
        while rest:
            word = rest[0]
            if word == "--" and target:
                rest.pop(0)
                break
            if word == "-m" or (target and not word.startswith("-")):
                break
            if not word.startswith("-"):
                target = [rest.pop(0)]
                continue
            ours.append(rest.pop(0))
            if word in ("--copies", "--json") and rest:
                ours.append(rest.pop(0))
        # Everything behind "--" is left alone.
        return super().parse_args(ctx, [*ours, *target, "--", *rest] if target or rest else ours)


@app.command(
    cls=_ScriptLast,
    short_help="Run a script that imports a vendor's package, here and under its rules.",
)
def emulate(
    target: Annotated[str, typer.Argument(help="Whose package to stand in for: ipu or rdu.")],
    script: Annotated[
        list[str] | None,
        typer.Argument(help="The script and its arguments, or -m MODULE and its arguments."),
    ] = None,
    copies: Annotated[
        str | None,
        typer.Option(
            help="ipu: explicit (the default), or implicit: weights also come back when a parameter is touched, as in PopTorch 3.x."
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write what the script made and called to this file.")
    ] = None,
) -> None:
    """Run a script that says `import poptorch` (ipu) or `import sambaflow` (rdu) on this machine's CPU, under the vendor's rules.

    Nothing of the vendor's is needed. What the real package refuses is refused here, with the line of your script; at the end
    the executors are told that it made, on stderr.

    Status: that of the script; 1 where it used no executor, or made one for training and never called it, so that nothing ran or
    was trained under the rules (a wrapper lost by .to() is the usual cause); 2 where the command is wrong.

    portwright emulate ipu train.py --epochs 1

    portwright emulate ipu --json made.json -m package.train --epochs 1
    """
    from portwright.emulate.script import emulate_script

    raise typer.Exit(emulate_script(target, script or [], copies=copies, json_path=json_file))


app.command(short_help="Generate text with a trained model.")(generate)
app.command(short_help="Run a model on a cluster, or here in the background.")(launch.submit)
app.command(short_help="List jobs, or show one: queue, progress, loss, ETA.")(launch.jobs)
app.command(short_help="Show a job's log.")(launch.logs)
app.command(short_help="End jobs.")(launch.cancel)
app.command(short_help="Open an interactive allocation, in the container.")(launch.shell)
app.command(short_help="List the sites that jobs can be sent to.")(sites)
app.command("explain-log", short_help="Say why a job failed, from its log.")(explain_log)


@app.command(short_help="Put files back as they were before the last port.")
def undo(
    paths: Paths,
    force: Annotated[bool, typer.Option("--force", help="Overwrite edits made since the port.")] = False,
    as_json: Json = False,
) -> None:
    """Put files back as they were before the last `port --write`."""
    from portwright.port.files import show
    from portwright.port.undo import undo as undo_paths

    undone = undo_paths(paths, force)
    lines = [
        f"{show(each.path)}: {'restored' if each.was_changed else 'was as before the port already'}"
        for each in undone
    ]
    print_answer(as_json, {"restored": [show(each.path) for each in undone]}, "\n".join(lines))


@app.command(short_help="Explain a porting rule, a need, or what a target says to needs.")
def explain(
    rule: Annotated[
        str | None, typer.Argument(help="A code such as PW201, a rule, a need or a target.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Explain a porting rule: what it finds, why, what to write instead, and how safe the rewrite is. Without a rule, list all.

    A need such as static_shapes is what rules look after; a target's page says for each need what happens there, and why.
    """
    from portwright.port.explain import ENGINE_PAGES, describe, explain_word, list_rules

    if rule is None:
        rules = list_rules()
        lines = [f"{r.code}  {r.name:<30}{r.safety:<8}{', '.join(r.targets)}" for r in rules]
        print_answer(as_json, {"rules": [describe(rule) for rule in rules]}, "\n".join(lines))
        return
    if rule.upper() in ENGINE_PAGES and not as_json:
        print(ENGINE_PAGES[rule.upper()], end="")
        return
    document, text = explain_word(rule)
    print_answer(as_json, document, text.removesuffix("\n"))


def _tell_failure(line: str, status: ExitStatus, message: str, cure: str, details: Mapping[str, Any]) -> None:
    """One line on stderr; with --json the document of a failure too, as run.py writes it."""
    if _wants_json():
        with contextlib.suppress(PortwrightError), printing():  # the reader may have ended
            print_json({**details, "status": int(status), "error": message, "cure": cure})
    with contextlib.suppress(BrokenPipeError):
        print(f"error: {line}", file=sys.stderr)


def _wants_json() -> bool:
    return "--json" in sys.argv[1:] and sys.argv[1] != "emulate"  # where --json names a file


def _help_of(error: Any) -> str:
    """The --help command of the command or subcommand that was used wrongly."""
    words: list[str] = []
    context = getattr(error, "ctx", None)
    while context is not None and context.parent is not None:
        words.insert(0, str(context.info_name))
        context = context.parent
    return " ".join(["portwright", *words, "--help"])


def _call() -> Any:
    """Runs the command; a missing optional package is an error like any other."""
    command = " ".join(["portwright", *sys.argv[1:2]])  # before a script changes sys.argv
    try:
        return app(standalone_mode=False)
    except ModuleNotFoundError as error:
        lacking = explain_missing_package(error, f"'{command}'")
        if lacking is None:
            raise
        raise lacking from error


def main() -> None:
    """The console script: every error is one line with its cure."""
    try:
        status = _call()
    except PortwrightError as error:
        _tell_failure(str(error), error.status, error.message, error.cure, error.details)
        sys.exit(int(error.status))
    except (typer.Abort, KeyboardInterrupt, _Interrupted):
        if _wants_json():
            _tell_failure("interrupted.", ExitStatus.INTERRUPTED, "interrupted.", "", {})
        sys.exit(int(ExitStatus.INTERRUPTED))
    except BrokenPipeError:
        sys.exit(0)
    except Exception as error:
        # typer brings its own copy of click, whose usage errors have no public base class.
        if not hasattr(error, "format_message"):
            raise
        if error.format_message():
            cure = f"See '{_help_of(error)}'."
            _tell_failure(
                f"{error.format_message()} {cure}", ExitStatus.USAGE, error.format_message(), cure, {}
            )
        sys.exit(int(ExitStatus.USAGE))
    sys.exit(status if isinstance(status, int) else 0)
