"""Writes a SavedModel from a checkpoint: one graph a mode, all with the same variables, in a folder named by the time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.saved_model.model_utils.export_utils import (
    build_all_signature_defs,
    export_outputs_for_mode,
)

from portwright.errors import suggest
from portwright.tensorflow.arguments import BadType, BadValue

if TYPE_CHECKING:
    from portwright.tensorflow.estimator import Estimator

v1 = tf.compat.v1

# Training comes first: its graph has every variable, and the first graph saves them for all.
_TAGS = {"train": [v1.saved_model.TRAINING], "eval": ["eval"], "infer": [v1.saved_model.SERVING]}


def export_saved_model(
    estimator: Estimator,
    export_dir_base: Any,
    serving_input_receiver_fn: Callable[[], Any],
    assets_extra: Mapping[str, Any] | None = None,
    as_text: bool = False,
    checkpoint_path: Any = None,
    experimental_mode: str = "infer",
) -> bytes:
    """Writes `export_dir_base`/<seconds since 1970> and gives its path."""
    if not callable(serving_input_receiver_fn):
        raise BadType(
            f"serving_input_receiver_fn is {serving_input_receiver_fn!r}.",
            "Give a function without arguments, e.g. of build_raw_serving_input_receiver_fn.",
        )
    receivers = {experimental_mode: serving_input_receiver_fn}
    return export_all_saved_models(
        estimator, export_dir_base, receivers, assets_extra, as_text, checkpoint_path
    )


def export_all_saved_models(
    estimator: Estimator,
    export_dir_base: Any,
    input_receiver_fn_map: Mapping[str, Callable[[], Any]],
    assets_extra: Mapping[str, Any] | None = None,
    as_text: bool = False,
    checkpoint_path: Any = None,
) -> bytes:
    """Writes one SavedModel with a graph for each mode of `input_receiver_fn_map`."""
    unknown = [mode for mode in input_receiver_fn_map if mode not in _TAGS]
    modes = [mode for mode in _TAGS if input_receiver_fn_map.get(mode)]
    if unknown or not modes:
        raise BadValue(
            f"There is no mode to export in {sorted(map(str, input_receiver_fn_map))}.",
            suggest(str(unknown[0]) if unknown else "", _TAGS),
        )
    checkpoint = find_checkpoint(estimator, checkpoint_path)
    for source in (assets_extra or {}).values():
        if not tf.io.gfile.exists(source):
            raise BadValue(
                f"assets_extra names {os.fsdecode(source)}, which does not exist.", "Give a file that exists."
            )
    final, temporary = _free_folders(tf.compat.as_str_any(os.fspath(export_dir_base)))
    try:
        builder = v1.saved_model.Builder(temporary)
        for mode in modes:
            _add_graph(
                estimator,
                builder,
                input_receiver_fn_map[mode],
                checkpoint,
                mode,
                save_variables=mode == modes[0],
            )
        builder.save(as_text)
        for relative, source in (assets_extra or {}).items():
            destination = tf.io.gfile.join(temporary, "assets.extra", tf.compat.as_str_any(relative))
            tf.io.gfile.makedirs(destination.rpartition("/")[0])
            tf.io.gfile.copy(source, destination)
        tf.io.gfile.rename(temporary, final)  # so that readers see the whole model or none
    except BaseException:
        if tf.io.gfile.exists(temporary):
            tf.io.gfile.rmtree(temporary)
        raise
    v1.logging.info("SavedModel written to %s", final)
    return os.fsencode(final)


def find_checkpoint(estimator: Estimator, checkpoint_path: Any) -> str:
    """Finds the checkpoint to export: the one named, else the newest, else the one that the estimator warm-starts from."""
    if checkpoint_path:
        given: str = tf.compat.as_str_any(os.fspath(checkpoint_path))
        if not v1.train.checkpoint_exists(given):
            raise BadValue(
                f"There is no checkpoint {given}.", "Name one without its .index, e.g. model.ckpt-100."
            )
        return given
    latest = estimator.latest_checkpoint()
    if latest:
        return str(latest)
    settings = getattr(estimator, "_warm_start_settings", None)
    source = settings.ckpt_to_initialize_from if settings else None
    if source and tf.io.gfile.isdir(source):
        source = tf.train.latest_checkpoint(source)
    if not source:
        raise BadValue(
            f"There is no checkpoint in {estimator.model_dir}.", "Train first, or give checkpoint_path."
        )
    return str(source)


def _add_graph(
    estimator: Estimator,
    builder: Any,
    receiver_fn: Callable[[], Any],
    checkpoint: str,
    mode: str,
    save_variables: bool,
) -> None:
    with tf.Graph().as_default():
        v1.random.set_random_seed(estimator.config.tf_random_seed)
        v1.train.create_global_step()
        receiver = receiver_fn()
        labels = getattr(receiver, "labels", None)
        call = getattr(estimator, "_call_model_fn_to_export", estimator._call_model_fn)
        spec = call(receiver.features, labels, mode, estimator.config)
        outputs = export_outputs_for_mode(
            mode, spec.export_outputs, spec.predictions, spec.loss, spec.eval_metric_ops
        )
        alternatives = getattr(receiver, "receiver_tensors_alternatives", None)
        # Outputs that the receiver cannot feed are left out, and logged with the reason.
        signatures = build_all_signature_defs(
            receiver.receiver_tensors, outputs, alternatives, mode == "infer"
        )
        local_init = spec.scaffold.local_init_op
        saver = spec.scaffold.saver or v1.train.Saver(sharded=True)
        with v1.Session(config=estimator.config.session_config) as session:
            try:
                saver.restore(session, checkpoint)
            except (tf.errors.NotFoundError, ValueError) as error:
                raise BadValue(
                    f"{checkpoint} lacks variables of the {mode} graph: {str(error).splitlines()[0]}",
                    "Export from a checkpoint of this model, or make model_fn use the same variables in every mode.",
                ) from error
            builder._add_train_op(spec.train_op)
            content = {
                "tags": _TAGS[mode],
                "signature_def_map": signatures,
                "assets_collection": v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
                "main_op": v1.train.Scaffold.default_local_init_op() if local_init is None else local_init,
                "saver": saver,
                "strip_default_attrs": True,
            }
            if save_variables:
                builder.add_meta_graph_and_variables(session, **content)
            else:
                builder.add_meta_graph(**content)


def _free_folders(base: str) -> tuple[str, str]:
    seconds = int(time.time())
    while True:
        folders = tf.io.gfile.join(base, str(seconds)), tf.io.gfile.join(base, f"temp-{seconds}")
        if not any(map(tf.io.gfile.exists, folders)):
            return folders
        seconds += 1  # another export in the same second: the names must differ and stay sorted
