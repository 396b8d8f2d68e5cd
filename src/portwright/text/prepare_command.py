"""The command `portwright data prepare`: options in, lines and details out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from portwright.job.sizes import parse_bytes, show_count
from portwright.text.objectives import Objective
from portwright.text.prepare import Prepared, PrepareOptions, prepare
from portwright.text.progress import ByteProgress


def prepare_and_tell(
    inputs: Sequence[Path],
    out: Path,
    *,
    objective: Mapping[str, Any],
    options: Mapping[str, Any],
    shard_text: str,
    workers: int | None,
    force: bool,
) -> tuple[list[str], dict[str, Any]]:
    """Prepares a store, with progress on stderr."""
    chosen = PrepareOptions(
        Objective(**objective),
        **options,
        unit_bytes=parse_bytes(shard_text),
        workers=workers if workers is not None else len(os.sched_getaffinity(0)),
    )
    with ByteProgress() as progress:
        made = prepare(inputs, out, chosen, force=force, on_progress=progress)
    return _lines(made, chosen.objective), _details(made)


def _lines(made: Prepared, objective: Objective) -> list[str]:
    shards = f"{made.num_shards} shard{'s' if made.num_shards != 1 else ''}"
    if made.was_done:
        lines = [f"{made.folder} is done already: {made.num_rows} samples in {shards}; nothing was changed."]
    else:
        kept = f", {made.num_kept} of them from an earlier run" if made.num_kept else ""
        lines = [
            f"{made.folder}: {made.num_rows} samples in {shards}{kept}; {show_count(made.num_tokens)} tokens written."
        ]
    lines.append(f"tokenizer.json: {made.tokenizer.size} tokens, fingerprint {made.tokenizer.fingerprint}.")
    length = "src_max_sequence_length" if objective.name == "spans" else "max_sequence_length"
    lines.append(
        f"To train on it: data_dir: {made.folder} and {length}: {objective.sequence_length} in train_input, vocab_size of at least "
        f"{made.tokenizer.size} in model."
    )
    if made.num_bad:
        lines.append(f"{made.num_bad} bad records were left out; skipped.json names them.")
    return lines


def _details(made: Prepared) -> dict[str, Any]:
    return {
        "folder": str(made.folder),
        "samples": made.num_rows,
        "shards": made.num_shards,
        "kept_shards": made.num_kept,
        "bad_records": made.num_bad,
        "was_done": made.was_done,
        "tokenizer": made.tokenizer.describe(),
    }
