"""Output weights without training: every center speaks for its own class."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

__all__ = ["OneHot"]


class OneHot(BaseEstimator):
    """The targets of the centers are the weights: FSVC's "no tuning"."""

    needs = "center targets"
    n_epochs = 0

    def train(
        self,
        layer: Any,
        X: Any,
        T: np.ndarray,
        weights: np.ndarray | None,
        *,
        start: np.ndarray,
        order: np.ndarray | None = None,
    ) -> np.ndarray:
        """W (m, k) is `start`."""
        return start
