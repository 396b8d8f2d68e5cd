"""What the tests change in a model's one-minute config, so that all models together take about a minute."""

from __future__ import annotations

BATCH = ("train_input.batch_size=4",)
SMALLER = {
    "cosmictagger": (
        "train_input.downsample=5",
        "eval_input.downsample=5",
        "model.depth=2",
        "model.blocks_deepest_layer=1",
    ),
}


def overrides_of(name: str) -> tuple[str, ...]:
    return (*BATCH, *SMALLER.get(name, ()))


def as_words(overrides: tuple[str, ...]) -> list[str]:
    return [word for text in overrides for word in ("-D", text)]
