"""One call of a compiled step: all of its micro-batches, the updates between them, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from portwright.emulate.poptorch._batching import Batching
from portwright.emulate.poptorch._device import Image, RandomState
from portwright.emulate.poptorch._errors import refuse
from portwright.emulate.poptorch._executable import LOSS_SCALE, WRITTEN, Executable, anchors_of
from portwright.emulate.poptorch._floating_point import check_given, check_updated, exceptions, is_checked
from portwright.emulate.poptorch._inputs import to_device
from portwright.emulate.poptorch._naming import GRADIENT, UPDATED
from portwright.emulate.poptorch._outputs import Collector
from portwright.emulate.poptorch._reduction import Reduction
from portwright.emulate.poptorch._rounding import rounding
from portwright.emulate.poptorch._update import UpdateRule


class Run:
    """One call of an executable: all device iterations, accumulated micro-batches and replicas."""

    def __init__(
        self, executable: Executable, image: Image, options: Any, rule: UpdateRule | None, random: RandomState
    ) -> None:
        self._executable = executable
        self._image = image
        self._rule = rule
        self._random = random
        self._batching = Batching.of(options)
        self._is_stochastic = bool(options._Popart.options.get("enableStochasticRounding", False))
        self._is_checked = is_checked(options)
        self._reduction = Reduction(options, rule.accum_type) if rule is not None else None
        replicas, accumulation = self._batching.replicas, self._batching.accumulation
        num_outputs = executable.structure.num_tensors if executable.structure is not None else 0
        mode, period = options.output_mode, options.output_return_period
        self._outputs = [Collector(mode, period, replicas, accumulation) for _ in range(num_outputs)]
        self._written = {
            int(name.removeprefix(WRITTEN)): place
            for name, place in executable.results.items()
            if name.startswith(WRITTEN)
        }
        self._host_inputs: list[torch.Tensor] = []
        self._anchors = anchors_of(options)
        self._kept = {
            short: Collector(
                anchor.mode, anchor.period, replicas, 1 if anchor.name.startswith(UPDATED) else accumulation
            )
            for short, anchor in self._anchors.items()
        }

    def __call__(self, flat: Sequence[torch.Tensor]) -> tuple[Any, dict[str, torch.Tensor]]:
        """Gives the results in the model's own structure, and the anchored tensors by their short names."""
        inputs = to_device(flat)
        for number in self._written:
            inputs[number] = inputs[number].clone()  # what one replica writes is not what the next one reads
        if self._is_checked:
            check_given(inputs)
        self._host_inputs = [tensor.detach() for tensor in flat]
        with self._random.active(), torch.no_grad(), rounding(stochastic=self._is_stochastic):
            for iteration in range(self._batching.device_iterations):
                self._iterate(iteration, inputs)
        structure = self._executable.structure
        filled = None if structure is None else structure.filled([one.result() for one in self._outputs])
        return filled, {short: collector.result() for short, collector in self._kept.items()}

    def _iterate(self, iteration: int, inputs: Sequence[torch.Tensor]) -> None:
        batching = self._batching
        observe = None
        if self._rule is not None and self._executable.scales_loss:
            scale = torch.tensor(self._rule.loss_scale)
            for replica in range(batching.replicas):
                self._image.weights(replica)[LOSS_SCALE] = scale
        if self._rule is not None and self._rule.scaling is not None:
            observe = self._rule.scaling.observe
        for accumulated in range(batching.accumulation):
            run = iteration * batching.accumulation + accumulated
            for replica in range(batching.replicas):
                weights = self._image.weights(replica)
                micro = [batching.micro_batch(tensor, run, replica) for tensor in inputs]
                with exceptions(self._is_checked):
                    results, gradients = self._executable.program.run(weights, micro, observe)
                for number, place in self._written.items():
                    batching.micro_batch(self._host_inputs[number], run, replica).copy_(results[place])
                self._keep(run, replica, results, gradients, weights)
                if self._reduction is not None:
                    self._reduction.add(replica, gradients)
        if self._rule is not None and self._reduction is not None:
            reduced = self._reduction.result()
            self._rule.apply(self._image.parameters, reduced)
            if self._is_checked:
                check_updated(self._image.parameters, reduced)
            self._keep_updated(iteration)

    def _keep(
        self,
        run: int,
        replica: int,
        results: Sequence[torch.Tensor],
        gradients: Mapping[str, torch.Tensor],
        weights: Mapping[str, torch.Tensor],
    ) -> None:
        for collector, value in zip(self._outputs, results, strict=False):
            collector.add(run, replica, value)
        if not self._kept:
            return
        places = self._executable.results
        for short, anchor in self._anchors.items():
            name = anchor.name
            if name.startswith(GRADIENT):
                self._kept[short].add(run, replica, _gradient(gradients, name.removeprefix(GRADIENT)))
            elif self._rule is not None and name in (numbers := self._rule.numbers()):
                self._kept[short].add(run, replica, numbers[name])
            elif not name.startswith(UPDATED):
                self._kept[short].add(
                    run, replica, results[places[name]] if name in places else weights[name]
                )

    def _keep_updated(self, iteration: int) -> None:
        for short, anchor in self._anchors.items():
            if anchor.name.startswith(UPDATED):
                value = self._image.parameters[anchor.name.removeprefix(UPDATED)]
                for replica in range(self._batching.replicas):
                    self._kept[short].add(iteration, replica, value)


def _gradient(gradients: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    if name not in gradients:
        raise refuse(f"anchorTensor() names {GRADIENT}{name}, but the loss does not depend on {name}.")
    return gradients[name]
