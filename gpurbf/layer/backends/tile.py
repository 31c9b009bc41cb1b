"""How a layer is cut: the backend's own tile, or the one that a thread is told to take.

    with forced(Tile(M=96)):
        layer = HiddenLayer(C, activation)
        layer.activations(X)      # blocks of 96 samples, now and whenever this layer is used

A layer keeps the tile that it was prepared with, at its first use. A tile changes how fast a layer
is and not what it computes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

_local = threading.local()


class Tile(NamedTuple):
    """How a layer is cut; a backend has some of these, and None is its default.

    ``M``: samples of a tile, and neurons too where it is square. ``B``: threads of a GPU's block.
    ``threads``: CPU threads at work at a time.
    """

    M: int | None = None
    B: int | None = None
    threads: int | None = None

    def __str__(self) -> str:
        stated = [f"{key} {value:g}" for key, value in self._asdict().items() if value is not None]
        return ", ".join(stated) or "default"


@contextmanager
def forced(tile: Tile) -> Iterator[None]:
    """Layers prepared in this block, by this thread, take this tile; None is the default."""
    if any(value is not None and not value > 0 for value in tile):
        raise ValueError(f"{tile}: what a tile states must be > 0.")
    before = forced_tile()
    _local.tile = tile
    try:
        yield
    finally:
        _local.tile = before


def forced_tile() -> Tile:
    """The tile that this thread is told to take; ``Tile()`` is the backend's own."""
    return getattr(_local, "tile", Tile())
