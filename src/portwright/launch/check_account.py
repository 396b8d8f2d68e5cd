"""Whether the account that a job charges is right."""

from __future__ import annotations

import getpass

from portwright.errors import suggest
from portwright.launch.findings import Answer, Finding, Run
from portwright.launch.job import Job


def check_account(job: Job, run: Run, *, at_site: bool) -> list[Finding]:
    """Given where it must be, spelled as the site does, and one of the user's."""
    rules, account = job.site.job, job.resources.account
    groups = run(["id", "-Gn"]).out.split() if rules.account_lower else []
    if account is None:
        if rules.account != "required":
            return []
        yours = f" Your groups: {', '.join(groups)}." if groups and at_site else ""
        return [
            Finding(
                "error",
                f"{job.site.name} charges an account, and none is given.",
                f"Give --account PROJECT.{yours}",
            )
        ]
    if rules.account == "none":
        return [
            Finding(
                "warning", f"{job.site.name} has no accounts, received '{account}'.", "Leave --account out."
            )
        ]
    if rules.account_lower and account != account.lower():
        return [
            Finding(
                "error",
                f"accounts of {job.site.name} are written in small letters, received '{account}'.",
                f"Give --account {account.lower()}.",
            )
        ]
    if not at_site:
        return []
    known = _accounts_of_user(run)
    if known:
        if account.lower() in {name.lower() for name in known}:
            return []
        return [
            Finding("error", f"SLURM knows no account '{account}' of yours.", suggest(account, known)),
        ]
    if rules.account_lower and groups and account not in groups:
        return [
            Finding(
                "warning",
                f"{job.site.name} charges groups, and '{account}' is not among yours, nor does SLURM's accounting answer.",
                suggest(account, groups),
            )
        ]
    if rules.account_lower and groups:
        return []
    return [
        Finding(
            "note", f"the account '{account}' was not checked here: SLURM's accounting does not answer.", ""
        )
    ]


def _accounts_of_user(run: Run) -> set[str]:
    answer = Answer(None)
    if (user := _user_name()) is not None:
        answer = run(["sacctmgr", "-nP", "show", "assoc", f"user={user}", "format=account"])
    if not answer.is_good or not answer.out.strip():
        answer = run(["sshare", "-nPU", "-o", "Account"])
    if not answer.is_good:
        return set()
    names = (line.split("|")[0].strip() for line in answer.out.splitlines())
    return {name for name in names if name and not name.startswith("-") and name != "Account"}


def _user_name() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name; which of the two depends on Python
        return None
