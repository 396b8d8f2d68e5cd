from __future__ import annotations

import csv
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from stores import write_store
from torch.utils.data import DataLoader

from portwright import text
from portwright.data.gather import ArrayDataset
from portwright.errors import UserError
from portwright.job.input_params import loader_arguments
from portwright.text.prepare import PrepareOptions, prepare

TEXTS = text.shipped_documents()[:40]
GPT = {"vocab_size": 600, "max_position_embeddings": 32}
BERT = {"vocab_size": 800, "max_position_embeddings": 32, "pad_token_id": 0}
ROBERTA = {
    "vocab_size": 600,
    "max_position_embeddings": 34,
    "pad_token_id": 1,
    "disable_nsp": True,
    "positions_after_padding": True,
}
T5 = {"vocab_size": 600, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any], str]] = {
    "causal": (text.causal_lm, {"max_sequence_length": 32}, GPT, "causal"),
    "pairs": (text.masked_lm, {"max_sequence_length": 32, "max_predictions_per_seq": 6}, BERT, "pairs"),
    "masked": (text.masked_lm, {"max_sequence_length": 32, "max_predictions_per_seq": 6}, ROBERTA, "masked"),
    "spans": (text.span_corruption, {"src_max_sequence_length": 32, "extra_ids": 9}, T5, "spans"),
}
cases = pytest.mark.parametrize("name", CASES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    lines = "".join(json.dumps({"text": each}) + "\n" for each in TEXTS)
    (folder / "a.jsonl").write_text(lines, encoding="utf-8")
    return folder


def whole(dataset: Any) -> dict[str, torch.Tensor]:
    return dict(dataset.tensors(np.arange(len(dataset))))


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for key in one:
        assert torch.equal(one[key], other[key]), key


@cases
def test_shipped_text(name: str) -> None:
    make, options, model, _ = CASES[name]
    train, tokenizer = make(options, "train_input", model)
    held_out, same = make(options, "eval_input", model)
    assert tokenizer.fingerprint == same.fingerprint
    assert len(train) > 5 * len(held_out) > 0
    batch = next(iter(DataLoader(train, **loader_arguments({"batch_size": 4, **options}, "train_input"))))
    assert batch["input_ids"].shape == (4, 32)
    assert all(value.dtype in (torch.int32, torch.float32) for value in batch.values())
    assert int(batch["input_ids"].max()) < model["vocab_size"]
    pickle.loads(pickle.dumps(train)).gather(np.arange(2))  # a worker can be sent it


@cases
def test_a_store_gives_what_its_text_gives(name: str, folder: Path, tmp_path: Path) -> None:
    make, options, model, objective = CASES[name]
    on_the_fly, tokenizer = make({**options, "data_dir": str(folder)}, "train_input", model)
    kept = next(folder.glob("tokenizer-*.json"))
    chosen = text.Objective(objective, 32, max_predictions=6)
    prepare([folder], tmp_path / "store", PrepareOptions(chosen, tokenizer=str(kept)))
    stored, same = make({**options, "data_dir": str(tmp_path / "store")}, "eval_input", model)
    assert tokenizer.fingerprint == same.fingerprint
    assert_equal(whole(on_the_fly), whole(stored))


@pytest.mark.parametrize("form", ["txt", "csv", "parquet", "arrow", "gz"])
def test_all_forms_of_text_give_the_same(form: str, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / form
    other.mkdir()
    if form == "txt":
        for number, each in enumerate(TEXTS):
            (other / f"{number:03d}.txt").write_text(each, encoding="utf-8")
    elif form == "csv":
        with (other / "a.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([["text"], *([each] for each in TEXTS)])
    elif form == "gz":
        import gzip

        (other / "a.jsonl.gz").write_bytes(gzip.compress((folder / "a.jsonl").read_bytes()))
    else:
        table = pyarrow.table({"text": list(TEXTS)})
        if form == "parquet":
            pyarrow.parquet.write_table(table, other / "a.parquet")
        else:
            new, path = pyarrow.ipc.new_stream, str(other / "a.arrow")
            with pyarrow.OSFile(path, "wb") as sink, new(sink, table.schema) as writer:
                writer.write_table(table)
    options = CASES["causal"][1]
    one, first = text.causal_lm({**options, "data_dir": str(folder)}, "train_input", GPT)
    two, second = text.causal_lm({**options, "data_dir": [str(other)]}, "train_input", GPT)
    assert first is not None
    assert second is not None
    assert first.fingerprint == second.fingerprint
    assert_equal(whole(one), whole(two))


def test_static_masks_stay_and_dynamic_ones_change(folder: Path, tmp_path: Path) -> None:
    make, options, model, _ = CASES["masked"]
    dataset, _ = make(options, "train_input", model)
    first = whole(dataset)
    dataset.set_epoch(1)
    assert not torch.equal(first["masked_lm_positions"], whole(dataset)["masked_lm_positions"])
    dataset, _ = make({**options, "dynamic_masking": False}, "train_input", model)
    first = whole(dataset)
    dataset.set_epoch(1)
    assert_equal(first, whole(dataset))

    chosen = text.Objective("masked", 32, static=True, max_predictions=6, dup_factor=2)
    prepare([folder], tmp_path / "store", PrepareOptions(chosen, tokenizer_kind="roberta", vocab_size=600))
    stored, tokenizer = make({**options, "data_dir": str(tmp_path / "store")}, "train_input", model)
    batch = whole(stored)
    masked = torch.gather(batch["input_ids"], 1, batch["masked_lm_positions"].long())[
        batch["masked_lm_weights"] > 0
    ]
    assert float((masked == tokenizer.id_of("mask")).float().mean()) == pytest.approx(0.8, abs=0.05)
    with pytest.raises(UserError, match="masked with 6"):
        make(
            {**options, "max_predictions_per_seq": 7, "data_dir": str(tmp_path / "store")},
            "train_input",
            model,
        )


@pytest.mark.parametrize("form", ["data", "examples", "names", "store"])
def test_samples_made_before(form: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    arrays = {
        name: rng.integers(0, 2 if name == "attention_mask" else 600, (10, 32)).astype(np.int32)
        for name in ("input_ids", "attention_mask", "labels")
    }
    stacked = np.stack([arrays["input_ids"], arrays["attention_mask"], arrays["labels"]], axis=1)
    if form == "store":
        write_store(tmp_path, arrays, made_by={"test": 1}, shard_records=4)
    for number, part in enumerate((slice(0, 4), slice(4, 10))) if form != "store" else ():
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            if form == "data":
                file["data"] = stacked[part]
            elif form == "names":
                for name, array in arrays.items():
                    file[name] = array[part]
            else:
                file.attrs["n_examples"] = len(stacked[part])
                for place, sample in enumerate(stacked[part]):
                    file[f"example_{place}"] = sample
    dataset, tokenizer = text.causal_lm(
        {"max_sequence_length": 32, "data_dir": str(tmp_path)}, "train_input", GPT
    )
    assert tokenizer is None
    assert_equal(whole(dataset), {name: torch.from_numpy(array) for name, array in arrays.items()})
    with pytest.raises(UserError, match=r"the id \d+ in 'input_ids'|has the id \d+"):
        text.causal_lm(
            {"max_sequence_length": 32, "data_dir": str(tmp_path)}, "train_input", {**GPT, "vocab_size": 300}
        )


def test_bad_hdf5_is_named(tmp_path: Path) -> None:
    options = {"max_sequence_length": 32, "data_dir": str(tmp_path)}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data"] = np.zeros((100, 3, 16), np.int32)
    with pytest.raises(UserError, match="the samples have 16 tokens, and 32 are asked for"):
        text.causal_lm(options, "train_input", GPT)
    whole_file = (tmp_path / "a.h5").read_bytes()
    (tmp_path / "a.h5").write_bytes(whole_file[: len(whole_file) // 2])
    with pytest.raises(UserError, match=r"a\.h5' cannot be read"):
        text.causal_lm(options, "train_input", GPT)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["tokens"] = np.zeros((2, 32), np.int32)
    with pytest.raises(UserError, match=r"a\.h5' has no 'input_ids' \(it has tokens\)"):
        text.causal_lm(options, "train_input", GPT)


def test_csv_of_the_zoo(tmp_path: Path) -> None:
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", ","]), encoding="utf-8"
    )
    data = tmp_path / "dynamic"
    data.mkdir()
    tokens = ["[CLS]", "A", ",", "[SEP]", "b", "zzz", "[SEP]"]
    with (data / "a.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["tokens", "segment_ids", "is_random_next"])
        writer.writerow([tokens, [0, 0, 0, 0, 1, 1, 1], True])
    options = {"max_sequence_length": 9, "data_dir": str(data), "tokenizer": str(vocabulary)}
    dataset, _ = text.masked_lm(options, "train_input", BERT)
    assert isinstance(dataset, ArrayDataset)
    assert dataset.arrays["tokens"].tolist() == [[2, 5, 7, 3, 6, 1, 3, 0, 0]]
    batch = whole(dataset)
    assert batch["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 1, 0, 0]]
    assert batch["next_sentence_label"].tolist() == [1]
    (data / "a.csv").write_text('tokens,segment_ids,is_random_next\n"[1, ",[0],True\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"line 2: 'tokens' is '\[1, ', not tokens"):
        text.masked_lm(options, "train_input", BERT)

    static = tmp_path / "static"
    static.mkdir()
    row = {
        "input_ids": [2, 4, 3, 0, 0], "attention_mask": [1, 1, 1, 0, 0], "masked_lm_positions": [1, 0],
        "masked_lm_weights": [1.0, 0.0], "labels": [5, 0], "token_type_ids": [0, 0, 0, 0, 0], "next_sentence_label": 1,
    }  # fmt: skip
    with (static / "a.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, list(row))
        table.writeheader()
        table.writerow(row)
    dataset, _ = text.masked_lm({"max_sequence_length": 5, "data_dir": str(static)}, "train_input", BERT)
    assert {name: value[0].tolist() for name, value in whole(dataset).items()} == row


def test_a_tokenizer_that_does_not_match(folder: Path, tmp_path: Path) -> None:
    make, options, model, _ = CASES["causal"]
    other = tmp_path / "other.json"
    other.write_text(text.train_tokenizer("gpt", TEXTS[:3], 500).to_json(), encoding="utf-8")
    prepare([folder], tmp_path / "store", PrepareOptions(text.Objective("causal", 32), vocab_size=600))
    store = {**options, "data_dir": str(tmp_path / "store")}
    with pytest.raises(UserError, match=r"is not the one that made '.*store' \(fingerprint"):
        make({**store, "tokenizer": str(other)}, "train_input", model)
    with pytest.raises(UserError, match=r"has 600 tokens and model\.vocab_size is 599"):
        make(store, "train_input", {**model, "vocab_size": 599})
    with pytest.raises(UserError, match=r"model\.pad_token_id is 3 and that of .* is 0"):
        text.masked_lm({"max_sequence_length": 32}, "train_input", {**BERT, "pad_token_id": 3})
    shutil.copy(other, tmp_path / "store" / "tokenizer.json")
    with pytest.raises(UserError, match=r"Put the store's own tokenizer\.json back"):
        make(store, "train_input", model)
    (tmp_path / "store" / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer\.json' is missing"):
        make(store, "train_input", model)


def test_a_store_of_another_objective_or_length(folder: Path, tmp_path: Path) -> None:
    prepare([folder], tmp_path / "store", PrepareOptions(text.Objective("causal", 16), vocab_size=600))
    options = {"data_dir": str(tmp_path / "store")}
    with pytest.raises(UserError, match="sequence_length 16, and 32 is asked for"):
        text.causal_lm({**options, "max_sequence_length": 32}, "train_input", GPT)
    with pytest.raises(UserError, match=r"has no token for|objective 'causal'"):
        text.span_corruption({**options, "src_max_sequence_length": 16}, "train_input", T5)


def test_evaluation_needs_the_tokenizer_of_training(folder: Path, tmp_path: Path) -> None:
    make, options, model, _ = CASES["causal"]
    with pytest.raises(UserError, match=r"Set eval_input\.tokenizer to that of training"):
        make({**options, "data_dir": str(folder)}, "eval_input", model)
    _, trained = make({**options, "data_dir": str(folder)}, "train_input", model)
    _, again = make({**options, "data_dir": str(folder)}, "eval_input", model)
    assert trained.fingerprint == again.fingerprint


def test_bad_text_and_lengths(folder: Path) -> None:
    make, options, model, _ = CASES["causal"]
    with pytest.raises(UserError, match=r"max_sequence_length is 33 and model\.max_position_embeddings 32"):
        make({"max_sequence_length": 33}, "train_input", model)
    with pytest.raises(
        UserError, match=r"tgt_max_sequence_length is 3, and inputs of 32 tokens have targets of"
    ):
        text.span_corruption({"src_max_sequence_length": 32, "tgt_max_sequence_length": 3}, "train_input", T5)
    with pytest.raises(UserError, match="'absent' does not exist"):
        make({**options, "data_dir": "absent"}, "train_input", model)
    with pytest.raises(UserError, match=r"train_input\.data_dir is empty"):
        make({**options, "data_dir": ""}, "train_input", model)
    (folder / "b.jsonl").write_text("{}\n", encoding="utf-8")
    with pytest.raises(
        UserError, match=r"b\.jsonl', line 1: no key 'text'.*portwright data prepare --skip-bad"
    ):
        make({**options, "data_dir": str(folder)}, "train_input", model)


def test_no_more_than_asked() -> None:
    dataset, _ = text.causal_lm({"max_sequence_length": 32, "num_samples": 7}, "train_input", GPT)
    assert len(dataset) == 7
    assert len(list(DataLoader(dataset, batch_size=2))) == 4


def test_translation_of_numbers_and_files(tmp_path: Path) -> None:
    model = {
        "src_vocab_size": 64,
        "tgt_vocab_size": 64,
        "pad_token_id": 0,
        "eos_token_id": 3,
        "decoder_start_token_id": 2,
    }
    dataset, tokenizer = text.translation({"num_samples": 50}, "train_input", model)
    assert tokenizer is not None
    batch = whole(dataset)
    assert len(batch["labels"]) == 50
    assert (batch["decoder_input_ids"][:, 0] == 2).all()
    assert torch.equal(batch["decoder_input_ids"][:, 1:], batch["labels"][:, :-1])
    lengths = batch["decoder_attention_mask"].sum(dim=1)
    assert (batch["labels"].gather(1, lengths[:, None].long() - 1) == 3).all()
    assert "</s>" in tokenizer.decode(batch["labels"][0].tolist())

    (tmp_path / "a.en").write_text("one two\nthree\n" * 10, encoding="utf-8")
    (tmp_path / "a.de").write_text("eins zwei\ndrei\n" * 10, encoding="utf-8")
    files = {"src_data_dir": str(tmp_path / "a.en"), "tgt_data_dir": str(tmp_path / "a.de")}
    dataset, _ = text.translation(files, "train_input", {**T5, "vocab_size": 64})
    assert len(dataset) == 20
    with pytest.raises(UserError, match="none of 20 pairs fits"):
        text.translation({**files, "src_max_sequence_length": 1}, "train_input", {**T5, "vocab_size": 64})
    with pytest.raises(UserError, match="has one of src_data_dir and tgt_data_dir"):
        text.translation({"src_data_dir": str(tmp_path / "a.en")}, "train_input", T5)
