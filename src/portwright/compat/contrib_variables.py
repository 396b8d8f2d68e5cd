"""Variables of tf.contrib.framework and tf.contrib.slim: model variables, lists of them, and checkpoints."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from portwright.errors import UserError


def collect(collections: Any, alias: str, outputs: Any) -> Any:
    """Adds a layer's output to the graph's collections, under its scope's name."""
    if collections is not None:
        outputs.alias = alias.rstrip("/")
        tf.add_to_collections(collections, outputs)
    return outputs


def model_variable(
    name: str,
    shape: Any = None,
    dtype: Any = tf.float32,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    collections: Any = None,
    caching_device: Any = None,
    device: Any = None,
    partitioner: Any = None,
    custom_getter: Any = None,
    use_resource: bool | None = None,
    **unused: Any,
) -> Any:
    """A variable that is part of the model, and listed as such."""
    # A dict from kind of variable to collections, as contrib's conv2d and batch_norm take it.
    if isinstance(collections, Mapping):
        collections = collections.get(name)
    named = {collections} if isinstance(collections, str) else set(collections or ())
    with tf.device(device or ""):
        return tf.get_variable(
            name, shape, dtype, initializer, regularizer, trainable,
            collections=sorted({*named, tf.GraphKeys.GLOBAL_VARIABLES, tf.GraphKeys.MODEL_VARIABLES}),
            caching_device=caching_device, partitioner=partitioner, custom_getter=custom_getter, use_resource=use_resource,
        )  # fmt: skip


def variable(name: str, *args: Any, **kwargs: Any) -> Any:
    """A variable as tf.get_variable makes it."""
    device = kwargs.pop("device", None)
    with tf.device(device or ""):
        return tf.get_variable(name, *args, **kwargs)


def add_model_variable(var: Any) -> None:
    """Lists a variable as part of the model."""
    if all(var is not other for other in tf.get_collection(tf.GraphKeys.MODEL_VARIABLES)):
        tf.add_to_collection(tf.GraphKeys.MODEL_VARIABLES, var)


def get_variables(
    scope: Any = None, suffix: str | None = None, collection: str = tf.GraphKeys.GLOBAL_VARIABLES
) -> list[Any]:
    """The variables of a collection, in a scope and with an ending."""
    prefix = scope.name if isinstance(scope, tf.VariableScope) else scope
    if suffix is not None:
        prefix = f"{prefix or ''}.*{suffix if ':' in suffix else f'{suffix}:'}"
    return list(tf.get_collection(collection, prefix))


def get_model_variables(scope: Any = None, suffix: str | None = None) -> list[Any]:
    """The model variables in a scope, with an ending."""
    return get_variables(scope, suffix, tf.GraphKeys.MODEL_VARIABLES)


def get_trainable_variables(scope: Any = None, suffix: str | None = None) -> list[Any]:
    """The trainable variables in a scope, with an ending."""
    return get_variables(scope, suffix, tf.GraphKeys.TRAINABLE_VARIABLES)


def get_variables_by_name(given_name: str, scope: Any = None) -> list[Any]:
    """Those whose name ends so."""
    return get_variables(scope, f"/{given_name}:|^{given_name}:")


def get_variables_by_suffix(suffix: str, scope: Any = None) -> list[Any]:
    """Those whose name ends so."""
    return get_variables(scope, suffix)


def get_unique_variable(var_op_name: str) -> Any:
    """The only variable with this name; an error if there is none or several."""
    found = [v for v in tf.global_variables() if v.op.name == var_op_name]
    if len(found) != 1:
        raise UserError(f"{len(found)} variables are called '{var_op_name}'.", "Give the whole name of one.")
    return found[0]


def filter_variables(
    var_list: Sequence[Any],
    include_patterns: Sequence[str] | None = None,
    exclude_patterns: Sequence[str] | None = None,
    reg_search: bool = True,
) -> list[Any]:
    """The variables that match any of the first patterns and none of the second."""
    match = re.search if reg_search else re.match
    return [
        v
        for v in var_list
        if (include_patterns is None or any(match(p, v.name) for p in include_patterns))
        and not any(match(p, v.name) for p in exclude_patterns or ())
    ]


def get_variables_to_restore(
    include: Sequence[str] | None = None, exclude: Sequence[str] | None = None
) -> list[Any]:
    """All global variables, or those of some scopes, without those of others."""
    chosen = (
        tf.global_variables() if include is None else [v for scope in include for v in get_variables(scope)]
    )
    left = {id(v) for scope in exclude or () for v in get_variables(scope)}
    return [v for v in chosen if id(v) not in left]


def assign_from_checkpoint(
    model_path: str, var_list: Any, ignore_missing_vars: bool = False
) -> tuple[Any, dict[Any, Any]]:
    """An op that assigns a checkpoint's values to variables, and the feed_dict that it needs."""
    named = var_list if isinstance(var_list, Mapping) else {v.op.name: v for v in var_list}
    reader = tf.train.load_checkpoint(model_path)
    feeds, ops = {}, []
    for name, var in named.items():
        if not reader.has_tensor(name):
            if ignore_missing_vars:
                tf.logging.warning("%s is not in %s", name, model_path)
                continue
            raise UserError(f"{name} is not in {model_path}.", "Leave it out, or set ignore_missing_vars.")
        place = tf.placeholder(var.dtype.base_dtype, var.shape)
        ops.append(tf.assign(var, place))
        feeds[place] = reader.get_tensor(name).reshape(var.shape.as_list())
    return tf.group(*ops), feeds


def assign_from_checkpoint_fn(
    model_path: str, var_list: Any, ignore_missing_vars: bool = False, reshape_variables: bool = False
) -> Callable[[Any], None] | None:
    """A function that takes a session and assigns a checkpoint's values to variables."""
    named = dict(var_list) if isinstance(var_list, Mapping) else {v.op.name: v for v in var_list}
    if not named:
        raise UserError("there are no variables to restore.", "Give var_list.")
    if ignore_missing_vars:
        reader = tf.train.load_checkpoint(model_path)
        named = {name: v for name, v in named.items() if reader.has_tensor(name)}
        if not named:
            return None
    saver = tf.train.Saver(named, reshape=reshape_variables)
    return lambda session: saver.restore(session, model_path)


def analyze_vars(variables: Sequence[Any], print_info: bool = False) -> tuple[int, int]:
    """The numbers of elements and bytes of all variables."""
    sizes = [v.shape.num_elements() or 0 for v in variables]
    total_bytes = sum(size * v.dtype.size for size, v in zip(sizes, variables, strict=True))
    if print_info:
        for v, size in zip(variables, sizes, strict=True):
            print(f"{v.name}: {v.shape} [{size}, bytes: {size * v.dtype.size}]")
    return sum(sizes), total_bytes


def convert_collection_to_dict(collection: str, clear_collection: bool = False) -> OrderedDict[str, Any]:
    """The outputs in a collection, by the names of their layers' scopes."""
    found = OrderedDict((getattr(t, "alias", t.op.name), t) for t in tf.get_collection(collection))
    if clear_collection:
        tf.get_default_graph().clear_collection(collection)
    return found
