"""The samples of a fit where they are: blocks of rows with their labels and weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np

from gpurbf.centers.sample import Race
from gpurbf.dask.graph import Settings, Tasks, find_client
from gpurbf.dask.homes import Homes
from gpurbf.dask.looks import Facts, Look, Looked
from gpurbf.dask.rows import Reader, Rows
from gpurbf.estimators._validation import check_labels, class_factors, class_mass, overflow


class Blocks:
    """All rows of a fit; of the methods that arrays have it has those that centers are chosen by.

    Parameters
    ----------
    tasks : Tasks
    parts : list of tuple
        Of each block its first row's number, samples, labels or None, and weights or None, as they
        were given.
    facts : list of Facts
    reader : Reader
    n_given : int
        Rows with those of weight 0.
    homes : Homes
        Of each block the worker.
    known : dict
        What tasks of `over_rows` would find.
    ahead : tuple of ndarray or None
        Numbers, in their order, and values of rows that the client has.
    """

    def __init__(
        self,
        tasks: Tasks,
        parts: list[tuple[Any, ...]],
        facts: list[Facts],
        reader: Reader,
        n_given: int,
        homes: Homes,
        known: dict[Any, Any],
        ahead: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> None:
        self.ahead = ahead
        self.tasks, self.parts, self.facts, self.reader = tasks, parts, facts, reader
        self.n_given, self.homes, self.known = n_given, homes, known
        self.starts = np.cumsum([0] + [fact.n_rows for fact in facts])
        self.shape = int(self.starts[-1]), facts[0].n_features
        self.dtype = facts[0].dtype
        self.classes = reader.classes

    @classmethod
    def of(
        cls,
        estimator: Any,
        model: Any,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        negative: bool = False,
        race: Race | None = None,
        winners: int | str = 0,
        sample: Race | None = None,
    ) -> Blocks:
        """Look at all blocks once; ``model``, the local twin, gets what validation sets.

        A race that will be asked for takes place at once, and so do one that keeps a sample and
        sums for gamma; rows that may be among so many winners come with the look.

        Raises
        ------
        ValueError, TypeError
            As the local twin does, or because blocks do not agree with each other.
        """
        tasks = Tasks(find_client(estimator.client), Settings.of(getattr(model, "n_jobs", None)))
        blocks = row_blocks(X)
        columns = (row_blocks(A, like=X) if A is not None else None for A in (y, sample_weight))
        labels, weights = (column or [None] * len(blocks) for column in columns)
        if not len(blocks) == len(labels) == len(weights):
            raise ValueError(
                f"X has {len(blocks)} blocks, y and sample_weight {len(labels)} and "
                f"{len(weights)}: give them the same blocks of rows."
            )
        # Whatever the parameters are, data are validated in one way.
        plain = type(model)()
        sums = isinstance(gamma := getattr(model, "gamma", None), str) and gamma == "scale"
        look = Look(plain, negative, sums, race, winners, len(blocks), sample)
        homes = Homes.of(tasks, blocks)
        given_as = list(zip(range(len(blocks)), blocks, labels, weights))
        groups = [tuple(given_as[i] for i in own) for own in homes.groups()]
        looked = tasks.total("look", Looked.joined, tasks.each("look", look, groups))
        every: list[Facts] = [looked.facts[i] for i in range(len(blocks))]
        given = np.cumsum([0] + [fact.n_given for fact in every])
        kept = [i for i, fact in enumerate(every) if fact.n_rows]
        if not kept:
            what = "samples of positive weight" if given[-1] else "samples"
            raise ValueError(f"Invalid input - all blocks together have no {what}.")
        facts = [every[i] for i in kept]
        parts = [(int(given[i]), blocks[i], labels[i], weights[i]) for i in kept]
        _check_alike(facts)
        first = facts[0]
        for each in (model, plain):
            each.n_features_in_ = first.n_features
            if first.names is not None:
                each.feature_names_in_ = first.names
        starts, classes = np.cumsum([0] + [fact.n_rows for fact in every]), looked.labels
        if classes is not None and hasattr(model, "predict"):
            masked = bool(starts[-1] < given[-1])
            classes, _ = check_labels(classes, type(model).__name__, masked)
        reader, known = Reader(plain, negative, classes), looked.known(race, sample, starts)
        ahead, homes = looked.rows_ahead(starts), homes.at(kept)
        return cls(tasks, parts, facts, reader, int(given[-1]), homes, known, ahead)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def weights(self) -> Blocks | None:
        """Itself, for those who ask whether there are weights; or None."""
        there = self.parts[0][3] is not None or self.reader.factors is not None
        return self if there else None

    def with_class_weights(self, class_weight: Any, *, bounds: bool = False) -> Blocks:
        """These rows, weighted by class too; see `class_factors`."""
        if class_weight is None:
            return self
        assert self.classes is not None
        factors = class_factors(class_weight, self.classes, self.class_mass, bounds=bounds)
        reader = self.reader._replace(factors=factors)
        return Blocks(self.tasks, self.parts, self.facts, reader, self.n_given, self.homes, {})

    def class_sizes(self) -> np.ndarray:
        """How many rows each class has."""
        assert self.classes is not None
        sizes = np.zeros(len(self.classes), np.int64)
        for fact in self.facts:
            sizes[np.searchsorted(self.classes, fact.labels)] += fact.counts
        return sizes

    def class_mass(self) -> np.ndarray:
        """The weight of each class, as that of the estimators; the look has counted samples."""
        if self.weights is None:
            return self.class_sizes()
        task = _ClassMass(len(self.class_sizes()))
        return self.over_rows(task, np.add, True, True, "weights")

    def each(
        self,
        name: str,
        function: Callable[..., Any],
        groups: list[list[int]] | None = None,
        own: dict[int, Any] | None = None,
    ) -> list[Any]:
        """A task for each group of blocks: ``function(looked)``.

        ``looked`` gives (rows, start) of one block after the other, the number of its first row
        being the start. With ``own`` it gives (rows, start, own[i]), of those blocks alone.
        """
        groups = self.homes.groups() if groups is None else groups
        if own is not None:
            groups = [some for group in groups if (some := [i for i in group if i in own])]
        arguments = [
            tuple(
                (int(self.starts[i]), *self.parts[i], *(() if own is None else (own[i],)))
                for i in group
            )
            for group in groups
        ]
        return self.tasks.each(name, _OnRows(self.reader, function), arguments)

    def ask(self, *asked: tuple[Any, Any]) -> None:
        """Know what `over_rows` of some tasks, each with its merge, will find, by one pass.

        They are tasks that are given labels and weights.
        """
        tasks, merges = zip(*asked)
        task, merge = functools.partial(_all_asked, tasks), functools.partial(_all_merged, merges)
        found = self.over_rows(task, merge, True, True, "weights")
        self.known.update(zip(tasks, found))

    def over_rows(
        self, task: Callable[..., Any], merge: Any, y: bool, weights: bool, name: str
    ) -> Any:
        """See :func:`gpurbf.data.row_blocks.over_rows`."""
        if task in self.known:
            return self.known[task]
        parts = self.each(name, _Asked(task, merge, y, weights))
        return self.tasks.total(name, functools.partial(_reduced, merge), parts)

    def take(self, rows: Any) -> Callable[[], Rows]:
        """Some rows, on their way here: an array of their numbers, or a slice."""
        if isinstance(rows, slice):
            rows = np.arange(len(self))[rows]
        own, _ = at_home(rows, self.starts)
        coming = self.tasks.start(self.each("rows", _taken, own=own))
        asked = np.argsort(np.argsort(rows, kind="stable"), kind="stable")
        return lambda: Rows.in_order(self.tasks.gathered(coming)).at(asked)

    def __getitem__(self, rows: Any) -> np.ndarray:
        if self.ahead is not None and not isinstance(rows, slice):
            numbers, values = self.ahead
            at = np.minimum(np.searchsorted(numbers, rows), len(numbers) - 1)
            if np.array_equal(numbers[at], rows):
                return values[at]
        return self.take(rows)().X

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


def at_home(rows: np.ndarray, starts: np.ndarray) -> tuple[dict[int, np.ndarray], np.ndarray]:
    """By block the numbers in it of rows of all blocks, and where what they give belongs."""
    home = np.searchsorted(starts, rows, side="right") - 1
    own = {i: rows[home == i] - starts[i] for i in np.unique(home).tolist()}
    return own, np.argsort(np.argsort(home, kind="stable"), kind="stable")


def _check_alike(facts: list[Facts]) -> None:
    """Refuse blocks of different columns or types."""
    for what in ("n_features", "dtype", "names"):
        values = [getattr(fact, what) for fact in facts]
        other = [value for value in values if not np.array_equal(value, values[0])]
        if other:
            raise ValueError(f"Blocks differ in {what}: {values[0]} and {other[0]}.")


@dataclass(frozen=True)
class _OnRows:
    """Reads one block after the other for what works on their rows."""

    reader: Reader
    function: Callable[..., Any]

    def __call__(self, *blocks: tuple[Any, ...]) -> Any:
        return self.function(self._looked(blocks))

    def _looked(self, blocks: tuple[tuple[Any, ...], ...]) -> Iterator[tuple[Any, ...]]:
        for start, given, X, y, weights, *own in blocks:
            rows = self.reader(X, y, weights)
            yield rows._replace(places=given + rows.places), start, *own


@dataclass(frozen=True)
class _Asked:
    """A task of `over_rows`, given what it asks for."""

    task: Callable[..., Any]
    merge: Callable[[Any, Any], Any]
    y: bool
    weights: bool

    def __call__(self, looked: Iterator[tuple[Rows, int]]) -> Any:
        return functools.reduce(self.merge, (self._of(*one) for one in looked))

    def _of(self, rows: Rows, start: int) -> Any:
        return self.task(
            rows.X, rows.y if self.y else None, rows.weights if self.weights else None, start
        )


@dataclass(frozen=True)
class _ClassMass:
    """The weight of each class in a block."""

    n_classes: int

    def __call__(self, X: Any, y: np.ndarray, weights: np.ndarray | None, first: int) -> np.ndarray:
        return class_mass(y, weights, self.n_classes)


def _all_asked(tasks: tuple[Callable[..., Any], ...], *rows: Any) -> tuple[Any, ...]:
    return tuple(task(*rows) for task in tasks)


def _all_merged(merges: tuple[Callable[..., Any], ...], *found: Any) -> tuple[Any, ...]:
    return tuple(merge(*own) for merge, own in zip(merges, zip(*found)))


def _reduced(merge: Callable[[Any, Any], Any], *parts: Any) -> Any:
    return functools.reduce(merge, parts)


def _taken(looked: Iterator[tuple[Rows, int, np.ndarray]]) -> Rows:
    return Rows.joined(rows.at(some) for rows, _, some in looked)


def _largest(X: np.ndarray, y: None, weights: None, first: int) -> np.ndarray:
    return np.abs(X).max(axis=0, initial=0)[None]
