"""Tokens per second of `portwright data prepare` against a plain loop over `tokenizers.encode_batch` and HuggingFace's datasets.map.

JSON lines made of the shipped text, a byte-level BPE of 8192 tokens, rows of 1024 tokens. The loop reads lines, encodes a
thousand at a time (which uses all CPUs), and writes ids of two bytes, packed: no manifest, no checksums, no resume. Ours is a
call of `prepare` with a process a CPU, the start of its processes and the hashes of its inputs included.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from measure import Claim, finish, interleave, paired_ratio, parse_arguments

from portwright.text import Objective, load_tokenizer, shipped_documents, train_tokenizer
from portwright.text.prepare import PrepareOptions, prepare

LENGTH, VOCAB_SIZE, BATCH = 1024, 8192, 1000


def write_corpus(path: Path, num_bytes: int) -> None:
    """The shipped documents again and again, each time begun elsewhere, so that no two lines are equal."""
    written, turn = 0, 0
    with path.open("w", encoding="utf-8") as file:
        while written < num_bytes:
            for text in shipped_documents():
                line = json.dumps({"text": f"{turn} {text[turn % 97 :]}"}) + "\n"
                written += file.write(line)
            turn += 1


def plain_loop(corpus: Path, tokenizer_file: Path, folder: Path) -> float:
    """Seconds for a loop as people write it."""
    import tokenizers

    start = time.perf_counter()
    tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    end = tokenizer.token_to_id("<|endoftext|>")
    rest = np.zeros(0, np.uint16)
    with corpus.open(encoding="utf-8") as lines, (folder / "plain.bin").open("wb") as out:
        batch: list[str] = []

        def flush() -> None:
            nonlocal rest
            ids = [np.asarray([*each.ids, end], np.uint16) for each in tokenizer.encode_batch(batch)]
            stream = np.concatenate([rest, *ids])
            whole = len(stream) // LENGTH * LENGTH
            out.write(stream[:whole].tobytes())
            rest = stream[whole:]
            batch.clear()

        for line in lines:
            batch.append(json.loads(line)["text"])
            if len(batch) == BATCH:
                flush()
        if batch:
            flush()
    return time.perf_counter() - start


def datasets_map(corpus: Path, tokenizer_file: Path, folder: Path) -> float:
    """Seconds for datasets.map with a process a CPU, then a second map that packs, as in HuggingFace's examples."""
    import datasets
    import tokenizers

    datasets.disable_progress_bars()
    start = time.perf_counter()
    tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    end = tokenizer.token_to_id("<|endoftext|>")

    def encode(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        return {"ids": [[*each.ids, end] for each in tokenizer.encode_batch(batch["text"])]}

    def pack(batch: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        stream = [number for ids in batch["ids"] for number in ids]
        return {"rows": [stream[at : at + LENGTH] for at in range(0, len(stream) - LENGTH + 1, LENGTH)]}

    cache = folder / "datasets"
    made = datasets.load_dataset("json", data_files=str(corpus), split="train", cache_dir=str(cache))
    workers = len(os.sched_getaffinity(0))
    made = made.map(encode, batched=True, batch_size=BATCH, num_proc=workers, remove_columns=["text"])
    made.map(pack, batched=True, batch_size=BATCH, num_proc=workers, remove_columns=["ids"])
    seconds = time.perf_counter() - start
    shutil.rmtree(cache)
    return seconds


def ours(corpus: Path, tokenizer_file: Path, folder: Path) -> float:
    out = folder / "store"
    shutil.rmtree(out, ignore_errors=True)
    start = time.perf_counter()
    workers = len(os.sched_getaffinity(0))
    prepare(
        [corpus],
        out,
        PrepareOptions(Objective("causal", LENGTH), tokenizer=str(tokenizer_file), workers=workers),
    )
    return time.perf_counter() - start


def main() -> int:
    arguments = parse_arguments(__doc__)
    num_bytes, num_rounds = (20_000_000, 2) if arguments.quick else (200_000_000, 5)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus, tokenizer_file = folder / "corpus.jsonl", folder / "tokenizer.json"
        write_corpus(corpus, num_bytes)
        tokenizer_file.write_text(
            train_tokenizer("gpt", shipped_documents(), VOCAB_SIZE).to_json(), encoding="utf-8"
        )
        contestants = {"portwright": ours, "encode_batch": plain_loop}
        try:
            import datasets  # noqa: F401

            contestants["datasets.map"] = datasets_map
        except ImportError:
            print("datasets is not installed: left out")
        timed = interleave(
            {key: partial(run, corpus, tokenizer_file, folder) for key, run in contestants.items()},
            num_rounds,
        )
        sample = [json.loads(line)["text"] for line in corpus.read_text(encoding="utf-8").splitlines()[:359]]
        tokens_per_byte = sum(map(len, load_tokenizer(tokenizer_file).encode_batch(sample))) / sum(
            len(text.encode()) for text in sample
        )
        num_tokens = tokens_per_byte * num_bytes
        for key, seconds in timed.items():
            print(f"{key}: {num_tokens / sorted(seconds)[len(seconds) // 2] / 1e6:.2f} million tokens/s")
        claims = [
            Claim(f"tokens/s against {key}", paired_ratio(seconds, timed["portwright"]), 1.0)
            for key, seconds in timed.items()
            if key != "portwright"
        ]
        return finish(
            arguments,
            claims,
            {"tokens_per_second": {key: [num_tokens / s for s in v] for key, v in timed.items()}},
        )


if __name__ == "__main__":
    sys.exit(main())
