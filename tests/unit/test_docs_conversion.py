"""docs/conversion.md says what the files say, and leaves nothing of them out."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from docs_pages import conversion
from docs_pages.conversion import conversion_page, measure_literal_changes

from portwright.models import alphabet

FOLDER = Path(next(iter(alphabet.__path__)))
STEPS = {
    ("tutorial_transformer.py", "pytorch_transformer.py"): (
        "TransformerModel.__init__",
        "TransformerModel.forward",
        "PositionalEncoding",
        "generate_square_subsequent_mask",
    ),
    ("pytorch_transformer.py", "cb_transformer.py"): (
        "imports",
        "TransformerModel.__init__",
        "TransformerModel.init_weights",
        "TransformerModel.forward",
    ),
    ("cb_transformer.py", "literal_transformer.py"): (
        "imports",
        "TransformerModel.__init__",
        "TransformerModel.init_weights",
        "TransformerModel.forward",
    ),
}


def test_the_committed_page_is_the_generated_one() -> None:
    committed = Path(__file__).parents[2] / "docs" / "conversion.md"
    assert committed.read_text(encoding="utf-8") == conversion_page()


@pytest.mark.parametrize("pair", STEPS)
def test_the_steps_cover_every_difference(pair: tuple[str, str]) -> None:
    left = [unshown(file, STEPS[pair]) for file in pair]
    assert left[0] == left[1]
    page = conversion_page()
    for step in STEPS[pair]:
        assert f"--- {pair[0]} ({step})\n+++ {pair[1]} ({step})" in page


def unshown(file: str, steps: tuple[str, ...]) -> list[str]:
    """The code of a file without the parts that the page shows, what it drops or adds whole, and docstrings."""
    whole = ast.parse((FOLDER / file).read_text(encoding="utf-8"))
    kept = [
        node
        for node in whole.body[1:]
        if getattr(node, "name", "") not in (*steps, "state_from_pytorch", *ONLY_IN_TORCH_MODELS)
        and not ("imports" in steps and isinstance(node, ast.Import | ast.ImportFrom))
    ]
    for node in kept:
        if isinstance(node, ast.ClassDef):
            node.body = [
                each for each in node.body if f"{node.name}.{getattr(each, 'name', '')}" not in steps
            ]
    return [ast.dump(node) for node in kept]


# Removed by the conversion; the page says so in its step 2, and model.py keeps using the mask.
ONLY_IN_TORCH_MODELS = ("PositionalEncoding", "generate_square_subsequent_mask")


def test_each_change_is_measured() -> None:
    changes = measure_literal_changes()
    faithful, dropout = changes[0], changes[4]
    assert faithful.score < 1e-5
    assert dropout.score == 0
    assert all(change.score > 0.01 for change in changes[1:4] + changes[5:])
    assert all(abs(change.loss) > 1e-4 for change in changes[1:4] + changes[5:])


def test_a_step_without_a_difference_is_an_error() -> None:
    with pytest.raises(ValueError, match="is the same"):
        list(conversion._diff("cb_transformer.py", "cb_transformer.py", "TransformerModel.forward"))
