"""tf.contrib.predictor: calls a saved model, or an estimator's model, on arrays."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf

from portwright.errors import UserError, suggest


class Predictor:
    """Called with arrays by name, it gives arrays by name."""

    def __init__(self, graph: Any, session: Any, feeds: dict[str, Any], fetches: dict[str, Any]) -> None:
        self.graph, self.session, self.feed_tensors, self.fetch_tensors = graph, session, feeds, fetches

    def __call__(self, input_dict: dict[str, Any]) -> Any:
        unknown = set(input_dict) - set(self.feed_tensors)
        if unknown:
            name = sorted(unknown)[0]
            raise UserError(f"the model has no input '{name}'.", suggest(name, self.feed_tensors))
        feeds = {self.feed_tensors[name]: value for name, value in input_dict.items() if value is not None}
        return self.session.run(self.fetch_tensors, feed_dict=feeds)


def from_saved_model(
    export_dir: str,
    signature_def_key: str | None = None,
    signature_def: Any = None,
    input_names: dict[str, str] | None = None,
    output_names: dict[str, str] | None = None,
    tags: str | None = None,
    graph: Any = None,
    config: Any = None,
) -> Predictor:
    """Loads one signature of a saved model."""
    graph = graph or tf.Graph()
    with graph.as_default():
        session = tf.Session(graph=graph, config=config)
        tag_list = (tags or tf.saved_model.tag_constants.SERVING).split(",")
        loaded = tf.saved_model.loader.load(session, tag_list, export_dir)
        if input_names is None or output_names is None:
            key = signature_def_key or tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY
            if signature_def is None and key not in loaded.signature_def:
                raise UserError(f"{export_dir} has no signature '{key}'.", suggest(key, loaded.signature_def))
            signature = signature_def or loaded.signature_def[key]
            input_names = input_names or {n: t.name for n, t in signature.inputs.items()}
            output_names = output_names or {n: t.name for n, t in signature.outputs.items()}
        feeds = {n: graph.get_tensor_by_name(t) for n, t in input_names.items()}
        fetches = {n: graph.get_tensor_by_name(t) for n, t in output_names.items()}
        return Predictor(graph, session, feeds, fetches)


def from_estimator(
    estimator: Any,
    serving_input_receiver_fn: Any,
    output_key: str | None = None,
    graph: Any = None,
    config: Any = None,
) -> Predictor:
    """Builds an estimator's prediction graph with its latest checkpoint."""
    from portwright.tensorflow import ModeKeys

    graph = graph or tf.Graph()
    with graph.as_default():
        tf.train.create_global_step(graph)
        receiver = serving_input_receiver_fn()
        spec = estimator.model_fn(receiver.features, None, ModeKeys.PREDICT, estimator.config)
        outputs = (
            spec.export_outputs[output_key or "serving_default"].outputs
            if spec.export_outputs
            else spec.predictions
        )
        path = estimator.latest_checkpoint()
        if path is None:
            raise UserError(f"there is no checkpoint in {estimator.model_dir}.", "Train first.")
        session = tf.Session(graph=graph, config=config)
        session.run(tf.tables_initializer())
        tf.train.Saver().restore(session, path)
        feeds = receiver.receiver_tensors
        feeds = feeds if isinstance(feeds, dict) else {"input": feeds}
        return Predictor(graph, session, feeds, outputs if isinstance(outputs, dict) else {"output": outputs})
