"""`portwright generate`: parse and call; the work is done in portwright.generation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from portwright.cli.shared import Json


def generate(
    model: Annotated[str, typer.Argument(help="A model folder, or a reference model's name such as gpt2.")],
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", help="Text to continue or to answer; may be given several times."),
    ] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(help="A file with a prompt a line, or - for stdin.")
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="A checkpoint, a folder of them or a file of weights; without it the newest in model_dir."
        ),
    ] = None,
    params: Annotated[
        Path | None,
        typer.Option("--params", "-p", help="The params file; without it that of the checkpoint's run."),
    ] = None,
    override: Annotated[list[str] | None, typer.Option("-D", help="Change one key of the params.")] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="tokenizer.json, vocab.txt or a folder; without it that of the training."),
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Tokens at most; without it 64, or as many as the model has room for.")
    ] = None,
    min_new_tokens: Annotated[int | None, typer.Option(help="Tokens at least.")] = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="Draw tokens; so do the next five options by themselves.")
    ] = False,
    temperature: Annotated[float | None, typer.Option(help="Draw: below 1 favours likely tokens.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k likeliest tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the likeliest that together reach this share.")
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(help="Draw from those that are at least so many times as likely as the likeliest."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Draw the same again.")] = None,
    num_beams: Annotated[int | None, typer.Option(help="Search with so many beams.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="Beams: above 0 favours long texts.")] = None,
    early_stopping: Annotated[str | None, typer.Option(help="Beams: true, false or never.")] = None,
    num_return_sequences: Annotated[
        int | None, typer.Option(help="Texts for each prompt, drawn or the best of the beams.")
    ] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="Above 1, tokens repeat less.")] = None,
    no_repeat_ngram_size: Annotated[
        int | None, typer.Option(help="No sequence of so many tokens twice.")
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", help="End a text at this string; may be given several times."),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Prompts at once.")] = 8,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda; without it cuda where there is one.")
    ] = None,
    stream: Annotated[
        bool | None,
        typer.Option(
            "--stream/--no-stream", help="Print tokens as they are made; without it so on a terminal."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Generate text with a trained model: continue prompts (gpt2, gpt3, gptj) or answer them (t5, transformer).

    The likeliest token each time, unless draws or beams are asked for.

    portwright generate gpt2 --prompt "A target is" --temperature 0.8 --top-k 40
    """
    from portwright.generation.command import GenerateRequest, generate_and_print, read_choices

    choices = read_choices(
        max_new_tokens=max_new_tokens, min_new_tokens=min_new_tokens, do_sample=sample or None, temperature=temperature,
        top_k=top_k, top_p=top_p, min_p=min_p, seed=seed, num_beams=num_beams, length_penalty=length_penalty,
        early_stopping=early_stopping, num_return_sequences=num_return_sequences, repetition_penalty=repetition_penalty,
        no_repeat_ngram_size=no_repeat_ngram_size, stop_strings=stop or None,
    )  # fmt: skip
    request = GenerateRequest(
        model, prompt or (), prompt_file, checkpoint, params, override or (), tokenizer, device, batch_size, stream,
        as_json, choices,
    )  # fmt: skip
    generate_and_print(request)
