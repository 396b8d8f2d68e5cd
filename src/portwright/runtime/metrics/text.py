"""Metrics of text: perplexity, bits per byte, character or word, and ROUGE, the overlap of a generated text with its reference."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from portwright.errors import UserError, suggest
from portwright.runtime.metrics.base import SUM_DTYPE, Metric, Sums, as_tensor, spread

# GPT-2 tokens per UTF-8 byte, from table 7 of "The Pile" (arXiv 2101.00027).
TOKENS_PER_BYTE = {"pile": 0.29335, "openwebtext2": 0.2434}

BITS_PER_TYPES = ("per_byte", "per_character", "per_word")


class TokenLossMetric(Metric):
    """A metric of the cross entropy per token.

    `loss` is the sum over the tokens of the batch (not their mean), or one loss per label; weights apply to the
    latter and count the tokens of both. Labels of `ignore_index` are no tokens, as in torch's cross_entropy.
    """

    def __init__(self, name: str | None = None, *, ignore_index: int | None = -100) -> None:
        super().__init__(name)
        self.ignore_index = ignore_index

    def sum_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {"loss": (), "tokens": ()}

    def update(self, labels: Any, loss: Any, weights: Any = None) -> None:
        label = as_tensor(self.name, "labels", labels)
        losses = as_tensor(self.name, "loss", loss).to(device=label.device, dtype=SUM_DTYPE)
        weight = spread(self.name, weights, label)
        if self.ignore_index is not None:
            weight = torch.where(label == self.ignore_index, 0.0, weight)
        if losses.dim() > 0 and losses.numel() == label.numel():
            # A loss that does not count may be anything, NaN too.
            losses = torch.where(weight == 0, 0.0, losses.reshape(label.shape) * weight)
        elif losses.numel() != 1:
            raise UserError(
                f"Metric '{self.name}' received a loss of shape {tuple(losses.shape)} for labels of shape "
                f"{tuple(label.shape)}.",
                "Pass the loss summed over the batch's tokens, or one loss per label.",
            )
        self.add(loss=losses.sum(), tokens=weight.sum())

    def nats_per_token(self, sums: Sums) -> float:
        """Mean cross entropy of a token, in nats."""
        tokens = float(sums["tokens"])
        if tokens == 0:
            raise self.no_value("it saw no token that counts")
        return float(sums["loss"]) / tokens


class PerplexityMetric(TokenLossMetric):
    """e to the cross entropy per token; infinite when that exceeds what a float holds."""

    def value(self, sums: Sums) -> float:
        try:
            return math.exp(self.nats_per_token(sums))
        except OverflowError:
            return math.inf


class BitsPerXMetric(TokenLossMetric):
    """Cross entropy in bits per byte, character or word.

    `tokens_per_x` says how many tokens one byte (character, word) is on average. Left out, it is the known
    number of `dataset` for bytes, and 1 for characters and words: tokens are then taken to be just those.
    """

    def __init__(
        self,
        bits_per_type: str = "per_byte",
        dataset: str = "pile",
        name: str | None = None,
        *,
        tokens_per_x: float | None = None,
        ignore_index: int | None = -100,
    ) -> None:
        if bits_per_type not in BITS_PER_TYPES:
            raise UserError(
                f"bits_per_type must be known, received {bits_per_type!r}.",
                suggest(str(bits_per_type), BITS_PER_TYPES),
            )
        if tokens_per_x is None and bits_per_type == "per_byte" and dataset not in TOKENS_PER_BYTE:
            raise UserError(
                f"Tokens per byte of data set {dataset!r} are not known.",
                f"Pass tokens_per_x with your tokenizer's number. {suggest(str(dataset), TOKENS_PER_BYTE)}",
            )
        if tokens_per_x is not None and not (math.isfinite(tokens_per_x) and tokens_per_x > 0):
            raise UserError(
                f"tokens_per_x must be above 0, received {tokens_per_x}.",
                "Divide the number of tokens of your text by its number of bytes (characters, words).",
            )
        super().__init__(name, ignore_index=ignore_index)
        self.tokens_per_x = tokens_per_x or (TOKENS_PER_BYTE[dataset] if bits_per_type == "per_byte" else 1.0)

    def value(self, sums: Sums) -> float:
        return self.nats_per_token(sums) / math.log(2) * self.tokens_per_x


PARTS = ("precision", "recall", "f1")
_WORD = re.compile(r"[^\W_]+")


class RougeScoreMetric(Metric):
    """ROUGE-1 to ROUGE-`max_n` and ROUGE-L: precision, recall and F1, each the mean over samples.

    A sample is a text (compared by its lower-case words), a list of tokens, or a row of token ids. Tokens in
    `ignore_ids`, such as padding, do not count. This metric works on the host: ids are copied there at each update.
    """

    def __init__(self, max_n: int = 2, name: str | None = None, *, ignore_ids: Sequence[int] = ()) -> None:
        if isinstance(max_n, bool) or not isinstance(max_n, int) or max_n < 1:
            raise UserError(f"max_n must be a whole number of at least 1, received {max_n!r}.", "2 is usual.")
        super().__init__(name)
        self.max_n = max_n
        self.ignore_ids = frozenset(ignore_ids)
        self.variants = (*(f"rouge{n}" for n in range(1, max_n + 1)), "rougeL")

    def sum_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {"scores": (len(self.variants), len(PARTS)), "samples": ()}

    def update(self, labels: Any, predictions: Any, weights: Any = None) -> None:
        references, candidates = self._tokens("labels", labels), self._tokens("predictions", predictions)
        if len(references) != len(candidates):
            raise UserError(
                f"Metric '{self.name}' received {len(references)} labels and {len(candidates)} predictions.",
                "Pass one prediction per label.",
            )
        if not references:
            return
        pairs = zip(references, candidates, strict=True)
        scores = torch.tensor([self._score(*pair) for pair in pairs], dtype=SUM_DTYPE)
        weight = spread(self.name, weights, scores[:, 0, 0])
        self.add(scores=(scores * weight[:, None, None]).sum(0), samples=weight.sum())

    def value(self, sums: Sums) -> dict[str, float]:
        num_samples = float(sums["samples"])
        if num_samples == 0:
            raise self.no_value("the weights of all its samples were zero")
        rows = zip(self.variants, (sums["scores"] / num_samples).tolist(), strict=True)
        return {f"{variant}/{part}": x for variant, row in rows for part, x in zip(PARTS, row, strict=True)}

    def _tokens(self, what: str, samples: Any) -> list[list[Hashable]]:
        if hasattr(samples, "tolist"):  # a tensor or an array
            samples = samples.tolist()
        if isinstance(samples, str):
            samples = [samples]
        if not isinstance(samples, Sequence):
            raise self._bad_sample(what, samples)
        return [self._tokens_of(what, sample) for sample in samples]

    def _tokens_of(self, what: str, sample: Any) -> list[Hashable]:
        if isinstance(sample, str):
            return list(_WORD.findall(sample.lower()))
        if hasattr(sample, "tolist"):
            sample = sample.tolist()
        if not isinstance(sample, Sequence):
            raise self._bad_sample(what, sample)
        if not all(isinstance(token, Hashable) for token in sample):
            raise self._bad_sample(what, sample)
        return [token for token in sample if token not in self.ignore_ids]

    def _bad_sample(self, what: str, received: Any) -> UserError:
        return UserError(
            f"Metric '{self.name}' received {what} that hold a {type(received).__name__}.",
            "Pass a list of texts, a list of token lists, or a tensor of ids of shape (batch, length).",
        )

    def _score(self, reference: list[Hashable], candidate: list[Hashable]) -> list[list[float]]:
        rows = []
        for n in range(1, self.max_n + 1):
            wanted, given = _ngrams(reference, n), _ngrams(candidate, n)
            rows.append(_precision_recall_f1((wanted & given).total(), given.total(), wanted.total()))
        common = longest_common_subsequence(reference, candidate)
        rows.append(_precision_recall_f1(common, len(candidate), len(reference)))
        return rows


def longest_common_subsequence(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """Length of the longest common subsequence, a machine word of `first` at a time (Hyyrö 2004)."""
    places: dict[Hashable, int] = {}
    for index, token in enumerate(first):
        places[token] = places.get(token, 0) | 1 << index
    everything = (1 << len(first)) - 1
    unmatched = everything
    for token in second:
        hits = unmatched & places.get(token, 0)
        unmatched = ((unmatched + hits) | (unmatched - hits)) & everything
    return len(first) - unmatched.bit_count()


def _ngrams(tokens: list[Hashable], n: int) -> Counter[tuple[Hashable, ...]]:
    return Counter(zip(*(tokens[offset:] for offset in range(n)), strict=False))


def _precision_recall_f1(num_common: int, num_given: int, num_wanted: int) -> list[float]:
    if num_common == 0:
        return [0.0, 0.0, 0.0]
    return [num_common / num_given, num_common / num_wanted, 2 * num_common / (num_given + num_wanted)]
