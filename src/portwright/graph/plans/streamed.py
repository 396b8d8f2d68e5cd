"""What a step takes where weights stream from host memory through a device: on the device, and beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from portwright.graph.plans.memory import Memory, Moment, most_bytes

SLOTS = 3  # runconfig.streaming.slots, where nothing else is said
_GRADIENT_SLOTS = 2  # on the device
_GRADIENT_RING = 4  # layers' gradients on the host, on their way to the update
FORMULA = (
    "on the device: slots * the largest layer's weights in the dtype that it computes in + 2 * its gradients + all that is outside the "
    "layers + the layers' inputs, kept for recomputing + most over layers of what one makes and reads at once; beside it: the layers' "
    "weights and optimizer state, half-precision copies to send, and 4 * the largest layer's gradients"
)


@dataclass(frozen=True)
class Streamed:
    """Bytes of a streamed step, for the batch that was captured."""

    device_bytes: int
    host_bytes: int
    moments: tuple[Moment, ...]  # on the device, by which a batch of another size is judged
    layers: tuple[int, ...]  # numbers of the layers that are streamed; the rest lives on the device


def streamed_layers(paths: Sequence[str]) -> tuple[int, ...]:
    """Items of lists; of a model without lists, all of its layers."""
    items = tuple(i for i, path in enumerate(paths) if any(part.isdecimal() for part in path.split(".")))
    return (
        items
        or tuple(i for i, path in enumerate(paths) if path and path != "(model)")
        or tuple(range(len(paths)))
    )


def measure_streamed(memory: Memory, paths: Sequence[str], trains: bool, slots: int = SLOTS) -> Streamed:
    """Follows from what was measured of the resident step; `paths` are those of its layers."""
    chosen = tuple(i for i in streamed_layers(paths) if memory.layers[i].weights)
    rest = [i for i in range(len(memory.layers)) if i not in set(chosen)]
    layers = memory.layers
    sent = [_sent(memory, i) for i in chosen]
    gradients = [layers[i].gradients for i in chosen]
    on_device = min(slots, len(chosen)) * max(sent, default=0)
    on_device += min(_GRADIENT_SLOTS, len(chosen)) * max(gradients, default=0)
    on_device += sum(
        layers[i].weights + layers[i].weight_copies + layers[i].gradients + layers[i].optimizer for i in rest
    )
    kept = {
        i: (layers[i].entering if i in set(chosen) else layers[i].activations) for i in range(len(layers))
    }
    whole = sum(kept.values()) if trains else 0
    moments = tuple(
        Moment(
            work.scaled + memory.inputs + (whole - kept[i] if trains else 0),
            work.fixed + on_device,
        )
        for i, work in enumerate(memory.working)
    ) or (Moment(memory.inputs, on_device),)
    # What is sent as it is stored needs no copy.
    host = sum(layers[i].weights + layers[i].optimizer + layers[i].weight_copies for i in chosen)
    host += min(_GRADIENT_RING, len(chosen)) * max(gradients, default=0)
    return Streamed(most_bytes(moments, memory.batch_size, memory.batch_size), host, moments, chosen)


def _sent(memory: Memory, layer: int) -> int:
    """A layer's weights as the device gets them: in half precision where it computes in that."""
    return memory.layers[layer].weight_copies or memory.layers[layer].weights
