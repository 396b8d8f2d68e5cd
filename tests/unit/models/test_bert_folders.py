"""The folders of BERT's family: every form of data, metrics, and a head that starts from a pre-trained encoder."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from portwright.discover import find_models
from portwright.errors import UserError
from portwright.job.params import get_params as read_params
from portwright.runtime.checkpoint_names import take_over
from portwright.runtime.metrics import clear_registry
from portwright.target import Shard
from portwright.text.tokenizer_training import train_tokenizer
from portwright.text_tasks.shipped_tasks import (
    lines_by_kind,
    opening_sentences,
    questions_on_rules,
    words_in_code,
)

HEADS = ("bert_classifier", "bert_token_classifier", "bert_qa", "bert_summarization")
ALL = ("bert", "roberta", "linformer", *HEADS)
TEXT = [
    "The cat sat on the mat in Berlin, and it was glad.",
    "A dog ran to Paris! The dog was not glad at all.",
    "Where did the cat sit? On the mat it sat.",
]


def load(name: str) -> SimpleNamespace:
    """The folder's modules; every model has a data.py, so that they do not stay under these names."""
    folder = find_models()[name]
    sys.path.insert(0, str(folder))
    names = ("model", "data", "utils")
    try:
        modules: dict[str, ModuleType] = {each: importlib.import_module(each) for each in names}
    finally:
        sys.path.remove(str(folder))
        for each in names:
            sys.modules.pop(each, None)
    return SimpleNamespace(folder=folder, **modules)


def tiny(parts: SimpleNamespace, **sections: dict[str, Any]) -> dict[str, Any]:
    params = read_params(parts.folder / "configs/params.yaml")
    params["model"] |= {
        "hidden_size": 16,
        "filter_size": 24,
        "num_heads": 2,
        "dropout_rate": 0.0,
        "attention_dropout_rate": 0.0,
        "vocab_size": 600,
    }
    for section, values in sections.items():
        params[section] |= values
    made: dict[str, Any] = parts.utils.set_defaults(params)
    return made


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    file.write_text(train_tokenizer("bert", TEXT, 200).to_json(), encoding="utf-8")
    return str(file)


@pytest.fixture(scope="module")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    file.write_text(train_tokenizer("roberta", TEXT, 300).to_json(), encoding="utf-8")
    return str(file)


@pytest.mark.parametrize("name", ALL)
def test_every_config_is_valid_and_its_batch_trains_and_evaluates(name: str) -> None:
    parts = load(name)
    for file in sorted((parts.folder / "configs").glob("*.yaml")):
        params = parts.utils.get_params(file)
        for section, schema in parts.utils.PARAMS_SCHEMA.items():
            schema.model_validate(params[section])
            assert set(params[section]) == set(schema.model_fields), file
    params = tiny(parts, train_input={"batch_size": 4}, eval_input={"batch_size": 4})
    clear_registry()
    model_class = next(
        value
        for key, value in vars(parts.model).items()
        if key.endswith("Model") and key != "PyTorchBaseModel"
    )
    model = model_class(params)
    batch = next(iter(parts.data.get_train_dataloader(params)))
    assert all(value.dtype in (torch.int32, torch.float32) for value in batch.values())
    model.train()
    loss = model(batch)
    loss.backward()
    without = [key for key, weight in model.model.named_parameters() if weight.grad is None]
    assert without == []
    model.eval()
    held_out = next(iter(parts.data.get_eval_dataloader(params)))
    with torch.no_grad():
        assert model(held_out).isfinite()
        torch.testing.assert_close(
            model(batch), loss.detach()
        )  # no dropout here: both ways to the loss are one
        assert all(isinstance(value, torch.Tensor) for value in model.predict(held_out).values())


@pytest.mark.parametrize("make", [lines_by_kind, words_in_code, questions_on_rules, opening_sentences])
def test_shipped_tasks_are_whole_and_hold_out(make: Any) -> None:
    train, held_out = make(True), make(False)
    assert len(train) > 150
    assert len(held_out) > 15
    if make is questions_on_rules:
        for question in (*train, *held_out):
            assert question.context[question.answer_start :].startswith(question.answer)
    elif make is not lines_by_kind:
        assert all(len(items) == len(labels) for items, labels in (*train, *held_out))
        assert all("`" not in word for words, _ in train for word in words) or make is opening_sentences


CLASSES = [
    {"text": TEXT[0], "label": "cat"},
    {"text": TEXT[1], "label": "dog"},
    {"text": TEXT[2], "label": "cat"},
]


def write_table(folder: Path, form: str, rows: list[dict[str, Any]]) -> Path:
    file = folder / f"data.{form}"
    if form == "jsonl":
        file.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    elif form in ("parquet", "arrow"):
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.Table.from_pylist(rows)
        if form == "parquet":
            pyarrow.parquet.write_table(table, file)
        else:
            with (
                pyarrow.OSFile(str(file), "wb") as sink,
                pyarrow.ipc.new_stream(sink, table.schema) as writer,
            ):
                writer.write_table(table)
    else:
        import csv

        with file.open("w", encoding="utf-8-sig" if form == "csv" else "utf-8", newline="") as stream:
            options: Any = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if form == "tsv" else {}
            writer = csv.DictWriter(stream, rows[0].keys(), **options)
            writer.writeheader()
            writer.writerows(
                {key: json.dumps(v) if isinstance(v, list) else v for key, v in row.items()} for row in rows
            )
    return file


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl", "parquet", "arrow"])
def test_classifier_reads(form: str, tmp_path: Path, tokenizer: str) -> None:
    parts = load("bert_classifier")
    write_table(tmp_path, form, CLASSES)
    given = {"data_dir": str(tmp_path), "tokenizer": tokenizer, "max_sequence_length": 13}
    params = tiny(parts, train_input=given, model={"num_labels": 2, "label_names": ["cat", "dog"]})
    data = parts.data.make_dataset(params, "train_input").arrays
    assert data["labels"].tolist() == [0, 1, 0]
    assert data["input_ids"].shape == (3, 13)
    assert data["input_ids"].dtype == np.int32
    assert (data["attention_mask"].sum(1) == 13).all()  # cut at the end, and [SEP] is still there
    assert len(set(data["input_ids"][:, -1].tolist())) == 1


def test_pairs_are_cut_fairly(tmp_path: Path, tokenizer: str, byte_tokenizer: str) -> None:
    parts = load("bert_classifier")
    write_table(
        tmp_path,
        "jsonl",
        [{"a": "cat", "b": TEXT[1] * 4, "label": 1}, {"a": TEXT[0] * 3, "b": TEXT[1] * 3, "label": 0}],
    )
    given = {
        "data_dir": str(tmp_path),
        "tokenizer": tokenizer,
        "max_sequence_length": 21,
        "text_key": "a",
        "text_pair_key": "b",
    }
    params = tiny(parts, train_input=given, model={"num_labels": 2, "label_names": None})
    data = parts.data.make_dataset(params, "train_input").arrays
    separators = (data["input_ids"] == data["input_ids"][0, -1]).sum(1)
    assert separators.tolist() == [2, 2]
    assert data["token_type_ids"][1].tolist() == [0] * 11 + [1] * 10
    given["tokenizer"] = byte_tokenizer
    roberta = {
        "positions_after_padding": True,
        "pad_token_id": 1,
        "num_segments": 1,
        "num_labels": 2,
        "label_names": None,
    }
    data = parts.data.make_dataset(tiny(parts, train_input=given, model=roberta), "train_input").arrays
    assert (data["input_ids"] == 2).sum(1).tolist() == [3, 3]  # <s> a </s> </s> b </s>
    assert data["token_type_ids"].max() == 0


def test_numbers_and_several_labels(tmp_path: Path, tokenizer: str) -> None:
    parts = load("bert_classifier")
    write_table(
        tmp_path,
        "jsonl",
        [{"text": "cat", "label": 0.5, "many": ["b"]}, {"text": "dog", "label": "-1", "many": []}],
    )
    given = {"data_dir": str(tmp_path), "tokenizer": tokenizer}
    params = tiny(parts, train_input=given, model={"num_labels": 1, "label_names": None})
    assert parts.data.make_dataset(params, "train_input").arrays["labels"].tolist() == [0.5, -1.0]
    model = {"num_labels": 2, "label_names": ["a", "b"], "problem_type": "multi_label_classification"}
    params = tiny(parts, train_input={**given, "label_key": "many"}, model=model)
    assert parts.data.make_dataset(params, "train_input").arrays["labels"].tolist() == [
        [0.0, 1.0],
        [0.0, 0.0],
    ]


WRONG = [
    ("data.jsonl", '{"text": "a", "label": "cat"}\n{"text": "b", ', "line 2"),
    ("data.jsonl", "[1]\n", "line 1"),
    ("data.jsonl", '{"text": "a", "label": "bird"}\n', "bird"),
    ("data.jsonl", '{"text": "a", "label": 7}\n', "7"),
    ("data.jsonl", '{"text": "a", "label": true}\n', "True"),
    ("data.jsonl", '{"text": "a", "label": 1' + "0" * 400 + "}\n", "000"),
    ("data.jsonl", '{"text": "a", "label": NaN}\n', "nan"),
    ("data.jsonl", '{"txt": "a", "label": "cat"}\n', "Did you mean 'txt'"),
    ("data.jsonl", '{"text": 3, "label": "cat"}\n', "int"),
    ("data.jsonl", "\n\n", "no record"),
    ("data.csv", 'text,label\n"a",cat,1\n', "line 2"),
    ("data.parquet", "PAR1 cut off", "data.parquet"),
    ("data.bin", "x", ".jsonl"),
]


@pytest.mark.parametrize(("name", "content", "told"), WRONG)
def test_wrong_data_is_told_with_its_place(
    name: str, content: str, told: str, tmp_path: Path, tokenizer: str
) -> None:
    parts = load("bert_classifier")
    (tmp_path / name).write_text(content, encoding="utf-8")
    given = {"data_dir": str(tmp_path), "tokenizer": tokenizer}
    params = tiny(parts, train_input=given, model={"num_labels": 2, "label_names": ["cat", "dog"]})
    with pytest.raises(UserError) as caught:
        parts.data.make_dataset(params, "train_input")
    assert told in str(caught.value)


def test_latin_1_is_told(tmp_path: Path, tokenizer: str) -> None:
    parts = load("bert_classifier")
    (tmp_path / "data.csv").write_bytes("text,label\ncaf\xe9,cat\n".encode("latin-1"))
    params = tiny(parts, train_input={"data_dir": str(tmp_path), "tokenizer": tokenizer})
    with pytest.raises(UserError, match="UTF-8"):
        parts.data.make_dataset(params, "train_input")


@pytest.mark.parametrize("name", HEADS)
def test_own_data_needs_the_encoders_tokenizer(name: str, tmp_path: Path) -> None:
    parts = load(name)
    with pytest.raises(UserError, match="no tokenizer"):
        parts.data.make_dataset(tiny(parts, train_input={"data_dir": str(tmp_path)}), "train_input")


def test_tokenizer_of_another_model_is_refused(tokenizer: str, byte_tokenizer: str) -> None:
    parts = load("bert_classifier")
    with pytest.raises(UserError, match="vocab_size"):
        parts.data.make_dataset(
            tiny(parts, train_input={"tokenizer": tokenizer}, model={"vocab_size": 20}), "train_input"
        )
    with pytest.raises(UserError, match="pad_token_id"):
        parts.data.make_dataset(tiny(parts, train_input={"tokenizer": byte_tokenizer}), "train_input")


CONLL = "-DOCSTART- -X- O\n\nThe DT O\ncat NN B-CODE\n\n\nBerlin NNP I-CODE\n"


def test_words_keep_their_labels(tmp_path: Path, tokenizer: str) -> None:
    parts = load("bert_token_classifier")
    (tmp_path / "a.conll").write_text(CONLL, encoding="utf-8")
    write_table(tmp_path, "jsonl", [{"tokens": ["unheard-of", "cat", "\u200b"], "labels": [1, 0, 2]}])
    write_table(tmp_path, "csv", [{"tokens": "The mat", "labels": "O B-CODE"}])
    params = tiny(
        parts, train_input={"data_dir": str(tmp_path), "tokenizer": tokenizer, "max_sequence_length": 24}
    )
    data = parts.data.make_dataset(params, "train_input").arrays
    kept = [[int(x) for x in row if x != -100] for row in data["labels"]]
    assert kept == [[0, 1], [2], [0, 1], [1, 0, 2]]
    assert (data["labels"][:, 0] == -100).all()
    assert (data["labels"][data["attention_mask"] == 0] == -100).all()
    many = (data["attention_mask"][3].sum() - 2) - 3
    assert many > 0  # tokens that go on a word do not count
    short = tiny(
        parts, train_input={"data_dir": str(tmp_path), "tokenizer": tokenizer, "max_sequence_length": 4}
    )
    assert parts.data.make_dataset(short, "train_input").arrays["labels"].shape == (4, 4)


@pytest.mark.parametrize(
    ("content", "told"), [("cat\n", "line 1"), ("cat B-X\n", "B-X"), ("\n\n", "no sentence")]
)
def test_wrong_words_are_told(content: str, told: str, tmp_path: Path, tokenizer: str) -> None:
    parts = load("bert_token_classifier")
    (tmp_path / "a.conll").write_text(content, encoding="utf-8")
    params = tiny(parts, train_input={"data_dir": str(tmp_path), "tokenizer": tokenizer})
    with pytest.raises(UserError, match=told):
        parts.data.make_dataset(params, "train_input")


def squad(answer: str, start: int) -> dict[str, Any]:
    asked = [
        {"id": "q1", "question": "Where?", "answers": [{"text": answer, "answer_start": start}]},
        {"id": "q2", "question": "Why?", "answers": [], "is_impossible": True},
    ]
    return {"version": "2", "data": [{"title": "t", "paragraphs": [{"context": TEXT[0], "qas": asked}]}]}


@pytest.mark.parametrize("kind", ["bert", "byte"])
def test_answers_are_found_among_tokens(
    kind: str, tmp_path: Path, tokenizer: str, byte_tokenizer: str
) -> None:
    parts = load("bert_qa")
    (tmp_path / "train.json").write_text(
        json.dumps(squad("Berlin", TEXT[0].index("Berlin"))), encoding="utf-8"
    )
    write_table(
        tmp_path,
        "jsonl",
        [{"question": "Who?", "context": TEXT[1], "answers": {"text": ["dog"], "answer_start": [2]}}],
    )
    write_table(
        tmp_path, "csv", [{"question": "What?", "context": TEXT[2], "answer": "mat", "answer_start": "0"}]
    )
    given = {
        "data_dir": str(tmp_path),
        "tokenizer": tokenizer if kind == "bert" else byte_tokenizer,
        "max_sequence_length": 64,
    }
    model = {} if kind == "bert" else {"positions_after_padding": True, "pad_token_id": 1, "num_segments": 1}
    params = tiny(parts, train_input=given, model=model)
    data = parts.data.make_dataset(params, "train_input").arrays
    from portwright.text.tokenizer_files import load_tokenizer

    reader = load_tokenizer(given["tokenizer"])
    spans = [
        reader.decode(data["input_ids"][row, data["start_positions"][row] : data["end_positions"][row] + 1])
        .strip()
        .lower()
        for row in range(4)
    ]
    first = reader.decode([reader.id_of("cls")]).lower()
    assert sorted(spans) == sorted(["mat", "dog", "berlin", first])  # no answer is [CLS]


def test_long_texts_are_read_in_windows(tmp_path: Path, tokenizer: str) -> None:
    parts = load("bert_qa")
    context = "the cat sat on the mat " * 20 + "in Berlin . " + "a dog ran " * 20
    write_table(
        tmp_path,
        "jsonl",
        [
            {
                "question": "Where?",
                "context": context,
                "answer": "Berlin",
                "answer_start": context.index("Berlin"),
            }
        ],
    )
    given = {"data_dir": str(tmp_path), "tokenizer": tokenizer, "max_sequence_length": 40, "doc_stride": 16}
    data = parts.data.make_dataset(tiny(parts, train_input=given), "train_input").arrays
    held = data["start_positions"] > 0
    assert 1 <= held.sum() < len(held)
    answers = {
        tuple(row[start : end + 1])
        for row, start, end in zip(
            data["input_ids"][held], data["start_positions"][held], data["end_positions"][held], strict=True
        )
    }
    assert len(answers) == 1
    with pytest.raises(UserError, match="no room"):
        parts.data.make_dataset(tiny(parts, train_input={**given, "max_sequence_length": 4}), "train_input")


def test_wrong_answers_are_told(tmp_path: Path, tokenizer: str) -> None:
    parts = load("bert_qa")
    params = tiny(parts, train_input={"data_dir": str(tmp_path), "tokenizer": tokenizer})
    for content, told in (
        (json.dumps(squad("London", 3)), "London"),
        ('{"data": [', "JSON"),
        ('{"data": [{}]}', "SQuAD"),
        ('{"data": []}', "no question"),
    ):
        (tmp_path / "train.json").write_text(content, encoding="utf-8")
        with pytest.raises(UserError, match=told):
            parts.data.make_dataset(params, "train_input")


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_sentences_have_a_cls_each(form: str, tmp_path: Path, tokenizer: str) -> None:
    parts = load("bert_summarization")
    write_table(
        tmp_path,
        form,
        [
            {
                "sentences": ["The cat sat.", "A dog ran to Paris!", "It was glad."] * 2,
                "labels": [1, 0, 0, 1, 0, 1],
            }
        ],
    )
    given = {
        "data_dir": str(tmp_path),
        "tokenizer": tokenizer,
        "max_sequence_length": 40,
        "max_cls_tokens": 4,
    }
    data = parts.data.make_dataset(tiny(parts, train_input=given), "train_input").arrays
    weights = data["cls_weights"].astype(bool)
    assert data["labels"][weights].tolist() == [1, 0, 0, 1, 0, 1]  # no sentence is lost
    cls_id = data["input_ids"][0, 0]
    for row in range(len(weights)):
        at = data["cls_indices"][row][weights[row]]
        assert np.flatnonzero(data["input_ids"][row] == cls_id).tolist() == at.tolist()
        assert data["token_type_ids"][row, at].tolist() == [place % 2 for place in range(len(at))]


def test_chosen_sentences_are_cut_out() -> None:
    parts = load("bert_summarization")
    clear_registry()
    model = parts.model.BertSummarizationModel(tiny(parts))
    data = {
        "input_ids": torch.tensor([[2, 10, 11, 3, 2, 12, 3, 2, 13, 3, 0, 0]], dtype=torch.int32),
        "cls_indices": torch.tensor([[0, 4, 7, 0]], dtype=torch.int32),
        "cls_weights": torch.tensor([[1.0, 1.0, 1.0, 0.0]]),
    }
    kept = model.keep(data, torch.tensor([[0, 1, 0, 1]]))
    assert kept.tolist() == [[0, 0, 0, 0, 0, 12, 3, 0, 0, 0, 0, 0]]


def test_best_spans_are_spans() -> None:
    parts = load("bert_qa")
    clear_registry()
    model = parts.model.BertQaModel(tiny(parts, model={"max_answer_length": 2}))
    start, end = torch.full((1, 6), -9.0), torch.full((1, 6), -9.0)
    start[0, 4], end[0, 1], end[0, 5], start[0, 1] = 5.0, 6.0, 2.0, 0.5
    assert [x.item() for x in model.find_spans(start, end, None)] == [4, 5]
    mask = torch.tensor([[1, 1, 1, 1, 1, 0]])
    assert [x.item() for x in model.find_spans(start, end, mask)] == [1, 1]
    metric = parts.model.SpanOverlapMetric(name="f1")
    ones = torch.tensor([2, 3, 1]), torch.tensor([4, 3, 1])
    metric(*ones, torch.tensor([3, 5, 1]), torch.tensor([5, 6, 1]))
    assert metric.compute() == pytest.approx((2 * 2 / 6 + 0 + 1) / 3)


@pytest.mark.parametrize("name", HEADS)
def test_heads_take_the_whole_encoder_of_pre_training(name: str) -> None:
    """What a run does with --is_pretrained_checkpoint: weights of the same name and shape are taken, heads are new."""
    clear_registry()
    size = {"max_position_embeddings": 160}
    parts, before = load(name), load("bert")
    pretrained = before.model.BertModel(tiny(before, model=size)).model
    model_class = next(
        value for key, value in vars(parts.model).items() if key.startswith("Bert") and key.endswith("Model")
    )
    fresh = model_class(tiny(parts, model=size)).model
    given = [Shard(f"model/{key}", weight) for key, weight in pretrained.state_dict().items()]
    notes: list[str] = []
    own = [Shard(f"model/{key}", weight) for key, weight in fresh.state_dict().items()]
    taken = {shard.name.removeprefix("model/"): shard.tensor for shard in take_over(given, own, notes.append)}
    fresh.load_state_dict(taken)
    head = {"bert_qa": "qa_outputs"}.get(name, "classifier")
    assert notes[0] == f"not in the checkpoint, and left as initialised: {head}.weight, {head}.bias"
    assert "another shape" not in " ".join(notes)
    ids = torch.randint(5, 600, (2, 9))
    torch.testing.assert_close(fresh.eval().bert.encode(ids), pretrained.eval().bert.encode(ids))


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"answers": "{cut"}, "JSON"),
        ({"answers": [1]}, "list"),
        ({"answer": "mat", "answer_start": "here"}, "here"),
        ({"answer": "mat", "answer_start": [None]}, ""),
    ],
)
def test_answers_of_other_forms(row: dict[str, Any], told: str, tmp_path: Path, tokenizer: str) -> None:
    parts = load("bert_qa")
    write_table(tmp_path, "jsonl", [{"question": "What?", "context": TEXT[2], **row}])
    params = tiny(parts, train_input={"data_dir": str(tmp_path), "tokenizer": tokenizer})
    if not told:  # found by its words
        assert parts.data.make_dataset(params, "train_input").arrays["start_positions"][0] > 0
        return
    with pytest.raises(UserError, match=told):
        parts.data.make_dataset(params, "train_input")
