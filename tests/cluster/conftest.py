"""One cluster and one image for all tests here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from image import image_folder
from slurm_cluster import SlurmCluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with SlurmCluster(tmp_path_factory.mktemp("slurm"), nodes=4) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def image() -> Path:
    return image_folder()
