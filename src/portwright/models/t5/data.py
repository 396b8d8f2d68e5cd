"""Text with spans taken out, for the model to tell what stood there; or pairs of texts, to fine-tune on."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from portwright import UserError, text
from portwright.job.input_params import loader_arguments


def get_train_dataloader(params: dict[str, Any]) -> DataLoader[Any]:
    return make_dataloader(params, "train_input")


def get_eval_dataloader(params: dict[str, Any]) -> DataLoader[Any]:
    return make_dataloader(params, "eval_input")


def make_dataloader(params: dict[str, Any], section: str) -> DataLoader[Any]:
    if section == "eval_input" and has_files(params, "train_input"):
        check_evaluation(params)
    options = params[section]
    make = text.translation if options["objective"] == "pairs" else text.span_corruption
    dataset, _ = make(options, section, params["model"])
    return DataLoader(dataset, **loader_arguments(options, section))


def check_evaluation(params: dict[str, Any]) -> None:
    """Without data and a tokenizer of its own, evaluation would be of other text in other tokens."""
    if not has_files(params, "eval_input") and not params["eval_input"]["tokenizer"]:
        raise UserError(
            "eval_input names no data and no tokenizer, and train_input names data of its own.",
            "Set eval_input.data_dir, or eval_input.tokenizer to the one of training.",
        )


def has_files(params: dict[str, Any], section: str) -> bool:
    return any(params.get(section, {}).get(name) for name in ("data_dir", "src_data_dir"))
