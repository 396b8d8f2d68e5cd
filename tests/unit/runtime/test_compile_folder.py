"""What torch's compiler is told before its first use."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from portwright.job.logs import Console
from portwright.runtime.dry_run import prepare_compile


@pytest.mark.parametrize("has_openssl", [True, False])
def test_precompiled_headers_need_openssl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_openssl: bool
) -> None:
    config = pytest.importorskip("torch._inductor.config")
    if "cpp_cache_precompile_headers" not in config.get_config_copy():
        pytest.skip("this torch has no precompiled headers")
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_FX_GRAPH_CACHE"):
        monkeypatch.setenv(name, "")
    found = {"g++": "/usr/bin/g++", **({"openssl": "/usr/bin/openssl"} if has_openssl else {})}
    monkeypatch.setattr(shutil, "which", found.get)
    with config.patch(cpp_cache_precompile_headers=True):
        prepare_compile(tmp_path, Console("ERROR"))
        assert config.cpp_cache_precompile_headers is has_openssl
