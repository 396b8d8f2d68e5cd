"""Which framework a folder is written for."""

from __future__ import annotations

from pathlib import Path

import pytest

from portwright.discover import FRAMEWORKS, find_all_models, find_models
from portwright.errors import UserError
from portwright.job.framework import framework_of
from portwright.job.model_list import make_model_folder


@pytest.mark.parametrize(
    ("files", "framework"),
    [
        ({"run.py": "from portwright.tensorflow import run"}, "tensorflow"),
        ({"run.py": "import portwright.tensorflow as pt"}, "tensorflow"),
        ({"run.py": "from portwright import tensorflow"}, "tensorflow"),
        ({"run.py": "from portwright import run"}, "pytorch"),
        ({"run.py": "import model", "model.py": "import tensorflow.compat.v1 as tf"}, "tensorflow"),
        ({"run.py": "import model", "model.py": "import torch", "data.py": "import tensorflow"}, "pytorch"),
        ({"run.py": "def f():\n    import tensorflow"}, "tensorflow"),
        ({"run.py": "# import tensorflow"}, "pytorch"),
        ({"run.py": "not python ("}, "pytorch"),
        ({}, "pytorch"),
    ],
)
def test_imports_tell(tmp_path: Path, files: dict[str, str], framework: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert framework_of(tmp_path / "run.py") == framework


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_model_is_of_the_framework_that_it_is_listed_under(framework: str) -> None:
    found = find_models(framework)
    assert "fc_mnist" in found
    for folder in found.values():
        assert framework_of(folder / "run.py") == framework
        for name in ("model.py", "data.py", "utils.py", "run.py", "configs/params.yaml"):
            assert (folder / name).is_file(), f"{folder.name} lacks {name}"


def test_names_of_tensorflow_models_say_so() -> None:
    models = find_all_models()
    assert models["fc_mnist"] != models["tensorflow/fc_mnist"]
    assert len(models) == sum(len(find_models(framework)) for framework in FRAMEWORKS)


def test_a_new_folder_starts_from_a_model_of_its_framework(tmp_path: Path) -> None:
    made = make_model_folder(tmp_path / "mine", "tensorflow", "bert")
    assert framework_of(made / "run.py") == "tensorflow"
    with pytest.raises(UserError, match="unknown model 'cosmictagger' of tensorflow"):
        make_model_folder(tmp_path / "other", "tensorflow", "cosmictagger")
    with pytest.raises(UserError, match="unknown framework 'tensorflwo'") as caught:
        make_model_folder(tmp_path / "other", "tensorflwo", None)
    assert "Did you mean 'tensorflow'" in caught.value.cure
