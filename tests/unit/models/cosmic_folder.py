"""What the tests of cosmictagger share: its modules, and the public original where it is present."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from portwright.discover import find_models

FOLDER = find_models()["cosmictagger"]


def load(name: str) -> ModuleType:
    """A module of the folder, which is on the path for so long only: every model has a data.py, so ours gets another name."""
    sys.path.insert(0, str(FOLDER))
    try:
        if name not in ("model", "data", "utils", "run"):
            return importlib.import_module(name)
        spec = importlib.util.spec_from_file_location(f"cosmictagger_{name}", FOLDER / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # pydantic looks its annotations up there
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(FOLDER))


def original_checkout() -> Path:
    corpus = os.environ.get("PORTWRIGHT_CORPUS")
    if corpus is None:
        pytest.skip("PORTWRIGHT_CORPUS is not set: the public CosmicTagger is not here")
    checkout = Path(corpus) / "coreyjadams+CosmicTagger"
    if not (checkout / "src/networks/torch/uresnet2D.py").is_file():
        pytest.fail(f"PORTWRIGHT_CORPUS={corpus} has no coreyjadams+CosmicTagger")
    return checkout


@contextmanager
def original() -> Iterator[SimpleNamespace]:
    """The original's networks, loss and options; hydra is stood in for where it is missing, since only its store is used."""
    checkout = original_checkout()
    before = dict(sys.modules)
    sys.path.insert(0, str(checkout))
    try:
        for name, module in _stand_ins().items():
            sys.modules.setdefault(name, module)
        yield SimpleNamespace(
            config=importlib.import_module("src.config.network"),
            optimizer=importlib.import_module("src.config.optimizer"),
            uresnet2d=importlib.import_module("src.networks.torch.uresnet2D"),
            uresnet3d=importlib.import_module("src.networks.torch.uresnet3D"),
            loss=importlib.import_module("src.networks.torch.LossCalculator"),
            trainer=importlib.import_module("src.utils.torch.trainer").torch_trainer,
        )
    finally:
        sys.path.remove(str(checkout))
        for name in set(sys.modules) - set(before):
            if name.split(".")[0] in ("src", "hydra", "omegaconf"):
                del sys.modules[name]


def _stand_ins() -> dict[str, ModuleType]:
    try:
        importlib.import_module("hydra")
        importlib.import_module("omegaconf")
    except ImportError:
        store: Any = types.ModuleType("hydra.core.config_store")
        nothing = SimpleNamespace(store=lambda **_: None)
        store.ConfigStore = SimpleNamespace(instance=lambda: nothing)
        omegaconf: Any = types.ModuleType("omegaconf")
        omegaconf.MISSING = "???"
        hydra, core = types.ModuleType("hydra"), types.ModuleType("hydra.core")
        return {
            "hydra": hydra,
            "hydra.core": core,
            "hydra.core.config_store": store,
            "omegaconf": omegaconf,
        }
    return {}


def original_options(options: Any, config: ModuleType) -> SimpleNamespace:
    """Our options as the original's network takes them."""
    named = {
        "connections": config.Connection,
        "growth_rate": config.GrowthRate,
        "downsampling": config.DownSampling,
        "upsampling": config.UpSampling,
        "conv_mode": config.ConvMode,
        "normalization": config.Norm,
    }
    values = {key: getattr(options, key) for key in options.__dataclass_fields__}
    return SimpleNamespace(
        **{key: named[key][value] if key in named else value for key, value in values.items()}
    )
