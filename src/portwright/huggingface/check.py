"""Runs the network of transformers with its files and ours with the converted ones on one batch, and compares them."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from portwright.errors import UserError, suggest
from portwright.extras import import_transformers
from portwright.huggingface.mapping import Family, Params, is_ignored
from portwright.huggingface.weights import Weights, read_config

_BATCH, _LENGTH, _SEED = 3, 24, 0
# Where a model of theirs has several, ours gives them in the same order.
_OUTPUTS = ("logits", "prediction_logits", "seq_relationship_logits", "start_logits", "end_logits")


@dataclass(frozen=True)
class Checked:
    """The result of a comparison; `difference` is that of the logits, `scale` the largest logit."""

    architecture: str
    difference: float
    scale: float
    loss: float | None  # of the network of transformers
    loss_difference: float | None
    tolerance: float
    missing_keys: tuple[str, ...] = ()  # what transformers did not find in its files
    unexpected_keys: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        # Rounding grows with the numbers that are added up. A NaN is never within the tolerance.
        bound = self.tolerance * max(1.0, self.scale)
        losses = self.loss_difference is None or self.loss_difference <= bound
        return self.difference <= bound and losses and not self.missing_keys and not self.unexpected_keys

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "equal": self.is_good}

    def __str__(self) -> str:
        loss = "" if self.loss_difference is None else f", loss {self.loss:.6f} by {self.loss_difference:.2e}"
        keys = "".join(
            f"; {what} for transformers: {', '.join(names)}"
            for what, names in (("missing", self.missing_keys), ("unexpected", self.unexpected_keys))
            if names
        )
        verdict = "equal" if self.is_good else "NOT equal"
        return (
            f"{verdict} to {self.architecture} of transformers: logits differ by at most {self.difference:.2e} "
            f"(largest {self.scale:.3g}, tolerance {self.tolerance:g}){loss}{keys}"
        )


def require_transformers() -> Any:
    with _quiet():
        return import_transformers("--check")


def check(
    theirs: Path,
    ours: Weights,
    family: Family,
    params: Params,
    tolerance: float,
    rounded: torch.dtype | None = None,
) -> Checked:
    """Compares the logits and the loss of a HuggingFace folder with those of our network; both compute in fp32.

    If the conversion cast the weights to the type `rounded`, both sides are rounded to it first.
    """
    transformers = require_transformers()
    config = read_config(theirs)
    name = (config.get("architectures") or [family.classes(next(iter(family.architectures)))[0]])[0]
    known = [each for folder in family.architectures for each in family.classes(folder)]
    if name not in known or not hasattr(transformers, name):
        raise UserError(f"--check cannot compare with '{name}'.", suggest(str(name), known))
    with _quiet():
        # For a base model the class with the head that is made of the same weights.
        is_base = name.endswith("Model") and not name.endswith("LMHeadModel")
        model, loading = getattr(transformers, known[0] if is_base else name).from_pretrained(
            theirs, dtype=torch.float32, output_loading_info=True, local_files_only=True
        )
    network = family.network(params).float()
    network.load_state_dict({each: ours.read(each) for each in ours.specs})
    if rounded is not None:
        model, network = model.to(rounded).float(), network.to(rounded).float()
    batch = make_batch(model.config, network)
    with torch.no_grad(), _quiet():
        outputs, made = model.eval()(**batch), network.eval()(**batch)
    their_outputs = [outputs[name] for name in _OUTPUTS if outputs.get(name) is not None]
    our_outputs = [each for each in (made if isinstance(made, tuple) else (made,)) if each is not None]
    unexpected = [
        each
        for each in map(str, loading.get("unexpected_keys") or ())
        if not is_ignored(each, family.prefix, family.ignored)  # buffers of older releases
    ]
    return replace(
        _compare(name, model.config, batch, their_outputs, our_outputs, tolerance),
        missing_keys=tuple(sorted(map(str, loading.get("missing_keys") or ()))),
        unexpected_keys=tuple(sorted(unexpected)),
    )


def make_batch(config: Any, network: nn.Module) -> dict[str, Tensor]:
    """A seeded batch of our network's inputs, with padding at the end of all rows but the first."""
    draw = torch.Generator().manual_seed(_SEED)
    longest = getattr(config, "max_position_embeddings", None) or _LENGTH
    pad = getattr(config, "pad_token_id", None)
    # RoBERTa's positions begin behind padding's, so that the last ones cannot be used.
    length = max(1, min(_LENGTH, longest - ((pad or 0) + 1 if config.model_type == "roberta" else 0)))
    wanted = set(inspect.signature(network.forward).parameters)
    batch: dict[str, Tensor] = {}
    for prefix in ("", "decoder_"):
        if f"{prefix}input_ids" in wanted:
            ids, mask = _draw_tokens(draw, config.vocab_size, pad, length)
            batch[f"{prefix}input_ids"], batch[f"{prefix}attention_mask"] = ids, mask
    segments = getattr(config, "type_vocab_size", None)
    if "token_type_ids" in wanted and segments:
        shape = batch["input_ids"].shape
        batch["token_type_ids"] = torch.randint(0, segments, shape, generator=draw)
    return batch


def _draw_tokens(
    draw: torch.Generator, vocab_size: int, pad: int | None, length: int
) -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, vocab_size, (_BATCH, length), generator=draw)
    if pad is not None and 0 <= pad < vocab_size and vocab_size > 1:
        ids = torch.where(ids == pad, (pad + 1) % vocab_size, ids)
    mask = torch.ones_like(ids)
    for row in range(1, _BATCH):
        start = max(1, length - row * max(1, length // 4))
        mask[row, start:] = 0
        ids[row, start:] = pad if pad is not None and 0 <= pad < vocab_size else 0
    return ids, mask


def _compare(
    name: str,
    config: Any,
    batch: Mapping[str, Tensor],
    theirs: list[Tensor],
    ours: list[Tensor],
    tolerance: float,
) -> Checked:
    shapes = [tuple(each.shape) for each in theirs], [tuple(each.shape) for each in ours]
    if shapes[0] != shapes[1]:
        raise UserError(
            f"{name} gives {shapes[0]}, and our network {shapes[1]}.", "The params do not fit the weights."
        )
    mask = batch.get("decoder_attention_mask", batch["attention_mask"]).bool()
    pairs = [
        (one[mask], two[mask])
        if one.shape[:2] == mask.shape
        else (one, two)  # scores at padding are not compared
        for one, two in zip(theirs, ours, strict=True)
    ]
    difference = max(float((one - two).abs().max()) for one, two in pairs)
    scale = max(float(one.abs().max()) for one, _ in pairs)
    losses = [_loss(config, mask, outputs) for outputs in (theirs, ours)]
    return Checked(
        name,
        difference,
        scale,
        losses[0],
        None if losses[0] is None or losses[1] is None else abs(losses[0] - losses[1]),
        tolerance,
    )


def _loss(config: Any, mask: Tensor, outputs: list[Tensor]) -> float | None:
    """The mean cross-entropy of seeded labels without padding; None where the scores are not of classes."""
    if getattr(config, "problem_type", None) not in (None, "single_label_classification"):
        return None
    draw = torch.Generator().manual_seed(_SEED + 1)
    total = 0.0
    for scores in outputs:
        if scores.shape[-1] < 2:
            return None
        labels = torch.randint(0, scores.shape[-1], scores.shape[:-1], generator=draw)
        if scores.shape[:2] == mask.shape and scores.dim() == 3:
            labels = labels.masked_fill(~mask, -100)
        total += float(F.cross_entropy(scores.reshape(-1, scores.shape[-1]), labels.reshape(-1)))
    return total


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides transformers' warnings and progress bars; the result has what matters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            logging: Any = importlib.import_module("transformers.utils.logging")
        except ImportError:
            yield
            return
        level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(level)
            if bars:
                logging.enable_progress_bar()
