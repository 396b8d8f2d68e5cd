"""`portwright generate`: from prompts on the command line or in a file to text on the terminal or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from portwright.errors import UserError
from portwright.extras import import_transformers
from portwright.generation.api import generate
from portwright.generation.inputs import (
    is_encoder_decoder,
    left_pad,
    require_generating,
    right_pad,
    room_for_new,
)
from portwright.generation.loading import TrainedNetwork, Vocabulary, find_vocabulary, load_trained
from portwright.generation.options import GenerationOptions
from portwright.job.stdout import printing, stdout_to_stderr

DEFAULT_NEW_TOKENS = 64


@dataclass(frozen=True)
class GenerateRequest:
    """The command line's arguments; `choices` are the GenerationOptions that were given."""

    name: str
    prompts: Sequence[str] = ()
    prompt_file: Path | None = None
    checkpoint: Path | None = None
    params: Path | None = None
    overrides: Sequence[str] = ()
    tokenizer: Path | None = None
    device: str | None = None
    batch_size: int = 8
    stream: bool | None = None  # None: only on a terminal
    as_json: bool = False
    choices: dict[str, Any] | None = None


def read_choices(**given: Any) -> dict[str, Any]:
    """The options that were given; one that is about sampling turns `do_sample` on."""
    choices = {name: value for name, value in given.items() if value is not None}
    if any(name in choices for name in ("temperature", "top_k", "top_p", "min_p", "seed")):
        choices.setdefault("do_sample", True)
    words = {"true": True, "false": False}
    if "early_stopping" in choices:
        word = str(choices["early_stopping"]).lower()
        choices["early_stopping"] = words.get(word, word)
    return choices


def generate_and_print(request: GenerateRequest) -> None:
    """Loads the model, generates for every prompt, and prints each text, or one JSON document."""
    prompts = _read_prompts(request)
    if request.batch_size < 1:
        raise UserError(f"--batch-size is {request.batch_size}.", "Give at least 1.")
    choices = dict(request.choices or {})
    asked = GenerationOptions(**choices)  # reports errors before anything is loaded
    import_transformers("portwright generate")
    device = _find_device(request.device)
    with stdout_to_stderr():  # stdout is for the texts, not for what a model's files print
        trained = load_trained(
            request.name, request.checkpoint, request.params, request.overrides, device, _note
        )
        require_generating(trained.network)
        vocabulary = find_vocabulary(trained, request.tokenizer, _note)
    options = _settle(asked, choices, vocabulary)
    encoded = [vocabulary.encode(prompt) for prompt in prompts]
    if _streams(request, options, len(prompts)):
        fitting = _with_room(options, choices, trained, encoded)
        with printing():
            _stream(trained, vocabulary, prompts[0], encoded[0], fitting)
        return
    results = list(_generate_all(trained, vocabulary, prompts, encoded, options, choices, request.batch_size))
    if request.as_json:
        document = {
            "model": request.name,
            "checkpoint": str(trained.checkpoint),
            "step": trained.step,
            "results": results,
        }
        with printing():
            print(json.dumps(document, indent=2, ensure_ascii=False))
        return
    with printing():
        _print_texts(results, is_encoder_decoder(trained.network))


def _read_prompts(request: GenerateRequest) -> list[str]:
    prompts = list(request.prompts)
    if request.prompt_file is not None:
        try:
            is_stdin = str(request.prompt_file) == "-"
            raw = sys.stdin.buffer.read() if is_stdin else request.prompt_file.expanduser().read_bytes()
            text = raw.decode("utf-8-sig")
        except OSError as error:
            raise UserError(
                f"--prompt-file {request.prompt_file} cannot be read: {error.strerror}.", "Check the path."
            ) from error
        except UnicodeDecodeError as error:
            raise UserError(
                f"--prompt-file {request.prompt_file} is not UTF-8: byte {error.start}.", "Save it as UTF-8."
            ) from error
        prompts += [line.rstrip("\r") for line in text.split("\n") if line.strip()]
    if not prompts:
        raise UserError("There is no prompt.", 'Give --prompt "TEXT", or --prompt-file with one a line.')
    for prompt in prompts:
        try:
            prompt.encode("utf-8")
        except UnicodeEncodeError as error:  # bytes of the command line that are not text
            raise UserError(
                f"The prompt {prompt!a} is not UTF-8: character {error.start}.",
                "Give text, or a file of it with --prompt-file.",
            ) from error
    return prompts


def _find_device(given: str | None) -> torch.device:
    name = given or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"--device {name} cannot be used here.", "Give cpu, or leave it out.") from error
    return device


def _settle(asked: GenerationOptions, choices: dict[str, Any], vocabulary: Vocabulary) -> GenerationOptions:
    """The options, with the vocabulary's end token and padding where none was given."""
    changes: dict[str, Any] = {}
    if "eos_token_id" not in choices and vocabulary.eos_ids:
        changes["eos_token_id"] = vocabulary.eos_ids
    if "pad_token_id" not in choices:
        changes["pad_token_id"] = vocabulary.pad_id
    return replace(asked, **changes)


def _with_room(
    options: GenerationOptions, choices: dict[str, Any], trained: TrainedNetwork, encoded: Sequence[list[int]]
) -> GenerationOptions:
    """Limits the default length to the network's positions."""
    room = room_for_new(trained.network, max(map(len, encoded)))
    if "max_new_tokens" in choices or room is None or room < 1 or room >= options.max_new_tokens:
        return options
    return replace(options, max_new_tokens=max(room, options.min_new_tokens))


def _streams(request: GenerateRequest, options: GenerationOptions, num_prompts: int) -> bool:
    can = (
        num_prompts == 1
        and options.num_beams == 1
        and options.num_return_sequences == 1
        and not request.as_json
    )
    if request.stream and not can:
        raise UserError(
            "--stream was given for several texts, a beam search or JSON.",
            "Stream one prompt's one sequence.",
        )
    return can and (sys.stdout.isatty() if request.stream is None else request.stream)


def _stream(
    trained: TrainedNetwork, vocabulary: Vocabulary, prompt: str, ids: list[int], options: GenerationOptions
) -> None:
    if not is_encoder_decoder(trained.network):
        print(prompt, end="", flush=True)
    from transformers import TextStreamer

    stream = TextStreamer(vocabulary, skip_prompt=True)
    made = generate(trained.network, [ids], None, options, decode=vocabulary.decode, streamer=stream)
    _tell_foreign(vocabulary, made.new_tokens.max())
    if made.seed is not None and options.seed is None:
        _note(f"seed {made.seed}")


def _generate_all(
    trained: TrainedNetwork,
    vocabulary: Vocabulary,
    prompts: Sequence[str],
    encoded: Sequence[list[int]],
    options: GenerationOptions,
    choices: dict[str, Any],
    batch_size: int,
) -> Iterator[dict[str, Any]]:
    each = options.num_return_sequences
    for first in range(0, len(prompts), batch_size):
        batch = encoded[first : first + batch_size]
        fitting = _with_room(options, choices, trained, batch)
        pad = right_pad if is_encoder_decoder(trained.network) else left_pad
        ids, mask = pad(batch, vocabulary.pad_id)
        made = generate(
            trained.network, ids, mask, fitting, first_sample=first * each, decode=vocabulary.decode
        )
        options = replace(options, seed=made.seed)  # one for all batches
        _tell_foreign(vocabulary, made.new_tokens.max())
        for row, (tokens, score) in enumerate(
            zip(made.new_tokens.tolist(), made.scores.tolist(), strict=True)
        ):
            number = first + row // each
            yield {
                "prompt": prompts[number],
                "text": vocabulary.decode(tokens),
                "tokens": _until_end(tokens, options),
                "score": score,
                **({} if made.seed is None else {"seed": made.seed, "sample": first * each + row}),
            }


def _until_end(tokens: list[int], options: GenerationOptions) -> list[int]:
    """The tokens up to the first end token, itself included."""
    end = next((place + 1 for place, token in enumerate(tokens) if token in options.eos_ids), len(tokens))
    return tokens[:end]


def _tell_foreign(vocabulary: Vocabulary, highest: torch.Tensor) -> None:
    if int(highest) >= vocabulary.tokenizer.size:
        _note(
            f"the model made the token {int(highest)}, and {vocabulary.tokenizer.source} has {vocabulary.tokenizer.size}: "
            "it has no text. Is it the tokenizer that the model was trained with?"
        )


def _print_texts(results: Sequence[dict[str, Any]], is_answer: bool) -> None:
    for number, result in enumerate(results):
        if len(results) > 1:
            print(f"{'' if number == 0 else chr(10)}[{number + 1}] score {result['score']:.4f}")
        print(result["text"] if is_answer else result["prompt"] + result["text"])
    if results and "seed" in results[0]:
        _note(f"seed {results[0]['seed']}")


def _note(line: str) -> None:
    print(line, file=sys.stderr)
