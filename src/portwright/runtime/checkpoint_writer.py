"""Private copies of a state in host memory, and their writing beside the training; as many checkpoints are kept as were asked for."""

from __future__ import annotations

import json
import threading
import traceback
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from portwright.errors import PortwrightError, UserError
from portwright.job.atomic import atomic_directory, remove_directory
from portwright.runtime.checkpoint_files import storable, write_tensors, write_text
from portwright.runtime.checkpoint_folder import (
    FILE_OF_KIND,
    FORMAT_VERSION,
    MANIFEST_FILE,
    STATE_FILE,
    Manifest,
    list_checkpoints,
    newest_first,
    place_of,
    reason_of,
    render_manifest,
)
from portwright.target import Shard

_ALIGN_BYTES = 64
# Pinned memory comes in powers of two: one large block could be half empty, many of this size cannot.
_BLOCK_BYTES = 256 << 20
_NUM_KEPT_SLOTS = 2

_Layout = list[tuple[torch.Size, torch.dtype]]


class HostSnapshot:
    """Copies named tensors to host memory that is used again once nobody holds the copies.

    Fresh memory costs a page fault every 4 KiB, more than the copy itself. A snapshot's memory is free again
    when the last of its shards is dropped, which a writer does by writing them; until then the next snapshot
    uses other memory, so a shard never changes under its receiver, however long it is kept. Two sets of buffers
    are kept, the second only if it was needed.
    """

    def __init__(self, pins: bool = True) -> None:
        self._pins = pins  # where the copies come from a GPU
        self._slots: list[_Slot] = []

    def take(self, named: Iterable[tuple[str, torch.Tensor]]) -> list[Shard]:
        """Copies all tensors, from whatever device, and waits for the copies."""
        named = list(named)
        sources = [source for _, source in named]
        pinned = self._pins and any(source.is_cuda for source in sources)
        layout = [(source.shape, source.dtype) for source in sources]
        # Buffers born in inference mode could not be filled again outside it.
        with torch.inference_mode(False), torch.no_grad():
            copies = self._free_slot(layout, pinned).fill(sources)
        return [Shard(name, copy) for (name, _), copy in zip(named, copies, strict=True)]

    def _free_slot(self, layout: _Layout, pinned: bool) -> _Slot:
        free = [slot for slot in self._slots if not slot.is_held()]
        for slot in free:
            if slot.layout == layout and slot.pinned == pinned:
                return slot
        stale = free[0] if free else self._slots[0] if len(self._slots) == _NUM_KEPT_SLOTS else None
        if stale is not None:  # what still holds its memory keeps it alive, as long as it needs it
            self._slots.remove(stale)
        del free, stale
        self._slots.append(_Slot(layout, pinned))
        return self._slots[-1]


class _Slot:
    """Memory for one snapshot of a given layout."""

    def __init__(self, layout: _Layout, pinned: bool) -> None:
        self.layout = layout
        self.pinned = pinned
        self._places: list[tuple[torch.Size, tuple[int, ...], torch.dtype, int, int]] = []
        block_sizes: list[int] = []
        for shape, dtype in layout:
            num_bytes = -(-shape.numel() * dtype.itemsize // _ALIGN_BYTES) * _ALIGN_BYTES
            if not block_sizes or block_sizes[-1] + num_bytes > _BLOCK_BYTES:
                block_sizes.append(0)
            stride = torch.empty(shape, device="meta").stride()
            self._places.append((shape, stride, dtype, len(block_sizes) - 1, block_sizes[-1]))
            block_sizes[-1] += num_bytes
        self._blocks = [
            torch.empty(max(size, _ALIGN_BYTES), dtype=torch.uint8, pin_memory=pinned) for size in block_sizes
        ]
        self._targets = self._views([block.numpy() for block in self._blocks])
        self._held: list[weakref.ref[Any]] = []

    def is_held(self) -> bool:
        return any(holder() is not None for holder in self._held)

    def fill(self, sources: list[torch.Tensor]) -> list[torch.Tensor]:
        if sources:
            # Only CUDA's copies are waited for below; those of other devices must have ended here.
            torch._foreach_copy_(self._targets, sources, non_blocking=self.pinned)
        for device in {source.device for source in sources if source.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
        # Each storage made from a holder keeps it alive, so a dead holder proves that no tensor, view or array
        # made of this snapshot is left.
        holders = [block.numpy() for block in self._blocks]
        self._held = [weakref.ref(holder) for holder in holders]
        return self._views(holders)

    def _views(self, holders: list[Any]) -> list[torch.Tensor]:
        needed = {(block, dtype) for _, _, dtype, block, _ in self._places}
        bases = {(block, dtype): torch.frombuffer(holders[block], dtype=dtype) for block, dtype in needed}
        return [
            bases[block, dtype].as_strided(shape, stride, start // dtype.itemsize)
            for shape, stride, dtype, block, start in self._places
        ]


_Files = dict[str, dict[str, torch.Tensor]]


class CheckpointWriter:
    """Saves checkpoints in a folder from a thread of its own, one at a time.

    What goes wrong there is raised by the next `save` or `wait`, once. `max_checkpoints` None or 0 keeps all; older
    ones go only after the new one has its place.
    """

    def __init__(self, directory: Path, max_checkpoints: int | None, on_note: Callable[[str], None]) -> None:
        self._directory = Path(directory)
        self._max_checkpoints = max_checkpoints
        self._on_note = on_note
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def save(self, step: int, shards: Iterable[Shard], counters: Mapping[str, Any]) -> None:
        """Takes the shards now and writes them later; waits for the write before, if that is still going on.

        The shards and their memory belong to the writer until it drops them. A checkpoint of the same step is
        replaced.
        """
        _check_keys(counters)
        self.wait()
        files, notes = _sort_into_files(shards)
        state = {"format": FORMAT_VERSION, "step": step, "counters": counters, "stored": notes}
        text = json.dumps(state)  # now, since counters may change as training goes on
        # Not a daemon: a process that ends of itself finishes the write first.
        self._thread = threading.Thread(
            target=self._run, args=(step, files, text), name=f"checkpoint_{step}", daemon=False
        )
        self._thread.start()

    def wait(self) -> None:
        """Returns when nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.wait()
        except PortwrightError as failure:
            if error is None:
                raise
            self._on_note(str(failure))  # the error on its way out says why the run ends

    def _run(self, step: int, files: _Files, state_text: str) -> None:
        try:
            self._write(step, files, state_text)
            self._prune(step)
        except PortwrightError as error:
            _forget_locals(error)
            self._failure = UserError(
                f"Checkpoint of step {step} was not saved. {error.message}",
                f"{error.cure} Older checkpoints are kept, and the next run continues from the last good one.",
            )
            self._failure.__cause__ = error
        except BaseException as error:  # raised again in the thread that can do something about it
            _forget_locals(error)
            self._failure = error
        finally:
            files.clear()

    def _write(self, step: int, files: _Files, state_text: str) -> None:
        with atomic_directory(self._directory / f"checkpoint_{step}") as folder:
            # Each file's tensors go when it is written, so that their memory can be used again.
            entries = {name: write_tensors(folder / name, files.pop(name)) for name in list(files)}
            entries[STATE_FILE] = write_text(folder / STATE_FILE, state_text)
            sequence = 1 + max((found.sequence for found in list_checkpoints(self._directory)), default=0)
            manifest = Manifest(step, sequence, entries)
            write_text(folder / MANIFEST_FILE, render_manifest(manifest))

    def _prune(self, step: int) -> None:
        """Removes what is too much, the checkpoints written longest ago first.

        Not those of the lowest steps: a run that starts again from an older step would lose what it just wrote.
        """
        complete = [found for found in newest_first(self._directory) if found.complete]
        if not any(found.step == step for found in complete):
            raise UserError(
                f"{self._directory / f'checkpoint_{step}'} is not there any more.",
                "Something else changes this folder: let one run at a time use it.",
            )
        for found in complete[self._max_checkpoints :] if self._max_checkpoints else ():
            try:
                remove_directory(found.path)
            except OSError as error:
                self._on_note(f"Cannot remove the old checkpoint {found.path}: {reason_of(error)}.")


def _sort_into_files(shards: Iterable[Shard]) -> tuple[_Files, dict[str, dict[str, dict[str, str]]]]:
    """The tensors of each file, and notes on those that are stored in another form or under another name."""
    files: _Files = {name: {} for name in FILE_OF_KIND.values()}
    notes: dict[str, dict[str, dict[str, str]]] = {}
    for shard in shards:
        file_name, name = place_of(shard.name)
        key, tensor, note = storable(name, shard.tensor)
        tensors = files.setdefault(file_name, {})
        if key in tensors:
            raise ValueError(f"two shards are named '{shard.name}'")
        tensors[key] = tensor if tensor.device.type == "cpu" else tensor.cpu()
        if note:
            notes.setdefault(file_name, {})[key] = note
    return files, notes


def _forget_locals(error: BaseException | None) -> None:
    """Keeps an error that is raised later from keeping the tensors alive."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _check_keys(value: object, path: str = "counters") -> None:
    """JSON would turn other keys into text without a word, and the state would not come back as it was."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{path} has the key {key!r}; keys must be text")
            _check_keys(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_keys(item, path)
