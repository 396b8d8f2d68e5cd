"""Needs: by name, what code must do so that a target runs it well, and each target's answer where it does not.

A rule names the needs that it checks, a target answers the needs that matter to it; neither knows the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from portwright.errors import UserError, suggest

Verdict = Literal["refused", "slow", "changes_results"]


@dataclass(frozen=True)
class Answer:
    """What happens on a target where a need is not kept."""

    verdict: Verdict
    reason: str  # one sentence, without its full stop
    source: str  # the document or measurement that says so
    cure: str = ""  # in terms of the vendor's software; without it, the rule's cure is shown
    takes: tuple[str, ...] = ()  # names that satisfy the need there: optimizers, decorators

    def says(self) -> str:
        return f"{self.verdict.replace('_', ' ')}: {self.reason} ({self.source})"


TENSORFLOW_2 = Answer(
    "refused",
    "it is gone from today's TensorFlow, or means something else there",
    "TensorFlow's release notes",
)  # the answer of every target that TensorFlow scripts are written for

NEEDS: Mapping[str, str] = {
    # data and shapes
    "static_shapes": "Every batch, and every result in a step, has one shape, which is known before the step runs.",
    "any_batch_size": "The model takes whatever batch size a loader, a mode or a replica gives it.",
    "no_shape_arithmetic": "Sizes are not worked out in forward() from the shape of an input.",
    "no_pinned_memory": "A loader pins no memory.",
    "picklable_dataset": "The dataset can be sent to processes of the target's own loader.",
    "own_sources": "The model's code, and what reads its data, are in the project, not in a library that the site may lack.",
    "state_in_step": "State that lasts from step to step goes into the step and comes out of it.",
    # host reads
    "no_host_reads": "A step reads no value back to the host.",
    "sums_on_device": "A sum over steps stays a tensor until it is logged.",
    "no_rare_host_reads": "No value is read between the parts of a step, not even once in many steps.",
    "no_host_reads_in_evaluation": "Evaluation reads no value for each batch.",
    "no_text_in_step": "Nothing is printed or logged at each step.",
    "no_value_branches": "No branch in forward() depends on the values of a tensor.",
    "no_draws_in_step": "A step draws no random numbers and no classes.",
    # model and layers
    "known_operations": "A step has only operations that the target's compiler knows; others are in an equal form (portwright.layers.legal).",
    "one_precision_in_products": "Both sides of a product have one precision.",
    "no_writes_in_place": "forward() changes no tensor, and no part of one, in place.",
    "free_layout": "The order of a tensor in memory is left to the target's compiler.",
    "tensors_on_device": "A tensor that a step makes, or casts, lies where its inputs lie.",
    "masks_made_once": "A mask that never changes is made once, not in each step.",
    "finite_masks": "A mask's numbers are finite in every precision that the step may have.",
    "whole_batch_statistics": "Statistics over a batch are right where the batch is split.",
    "no_shared_weights": "No two layers share a weight.",
    "no_einsum": "Products of tensors are written as matmul, and changes of their shape as reshape and permute.",
    "no_loops_over_positions": "forward() has no Python loop over the positions of a tensor.",
    "batch_first": "The batch is the first dimension of what a step is given.",
    "sorted_topk": "topk() asks for sorted results.",
    "no_sorting": "A step sorts nothing.",
    "own_compiler": "Nothing but the target's own compiler compiles the step: no torch.compile, no torch.jit, no kernels.",
    "traced_gradients": "Every gradient is derived from the operations of forward(): none is written in Python.",
    "first_derivatives": "Gradients are taken once, by backward() of the loss.",
    "no_float64": "Nothing in a model or step is float64 or int8.",
    "no_sparse_tensors": "Every tensor is dense.",
    # loss and optimizer
    "whole_step": "Forward, backward and update are one step, which the target's software runs as a whole.",
    "rate_as_schedule": "The learning rate reaches the step as a schedule, or through the target's own call.",
    "clipping_in_step": "Gradients are clipped inside the step, by the target's own option.",
    "known_optimizers": "The optimizer is one that the target has.",
    "one_update": "A step has one loss, one backward pass and one update.",
    "no_data_attribute": "Values are read with detach(), not through .data.",
    "own_precision": "The precision of a step is the target's option, not torch's autocast.",
    # device and distribution
    "no_cuda_calls": "Nothing asks or tells CUDA anything.",
    "no_cuda_switches": "No setting chooses among CUDA's kernels.",
    "placed_by_target": "The target places the model and its batches; the script moves neither.",
    "host_is_cpu": "What stays on the host is on its CPU, and no setting hangs on the type of a device.",
    "replicated_by_target": "The target spreads a step over devices itself.",
    "checkpoints_by_target": "Weights are fetched from the device before they are saved, and loaded to the host's CPU.",
    # published ports
    "poptorch_executor": "The model is called through PopTorch's executor, which does backward and update with the optimizer that it was given.",
    "branches_that_run": "A branch for the target names only what exists.",
    # TensorFlow
    "tensorflow_2": "Every name and every way of running is one that today's TensorFlow has.",
    "static_graph_shapes": "Shapes in model code are known when the graph is built, without tf.shape().",
    "fed_by_estimator": "An Estimator builds the step with a model_fn and feeds it from an input_fn.",
    "work_on_device": "All that a model_fn builds can run on the device: no text, tables, files, Python functions or decoding by steps.",
    "steady_input": "A tf.data pipeline has its steps in an order that keeps the device fed.",
    "listed_metrics": "Metrics are among those that the target's TensorFlow can compute.",
    "no_summaries": "Model code writes no summaries.",
    "known_tensorflow_optimizers": "The optimizer is one that the target's TensorFlow has.",
    # asked by runs, not by rules
    "no_float16_training": "A step does not train in float16.",
    "no_float64_training": "A step does not train in float64.",
    "no_wide_sums": "Sums on the device are no wider than 32 bits.",
}


def read_answers(*files: Path) -> dict[str, Answer]:
    """A target's answers from TSV files with the columns need, verdict, reason, source, cure and takes; later rows win."""
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    _, *rows = dict.fromkeys(tuple(line.split("\t")) for line in lines if not line.startswith("#"))
    return {
        need: Answer(verdict, reason, source, cure, tuple(takes.split()))  # type: ignore[arg-type]
        for need, verdict, reason, source, cure, takes in rows
    }


def check_needs(needs: Iterable[str], of: str) -> None:
    """Raises a UserError where a rule or a target (`of`) names an unknown need, or an answer is not complete."""
    for need in needs:
        if need not in NEEDS:
            raise UserError(f"{of} names the need '{need}', which is not in needs.py.", suggest(need, NEEDS))
        answer = needs[need] if isinstance(needs, Mapping) else None
        if answer and not (answer.verdict in get_args(Verdict) and answer.reason and answer.source):
            cure = f"Give a verdict ({', '.join(get_args(Verdict))}), a reason and a source."
            raise UserError(f"{of} answers the need '{need}' with {answer}.", cure)
