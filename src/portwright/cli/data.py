"""The commands `portwright data ...`: parse, call, print, exit status; no logic."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from portwright.cli.shared import Json, end_with_findings, print_answer

data_app = typer.Typer(
    name="data",
    help="Prepare the data that a training run reads, check them, and measure how quickly they come.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@data_app.command(short_help="Verify all checksums of a store.")
def check(
    folder: Annotated[Path, typer.Argument(help="The folder of a store, with its manifest.json.")],
    as_json: Json = False,
) -> None:
    """Verify the manifest, the sizes and all checksums of a store; status 1 when a record is damaged."""
    from portwright.data.store import check_store

    report = check_store(folder)
    print_answer(as_json, report.as_dict(), "\n".join(report.lines()))
    end_with_findings(bool(report.problems))


@data_app.command(short_help="Measure samples/s, against what a training step eats.")
def bench(
    subject: Annotated[
        str,
        typer.Argument(help="A store, files of records, a model folder, its run.py, or a reference model."),
    ],
    target: Annotated[
        str | None, typer.Option(help="Where the step runs; left out: the best of this machine.")
    ] = None,
    params: Annotated[
        Path | None, typer.Option("--params", "-p", help="Of a model; left out: its configs/params.yaml.")
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option("-D", help="Change one key of the params: -D train_input.num_workers=2."),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples of a batch.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that load data.")] = None,
    seconds: Annotated[float, typer.Option(help="How long to measure each.")] = 3.0,
    as_json: Json = False,
) -> None:
    """Measure how many samples a second the data give through a run's loader, and for a model what its training step eats.

    The step is measured on batches that lie in memory; nothing is saved. Status 1 where the data do not keep up: more
    than a twentieth of a step would pass waiting for them.
    """
    import sys

    from portwright.job.stdout import stdout_to_stderr
    from portwright.runtime.data_bench import bench as measure

    with stdout_to_stderr():
        report = measure(
            subject,
            target=target,
            params=params,
            overrides=override or [],
            batch_size=batch_size,
            num_workers=workers,
            seconds=seconds,
            note=lambda line: print(f"note: {line}", file=sys.stderr),
        )
    print_answer(as_json, report.as_dict(), "\n".join(report.lines()))
    end_with_findings(report.keeps_up is False)


@data_app.command(short_help="Copy files of numbers into a store.")
def pack(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUT",
            help="Files and folders: HDF5, npy, npz, Parquet, Arrow, CSV or JSONL of numbers and lists of numbers.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="The folder of the store.")],
    fields: Annotated[list[str] | None, typer.Option("--field", help="Only these fields.")] = None,
    interleave: Annotated[
        bool, typer.Option("--interleave", help="A record of each file in turn, not file after file.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Copy records that are numbers already into a store, which is read quicker than any other format.

    A second call goes on where a killed one stopped.
    """
    from portwright.data.files import pack_files

    made = pack_files(inputs, out, fields, interleave=interleave)
    document = {"folder": str(out), "records": made.num_records, "shards": len(made.shards)}
    print_answer(as_json, document, f"{out}: {made.num_records:,} records in {len(made.shards)} shards")


@data_app.command("prepare", short_help="Turn text into packed token shards.")
def prepare_store(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUT", help="Files and folders: text, JSONL, CSV, Parquet, Arrow, also compressed."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="The folder of the store; data_dir of a model's input.")],
    objective: Annotated[
        str, typer.Option(help="What is learned: causal (GPT), masked (RoBERTa), pairs (BERT), spans (T5).")
    ],
    sequence_length: Annotated[
        int, typer.Option(help="Tokens of a sample; for spans, of the encoder's input.")
    ],
    tokenizer: Annotated[
        str, typer.Option(help="tokenizer.json, vocab.json, vocab.txt, a folder with one, or `train`.")
    ] = "train",
    tokenizer_kind: Annotated[
        str | None,
        typer.Option(help="Of one that is trained: gpt, bert, roberta, t5; left out: the objective's."),
    ] = None,
    vocab_size: Annotated[int, typer.Option(help="Tokens of a tokenizer that is trained.")] = 8192,
    extra_ids: Annotated[int, typer.Option(help="Sentinels of T5, where the tokenizer has none.")] = 100,
    do_lower: Annotated[bool, typer.Option(help="Lower case, for vocab.txt and a trained bert.")] = True,
    split: Annotated[
        str | None,
        typer.Option(
            help="What is a document in text files: file, paragraph or line; left out: file, for pairs paragraph."
        ),
    ] = None,
    text_key: Annotated[str, typer.Option(help="The key or column that holds the text.")] = "text",
    pad: Annotated[
        bool, typer.Option("--pad", help="causal: each document padded on its own, not packed.")
    ] = False,
    static: Annotated[
        bool, typer.Option("--static", help="masked, pairs: mask now, not in training.")
    ] = False,
    dup_factor: Annotated[int, typer.Option(help="Times that text is taken, with other masks or pairs.")] = 1,
    max_predictions: Annotated[int, typer.Option(help="Static masks: the most tokens of a sample.")] = 20,
    mask_probability: Annotated[float, typer.Option(help="Static masks: the share of tokens.")] = 0.15,
    whole_word: Annotated[bool, typer.Option("--whole-word", help="Static masks: whole words.")] = False,
    seed: Annotated[int, typer.Option(help="Of pairs and static masks.")] = 1,
    shard_text: Annotated[str, typer.Option(help="Text that becomes a shard, as 16MiB.")] = "16MiB",
    workers: Annotated[
        int | None, typer.Option(help="Processes; the store is the same with any. Left out: one a CPU.")
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave bad records out, and count them.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a store of other inputs or options.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Tokenize text into a store of fixed-length rows, in parallel; run again, it goes on where it was stopped."""
    from portwright.job.sizes import parse_bytes
    from portwright.text.objectives import Objective
    from portwright.text.prepare import prepare
    from portwright.text.preparing import PrepareOptions
    from portwright.text.progress import ByteProgress

    chosen = PrepareOptions(
        Objective(
            objective,
            sequence_length,
            packed=not pad,
            static=static,
            dup_factor=dup_factor,
            mask_probability=mask_probability,
            max_predictions=max_predictions,
            whole_word=whole_word,
            seed=seed,
        ),
        tokenizer=tokenizer,
        tokenizer_kind=tokenizer_kind,
        vocab_size=vocab_size,
        num_sentinels=extra_ids,
        do_lower=do_lower,
        split=split,
        text_key=text_key,
        skip_bad=skip_bad,
        unit_bytes=parse_bytes(shard_text),
        workers=workers if workers is not None else len(os.sched_getaffinity(0)),
    )
    with ByteProgress() as progress:
        made = prepare(inputs, out, chosen, force=force, on_progress=progress)
    print_answer(as_json, made.as_dict(), "\n".join(made.lines()))
