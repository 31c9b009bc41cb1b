"""The samples of a fit where they are: blocks of rows, and the first pass that validates them all.

X, y, weights ─► row_blocks ─► Scanner, each block ─► Scan.merged ─► Blocks
                 of each        validates, counts,      on workers     `over_rows`, `each`,
                                gamma, hashes           and client     rows by number
"""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
import scipy.sparse as sp
from sklearn.utils import column_or_1d

from gpurbf.centers import most_centers
from gpurbf.centers.sample import Distinct, Race
from gpurbf.dask.graph import Tasks
from gpurbf.estimators._validation import (
    check_labels,
    check_weights,
    check_X,
    class_factors,
    class_mass,
    overflow,
)
from gpurbf.layer.gamma import SUMS

# Bits of a row's number in its block, where the numbers of rows before the block are not known.
_ROW_BITS = 40


class Rows(NamedTuple):
    """Rows as the estimators take them; ``places`` is where they were among those given."""

    X: Any
    y: Any
    weights: Any
    places: np.ndarray

    @classmethod
    def used(cls, X: Any, y: Any, weights: Any, *, negative: bool) -> Rows:
        """Rows of weight above zero; weights are checked, and count as zero if ``negative``."""
        weights = check_weights(weights, X.shape[0], negative=negative, part=True)
        rows = cls(X, y, weights, np.arange(X.shape[0]))
        return rows if weights is None or weights.all() else rows.at(np.flatnonzero(weights))

    def at(self, some: Any) -> Rows:
        """Some of them."""
        return Rows._make(None if values is None else values[some] for values in self)

    def of_classes(self, classes: list[int]) -> Rows:
        """The rows of these classes, which are not copied if all are."""
        chosen = np.isin(self.y, classes)
        return self if chosen.all() else self.at(chosen)

    @classmethod
    def joined(cls, pieces: Iterable[Rows]) -> Rows:
        """All pieces, one after the other."""
        return cls._make(None if own[0] is None else np.concatenate(own) for own in zip(*pieces))

    @classmethod
    def in_order(cls, pieces: Iterable[Rows], *, by_class: bool = False) -> Rows:
        """All pieces as one, by class or not, in the order in which their rows were given."""
        pieces = list(pieces)
        ends = np.cumsum([len(piece.places) for piece in pieces])
        keys = [np.concatenate([piece.places for piece in pieces])]
        if by_class:
            keys.append(np.concatenate([piece.y for piece in pieces]))
        ranks = np.empty(ends[-1], np.intp)
        ranks[np.lexsort(keys)] = np.arange(len(ranks))

        def in_place(own: tuple[np.ndarray, ...]) -> np.ndarray:  # each value is copied once
            values = np.empty((len(ranks), *own[0].shape[1:]), own[0].dtype)
            for rows, part in zip(np.split(ranks, ends[:-1]), own):
                values[rows] = part
            return values

        return cls._make(None if own[0] is None else in_place(own) for own in zip(*pieces))


class Reader(NamedTuple):
    """Reads a scanned block as tasks work on it; rows of weight 0 are left out.

    ``classes`` number the labels and ``factors`` are their weights, once they are known. Weights
    below zero count as zero if they may be ``negative``.
    """

    model: Any
    negative: bool
    classes: np.ndarray | None = None
    factors: np.ndarray | None = None

    def __call__(self, X: Any, y: Any, weights: Any) -> Rows:
        """Read samples, labels and weights as they were given."""
        X = check_X(self.model, X, ensure_min_samples=0, ensure_all_finite=False)
        codes = None
        if self.classes is not None:
            codes = np.searchsorted(self.classes, column_or_1d(y)).astype(np.int64)
        rows = Rows.used(X, codes, weights, negative=self.negative)
        if self.factors is not None:
            own = self.factors[rows.y]
            rows = rows._replace(weights=own if rows.weights is None else own * rows.weights)
        return rows


class BlockStats(NamedTuple):
    """Statistics of a block: its rows, those of weight > 0, what must agree, labels, weights.

    ``counts`` and ``mass`` are how many rows each label has, and their weight.
    """

    n_given: int
    n_rows: int
    n_features: int
    names: Any
    dtype: np.dtype
    labels: Any
    counts: Any
    mass: Any
    weight_range: tuple[float, float]


class Scan(NamedTuple):
    """Findings of the first pass in some blocks: statistics by block, all labels, and more.

    ``found`` are results of the tasks that a `Scanner` was asked for, with classes numbered by
    ``labels``. ``prefetched`` are rows that may become centers, their numbers and values, block by
    block. Rows are numbered by block and place, see `_row_numbers`.
    """

    stats: dict[int, BlockStats]
    labels: Any = None
    found: tuple[Any, ...] = ()
    prefetched: tuple[tuple[np.ndarray, np.ndarray], ...] = ()

    @classmethod
    def merged(cls, *scans: Scan) -> Scan:
        """Join scans; blocks without rows only say what they are."""
        stats = {i: own for scan in scans for i, own in scan.stats.items()}
        filled = [scan for scan in scans if any(own.n_rows for own in scan.stats.values())]
        if not filled:
            return cls(stats)
        labels, places = None, []
        if filled[0].labels is not None:
            labels = np.unique(np.concatenate([scan.labels for scan in filled]))
            places = [np.searchsorted(labels, scan.labels) for scan in filled]
        found = tuple(_joined(own, places) for own in zip(*(scan.found for scan in filled)))
        prefetched = tuple(own for scan in filled for own in scan.prefetched)
        return cls(stats, labels, found, prefetched)

    def known(self, asked: Sequence[Any], starts: np.ndarray) -> dict[Any, Any]:
        """Results of the tasks that were asked for, of blocks whose rows start there."""
        known = dict(zip(asked, self.found))
        for task, found in known.items():
            if isinstance(task, Race):
                first = _row_numbers(found.first, starts)
                known[task] = task.merged(found._replace(first=first))
        return known

    def prefetched_rows(self, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Numbers, ascending, and values of prefetched rows, of blocks whose rows start there."""
        if not self.prefetched:
            return None
        first, values = (np.concatenate(own) for own in zip(*self.prefetched))
        order = np.argsort(first)
        return _row_numbers(first[order], starts), values[order]


@dataclass(frozen=True)
class Scanner:
    """Scans blocks, which a ``model`` not fitted validates in full; what it finds saves passes.

    Parameters
    ----------
    model : estimator
    negative : bool
        Whether weights below zero count as zero.
    n_blocks : int
        The number of all blocks, each of about as many rows.
    balanced : bool
        Whether to find the weights of classes.
    asked : tuple of callable
        Tasks of `over_rows` that will be asked for: gamma's `SUMS`, and races.
    n_centers : int or str
        How many centers the first of these, a race, will draw: rows that may be among them are
        prefetched; 0 for none.
    """

    model: Any
    negative: bool
    n_blocks: int
    balanced: bool
    asked: tuple[Any, ...]
    n_centers: int | str

    def __call__(self, *blocks: tuple[Any, ...]) -> Scan:
        return Scan.merged(*(self._block(*block) for block in blocks))

    def _block(self, i: int, X: Any, y: Any, weights: Any) -> Scan:
        """Scan block number i."""
        model = copy.copy(self.model)
        options: dict[str, Any] = {"ensure_min_samples": 0, "reset": True}
        if y is None:
            X = check_X(model, X, **options)
        else:
            X, y = check_X(model, X, y=column_or_1d(y, warn=True), **options)
        if sp.issparse(X):
            raise TypeError("Sparse blocks are not supported: fit on dense ones, or locally.")
        n_given, names = X.shape[0], getattr(model, "feature_names_in_", None)
        X, y, weights, _ = Rows.used(X, y, weights, negative=self.negative)
        labels = codes = counts = mass = None
        if y is not None:
            labels, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
            mass = class_mass(codes, weights, len(labels)) if self.balanced else None
        weight_range = 1.0, 1.0
        if weights is not None and len(weights):
            weight_range = weights.min(), weights.max()
        stats = BlockStats(
            n_given, len(X), X.shape[1], names, X.dtype, labels, counts, mass, weight_range
        )
        found = tuple(task(X, codes, weights, i << _ROW_BITS) for task in self.asked)
        prefetched: tuple[tuple[np.ndarray, np.ndarray], ...] = ()
        if self.n_centers and len(X):
            first = self._likely_centers(found[0], len(X))
            prefetched = ((first, X[first - (i << _ROW_BITS)]),)
        return Scan({i: stats}, labels, found, prefetched)

    def _likely_centers(self, distinct: Distinct, n_rows: int) -> np.ndarray:
        """Rows of a block that may become centers.

        Of each class those that are first here, up to four standard deviations more than its share.
        """
        expected = n_rows * self.n_blocks
        share = min(1.0, most_centers(self.n_centers, expected) / expected)
        order = distinct.order()
        labels = np.zeros(len(order), np.intp) if distinct.labels is None else distinct.labels
        sizes = np.bincount(labels)
        most = share * sizes + 4 * np.sqrt(share * sizes) + 1
        by_class = order[np.argsort(labels[order], kind="stable")]
        ranks = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return distinct.first[by_class[ranks < most[labels[by_class]]]]


@dataclass(eq=False)
class Blocks:
    """All rows of a fit, with the methods of arrays that choosing centers needs.

    Parameters
    ----------
    tasks : Tasks
    parts : list of tuple
        Samples, labels or None, and weights or None of each block, as they were given.
    stats : list of BlockStats
    reader : Reader
    groups : list of list of int
        Numbers of the blocks with rows that a task takes together, see `Tasks.locality`.
    known : dict
        What tasks of `over_rows` would find.
    prefetched : tuple of ndarray or None
        Numbers, ascending, and values of rows that the client has.
    """

    tasks: Tasks
    parts: list[tuple[Any, ...]]
    stats: list[BlockStats]
    reader: Reader
    groups: list[list[int]]
    known: dict[Any, Any]
    prefetched: tuple[np.ndarray, np.ndarray] | None = None

    def __post_init__(self) -> None:
        self.starts = np.cumsum([0] + [own.n_rows for own in self.stats])
        self.starts_given = np.cumsum([0] + [own.n_given for own in self.stats])
        self.n_given = int(self.starts_given[-1])
        self.filled = [own for own in self.stats if own.n_rows]
        self.shape = int(self.starts[-1]), self.filled[0].n_features
        self.dtype, self.classes = self.filled[0].dtype, self.reader.classes

    @classmethod
    def scanned(
        cls,
        estimator: Any,
        model: Any,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        negative: bool = False,
        asked: Sequence[Any] = (),
        n_centers: int | str = 0,
    ) -> Blocks:
        """Scan all blocks once; the local ``model`` gets the attributes that validation sets.

        Parameters
        ----------
        estimator, model : estimator
            On the cluster, and its local one.
        X, y, sample_weight
            As `fit` takes them.
        negative, asked, n_centers
            See `Scanner`.

        Raises
        ------
        ValueError, TypeError
            As the local estimator does, or because blocks do not agree with each other.
        """
        tasks, parts = Tasks.of(estimator), aligned_blocks(X, y, sample_weight)
        plain = type(model)()  # whatever the parameters are, data are validated in one way
        gamma, class_weight = (getattr(model, name, None) for name in ("gamma", "class_weight"))
        if isinstance(gamma, str) and gamma == "scale":
            asked = *asked, SUMS
        balanced = isinstance(class_weight, str) and class_weight == "balanced"
        scanner = Scanner(plain, negative, len(parts), balanced, tuple(asked), n_centers)
        groups = tasks.locality([block for block, _, _ in parts])
        arguments = [tuple((i, *parts[i]) for i in group) for group in groups]
        scan = tasks.total("scan", Scan.merged, tasks.each("scan", scanner, arguments))
        stats = [scan.stats[i] for i in range(len(parts))]
        starts = np.cumsum([0] + [own.n_rows for own in stats])
        n_given = sum(own.n_given for own in stats)
        if not starts[-1]:
            what = "samples of positive weight" if n_given else "samples"
            raise ValueError(f"Invalid input - all blocks together have no {what}.")
        groups = [own for group in groups if (own := [i for i in group if stats[i].n_rows])]
        first = _agreed([own for own in stats if own.n_rows])
        for each in (model, plain):
            each.n_features_in_ = first.n_features
            if first.names is not None:
                each.feature_names_in_ = first.names
        classes = scan.labels
        if classes is not None and hasattr(model, "predict"):
            masked = bool(starts[-1] < n_given)
            classes, _ = check_labels(classes, type(model).__name__, masked)
        return cls(
            tasks,
            parts,
            stats,
            Reader(plain, negative, classes),
            groups,
            scan.known(asked, starts),
            scan.prefetched_rows(starts),
        )

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def weights(self) -> Blocks | None:
        """Itself, for those who ask whether there are weights; or None."""
        there = self.parts[0][2] is not None or self.reader.factors is not None
        return self if there else None

    def with_class_weights(self, class_weight: Any, *, bounds: bool = False) -> Blocks:
        """These rows, weighted by class too; see `class_factors`."""
        if class_weight is None:
            return self
        assert self.classes is not None
        factors = class_factors(class_weight, self.classes, self.class_mass, bounds=bounds)
        return replace(self, reader=self.reader._replace(factors=factors), known={})

    def class_sizes(self) -> np.ndarray:
        """Number of rows of each class."""
        return self._by_class("counts")

    def class_mass(self) -> np.ndarray:
        """Weight of each class, without class weights, as `class_mass` of the estimators."""
        return self._by_class("mass")

    def _by_class(self, name: str) -> np.ndarray:
        assert self.classes is not None
        total = np.zeros(len(self.classes), getattr(self.filled[0], name).dtype)
        for own in self.filled:
            total[np.searchsorted(self.classes, own.labels)] += getattr(own, name)
        return total

    def one_by_one(self) -> list[list[int]]:
        """Groups of one block each, in their order."""
        return [[i] for i in sorted(i for group in self.groups for i in group)]

    def each(
        self,
        name: str,
        function: Callable[..., Any],
        groups: list[list[int]] | None = None,
        given: dict[int, Any] | None = None,
    ) -> list[Any]:
        """A task ``function(blocks)`` for each group of blocks.

        ``blocks`` gives (rows, start, given[i]) of one block after the other, the number of its
        first row being the start. With ``given`` only the blocks that it has are taken.
        """
        groups = self.groups if groups is None else groups
        if given is None:
            given = dict.fromkeys(i for group in groups for i in group)
        arguments = [
            tuple(
                (*self.parts[i], int(self.starts_given[i]), int(self.starts[i]), given[i])
                for i in group
                if i in given
            )
            for group in groups
        ]
        task = partial(_on_rows, self.reader, function)
        return self.tasks.each(name, task, [own for own in arguments if own])

    def over_rows(
        self, task: Callable[..., Any], merge: Any, y: bool, weights: bool, name: str
    ) -> Any:
        """See :func:`gpurbf.data.row_blocks.over_rows`."""
        if task in self.known:
            return self.known[task]
        parts = self.each(name, partial(_over_rows, task, merge, y, weights))
        return self.tasks.total(name, partial(_reduced, merge), parts)

    def take(self, rows: np.ndarray) -> Rows:
        """Some rows, by their numbers."""
        given, _ = by_block(rows, self.starts)
        found = self.tasks.results(self.each("rows", _taken, given=given))
        ranks = np.argsort(np.argsort(rows, kind="stable"), kind="stable")
        return Rows.in_order(found).at(ranks)

    def __getitem__(self, rows: Any) -> np.ndarray:
        if isinstance(rows, slice):
            rows = np.arange(len(self))[rows]
        if self.prefetched is not None:
            numbers, values = self.prefetched
            at = np.minimum(np.searchsorted(numbers, rows), len(numbers) - 1)
            if np.array_equal(numbers[at], rows):
                return values[at]
        return self.take(rows).X

    @contextmanager
    def finite(self, model: Any) -> Iterator[None]:
        """Numbers that overflow in the block are an error that names the column and the cure."""
        try:
            yield
        except FloatingPointError as error:
            largest = self.over_rows(_largest, np.maximum, False, False, "largest")
            raise overflow(model, largest, str(error)) from None


def row_blocks(A: Any, like: Any = None) -> list[Any]:
    """Blocks of rows of a dask array or data frame, or of a list of delayed or future ones.

    ``like``: the samples whose labels or weights these are; an array here is cut as they are.
    """
    if isinstance(A, (list, tuple)) and all(hasattr(block, "key") for block in A):
        if A:
            return list(A)
        raise ValueError("There are no blocks: the list is empty.")
    cut: Any = like.chunks[0] if isinstance(like, da.Array) else None
    known = cut is not None and not np.isnan(cut).any()
    if not hasattr(A, "to_delayed"):
        if known and np.shape(A) == (sum(cut),):
            A = da.from_array(np.asarray(A), chunks=(cut,))
        else:
            raise TypeError(
                "gpurbf.dask takes dask arrays, data frames and lists of delayed blocks, got "
                f"{type(A).__name__}: for arrays in memory use the estimators of gpurbf."
            )
    if isinstance(A, da.Array):
        if A.ndim == 2 and A.numblocks[1] > 1:
            A = A.rechunk({1: -1})
        if known and A.chunks[0] != cut and not np.isnan(A.chunks[0]).any():
            A = A.rechunk({0: cut})
    return list(np.ravel(A.to_delayed()))


def aligned_blocks(X: Any, y: Any, sample_weight: Any) -> list[tuple[Any, Any, Any]]:
    """Samples, labels or None, and weights or None of each block of rows."""
    blocks = row_blocks(X)
    columns = (row_blocks(A, like=X) if A is not None else None for A in (y, sample_weight))
    labels, weights = (column or [None] * len(blocks) for column in columns)
    if not len(blocks) == len(labels) == len(weights):
        raise ValueError(
            f"X has {len(blocks)} blocks, y and sample_weight {len(labels)} and {len(weights)}: "
            "give them the same blocks of rows."
        )
    return list(zip(blocks, labels, weights))


def by_block(rows: np.ndarray, starts: np.ndarray) -> tuple[dict[int, np.ndarray], np.ndarray]:
    """Split numbers of rows by block, and where in ``rows`` those of one block after the other are.

    Returns
    -------
    places : dict
        By number of the block the places in it.
    back : ndarray
        ``values[back]`` of values of one block after the other are in the order of ``rows``.
    """
    block = np.searchsorted(starts, rows, side="right") - 1
    places = {i: rows[block == i] - starts[i] for i in np.unique(block).tolist()}
    return places, np.argsort(np.argsort(block, kind="stable"), kind="stable")


def _agreed(stats: list[BlockStats]) -> BlockStats:
    """The first statistics; blocks of different columns or types are refused."""
    first = stats[0]
    for what in ("n_features", "dtype", "names"):
        for own in stats:
            if not np.array_equal(getattr(own, what), getattr(first, what)):
                raise ValueError(
                    f"Blocks differ in {what}: {getattr(first, what)} and {getattr(own, what)}."
                )
    return first


def _joined(found: Sequence[Any], places: list[np.ndarray]) -> Any:
    """Results of a task in several scans as one, where ``places`` number the classes of each."""
    if not isinstance(found[0], Distinct):
        return functools.reduce(operator.add, found)
    if found[0].labels is not None:
        found = [own._replace(labels=to[own.labels]) for own, to in zip(found, places)]
    return Distinct.merged(*found)


def _row_numbers(first: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Numbers of rows that a scan has numbered by block and place, where blocks start there."""
    block, place = np.divmod(first, 1 << _ROW_BITS)
    return starts[block] + place


def _on_rows(reader: Reader, function: Callable[..., Any], *blocks: tuple[Any, ...]) -> Any:
    """Call the function with an iterator that reads one block after the other."""

    def read() -> Iterator[tuple[Rows, int, Any]]:
        for X, y, weights, start_given, start, given in blocks:
            rows = reader(X, y, weights)
            yield rows._replace(places=start_given + rows.places), start, given

    return function(read())


def _over_rows(
    task: Callable[..., Any],
    merge: Callable[[Any, Any], Any],
    y: bool,
    weights: bool,
    blocks: Iterator[tuple[Rows, int, None]],
) -> Any:
    """Merged results of a task of `over_rows` for some blocks."""
    found = (
        task(rows.X, rows.y if y else None, rows.weights if weights else None, start)
        for rows, start, _ in blocks
    )
    return functools.reduce(merge, found)


def _reduced(merge: Callable[[Any, Any], Any], *parts: Any) -> Any:
    return functools.reduce(merge, parts)


def _taken(blocks: Iterator[tuple[Rows, int, np.ndarray]]) -> Rows:
    return Rows.joined(rows.at(places) for rows, _, places in blocks)


def _largest(X: np.ndarray, y: None, weights: None, first: int) -> np.ndarray:
    return np.abs(X).max(axis=0, initial=0)[None]
