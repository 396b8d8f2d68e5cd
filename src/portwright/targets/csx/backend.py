"""Opens the SDK's backend: its CPU, only its front end, or a cluster."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portwright.errors import UnsupportedError
from portwright.job.vendor_env import find_known
from portwright.target import JobSpec
from portwright.targets.csx.cluster import (
    ENVIRONMENT,
    ClusterSettings,
    apply_backend_keys,
    make_cluster_config,
    read_settings,
)

if TYPE_CHECKING:
    from portwright.targets.csx.session import CsxSession

_PLAIN = re.compile(r"[\w./+@%-]+", re.ASCII)


class CsxBackend:
    """Opens sessions on the SDK's backend, of which a process can have only one."""

    emulates: str | None = None

    def __init__(self, flags: Mapping[str, Any], note: Callable[[str], None]) -> None:
        if not ENVIRONMENT.is_here():
            known = find_known(ENVIRONMENT)
            raise UnsupportedError(
                f"the Cerebras SDK is not in {sys.executable}, and this call stands inside another program.",
                f"Call run() in a process of {known.python if known else 'an environment that has it'}.",
            )
        from portwright.runtime.world import Launch, World

        self.world = World(Launch(), "cpu", None)
        self._flags, self._note = flags, note

    def open(self, job: JobSpec) -> CsxSession:
        settings = read_settings(self._flags, job.params.runconfig)
        is_dry = bool(self._flags.get("validate_only") or self._flags.get("compile_only"))
        if not self._flags.get("on_cpu") and not self._flags.get("validate_only"):
            if not is_dry:
                settings.require_address()
            settings.check_reachable()
        from portwright.targets.csx.front_end import FrontEndSession
        from portwright.targets.csx.session import CsxSession

        kind = FrontEndSession if is_dry and not self._flags.get("on_cpu") else CsxSession
        backend = open_backend(self._flags, job, settings)
        return kind(job, backend, self._note, self._flags, settings)

    def close(self) -> None:
        self.world.close()


def open_backend(flags: Mapping[str, Any], job: JobSpec, settings: ClusterSettings) -> Any:
    import cerebras.pytorch as cstorch
    from cerebras.pytorch.backend import current_backend

    wanted = "CPU" if flags.get("on_cpu") else "CSX"
    current = current_backend(raise_exception=False, raise_warning=False)
    if current is not None:
        if current.is_cpu != (wanted == "CPU"):
            raise UnsupportedError(
                "this process has another backend of the SDK open, and it allows one.",
                "Use a process for each.",
            )
        return current
    folder = _plain_path(job.artifact_dir)
    if wanted == "CPU":
        return cstorch.backend("CPU", artifact_dir=folder)
    put_tools_first(cstorch)
    options: dict[str, Any] = {"artifact_dir": folder}
    if flags.get("validate_only") or (flags.get("compile_only") and settings.address is None):
        options["validate_only"] = True
    else:
        options["cluster_config"] = make_cluster_config(cstorch, settings)
        options["compile_only"] = bool(flags.get("compile_only"))
        if flags.get("compile_dir") is not None:
            options["compile_dir"] = str(flags["compile_dir"])
    apply_backend_keys(cstorch, job.params.runconfig)
    backend = cstorch.backend("CSX", **options)
    # Else the SDK cuts the folders of sys.path off the file names in its debug information, and we could not find the files.
    os.environ["LTC_IR_DEBUG_ROOT_PATH"] = ""
    return backend


def put_tools_first(cstorch: Any) -> None:
    """Puts the SDK's tools before pip's wrapper on PATH, which drops the exit status: a refused step would look accepted."""
    tools = str(Path(cstorch.__file__).parent / "lib")
    os.environ["PATH"] = os.pathsep.join([tools, os.environ.get("PATH", "")])


def _plain_path(folder: Path | None) -> str:
    """A path of the folder without special characters: the SDK joins its tools' command lines without quoting."""
    if folder is not None and _PLAIN.fullmatch(str(folder.absolute())):
        return str(folder)
    temporary = Path(tempfile.mkdtemp(prefix="portwright-csx-"))
    if folder is None:
        return str(temporary)
    folder.mkdir(parents=True, exist_ok=True)
    (temporary / "artifacts").symlink_to(folder.absolute())
    return str(temporary / "artifacts")
