"""What Python does once where the user expects it at every call: state of modules that is part of no program."""

from __future__ import annotations

from typing import Any

from torch import nn

from portwright.emulate.poptorch._logging import logger

_MOST_NAMED = 4
_PLAIN = (bool, int, float, complex, str, bytes, tuple, frozenset, type(None))
_STATISTICS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


class PythonState:
    """The attributes of a model's own modules before forward() runs."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before = _attributes(model)

    def warn_of_changes(self) -> None:
        """Says which attributes forward() has set: it runs once, so they stay as they are from now on."""
        now = _attributes(self._model)
        changed = [name for name, value in now.items() if not _is_same(self._before.get(name, self), value)]
        if changed:
            more = f" and {len(changed) - _MOST_NAMED} more" if len(changed) > _MOST_NAMED else ""
            logger.warning(
                "forward() sets %s%s, which happens once, when the model is compiled: later calls run the program, in which the "
                "value is a constant. Keep what changes in a buffer (register_buffer, changed in place), or return it",
                ", ".join(f"self.{name}" for name in changed[:_MOST_NAMED]),
                more,
            )


def warn_of_training_mode(model: nn.Module) -> None:
    """Says that a model infers as in training, where that makes a difference."""
    for name, part in model.named_modules():
        drops = isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0
        counts = isinstance(part, _STATISTICS) and part.track_running_stats
        if part.training and (drops or counts):
            logger.warning(
                "an inferenceModel is compiled of a model in training mode: %s '%s' %s. Call model.eval() before",
                type(part).__name__,
                name,
                "drops values" if drops else "normalises by each batch and changes its statistics",
            )
            return


def _attributes(model: nn.Module) -> dict[str, Any]:
    found = {}
    for path, part in model.named_modules():
        if not type(part).__module__.startswith("torch."):
            prefix = f"{path}." if path else ""
            found.update({prefix + name: value for name, value in vars(part).items() if name[:1] != "_"})
    return found


def _is_same(before: Any, now: Any) -> bool:
    if before is now:
        return True
    return type(before) is type(now) and isinstance(now, _PLAIN) and bool(before == now)
