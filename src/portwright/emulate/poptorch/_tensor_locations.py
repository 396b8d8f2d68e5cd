"""Where tensors are kept (names as in `poptorch.options`): what fits on an IPU depends on it, results do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from portwright.emulate.poptorch import _options_impl
from portwright.emulate.poptorch._refused import accepted

if TYPE_CHECKING:
    from portwright.emulate import poptorch

_TILES = (
    "which tiles load and store a tensor changes speed on hardware; the number of I/O tiles counts as memory."
)


class TensorLocationSettings(_options_impl.OptionsDict):
    """Where one kind of tensor is kept, and from which size on."""

    def minElementsForOffChip(self, min_elements: int) -> "poptorch.TensorLocationSettings":
        return self._record("minElementsForOffChip", min_elements, int)

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> "poptorch.TensorLocationSettings":
        return self._record("minElementsForReplicatedTensorSharding", min_elements, int)

    def useOnChipStorage(self, use: bool = True) -> "poptorch.TensorLocationSettings":
        if use is None:  # back to what PopART decides
            self.deleteIfExists("onChip")
            return self
        return self._record("onChip", use, bool)

    def useReplicatedTensorSharding(self, use: bool = True) -> "poptorch.TensorLocationSettings":
        return self._record("useReplicatedTensorSharding", use, bool)

    @accepted(_TILES)
    def useIOTilesToLoad(self, use: bool = True) -> "poptorch.TensorLocationSettings":
        return self._record("useIOTilesToLoad", use, bool)

    @accepted(_TILES)
    def useIOTilesToStore(self, use: bool = True) -> "poptorch.TensorLocationSettings":
        return self._record("useIOTilesToStore", use, bool)

    def _record(self, option: str, value: Any, kind: type[int]) -> TensorLocationSettings:
        if not isinstance(value, kind):
            raise _options_impl.wrong(f"{option} takes {_options_impl.article(kind)}, not {value!r}.")
        self.createOrSet(**{option: int(value)})
        return self


class _TensorLocationOptions(_options_impl.OptionsDict):
    """Where each kind of tensor is kept."""

    def numIOTiles(self, num_tiles: int) -> "poptorch.TensorLocationSettings":
        if not isinstance(num_tiles, int) or num_tiles % 2 or not 32 <= num_tiles <= 192:
            raise _options_impl.wrong(f"numIOTiles takes an even count from 32 to 192, not {num_tiles!r}.")
        self.createOrSet(numIOTiles=num_tiles)
        return self  # type: ignore[return-value]  # the vendor's annotation is wrong

    def setActivationLocation(
        self, location: "poptorch.TensorLocationSettings"
    ) -> "poptorch.options._TensorLocationOptions":
        return self._place("activation", location)

    def setWeightLocation(
        self, location: "poptorch.TensorLocationSettings"
    ) -> "poptorch.options._TensorLocationOptions":
        return self._place("weight", location)

    def setOptimizerLocation(
        self, location: "poptorch.TensorLocationSettings"
    ) -> "poptorch.options._TensorLocationOptions":
        return self._place("optimizer", location)

    def setAccumulatorLocation(
        self, location: "poptorch.TensorLocationSettings"
    ) -> "poptorch.options._TensorLocationOptions":
        return self._place("accumulator", location)

    def _place(self, kind: str, location: Any) -> _TensorLocationOptions:
        if not isinstance(location, TensorLocationSettings):
            raise _options_impl.wrong(
                f"the location of {kind}s is a poptorch.TensorLocationSettings, not {location!r}."
            )
        self.createOrSet(**{f"location_{kind}": location.toDict()})
        return self
