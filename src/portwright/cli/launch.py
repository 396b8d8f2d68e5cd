"""The commands submit, jobs, logs, cancel, shell, sites and explain-log: parse, call, print, exit status; no logic."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from portwright.cli.shared import Json, complete_models, end_with_findings, print_answer, print_json
from portwright.errors import ExitStatus, PortwrightError, UserError

if TYPE_CHECKING:
    from portwright.launch.registry import Entry
    from portwright.launch.submit import Prepared


def complete_sites(incomplete: str) -> list[str]:
    from portwright.launch.site_files import complete_sites

    return complete_sites(incomplete)


def complete_jobs(incomplete: str) -> list[str]:
    from portwright.launch.registry import names

    return sorted(name for name in names() if name.startswith(incomplete))


Site = Annotated[
    str,
    typer.Option("--site", "-s", help="Where; see `portwright sites`.", autocompletion=complete_sites),
]
Job = Annotated[
    str, typer.Argument(help="A job's name, its SLURM id, or its folder.", autocompletion=complete_jobs)
]
Account = Annotated[str | None, typer.Option("--account", "-A", help="The allocation to charge.")]
Target = Annotated[str | None, typer.Option(help="Of the site's targets; left out: the site's own.")]
CpusPerTask = Annotated[int | None, typer.Option("--cpus-per-task", help="CPUs of a task.", min=1)]
Gres = Annotated[str | None, typer.Option(help="Devices: gpu:a100:2.")]
Memory = Annotated[str | None, typer.Option("--mem", help="Memory of a node: 64G.")]
Time = Annotated[str | None, typer.Option("--time", "-t", help="Time limit: 90, 4:00:00 or 2-00:00:00.")]
Partition = Annotated[str | None, typer.Option(help="Partition of the scheduler.")]
Flags = Annotated[
    list[str] | None, typer.Option("--flag", help="A further flag of the scheduler: --flag=--qos=low.")
]
Image = Annotated[str | None, typer.Option(help="Image of the container.")]
Container = Annotated[str | None, typer.Option(help="apptainer, singularity, ch-run or none.")]
Binds = Annotated[
    list[str] | None, typer.Option("--bind", help="HOST[:INSIDE], beside what the params name.")
]
Passed = Annotated[
    list[str] | None,
    typer.Option(
        "--pass", help="Name of a variable of this shell that tasks see; its value is written nowhere."
    ),
]
Env = Annotated[list[str] | None, typer.Option("--env", help="NAME=VALUE, which anybody may see.")]


def submit(
    subject: Annotated[
        str,
        typer.Argument(
            help="A folder with a run.py, a run.py, or a reference model's name.",
            autocompletion=complete_models,
        ),
    ],
    site: Site,
    account: Account = None,
    mode: Annotated[
        str, typer.Option("--mode", "-m", help="train, eval, train_and_eval, eval_all or predict.")
    ] = "train",
    steps: Annotated[
        str | None,
        typer.Option(
            help="Only these, with commas: validate,compile,train,eval,predict; with --hpc: compile,run."
        ),
    ] = None,
    target: Target = None,
    params: Annotated[
        str | None, typer.Option("--params", "-p", help="The params file; left out: configs/params.yaml.")
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option("-D", help="Change one key of the params: -D optimizer.learning_rate=0.01."),
    ] = None,
    model_dir: Annotated[
        str | None,
        typer.Option(
            "--model_dir", "--model-dir", "-o", help="Where checkpoints and logs go; the same folder resumes."
        ),
    ] = None,
    ntasks: Annotated[
        int | None, typer.Option("--ntasks", "-n", help="Tasks of the training.", min=1)
    ] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", "-N", help="Nodes.", min=1)] = None,
    cpus_per_task: CpusPerTask = None,
    gres: Gres = None,
    memory: Memory = None,
    time: Time = None,
    partition: Partition = None,
    flag: Flags = None,
    image: Image = None,
    container: Container = None,
    bind: Binds = None,
    passed: Passed = None,
    env: Env = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            help="What the training's tasks do: stream (one trains, the others read its data), parallel or single."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The job's name; left out: the subject's, numbered.")
    ] = None,
    jobs_dir: Annotated[
        str | None,
        typer.Option(
            "--jobs-dir", help="Where job folders lie; left out: $PORTWRIGHT_JOBS, else portwright_jobs here."
        ),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            help="Interpreter of the steps; left out: the image's own, without a container this one."
        ),
    ] = None,
    packages: Annotated[
        str | None,
        typer.Option(help="A folder of `pip install --target` with portwright, for an image that lacks it."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the scripts, the binds and what is wrong; write nothing.")
    ] = False,
    no_follow: Annotated[bool, typer.Option("--no-follow", help="Do not stay until it ends.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Submit in spite of errors found beforehand.")
    ] = False,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe", help="Have a node look first whether it sees the paths; that waits in the queue."
        ),
    ] = False,
    hpc: Annotated[
        bool,
        typer.Option("--hpc", help="The folder has programs for the Cerebras SDK: cslc, then cs_python."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Submit a job to a site, and follow it: validate, compile, train and evaluate as one chain that resumes by itself.

    A job folder gets the scripts, the resolved params, a manifest and the log. Ctrl-C leaves the job running.

    Status: that of the job; with --no-follow 0 once it is submitted. 2: not submitted.

    portwright submit mymodel --site neocortex --account abc123 --mode train

    portwright submit fc_mnist --site local --ntasks 2
    """
    from portwright.launch.planning import Request
    from portwright.launch.submit import prepare
    from portwright.launch.submit import submit as submit_prepared

    request = Request(
        subject=subject, site=site, account=account, mode=mode, steps=steps, target=target, params=params,
        overrides=tuple(override or ()), model_dir=model_dir, ntasks=ntasks, nodes=nodes, cpus_per_task=cpus_per_task,
        gres=gres, memory=memory, time=time, partition=partition, flags=tuple(flag or ()), image=image,
        container=container, binds=tuple(bind or ()), passed=tuple(passed or ()), env=tuple(env or ()), tasks=tasks,
        name=name, jobs_dir=jobs_dir, python=python, packages=packages, hpc=hpc,
    )  # fmt: skip
    prepared = prepare(request, probe=probe)
    if dry_run:
        _show_dry_run(prepared, as_json)
        end_with_findings(bool(prepared.errors) and not force)
        return
    for finding in prepared.findings:
        if finding.level == "warning" or (finding.level == "error" and force):  # --dry-run tells notes, too
            print(f"{finding.level}: {finding.what} {finding.cure}".rstrip(), file=sys.stderr)
    if not force:
        for finding in prepared.errors[1:]:  # the first ends the command
            print(f"error: {finding.what} {finding.cure}".rstrip(), file=sys.stderr)
    entry = submit_prepared(prepared, force=force)
    document = {
        **prepared.as_dict(),
        "name": entry.name,
        "folder": str(entry.folder),
        "scheduler_id": entry.scheduler_id,
    }
    if not as_json:
        _tell_submitted(prepared, entry)
    if no_follow:
        if as_json:
            print_json({**document, "state": "submitted"})
        return
    _follow(entry, document if as_json else None)


def jobs(
    job: Annotated[
        str | None,
        typer.Argument(
            help="A job's name, its SLURM id, or its folder; left out: all.", autocompletion=complete_jobs
        ),
    ] = None,
    all_jobs: Annotated[bool, typer.Option("--all", "-a", help="Those that ended long ago, too.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Stay with this job until it ends.")] = False,
    plot: Annotated[Path | None, typer.Option(hidden=True, help="Gone: TensorBoard draws the loss.")] = None,
    as_json: Json = False,
) -> None:
    """List your jobs, or show one: its place in the queue, its steps, loss, time left, and how to look at it with TensorBoard.

    Listed are those that have not ended and the newest of the others.
    """
    from portwright.launch.registry import find_entry

    if plot is not None:
        raise UserError(
            "jobs --plot is gone.", "Draw the loss with TensorBoard: the job's page has the command."
        )
    if follow and (job is None or as_json):
        raise UserError("-f follows one job, on a terminal.", "Name it: portwright jobs JOB -f")
    if job is None:
        _list_jobs(all_jobs, as_json)
        return
    entry = find_entry(job)
    if follow:
        _follow(entry, None)
        return
    from portwright.launch.page_text import choose_marks, page_width, print_lines
    from portwright.launch.registry import adopt
    from portwright.launch.render import job_page
    from portwright.launch.watch import look_at_job

    view = look_at_job(adopt(entry))
    if as_json:
        print_json(view.as_json())
        return
    print_lines(job_page(view, page_width(sys.stdout), choose_marks(sys.stdout)))


def logs(
    job: Job,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    lines: Annotated[int | None, typer.Option("--lines", "-n", help="Only the last so many.", min=0)] = None,
    step: Annotated[
        str | None, typer.Option(help="Only this step's: validate, compile, train, eval.")
    ] = None,
) -> None:
    """Print a job's log, of all attempts; of a job that has not begun, its place in the queue.

    Status 0, however the job ended; `portwright jobs JOB -f` ends with the job's own.
    """
    from portwright.job.stdout import printing
    from portwright.launch.log_tail import check_step, describe_waiting, follow_log, last_lines
    from portwright.launch.registry import adopt, ask_state, find_entry

    entry = adopt(find_entry(job))
    check_step(entry, step)

    def write(line: str) -> None:
        print(line, flush=follow)

    def note(line: str) -> None:
        print(line, file=sys.stderr)

    with printing():
        if follow and entry.was_taken:
            try:
                state = follow_log(entry, write, note, count=lines, step=step)
            except KeyboardInterrupt:
                note(f"left {entry.name}, which goes on. End it: portwright cancel {entry.name}")
                raise
            note(
                f"{entry.name}: {state.state}{f' ({state.reason})' if state.reason and state.state != 'done' else ''}."
            )
            return
        shown = last_lines(entry.folder / "log.txt", lines, step)
        for line in shown:
            write(line)
        if not shown:
            waiting = describe_waiting(entry, ask_state(entry))
            note(waiting or f"{entry.name} has written nothing{f' in its step {step}' if step else ''}.")


def cancel(
    jobs: Annotated[
        list[str],
        typer.Argument(help="Names, SLURM ids or folders of jobs.", autocompletion=complete_jobs),
    ],
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Note a job of another machine as cancelled, where that machine is gone or has another name now.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """End jobs: their tasks have half a minute to save, and they are not requeued. Of a local job the whole tree of processes ends."""
    from portwright.launch.registry import find_entry
    from portwright.launch.submit import cancel_job

    entries = {entry.name: entry for entry in map(find_entry, jobs)}  # finds all before it ends one
    said, failure = [], None
    for entry in entries.values():
        try:
            said.append({"name": entry.name, "says": cancel_job(entry, force=force)})
        except PortwrightError as error:  # the others are still ended
            failure = error
            said.append({"name": entry.name, "says": str(error)})
        if not as_json:
            print(said[-1]["says"])
    if as_json:
        print_json({"jobs": said})
    if failure is not None:
        raise typer.Exit(int(failure.status))


def shell(
    site: Site,
    account: Account = None,
    target: Target = None,
    image: Image = None,
    container: Container = None,
    bind: Binds = None,
    passed: Passed = None,
    env: Env = None,
    time: Time = None,
    partition: Partition = None,
    gres: Gres = None,
    cpus_per_task: CpusPerTask = None,
    memory: Memory = None,
    flag: Flags = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the command; start nothing.")] = False,
) -> None:
    """Open the site's interactive allocation, in its container and with its binds: for validating and compiling by hand.

    portwright shell --site neocortex --account abc123
    """
    from portwright.launch.interactive import make_shell
    from portwright.launch.planning import Request

    request = Request(
        subject="", site=site, account=account, target=target, image=image, container=container,
        binds=tuple(bind or ()), passed=tuple(passed or ()), env=tuple(env or ()), time=time, partition=partition,
        gres=gres, cpus_per_task=cpus_per_task, memory=memory, flags=tuple(flag or ()),
    )  # fmt: skip
    made = make_shell(request)
    if dry_run:
        print(made.as_text())
        return
    print(f"+ {made.as_text()}", file=sys.stderr)
    made.become()


def _follow(entry: Entry, document: dict[str, Any] | None) -> None:
    """Follows a job and exits with its status. With `document`, progress goes to stderr, and the document is printed at the end."""
    from portwright.launch.registry import ask_state, status_of
    from portwright.launch.watch import follow

    followed = follow(entry, stream=sys.stdout if document is None else sys.stderr)
    state = "left" if followed.is_detached else followed.view.phase
    status = int(ExitStatus.INTERRUPTED) if followed.is_detached else status_of(ask_state(entry))
    if document is not None:
        print_json({**document, "state": state, "status": status})
    if status:
        raise typer.Exit(status)


def _list_jobs(all_jobs: bool, as_json: bool) -> None:
    from portwright.launch.page_text import choose_marks, page_width, print_lines
    from portwright.launch.registry import list_entries
    from portwright.launch.render import jobs_table
    from portwright.launch.watch import look_at_jobs

    entries, left_out = list_entries(everything=all_jobs)
    views = look_at_jobs(entries)
    if as_json:
        print_json({"jobs": [view.as_json() for view in views], "left_out": left_out})
        return
    if not views:
        print("no job has been submitted.")
        return
    print_lines(jobs_table(views, page_width(sys.stdout), choose_marks(sys.stdout)))
    silent = sorted({view.unanswered for view in views if view.unanswered})
    for reason in silent:
        print(f"note: {reason}", file=sys.stderr)
    if left_out:
        print(f"and {left_out} that ended before; --all lists them.", file=sys.stderr)


def _show_dry_run(prepared: Prepared, as_json: bool) -> None:
    if as_json:
        print_json({**prepared.as_dict(), "files": prepared.files})
        return
    job = prepared.plan.job
    for file, text in prepared.files.items():
        if file.endswith(".sh") or file == "params.yaml":
            print(f"==> {job.folder / file} <==\n{text}")
    if job.container is not None:
        print(f"==> binds of {job.container.image} ({job.container.kind}) <==")
        for host, inside in job.container.binds:
            print(f"{host} -> {inside}" if host != inside else host)
        print()
    print("==> checks <==")
    for finding in prepared.findings:
        print(f"{finding.level}: {finding.what} {finding.cure}".rstrip())
    if not prepared.findings:
        print("nothing is wrong.")
    print("nothing was written.", file=sys.stderr)


def _tell_submitted(prepared: Prepared, entry: Entry) -> None:
    steps = ", ".join(
        f"{step.name} ({step.ntasks} tasks)" if step.ntasks > 1 else step.name
        for step in prepared.plan.job.steps
    )
    where = {"slurm": f"SLURM job {entry.scheduler_id}"}.get(entry.scheduler, f"process {entry.scheduler_id}")
    print(f"{entry.name}: {steps} at {entry.site}, {where}")
    print(f"  folder: {_near(entry.folder)}")
    print(f"  portwright logs {entry.name} -f   portwright cancel {entry.name}", flush=True)


def _near(path: Path) -> str:
    """The path, relative to the current folder where it is inside it."""
    try:
        return shlex.quote(str(path.relative_to(Path.cwd())))
    except ValueError:
        return shlex.quote(str(path))


def sites(
    name: Annotated[
        str | None,
        typer.Argument(help="A site's name, or a TOML file.", autocompletion=complete_sites),
    ] = None,
    as_json: Json = False,
    as_toml: Annotated[
        bool, typer.Option("--toml", help="Print the site's file, to begin one of your own from it.")
    ] = False,
    path: Annotated[
        bool,
        typer.Option(
            "--path",
            help="Print where the site's file is; without a name, the folders looked in, the first first.",
        ),
    ] = False,
) -> None:
    """List the sites that jobs can be submitted to, or tell all about one.

    Sites of your own are TOML files in ~/.config/portwright/sites, or in the folder that PORTWRIGHT_SITES names; one with the
    name of a shipped site takes its place, and `extends = "neocortex"` begins from another.

    portwright sites neocortex

    portwright sites neocortex --toml > ~/.config/portwright/sites/mine.toml
    """
    from portwright.launch import site_files, site_pages

    if sum((as_json, as_toml, path)) > 1:
        raise UserError("--json, --toml and --path are three answers.", "Give one of them.")
    if name is None:
        if as_toml:
            raise UserError(
                "--toml prints one site's file, and no site was named.", "portwright sites NAME --toml"
            )
        if path:
            print("\n".join(str(folder) for folder in site_files.site_folders()))
            return
        rows = site_pages.describe_sites()
        width = shutil.get_terminal_size((110, 24)).columns
        print_answer(as_json, {"sites": rows}, "\n".join(site_pages.render_list(rows, width)))
        return
    if path or as_toml:
        file = site_files.find_site(name)
        print(str(file.path) if path else site_files.read_text(file.path), end="\n" if path else "")
        return
    site, row = site_pages.describe_site(name)
    document = {**row, "site": site.model_dump(mode="json")}
    print_answer(as_json, document, "\n".join(site_pages.render_site(site, row)))


def explain_log(
    log: Annotated[
        str,
        typer.Argument(
            metavar="LOG",
            help="A log file, - for stdin, or a job: its name, id or folder.",
            autocompletion=complete_jobs,
        ),
    ],
    as_json: Json = False,
) -> None:
    """Say why a job failed, from its log: the first cause, its line, what it means and what to do.

    Status 1 when an error was explained, 0 when nothing known was found or the job ended well.

    portwright explain-log slurm-633.out
    """
    from portwright.job.stdout import printing
    from portwright.launch.explain import find_log, read_log, scan_log, write_report

    if log == "-":
        if sys.stdin is None:
            raise UserError("standard input is closed.", "Send a log into it, or name a file.")
        report, name = scan_log(sys.stdin.buffer), "stdin"
    else:
        path = find_log(log)
        report, name = read_log(path), str(path)
    if as_json:
        page = json.dumps({"log": name, **report.as_dict()}, indent=2)
    else:
        page = write_report(report, Path(name).name)
    with printing():
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        # a log has signs of any kind
        print(page.encode(encoding, errors="backslashreplace").decode(encoding))
    raise typer.Exit(ExitStatus.FINDINGS if report.has_errors else ExitStatus.OK)
