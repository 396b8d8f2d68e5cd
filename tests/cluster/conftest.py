"""One cluster and one image for all tests here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from apptainer import UnavailableError, apptainer_folder
from image import image_folder
from slurm_cluster import SlurmCluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, and another process runs the other files meanwhile, with a cluster of its own."""
    items.sort(key=lambda item: item.path.name != "test_survival.py")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with SlurmCluster(tmp_path_factory.mktemp("slurm"), nodes=4) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def image() -> Path:
    return image_folder()


@pytest.fixture(scope="session")
def apptainer() -> Path:
    """The folder of `apptainer` and `singularity`, for PATH; counted as skipped where they cannot be had."""
    try:
        return apptainer_folder()
    except UnavailableError as error:
        pytest.skip(f"no apptainer: {error}")
