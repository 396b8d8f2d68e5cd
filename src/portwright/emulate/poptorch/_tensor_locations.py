"""Where tensors are kept on real hardware (names as in `poptorch.options`): recorded, without effect on results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from portwright.emulate.poptorch import _options_impl
from portwright.emulate.poptorch._refused import accepted

if TYPE_CHECKING:
    from portwright.emulate import poptorch

_WHERE = "where a tensor is kept changes memory and speed on hardware, not results; the memory estimate does not count it."


class TensorLocationSettings(_options_impl.OptionsDict):
    """Where one kind of tensor is kept, and from which size on."""

    @accepted(_WHERE)
    def minElementsForOffChip(self, min_elements: int) -> "poptorch.TensorLocationSettings":
        return self._record("minElementsForOffChip", min_elements, int)

    @accepted(_WHERE)
    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> "poptorch.TensorLocationSettings":
        return self._record("minElementsForReplicatedTensorSharding", min_elements, int)

    @accepted(_WHERE)
    def useOnChipStorage(self, use: bool = True) -> "poptorch.TensorLocationSettings":
        if use is None:  # back to what PopART decides
            self.deleteIfExists("onChip")
            return self
        return self._record("onChip", use, bool)

    @accepted(_WHERE)
    def useReplicatedTensorSharding(self, use: bool = True) -> "poptorch.TensorLocationSettings":
        return self._record("useReplicatedTensorSharding", use, bool)

    @accepted(_WHERE)
    def useIOTilesToLoad(self, use: bool = True) -> "poptorch.TensorLocationSettings":
        return self._record("useIOTilesToLoad", use, bool)

    @accepted(_WHERE)
    def useIOTilesToStore(self, use: bool = True) -> "poptorch.TensorLocationSettings":
        return self._record("useIOTilesToStore", use, bool)

    def _record(self, option: str, value: Any, kind: type[int]) -> TensorLocationSettings:
        if not isinstance(value, kind):
            raise _options_impl.wrong(f"{option} takes {_options_impl.article(kind)}, not {value!r}.")
        self.createOrSet(**{option: int(value)})
        return self


class _TensorLocationOptions(_options_impl.OptionsDict):
    """Where each kind of tensor is kept."""

    @accepted(_WHERE)
    def numIOTiles(self, num_tiles: int) -> "poptorch.TensorLocationSettings":
        if not isinstance(num_tiles, int) or num_tiles % 2 or not 32 <= num_tiles <= 192:
            raise _options_impl.wrong(
                f"numIOTiles must be an even number between 32 and 192, not {num_tiles!r}."
            )
        self.createOrSet(numIOTiles=num_tiles)
        return self  # type: ignore[return-value]  # the vendor's annotation is wrong

    @accepted(_WHERE)
    def setActivationLocation(
        self, location: "poptorch.TensorLocationSettings"
    ) -> "poptorch.options._TensorLocationOptions":
        return self._place("activation", location)

    @accepted(_WHERE)
    def setWeightLocation(
        self, location: "poptorch.TensorLocationSettings"
    ) -> "poptorch.options._TensorLocationOptions":
        return self._place("weight", location)

    @accepted(_WHERE)
    def setOptimizerLocation(
        self, location: "poptorch.TensorLocationSettings"
    ) -> "poptorch.options._TensorLocationOptions":
        return self._place("optimizer", location)

    @accepted(_WHERE)
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
