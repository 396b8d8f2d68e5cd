"""sambaflow.samba.sambaloader: a torch loader whose batches come as named SambaTensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor

from portwright.emulate.sambaflow._refusal import SambaFlowError
from portwright.emulate.sambaflow.samba.sambatensor import from_torch_tensor


class SambaLoader:
    """`names` are those of a batch's tensors, in order; `function_hook` may change a batch first."""

    def __init__(
        self,
        dataloader: Iterable[Any],
        names: Sequence[str],
        function_hook: Callable[[Any], Any] | None = None,
        return_original_batch: bool = False,
    ) -> None:
        self.dataloader, self.names = dataloader, list(names)
        self._hook, self._returns_original = function_hook, return_original_batch

    def __len__(self) -> int:
        return len(self.dataloader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        for batch in self.dataloader:
            changed = batch if self._hook is None else self._hook(batch)
            tensors = [changed] if isinstance(changed, Tensor) else list(changed)
            if len(tensors) != len(self.names):
                raise SambaFlowError(
                    f"a batch has {len(tensors)} tensor(s) for the names {', '.join(self.names)}.",
                    "Name each tensor of a batch.",
                )
            named = [
                from_torch_tensor(tensor, name=name, batch_dim=0)
                for name, tensor in zip(self.names, tensors, strict=True)
            ]
            yield (named, batch) if self._returns_original else named
