"""A tokenizer as the objectives need it: ids in arrays, the special tokens by their part, and a fingerprint."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from portwright.errors import UserError

Ids = npt.NDArray[np.int32]

# What families call the tokens that play a part; the first that a vocabulary has is taken.
ROLES: dict[str, tuple[str, ...]] = {
    "pad": ("[PAD]", "<pad>", "<|pad|>"),
    "unk": ("[UNK]", "<unk>", "<|unk|>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
    "bos": ("<s>", "<|startoftext|>", "[CLS]"),
    "eos": ("</s>", "<|endoftext|>", "[SEP]"),
}
_SENTINEL = re.compile(r"<extra_id_(\d+)>")
# Two tokenizers that agree on these and on their vocabulary agree: case, accents, blanks, digits, other scripts.
_PROBES = (
    "The Quick brown-fox's  naïve CAFÉ, 1234567 + 3.14!\n\tdef f(x): return x_1\r\n",
    " leading and trailing  ",
    "東京タワー Привет مرحبا 🙂 ½ ﬁ <s> [MASK] <|endoftext|>",
)


class Tokenizer:
    """Text to ids and back.

    Special tokens are only put where an objective puts them: text that spells one is encoded as text.
    `roles` names special tokens by their part (pad, unk, cls, sep, mask, bos, eos) where the usual names do not tell.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        source: str,
        roles: Mapping[str, str] | None = None,
        file: Path | None = None,
    ) -> None:
        backend.no_padding()
        backend.no_truncation()
        self.backend, self.source, self.file = backend, source, file
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.roles: dict[str, int] = {}
        for role, names in ROLES.items():
            told = [roles[role]] if roles and role in roles else []
            found = next((name for name in (*told, *names) if name in vocabulary), None)
            if found is not None:
                self.roles[role] = vocabulary[found]
        sentinels = {
            int(match[1]): number
            for token, number in vocabulary.items()
            if (match := _SENTINEL.fullmatch(token))
        }
        self.sentinel_ids: tuple[int, ...] = tuple(
            sentinels[number] for number in range(len(sentinels)) if number in sentinels
        )
        self.size = max(vocabulary.values(), default=-1) + 1
        special = [*self.roles.values(), *sentinels.values()]
        special += [number for number, token in backend.get_added_tokens_decoder().items() if token.special]
        self.special_ids: Ids = np.unique(np.asarray(special, np.int32))
        spelled = {backend.id_to_token(number) for number in self.special_ids.tolist()}
        # Else the model of the vocabulary itself would cut "<s>" out of a text that spells it.
        backend.add_special_tokens(sorted(name for name in spelled if name is not None))
        backend.encode_special_tokens = True

    def __len__(self) -> int:
        return self.size

    def id_of(self, role: str) -> int:
        """The id of the token that plays this part; a UserError where the vocabulary has none."""
        if role not in self.roles:
            raise UserError(
                f"{self.source} has no token for '{role}' (looked for {', '.join(ROLES[role])}).",
                "Take a tokenizer of the model's own family, or leave `tokenizer` out to train one.",
            )
        return self.roles[role]

    @property
    def pad_id(self) -> int:
        """What fills rows; GPT's vocabulary has no padding, and its end token stands in as nothing looks at it."""
        return self.roles["pad"] if "pad" in self.roles else self.id_of("eos")

    @property
    def eos_id(self) -> int:
        return self.id_of("eos")

    def encode(self, text: str) -> Ids:
        """Ids of the text alone, without special tokens."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of each text; several threads at once, unless TOKENIZERS_PARALLELISM says no."""
        try:
            encoded = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
        except Exception as error:  # tokenizers raises nothing narrower
            raise UserError(
                f"{self.source} cannot cut a text into tokens: {error}.",
                "Take one whose vocabulary has a token for unknown words.",
            ) from error
        return [np.asarray(one.ids, np.int32) for one in encoded]

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        return str(self.backend.decode([int(number) for number in ids], skip_special_tokens=skip_special))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the vocabulary and of how probes are cut; files that spell the same tokenizer share it."""
        vocabulary = sorted(self.backend.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
        cut = [self.encode(probe).tolist() for probe in _PROBES]
        text = json.dumps([vocabulary, cut], ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @cached_property
    def ordinary_ids(self) -> Ids:
        """Ids that are no special token, ascending: what a random token is taken from."""
        known = np.fromiter(self.backend.get_vocab(with_added_tokens=True).values(), np.int32)
        return np.setdiff1d(known, self.special_ids).astype(np.int32)

    @cached_property
    def is_special(self) -> npt.NDArray[np.bool_]:
        flags = np.zeros(self.size, np.bool_)
        flags[self.special_ids] = True
        return flags

    @cached_property
    def joins(self) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Whether a token can go on a word that was begun before it, and whether a word can go on after it."""
        begins_inside, ends_inside = np.zeros((2, self.size), np.bool_)
        vocabulary = self.backend.get_vocab(with_added_tokens=True)
        marks_later = isinstance(self.backend.model, tokenizers.models.WordPiece)
        for token, number in vocabulary.items():
            if marks_later:  # WordPiece
                begins_inside[number], ends_inside[number] = token.startswith("##"), True
            elif token:  # byte-level BPE and Metaspace: a blank before a word is a letter of its first token
                begins_inside[number] = token[0] not in "ĠĊĉč▁" and _is_of_word(token[0])
                ends_inside[number] = _is_of_word(token[-1])
        ends_inside[self.special_ids] = begins_inside[self.special_ids] = False
        return begins_inside, ends_inside

    def with_sentinels(self, count: int) -> Tokenizer:
        """Itself where it has sentinels; else with `count` of them after its last token, the first one last (as T5 has it)."""
        if not self.sentinel_ids and count:
            self.backend.add_special_tokens([f"<extra_id_{number}>" for number in reversed(range(count))])
            roles = {role: str(self.backend.id_to_token(number)) for role, number in self.roles.items()}
            return Tokenizer(self.backend, self.source, roles, self.file)
        return self

    def to_json(self) -> str:
        return str(self.backend.to_str(pretty=True))

    def describe(self) -> dict[str, Any]:
        """What a store notes of the tokenizer that made it."""
        return {
            "fingerprint": self.fingerprint,
            "vocab_size": self.size,
            "special_ids": dict(self.roles),
            "num_sentinels": len(self.sentinel_ids),
        }


def _is_of_word(letter: str) -> bool:
    # Bytes above ASCII are shown as Latin letters and signs by byte-level BPE; they are parts of other scripts' letters.
    return letter.isalnum() or letter == "_" or ord(letter) > 127
