"""The finder lends what it was told to, and nothing else."""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from portwright.compat.finder import LendingFinder
from portwright.compat.lend import explain_import_error
from portwright.compat.modelzoo_names import make_finder
from portwright.errors import UserError

LENT = {
    "lent_zoo.common.pytorch": {"loads": "json:loads", "decoder": "json.decoder"},
    "lent_zoo.common.pytorch.deep": {"dumps": "json:dumps", "chosen": "finder_tables:TABLE:key"},
}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LendingFinder]]:
    """Installs finders for a test, with its folder on the path, and takes them out again."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    finders: list[LendingFinder] = []

    def install(*args: object, **kwargs: object) -> LendingFinder:
        finder = LendingFinder(*args, **kwargs)  # type: ignore[arg-type]
        finder.install()
        finders.append(finder)
        return finder

    yield install
    for finder in finders:
        finder.remove()
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("lent_zoo", "old_package", "finder_tables", "cerebras", "modelzoo"):
            del sys.modules[name]


def package(folder: Path, name: str, text: str = "") -> None:
    target = folder.joinpath(*name.split("."))
    target.mkdir(parents=True, exist_ok=True)
    (target / "__init__.py").write_text(text)


def load(name: str) -> ModuleType:
    importlib.invalidate_caches()
    return importlib.import_module(name)


def test_names_are_lent_and_found_when_asked_for(
    installed: Callable[..., LendingFinder], tmp_path: Path
) -> None:
    (tmp_path / "finder_tables.py").write_text("TABLE = {'key': 5}")
    installed(LENT, whole=("lent_zoo.common.pytorch",))
    module = load("lent_zoo.common.pytorch")
    assert "loads" not in module.__dict__
    assert module.loads("1") == 1
    assert "loads" in module.__dict__
    assert {"loads", "decoder"} <= set(dir(module))
    assert module.__all__ == ["decoder", "loads"]
    assert module.decoder.__name__ == "json.decoder"
    namespace: dict[str, object] = {}
    exec("from lent_zoo.common.pytorch.deep import *", namespace)
    assert namespace["chosen"] == 5
    with pytest.raises(AttributeError, match="has no 'nothing'"):
        _ = module.nothing
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from lent_zoo.common.pytorch import nothing")


def test_what_is_lent_whole_never_comes_from_the_disk(
    installed: Callable[..., LendingFinder], tmp_path: Path
) -> None:
    for name in ("lent_zoo", "lent_zoo.common", "lent_zoo.common.pytorch", "lent_zoo.common.pytorch.other"):
        package(tmp_path, name, "ORIGIN = 'disk'")
    installed(LENT, whole=("lent_zoo.common.pytorch",))
    assert load("lent_zoo.common").ORIGIN == "disk"
    assert not hasattr(load("lent_zoo.common.pytorch"), "ORIGIN")
    with pytest.raises(
        ModuleNotFoundError, match=r"Did you mean 'lent_zoo\.common\.pytorch\.deep'"
    ) as caught:
        load("lent_zoo.common.pytorch.deeper")
    assert caught.value.name == "lent_zoo.common.pytorch.deeper"
    with pytest.raises(ModuleNotFoundError):
        load("lent_zoo.common.pytorch.other")


def test_beside_what_is_lent_the_disk_is_read(
    installed: Callable[..., LendingFinder], tmp_path: Path
) -> None:
    package(tmp_path, "lent_zoo", "")
    package(tmp_path, "lent_zoo.models", "ORIGIN = 'disk'")
    package(tmp_path, "lent_zoo.layers", "ORIGIN = 'disk'")
    package(tmp_path, "lent_zoo.layers.private", "ORIGIN = 'disk'")
    installed({"lent_zoo.layers": {"loads": "json:loads"}, "lent_zoo.layers.deep": {"dumps": "json:dumps"}})
    assert load("lent_zoo.models").ORIGIN == "disk"
    assert not hasattr(load("lent_zoo.layers"), "ORIGIN")
    assert load("lent_zoo.layers.deep").dumps(1) == "1"
    assert load("lent_zoo.layers.private").ORIGIN == "disk"


def test_packages_above_are_made_where_there_are_none(installed: Callable[..., LendingFinder]) -> None:
    installed(LENT, whole=("lent_zoo.common.pytorch",))
    assert load("lent_zoo.common.pytorch.deep").dumps(1) == "1"
    assert list(sys.modules["lent_zoo"].__path__) == []
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'lent_zoo\.models'"):
        load("lent_zoo.models")


def test_a_namespace_package_of_several_folders_stays_whole(
    installed: Callable[..., LendingFinder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("one", "two"):
        package(tmp_path / part, f"lent_zoo.{part}", f"ORIGIN = '{part}'")
        monkeypatch.syspath_prepend(tmp_path / part)
    installed({"lent_zoo.layers": {"loads": "json:loads"}})
    assert load("lent_zoo.layers").loads("1") == 1
    assert (load("lent_zoo.one").ORIGIN, load("lent_zoo.two").ORIGIN) == ("one", "two")
    assert len(list(sys.modules["lent_zoo"].__path__)) == 2


def test_the_disk_goes_first_where_it_is_preferred(
    installed: Callable[..., LendingFinder], tmp_path: Path
) -> None:
    package(tmp_path, "lent_zoo", "")
    package(tmp_path, "lent_zoo.layers", "ORIGIN = 'disk'")
    lent = {"lent_zoo.layers": {"loads": "json:loads"}, "lent_zoo.losses": {"dumps": "json:dumps"}}
    installed(lent, prefer_disk=lambda name: True)
    assert load("lent_zoo.layers").ORIGIN == "disk"
    assert load("lent_zoo.losses").dumps(1) == "1"


def test_dropped_names_come_back_and_others_stay(
    installed: Callable[..., LendingFinder], tmp_path: Path
) -> None:
    package(tmp_path, "old_package", "kept = 1")
    installed(
        {},
        added={"old_package": {"kept": "json:loads", "dropped": "json:dumps"}, "not_there": {"x": "json:x"}},
    )
    module = load("old_package")
    assert module.kept == 1
    assert module.dropped(2) == "2"
    assert module.__file__ == str(tmp_path / "old_package" / "__init__.py")
    with pytest.raises(ModuleNotFoundError):
        load("not_there")


def test_too_late_is_an_error(installed: Callable[..., LendingFinder], tmp_path: Path) -> None:
    for name in ("lent_zoo", "lent_zoo.common", "lent_zoo.common.pytorch"):
        package(tmp_path, name)
    load("lent_zoo.common.pytorch")
    with pytest.raises(UserError, match="before it could be lent"):
        LendingFinder(LENT, whole=("lent_zoo.common.pytorch",)).install()


def test_removed_without_a_trace(installed: Callable[..., LendingFinder]) -> None:
    finder = LendingFinder(LENT, whole=("lent_zoo.common.pytorch",))
    finder.install()
    load("lent_zoo.common.pytorch.deep")
    finder.remove()
    assert finder not in sys.meta_path
    assert not [name for name in sys.modules if name.startswith("lent_zoo")]
    with pytest.raises(ModuleNotFoundError):
        load("lent_zoo.common.pytorch")


def test_every_name_of_the_model_zoo_is_there() -> None:
    finder = make_finder()
    finder.install()
    try:
        lent = dict(finder._lent)
        assert len(lent) > 60
        for name, attributes in lent.items():
            module = importlib.import_module(name)
            for attribute in attributes:
                assert getattr(module, attribute) is not None or attribute == "AP_DISABLED", (
                    f"{name}.{attribute}"
                )
    finally:
        finder.remove()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import yaml.nothing", "x.py:1: there is no module 'yaml.nothing' in {yaml}."),
        ("import numpy\nfrom yaml import nothing", "x.py:2: cannot import name 'nothing' from 'yaml'"),
        ("import nobody_has_this.part", "x.py:1 imports 'nobody_has_this', which is neither installed nor beside the script."),
        ("import own_part.more", "x.py:1: there is no module 'own_part.more' in {own}."),
    ],
)  # fmt: skip
def test_what_cannot_be_imported_is_told_as_it_is(
    text: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package that is there is not said to be missing, and none is advised by its name alone."""
    package(tmp_path, "own_part")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "x.py").write_text(text)
    with pytest.raises(ImportError) as caught:
        runpy.run_path(str(tmp_path / "x.py"))
    error = explain_import_error(tmp_path / "x.py", caught.value)
    assert told.format(yaml=Path(yaml.__file__).parent, own=tmp_path / "own_part") in str(error)
    assert "pip install" not in f"{error} {error.cure}"


@pytest.mark.parametrize(
    "package", ["portwright", "modelzoo.common.pytorch", "cerebras.modelzoo.common.pytorch"]
)
def test_the_optimizers_of_seed_003(package: str) -> None:
    """Seed 003, "We currently support": "7. [optimizers](../../../common/pytorch/optim)"."""
    import portwright.optim

    finder = make_finder()
    finder.install()
    try:
        optim = load(f"{package}.optim")
        assert {optim.AdamW, optim.SGD, optim.Lamb} == {
            portwright.optim.AdamW,
            portwright.optim.SGD,
            portwright.optim.Lamb,
        }
        assert load(f"{package}.optim.lr_scheduler").Polynomial is portwright.optim.lr_scheduler.Polynomial
    finally:
        finder.remove()


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("input_utils", ("bucketed_batch", "get_streaming_batch_size")),
        ("pytorch_utils", ("BufferedShuffleDataset",)),
        ("run_utils", ("main", "run")),
        ("utils.run.cli_pytorch", ("get_params_from_args",)),
        ("utils.model.transformer_utils", ("create_2D_autoregressive_mask", "make_key_padding_mask_broadcastable", "smooth_loss")),
    ],
)  # fmt: skip
def test_the_helper_functions_of_seed_003(module: str, names: tuple[str, ...]) -> None:
    """Seed 003: "We also provide helper functions to [create masks] or [initializers](../../../common/utils/model/)"."""
    finder = make_finder()
    finder.install()
    try:
        lent = load(f"cerebras.modelzoo.common.{module}")
        assert all(getattr(lent, name).__module__.startswith("portwright.") for name in names)
    finally:
        finder.remove()
