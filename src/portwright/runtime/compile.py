"""Where torch.compile keeps what it made, so that a later run finds it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from portwright.errors import UnsupportedError
from portwright.job.logs import Console


def prepare_compile(folder: Path, console: Console) -> None:
    """Points torch's compiler at the run's own folder; must come before its first use in the process."""
    import torch

    if not torch.cuda.is_available() and not any(
        shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++")
    ):
        raise UnsupportedError(
            "torch.compile needs a C++ compiler on the CPU, and none is on PATH.",
            "Install g++ (Debian: apt-get install g++), or leave runconfig.compile out.",
        )
    # By openssl torch takes the checksums of precompiled headers; small images lack it.
    if shutil.which("openssl") is None:
        import torch._inductor.config as inductor

        if hasattr(inductor, "cpp_cache_precompile_headers"):
            inductor.cpp_cache_precompile_headers = False
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder.resolve() / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(folder.resolve() / "triton")
    os.environ["TORCHINDUCTOR_FX_GRAPH_CACHE"] = "1"
    if (folder / "manifest.json").is_file():
        console.info(f"using what was compiled into {folder}")
