"""The hidden layer: one object that looks at the data once and hands tiles to a backend."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import numpy as np
import scipy.sparse as sp

from gpurbf._stages import count, staged
from gpurbf.backends import Activation, Backend, BackendUnavailable, Lattice, get_backend
from gpurbf.backends.arrays import is_resident, mirror, to_host
from gpurbf.backends.lattice import candidates, encode
from gpurbf.backends.sums import Grid
from gpurbf.network.reading import read_ahead, split

__all__ = ["FORCED", "METRICS", "PRECISIONS", "PROFILES", "Activation", "HiddenLayer"]

METRICS = ("euclidean", "manhattan")
PROFILES = (
    "gaussian",
    "laplacian",
    "triangular",
    "multiquadric",
    "inverse-multiquadric",
    "thin-plate",
)
PRECISIONS = ("auto", "exact", "float32", "tf32", "float64")
# Those that look for no integers in the data.
FORCED = ("float32", "tf32", "float64")


class HiddenLayer:
    """H[i, j] = phi(d(x_i, c_j)) for any X, whole or consumed tile by tile.

    Parameters
    ----------
    C : ndarray of shape (m, n) or CSR
        Centers of any real dtype.
    activation : Activation
        Metric and profile with their scalars.
    backend : str, default="auto"
        See :func:`gpurbf.backends.get_backend`.
    precision : {"auto", "exact", "float32", "tf32", "float64"}, default="auto"
        "auto" computes distances in exact integers where C and X are on one integer lattice and in
        `dtype` elsewhere; "exact" insists on the lattice; the others force that arithmetic: "tf32"
        is float32 whose products round their factors to 10 bits, on NVIDIA GPUs only.
    dtype : float32 or float64, optional
        Of the activations. By default float64 for float64 centers, else float32; a forced
        precision decides it.

    Raises
    ------
    ValueError
        For an unknown precision, or where "exact" meets data off the lattice.
    BackendUnavailable
        If the backend cannot run here or lacks the precision.

    Notes
    -----
    X may be a CuPy array if the backend computes with CuPy: it is taken as it is, floats are then
    not looked at for integers, and results stay on the device.
    """

    def __init__(
        self,
        C: Any,
        activation: Activation,
        *,
        backend: str = "auto",
        precision: str = "auto",
        dtype: Any = None,
    ) -> None:
        if precision not in PRECISIONS:
            raise ValueError(f"Unknown precision {precision!r}: use one of {list(PRECISIONS)}.")
        self.centers = C.toarray() if sp.issparse(C) else np.asarray(to_host(C))
        self.activation = activation
        self.backend: Backend
        self.backend, self.reason = get_backend(backend, len(self.centers))
        self.precision = precision
        if precision in FORCED:
            dtype = "float64" if precision == "float64" else "float32"
        elif dtype is None:
            dtype = np.float64 if self.centers.dtype == np.float64 else np.float32
        self.dtype = np.dtype(dtype)
        self._options: dict[str, bool] = {}
        if precision == "tf32":
            if precision not in self.backend.precisions:
                raise BackendUnavailable(
                    f"precision='tf32' is not arithmetic of the backend {self.backend.name!r}: use "
                    "backend='cupy' on a machine with an NVIDIA GPU, or precision='float32'."
                )
            self._options = {"tf32": True}
        # Operands of the backend, one for each lattice met so far; None is real arithmetic.
        self._operands: dict[Lattice | None, Any] = {}

    @property
    def xp(self) -> ModuleType:
        """The library of the backend's arrays."""
        return self.backend.xp

    def working(self) -> AbstractContextManager[None]:
        """See :class:`gpurbf.network.layer.Layer`."""
        return self.backend.working()

    def room(self) -> float:
        """See :class:`gpurbf.network.layer.Layer`."""
        return self.backend.room()

    def describe(self) -> str:
        """What ran and why, in a line."""
        lattices = [key for key, operand in self._operands.items() if key and operand is not None]
        arithmetic = "tf32" if self.precision == "tf32" else str(self.dtype)
        if lattices:
            arithmetic = f"exact integers / {lattices[-1].denominator:g}, then {arithmetic}"
        return f"{self.backend.name} [{self.backend.kernel}], {arithmetic} ({self.reason})"

    @staged("hidden layer")
    def outputs(self, X: Any, out: np.ndarray | None = None) -> np.ndarray:
        """H, shape (N, m), in the layer's dtype; into ``out``, an array of that shape, if given."""
        if out is None:
            xp = self.backend.xp if is_resident(X) else np
            out = xp.empty((X.shape[0], len(self.centers)), self.dtype)
        elif not out.flags.c_contiguous or out.dtype != self.dtype:
            # Backends write whole rows of their own dtype.
            H = self.outputs(X)
            out[...] = self.backend.xp.asarray(H) if is_resident(out) else to_host(H)
            return out
        for rows, operand, part in self._parts(X):
            self.backend.outputs(operand, part, out[rows])
        return out

    @staged("hidden layer")
    def scores(self, X: Any, W: np.ndarray) -> np.ndarray:
        """H @ W, shape (N, k), for W (m, k); H is not stored."""
        xp = self.backend.xp if is_resident(X) else np
        S = xp.empty((X.shape[0], W.shape[1]), self.dtype)
        for rows, operand, part in self._parts(X):
            S[rows] = self.backend.scores(operand, part, W)
        return S

    @staged("output training")
    def normal(
        self,
        X: Any,
        T: np.ndarray,
        weights: np.ndarray | None = None,
        mean: np.ndarray | None = None,
        out: tuple[Any, Any] | None = None,
        grid: Grid | None = None,
    ) -> tuple[Any, Any]:
        """Weighted HᵀH (m, m) and HᵀT (m, k), float64, for targets T (N, k); H is not stored.

        H stands for H less ``mean`` (m,) if given. The sums are added to the arrays of ``out``, of
        the backend's library, on a CPU to the lower triangle of the first; where that is None, HᵀT
        alone is wanted. Without it they are whole and NumPy's. On a ``grid`` they are exact where
        no precision is forced and the backend can.
        """
        m, xp = len(self.centers), self.backend.xp
        with self.backend.working():
            G, B = out or (xp.zeros((m, m)), xp.zeros((m, T.shape[1])))
            mean = np.zeros(m) if mean is None else mean
            grid = None if self.precision in FORCED else grid
            for rows, operand, part in self._parts(X):
                w = None if weights is None else weights[rows]
                self.backend.normal(operand, part, T[rows], w, mean, G, B, grid)
            if out:
                return out
            G, B = to_host(G), to_host(B)
            mirror(G)
            return G, B

    def _parts(self, X: Any) -> Iterator[tuple[slice, Any, np.ndarray]]:
        """Rows, operand and data as the backend takes them: codes or real numbers, dense."""
        if is_resident(X):
            if self.backend.xp is np:
                raise TypeError(
                    f"X is on a GPU and the backend {self.backend.name!r} is not: use "
                    "backend='cupy', or X.get()."
                )
            yield slice(0, X.shape[0]), *self._on_lattice(X)
            return
        # Bytes a row of what is made dense, contiguous or encoded here.
        loose = sp.issparse(X) or not X.flags.c_contiguous
        row_bytes = (8 if loose else X.dtype != np.uint8) * X.shape[1]
        for part, block in read_ahead(X, split(X, row_bytes)):
            dense = block.toarray() if sp.issparse(block) else np.ascontiguousarray(block)
            operand, data = self._on_lattice(dense)
            yield part, operand, data

    @staged("prepare", "lattice")
    def _on_lattice(self, X: np.ndarray) -> tuple[Any, np.ndarray]:
        """The operand and X's codes if both are on one lattice, else real arithmetic and X."""
        if self.precision not in FORCED:
            known = [lattice for lattice in self._operands if lattice is not None]
            looked_at = not is_resident(X) or X.dtype in (np.uint8, np.int8)
            for lattice in dict.fromkeys([*known, *self._lattices]) if looked_at else ():
                operand = self._operand(lattice)
                codes = None if operand is None else encode(X, lattice)
                if codes is not None:
                    count(nbytes=0 if codes is X else X.nbytes + codes.nbytes)
                    return operand, codes
            if self.precision == "exact":
                raise ValueError(
                    "precision='exact' needs samples and centers that are integers in 0..255 or "
                    "-128..127, or such integers divided by one of 255, 256, 128, ... 2; use "
                    "precision='auto' for other data."
                )
        return self._operand(None), X

    @functools.cached_property
    def _lattices(self) -> list[Lattice]:
        """Where the centers may be on a lattice: samples need be looked at for no other."""
        return candidates(self.centers)

    @staged("prepare", "centers packed, norms")
    def _operand(self, lattice: Lattice | None) -> Any:
        """The backend's operand for that arithmetic; None if the centers are not on the lattice."""
        if lattice not in self._operands:
            C = self.centers if lattice is None else encode(self.centers, lattice)
            self._operands[lattice] = (
                None
                if C is None
                else self.backend.prepare(C, self.activation, self.dtype, lattice, **self._options)
            )
        return self._operands[lattice]

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("A HiddenLayer holds a backend's memory: keep its centers instead.")
