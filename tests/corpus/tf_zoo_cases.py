"""The TensorFlow folders of model zoo 1.6: their own params files, made small, and data for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from corpus import tf_zoo_data as data

Params = dict[str, dict[str, Any]]
TINY = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_heads": 2,
    "filter_size": 32,
    "max_position_embeddings": 16,
}
FINE_TUNING = "transformers/tf/bert/fine_tuning"


@dataclass(frozen=True)
class TfZooCase:
    """One folder; `shrink` changes its params and writes the data beside them."""

    name: str
    folder: str
    config: str
    shrink: Callable[[Params, Path, Path], None]
    modes: tuple[str, ...] = ("eval", "eval_all", "train_and_eval")

    def params(self, zoo: Path, place: Path) -> Path:
        params = yaml.safe_load((zoo / self.folder / "configs" / self.config).read_text())
        params["runconfig"].update(
            save_checkpoints_steps=2, save_summary_steps=2, log_step_count_steps=2, max_steps=4, eval_steps=2,
            keep_checkpoint_max=10, multireplica=False, throttle_secs=0, tf_random_seed=7,
        )  # fmt: skip
        params["runconfig"].pop("model_dir", None)
        self.shrink(params, place, zoo)
        path = place / "params.yaml"
        path.write_text(yaml.safe_dump(params))
        return path


def _input(params: Params, **values: Any) -> None:
    for section in ("train_input", "eval_input", "predict_input"):
        if section in params:
            params[section].update(values)


def _fc_mnist(params: Params, place: Path, zoo: Path) -> None:
    data.mnist(place / "tfds")
    params["train_input"].update(data_dir=str(place / "tfds"), batch_size=8)
    params["model"]["hidden_sizes"] = [12, 8]


def _gpt(params: Params, place: Path, zoo: Path) -> None:
    for section, seed in (("train_input", 0), ("eval_input", 1)):
        data.gpt(place / section, seed=seed)
        params[section]["data_dir"] = str(place / section)
    _input(params, vocab_size=95, max_sequence_length=data.LENGTH, batch_size=4, shuffle_seed=3)
    params["model"].update(TINY, vocab_size=95)
    params["optimizer"].update(initial_loss_scale=1024.0, max_loss_scale=65536.0)


def _gptj(params: Params, place: Path, zoo: Path) -> None:
    _gpt(params, place, zoo)
    params["model"]["rotary_dim"] = 4


def _bert_input(params: Params, place: Path) -> None:
    data.write_vocab(place / "vocab.txt")
    for section, seed in (("train_input", 0), ("eval_input", 1)):
        data.bert(place / section, seed=seed)
        params.setdefault(section, dict(params["train_input"]))["data_dir"] = str(place / section)
    _input(
        params, vocab_file=str(place / "vocab.txt"), max_sequence_length=data.LENGTH, max_predictions_per_seq=data.MASKED,
        batch_size=4, buckets=1, shuffle_seed=3,
    )  # fmt: skip


def _bert(params: Params, place: Path, zoo: Path) -> None:
    _bert_input(params, place)
    params["model"].update(TINY)


def _masks_drawn(params: Params, place: Path, zoo: Path) -> None:
    """RoBERTa and Linformer draw their masks while training."""
    data.write_vocab(place / "vocab.txt")
    params.setdefault("eval_input", dict(params["train_input"]))
    for section, seed in (("train_input", 0), ("eval_input", 1)):
        data.tokens(place / section, seed=seed)
        params[section].update(
            data_dir=str(place / section),
            data_processor="BertMlmOnlyTfRecordsDynamicMaskProcessor",
            do_lower=False,
        )
    _input(
        params, vocab_file=str(place / "vocab.txt"), max_sequence_length=data.LENGTH, max_predictions_per_seq=data.MASKED,
        batch_size=4, buckets=1, shuffle_seed=3,
    )  # fmt: skip
    params["model"].update(TINY, projected_dims=8, use_vsl=False)


def _t5(params: Params, place: Path, zoo: Path) -> None:
    data.write_vocab(place / "vocab.txt", ("<pad>", "</s>", "<unk>", "<s>"))
    for section, seed in (("train_input", 0), ("eval_input", 1)):
        data.text(place / section / "part.txt", seed=seed, length=20)
        params[section]["data_dir"] = str(place / section)
    _input(
        params, vocab_file=str(place / "vocab.txt"), src_max_sequence_length=16, tgt_max_sequence_length=16, batch_size=4,
        extra_ids=4, shuffle_seed=3, use_multiple_workers=False,
    )  # fmt: skip
    params["model"].update(
        encoder_num_hidden_layers=2, decoder_num_hidden_layers=2, d_kv=8, num_heads=2, d_ff=32, d_model=16
    )


def _transformer(params: Params, place: Path, zoo: Path) -> None:
    data.write_vocab(place / "vocab.txt", ("<pad>", "<unk>", "<s>", "</s>"))
    for section in ("train_input", "eval_input"):
        for side, seed in (("src", 0), ("tgt", 1)):
            data.text(place / section / side, seed=seed)
            params[section][f"{side}_data_dir"] = str(place / section / side)
            params[section][f"{side}_vocab_file"] = str(place / "vocab.txt")
    _input(
        params,
        src_max_sequence_length=16,
        tgt_max_sequence_length=16,
        batch_size=4,
        shuffle_seed=3,
        use_multiple_workers=False,
    )
    params["model"].update(
        encoder_num_hidden_layers=2, decoder_num_hidden_layers=2, hidden_size=16, num_heads=2, filter_size=32
    )


def _unet(params: Params, place: Path, zoo: Path) -> None:
    for split in ("train", "test"):
        data.images(place / "data" / split / f"{split}-0.tfrecords", size=16)
    params["train_input"].update(
        dataset_path=str(place / "data"), train_batch_size=2, eval_batch_size=2, image_shape=[16, 16, 1], shuffle_buffer_size=8,
        seed=3, num_parallel_reads=1, augment_data=False,  # drawn in parallel, in no order
    )  # fmt: skip
    params["model"].update(data_format="channels_last", encoder_filters=[4, 8], decoder_filters=[4])


def _fine_tuning(params: Params, place: Path, zoo: Path) -> None:
    """A small BERT where the folder looks for the pretrained one's params."""
    base = zoo / "transformers" / "tf" / "bert" / "configs" / "params_bert_base_msl128.yaml"
    pretrained = yaml.safe_load(base.read_text())
    pretrained["model"].update(TINY)
    (place / "pretrained.yaml").write_text(yaml.safe_dump(pretrained))
    data.write_vocab(place / "vocab.txt")
    params["model"]["pretrain_params_path"] = str(place / "pretrained.yaml")
    _input(
        params,
        vocab_file=str(place / "vocab.txt"),
        max_sequence_length=data.LENGTH,
        batch_size=4,
        shuffle_seed=3,
    )


def _classifier(params: Params, place: Path, zoo: Path) -> None:
    _fine_tuning(params, place, zoo)
    data.sentences(place / "tfds")
    _input(params, data_dir=str(place / "tfds"))


def _qa(params: Params, place: Path, zoo: Path) -> None:
    _fine_tuning(params, place, zoo)
    data.answers(place / "train.tf_record")
    data.answers(place / "predict.tf_record", with_ids=True)
    params["train_input"]["data_file"] = str(place / "train.tf_record")
    params["predict_input"]["data_file"] = str(place / "predict.tf_record")


def _entities(params: Params, place: Path, zoo: Path) -> None:
    _fine_tuning(params, place, zoo)
    data.entities(place / "ner")
    _input(params, data_dir=str(place / "ner"), label_vocab_file=str(place / "ner" / "label2id.json"))
    params["model"]["num_classes"] = data.CLASSES


def _summaries(params: Params, place: Path, zoo: Path) -> None:
    _fine_tuning(params, place, zoo)
    data.summaries(place / "sums")
    _input(params, data_dir=str(place / "sums"), max_cls_tokens=data.CLASSES)


CASES = (
    TfZooCase("fc_mnist", "fc_mnist/tf", "params.yaml", _fc_mnist),
    TfZooCase("gpt2", "transformers/tf/gpt2", "params_gpt2_small.yaml", _gpt),
    TfZooCase("gpt3", "transformers/tf/gpt3", "params_gpt3_xl_ws.yaml", _gpt),
    TfZooCase("gptj", "transformers/tf/gptj", "params_gptj.yaml", _gptj),
    TfZooCase("bert", "transformers/tf/bert", "params_bert_base_msl128.yaml", _bert),
    TfZooCase("roberta", "transformers/tf/bert", "params_roberta_base_msl512.yaml", _masks_drawn),
    TfZooCase("t5", "transformers/tf/t5", "params_small.yaml", _t5),
    TfZooCase("transformer", "transformers/tf/transformer", "params_base.yaml", _transformer),
    TfZooCase(
        "linformer", "transformers/tf/linformer", "params_linformer_roberta_base_msl512_proj256_shared_heads.yaml", _masks_drawn
    ),
    TfZooCase("unet", "unet/tf", "params_dagm_tfrecords.yaml", _unet),
    TfZooCase("classifier", f"{FINE_TUNING}/classifier", "params_bert_base_sst2.yaml", _classifier, ("eval", "predict")),
    TfZooCase("qa", f"{FINE_TUNING}/qa", "params_bert_base_squad.yaml", _qa, ()),
    TfZooCase("token_classifier", f"{FINE_TUNING}/token_classifier", "params_bert_base_ner_bc5cdr-chem.yaml", _entities, ("eval", "predict")),
    TfZooCase("extractive_summarization", f"{FINE_TUNING}/extractive_summarization", "params_bertsum_base.yaml", _summaries, ("eval",)),
)  # fmt: skip
