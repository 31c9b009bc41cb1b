"""What a fitted estimator keeps of its layer: NumPy arrays, and a cache no pickle carries."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpurbf.network.hidden import HiddenLayer


class FittedLayerMixin:
    """Fitted attributes of the layer, and the layer itself rebuilt from them when it is needed."""

    def _keep_layer(self, layer: HiddenLayer, indices: np.ndarray | None) -> None:
        """Store what a fitted layer is made of; ``indices`` if its centers are training rows."""
        self.centers_ = layer.centers
        if indices is not None:
            self.center_indices_ = indices
        elif hasattr(self, "center_indices_"):
            del self.center_indices_
        self.gamma_ = layer.activation.gamma
        self._activation = layer.activation
        self._cache = (self._cache_key(), layer)
        self._report(layer)

    def _report(self, layer: HiddenLayer) -> None:
        self.backend_ = layer.backend.name
        self.backend_info_ = layer.describe()

    def _cache_key(self) -> tuple[Any, ...]:
        """The parameters that may be set after fit and matter to the layer."""
        return self.backend, self.precision  # type: ignore[attr-defined]

    def _layer(self) -> HiddenLayer:
        """The layer on the backend that the parameters ask for now."""
        key, layer = getattr(self, "_cache", (None, None))
        if layer is None or key != self._cache_key():
            layer = HiddenLayer(
                self.centers_,
                self._activation,
                backend=self.backend,  # type: ignore[attr-defined]
                precision=self.precision,  # type: ignore[attr-defined]
            )
            self._cache = (self._cache_key(), layer)
        return layer

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())  # type: ignore[call-overload]
        state.pop("_cache", None)
        return state
