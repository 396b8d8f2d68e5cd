"""Tokens a second of generation: ours against transformers.generate, the same random GPT-2 weights, in one run.

Greedy and four beams, one prompt and four, with prompts of one length and padded ones; a tiny network, where Python's
share of a step counts, and one of 124M parameters, where reading the weights does. Float32, one thread, seconds of the
processor. Before anything is timed both must give the same tokens.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import transformers
from measure import Claim, finish, interleave, paired_ratio, parse_arguments

from portwright.generation import GenerationOptions, generate
from portwright.huggingface.mapping import to_ours
from portwright.huggingface.registry import find_families


@dataclass(frozen=True)
class Size:
    config: dict[str, int]
    num_new: int
    num_rounds: int
    target_greedy: float
    target_beam: float


SIZES = {
    "tiny": Size(
        {"vocab_size": 512, "n_positions": 256, "n_embd": 64, "n_layer": 4, "n_head": 4}, 64, 15, 1.3, 1.3
    ),
    "124M": Size({}, 12, 5, 0.95, 1.0),
}
SHAPES = (
    (1, 8, False),
    (4, 32, False),
    (4, 32, True),
)  # prompts, their length, whether shorter ones are padded


def make_pair(size: Size) -> tuple[Any, torch.nn.Module]:
    torch.manual_seed(0)
    config = transformers.GPT2Config(**size.config)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    theirs.generation_config = transformers.GenerationConfig(pad_token_id=0)
    family = find_families()["gpt2"]
    params = family.params_of(config.to_dict())
    assert family.network is not None
    ours = family.network(params).eval()
    ours.load_state_dict(to_ours(theirs.state_dict(), family, params))
    return theirs, ours


def timed(call: Callable[[], Any], num_tokens: int) -> Callable[[], float]:
    def run() -> float:
        start = time.process_time()
        call()
        return num_tokens / (time.process_time() - start)

    return run


def main() -> int:
    arguments = parse_arguments(__doc__)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    claims: list[Claim] = []
    figures: dict[str, Any] = {}
    for name, size in SIZES.items():
        theirs, ours = make_pair(size)
        for num_beams in (1, 4):
            for batch, length, is_padded in SHAPES:
                ids = torch.randint(1, theirs.config.vocab_size, (batch, length))
                mask = torch.ones_like(ids)
                if is_padded:
                    for row in range(1, batch):
                        ids[row, : 5 * row], mask[row, : 5 * row] = 0, 0
                options = GenerationOptions(max_new_tokens=size.num_new, num_beams=num_beams, pad_token_id=0)

                def run_ours(ids=ids, mask=mask, options=options, ours=ours) -> torch.Tensor:
                    return generate(ours, ids, mask, options).sequences

                def run_theirs(ids=ids, mask=mask, options=options, theirs=theirs) -> torch.Tensor:
                    return theirs.generate(
                        input_ids=ids,
                        attention_mask=mask,
                        do_sample=False,
                        max_new_tokens=options.max_new_tokens,
                        num_beams=options.num_beams,
                    )

                case = f"{name}, {num_beams} beam(s), {batch} x {length}{' padded' if is_padded else ''}"
                if not torch.equal(run_ours(), run_theirs()):
                    print(f"{case}: the tokens differ", file=sys.stderr)
                    return 2
                num_tokens = batch * size.num_new
                rates = interleave(
                    {"ours": timed(run_ours, num_tokens), "transformers": timed(run_theirs, num_tokens)},
                    2 if arguments.quick else size.num_rounds,
                )
                figures[case] = {who: round(median(values), 1) for who, values in rates.items()}
                print(f"{case}: {figures[case]} tokens/s", file=sys.stderr)
                claims.append(
                    Claim(
                        f"{case}: tokens/s over transformers'",
                        paired_ratio(rates["ours"], rates["transformers"]),
                        size.target_greedy if num_beams == 1 else size.target_beam,
                    )
                )
    return finish(arguments, claims, figures, torch=torch.__version__, transformers=transformers.__version__)


if __name__ == "__main__":
    sys.exit(main())
