"""task.sh: the script of each task of a step, which starts the program."""

from __future__ import annotations

from portwright.errors import UserError
from portwright.launch.container import CH_RUN_KEEPS, IMAGE_PATH, start_words, write_bind
from portwright.launch.job import Container, Job
from portwright.launch.words import quote, wrap

# Variables that job.sh and task.sh set for the program, and variables of a scheduler that a program needs.
_OWN = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("OMP_NUM_THREADS", "PYTHONUNBUFFERED", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"),
    *("PORTWRIGHT_JOB", "PORTWRIGHT_JOB_FOLDER", "PORTWRIGHT_TASK_HOSTS", "PORTWRIGHT_END_NOTE"),
)
_STREAM_KEY = "PORTWRIGHT_STREAM_KEY_FILE"
# Without the variables for devices, a container sees the GPUs of other jobs.
_SLURM = (
    "SLURM_JOB_ID",
    "SLURM_GPUS_PER_TASK",
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
)


def render_task(job: Job) -> str:
    """The text of task.sh; its arguments are the step's name and the words of the program."""
    slurm = job.site.scheduler == "slurm"
    container = container_of(job)
    pieces = [
        _HEAD,
        _SLURM_RANKS if slurm else "",
        *(_contained(job, container) if container else [_PLAIN_PROGRAM]),
        _RUN,
        _coordinator_status(job) if slurm and has_stream(job) else "",
        _end(job),
    ]
    return "\n\n".join(piece.strip("\n") for piece in pieces if piece) + "\n"


def container_of(job: Job) -> Container | None:
    """The container of the steps; programs of the Cerebras SDK bring their own."""
    contained = {step.contained for step in job.steps}
    if len(contained) > 1:
        raise UserError(
            f"some steps of {job.name} run in its container and some do not.", "Submit them as two jobs."
        )
    return job.container if contained == {True} else None


def has_stream(job: Job) -> bool:
    """Whether a step's tasks are a coordinator and its workers."""
    return any(step.tasks == "stream" for step in job.steps)


def visible_variables(job: Job) -> tuple[str, ...]:
    """Names of the variables that a clean container sees, each once."""
    names = [*_OWN, *([_STREAM_KEY] if has_stream(job) else [])]
    if job.site.scheduler == "slurm":
        names += _SLURM
    if job.container is not None and job.container.packages is not None:
        names.append("PYTHONPATH")
    return tuple(dict.fromkeys([*names, *job.environment, *job.passed]))


_HEAD = r"""
#!/usr/bin/env bash
# What one task of a step runs: task.sh STEP WORD...; job.sh starts it.
set -euo pipefail
step=$1
shift
"""

_SLURM_RANKS = r"""
# torchrun's names for what Slurm says of this task.
export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_STEP_NUM_TASKS LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE=0
IFS=, read -r -a hosts <<<"$PORTWRIGHT_TASK_HOSTS"
for host in "${hosts[@]}"; do
    if [[ $host == "${hosts[RANK]}" ]]; then LOCAL_WORLD_SIZE=$((LOCAL_WORLD_SIZE + 1)); fi
done
"""

_PLAIN_PROGRAM = r"""
program=("$@")
"""

_RUN = r"""
# Signals go to every process of the task. The program decides what they mean; this shell outlives it, to tell its end.
trap : USR1 TERM
status=0
"${program[@]}" || status=$?
trap '' USR1 TERM # a signal that comes again must not hit what follows
"""


def _coordinator_status(job: Job) -> str:
    return f"""\
if ((RANK == 0)) && {_is_stream_step(job)}; then # workers may die: the coordinator's status is the step's
    echo "$status" >"$PORTWRIGHT_JOB_FOLDER/steps/$step.status.new"
    mv -f "$PORTWRIGHT_JOB_FOLDER/steps/$step.status.new" "$PORTWRIGHT_JOB_FOLDER/steps/$step.status"
fi"""


def _end(job: Job) -> str:
    touch = 'touch "$PORTWRIGHT_JOB_FOLDER/steps/$step.saved"'
    if has_stream(job):
        touch = (
            f"if ((RANK == 0)) || ! {_is_stream_step(job)}; then {touch}; fi # workers have nothing to save"
        )
    return f"""\
if ((status == 85)); then
    # It has saved and wants to go on later. As a failure it would end the other tasks, which may still be saving.
    {touch}
    status=0
fi
exit "$status\""""


def _is_stream_step(job: Job) -> str:
    tests = [f"$step == {quote(step.name)}" for step in job.steps if step.tasks == "stream"]
    return f"[[ {' || '.join(tests)} ]]"


def _contained(job: Job, container: Container) -> list[str]:
    return [_image(container), _packages(container), _visible(job, container), _program(container)]


def _image(container: Container) -> str:
    lines = [f"image={quote(container.image)}"]
    if container.images_on_nodes:
        copies = wrap([quote(path) for path in container.images_on_nodes])
        lines += [
            f"for copy in {copies}; do # on this node's own disks",
            "    if [[ -e $copy ]]; then",
            "        image=$copy",
            "        break",
            "    fi",
            "done",
        ]
    return "\n".join(lines)


def _packages(container: Container) -> str:
    if container.packages is None:
        return ""
    return f"""\
# The image has no portwright of its own.
export PYTHONPATH={quote(container.packages)}${{PYTHONPATH:+:$PYTHONPATH}}"""


def _visible(job: Job, container: Container) -> str:
    if not container.clean_env:
        return ""
    kept = CH_RUN_KEEPS if container.kind == "ch-run" else ()
    names = wrap([*kept, *visible_variables(job)], "    ").strip()
    text = f"""\
# Of the host's variables the container sees these alone. They stay in the environment: a command line can be seen by all.
visible=({names})"""
    if container.kind == "ch-run":
        return text
    return f"""\
{text}
for name in "${{visible[@]}}"; do
    if [[ -n ${{!name+set}} ]]; then
        export "APPTAINERENV_$name=${{!name}}" "SINGULARITYENV_$name=${{!name}}"
    fi
done"""


def _program(container: Container) -> str:
    lines = [f"program=({wrap([quote(word) for word in start_words(container)])})"]
    if container.kind == "ch-run":
        lines += _CH_RUN_CLEAN.strip("\n").split("\n") if container.clean_env else []
        lines += _CH_RUN_BEFORE.strip("\n").split("\n")
    if container.binds:
        binds = " \\\n    ".join(quote(write_bind(bind)) for bind in container.binds)
        lines += [f"for bind in {binds}; do", *_bind_lines(container), "done"]
    if container.kind == "ch-run":
        lines.append('program+=(--cd "$PWD" "$image" -- "$@")')
    else:
        lines.append('program+=(--pwd "$PWD" "$image" "$@")')
    return "\n".join(lines)


def _bind_lines(container: Container) -> list[str]:
    lines = _BIND.strip("\n").split("\n")
    if container.kind == "ch-run":
        lines += _CH_RUN_MOUNT_POINT.strip("\n").split("\n")
    return [*lines, '    program+=(--bind "$bind")']


_BIND = r"""
    if [[ ! -e ${bind%%:*} ]]; then
        if ((LOCAL_RANK == 0)); then
            echo "portwright: $(hostname) has no ${bind%%:*}, so that the container does not see it." >&2
        fi
        continue
    fi
"""

_CH_RUN_CLEAN = f"""
program+=("--unset-env=!($(IFS='|' && echo "${{visible[*]}}"))" --set-env=PATH={IMAGE_PATH})
"""

_CH_RUN_BEFORE = r"""
export USER="${USER:-$(id -un)}" # ch-run does not begin without it
if [[ ! -d $image || -e $image/ch/environment ]]; then
    program+=(--set-env) # the image's own variables
fi
"""

_CH_RUN_MOUNT_POINT = r"""
    # ch-run binds only onto what the image has. Its /tmp is the host's.
    if [[ -d $image && ! -e $image${bind#*:} && ${bind#*:} != /tmp/* ]]; then
        if [[ -d ${bind%%:*} ]]; then
            mkdir -p "$image${bind#*:}"
        else
            mkdir -p "$(dirname "$image${bind#*:}")"
            touch "$image${bind#*:}"
        fi
    fi
"""
