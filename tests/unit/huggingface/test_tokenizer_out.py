"""The training's tokenizer goes along to transformers."""

from __future__ import annotations

import pytest

from portwright.discover import find_models
from portwright.huggingface.model_folder import read_sections
from portwright.huggingface.outgoing import write_tokenizer
from portwright.text import load_tokenizer

transformers = pytest.importorskip("transformers")


def sections(folder: str) -> dict:
    return read_sections(find_models()[folder] / "configs" / "params.yaml", folder)


@pytest.mark.parametrize("folder", ["gpt2", "bert", "t5"])
def test_transformers_reads_what_training_used(folder, tmp_path):
    params = sections(folder)
    assert write_tokenizer(folder, params, tmp_path) is None
    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)
    text = "A checkpoint is written atomically, isn't it?"
    assert theirs(text, add_special_tokens=False)["input_ids"] == ours.encode(text).tolist()
    assert len(theirs) == len(ours) <= params["model"]["vocab_size"]
    assert (
        theirs.eos_token_id == ours.roles["eos"]
        if folder != "bert"
        else theirs.mask_token_id == ours.roles["mask"]
    )


def test_why_there_is_none_is_said(tmp_path):
    params = sections("gpt2")
    params["train_input"]["data_dir"] = str(tmp_path / "gone")
    assert "does not exist" in write_tokenizer("gpt2", params, tmp_path)
    assert "name none" in write_tokenizer("bert_qa", sections("bert_qa"), tmp_path)
    assert not list(tmp_path.iterdir())
