"""Tiny data in the real formats of model zoo 1.6, and the overrides that make its configs tiny too."""

from __future__ import annotations

import csv
import json
import random
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

WORDS = [f"w{index}" for index in range(45)]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
LENGTH = 16
TINY_BERT = {
    "model.vocab_size": len(VOCABULARY),
    "model.hidden_size": 16,
    "model.num_hidden_layers": 1,
    "model.num_heads": 2,
    "model.filter_size": 32,
    "model.max_position_embeddings": LENGTH,
}


@dataclass(frozen=True)
class ZooCase:
    """A folder of the release, one of its configs, and how to make both small."""

    name: str
    folder: str
    config: str
    make_data: Callable[[Path], Mapping[str, Any]]  # writes files, and gives the overrides that name them
    overrides: Mapping[str, Any] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()  # that an evaluation reports
    packages: tuple[str, ...] = ()  # that its own code imports, beside ours

    def arguments(self, release: Path, data: Path) -> list[str]:
        """The command line after the target and the mode."""
        given = {**COMMON, **self.overrides, **self.make_data(data)}
        words = ["--params", str(release / "modelzoo" / self.folder / "configs" / self.config)]
        for key, value in given.items():
            words += ["-D", f"{key}={json.dumps(value)}"]
        return words


COMMON = {
    "train_input.batch_size": 4,
    "eval_input.batch_size": 4,
    "train_input.num_workers": 0,
    "eval_input.num_workers": 0,
    "runconfig.eval_steps": 3,
    "runconfig.log_steps": 5,
}


def both_inputs(**values: Any) -> dict[str, Any]:
    return {
        f"{section}.{key}": value
        for key, value in values.items()
        for section in ("train_input", "eval_input")
    }


def make_mnist(folder: Path) -> Mapping[str, Any]:
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    numbers = np.random.default_rng(0)
    for part, count in (("train", 96), ("t10k", 32)):
        labels = numbers.integers(0, 10, count).astype(np.uint8)
        images = numbers.integers(0, 60, (count, 28, 28)).astype(np.uint8)
        images[np.arange(count), 2 * labels] = 255
        header = struct.pack(">4I", 2051, count, 28, 28)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, count) + labels.tobytes())
    return both_inputs(data_dir=str(folder))


def make_hdf5(folder: Path) -> Mapping[str, Any]:
    import h5py

    folder.mkdir(parents=True)
    numbers = np.random.default_rng(0)
    for index in range(2):
        with h5py.File(folder / f"data-{index}.h5", "w") as file:
            file.attrs["n_examples"] = 12
            for example in range(12):
                ids = (numbers.integers(50) + np.arange(LENGTH + 1)) % 50
                mask = np.arange(LENGTH) < numbers.integers(LENGTH // 2, LENGTH + 1)
                rows = np.stack([ids[:-1], mask, ids[1:]]).astype(np.int32)
                file.create_dataset(f"example_{example}", data=rows)
    return both_inputs(data_dir=str(folder))


def write_csv(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Two CSV files and the list of them, as all the zoo's CSV loaders read them."""
    folder.mkdir(parents=True, exist_ok=True)
    half = len(rows) // 2
    for index, part in enumerate((rows[:half], rows[half:])):
        with (folder / f"data-{index}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(part)
    (folder / "meta.dat").write_text(f"data-0.csv {half}\ndata-1.csv {len(rows) - half}\n")


def write_vocabulary(folder: Path, tokens: Iterable[str] = VOCABULARY) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "vocabulary.txt"
    path.write_text("\n".join(tokens) + "\n")
    return str(path)


def sentence(draw: random.Random, length: int) -> list[str]:
    start = draw.randrange(len(WORDS))
    return [WORDS[(start + step) % len(WORDS)] for step in range(length)]


def make_bert_tokens(folder: Path) -> Mapping[str, Any]:
    draw = random.Random(0)
    rows = []
    for _ in range(24):
        first, second = sentence(draw, draw.randint(3, 6)), sentence(draw, draw.randint(3, 6))
        tokens = ["[CLS]", *first, "[SEP]", *second, "[SEP]"]
        segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
        rows.append(
            {"tokens": str(tokens), "segment_ids": str(segments), "is_random_next": draw.randrange(2)}
        )
    write_csv(folder, rows)
    return both_inputs(data_dir=str(folder), vocab_file=write_vocabulary(folder), **BERT_INPUT)


BERT_INPUT = {"max_sequence_length": LENGTH, "max_predictions_per_seq": 4}


def make_bert_masked(folder: Path) -> Mapping[str, Any]:
    draw = random.Random(0)
    rows = []
    for _ in range(24):
        ids = [draw.randrange(5, 50) for _ in range(LENGTH)]
        length = draw.randint(LENGTH // 2, LENGTH)
        row = {
            "input_ids": ids,
            "attention_mask": [int(place < length) for place in range(LENGTH)],
            "token_type_ids": [int(place > 5) for place in range(LENGTH)],
            "labels": [draw.randrange(5, 50) for _ in range(4)],
            "masked_lm_positions": sorted(draw.sample(range(1, length), 4)),
            "masked_lm_weights": [1, 1, 1, 0],
            "next_sentence_label": draw.randrange(2),
        }
        rows.append({key: str(value) for key, value in row.items()})
    write_csv(folder, rows)
    return both_inputs(data_dir=str(folder), data_processor="BertCSVDataProcessor", **BERT_INPUT)


def make_sentences(folder: Path) -> Mapping[str, Any]:
    draw = random.Random(0)
    folder.mkdir(parents=True)
    for part in ("train", "dev"):
        lines = [f"{' '.join(sentence(draw, 6))}\t{draw.randrange(2)}" for _ in range(16)]
        (folder / f"{part}.tsv").write_text("sentence\tlabel\n" + "\n".join(lines) + "\n")
    return both_inputs(data_dir=str(folder), vocab_file=write_vocabulary(folder), max_sequence_length=LENGTH)


def make_pairs(folder: Path) -> Mapping[str, Any]:
    draw = random.Random(0)
    folder.mkdir(parents=True)
    labels = ("entailment", "neutral", "contradiction")
    for part in ("train", "dev_matched", "dev_mismatched"):
        lines = [
            f"{' '.join(sentence(draw, 4))}\t{' '.join(sentence(draw, 4))}\t{draw.choice(labels)}"
            for _ in range(16)
        ]
        (folder / f"{part}.tsv").write_text("sentence1\tsentence2\tgold_label\n" + "\n".join(lines) + "\n")
    return both_inputs(data_dir=str(folder), vocab_file=write_vocabulary(folder), max_sequence_length=LENGTH)


def make_questions(folder: Path) -> Mapping[str, Any]:
    draw = random.Random(0)
    rows = []
    for index in range(16):
        row = {
            "unique_id": index,
            "input_ids": [draw.randrange(5, 50) for _ in range(LENGTH)],
            "input_mask": [1] * LENGTH,
            "segment_ids": [int(place > 5) for place in range(LENGTH)],
            "start_position": draw.randrange(LENGTH // 2),
            "end_position": draw.randrange(LENGTH // 2, LENGTH),
        }
        rows.append({key: str(value) for key, value in row.items()})
    write_csv(folder, rows)
    return both_inputs(data_dir=str(folder), vocab_file=write_vocabulary(folder), max_sequence_length=LENGTH)


def make_named_tokens(folder: Path) -> Mapping[str, Any]:
    draw = random.Random(0)
    labels = {"[PAD]": 0, "O": 1, "B": 2, "I": 3, "X": 4, "[CLS]": 5, "[SEP]": 6}
    rows = []
    for _ in range(16):
        words = sentence(draw, draw.randint(4, LENGTH - 2))
        rows.append(
            {
                "tokens": " ".join(["[CLS]", *words, "[SEP]"]),
                "labels": " ".join(["[CLS]", *(draw.choice("OBI") for _ in words), "[SEP]"]),
            }
        )
    write_csv(folder, rows)
    (folder / "label2id.json").write_text(json.dumps(labels))
    return both_inputs(
        data_dir=str(folder),
        vocab_file=write_vocabulary(folder),
        label_vocab_file=str(folder / "label2id.json"),
        max_sequence_length=LENGTH,
    )


def make_summaries(folder: Path) -> Mapping[str, Any]:
    draw = random.Random(0)
    rows = []
    for _ in range(16):
        ids = [token for _ in range(3) for token in (2, *(draw.randrange(5, 50) for _ in range(3)), 3)]
        row = {
            "input_token_ids": ids,
            "labels": [1, draw.randrange(2), draw.randrange(2)],
            "segment_ids": [0] * 5 + [1] * 5 + [0] * 5,
            "cls_indices": [0, 5, 10],
        }
        rows.append({key: str(value) for key, value in row.items()})
    write_csv(folder, rows)
    return both_inputs(
        data_dir=str(folder),
        vocab_file=write_vocabulary(folder),
        max_sequence_length=LENGTH,
        max_cls_tokens=4,
    )


T5_VOCABULARY = ["<pad>", "<unk>", "<s>", "</s>", *WORDS]


def make_documents(folder: Path) -> Mapping[str, Any]:
    draw = random.Random(0)
    folder.mkdir(parents=True)
    for index in range(2):
        lines = [" ".join(sentence(draw, 30)) for _ in range(12)]
        (folder / f"text-{index}").write_text("\n".join(lines) + "\n")
    (folder / "meta.dat").write_text("text-0 12\ntext-1 12\n")
    return both_inputs(
        src_data_dir=str(folder),
        src_vocab_file=write_vocabulary(folder, T5_VOCABULARY),
        extra_ids=10,
        src_max_sequence_length=LENGTH,
        tgt_max_sequence_length=LENGTH,
    )


def make_translations(folder: Path) -> Mapping[str, Any]:
    draw = random.Random(0)
    folder.mkdir(parents=True)
    for index in range(2):
        for side in ("en", "de"):
            lines = [" ".join(sentence(draw, draw.randint(3, 10))) for _ in range(12)]
            (folder / f"text-{index}.{side}").write_text("\n".join(lines) + "\n")
    lines = [f"{folder}/text-{index}.en {folder}/text-{index}.de 12\n" for index in range(2)]
    (folder / "meta.dat").write_text("".join(lines))
    vocabulary = write_vocabulary(folder, T5_VOCABULARY)
    return both_inputs(
        src_data_dir=str(folder),
        tgt_data_dir=str(folder),
        src_vocab_file=vocabulary,
        tgt_vocab_file=vocabulary,
        src_max_sequence_length=LENGTH,
        tgt_max_sequence_length=LENGTH,
    )


TINY_T5 = {
    "model.src_vocab_size": len(T5_VOCABULARY),
    "model.d_model": 16,
    "model.d_kv": 8,
    "model.num_heads": 2,
    "model.d_ff": 32,
    "model.encoder_num_hidden_layers": 1,
    "model.decoder_num_hidden_layers": 1,
}
BERT = "transformers/pytorch/bert"
TUNING = f"{BERT}/fine_tuning"
# What the zoo's copies of huggingface's models import, and its tokenizers.
HUGGINGFACE = ("filelock", "huggingface_hub", "packaging", "requests", "tqdm", "transformers")
TOKENIZERS = (*HUGGINGFACE, "keras_preprocessing", "six")

CASES = [
    ZooCase(
        "fc_mnist",
        "fc_mnist/pytorch",
        "params.yaml",
        make_mnist,
        {"model.compute_eval_metrics": True},
        ("accuracy",),
    ),
    ZooCase(
        "layers_api_demo",
        "transformers/pytorch/layers_api_demo",
        "params.yaml",
        lambda folder: {},
        {"train_input.num_samples": 64, "eval_input.num_samples": 16},
    ),
    ZooCase(
        "gpt2",
        "transformers/pytorch/gpt2",
        "params_gpt2_small.yaml",
        make_hdf5,
        {**TINY_BERT, **both_inputs(max_sequence_length=LENGTH)},
        ("eval/accuracy",),
        ("h5py", "regex"),
    ),
    ZooCase(
        "bert",
        BERT,
        "bert_base_msl128.yaml",
        make_bert_tokens,
        {**TINY_BERT, "train_input.buckets": [10, 12]},
        ("eval/accuracy_cls", "eval/accuracy_masked_lm", "eval/mlm_perplexity"),
        HUGGINGFACE,
    ),
    ZooCase(
        "bert_static",
        BERT,
        "bert_base_msl512.yaml",
        make_bert_masked,
        TINY_BERT,
        ("eval/accuracy_cls", "eval/accuracy_masked_lm", "eval/mlm_perplexity"),
        HUGGINGFACE,
    ),
    ZooCase(
        "roberta",
        BERT,
        "roberta_base.yaml",
        make_bert_tokens,
        TINY_BERT,
        ("eval/accuracy_masked_lm", "eval/mlm_perplexity"),
        HUGGINGFACE,
    ),
    ZooCase(
        "classifier_sst2",
        f"{TUNING}/classifier",
        "bert_base_classifier_sst2.yaml",
        make_sentences,
        TINY_BERT,
        ("eval/accuracy", "eval/f1_score"),
        TOKENIZERS,
    ),
    ZooCase(
        "classifier_mnli",
        f"{TUNING}/classifier",
        "bert_base_classifier_mnli.yaml",
        make_pairs,
        TINY_BERT,
        ("eval/accuracy", "eval/accuracy_matched"),
        TOKENIZERS,
    ),
    ZooCase("qa", f"{TUNING}/qa", "bert_base_squad.yaml", make_questions, TINY_BERT, (), TOKENIZERS),
    ZooCase(
        "token_classifier",
        f"{TUNING}/token_classifier",
        "bert_base_ner_bc5cdr_chem.yaml",
        make_named_tokens,
        {
            **TINY_BERT,
            "train_input.shuffle_seed": 1,
        },  # without it their loader draws from the system, anew each time
        ("eval/f1_score",),
        TOKENIZERS,
    ),
    ZooCase(
        "summarization",
        f"{TUNING}/extractive_summarization",
        "bert_base_summarization.yaml",
        make_summaries,
        TINY_BERT,
        ("eval/rouge1/f1_score", "eval/rouge2/f1_score"),
        TOKENIZERS,
    ),
    ZooCase(
        "t5",
        "transformers/pytorch/t5",
        "t5_small.yaml",
        make_documents,
        {**TINY_T5, "model.extra_ids": 10},
        ("eval/accuracy_lm", "eval/perplexity_lm"),
        HUGGINGFACE,
    ),
    ZooCase(
        "transformer",
        "transformers/pytorch/transformer",
        "transformer_base.yaml",
        make_translations,
        {**TINY_T5, "model.tgt_vocab_size": len(T5_VOCABULARY)},
        ("eval/accuracy_lm", "eval/perplexity_lm"),
        HUGGINGFACE,
    ),
]
