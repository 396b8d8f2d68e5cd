"""One small model in both frameworks, trained by the same `optimizer` section."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import torch

from portwright.job.optimizer import optimizer_schema
from portwright.job.problems import check_model, raise_problems
from portwright.runtime.optimizers import clip_gradients, make_optimizer
from portwright.runtime.precision import make_loss_scaler
from portwright.tensorflow.optimizers import make_train_op

v1 = tf.compat.v1

VOCABULARY, WIDTH, CLASSES = 7, 4, 3


def first_weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "embedding/table": rng.normal(size=(VOCABULARY, WIDTH)).astype(np.float32),
        "dense/kernel": rng.normal(size=(WIDTH, CLASSES)).astype(np.float32),
        "dense/bias": rng.normal(size=(CLASSES,)).astype(np.float32),
    }


def batches(num: int, batch_size: int = 5) -> list[tuple[np.ndarray, np.ndarray]]:
    """Ids with repetitions, so that sparse gradients have duplicates, and targets."""
    rng = np.random.default_rng(1)
    return [
        (
            rng.integers(0, VOCABULARY - 2, size=batch_size).astype(np.int32),
            rng.normal(size=(batch_size, CLASSES)).astype(np.float32),
        )
        for _ in range(num)
    ]


class TFTwin:
    """The model's graph and a session on it."""

    def __init__(
        self, params: dict[str, Any], weights: dict[str, np.ndarray] | None = None, **options: Any
    ) -> None:
        weights = first_weights() if weights is None else weights
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.step = v1.train.get_or_create_global_step()
            self.ids = v1.placeholder(tf.int32, [None])
            self.targets = v1.placeholder(tf.float32, [None, CLASSES])
            self.loss_factor = v1.placeholder_with_default(tf.constant(1.0), [])
            held = {
                name: v1.get_variable(
                    name, initializer=tf.constant(value), use_resource=options.get("use_resource")
                )
                for name, value in weights.items()
            }
            options.pop("use_resource", None)
            rows = tf.gather(held["embedding/table"], self.ids)
            output = tf.matmul(rows, held["dense/kernel"]) + held["dense/bias"]
            self.loss = tf.reduce_mean(tf.square(output - self.targets)) * self.loss_factor
            self.train_op = make_train_op(self.loss, params, **options)
            self.weights = held
            self.session = v1.Session(graph=self.graph)
            self.session.run(v1.global_variables_initializer())

    def train(self, data: list[tuple[np.ndarray, np.ndarray]], factors: list[float] | None = None) -> None:
        for index, (ids, targets) in enumerate(data):
            feed = {self.ids: ids, self.targets: targets}
            if factors is not None:
                feed[self.loss_factor] = factors[index]
            self.session.run(self.train_op, feed)

    def values(self) -> dict[str, np.ndarray]:
        return dict(self.session.run(self.weights))

    def read(self, name: str) -> Any:
        with self.graph.as_default():
            found = [variable for variable in v1.global_variables() if variable.op.name == name]
        assert found, [variable.op.name for variable in self.graph.get_collection("variables")]
        return self.session.run(found[0])

    def names(self) -> set[str]:
        return {variable.op.name for variable in self.graph.get_collection("variables")}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        weights = first_weights()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.dense = torch.nn.Linear(WIDTH, CLASSES)
        with torch.no_grad():
            self.embedding.weight.copy_(torch.from_numpy(weights["embedding/table"]))
            self.dense.weight.copy_(torch.from_numpy(weights["dense/kernel"]).T)
            self.dense.bias.copy_(torch.from_numpy(weights["dense/bias"]))

    def values(self) -> dict[str, np.ndarray]:
        return {
            "embedding/table": self.embedding.weight.detach().numpy().copy(),
            "dense/kernel": self.dense.weight.detach().numpy().T.copy(),
            "dense/bias": self.dense.bias.detach().numpy().copy(),
        }


def train_torch(
    params: dict[str, Any], data: list[tuple[np.ndarray, np.ndarray]], factors: list[float] | None = None
) -> tuple[dict[str, np.ndarray], Any]:
    """The PyTorch side's own update, batch for batch as its session makes it; gives the weights and the scaler."""
    spec, problems = check_model(optimizer_schema(params.get("optimizer_type")), params, ("optimizer",))
    raise_problems(problems)
    assert spec is not None
    model = Model()
    optimizer = make_optimizer(model, spec)
    scaler = make_loss_scaler(spec, "cpu")
    num = spec.grad_accum_steps
    for step in range(len(data) // num):
        for group in optimizer.param_groups:
            group["lr"] = spec.schedule(step)
        for index in range(step * num, step * num + num):
            ids, targets = data[index]
            output = model.dense(model.embedding(torch.from_numpy(ids)))
            loss = (output - torch.from_numpy(targets)).square().mean() / num
            loss = loss * (1.0 if factors is None else factors[index])
            (loss if scaler is None else scaler.scale(loss)).backward()
        if scaler is not None:
            scaler.unscale_(optimizer)
        clip_gradients(model.parameters(), spec)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
    return model.values(), scaler
