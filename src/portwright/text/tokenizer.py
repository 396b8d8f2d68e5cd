"""A tokenizer as the objectives need it: ids in arrays, special tokens by role, and a fingerprint."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers

from portwright.errors import UserError

Ids = npt.NDArray[np.int32]

# The names of special tokens by role; the first name that a vocabulary has is taken.
ROLES: dict[str, tuple[str, ...]] = {
    "pad": ("[PAD]", "<pad>", "<|pad|>"),
    "unk": ("[UNK]", "<unk>", "<|unk|>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
    "bos": ("<s>", "<|startoftext|>", "[CLS]"),
    "eos": ("</s>", "<|endoftext|>", "[SEP]"),
}
_ID_KEYS = {"pad_token_id": "pad", "eos_token_id": "eos"}  # of a model's params, and the token's role
_SENTINEL = re.compile(r"<extra_id_(\d+)>")
# Texts for the fingerprint: tokenizers that cut these alike treat case, accents, blanks, digits and scripts alike.
_PROBES = (
    "The Quick brown-fox's  naïve CAFÉ, 1234567 + 3.14!\n\tdef f(x): return x_1\r\n",
    " leading and trailing  ",
    "東京タワー Привет مرحبا 🙂 ½ ﬁ <s> [MASK] <|endoftext|>",
)


class Tokenizer:
    """Text to ids and back.

    Only objectives insert special tokens: text that spells one is encoded as text. `roles` names the special token of
    a role (pad, unk, cls, sep, mask, bos, eos) where it does not have a usual name.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        source: str,
        roles: Mapping[str, str] | None = None,
    ) -> None:
        backend.no_padding()
        backend.no_truncation()
        self.backend, self.source = backend, source
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
        """The id of the token with this role; a UserError where the vocabulary has none."""
        if role not in self.roles:
            raise UserError(
                f"{self.source} has no token for '{role}' (looked for {', '.join(ROLES[role])}).",
                "Take a tokenizer of the model's own family, or leave `tokenizer` out to train one.",
            )
        return self.roles[role]

    @property
    def pad_id(self) -> int:
        """The id that fills rows; GPT's vocabulary has no padding, so that its end token is used, which nothing reads."""
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
        """A hash of the vocabulary and of how test texts are cut; files of the same tokenizer share it."""
        vocabulary = sorted(self.backend.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
        cut = [self.encode(probe).tolist() for probe in _PROBES]
        text = json.dumps([vocabulary, cut], ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @cached_property
    def ordinary_ids(self) -> Ids:
        """The ids, ascending, that are not special tokens; random tokens are drawn from them."""
        known = np.fromiter(self.backend.get_vocab(with_added_tokens=True).values(), np.int32)
        return np.setdiff1d(known, self.special_ids).astype(np.int32)

    @cached_property
    def is_special(self) -> npt.NDArray[np.bool_]:
        flags = np.zeros(self.size, np.bool_)
        flags[self.special_ids] = True
        return flags

    @cached_property
    def joins(self) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """By id: whether a token can continue a word, and whether a word can continue after it."""
        begins_inside, ends_inside = np.zeros((2, self.size), np.bool_)
        vocabulary = self.backend.get_vocab(with_added_tokens=True)
        marks_later = isinstance(self.backend.model, tokenizers.models.WordPiece)
        for token, number in vocabulary.items():
            if marks_later:  # WordPiece
                begins_inside[number], ends_inside[number] = token.startswith("##"), True
            elif token:  # byte-level BPE and Metaspace: the blank before a word is part of its first token
                begins_inside[number] = token[0] not in "ĠĊĉč▁" and _is_of_word(token[0])
                ends_inside[number] = _is_of_word(token[-1])
        ends_inside[self.special_ids] = begins_inside[self.special_ids] = False
        return begins_inside, ends_inside

    def with_sentinels(self, count: int) -> Tokenizer:
        """This tokenizer where it has sentinels, else one with `count` sentinels at the end, the first one last as in T5."""
        if not self.sentinel_ids and count:
            self.backend.add_special_tokens([f"<extra_id_{number}>" for number in reversed(range(count))])
            roles = {role: str(self.backend.id_to_token(number)) for role, number in self.roles.items()}
            return Tokenizer(self.backend, self.source, roles)
        return self

    def to_json(self) -> str:
        return str(self.backend.to_str(pretty=True))

    def describe(self) -> dict[str, Any]:
        """A store's note of its tokenizer."""
        return {
            "fingerprint": self.fingerprint,
            "vocab_size": self.size,
            "special_ids": dict(self.roles),
            "num_sentinels": len(self.sentinel_ids),
        }


def _is_of_word(letter: str) -> bool:
    # Byte-level BPE shows bytes above ASCII as Latin letters and signs; they are parts of other scripts' letters.
    return letter.isalnum() or letter == "_" or ord(letter) > 127


def as_word_pieces(model: Any, lower: bool) -> tokenizers.Tokenizer:
    """A WordPiece model with BERT's normaliser, pre-tokenizer and decoder."""
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.BertNormalizer(lowercase=lower)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend


def as_byte_pairs(model: Any, add_prefix_space: bool) -> tokenizers.Tokenizer:
    """A BPE model with GPT-2's pre-tokenizer and decoder."""
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    return backend


def check_positions(section: str, key: str, length: int, model: Mapping[str, Any], used_up: int = 0) -> None:
    """Refuses samples that are longer than the model's positions."""
    room = model.get("max_position_embeddings")
    if room is not None and length + used_up > room:
        raise UserError(
            f"{section}.{key} is {length} and model.max_position_embeddings {room}"
            + (f", of which {used_up} are for padding." if used_up else "."),
            f"Set model.max_position_embeddings to at least {length + used_up}, or take shorter samples.",
        )


def check_tokenizer(tokenizer: Tokenizer, section: str, model: Mapping[str, Any]) -> None:
    """Refuses a tokenizer with ids beyond the model's vocabulary, or with other special tokens than the model's."""
    if tokenizer.size > model["vocab_size"]:
        raise UserError(
            f"{section}: {tokenizer.source} has {tokenizer.size} tokens and model.vocab_size is {model['vocab_size']}.",
            f"Set model.vocab_size to at least {tokenizer.size}, or take the tokenizer that belongs to the model.",
        )
    for key, role in _ID_KEYS.items():
        said = model.get(key)
        if said is None or role not in tokenizer.roles:
            continue
        if tokenizer.roles[role] not in (said if isinstance(said, list) else [said]):
            raise UserError(
                f"{section}: model.{key} is {said} and that of {tokenizer.source} is {tokenizer.roles[role]}.",
                f"Set model.{key} to {tokenizer.roles[role]}, or take the tokenizer that belongs to the model.",
            )
