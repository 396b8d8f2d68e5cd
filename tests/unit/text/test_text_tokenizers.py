from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from portwright.errors import UserError
from portwright.text.shipped import shipped_documents, split_held_out
from portwright.text.tokenizer import Tokenizer
from portwright.text.tokenizer_files import load_tokenizer
from portwright.text.tokenizer_training import KINDS, train_tokenizer

TEXTS = list(shipped_documents()[:30])
HARD = "Naïve CAFÉ, 東京 🙂 <s> [MASK] <|endoftext|> <extra_id_0>\n\tx_1 = 3.14  # two  blanks "


@pytest.fixture(scope="module", params=KINDS)
def trained(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(request.param, TEXTS, 600, num_sentinels=10 if request.param == "t5" else 0)


def test_special_tokens_in_a_text_are_text(trained: Tokenizer) -> None:
    allowed = {trained.roles["unk"]} if "unk" in trained.roles else set()
    assert not set(trained.encode(HARD).tolist()) & (set(trained.special_ids.tolist()) - allowed)
    assert trained.size <= 600
    assert trained.encode(HARD).max() < trained.size
    assert set(trained.ordinary_ids.tolist()).isdisjoint(trained.special_ids.tolist())


def test_ids_come_as_one_by_one(trained: Tokenizer) -> None:
    for text, ids in zip([HARD, "", TEXTS[0]], trained.encode_batch([HARD, "", TEXTS[0]]), strict=True):
        assert ids.dtype == np.int32
        assert ids.tolist() == trained.encode(text).tolist()


@pytest.mark.parametrize("kind", ["gpt", "roberta"])
def test_byte_level_loses_nothing(kind: str) -> None:
    tokenizer = train_tokenizer(kind, TEXTS, 400)
    assert tokenizer.decode(tokenizer.encode(HARD)) == HARD


def test_saved_and_loaded_it_is_the_same(trained: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(trained.to_json(), encoding="utf-8")
    again = load_tokenizer(tmp_path)
    assert again.fingerprint == trained.fingerprint
    assert again.roles == trained.roles
    assert again.sentinel_ids == trained.sentinel_ids
    assert again.encode(HARD).tolist() == trained.encode(HARD).tolist()


def test_another_process_trains_the_same() -> None:
    # In the same process a hash map of random order would be the same one.
    code = (
        "from portwright.text import *; t = list(shipped_documents()[:30])\n"
        "print([train_tokenizer(k, t, 600, num_sentinels=10 * (k == 't5')).fingerprint for k in "
        f"{list(KINDS)!r}])"
    )
    here = [
        train_tokenizer(kind, TEXTS, 600, num_sentinels=10 * (kind == "t5")).fingerprint for kind in KINDS
    ]
    there = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert there.strip() == str(here)


def test_special_ids_are_the_families() -> None:
    assert train_tokenizer("gpt", TEXTS, 300).roles == {"eos": 0}
    bert = train_tokenizer("bert", TEXTS, 600).roles
    assert [bert[role] for role in ("pad", "unk", "cls", "sep", "mask")] == [0, 1, 2, 3, 4]
    roberta = train_tokenizer("roberta", TEXTS, 300).roles
    assert [roberta[role] for role in ("cls", "pad", "sep", "unk", "mask")] == [0, 1, 2, 3, 4]
    t5 = train_tokenizer("t5", TEXTS, 300, num_sentinels=7)
    assert [t5.roles[role] for role in ("pad", "eos", "unk")] == [0, 1, 2]
    assert t5.sentinel_ids == tuple(range(299, 292, -1))  # the first one last, as in T5


@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_below_the_alphabet_is_refused(kind: str) -> None:
    with pytest.raises(UserError, match="vocab_size is 20, and special tokens and letters alone are"):
        train_tokenizer(kind, TEXTS, 20)


def test_bpe_and_word_piece_files(tmp_path: Path) -> None:
    gpt = train_tokenizer("gpt", TEXTS, 400)
    content = json.loads(gpt.to_json())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(content["vocab"]), encoding="utf-8")
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in content["merges"]]
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    for place in (tmp_path, tmp_path / "vocab.json", tmp_path / "merges.txt"):
        assert load_tokenizer(place).fingerprint == gpt.fingerprint

    bert = train_tokenizer("bert", TEXTS, 600)
    vocabulary = json.loads(bert.to_json())["model"]["vocab"]
    file = tmp_path / "bert" / "vocab.txt"
    file.parent.mkdir()
    file.write_text("\n".join(sorted(vocabulary, key=vocabulary.get)) + "\n", encoding="utf-8")
    assert load_tokenizer(file.parent).fingerprint == bert.fingerprint
    assert load_tokenizer(file, do_lower=False).fingerprint != bert.fingerprint


def test_a_config_beside_it_names_special_tokens(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"<begin>": 0, "<end>": 1, "a": 2}, unk_token="a")
    )
    (tmp_path / "tokenizer.json").write_text(backend.to_str(), encoding="utf-8")
    with pytest.raises(UserError, match="has no token for 'eos'"):
        _ = load_tokenizer(tmp_path).eos_id
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": {"content": "<end>"}, "bos_token": "<begin>", "pad_token": None}),
        encoding="utf-8",
    )
    loaded = load_tokenizer(tmp_path)
    assert (loaded.eos_id, loaded.roles["bos"]) == (1, 0)
    assert loaded.special_ids.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("tokenizer.json", "{", "is no JSON"),
        ("tokenizer.json", "[]", "holds no JSON object"),
        ("tokenizer.json", '{"model": {"type": "Nothing"}}', "cannot be read"),
        ("vocab.json", '{"a": 0}', "merges.txt' is missing"),
        ("vocab.txt", "[UNK]\na\na\n", "has 'a' 2 times, first on line 2"),
        ("vocab.txt", "a\n", r"has no \[UNK\]"),
        ("vocab.txt", "", "is empty"),
        ("spiece.model", "x", "is of no form"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, name: str, content: str, says: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=says):
        load_tokenizer(tmp_path / name)


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="folder without a tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "spiece.model").write_bytes(b"x")
    with pytest.raises(UserError, match="a sentencepiece model"):
        load_tokenizer(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        load_tokenizer(tmp_path / "absent")


def test_merges_that_do_not_belong_are_named(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1}', encoding="utf-8")
    (tmp_path / "merges.txt").write_text("a b\n", encoding="utf-8")
    with pytest.raises(UserError, match="does not go with"):
        load_tokenizer(tmp_path)
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b c\n", encoding="utf-8")
    with pytest.raises(UserError, match="line 2"):
        load_tokenizer(tmp_path)


def test_held_out_documents_are_no_training_text() -> None:
    documents = shipped_documents()
    training, held_out = (split_held_out(documents, training=flag) for flag in (True, False))
    assert len(training) + len(held_out) == len(documents)
    assert len(held_out) == len(documents) // 10
    assert not set(training) & set(held_out)
    assert 300_000 < sum(len(text.encode()) for text in documents) < 420_000
