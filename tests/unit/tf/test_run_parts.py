"""How run() calls a user's input functions and model function, and what it makes of their mistakes."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import tensorflow as tf

from portwright.errors import UserError
from portwright.tensorflow import EstimatorSpec, ModeKeys
from portwright.tensorflow.run_model import WatchedModel, check_fit, describe, name_tensors
from portwright.tensorflow.run_parts import Parts

PARAMS = {"train_input": {"batch_size": 4}}


def model(features: Any, labels: Any, mode: str, params: Any) -> None: ...


def dataset(*_: Any) -> tf.data.Dataset:
    return tf.data.Dataset.range(3)


def call(function: Any, mode: str = ModeKeys.TRAIN, context: Any = None) -> Any:
    parts = Parts(model, function, function, None, None, None)
    return parts.input_fn(mode, PARAMS)(context)


def test_the_forms_of_an_input_function() -> None:
    seen: list[Any] = []

    def note(*given: Any) -> tf.data.Dataset:
        seen.append(given)
        return dataset()

    context = tf.distribute.InputContext(2, 1)
    call(lambda params: note(params))
    call(lambda cfg: note(cfg))
    call(lambda params, mode: note(params, mode), ModeKeys.EVAL)
    call(lambda params, mode=None, input_context=None: note(mode, input_context), context=context)
    call(lambda input_context, params: note(params, input_context.num_input_pipelines))
    call(lambda params, input_context=None: note(input_context))
    call(functools.partial(lambda size, params: note(size, params), 3))
    call(lambda *args, **kwargs: note(args, kwargs))
    assert seen == [
        (PARAMS,), (PARAMS,), (PARAMS, "eval"), ("train", context), (PARAMS, 1), (None,), (3, PARAMS), ((), {}),
    ]  # fmt: skip


def test_params_are_a_copy() -> None:
    def change(params: Any) -> tf.data.Dataset:
        params["train_input"]["batch_size"] = 99
        return dataset()

    call(change)
    assert PARAMS["train_input"]["batch_size"] == 4


def test_a_function_that_takes_mode_serves_where_there_is_no_other() -> None:
    def both(params: Any, mode: str) -> tf.data.Dataset:
        return dataset()

    parts = Parts(model, both, None, None, None, None)
    assert parts.input_fn(ModeKeys.EVAL, PARAMS).name == "train_input_fn"
    assert (
        Parts(model, None, dataset, None, None, None).input_fn(ModeKeys.PREDICT, PARAMS).name
        == "eval_input_fn"
    )
    with pytest.raises(UserError, match="needs eval_input_fn"):
        Parts(model, dataset, None, None, None, None).input_fn(ModeKeys.EVAL, PARAMS)
    with pytest.raises(UserError, match="needs train_input_fn"):
        Parts(model, None, dataset, None, None, None).input_fn(ModeKeys.TRAIN, PARAMS)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, "returned None"),
        (3, "returned a int"),
        ([], "returned an empty one"),
        (([1.0], [2.0]), "returned a tuple"),
        (iter(()), "returned a tuple_iterator"),
    ],
)
def test_what_is_no_data_is_refused(result: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        call(lambda params: result)


@pytest.mark.parametrize("argument", [None, 5, "model"])
def test_what_is_no_function_is_refused(argument: Any) -> None:
    with pytest.raises(UserError, match="model_fn="):
        Parts(argument, None, None, None, None, None).check()
    if argument is not None:
        with pytest.raises(UserError, match="eval_input_fn="):
            Parts(model, None, argument, None, None, None).check()


def test_a_failure_of_model_fn_names_its_line_and_what_it_was_given() -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        return tf.matmul(features["x"], tf.ones([7, 2]))

    watched = WatchedModel(model_fn).model_fn
    with tf.Graph().as_default(), pytest.raises(UserError) as caught:
        watched(features={"x": tf.zeros([4, 3])}, labels=None, mode="train")
    assert "test_run_parts.py:" in caught.value.message
    assert "features {x: float32[4,3]} and no labels" in caught.value.cure


def test_a_subclass_of_the_spec_is_taken_and_the_wrapper_keeps_the_signature() -> None:
    from portwright.tensorflow.arguments import argument_names

    def model_fn(features: Any, mode: str) -> EstimatorSpec:
        return EstimatorSpec(mode, predictions={"y": features})

    watched = WatchedModel(model_fn)
    assert argument_names(watched.model_fn) == ("features", "mode")
    with tf.Graph().as_default():
        spec = watched.model_fn(features=tf.zeros([2]), mode=ModeKeys.PREDICT)
    assert watched.spec is spec


def test_tensors_are_named_and_described() -> None:
    with tf.Graph().as_default():
        batch = {
            "ids": tf.zeros([2, 3], tf.int32),
            "more": (tf.zeros([]), tf.compat.v1.placeholder(tf.float32)),
        }
        assert list(name_tensors(batch, "features")) == [
            "features['ids']",
            "features['more'][0]",
            "features['more'][1]",
        ]
        assert describe(batch) == "{ids: int32[2,3], more: (float32[], float32[...])}"
        assert describe(tf.compat.v1.placeholder(tf.int64, [None, 8])) == "int64[?,8]"
    assert describe(None) == "none"


def test_a_checkpoint_of_another_shape_is_refused(tmp_path: Any) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.get_variable("w", [3, 4])
        session.run(tf.compat.v1.global_variables_initializer())
        path = tf.compat.v1.train.Saver().save(session, str(tmp_path / "model.ckpt"), 1)
    check_fit(path, {"w": [3, 4]})
    check_fit(path, {"w": [None, 4]})
    with pytest.raises(UserError, match=r"w is \[3, 4\] there and \[3, 5\] here") as caught:
        check_fit(path, {"w": [3, 5]})
    # In a folder that has a checkpoint, what the flag says would be passed over: the cure must name another one.
    assert "an empty --model_dir" in caught.value.cure
    assert f"--checkpoint_path {path} --is_pretrained_checkpoint" in caught.value.cure
    with pytest.raises(UserError, match="b is not there"):
        check_fit(path, {"w": [3, 4], "b": [4]})
