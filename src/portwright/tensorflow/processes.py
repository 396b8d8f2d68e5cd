"""Processes that train together: the chief and the workers of TF_CONFIG, each with a copy of the model and a share of the data.

Every process builds the same graph on a server of its own. Gradients are averaged over the processes as soon as they are computed, so that clipping, loss
scaling and any optimizer see those of the whole batch; only the chief writes files.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import backprop
from tensorflow.python.ops import collective_ops, gradients_util

from portwright.errors import ExitStatus, UserError
from portwright.tensorflow.arguments import BadValue
from portwright.tensorflow.cluster import TaskType
from portwright.tensorflow.peer_watch import answers, watching_peers

v1 = tf.compat.v1
_GROUP = 1
_PATIENCE_SECONDS = 5.0  # before a process says which others it waits for
_LINGER_SECONDS = 1.0  # before a process ends: another may still fetch the result of the last call
# Keys of collective ops; they match since every process makes the same ops in the same order.
_keys = itertools.count(1)
_servers: dict[str, Any] = {}  # TensorFlow cannot stop a server, so a process keeps the one it has


class Processes:
    """The processes that train together, as seen from this one."""

    def __init__(self, tasks: Sequence[tuple[str, int, str]], rank: int) -> None:
        self.tasks, self.rank, self.size = tuple(tasks), rank, len(tasks)
        self.job, self.index, self.address = self.tasks[rank]
        self._server = self._start_server()

    @property
    def target(self) -> str:
        return str(self._server.target)

    @property
    def device(self) -> str:
        return f"/job:{self.job}/replica:0/task:{self.index}"

    @property
    def peers(self) -> list[tuple[str, str]]:
        """Name and address of every other process."""
        others = [task for number, task in enumerate(self.tasks) if number != self.rank]
        return [(f"{job} {index}", address) for job, index, address in others]

    def session_config(self, given: Any) -> Any:
        """Adds to the session's options those that collective ops need."""
        config = v1.ConfigProto()
        if given is not None:
            config.CopyFrom(given)
        job, index, _ = self.tasks[0]
        config.experimental.collective_group_leader = f"/job:{job}/replica:0/task:{index}"
        del config.device_filters[:]
        config.device_filters.append(f"/job:{self.job}/task:{self.index}")
        return config

    def _start_server(self) -> Any:
        cluster: dict[str, list[str]] = {}
        for job, _, address in self.tasks:
            cluster.setdefault(job, []).append(address)
        key = f"{self.job} {self.index} {sorted(cluster.items())}"
        if key in _servers:
            return _servers[key]
        if _servers:
            raise UserError(
                "this process belongs to another cluster already.", "Start a process for each TF_CONFIG."
            )
        try:
            _servers[key] = tf.distribute.Server(
                cluster, self.job, self.index, protocol="grpc", config=self.session_config(None)
            )
        except tf.errors.OpError as error:
            raise UserError(
                f"{self.job} {self.index} cannot listen at {self.address}: {str(error.message).splitlines()[0][:300]}",
                "Is the port free, and the address one of this machine? TF_CONFIG names them; where srun or torchrun started the "
                "tasks, PORTWRIGHT_TF_PORT moves their ports.",
            ) from error
        atexit.register(time.sleep, _LINGER_SECONDS)
        return _servers[key]

    def wait_for_peers(
        self, note: Callable[[str], None], is_stopped: Callable[[], bool], seconds: float
    ) -> None:
        """Returns when every other process listens; says which ones it waits for."""
        start, is_told = time.monotonic(), False
        while missing := [f"{name} at {address}" for name, address in self.peers if not answers(address)]:
            waited = time.monotonic() - start
            if waited > seconds or is_stopped():
                error = UserError(
                    f"{', '.join(missing)} did not answer within {waited:.0f} s.",
                    "Start the same command in every process of TF_CONFIG's cluster.",
                )
                if is_stopped():  # the scheduler stopped the job before it began: it should start again
                    error.status = ExitStatus.REQUEUE
                raise error
            if waited > _PATIENCE_SECONDS and not is_told:
                is_told = True
                note(f"waiting for {', '.join(missing)}.")
            time.sleep(0.2)

    def hear_chief(self, text: str) -> str:
        """Returns the chief's `text` in every process; every process must call it, and all wait until the last one has."""
        own = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
        with tf.Graph().as_default(), v1.device(self.device):
            size_in, words_in = v1.placeholder(tf.int32, []), v1.placeholder(tf.int32, [None])
            size, words = self.sum(size_in), self.sum(words_in)
            with self._short_session() as session:
                length = int(session.run(size, {size_in: 0 if self.rank else len(own)}))
                heard = session.run(words, {words_in: np.zeros(length, np.int32) if self.rank else own})
        return str(heard.astype(np.uint8).tobytes().decode())

    def total(self, number: int) -> int:
        """The sum of all processes' numbers; every process must call it, and all wait until the last one has."""
        with tf.Graph().as_default(), v1.device(self.device):
            number_in = v1.placeholder(tf.int32, [])
            summed = self.sum(number_in)
            with self._short_session() as session:
                return int(session.run(summed, {number_in: number}))

    def meet(self) -> None:
        """Returns when every process has called it."""
        self.total(1)

    @contextlib.contextmanager
    def _short_session(self) -> Iterator[Any]:
        session = v1.Session(self.target, config=self.session_config(None))
        with self.watching(lambda: session), session:
            yield session

    def watching(self, find_session: Callable[[], Any]) -> contextlib.AbstractContextManager[None]:
        """Raises an error that names another process if that process dies while the block's session waits for it."""
        return watching_peers(self.peers, find_session)

    # -- averaging -----------------------------------------------------------------------------------------

    def sum(self, tensor: Any) -> Any:
        """The sum of all processes' values."""
        return self._reduce(tensor, "Add")

    def least(self, tensor: Any) -> Any:
        return self._reduce(tensor, "Min")

    def _reduce(self, tensor: Any, operation: str) -> Any:
        with v1.device(f"{self.device}/device:CPU:0"):
            return collective_ops.all_reduce(tensor, self.size, _GROUP, next(_keys), operation, "Id")

    def mean_all(self, gradients: Sequence[Any]) -> list[Any]:
        """The means over all processes, with one collective op for each dtype. None stays None."""
        dense: list[Any] = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
        means = list(dense)
        for dtype in sorted({g.dtype.name for g in dense if g is not None}):
            chosen = [i for i, g in enumerate(dense) if g is not None and g.dtype.name == dtype]
            flat = tf.concat([tf.reshape(dense[i], [-1]) for i in chosen], 0)
            summed = self.sum(flat) / tf.cast(self.size, dtype)
            parts = tf.split(summed, [tf.size(dense[i]) for i in chosen], num=len(chosen))
            for i, part in zip(chosen, parts, strict=True):
                means[i] = tf.reshape(part, tf.shape(dense[i]))
                means[i].set_shape(dense[i].shape)
        return means

    @contextlib.contextmanager
    def averaging(self) -> Iterator[None]:
        """In this block, TensorFlow's gradients with respect to variables are the means over all processes."""
        plain, of_tape = gradients_util._GradientsHelper, backprop.GradientTape.gradient

        def helper(ys: Any, xs: Any, *rest: Any, **named: Any) -> Any:
            found = plain(ys, xs, *rest, **named)
            listed = list(xs) if isinstance(xs, list | tuple) else [xs]
            return self.mean_all(found) if listed and all(map(_is_weight, listed)) else found

        def gradient(tape: Any, target: Any, sources: Any, *rest: Any, **named: Any) -> Any:
            found = of_tape(tape, target, sources, *rest, **named)
            listed = tf.nest.flatten(sources)
            if not listed or not all(map(_is_weight, listed)):
                return found
            return tf.nest.pack_sequence_as(sources, self.mean_all(tf.nest.flatten(found)))

        gradients_util._GradientsHelper, backprop.GradientTape.gradient = helper, gradient
        try:
            yield
        finally:
            gradients_util._GradientsHelper, backprop.GradientTape.gradient = plain, of_tape

    # -- the data ------------------------------------------------------------------------------------------

    @property
    def input_context(self) -> Any:
        return tf.distribute.InputContext(
            num_input_pipelines=self.size, input_pipeline_id=self.rank, num_replicas_in_sync=self.size
        )

    def next_batch(self, iterator: Any) -> Any:
        """The iterator's next batch; when the data of one process end, the op fails with the same error in all processes."""
        optional = iterator.get_next_as_optional()
        have = self.least(tf.cast(optional.has_value(), tf.int32))
        with tf.control_dependencies([v1.Assert(have > 0, [ENDED])]):
            return tf.nest.map_structure(tf.identity, optional.get_value(), expand_composites=True)


ENDED = "the data of one of the processes have ended"


def is_end_of_data(error: tf.errors.OpError) -> bool:
    """Whether the error is the one with which `next_batch` fails at the end of the data."""
    return isinstance(error, tf.errors.InvalidArgumentError) and ENDED in str(error.message)


def find_processes(config: Any) -> Processes | None:
    """The processes that TF_CONFIG names for training; None where this one is alone."""
    if config.num_worker_replicas <= 1 or config.task_type == TaskType.EVALUATOR:
        return None
    jobs = config.cluster_spec.as_dict()
    if TaskType.PS in jobs:
        raise BadValue(
            "TF_CONFIG names parameter servers ('ps').",
            "Leave them out: every process keeps the variables, and gradients are averaged among chief and workers.",
        )
    if config.tf_random_seed is None:
        raise BadValue(
            "several processes train together, and tf_random_seed is None.",
            "Give RunConfig a seed, so that all of them build the same model and order of data.",
        )
    chief = TaskType.MASTER if TaskType.MASTER in jobs else TaskType.CHIEF
    tasks = [
        (job, index, address)
        for job in (chief, TaskType.WORKER)
        for index, address in enumerate(jobs.get(job, []))
    ]
    own = (config.task_type, config.task_id)
    return Processes(tasks, next(i for i, (job, index, _) in enumerate(tasks) if (job, index) == own))


def _is_weight(value: Any) -> bool:
    return isinstance(value, tf.Variable | v1.Variable) or (
        tf.is_tensor(value) and value.op.type in ("VarHandleOp", "VariableV2", "ReadVariableOp")
    )
