"""What job.sh does around its steps: notes, signals, requeue and retry; bash that is the same for every job of a kind."""

from __future__ import annotations

_NOTES = r"""
say() { echo "portwright: $*"; }

now() { date -u +%Y-%m-%dT%H:%M:%SZ; }

log_bytes=0 # that the log had when this attempt, or its newest step, began

mark_log() { log_bytes=$(wc -c 2>/dev/null <"$job_folder/log.txt") || log_bytes=0; }

said() { tail -c "+$((log_bytes + 1))" "$job_folder/log.txt" 2>/dev/null; } # what came into the log since

note_state() { # STATE STATUS: for `portwright jobs`; a reader never sees half a file
    local restarts=0
    [[ ! -e $job_folder/attempts ]] || restarts=$(wc -l <"$job_folder/attempts")
    printf '{"state": "%s", "step": "%s", "status": %d, "restarts": %d, "time": "%s"}\n' \
        "$1" "$step" "$2" "$restarts" "$(now)" >"$job_folder/state.json.new"
    mv -f "$job_folder/state.json.new" "$job_folder/state.json"
}

newest_checkpoint() { # the number of the newest checkpoint, or -
    local path number newest=-
    for path in "$model_dir"/checkpoint_* "$model_dir"/model.ckpt-*.index; do
        if [[ $path =~ /(checkpoint_|model\.ckpt-)([0-9]+)(\.index)?$ ]]; then
            number=$((10#${BASH_REMATCH[2]}))
            if [[ $newest == - ]] || ((number > newest)); then newest=$number; fi
        fi
    done
    echo "$newest"
}

note_attempt() { # WHY
    echo "$(now) $1 $(newest_checkpoint) $step" >>"$job_folder/attempts"
}

attempts_without_progress() { # that ended in this step with this checkpoint
    [[ -e $job_folder/attempts ]] || { echo 0; return; }
    awk -v checkpoint="$(newest_checkpoint)" -v step="$step" '
{requeued}        { count = ($3 == checkpoint && $4 == step) ? count + 1 : 0 }
        END { print count + 0 }' "$job_folder/attempts"
}
"""

_REQUEUED_BY_SLURM = r"""        $2 == "requeue:preempted" || $2 == "requeue:slurm" { next } # not for its own failures
"""

SLURM_SIGNALS = r"""
stop=""     # the signal that came: USR1 when the time limit is near, TERM when Slurm takes the job from its nodes
step=""     # the step that runs
step_pid="" # its srun

on_usr1() {
    stop=USR1
    say "SIGUSR1: the time limit is near. ${step:-The job} is asked to save."
    if [[ -n $step_pid ]]; then kill -USR1 "$step_pid" 2>/dev/null || true; fi # srun passes it on to every task
}

on_term() { # Slurm tells the tasks itself; srun would kill them if it were passed on while they save
    stop=TERM
}

trap on_usr1 USR1
trap on_term TERM
"""

LOCAL_SIGNALS = r"""
stop=""     # the signal that came: USR1 asks to save and start again, TERM and INT to end
step=""     # the step that runs
step_pid="" # what started its tasks

on_usr1() {
    stop=USR1
    say "SIGUSR1: ${step:-the job} is asked to save."
    if [[ -n $step_pid ]]; then kill -USR1 "$step_pid" 2>/dev/null || true; fi
}

on_term() {
    stop=TERM
    if [[ -n $step_pid ]]; then kill -TERM "$step_pid" 2>/dev/null || true; fi
}

trap on_usr1 USR1
trap on_term TERM INT
"""

ENDINGS = r"""
settled="" # the job's state is written

end_job() { # STATE STATUS
    note_state "$1" "$2"
    settled=1
    exit "$2"
}

fail() { # STATUS WHY
    say "$2"
    say "The log is $job_folder/log.txt; steps that have ended well are not repeated when job.sh is started again."
    end_job failed "$1"
}

give_up() { # WHY STATUS
    fail "$2" "$step ended with status $2 ($1). Attempts in a row without a new checkpoint: $((max_retries + 1)); no more are made."
}

on_exit() { # STATUS: whatever ends this script is written down
    [[ -n $settled ]] || note_state failed "$1"
}

trap 'on_exit $?' EXIT
"""

SLURM_REQUEUE = r"""
ask_slurm() { # sets answer: what Slurm holds of this job, as NAME=VALUE with spaces between
    for _ in 1 2 3; do # a SIGTERM to all processes of the job hits the question too
        answer=$(scontrol --oneliner show job "$SLURM_JOB_ID") && return
        sleep 1 || true
    done
    answer=""
}

leave_if_ended() { # Slurm takes the job from its nodes when it is cancelled, preempted or a node fails
    trap '' TERM # what follows must not be hit
    ask_slurm
    if [[ -z $answer || $answer =~ " JobState="(RUNNING|CONFIGURING|RESIZING|SIGNALING|SUSPENDED)" " ]]; then return; fi
    local why
    why=$(said | grep -a "JOB $SLURM_JOB_ID ON .* DUE TO " | tail -n 1) || why=""
    if [[ $answer =~ " Restarts="([0-9]+) ]] && ((BASH_REMATCH[1] > ${SLURM_RESTART_COUNT:-0})); then
        case $why in
            *PREEMPTION*) note_attempt requeue:preempted ;;
            *"NODE FAILURE"*) note_attempt node ;;
            *) note_attempt requeue:slurm ;;
        esac
        say "Slurm has put the job back into the queue; the newest checkpoint is $(newest_checkpoint)."
        end_job requeued 143
    elif [[ $answer == *" Reason=TimeLimit "* ]]; then
        say "The time limit has come before $step could save."
        start_again requeue:timeout 143
    elif [[ $why == *PREEMPTION* ]]; then
        say "The job was preempted, and Slurm does not requeue what is preempted here."
        start_again requeue:preempted 143
    fi
    say "The job was cancelled."
    end_job cancelled 143
}

is_preempted() { # whether the answer says so of this attempt; it may still name an earlier one's time
    local time
    [[ $answer =~ " PreemptTime="([0-9][^ ]*) ]] || return 1
    time=${BASH_REMATCH[1]}
    [[ $answer =~ " StartTime="([0-9][^ ]*) && ! $time < ${BASH_REMATCH[1]} ]]
}

start_again() { # WHY STATUS; Slurm was asked a moment ago
    local why=$1
    trap '' TERM # that of the requeue
    if is_preempted; then why=requeue:preempted; fi # nobody's failure, so that it may happen any number of times
    if [[ $why != requeue:preempted ]] && (($(attempts_without_progress) >= max_retries)); then
        give_up "$why" "$2"
    fi
    note_attempt "$why"
    say "$step ended with status $2 ($why). The job is requeued; the newest checkpoint is $(newest_checkpoint)."
    note_state requeued "$2"
    settled=1
    for _ in 1 2 3; do # a controller that changes over does not answer for a moment
        if scontrol requeue "$SLURM_JOB_ID"; then exit "$2"; fi
        sleep 3 || true
    done
    fail "$2" "Slurm does not requeue the job. Start it again by hand: sbatch $job_folder/job.sh"
}
"""

LOCAL_REQUEUE = r"""
start_again() { # WHY STATUS; whoever started this script starts it again when its state is requeued
    if (($(attempts_without_progress) >= max_retries)); then give_up "$1" "$2"; fi
    note_attempt "$1"
    say "$step ended with status $2 ($1). The job starts again; the newest checkpoint is $(newest_checkpoint)."
    end_job requeued 85
}
"""

_LOST_CONNECTION = r"""
lost_connection() { # whether the log says, since the step began, that a task was lost to the others and none failed by itself
    ! grep -aqE 'process [0-9]+ failed:' < <(said) &&
        grep -aqE -e 'error: .* (has died|cannot be reached any more)' \
{of_srun}            -e 'Error: .*(Connection (reset|closed|refused)|Socket closed|Broken pipe)' \
            -e 'StatusCode\.UNAVAILABLE|DistNetworkError|NCCL error: (remote process|unhandled system)' < <(said)
}
"""

_SRUN_ERRORS = r"""            -e 'srun: error: (Node failure|Unable to create step)' \
"""

_WATCH_WORKERS = r"""
end_hanging_workers() { # PID of srun: workers end when the coordinator has; one that hangs must not hold the nodes
    until [[ -e $job_folder/steps/$step.status ]]; do sleep 5; done
    sleep 60
    kill -TERM "$1"
}
"""

_BEGIN_STEP = r"""
run_step() { # NAME NTASKS WORD...
    local status=0 deadline=""
    step=$1
    if [[ -e $job_folder/steps/$step.done ]]; then
        say "$step was done before."
        return
    fi
{still_ours}    note_state running 0
    mark_log
    PORTWRIGHT_TASK_HOSTS=$(task_hosts "$2") || settle_step "$?"
    export PORTWRIGHT_TASK_HOSTS
    rm -f "$job_folder/steps/$step".{saved,status,ended}
    export PORTWRIGHT_END_NOTE="$job_folder/steps/$step.ended"
{cancelled}    if [[ $stop == USR1 ]]; then start_again requeue:signal 85; fi # too late for another step
    say "$step begins at $(now) with $2 task(s)."

    # In the background, since bash runs a trap only between commands and during wait.
    "${@:3}" &
    step_pid=$!
    if [[ $stop == USR1 ]]; then kill -USR1 "$step_pid" 2>/dev/null || true; fi # it came a moment ago
"""

_BEGIN_WATCH = r"""    if [[ -n ${streams:-} ]]; then
        end_hanging_workers "$step_pid" >/dev/null 2>&1 &
        streams=$!
    fi
"""

_WAIT = r"""    while kill -0 "$step_pid" 2>/dev/null; do
{on_term}        if [[ -z $stop ]]; then
            wait "$step_pid" || true # ends early when a signal comes
        else
            deadline=${deadline:-$((SECONDS + save_seconds))}
            ((SECONDS < deadline)) || break
            sleep 1
        fi
    done
    if kill -0 "$step_pid" 2>/dev/null; then
        say "$step has not ended $save_seconds seconds after it was asked to."
        status=143
    else
        wait "$step_pid" || status=$?
    fi
    step_pid=""
"""

_SLURM_ON_TERM = r"""        if [[ $stop == TERM ]]; then
            leave_if_ended
            trap on_term TERM
            on_usr1 # the job runs on: somebody asked this script alone to end
        fi
"""

_SLURM_STILL_OURS = r"""    leave_if_ended
    trap on_term TERM
"""

_LOCAL_TERM = r"""    if [[ $stop == TERM ]]; then
        say "The job was cancelled."
        end_job cancelled 143
    fi
"""

_END_WATCH = r"""    if [[ -n ${streams:-} ]]; then kill "$streams" 2>/dev/null || true; fi
    if [[ -e $job_folder/steps/$step.status ]]; then
        status=$(<"$job_folder/steps/$step.status") # srun's may be a dead worker's; the coordinator's counts
    elif [[ -n ${streams:-} ]] && ((status == 0)); then
        status=137 # the workers ended well, and the coordinator was killed with its task.sh, which would have told
    fi
"""

_END_STEP = r"""    if ((status == 0)) && [[ -e $job_folder/steps/$step.saved ]]; then
        status=85 # see task.sh
    fi
    settle_step "$status"
}

settle_step() { # STATUS
{leave}    case $1 in
        0)
            if [[ -n ${tells_end:-} && ! -e $PORTWRIGHT_END_NOTE ]]; then
                fail 1 "$step ended with status 0 before it had said that it reached its end. The newest checkpoint is $(newest_checkpoint)."
            fi
            touch "$job_folder/steps/$step.done"
            say "$step has ended well."
            ;;
        1 | 2 | 3) # the program's own
            if lost_connection; then start_again "retry:$1" "$1"; fi
            fail "$1" "$step failed with status $1."
            ;;
        *)
            if [[ $stop == USR1 ]]; then start_again requeue:signal "$1"; fi
            if (($1 == 85)); then start_again requeue:85 85; fi
            # Killed by a signal: no error of the program itself. 255 is one, such as a container's that does not start.
            if (($1 > 128 && $1 <= 192)); then start_again "retry:$1" "$1"; fi
            fail "$1" "$step failed with status $1."
            ;;
    esac
}
"""

_SLURM_LEAVE = r"""    leave_if_ended # whatever srun says: it does not count tasks that were lost with their node
"""

_STREAM_LEAVE = r"""    if (($1 != 0)) || [[ -z ${streams:-} ]]; then
        leave_if_ended # whatever srun says: it does not count tasks that were lost with their node
    fi
    trap '' TERM
"""

SLURM_ONLY = r"""
if [[ -z ${SLURM_JOB_ID:-} || -z ${SLURM_JOB_NODELIST:-} ]]; then
    echo "This script is for Slurm: hand it over with sbatch $0" >&2
    exit 2
fi
other=$(cat "$job_folder/scheduler_id" 2>/dev/null) || other="" # the job that was started from this folder before
if [[ $other != "$SLURM_JOB_ID" && -n $other && -n $(squeue --noheader --states=PENDING,RUNNING,SUSPENDED --jobs="$other" 2>/dev/null) ]]; then
    echo "portwright: the job $other was started from $job_folder too and has not ended, so that this one, $SLURM_JOB_ID, does not begin." >&2
    exit 2
fi
echo "$SLURM_JOB_ID" >"$job_folder/scheduler_id.new" # by which `portwright jobs` knows a job that was started by hand
mv -f "$job_folder/scheduler_id.new" "$job_folder/scheduler_id"
"""

BEGIN = r"""
mkdir -p "$job_folder/steps" "$model_dir"
case $(sed -n 's/^{"state": "\([a-z]*\)".*/\1/p' "$job_folder/state.json" 2>/dev/null || true) in
    requeued) ;;
    running) # no trap has run: the node was lost, or this script was killed
        step=$(sed -n 's/.*"step": "\([^"]*\)".*/\1/p' "$job_folder/state.json")
        note_attempt node
        ;;
    *) rm -f "$job_folder/attempts" ;; # not begun before, or ended
esac
mark_log
"""

FINISH = r"""
step=""
note_state "done" 0
settled=1
say "All steps are done."
"""


def note_functions(*, slurm: bool) -> str:
    """The functions that write down what happens."""
    return _NOTES.replace("{requeued}", _REQUEUED_BY_SLURM if slurm else "")


def run_step_functions(*, slurm: bool, stream: bool) -> str:
    """The function that runs one step, and the one that settles what its end means."""
    watched = slurm and stream
    pieces = [
        _LOST_CONNECTION.replace("{of_srun}", _SRUN_ERRORS if slurm else ""),
        _WATCH_WORKERS if watched else "",
        _BEGIN_STEP.replace("{still_ours}", _SLURM_STILL_OURS if slurm else "").replace(
            "{cancelled}", "" if slurm else _LOCAL_TERM
        ),
        _BEGIN_WATCH if watched else "",
        _WAIT.replace("{on_term}", _SLURM_ON_TERM if slurm else ""),
        "" if slurm else _LOCAL_TERM,
        _END_WATCH if watched else "",
        _END_STEP.replace("{leave}", _STREAM_LEAVE if watched else _SLURM_LEAVE if slurm else ""),
    ]
    return "".join(pieces)
