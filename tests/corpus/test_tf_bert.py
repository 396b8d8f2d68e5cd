"""google-research/bert's scripts on tiny data of ours, unmodified: data, pretraining, a classifier, SQuAD, features."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from corpus.tf_launch import find, run, steps_saved

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "sat",
    "on",
    "mat",
    "ran",
    "good",
    "bad",
    "film",
    "was",
    "and",
    "this",
    ",",
    ".",
    "?",
    "who",
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture
def bert() -> Path:
    return find("google-research+bert")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A vocabulary and a small BERT's config."""
    vocabulary = [*SPECIAL, *WORDS, *(f"w{index}" for index in range(60))]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    # Without dropout: the scripts set no seed, and sixteen units that lose one now and then do not learn every time.
    config = {
        "attention_probs_dropout_prob": 0.0, "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "hidden_size": 16,
        "initializer_range": 0.02, "intermediate_size": 32, "max_position_embeddings": 64, "num_attention_heads": 2,
        "num_hidden_layers": 2, "type_vocab_size": 2, "vocab_size": len(vocabulary),
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def results(path: Path) -> dict[str, float]:
    lines = (line.partition(" = ") for line in path.read_text().splitlines())
    return {name: float(value) for name, _, value in lines}


def test_pretraining(bert: Path, place: Path) -> None:
    documents = [
        "\n".join(f"{a} {b} w{i} sat on the mat ." for b in WORDS[:6]) for i, a in enumerate(WORDS[:6])
    ]
    (place / "text.txt").write_text("\n\n".join(documents) + "\n")
    lengths = ("--max_seq_length=16", "--max_predictions_per_seq=3")
    run(
        bert / "create_pretraining_data.py", f"--input_file={place / 'text.txt'}", f"--output_file={place / 'records'}",
        f"--vocab_file={place / 'vocab.txt'}", "--dupe_factor=2", *lengths,
    )  # fmt: skip

    def train(steps: int) -> None:
        run(
            bert / "run_pretraining.py", f"--input_file={place / 'records'}", f"--output_dir={place / 'out'}",
            "--do_train=true", "--do_eval=true", f"--bert_config_file={place / 'config.json'}", "--train_batch_size=4",
            "--eval_batch_size=4", f"--num_train_steps={steps}", "--num_warmup_steps=2", "--max_eval_steps=2",
            "--save_checkpoints_steps=3", *lengths,
        )  # fmt: skip

    train(6)
    assert steps_saved(place / "out")[-1] == 6
    train(9)  # goes on from there
    assert steps_saved(place / "out")[-1] == 9
    found = results(place / "out" / "eval_results.txt")
    assert found["global_step"] == 9
    assert abs(found["masked_lm_loss"] + found["next_sentence_loss"] - found["loss"]) < 0.2


def test_classifier_trains_evaluates_and_predicts(bert: Path, place: Path) -> None:
    data = place / "cola"
    data.mkdir()
    for split, count in (("train", 32), ("dev", 16)):
        rows = [f"x\t{i % 2}\t*\tthis film was {'good' if i % 2 else 'bad'} and w{i}" for i in range(count)]
        (data / f"{split}.tsv").write_text("\n".join(rows) + "\n")
    rows = [f"{i}\tthis film was {'good' if i % 2 else 'bad'} w{i}" for i in range(8)]
    (data / "test.tsv").write_text("\n".join(["index\tsentence", *rows]) + "\n")
    run(
        bert / "run_classifier.py", "--task_name=CoLA", "--do_train=true", "--do_eval=true", "--do_predict=true",
        f"--data_dir={data}", f"--vocab_file={place / 'vocab.txt'}", f"--bert_config_file={place / 'config.json'}",
        "--max_seq_length=16", "--train_batch_size=4", "--eval_batch_size=4", "--predict_batch_size=4",
        "--num_train_epochs=40", "--learning_rate=0.001", "--save_checkpoints_steps=100", f"--output_dir={place / 'out'}",
    )  # fmt: skip
    found = results(place / "out" / "eval_results.txt")
    assert found["global_step"] == 320
    assert found["eval_accuracy"] > 0.9
    rows = [
        [float(value) for value in line.split("\t")]
        for line in (place / "out" / "test_results.tsv").read_text().splitlines()
    ]
    assert [int(one > zero) for zero, one in rows] == [0, 1] * 4


def test_squad_and_features(bert: Path, place: Path) -> None:
    def squad(path: Path, count: int) -> None:
        answers = [{"text": "cat", "answer_start": 4}]
        paragraphs = [
            {
                "context": f"the cat sat on the mat and w{i} ran",
                "qas": [{"id": f"q{i}", "question": "who sat ?", "answers": answers}],
            }
            for i in range(count)
        ]
        path.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}))

    squad(place / "train.json", 12)
    squad(place / "dev.json", 4)
    model = (f"--vocab_file={place / 'vocab.txt'}", f"--bert_config_file={place / 'config.json'}")
    run(
        bert / "run_squad.py", *model, "--do_train=true", f"--train_file={place / 'train.json'}", "--do_predict=true",
        f"--predict_file={place / 'dev.json'}", "--train_batch_size=4", "--predict_batch_size=4", "--num_train_epochs=2",
        "--max_seq_length=32", "--doc_stride=8", "--max_query_length=8", f"--output_dir={place / 'out'}",
    )  # fmt: skip
    assert set(json.loads((place / "out" / "predictions.json").read_text())) == {f"q{i}" for i in range(4)}
    (place / "sentences.txt").write_text("the cat sat ||| on the mat\nthe dog ran\n")
    run(
        bert / "extract_features.py", *model, f"--input_file={place / 'sentences.txt'}", "--max_seq_length=16",
        f"--output_file={place / 'features.jsonl'}", "--layers=-1", "--batch_size=2",
        f"--init_checkpoint={place / 'out' / 'model.ckpt-6'}",
    )  # fmt: skip
    features = [json.loads(line) for line in (place / "features.jsonl").read_text().splitlines()]
    assert [len(one["features"]) for one in features] == [9, 5]
