"""Which checkpoint a run takes, and what of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from portwright.cli.commands import describe_checkpoints
from portwright.errors import UserError
from portwright.tensorflow.run_checkpoints import find_given, list_checkpoints, take_weights

v1 = tf.compat.v1


def save(folder: Path, step: int, **shapes: list[int]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    with tf.Graph().as_default(), v1.Session() as session:
        v1.train.create_global_step()
        for name, shape in shapes.items():
            v1.get_variable(f"net/{name}", shape, initializer=v1.ones_initializer())
        session.run(v1.global_variables_initializer())
        path: str = v1.train.Saver(save_relative_paths=True).save(session, str(folder / "model.ckpt"), step)
    return path


def test_checkpoints_come_in_the_order_of_steps(tmp_path: Path) -> None:
    for step in (9, 100, 20):
        save(tmp_path, step, w=[2])
    (tmp_path / "model.ckpt-30.index.tmp").write_text("")
    (tmp_path / "model.ckpt-best.index").write_text("")
    assert [Path(path).name for path in list_checkpoints(tmp_path)] == [
        "model.ckpt-9",
        "model.ckpt-20",
        "model.ckpt-100",
    ]


@pytest.mark.parametrize("ending", ["", ".index", ".meta", ".data-00000-of-00001"])
def test_a_checkpoint_is_found_by_its_name_or_a_file_of_it(tmp_path: Path, ending: str) -> None:
    path = save(tmp_path, 7, w=[2])
    assert find_given(Path(path + ending)) == path
    assert find_given(tmp_path) == path


def test_what_is_no_checkpoint_names_those_that_are(tmp_path: Path) -> None:
    save(tmp_path, 7, w=[2])
    with pytest.raises(UserError) as caught:
        find_given(tmp_path / "model.ckpt-8")
    assert "model.ckpt-7" in caught.value.cure
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="has no checkpoint"):
        find_given(tmp_path / "empty")


def test_a_damaged_one_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, 7, w=[200])
    file = Path(path + ".data-00000-of-00001")
    file.write_bytes(file.read_bytes()[:-8] + b"\1" * 8)
    with pytest.raises(UserError, match="is damaged"):
        find_given(Path(path))


def build(**shapes: list[int]) -> dict[str, Any]:
    return {
        name: v1.get_variable(f"net/{name}", shape, initializer=v1.zeros_initializer())
        for name, shape in shapes.items()
    }


def test_weights_of_the_same_name_and_shape_are_taken(tmp_path: Path) -> None:
    path, notes = save(tmp_path, 7, w=[2], head=[3], old=[4]), list[str]()
    with tf.Graph().as_default(), v1.Session() as session:
        step = v1.train.create_global_step()
        variables = build(w=[2], head=[5])
        take_weights(path, notes.append)
        session.run(v1.global_variables_initializer())
        values = session.run({**variables, "step": step})
    assert values["w"].tolist() == [1, 1]
    assert values["head"].tolist() == [0] * 5
    assert values["step"] == 0
    assert notes == [
        "not in the checkpoint, and left as initialised: net/head",
        "in the checkpoint, and not in the model: net/head, net/old",
    ]


def test_nothing_in_common_is_an_error(tmp_path: Path) -> None:
    path = save(tmp_path, 7, w=[2])
    with tf.Graph().as_default():
        build(other=[2])
        with pytest.raises(UserError, match="no weight of this model"):
            take_weights(path, print)


def test_a_folder_of_tensorflow_is_described(tmp_path: Path) -> None:
    for step in (5, 10):
        save(tmp_path, step, w=[200])
    file = tmp_path / "model.ckpt-10.data-00000-of-00001"
    file.write_bytes(file.read_bytes()[:-8])
    rows = describe_checkpoints(tmp_path)
    assert [(row["step"], bool(row["problems"])) for row in rows] == [(5, False), (10, True)]
    with pytest.raises(UserError, match="is not a folder"):
        describe_checkpoints(tmp_path / "nowhere")
