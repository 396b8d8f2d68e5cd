"""The environment of Cerebras's SDK, separate because the SDK pins torch 2.4.0; the settings by which it reaches a cluster, and
explanations where it cannot."""

from __future__ import annotations

import os
import re
import socket
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portwright.errors import UnsupportedError, UserError
from portwright.job.runconfig import RunConfig
from portwright.job.vendor_env import VendorEnvironment

ENVIRONMENT = VendorEnvironment(
    target="csx",
    title="the Cerebras SDK",
    module="cerebras.pytorch",
    distribution="cerebras_pytorch",
    version="2.10.0",
    python=(3, 11),
    machine="x86_64",
    requirements=Path(__file__).with_name("requirements.txt"),
    size="6 GB, a few minutes",
)
# The cluster's address and certificates, written by the installer of a user node; CSCONFIG_PATH names another file.
CONFIG_FILE = Path("/opt/cerebras/config_v2")
_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:]+\]):(?P<port>[0-9]{1,5})")
_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True)
class ClusterSettings:
    """The flags' and runconfig's settings; `address` is None where they have none and the SDK's own file is missing."""

    address: str | None
    source: str  # the flag, key or file that gave the address
    options: Mapping[str, Any]  # the arguments of the SDK's ClusterConfig

    def require_address(self) -> None:
        if self.address is None:
            raise UnsupportedError(
                "no Cerebras cluster is configured: the kernel compiler and the wafer are there, and this machine has the front end alone.",
                missing_setting(),
            )

    def check_reachable(self) -> None:
        """Raises where nothing answers at the address: the SDK's client would retry forever."""
        if self.address is None or self.source == str(config_file()):
            return
        match = _ADDRESS.fullmatch(self.address)
        assert match is not None
        host = match["host"].strip("[]")
        try:
            with socket.create_connection((host, int(match["port"])), timeout=_TIMEOUT_SECONDS):
                pass
        except OSError as error:
            reason = error.strerror or str(error)
            raise UnsupportedError(
                f"the cluster's management address {self.address} ({self.source}) does not answer: {reason.lower()}.",
                "Correct it, or run where the cluster can be reached; --validate_only and --on_cpu need no cluster.",
            ) from error


def explain_cluster_error(error: BaseException, settings: ClusterSettings) -> UnsupportedError | None:
    """An error of the SDK about its cluster, in one line; None for any other error."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    is_raised_there = any(f"{os.sep}cerebras{os.sep}appliance{os.sep}" in file for file in files)
    if type(error).__name__ != "ClusterConfigError" and not is_raised_there:
        return None
    line = next(
        (" ".join(line.split()) for line in str(error).splitlines() if line.strip()), type(error).__name__
    )
    where = settings.address or settings.source or "the cluster"
    return UnsupportedError(
        f"the SDK cannot use the cluster at {where}: {line[:400]}",
        "Ask who runs the cluster; --validate_only and --on_cpu need none.",
    )


def missing_setting() -> str:
    return (
        "Set runconfig.mgmt_address in params.yaml or give --mgmt_address HOST:PORT (and credentials_path and mgmt_namespace where "
        f"the cluster asks for them), or run on a user node of the cluster, which has {config_file()}. Without a cluster: "
        "--validate_only asks the front end, --on_cpu trains on the SDK's CPU backend."
    )


def config_file() -> Path:
    return Path(os.environ.get("CSCONFIG_PATH") or CONFIG_FILE)


def read_settings(flags: Mapping[str, Any], config: RunConfig) -> ClusterSettings:
    """Reads the settings; a flag overrides runconfig."""

    def pick(name: str) -> Any:
        given = flags.get(name)
        return given if given not in (None, []) else getattr(config, name)

    options: dict[str, Any] = {
        "mgmt_namespace": pick("mgmt_namespace"),
        "credentials_path": pick("credentials_path"),
        "num_csx": _count("num_csx", pick("num_csx")),
        "max_wgt_servers": _count("num_wgt_servers", pick("num_wgt_servers")),
        "max_act_per_csx": config.num_act_servers,
        "num_workers_per_csx": _count("num_workers_per_csx", pick("num_workers_per_csx")),
        "job_labels": pick("job_labels"),
        "job_time_sec": _count("job_time_sec", pick("job_time_sec")),
        "job_priority": config.job_priority,
        "mount_dirs": pick("mount_dirs"),
        "python_paths": pick("python_paths"),
    }
    address, source = _address(flags, config)
    return ClusterSettings(
        address, source, {key: value for key, value in options.items() if value is not None}
    )


def _address(flags: Mapping[str, Any], config: RunConfig) -> tuple[str | None, str]:
    for value, source in (
        (flags.get("mgmt_address"), "--mgmt_address"),
        (flags.get("cs_ip"), "--cs_ip"),
        (config.mgmt_address, "runconfig.mgmt_address"),
    ):
        if value is None:
            continue
        # The SDK passes it to a shell, and it must have a port.
        text = str(value) if source != "--cs_ip" or ":" in str(value) else f"{value}:9000"
        if not _ADDRESS.fullmatch(text) or int(text.rpartition(":")[2]) > 65535:
            raise UserError(
                f"{source} is '{value}'.",
                "Give the host and port of the cluster's management, as in cluster.example:443.",
            )
        return text, source
    if config_file().is_file():
        return "", str(config_file())
    return None, ""


def _count(name: str, value: Any) -> int | None:
    if value is None:
        return None
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if number < 1:
        raise UserError(f"--{name} is '{value}'.", "Give a whole number above 0.")
    return number


def make_cluster_config(cstorch: Any, settings: ClusterSettings) -> Any:
    options = dict(settings.options)
    if settings.address:
        options["mgmt_address"] = settings.address
    try:
        return cstorch.distributed.ClusterConfig(**options)
    except (ValueError, TypeError) as error:
        raise UserError(
            f"the SDK refuses the cluster's settings: {error}",
            "Correct them in runconfig or on the command line.",
        ) from error


_BACKEND_KEYS = {  # runconfig's key: the SDK's attribute
    "micro_batch_size": ("performance", "micro_batch_size"),
    "transfer_processes": ("performance", "transfer_processes"),
    "compile_crd_memory_gi": ("debug", "compile_crd_memory_gi"),
    "execute_crd_memory_gi": ("debug", "execute_crd_memory_gi"),
    "wrk_memory_gi": ("debug", "wrk_memory_gi"),
}


def apply_backend_keys(cstorch: Any, config: RunConfig) -> None:
    """Sets the SDK's global switches from runconfig."""
    for key, (group, name) in _BACKEND_KEYS.items():
        value = getattr(config, key)
        if value is None:
            continue
        try:
            setattr(getattr(cstorch.backends.csx, group), name, value)
        except (ValueError, TypeError, AttributeError) as error:
            raise UserError(
                f"the SDK refuses runconfig.{key}={value!r}: {error}", "Correct it, or leave it out."
            ) from error
