"""Types for the values of a site's file, each with a check and its message."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from portwright.errors import UserError
from portwright.job.problems import show
from portwright.launch.times import minutes_of

NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GRES = re.compile(r"[A-Za-z]\w*(:(?=[\w.-]*[A-Za-z])[\w.-]+)?(:[1-9][0-9]*[KMGTP]?)?", re.ASCII)
_MEMORY = re.compile(r"[0-9]+[KMGT]?")
# Names of variables that hold secrets. PWD and OLDPWD are folders, TOKENIZERS_PARALLELISM is no token, and a name that
# ends in _FILE tells where a secret lies.
SECRET = re.compile(
    r"^(?!.*_(?:FILE|PATH|DIR|SOCK|NAME|TYPE|URL|LENGTH|LEN|LIMIT|COUNT|SIZE|TIMEOUT|TTL)$)(?:"
    r".*(?:TOKEN|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE|CREDENTIALS?|(?:API|ACCESS|PRIVATE)_?KEYS?)(?:_|\d*$)"
    r"|(?:.*_)?(?:JWT|CREDS?)(?:_|\d*$)"
    r"|(?:.*_)?(?:KEY|PAT|O?AUTH)\d*$"
    r"|.*(?<!BY)(?<!COM)PASS\d*$"
    r"|.+(?<!OLD)PWD\d*$)",
    re.IGNORECASE,
)
# A narrower pattern for keys of params: pad_token and label_key are no secrets.
_SECRET_KEY = re.compile(
    r"(?:SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE|(?:API|ACCESS|PRIVATE|WANDB)_?KEYS?|CREDENTIALS?|_PWD|(?:^|_)(?:CREDS|JWT))$"
    r"|(?:^|(?:^|_)(?:API|AUTH|ACCESS|HF|HUB|HUGGINGFACE|SESSION|BEARER|USER|WANDB|GITHUB|GITLAB|SECRET))_?TOKEN$",
    re.IGNORECASE,
)
_LOGIN_IN_URL = re.compile(r"://[^/\s@:]*:[^/\s@]+@")
# Flags that job.sh sets itself, and the key of the site's file for each.
_OWN_FLAGS = {
    "--account": "job.account, and --account of the command",
    "-A": "job.account, and --account of the command",
    "--partition": "job.partition",
    "-p": "job.partition",
    "--nodes": "job.nodes",
    "-N": "job.nodes",
    "--ntasks": "job.ntasks",
    "-n": "job.ntasks",
    "--cpus-per-task": "job.cpus_per_task",
    "-c": "job.cpus_per_task",
    "--gres": "job.gres",
    "--mem": "job.memory",
    "--time": "job.time",
    "-t": "job.time",
    "--signal": "job.grace_seconds",
    "--job-name": "the job's name",
    "-J": "the job's name",
    "--output": "the job's folder",
    "-o": "the job's folder",
    "--error": "the job's folder",
    "-e": "the job's folder",
    "--open-mode": "the job's folder",
    "--requeue": "job.max_retries",
    "--no-requeue": "job.max_retries",
}
_ARRAY = (
    "would start tasks that share one folder, log and model_dir: one job is one run. "
    "Submit several jobs, each with its own --model_dir"
)
_WAIT = "keeps sbatch from answering: submit follows a job by itself, and --no-follow leaves it"
# Flags that change what sbatch does, and what to use instead.
_OTHER_FLAGS = {
    "--array": _ARRAY,
    "-a": _ARRAY,
    "--wait": _WAIT,
    "-W": _WAIT,
    "--wrap": "gives sbatch another script than the job's. Name what is to run as the subject of submit",
    "--test-only": "submits nothing. Use --dry-run, whose checks ask sbatch the same",
}


def _as_text(value: object) -> object:
    if isinstance(value, (datetime.time, datetime.date)):
        raise ValueError(f"TOML takes this for a clock's time, received {value}; put it in quotes")
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _check_time(value: str) -> str:
    try:
        minutes_of(value)
    except UserError as error:
        raise ValueError(str(error)) from None
    return value


def _matching(fits: Callable[[str], object], expected: str) -> AfterValidator:
    """A check that refuses other values with a message of one form."""

    def check(value: str) -> str:
        if not fits(value):
            raise ValueError(f"expected {expected}, received {show(value)}")
        return value

    return AfterValidator(check)


def _is_bind(value: str) -> bool:
    parts = value.split(":")
    return len(parts) <= 2 and "," not in value and all(part.startswith("/") for part in parts)


def _check_own_flag(value: str) -> str:
    first, _, rest = re.sub(r"\s+", "=", value, count=1).partition("=")  # --qos=low or --qos low
    name = _full_name(first if value.startswith("--") else value[:2])
    if name in _OWN_FLAGS:
        raise ValueError(f"the script says {name} itself ({_OWN_FLAGS[name]}), received {show(value)}")
    if name in _OTHER_FLAGS:
        raise ValueError(f"{name} {_OTHER_FLAGS[name]}, received {show(value)}")
    if name == "--export" and "=" in rest:
        # The value may be a secret, and is not repeated.
        raise ValueError(
            "received --export with a value, which job.sh and SLURM's records would show. "
            "Give --env NAME=VALUE for what anybody may see, --pass NAME for what is set in your shell"
        )
    return value


def _full_name(given: str) -> str:
    """The flag that sbatch would take `given` for: it accepts the beginning of a long flag, as in --arr=0-3."""
    if len(given) < 4:
        return given
    return next((name for name in (*_OWN_FLAGS, *_OTHER_FLAGS) if name.startswith(given)), given)


def is_secret_key(key: str) -> bool:
    """Whether a key of params looks like that of a secret: train_input.api_key."""
    return _SECRET_KEY.search(key.rpartition(".")[2].strip()) is not None


def has_login(value: str) -> bool:
    """Whether an address in the value holds a password: http://user:password@host."""
    return _LOGIN_IN_URL.search(value) is not None


def _check_target(value: str) -> str:
    from portwright.discover import find_target, find_targets, suggest_target

    target = find_target(value)
    if target is None:
        raise ValueError(f"unknown target, received {show(value)}. {suggest_target(value, find_targets())}")
    return target.name


_FLAG = _matching(re.compile(r"--?[A-Za-z]").match, "a flag such as --qos=low")
Time = Annotated[str, BeforeValidator(_as_text), AfterValidator(_check_time)]
Gres = Annotated[
    str,
    _matching(
        lambda value: all(map(_GRES.fullmatch, value.split(","))),
        "name:count or name:type:count, such as gpu:2 or gpu:a100:2",
    ),
]
Memory = Annotated[
    str,
    BeforeValidator(_as_text),
    _matching(_MEMORY.fullmatch, "a size such as 64G or 4000M, or 0 for all of a node"),
]
Word = Annotated[str, _matching(re.compile(r"(?!-)\S+").fullmatch, "one word")]
Variable = Annotated[str, _matching(_VARIABLE.fullmatch, "the name of an environment variable")]
Folder = Annotated[str, _matching(lambda value: value.startswith("/"), "a path that begins with /")]
Bind = Annotated[str, _matching(_is_bind, "/path or /path:/path/inside, without a comma")]
Flag = Annotated[str, _FLAG]
JobFlag = Annotated[str, _FLAG, AfterValidator(_check_own_flag)]
TargetName = Annotated[str, AfterValidator(_check_target)]
