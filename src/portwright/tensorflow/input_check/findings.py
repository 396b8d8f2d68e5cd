"""The checks of a pipeline: one function for each kind of fault; its docstring says why it is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from portwright.tensorflow.input_check.stages import Stage
from portwright.watching.place import Place

Severity = Literal["error", "warning", "advice"]
BATCHES = ("batch", "padded_batch", "map_and_batch")
SHUFFLES = ("shuffle", "shuffle_and_repeat")
REPEATS = ("repeat", "shuffle_and_repeat")


@dataclass(frozen=True)
class InputFinding:
    """A stage that is missing, in the wrong place or lacks an option."""

    name: str
    severity: Severity  # error: wrong data or no static shape; warning: slower or weaker than need be; advice: worth a try
    place: Place | None
    message: str
    cure: str

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "severity": self.severity,
            "path": self.place.file if self.place else None,
            "line": self.place.line if self.place else None,
            "message": self.message,
            "cure": self.cure,
        }


@dataclass(frozen=True)
class Pipeline:
    """The stages of one dataset, and how it is used."""

    stages: tuple[Stage, ...]
    is_training: bool
    cardinality: int | None  # samples before the batches, where it is known and finite
    num_workers: int = 1

    def find(self, *kinds: str) -> list[int]:
        return [number for number, stage in enumerate(self.stages) if stage.kind in kinds]

    def first(self, *kinds: str) -> int | None:
        return next(iter(self.find(*kinds)), None)

    @property
    def first_sample(self) -> int:
        """The index of the last stage that reads files, or of the source; later stages handle samples, not file names."""
        reading = [number for number, stage in enumerate(self.stages) if stage.reads_files]
        return reading[-1] if reading else 0

    def sample_shuffles(self) -> list[int]:
        return [number for number in self.find(*SHUFFLES) if number > self.first_sample]

    @property
    def end(self) -> Place | None:
        return self.stages[-1].place


Check = Callable[[Pipeline], Iterator[InputFinding]]


def look(pipeline: Pipeline) -> list[InputFinding]:
    """All findings: first of the pipeline itself, then of the pipelines that it merges."""
    found = [finding for check in _CHECKS for finding in check(pipeline)]
    for stage in pipeline.stages:
        for branch in stage.branches:
            side = Pipeline(branch, pipeline.is_training, None, pipeline.num_workers)
            found += [finding for check in _ANYWHERE for finding in check(side)]
    seen: dict[tuple[Any, ...], InputFinding] = {}
    for finding in found:
        seen.setdefault((finding.name, finding.place), finding)
    ranks = {"error": 0, "warning": 1, "advice": 2}
    return sorted(seen.values(), key=lambda f: (ranks[f.severity], f.place.line if f.place else 0))


# -- batches -------------------------------------------------------------------------------------------------


def missing_batch(pipeline: Pipeline) -> Iterator[InputFinding]:
    """A step takes a batch; without one the model would see single samples."""
    if pipeline.first(*BATCHES, "group") is None:
        yield InputFinding(
            "missing-batch", "warning", pipeline.end, "the dataset is not batched.",
            "Add .batch(batch_size, drop_remainder=True), unless its elements are batches already.",
        )  # fmt: skip


def kept_remainder(pipeline: Pipeline) -> Iterator[InputFinding]:
    """A shorter last batch makes the batch size unknown, but a compiled step has one fixed shape."""
    for number in pipeline.find(*BATCHES):
        stage = pipeline.stages[number]
        after = [later.kind for later in pipeline.stages[number + 1 :]]
        if not stage.drops_remainder and "unbatch" not in after:
            call = "padded_batch" if stage.kind == "padded_batch" else "batch"
            yield InputFinding(
                "kept-remainder", "error", stage.place,
                f"{call}() keeps a shorter last batch, so the batch size is unknown.",
                f"Say .{call}(..., drop_remainder=True).",
            )  # fmt: skip


# -- order ---------------------------------------------------------------------------------------------------


def late_shard(pipeline: Pipeline) -> Iterator[InputFinding]:
    """Workers that shuffle first and take their share afterwards take shares of different orders: samples are seen twice or never."""
    for number in pipeline.find("shard"):
        stage = pipeline.stages[number]
        before = pipeline.stages[:number]
        shuffled = [s for s in before if s.kind in SHUFFLES and not (s.number("seed") or s.number("seed2"))]
        if shuffled:
            yield InputFinding(
                "shard-after-shuffle", "error", stage.place,
                f"shard() comes after the shuffle of line {shuffled[-1].place.line if shuffled[-1].place else '?'}, which has no seed: "
                "each worker takes its share of another order, so samples are lost or seen twice.",
                "Put .shard(num_shards, index) first, before anything is read or shuffled.",
            )  # fmt: skip
        elif any(s.kind in BATCHES for s in before):
            yield InputFinding(
                "shard-after-batch", "warning", stage.place,
                "shard() comes after batch(): every worker makes all batches and throws most away.",
                "Put .shard(num_shards, index) first.",
            )  # fmt: skip
        elif number > pipeline.first_sample and any(s.reads_files for s in before):
            yield InputFinding(
                "shard-after-reading", "warning", stage.place,
                "shard() comes after the files are read: every worker reads all of them.",
                "Shard the list of files, before interleave() or the reader; with fewer files than workers leave it here.",
            )  # fmt: skip


def late_shuffle(pipeline: Pipeline) -> Iterator[InputFinding]:
    """Shuffling after batching keeps the same samples together in every epoch."""
    batch = pipeline.first(*BATCHES)
    for number in pipeline.sample_shuffles():
        if (
            batch is not None
            and number > batch
            and "unbatch" not in [s.kind for s in pipeline.stages[batch:number]]
        ):
            yield InputFinding(
                "shuffle-after-batch", "error", pipeline.stages[number].place,
                "shuffle() comes after batch(): it moves whole batches, whose samples stay together.",
                "Put .shuffle(buffer_size) before .batch(...).",
            )  # fmt: skip


def early_repeat(pipeline: Pipeline) -> Iterator[InputFinding]:
    """A shuffle buffer that is filled from a repeated dataset holds samples of two epochs."""
    repeat = pipeline.first("repeat")
    for number in pipeline.sample_shuffles():
        if repeat is not None and repeat < number:
            yield InputFinding(
                "repeat-before-shuffle", "warning", pipeline.stages[repeat].place,
                "repeat() comes before shuffle(): epochs run into each other, and a sample may come twice before another comes once.",
                "Put .shuffle(buffer_size) before .repeat().",
            )  # fmt: skip


def misplaced_cache(pipeline: Pipeline) -> Iterator[InputFinding]:
    """A cache stores the first epoch: one order, one random draw, or, after repeat, data without end."""
    for number in pipeline.find("cache"):
        stage, before = pipeline.stages[number], pipeline.stages[:number]
        if any(s.kind in REPEATS for s in before):
            yield InputFinding(
                "cache-after-repeat", "error", stage.place,
                "cache() comes after repeat(): it is never complete, so it grows without end and is never read.",
                "Put .cache() before .repeat().",
            )  # fmt: skip
        elif any(s.kind in SHUFFLES for i, s in enumerate(before) if i > pipeline.first_sample):
            yield InputFinding(
                "cache-after-shuffle", "error", stage.place,
                "cache() comes after shuffle(): every epoch has the order of the first one.",
                "Put .cache() before .shuffle(...).",
            )  # fmt: skip
        elif any(s.draws for s in before):
            yield InputFinding(
                "cache-after-draw", "error", stage.place,
                "cache() comes after a map() that draws random numbers: every epoch has the draws of the first one.",
                "Put .cache() before the random map().",
            )  # fmt: skip


def prefetch_at_the_end(pipeline: Pipeline) -> Iterator[InputFinding]:
    """Prefetching lets the next batch be made while the step runs; only the last stage does that for the whole pipeline."""
    prefetches = pipeline.find("prefetch")
    last = len(pipeline.stages) - 1
    while last > 0 and pipeline.stages[last].kind in ("options", "take", "skip"):
        last -= 1
    if not prefetches:
        yield InputFinding(
            "missing-prefetch", "warning", pipeline.end,
            "nothing is prefetched: each step waits until its batch is made.",
            "End with .prefetch(tf.data.AUTOTUNE).",
        )  # fmt: skip
    elif prefetches[-1] < last:
        after = pipeline.stages[prefetches[-1] + 1]
        yield InputFinding(
            "early-prefetch", "warning", pipeline.stages[prefetches[-1]].place,
            f"prefetch() is not the last stage: what comes after it ({after.kind}) is done while the step waits.",
            "Move .prefetch(tf.data.AUTOTUNE) to the end.",
        )  # fmt: skip


# -- options -------------------------------------------------------------------------------------------------


def training_order(pipeline: Pipeline) -> Iterator[InputFinding]:
    """Training needs another order in each epoch, and data until the last step."""
    if not pipeline.is_training:
        return
    shuffles = pipeline.sample_shuffles()
    if not shuffles:
        yield InputFinding(
            "missing-shuffle", "warning", pipeline.end, "training data are not shuffled.",
            "Add .shuffle(buffer_size) before .repeat() and .batch(), unless their order is random already.",
        )  # fmt: skip
    for number in shuffles:
        stage = pipeline.stages[number]
        size = stage.number("buffer_size")
        if stage.values.get("reshuffle_each_iteration") is False and pipeline.first(*REPEATS) is not None:
            yield InputFinding(
                "same-shuffle", "warning", stage.place, "every epoch is shuffled the same way.",
                "Leave reshuffle_each_iteration=False out.",
            )  # fmt: skip
        if size is not None and size > 0 and (size == 1 or (pipeline.cardinality or 0) > 4 * size):
            whole = f" of {pipeline.cardinality}" if pipeline.cardinality else ""
            yield InputFinding(
                "small-shuffle", "warning", stage.place,
                f"the shuffle buffer holds {size} samples{whole}: samples stay near their neighbours.",
                "Make buffer_size as large as the data, or as memory allows; shuffle the files too.",
            )  # fmt: skip
    if pipeline.first(*REPEATS) is None and pipeline.stages[0].kind != "random":
        yield InputFinding(
            "missing-repeat", "warning", pipeline.end,
            "the training data are not repeated: training ends with them, whatever max_steps says.",
            "Add .repeat() after .shuffle(...).",
        )  # fmt: skip


def sharing(pipeline: Pipeline) -> Iterator[InputFinding]:
    """If every worker reads all data, each sample is trained on several times in an epoch."""
    shards = [pipeline.stages[number] for number in pipeline.find("shard")]
    if pipeline.num_workers > 1 and pipeline.is_training and not shards:
        yield InputFinding(
            "missing-shard", "error", pipeline.stages[0].place,
            f"{pipeline.num_workers} workers read the same data.",
            "Add .shard(input_context.num_input_pipelines, input_context.input_pipeline_id) first.",
        )  # fmt: skip
    for stage in shards:
        count = stage.number("num_shards")
        if count is not None and pipeline.num_workers > 1 and count != pipeline.num_workers:
            yield InputFinding(
                "other-shards", "error", stage.place,
                f"the data are cut in {count} shares for {pipeline.num_workers} workers.",
                "Take the number from input_context.num_input_pipelines.",
            )  # fmt: skip


def reading(pipeline: Pipeline) -> Iterator[InputFinding]:
    """Reads from a network disk are slow to start; reading several files at once hides that."""
    for stage in pipeline.stages:
        if stage.kind == "flat_map" and stage.reads_files:
            yield InputFinding(
                "files-one-by-one", "warning", stage.place, "files are read one after the other.",
                "Read several at once: files.interleave(READER, num_parallel_calls=tf.data.AUTOTUNE), or num_parallel_reads of the reader.",
            )  # fmt: skip
        elif stage.kind == "interleave" and stage.op == "InterleaveDataset":
            yield InputFinding(
                "interleave-one-by-one", "warning", stage.place, "interleave() reads one file at a time.",
                "Say num_parallel_calls=tf.data.AUTOTUNE.",
            )  # fmt: skip


def mapping(pipeline: Pipeline) -> Iterator[InputFinding]:
    """A map on one thread is the usual bottleneck; a map over batches pays its cost of a call once for each batch."""
    batch = pipeline.first(*BATCHES)
    told = False
    for number in pipeline.find("map"):
        stage = pipeline.stages[number]
        if stage.parallel_calls is None and not stage.calls_python:
            yield InputFinding(
                "map-one-by-one", "warning", stage.place, "map() works on one element at a time.",
                "Say num_parallel_calls=tf.data.AUTOTUNE.",
            )  # fmt: skip
        if batch is not None and number < batch and number > pipeline.first_sample and not told:
            told = True
            yield InputFinding(
                "map-before-batch", "advice", stage.place,
                "map() is called for every sample.",
                "If it can work on a batch at once (tf.io.parse_example can), put it after .batch(...).",
            )  # fmt: skip


def python_code(pipeline: Pipeline) -> Iterator[InputFinding]:
    """Python in a pipeline runs under one lock, cannot be sent to workers, and its position cannot be saved."""
    for stage in pipeline.stages:
        if stage.calls_python:
            what = (
                "from_generator()" if stage.kind in ("generator", "flat_map") else "map() that calls Python"
            )
            yield InputFinding(
                "python-in-pipeline", "warning", stage.place,
                f"{what}: one thread at a time, and a resumed run must draw and drop what it has seen.",
                "Write it in TensorFlow ops, or write the data to TFRecord files once.",
            )  # fmt: skip


def undetermined_order(pipeline: Pipeline) -> Iterator[InputFinding]:
    """With a non-deterministic order, a resumed run does not get the data of an uninterrupted one."""
    for stage in pipeline.stages:
        if stage.values.get("deterministic") in ("false", False) or stage.values.get("sloppy") is True:
            yield InputFinding(
                "order-by-chance", "advice", stage.place,
                "elements come in the order in which they get ready, another one in each run.",
                "Leave deterministic=False out where runs are to be repeated exactly.",
            )  # fmt: skip


_CHECKS: Sequence[Check] = (
    missing_batch,
    kept_remainder,
    late_shard,
    late_shuffle,
    early_repeat,
    misplaced_cache,
    prefetch_at_the_end,
    training_order,
    sharing,
    reading,
    mapping,
    python_code,
    undetermined_order,
)
# Those that also hold for a pipeline that joins another.
_ANYWHERE: Sequence[Check] = (misplaced_cache, reading, python_code, undetermined_order)
