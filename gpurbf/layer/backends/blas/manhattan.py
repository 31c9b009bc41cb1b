"""Manhattan distance has no matrix product: the matrix-product backends borrow the tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from gpurbf.layer.backends import Backend


class Borrowed(NamedTuple):
    """An operand of the backend that has the tiles."""

    operand: Any


def with_manhattan(backend: Backend, tiles: Callable[[], Backend]) -> Backend:
    """The backend with layers of metric "manhattan" evaluated by the backend ``tiles()``."""

    def choose(function: str) -> Any:
        own = getattr(backend, function)

        def call(operand: Any, *rest: Any) -> Any:
            if isinstance(operand, Borrowed):
                return getattr(tiles(), function)(operand.operand, *rest)
            return own(operand, *rest)

        return call

    def prepare(C: Any, activation: Any, *rest: Any, **options: Any) -> Any:
        if activation.metric == "manhattan":
            return Borrowed(tiles().prepare(C, activation, *rest))
        return backend.prepare(C, activation, *rest, **options)

    return replace(
        backend,
        prepare=prepare,
        outputs=choose("outputs"),
        scores=choose("scores"),
        normal=choose("normal"),
        weights=choose("weights"),
    )
