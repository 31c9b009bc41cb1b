"""Manhattan distance has no matrix product: the CPU's matrix-product backends borrow the tiles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpurbf.backends import Backend


def with_manhattan(backend: Backend) -> Backend:
    """The same backend with layers of metric "manhattan" evaluated by the Numba tiles."""
    from gpurbf.backends import numba_

    def choose(function: str) -> Any:
        own, tiles = getattr(backend, function), getattr(numba_, function)
        return lambda operand, *rest: (tiles if isinstance(operand, numba_.Operand) else own)(
            operand, *rest
        )

    def prepare(C: Any, activation: Any, dtype: Any, lattice: Any) -> Any:
        maker = numba_.prepare if activation.metric == "manhattan" else backend.prepare
        return maker(C, activation, dtype, lattice)

    return replace(
        backend,
        prepare=prepare,
        outputs=choose("outputs"),
        scores=choose("scores"),
        normal=choose("normal"),
    )
