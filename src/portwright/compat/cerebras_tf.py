"""The rest of cerebras.tf beside its estimator, and model zoo 1.6's common.tf.run_utils for folders that were copied without it.

On a CPU or GPU the functions of cerebras.tf did nothing, or what TensorFlow does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import yaml

from portwright.errors import UserError

Params = dict[str, Any]
_OF_RUNCONFIG = (
    "tf_random_seed", "save_summary_steps", "save_checkpoints_steps", "keep_checkpoint_max", "log_step_count_steps",
)  # fmt: skip


@contextmanager
def cs1_enable_summaries() -> Iterator[None]:
    """Does nothing: the host's summaries are always on; it turned the wafer's on and off."""
    yield


cs1_disable_summaries = cs1_enable_summaries


def summary_layer(x: Any) -> Any:
    """Returns the tensor; on the wafer it marked it for summaries."""
    return x


def summarize_tensor(x: Any, is_gradient_tensor: bool = False, op_name_if_grad: str | None = None) -> None:
    """Does nothing; on the wafer it wrote a summary."""


def boundary_cast(x: Any, name: str | None = None, back_cast: bool = True) -> Any:
    """Returns the tensor; on the wafer it changed the dtype between kernels."""
    return x


def GetWeights(checkpoint: str) -> Iterator[tuple[str, Any]]:
    """Names and values of a checkpoint."""
    reader = tf.train.load_checkpoint(checkpoint)
    for name in sorted(reader.get_variable_to_shape_map()):
        yield name, reader.get_tensor(name)


TS_UNSET, TS_ENABLED, TS_DISABLED = 0, 1, 2
AP_DISABLED, AP_ENABLED = 0, 1
T_FP16, T_FP32, T_CB16 = 1, 2, 3


class Message:
    """Takes any field, at any depth; a field that is appended to becomes a list."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)
        self.__dict__.setdefault("_items", [])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = self.__dict__[name] = Message()
        return made

    def append(self, value: Any) -> None:
        self._items.append(value)

    def extend(self, values: Any) -> None:
        self._items.extend(values)

    def as_dict(self) -> Any:
        """The fields that were set, as plain data."""
        if self._items:
            return list(self._items)
        fields = {name: value for name, value in self.__dict__.items() if name != "_items"}
        return {n: v.as_dict() if isinstance(v, Message) else v for n, v in fields.items()}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.as_dict()})"


class FullConfig(Message):
    """What stack_params["config"] holds."""


class CSConfig(Message):
    """What CSRunConfig takes as cs_config."""


def is_cs(params: Params) -> bool:
    """Whether the run is to go to a Cerebras machine."""
    return params.get("cs_ip") is not None or "K8S_CS_IP" in os.environ


def check_env(params: Params) -> None:
    """Refuses settings that a Cerebras machine does not support."""
    mode = params["mode"]
    if not is_cs(params):
        return
    if mode in ("eval_all", "train_and_eval"):
        raise UserError(
            f"mode {mode} cannot run on a Cerebras machine.", "Leave cs_ip out, or run train and eval."
        )
    if mode == "eval" and params.get("eval_steps") is None:
        raise UserError("eval on a Cerebras machine needs eval_steps.", "Set runconfig.eval_steps.")


def get_params(params_file: str) -> Params:
    """The params.yaml as a dict."""
    loaded = yaml.safe_load(Path(params_file).read_text())
    if not isinstance(loaded, dict):
        raise UserError(f"{params_file} holds no sections.", "Give a params.yaml.")
    return loaded


def save_params(params: Params, model_dir: str | None, fname: str = "params.yaml") -> None:
    """Writes what the run was given beside its checkpoints."""
    if not model_dir:
        raise UserError("there is no model_dir.", "Give --model_dir, or runconfig.model_dir.")
    Path(model_dir).mkdir(parents=True, exist_ok=True)
    (Path(model_dir) / fname).write_text(yaml.safe_dump(params, default_flow_style=False))


def update_params_from_args(args: Any, params: Params) -> None:
    """Overrides params by the command line; eval_steps of 0 or less stand for all."""
    for name, value in (vars(args) if args else {}).items():
        params[name] = value if value is not None else params.get(name)
    if params.get("eval_steps") is not None and params["eval_steps"] <= 0:
        params["eval_steps"] = None
    if not is_cs(params):
        params["cs_ip"] = None
    elif "K8S_CS_IP" not in os.environ:
        params["cs_ip"] = f"{params['cs_ip']}:9000"


def create_warm_start_settings(runconfig_params: Params, exclude_string: str | None = None) -> Any:
    """Settings to start from runconfig's checkpoint_path, without weights whose names contain the string; None without a path."""
    path = runconfig_params.get("checkpoint_path")
    if path is None:
        return None
    from portwright.tensorflow import WarmStartSettings

    names = f"^((?!{exclude_string}).)*$" if exclude_string else ".*"
    return WarmStartSettings(ckpt_to_initialize_from=path, vars_to_warm_start=names)


def get_csrunconfig_dict(params: Params) -> Params:
    """The arguments of CSRunConfig that the runconfig section holds."""
    strategy = None
    if params.get("enable_distributed"):
        if is_cs(params):
            raise UserError("enable_distributed is for GPUs.", "Set it to False on a Cerebras machine.")
        strategy = (
            tf.distribute.experimental.MultiWorkerMirroredStrategy()
            if params.get("multiple_workers")
            else tf.distribute.MirroredStrategy()
        )
    device = params.get("device")
    found = {name: params[name] for name in _OF_RUNCONFIG if name in params}
    if params.get("disable_standard_logs"):
        found["log_step_count_steps"] = None
    return {
        **found,
        "train_distribute": strategy,
        "eval_distribute": strategy,
        "device_fn": (lambda op: device) if device else None,
    }


def get_csconfig(params: Params) -> CSConfig:
    """The csconfig section as a message."""
    return CSConfig(**params)


def get_predict_directory(model_dir: str) -> str:
    """The folder with the predictions of an earlier run."""
    folder = Path(model_dir) / "predict"
    if not folder.is_dir():
        raise UserError(f"there are no predictions in {model_dir}.", "Run with --mode predict first.")
    return str(folder)


def save_predictions(model_dir: str, outputs: Iterable[Any], name: str = "outputs.npz") -> None:
    """Writes the results of predict() into the folder predict/."""
    folder = Path(model_dir) / "predict"
    folder.mkdir(parents=True, exist_ok=True)
    kept = list(outputs)
    if kept:
        np.savez(folder / name, kept)
