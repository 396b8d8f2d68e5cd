"""Every reference model has a reference: the installed transformers, to which trained weights go and come back, or a test that states it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from results import HERE
from small import as_words, overrides_of
from zoo import NAMES, run

from portwright.huggingface.command import Options, bring_in, take_back
from portwright.huggingface.model_folder import open_ours
from portwright.huggingface.registry import find_families
from portwright.job.model_list import make_model_folder

ROOT = HERE.parents[1]
# Of what transformers does not have: what it is equal to, and the test that says so.
STATED = {
    "alphabet": (
        "the tutorial's transformer",
        "tests/unit/models/test_alphabet_models.py::test_the_three_modifications_keep_the_numbers",
    ),
    "cosmictagger": (
        "the public CosmicTagger",
        "tests/unit/models/test_cosmictagger_original.py::test_outputs_gradients_and_statistics",
    ),
    "fc_mnist": ("its equations", "tests/unit/models/test_fc_mnist.py::test_the_network_is_its_equations"),
    "linformer": ("the paper's equations", "tests/unit/networks/test_bert.py::test_linformer_is_the_papers"),
    "bert_summarization": (
        "a statement of its head, on bert's encoder",
        "tests/unit/networks/test_bert.py::test_summarization_reads_each_sentence_at_its_cls",
    ),
    "transformer": (
        "the paper's equations, and torch.nn.Transformer",
        "tests/unit/networks/test_seq2seq.py::test_is_the_paper",
    ),
    "unet": (
        "the paper's equations",
        "tests/unit/networks/test_unet.py::test_logits_and_gradients_are_those_of_the_equations",
    ),
}
ELSEWHERE = {"cosmictagger": "from the public CosmicTagger's files"}
# What transformers cannot say is left out of a config before it goes there.
PLAINER = {
    "gpt3": (
        ("model.attention_sliding_window_length=null",),
        "both ways, bit for bit, where all layers are dense",
    )
}
CONVERTIBLE = {folder for family in find_families().values() for folder in family.architectures}


@pytest.mark.parametrize("name", sorted(set(NAMES) & CONVERTIBLE))
@pytest.mark.filterwarnings("ignore")  # transformers' own
def test_trained_weights_equal_transformers_and_come_back(name: str, tmp_path: Path, record: Any) -> None:
    mine = make_model_folder(tmp_path / "mine", "pytorch", name)
    plainer, converts = PLAINER.get(name, ((), "both ways, bit for bit"))
    run(mine, *as_words((*overrides_of(name), *plainer)), num_steps=2)
    theirs, back = tmp_path / "theirs", tmp_path / "back"
    taken = take_back(Options(mine, theirs, model=name, check=True, tolerance=1e-5), lambda done, total: None)
    assert taken["check"]["equal"], taken["check"]
    brought = bring_in(
        Options(theirs, back, model=name, check=True, tolerance=1e-5), lambda done, total: None
    )
    assert brought["check"]["equal"], brought["check"]
    before, after = open_ours(mine, None).weights, open_ours(back, None).weights
    assert before.specs.keys() == after.specs.keys()
    for each in before.specs:
        assert before.read(each).equal(after.read(each)), each
    record(name, "reference", f"transformers' {taken['check']['architecture']}")
    record(name, "converts", converts)


@pytest.mark.parametrize("name", sorted(set(NAMES) - CONVERTIBLE))
def test_what_transformers_has_not_is_held_to_something_else(name: str, record: Any) -> None:
    what, test = STATED[name]
    path, _, function = test.partition("::")
    tree = ast.parse((ROOT / path).read_text())
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, test
    record(name, "reference", f"{what} ({test})")
    record(name, "converts", ELSEWHERE.get(name, "no counterpart"))
