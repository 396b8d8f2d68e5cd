"""What values of a site's file must look like: each type says it in its own words."""

from __future__ import annotations

import datetime
import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from portwright.errors import UserError, suggest
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
# Keys of params are fewer: a model has pad_token and label_key, which nobody needs to hide.
_SECRET_KEY = re.compile(
    r"(?:SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE|(?:API|ACCESS|PRIVATE|WANDB)_?KEYS?|CREDENTIALS?|_PWD|(?:^|_)(?:CREDS|JWT))$"
    r"|(?:^|(?:^|_)(?:API|AUTH|ACCESS|HF|HUB|HUGGINGFACE|SESSION|BEARER|USER|WANDB|GITHUB|GITLAB|SECRET))_?TOKEN$",
    re.IGNORECASE,
)
_LOGIN_IN_URL = re.compile(r"://[^/\s@:]*:[^/\s@]+@")
# Flags that a script says by itself, and the key that they are said with.
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
# Flags that turn a submission into something else, and what is meant for it.
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


def _check_gres(value: str) -> str:
    if not all(_GRES.fullmatch(part) for part in value.split(",")):
        raise ValueError(
            f"expected name:count or name:type:count, such as gpu:2 or gpu:a100:2, received {show(value)}"
        )
    return value


def _check_memory(value: str) -> str:
    if not _MEMORY.fullmatch(value):
        raise ValueError(
            f"expected a size such as 64G or 4000M, or 0 for all of a node, received {show(value)}"
        )
    return value


def _check_word(value: str) -> str:
    if not value or any(c.isspace() for c in value) or value.startswith("-"):
        raise ValueError(f"expected one word, received {show(value)}")
    return value


def _check_variable(value: str) -> str:
    if not _VARIABLE.fullmatch(value):
        raise ValueError(f"expected the name of an environment variable, received {show(value)}")
    return value


def _check_folder(value: str) -> str:
    if not value.startswith("/"):
        raise ValueError(f"expected a path that begins with /, received {show(value)}")
    return value


def _check_bind(value: str) -> str:
    parts = value.split(":")
    if len(parts) > 2 or "," in value or not all(part.startswith("/") for part in parts):
        raise ValueError(f"expected /path or /path:/path/inside, without a comma, received {show(value)}")
    return value


def _check_flag(value: str) -> str:
    if not re.match(r"--?[A-Za-z]", value):
        raise ValueError(f"expected a flag such as --qos=low, received {show(value)}")
    return value


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
    """sbatch takes the beginning of a long flag for the whole, as in --arr=0-3; no flag that may be given is one."""
    if len(given) < 4:
        return given
    return next((name for name in (*_OWN_FLAGS, *_OTHER_FLAGS) if name.startswith(given)), given)


def is_secret_key(key: str) -> bool:
    """Whether a key of params looks as if it held a secret: train_input.api_key."""
    return _SECRET_KEY.search(key.rpartition(".")[2].strip()) is not None


def has_login(value: str) -> bool:
    """Whether an address in the value holds a password: http://user:password@host."""
    return _LOGIN_IN_URL.search(value) is not None


def _check_target(value: str) -> str:
    from portwright.discover import find_targets

    if value.upper() not in find_targets():
        raise ValueError(f"unknown target, received {show(value)}. {suggest(value.upper(), find_targets())}")
    return value.upper()


Time = Annotated[str, BeforeValidator(_as_text), AfterValidator(_check_time)]
Gres = Annotated[str, AfterValidator(_check_gres)]
Memory = Annotated[str, BeforeValidator(_as_text), AfterValidator(_check_memory)]
Word = Annotated[str, AfterValidator(_check_word)]
Variable = Annotated[str, AfterValidator(_check_variable)]
Folder = Annotated[str, AfterValidator(_check_folder)]
Bind = Annotated[str, AfterValidator(_check_bind)]
Flag = Annotated[str, AfterValidator(_check_flag)]
JobFlag = Annotated[str, AfterValidator(_check_flag), AfterValidator(_check_own_flag)]
TargetName = Annotated[str, AfterValidator(_check_target)]
