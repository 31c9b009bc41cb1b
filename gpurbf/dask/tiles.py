"""Which pairs of classes make a task of an SVC, and which thread of the cluster takes the next."""

from __future__ import annotations

from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import numpy as np


class Tile(NamedTuple):
    """Pairs of classes that share kernel rows, and their parts."""

    pairs: list[tuple[int, int]]
    parts: list[int]


def tiles_of(n_classes: int, wanted: int) -> tuple[list[list[int]], list[Tile]]:
    """Parts of all classes, and all pairs in so many tiles, each of one part or of two.

    Of as few parts as give tiles enough; of a part for each class if there are not.
    """
    for n_parts in range(1, n_classes + 1):
        parts = [part.tolist() for part in np.array_split(np.arange(n_classes), n_parts)]
        tiles = []
        for both in combinations_with_replacement(range(n_parts), 2):
            pairs = [(a, b) for a in parts[both[0]] for b in parts[both[1]] if a < b]
            if pairs:
                tiles.append(Tile(pairs, sorted(set(both))))
        if len(tiles) >= wanted:
            break
    return parts, tiles


def ending_in_pairs(tiles: list[Tile], wanted: int) -> list[Tile]:
    """The same pairs with so many tiles of one, of the smallest that are cut: they end together."""
    tiles = sorted(tiles, key=lambda tile: len(tile.pairs), reverse=True)
    single: list[Tile] = []
    while tiles and len(single) < wanted:
        pairs, parts = tiles.pop()
        single += [Tile([pair], parts) for pair in pairs]
    return tiles + single


class Queue:
    """Tasks yet to begin, the largest first, each for the thread that has least to do then.

    Dask takes all tasks of a name to cost the same.
    """

    def __init__(self, costs: list[int], threads: dict[str, int]) -> None:
        self._costs = costs
        self._left = sorted(range(len(costs)), key=costs.__getitem__)
        self._workers = [worker for worker, n in threads.items() for _ in range(n)]
        self._load = [0] * len(self._workers)
        self._thread: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._left)

    def next(self) -> tuple[int, dict[str, Any]]:
        """The number of a task, and where it is to run; anywhere, while there are no workers."""
        i = self._left.pop()
        if not self._workers:
            return i, {}
        thread = self._thread[i] = self._load.index(min(self._load))
        self._load[thread] += self._costs[i]
        return i, {"workers": [self._workers[thread]], "allow_other_workers": True}

    def done(self, i: int) -> None:
        """A task has ended."""
        if i in self._thread:
            self._load[self._thread.pop(i)] -= self._costs[i]
