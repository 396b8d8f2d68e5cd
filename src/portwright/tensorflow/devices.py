"""The devices of this machine that TensorFlow trains on."""

from __future__ import annotations

from portwright.discover import find_targets
from portwright.errors import UnsupportedError, UserError
from portwright.target import Target


def why_not(target: Target) -> str | None:
    """Why TensorFlow cannot train on a target here, with the cure; None when it can."""
    import tensorflow as tf

    if target.tensorflow_device is None:
        from portwright.tensorflow.planning.plan import can_judge

        able = [other.name for other in find_targets().values() if other.tensorflow_device is not None]
        plans = " --validate_only and --compile_only plan a step for it." if can_judge(target) else ""
        return (
            f"TensorFlow does not train on {target.name}: {target.no_tensorflow}. "
            f"Train on {' or '.join(able)}.{plans}"
        )
    if tf.config.list_physical_devices(target.tensorflow_device):
        return None
    if not tf.test.is_built_with_gpu_support():
        return f"TensorFlow {tf.__version__} is a CPU build. pip install 'tensorflow[and-cuda]', or use CPU."
    return "TensorFlow sees no GPU. Check nvidia-smi and CUDA_VISIBLE_DEVICES, or use CPU."


def take_device(target: Target) -> None:
    """Lets TensorFlow use this target's devices and no others."""

    reason = why_not(target)
    if reason is not None:
        raise UnsupportedError(f"the target {target.name} cannot run here:", reason)
    if target.tensorflow_device == "CPU":
        hide_gpus()


def hide_gpus() -> None:
    """Lets TensorFlow use the CPU alone."""
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU"):
        try:
            tf.config.set_visible_devices([], "GPU")
        except RuntimeError as error:  # a session exists already
            raise UserError(
                "TensorFlow took its GPUs before run() was called.",
                "Make no tensor and no session before run(), or set CUDA_VISIBLE_DEVICES to nothing.",
            ) from error
