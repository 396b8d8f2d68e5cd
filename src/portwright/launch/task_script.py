"""task.sh: what each task of a step runs, between the scheduler and the program."""

from __future__ import annotations

from portwright.launch.job import Job


def render_task(job: Job) -> str:
    """The text of task.sh; its arguments are the step's name and the words of the program."""
    slurm = job.site.scheduler == "slurm"
    stream = any(step.tasks == "stream" for step in job.steps)
    pieces = [
        _HEAD,
        _SLURM_RANKS if slurm else "",
        _PLAIN_PROGRAM,
        _RUN,
        _COORDINATOR_STATUS if slurm and stream else "",
        _END,
    ]
    return "\n\n".join(piece.strip("\n") for piece in pieces if piece) + "\n"


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
"""

_COORDINATOR_STATUS = r"""
if ((RANK == 0)); then # where workers serve task 0, its status is the step's
    echo "$status" >"$PORTWRIGHT_JOB_FOLDER/steps/$step.status.new"
    mv -f "$PORTWRIGHT_JOB_FOLDER/steps/$step.status.new" "$PORTWRIGHT_JOB_FOLDER/steps/$step.status"
fi
"""

_END = r"""
if ((status == 85)); then
    # It has saved and wants to go on later. As a failure it would end the other tasks, which may still be saving.
    touch "$PORTWRIGHT_JOB_FOLDER/steps/$step.saved"
    status=0
fi
exit "$status"
"""
