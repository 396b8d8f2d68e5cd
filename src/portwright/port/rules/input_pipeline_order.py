from __future__ import annotations

from collections.abc import Iterator

from portwright.port.pipelines import Step, pipelines_of
from portwright.port.rewrite import argument, is_constant
from portwright.port.rule import File, Findings
from portwright.port.tensorflow_names import TensorFlowRule
from portwright.port.tree import words

_BATCHES = ("batch", "padded_batch", "map_and_batch")
_SHUFFLES = ("shuffle", "shuffle_and_repeat")


class InputPipelineOrder(TensorFlowRule):
    """Finds steps of a tf.data pipeline in an order that costs time or mixes badly.

    ## Why
    The order is: shard, read in parallel, cache, shuffle, repeat, batch, map in parallel, prefetch. Shuffled batches are
    the same groups of samples in each epoch; what is repeated before it is shuffled mixes epochs; a cache behind the
    shuffle keeps one order for ever; a shard behind other steps does their work on every worker.

    ## Example
    ```python
    import tensorflow as tf

    def input_fn(files, size):
        d = tf.data.TFRecordDataset(files)
        return d.batch(size, drop_remainder=True).shuffle(100).prefetch(1)
    ```

    ## Instead
    ```python
    import tensorflow as tf

    def input_fn(files, size):
        d = tf.data.TFRecordDataset(files)
        return d.shuffle(100).batch(size, drop_remainder=True).prefetch(1)
    ```

    ## Safety
    Manual: another order gives other batches.
    """

    code = "PW623"
    needs = ("steady_input",)
    words = ("shuffle", "repeat", "cache", "shard", "batch", "map")
    cure = "Order the steps: shard, interleave, cache, shuffle, repeat, batch with drop_remainder, map in parallel, prefetch."

    def find(self, file: File) -> Findings:
        pipelines = pipelines_of(file)
        for step in pipelines.steps:
            before = [s.name for s in pipelines.before(step)]
            for message, cure in _mistakes(step, before):
                yield self.report(file, step.call, message, cure=cure)


def _mistakes(step: Step, before: list[str]) -> Iterator[tuple[str, str | None]]:
    batched = any(name in before for name in _BATCHES) and "unbatch" not in before
    if step.name in _SHUFFLES:
        if batched:
            yield (
                "whole batches are shuffled, and their samples stay together",
                "Call shuffle() before batch().",
            )
        if "repeat" in before:
            message = "what is repeated is shuffled, so that epochs mix"
            yield message, "Call repeat() behind shuffle(), so that each epoch has every sample once."
    if step.name == "cache":
        if any(name in before for name in _SHUFFLES):
            yield "the cache keeps the order of the first epoch for all", "Call cache() before shuffle()."
        if "repeat" in before:
            yield "an endless dataset fills the cache for ever", "Call cache() before repeat()."
        if batched:
            message = "the cache holds batches, so that a shuffle behind it moves whole batches"
            yield message, "Call cache() before shuffle() and batch()."
    if step.name == "shard" and set(before) & words("map shuffle batch padded_batch repeat interleave"):
        message = "each worker does all of the work that comes before shard()"
        yield message, "Call shard() on the list of files, before anything else."
    if step.name == "map" and not _is_parallel(step):
        message = f"map() runs one {'batch' if batched else 'sample'} at a time"
        yield message, "Give it num_parallel_calls=tf.data.AUTOTUNE, which keeps the order."


def _is_parallel(step: Step) -> bool:
    given = argument(step.call, 1, "num_parallel_calls")
    return (given is not None and not is_constant(given, 1)) or any(k.arg is None for k in step.call.keywords)
