"""Samples brought together by what they have in common, such as a part of an order."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpurbf.dask.blocks import Blocks
from gpurbf.dask.rows import Rows


def regrouped(
    blocks: Blocks, name: str, assign: Callable[[Rows], np.ndarray], n_parts: int
) -> list[Any]:
    """A task for each part that has all its rows, in the order in which they were given.

    ``assign(rows)`` says of each row of a block in which part, 0 to n_parts - 1, it belongs. Rows
    go from worker to worker; together the parts take as much memory as the blocks.
    """
    own = blocks.each(f"{name}-split", _Split(assign, n_parts))
    of_parts = [(rows, i) for i in range(n_parts) for rows in own]
    pieces = blocks.tasks.each(f"{name}-pieces", operator.getitem, of_parts)
    n = len(own)
    parts = [tuple(pieces[i : i + n]) for i in range(0, len(pieces), n)]
    return blocks.tasks.each(name, _in_order, parts)


@dataclass(frozen=True)
class _Split:
    """The pieces of some blocks that belong to each part."""

    assign: Callable[[Rows], np.ndarray]
    n_parts: int

    def __call__(self, looked: Iterator[tuple[Rows, int]]) -> list[Rows]:
        pieces = [self._of(rows) for rows, _ in looked]
        return [Rows.joined(own) for own in zip(*pieces)]

    def _of(self, rows: Rows) -> list[Rows]:
        part = self.assign(rows)
        return [rows.at(np.flatnonzero(part == i)) for i in range(self.n_parts)]


def _in_order(*pieces: Rows) -> Rows:
    return Rows.in_order(pieces)
