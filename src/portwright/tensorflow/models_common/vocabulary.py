"""A vocabulary of words and pieces of words, and the tokenizer that goes with it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from portwright.errors import UserError

PAD, UNKNOWN, START, END, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"  # as in BERT's vocab.txt
SPECIAL_TOKENS = (PAD, UNKNOWN, START, END, MASK)

_WORD = re.compile(r"[^\W_]+|[^\w\s]|_")
_LONGEST_WORD = 100  # as in BERT: a longer word becomes the unknown token


class Vocabulary:
    """Numbered tokens; an unknown word is cut into the longest known pieces ("##" marks all but the first)."""

    def __init__(self, tokens: Sequence[str], *, lower_case: bool = True) -> None:
        self.tokens = list(tokens)
        self.lower_case = lower_case
        self.ids = {token: number for number, token in enumerate(self.tokens)}
        self._known_words: dict[str, list[int]] = {}
        if len(self.ids) != len(self.tokens):
            twice = next(token for token, count in Counter(self.tokens).items() if count > 1)
            raise UserError(f"The vocabulary has {twice!r} more than once.", "Leave each token in once.")
        missing = [token for token in SPECIAL_TOKENS if token not in self.ids]
        if missing:
            raise UserError(
                f"The vocabulary lacks {', '.join(missing)}.", "Add them, each on a line of its own."
            )

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def read(cls, path: str | Path, *, lower_case: bool = True) -> Vocabulary:
        """Reads a file with one token in each line, such as BERT's vocab.txt."""
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"vocab_file '{path}' cannot be read: {error}.", "Give a UTF-8 file with a token a line."
            ) from error
        return cls([line.strip() for line in lines if line.strip()], lower_case=lower_case)

    @classmethod
    def learn(
        cls, texts: Iterable[str], size: int, *, lower_case: bool = True, pad_id: int = 0
    ) -> Vocabulary:
        """Makes a vocabulary of at most `size` tokens: the special tokens, the letters that occur, then the most frequent words.

        `pad_id` is where among the special tokens padding stands.
        """
        special = [token for token in SPECIAL_TOKENS if token != PAD]
        if not 0 <= pad_id <= len(special):
            raise UserError(
                f"pad_token_id is {pad_id}, and a learned vocabulary has padding among its first tokens.",
                f"Give 0 to {len(special)}, or a vocab_file of your own.",
            )
        special.insert(pad_id, PAD)
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(split_words(text, lower_case))
        letters = sorted({letter for word in counts for letter in word})
        pieces = [*special, *letters, *(f"##{letter}" for letter in letters)]
        if size < len(pieces):
            raise UserError(
                f"vocab_size is {size}, and the letters of the text and the special tokens alone are {len(pieces)}.",
                f"Give at least {len(pieces)}.",
            )
        known = set(pieces)
        words = [word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
        pieces += [word for word in words if word not in known][: size - len(pieces)]
        return cls(pieces, lower_case=lower_case)

    def encode(self, text: str) -> list[int]:
        return [number for word in split_words(text, self.lower_case) for number in self._word_ids(word)]

    def decode(self, ids: Iterable[int]) -> str:
        """The words, separated by blanks, without padding."""
        tokens = [self.tokens[number] for number in ids]
        return " ".join(token for token in tokens if token != PAD).replace(" ##", "")

    def _word_ids(self, word: str) -> list[int]:
        if word not in self._known_words:
            self._known_words[word] = self._cut(word)
        return self._known_words[word]

    def _cut(self, word: str) -> list[int]:
        pieces: list[int] = []
        start = 0
        while start < len(word):
            mark = "##" if start else ""
            found = next(
                (end for end in range(len(word), start, -1) if mark + word[start:end] in self.ids), None
            )
            if found is None or len(word) > _LONGEST_WORD:
                return [self.ids[UNKNOWN]]
            pieces.append(self.ids[mark + word[start:found]])
            start = found
        return pieces


def split_words(text: str, lower_case: bool) -> list[str]:
    """Splits text into words and single punctuation marks."""
    return _WORD.findall(text.lower() if lower_case else text)
