"""Names that the model zoo gave the weights of its layers, for checkpoints of its releases.

There queries, keys and values are three matrices and the feed-forward network is a list; here they are torch.nn's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

import torch

from portwright.target import Shard

_PROJECTION = re.compile(r"(.*)proj_([qkv])_dense_layer\.(weight|bias)")
_RENAMED = (
    (re.compile(r"(.*)proj_output_dense_layer\.(weight|bias)"), r"\1out_proj.\2"),
    (re.compile(r"(.*)ffn\.ffn\.0\.linear_layer\.(weight|bias)"), r"\1linear1.\2"),
    (re.compile(r"(.*)ffn\.ffn\.1\.linear_layer\.(weight|bias)"), r"\1linear2.\2"),
)


def has_zoo_names(found: Collection[str], wanted: Collection[str]) -> bool:
    """Whether a checkpoint has separate projections where the model has one joint matrix."""
    return any(_PROJECTION.fullmatch(name) and name not in wanted for name in found)


def from_zoo_names(shards: Iterable[Shard]) -> list[Shard]:
    """Gives weights under torch.nn's names, projections joined; optimizer state under the old names is left out."""
    made: dict[str, torch.Tensor] = {}
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for shard in shards:
        kind, _, name = shard.name.partition("/")
        if kind != "model":
            continue
        projection = _PROJECTION.fullmatch(name)
        if projection is not None:
            start, which, what = projection.groups()
            parts.setdefault(f"{start}in_proj_{what}", {})[which] = shard.tensor
            continue
        for pattern, replacement in _RENAMED:
            name = pattern.sub(replacement, name)
        made[name] = shard.tensor
    for name, three in parts.items():
        if len(three) == 3:
            made[name] = torch.cat([three[which] for which in "qkv"])
    return [Shard(f"model/{name}", tensor) for name, tensor in made.items()]
