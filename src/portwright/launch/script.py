"""job.sh: the batch script of a job, which a person can read and run by hand.

Each piece below is a function of the job that gives lines, or none where the job does not need it.
"""

from __future__ import annotations

from portwright.errors import UserError
from portwright.launch.job import Job, Resources, Step
from portwright.launch.script_control import (
    BEGIN,
    ENDINGS,
    FINISH,
    LOCAL_REQUEUE,
    LOCAL_SIGNALS,
    SLURM_ONLY,
    SLURM_REQUEUE,
    SLURM_SIGNALS,
    note_functions,
    run_step_functions,
)
from portwright.launch.task_script import container_of, has_stream
from portwright.launch.words import directive, file_pattern, quote, quote_expanding, variables_in, wrap

# Variables of job.sh and task.sh; in small letters, unlike most variables of the environment. A test checks the list.
OWN_NAMES = frozenset(
    (
        *("answer", "bind", "copy", "deadline", "host", "hosts", "image", "job_folder", "log_bytes"),
        *("max_retries", "model_dir", "name", "newest", "number", "other", "path", "program", "python"),
        *("rank", "restarts", "save_seconds", "settled", "status", "step", "step_pid", "stop", "streams"),
        *("tells_end", "time", "visible", "why"),
    )
)
_FIRST_PORT, _NUM_PORTS = 24000, 4000  # below Linux's ephemeral ports, beside those of TF_CONFIG; two a job


def render_job(job: Job) -> str:
    """The text of job.sh."""
    if not job.steps:
        raise UserError(f"the job {job.name} has no step.", "Give it at least one, such as train.")
    if own := sorted(OWN_NAMES & {*job.environment, *job.passed}):
        raise UserError(
            f"the variable {own[0]} of --env, --pass or the site's file is one of the job's own scripts.",
            "Choose another name, such as one in capital letters.",
        )
    slurm = job.site.scheduler == "slurm"
    streams = has_stream(job)
    pieces = [
        _head(job),
        _about(job),
        _places(job),
        SLURM_ONLY if slurm else "",
        note_functions(slurm=slurm),
        SLURM_SIGNALS if slurm else LOCAL_SIGNALS,
        ENDINGS,
        SLURM_REQUEUE if slurm else LOCAL_REQUEUE,
        _task_hosts(job),
        run_step_functions(slurm=slurm, stream=streams),
        BEGIN,
        f"cd -- {quote(job.workdir)} # where relative paths of the params begin",
        _modules(job),
        _environment(job),
        _rendezvous(job),
        _chain(job),
        FINISH,
    ]
    return "\n\n".join(piece.strip("\n") for piece in pieces if piece) + "\n"


def _head(job: Job) -> str:
    if job.site.scheduler != "slurm":
        return "#!/usr/bin/env bash"
    asked = job.resources
    lines = [directive("--job-name", job.name)]
    given: list[tuple[str, str | int | None]] = [
        ("--account", asked.account),
        ("--partition", asked.partition),
        ("--nodes", asked.nodes),
        ("--ntasks", asked.ntasks),
        ("--ntasks-per-node", _even_tasks(asked)),
        ("--cpus-per-task", asked.cpus_per_task),
        ("--gres", asked.gres),
        ("--mem", asked.memory),
        ("--time", asked.minutes),
    ]
    lines += [directive(flag, value) for flag, value in given if value is not None]
    lines += [directive(flag) for flag in asked.flags]
    lines += [
        directive("--signal", f"B:USR1@{asked.grace_seconds}"),
        directive("--requeue"),
        directive("--open-mode", "append"),
        directive("--output", file_pattern(job.folder / "log.txt")),
    ]
    return "\n".join(["#!/usr/bin/env bash", *lines])


def _even_tasks(asked: Resources) -> int | None:
    """Tasks for each node; by itself SLURM may put all but one on the first node, which may have too few GPUs."""
    nodes = asked.nodes or 1
    is_said = any(flag.startswith(("--ntasks-per", "--tasks-per")) for flag in asked.flags)
    return None if nodes == 1 or asked.ntasks % nodes or is_said else asked.ntasks // nodes


def _about(job: Job) -> str:
    chain = ", ".join(step.name for step in job.steps)
    by_hand = "sbatch job.sh" if job.site.scheduler == "slurm" else "bash job.sh"
    title = " ".join((job.title or job.name).split())
    return f"""\
# {title} at {job.site.name}: {chain}. Each begins when the one before has ended well.
# Written by `portwright submit`; `{by_hand}` starts it by hand. Steps that have ended well, as the files steps/NAME.done
# say, are not repeated, so that starting it anew goes on where it was.
set -euo pipefail"""


def _places(job: Job) -> str:
    lines = [
        f"job_folder={quote(job.folder)}",
        f"model_dir={quote(job.model_dir)}",
        f"max_retries={job.max_retries} # attempts in a row that reach no new checkpoint and end no step",
    ]
    save_seconds = max(job.resources.grace_seconds - 20, job.resources.grace_seconds // 2, 1)
    lines.append(f"save_seconds={save_seconds} # that tasks have to save, once asked to")
    if job.site.scheduler != "slurm":
        lines.append(f"python={quote(job.python)} # that has portwright, to start tasks")
    return "\n".join(lines)


def _modules(job: Job) -> str:
    if not job.modules:
        return ""
    return f"""\
# A batch shell may not have read what defines `module`; its code does not bear -u and -e.
set +eu
# shellcheck source=/dev/null
type module >/dev/null 2>&1 || source /etc/profile
module load {" ".join(quote(name) for name in job.modules)} || exit 2
set -eu"""


def _environment(job: Job) -> str:
    lines = [f"export {name}={quote(value)}" for name, value in job.environment.items()]
    literal = [step.words[place] for step in job.steps for place in step.literal]
    expanded = {name for word in (*literal, *job.site.launch.srun) for name in variables_in(word)}
    wanted = sorted(expanded - {*job.environment})
    if any(not step.contained for step in job.steps):
        lines.append('export PATH="${SDK_INSTALL_PATH:+$SDK_INSTALL_PATH:}$PATH" # of cslc and cs_python')
    lines += [f': "${{{name}:?is not set here, and a step needs it}}"' for name in wanted]
    return "\n".join(lines)


def _rendezvous(job: Job) -> str:
    lines = [f'export PORTWRIGHT_JOB={quote(job.name)} PORTWRIGHT_JOB_FOLDER="$job_folder"']
    if job.site.scheduler == "slurm":
        lines += [
            "# Where the tasks of a step find each other: asked here, as a container has no scontrol.",
            'hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")',
            "export MASTER_ADDR=${hosts%%$'\\n'*}",
            "# Another one after each requeue, so that no task of an earlier attempt can meddle.",
            f"export MASTER_PORT=$(({_FIRST_PORT} + 2 * ((SLURM_JOB_ID + 997 * ${{SLURM_RESTART_COUNT:-0}}) % {_NUM_PORTS})))",
            'export OMP_NUM_THREADS="${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}"',
            "export SLURM_EXPORT_ENV=ALL # tasks need what is set here, though sbatch may have been told --export=NONE",
        ]
    else:
        lines += [
            "export MASTER_ADDR=localhost",
            f"export MASTER_PORT=$(({_FIRST_PORT} + 2 * ($$ % {_NUM_PORTS})))",
        ]
        if job.resources.cpus_per_task is not None:
            lines.append(f'export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-{job.resources.cpus_per_task}}}"')
    lines += [
        "export PYTHONUNBUFFERED=1 # lines are in the log when they are written",
        "# Without it torchrun does not get its processes together again after one has died.",
        "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
    ]
    if has_stream(job):
        lines += [
            "# What workers show the coordinator; nobody else can read it.",
            'export PORTWRIGHT_STREAM_KEY_FILE="$job_folder/stream.key"',
            'rm -f "$PORTWRIGHT_STREAM_KEY_FILE"',
            '(umask 077 && head -c 32 /dev/urandom | base64 >"$PORTWRIGHT_STREAM_KEY_FILE")',
        ]
    return "\n".join(lines)


def _task_hosts(job: Job) -> str:
    if job.site.scheduler != "slurm" or job.resources.nodes == 1 or all(s.ntasks == 1 for s in job.steps):
        host = '"$MASTER_ADDR"' if job.site.scheduler == "slurm" else "localhost"
        return f"""\
task_hosts() {{ # NTASKS: the host of each task, with commas between them
    local hosts rank
    hosts={host}
    for ((rank = 1; rank < $1; rank++)); do
        hosts+=,{host.strip('"')}
    done
    echo "$hosts"
}}"""
    flags = wrap([*_srun_flags(job), "--label", "printenv", "SLURMD_NODENAME"])
    return f"""\
task_hosts() {{ # NTASKS: the host of each task, with commas between them; only srun knows how it places them
    if (($1 == 1)); then
        echo "$MASTER_ADDR"
        return
    fi
    srun --ntasks="$1" {flags} |
        awk '{{ host[$1 + 0] = $NF }}
             END {{ for (rank = 0; rank in host; rank++) printf "%s%s", (rank ? "," : ""), host[rank] }}'
}}"""


def _srun_flags(job: Job) -> list[str]:
    flags = []
    if job.resources.cpus_per_task is not None:  # since 22.05 srun does not take it from the job
        flags.append(f"--cpus-per-task={job.resources.cpus_per_task}")
    return [
        *flags,
        *(quote_expanding(flag) if variables_in(flag) else quote(flag) for flag in job.site.launch.srun),
    ]


def _chain(job: Job) -> str:
    pieces, folder = [], job.workdir
    for step in job.steps:
        if (step.folder or job.workdir) != folder:
            folder = step.folder or job.workdir
            pieces.append(f"cd -- {quote(folder)}")
        pieces.append(wrap(_step_words(job, step)))
    return "\n\n".join(pieces)


def _step_words(job: Job, step: Step) -> list[str]:
    words = ["run_step", quote(step.name), str(step.ntasks)]
    if step.tells_end:
        words.insert(0, "tells_end=1")
    if job.site.scheduler == "slurm":
        nodes = job.resources.nodes
        if step.tasks == "stream":
            words.insert(0, "streams=1")
        words += ["srun", f"--ntasks={step.ntasks}"]
        if step.ntasks == 1 or (nodes is not None and step.ntasks < nodes):
            words.append(f"--nodes={step.ntasks}")
        words += _srun_flags(job)
        # Other workers take over a dead worker's data; without any other task, the step cannot go on.
        words += ["--kill-on-bad-exit=0", "--wait=0"] if step.tasks == "stream" else ["--kill-on-bad-exit=1"]
    else:
        words += ['"$python"', "-m", "portwright.launch.tasks", f"--ntasks={step.ntasks}"]
        words += ["--keep-going", "--"] if step.tasks == "stream" else ["--"]
    words += ['"$job_folder/task.sh"', quote(step.name)]
    return [*words, *_command_words(job, step)]


def _command_words(job: Job, step: Step) -> list[str]:
    words, prefix = list(step.words), job.site.launch.prefix
    program = len(prefix) if step.words[: len(prefix)] == prefix else 0
    if words[program] == "python" and container_of(job) is None:
        words[program] = job.python
    return [
        quote_expanding(word) if place in step.literal else quote(word) for place, word in enumerate(words)
    ]
