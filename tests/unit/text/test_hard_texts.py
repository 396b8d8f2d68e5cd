"""Texts and files that no maker of a corpus would admit to: found by attacking `portwright data prepare`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from portwright.errors import UserError
from portwright.text import Objective, load_tokenizer, train_tokenizer
from portwright.text.prepare import PrepareOptions, prepare

LINES = b"".join(b"line %d of a text that is packed\n" % number for number in range(20_000))


@pytest.mark.parametrize("kind", ["gpt", "t5", "bert"])
def test_a_word_of_a_million_letters_does_not_stop_training(kind: str) -> None:
    # Without a bound this takes hours: the trainer's time grows with the square of a word's length.
    tokenizer = train_tokenizer(kind, ["ab" * 500_000], 300)
    assert "abab" in tokenizer.backend.get_vocab() or kind != "gpt"


@pytest.mark.parametrize("tail", [b"garbage", b"\x1f\x8b\x08"])
def test_what_follows_a_whole_gzip_is_named_by_its_place(tmp_path: Path, tail: bytes) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(LINES) + tail)
    options = PrepareOptions(Objective("causal", 16), vocab_size=300, split="line")
    with pytest.raises(UserError, match=rf"a.txt.gz', byte {len(LINES)} of the text: the compressed file is"):
        prepare([tmp_path / "a.txt.gz"], tmp_path / "store", options)


def test_a_tokenizer_without_unknown_words_says_so(tmp_path: Path) -> None:
    model = {"type": "WordLevel", "vocab": {"a": 0, "</s>": 1}, "unk_token": "<unk>"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": model}))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    with pytest.raises(UserError, match=r"tokenizer.json' cannot cut a text into tokens: .*Missing \[UNK\]"):
        tokenizer.encode("b")


def test_a_csv_record_that_is_not_utf8_is_one_bad_record(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"text,n\nfirst one,1\nsecond \xff one,2\nthird one,3\n")
    options = PrepareOptions(Objective("causal", 8), vocab_size=300)
    with pytest.raises(UserError, match=r"a.csv', record that ends on line 3: 0xff is not UTF-8"):
        prepare([tmp_path / "a.csv"], tmp_path / "store", options)
    skipping = PrepareOptions(Objective("causal", 8), vocab_size=300, skip_bad=True)
    assert prepare([tmp_path / "a.csv"], tmp_path / "store", skipping).num_bad == 1
