"""The samples of a fit as blocks on the workers, and the first pass, which validates all of them.

X, y, weights ─► row_blocks ─► Scanner, each block ─► Scan.merged ─► Blocks
                 of each        validates, gamma,       on workers     `over_rows`, `each`,
                                hashes                  and client     rows by number
"""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import dask.array as da
import distributed
import numpy as np
import scipy.sparse as sp
from dask.delayed import Delayed
from sklearn.utils import check_array, column_or_1d
from sklearn.utils.validation import _num_samples

from gpurbf.centers import most_centers
from gpurbf.centers.sample import Distinct, Race
from gpurbf.dask.graph import Tasks
from gpurbf.estimators._validation import (
    DTYPES,
    Rows,
    check_labels,
    check_names,
    check_weights,
    check_X,
    class_factors,
    class_mass,
    on_host,
)
from gpurbf.layer.gamma import SUMS

# Until the first row numbers of all blocks are known, a row's number is that of its block, shifted
# left by so many bits, plus its place in the block.
_ROW_BITS = 40
NO_ROWS = np.empty(0, np.intp)


class Scan(NamedTuple):
    """Results of the first pass over some blocks: statistics by block, all labels, and more.

    ``stats`` are the number of rows, of those of weight > 0, and what blocks must share, by name.
    ``mass`` are the weights of the labels, or 0 if the `Scanner` does not find them. ``found`` are
    the results of the tasks that it was asked for. Their classes are numbered by ``labels``, their
    rows by block and place, see `_row_numbers`. If the `Scanner` looks for rows that may become
    centers, the last results are these `Rows`, block by block, with their numbers as places.
    """

    stats: dict[int, tuple[int, int, dict[str, Any]]]
    labels: Any = None
    mass: Any = 0
    found: tuple[Any, ...] = ()

    @classmethod
    def merged(cls, *scans: Scan) -> Scan:
        """Join scans; blocks without rows only contribute their statistics."""
        stats = {i: own for scan in scans for i, own in scan.stats.items()}
        filled = [scan for scan in scans if any(n for _, n, _ in scan.stats.values())]
        if not filled:
            return cls(stats)
        labels, mass, places = None, None, []
        if filled[0].labels is not None:
            # Those of a block have been sorted, so they are of one type.
            if len({isinstance(scan.labels[0], str) for scan in filled}) > 1:
                raise ValueError("Labels must be of one type: some are strings, others are not.")
            labels = np.unique(np.concatenate([scan.labels for scan in filled]))
            places = [np.searchsorted(labels, scan.labels) for scan in filled]
            mass = np.zeros(len(labels), object)  # integers or fractions, which add up exactly
            for scan, own in zip(filled, places):
                mass[own] += scan.mass
        found = tuple(_joined(own, places) for own in zip(*(scan.found for scan in filled)))
        return cls(stats, labels, mass, found)


@dataclass(frozen=True)
class Scanner:
    """Scans blocks: validates them fully; other results save later passes.

    Parameters
    ----------
    local : type
        The local estimator; validation does not depend on its parameters.
    negative : bool
        Whether weights below zero count as zero.
    n_blocks : int
        The number of all blocks, each of about as many rows.
    balanced : bool
        Whether to find the weights of classes.
    asked : tuple of callable
        Tasks of `over_rows` whose results will be needed: gamma's `SUMS`, and a `Race`.
    n_centers : int or str
        How many centers the first of these tasks, a `Race`, will draw: rows that may be among them
        are found too; 0 for none.
    """

    local: type
    negative: bool
    n_blocks: int
    balanced: bool
    asked: tuple[Any, ...]
    n_centers: int | str

    def __call__(self, *blocks: tuple[Any, ...]) -> Scan:
        return Scan.merged(*(self._block(*block) for block in blocks))

    def _block(self, i: int, X: Any, y: Any, weights: Any) -> Scan:
        """Scan block number i."""
        model = self.local()
        options: dict[str, Any] = {"ensure_min_samples": 0, "reset": True}
        if y is None:
            X = check_X(model, X, **options)
        else:
            X, y = check_X(model, X, y=y, **options)
        if sp.issparse(X):
            raise TypeError("Sparse blocks are not supported: fit on dense ones, or locally.")
        n_given, names = len(X), getattr(model, "feature_names_in_", None)
        shared = {"n_features": X.shape[1], "dtype": X.dtype, "names": names}
        weights = check_weights(weights, len(X), negative=self.negative, part=True)
        X, y, weights, _ = Rows(X, y, weights).of_weight()
        labels = codes = None
        mass: Any = 0
        if y is not None:
            try:
                labels, codes = np.unique(y, return_inverse=True)
            except TypeError as error:
                raise ValueError(f"Labels must be of one type: {error}.") from None
            if self.balanced:
                mass = class_mass(codes, weights, len(labels))
        start = i << _ROW_BITS
        found = tuple(task(X, codes, weights, start) for task in self.asked)
        if self.n_centers and len(X):
            first = self._likely_centers(found[0], len(X))
            found += ((Rows(X[first - start], None, None, first),),)
        return Scan({i: (n_given, len(X), shared)}, labels, mass, found)

    def _likely_centers(self, distinct: Distinct, n_rows: int) -> np.ndarray:
        """Rows of a block that may become centers.

        Of each class, these are the first rows in the order of the race: as many as are expected to
        become centers, and four standard deviations more.
        """
        expected = n_rows * self.n_blocks
        share = min(1.0, most_centers(self.n_centers, expected) / expected)
        order, likely = distinct.order(), []
        labels = np.zeros(len(order)) if distinct.labels is None else distinct.labels[order]
        for c in np.unique(labels):
            own = order[labels == c]
            n_expected = share * len(own)
            likely.append(own[: int(n_expected + 4 * np.sqrt(n_expected)) + 2])
        return distinct.first[np.concatenate(likely)]


class Blocks:
    """All rows of a fit, with the methods of arrays that choosing centers needs.

    All blocks are scanned once, and the local model gets the attributes that validation sets.

    Parameters
    ----------
    estimator, model : estimator
        The estimator on the cluster, and the local one.
    X, y, sample_weight
        As `fit` takes them.
    draw : Race or None
        Will draw the centers of the model.
    negative, asked
        See `Scanner`.

    Raises
    ------
    ValueError, TypeError
        As the local estimator does, or because blocks do not agree with each other.
    """

    def __init__(
        self,
        estimator: Any,
        model: Any,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        draw: Race | None = None,
        negative: bool = False,
        asked: Sequence[Any] = (),
    ) -> None:
        classifies = hasattr(model, "predict")
        if y is None and classifies:
            raise ValueError(f"{type(model).__name__} needs labels, and y is None.")
        self.tasks = Tasks(estimator.client, estimator.n_jobs)
        parts = aligned_blocks(X, y, sample_weight)
        gamma, weights = (getattr(model, name, None) for name in ("gamma", "class_weight"))
        n_centers = 0 if draw is None else model.n_centers
        asked = tuple(asked) if draw is None else (draw, *asked)
        if isinstance(gamma, str) and gamma == "scale":
            asked = *asked, SUMS
        balanced = isinstance(weights, str) and weights == "balanced"
        n_blocks = len(parts)
        scanner = Scanner(type(model), negative, n_blocks, balanced, asked, n_centers)
        groups = self.tasks.locality([block for block, _, _ in parts])
        arguments = [tuple((i, *parts[i]) for i in group) for group in groups]
        scan = self.tasks.total("scan", Scan.merged, self.tasks.each("scan", scanner, arguments))
        n_given, n_rows, shared = zip(*(scan.stats[i] for i in range(n_blocks)))
        self.n_given, self.starts = sum(n_given), np.cumsum([0, *n_rows])
        # Samples, labels, weights and two numbers of the first row: of all given, of those in use.
        first_rows = zip(accumulate(n_given, initial=0), self.starts.tolist())
        self.parts = [(*part, *numbers) for part, numbers in zip(parts, first_rows)]
        if not any(n_rows):
            what = "samples of positive weight" if self.n_given else "samples"
            raise ValueError(f"Invalid input - all blocks together have no {what}.")
        # Groups of the numbers of blocks with rows: a task takes a group.
        self.groups = [own for group in groups if (own := [i for i in group if n_rows[i]])]
        first = _agreed([own for own, n in zip(shared, n_rows) if n])
        self.shape, self.dtype = (int(self.starts[-1]), first["n_features"]), first["dtype"]
        model.n_features_in_ = first["n_features"]
        if first["names"] is not None:
            model.feature_names_in_ = first["names"]
        self.classes, self.class_mass = scan.labels, scan.mass
        if classifies:
            masked = self.shape[0] < self.n_given
            # Each label twice, if it is so on average: scikit-learn warns of many labels that
            # occur once.
            labels = np.repeat(self.classes, min(2, self.shape[0] // len(self.classes)))
            self.classes, _ = check_labels(labels, type(model).__name__, masked)
        self._negative = negative
        self.factors: np.ndarray | None = None
        # Results of tasks of `over_rows` that are known already.
        self.known: dict[Any, Any] = {}
        for task, found in zip(asked, scan.found):
            if isinstance(task, Race):
                found = task.merged(found._replace(first=_row_numbers(found.first, self.starts)))
            self.known[task] = found
        # Rows that may become centers and are on the client: their numbers, ascending, and values.
        self._here = np.empty(0, np.intp), np.empty(0)
        if n_centers:
            likely = in_order(scan.found[-1])
            self._here = _row_numbers(likely.places, self.starts), likely.X

    def with_class_weights(self, class_weight: Any, *, bounds: bool = False) -> Blocks:
        """These rows, weighted by class too; see `class_factors`."""
        if class_weight is None:
            return self
        weighted, mass = copy.copy(self), lambda: self.class_mass
        if self.shape[0] == self.n_given:  # labels of samples of weight 0 are not known here
            check_names(class_weight, self.classes)
        weighted.factors = class_factors(class_weight, self.classes, mass, bounds=bounds)
        weighted.known = {}
        return weighted

    def one_by_one(self) -> list[list[int]]:
        """Groups of one block each, in their order."""
        return [[i] for i in sorted(i for group in self.groups for i in group)]

    def each(
        self, name: str, function: Callable[..., Any], groups: list[list[int]] | None = None
    ) -> list[Any]:
        """A task ``function(blocks)`` for each group of blocks.

        ``blocks`` gives the rows of one block after the other, each with the number of the first.
        """
        task = partial(_read, self._negative, self.classes, self.factors, function)
        arguments = [tuple(self.parts[i] for i in group) for group in groups or self.groups]
        return self.tasks.each(name, task, arguments)

    def over_rows(self, task: Callable[..., Any], merge: Callable[..., Any], name: str) -> Any:
        """See :func:`gpurbf.data.row_blocks.over_rows`."""
        if task in self.known:
            return self.known[task]
        parts = self.each(name, partial(_over_rows, task, merge))
        return self.tasks.total(name, lambda *found: functools.reduce(merge, found), parts)

    def take(self, rows: np.ndarray) -> Rows:
        """Some rows, by their numbers."""
        distinct, back = np.unique(rows, return_inverse=True)
        wanted = by_block(distinct, self.starts)
        groups = [own for group in self.groups if (own := [i for i in group if i in wanted])]
        found = self.each("rows", partial(_taken, distinct), groups)
        return in_order(self.tasks.results(found)).at(back)

    def __getitem__(self, rows: Any) -> np.ndarray:
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(self.shape[0]))
        numbers, values = self._here
        if np.isin(rows, numbers).all():
            return values[np.searchsorted(numbers, rows)]
        return self.take(rows).X


def row_blocks(A: Any, like: Any = None) -> list[Any]:
    """Blocks of rows of a dask array or data frame, or one delayed or future block or a list.

    ``like``: the samples, if A are their labels or weights; an array A is cut as the samples are.
    """
    if isinstance(A, (Delayed, distributed.Future)):
        return [A]
    if isinstance(A, (list, tuple)) and all(hasattr(block, "key") for block in A):
        if A:
            return list(A)
        raise ValueError("There are no blocks: the list is empty.")
    cut: Any = like.chunks[0] if isinstance(like, da.Array) else None
    known = cut is not None and not np.isnan(cut).any()
    if not hasattr(A, "to_delayed"):
        shape = getattr(A, "shape", None) or (_num_samples(A),)
        if known and shape == (sum(cut),):
            A = da.from_array(column_or_1d(A), chunks=(cut,))
        else:
            cure = "for arrays in memory use the estimators of gpurbf."
            if like is not None:
                cure = "for y or weights in memory, X must be a dask array of known chunks"
                cure += f", and has {sum(cut):,} rows." if known else "."
            raise TypeError(
                "gpurbf.dask takes dask arrays, data frames and lists of delayed blocks, got "
                f"{type(A).__name__} of shape {shape}: {cure}"
            )
    if isinstance(A, da.Array):
        if like is None and A.ndim != 2:
            raise ValueError(f"X must have two dimensions, samples and inputs, got {A.shape}.")
        if A.ndim == 2 and A.numblocks[1] > 1:
            A = A.rechunk({1: -1})
        if known and A.chunks[0] != cut and not np.isnan(A.chunks[0]).any():
            if len(A) != sum(cut):
                raise ValueError(f"X has {sum(cut):,} rows, and y or sample_weight {len(A):,}.")
            A = A.rechunk({0: cut})
        # An optimized graph would not hold persisted blocks: they could be gone when it is used.
        return list(np.ravel(A.to_delayed(optimize_graph=False)))
    return list(np.ravel(A.to_delayed()))


def aligned_blocks(X: Any, y: Any, sample_weight: Any) -> list[tuple[Any, Any, Any]]:
    """Samples, labels or None, and weights or None of each block of rows."""
    blocks = row_blocks(X)
    labels, weights = (
        [None] * len(blocks) if A is None else row_blocks(A, like=X) for A in (y, sample_weight)
    )
    if not len(blocks) == len(labels) == len(weights):
        raise ValueError(
            f"X has {len(blocks)} blocks, y and sample_weight {len(labels)} and {len(weights)}: "
            "give them the same blocks of rows."
        )
    return list(zip(blocks, labels, weights))


def columns(pieces: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
    """Each column of all pieces, concatenated; None for columns that are missing."""
    return (None if own[0] is None else np.concatenate(own) for own in zip(*pieces))


def joined(pieces: Iterable[Rows]) -> Rows:
    """All pieces, one after the other."""
    return Rows._make(columns(pieces))


def in_order(pieces: Iterable[Rows], *, by_class: bool = False) -> Rows:
    """All pieces as one, in the order in which rows were given; ``by_class``: class first."""
    rows = joined(pieces)
    return rows.at(np.lexsort((rows.places, rows.y) if by_class else (rows.places,)))


def by_block(rows: np.ndarray, starts: np.ndarray) -> dict[int, np.ndarray]:
    """Split numbers of rows by block: places in the block by its number, in ascending blocks."""
    block = np.searchsorted(starts, rows, side="right") - 1
    return {i: rows[block == i] - starts[i] for i in np.unique(block).tolist()}


def _agreed(shared: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the blocks share; blocks of different columns or types are refused."""
    for what, first in shared[0].items():
        for own in shared:
            if not np.array_equal(own[what], first):
                raise ValueError(f"Blocks differ in {what}: {first} and {own[what]}.")
    return shared[0]


def _joined(found: Sequence[Any], places: list[np.ndarray]) -> Any:
    """Results of a task in several scans as one; ``places`` are new numbers of their classes."""
    if not isinstance(found[0], Distinct):
        return functools.reduce(operator.add, found)
    if found[0].labels is not None:
        found = [own._replace(labels=to[own.labels]) for own, to in zip(found, places)]
    return Distinct.merged(*found)


def _row_numbers(first: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Row numbers of rows that a scan has numbered by block and place, given the blocks' starts."""
    block, place = np.divmod(first, 1 << _ROW_BITS)
    return starts[block] + place


def _read(
    negative: bool,
    classes: np.ndarray | None,
    factors: np.ndarray | None,
    function: Callable[..., Any],
    *blocks: tuple[Any, ...],
) -> Any:
    """Call a function with an iterator that reads one scanned block after the other.

    Rows of weight 0 are left out; if weights may be ``negative``, those below zero count as zero.
    ``classes`` are the labels in the order of their numbers and ``factors`` their weights, or None.
    """

    def rows_of(X: Any, y: Any, weights: Any, start: int) -> Rows:
        options: dict[str, Any] = {"ensure_min_samples": 0, "ensure_all_finite": False}
        X = check_array(on_host(X), dtype=list(DTYPES), **options)
        codes = None
        if classes is not None:
            codes = np.searchsorted(classes, column_or_1d(y)).astype(np.int64)
        weights = check_weights(weights, len(X), negative=negative, part=True)
        rows = Rows(X, codes, weights, np.arange(start, start + len(X))).of_weight()
        return rows if factors is None else rows.times(factors)

    return function((rows_of(*block), first) for *block, first in blocks)


def _over_rows(
    task: Callable[..., Any], merge: Callable[..., Any], blocks: Iterator[tuple[Rows, int]]
) -> Any:
    """Merged results of a task of `over_rows` for some blocks."""
    return functools.reduce(merge, (task(*rows[:3], first) for rows, first in blocks))


def numbered(numbers: np.ndarray, rows: Rows, first: int) -> Rows:
    """Those with these numbers, ascending, of a block's rows, the first of which has ``first``."""
    own = slice(*np.searchsorted(numbers, (first, first + len(rows.X))))
    return rows.at(numbers[own] - first)


def _taken(numbers: np.ndarray, blocks: Iterator[tuple[Rows, int]]) -> Rows:
    return joined(numbered(numbers, *block) for block in blocks)
