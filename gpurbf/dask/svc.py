"""SVC on a cluster: pairs of classes are tasks, or several of few classes, the largest first."""

from __future__ import annotations

import functools
import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement
from typing import Any, NamedTuple

import distributed
import numpy as np
from dask.sizeof import sizeof

from gpurbf.backends import Lattice
from gpurbf.backends.lattice import candidates, encode, sample_of
from gpurbf.backends.threads import limited
from gpurbf.dask.blocks import Blocks
from gpurbf.dask.parts import regrouped
from gpurbf.dask.rows import Rows
from gpurbf.dask.twin import ClassifierTwin, twin_of
from gpurbf.estimators import svc
from gpurbf.estimators._callbacks import CallbackSupportMixin, with_callbacks
from gpurbf.estimators._svc_checks import check_parameters
from gpurbf.estimators._svc_outputs import KERNELS
from gpurbf.estimators._svc_progress import Progress
from gpurbf.network.samples import FORCED, Samples, look
from gpurbf.network.solvers.smo import Solution
from gpurbf.network.svm import Groups, PairModels, group_samples, solve_samples

__all__ = ["SVC"]

# The priority of what all pairs wait for: theirs are 0, -1, …, the largest first.
_BEFORE_PAIRS = 1


@twin_of(svc.SVC)
class SVC(CallbackSupportMixin, ClassifierTwin):
    """:class:`gpurbf.SVC` for data on a Dask cluster: the same problems, a task for each pair.

    Parameters
    ----------
    **parameters
        Those of :class:`gpurbf.SVC`; the kernel is one of its names. A task takes `n_jobs` threads,
        by default one.
    client : distributed.Client, optional
        By default the one that is there.

    Notes
    -----
    A task is a pair; with few workers it is several pairs of the same classes, which share kernel
    rows. For the time of the fit the samples of a class, or of some, are brought together on a
    worker, and sent to those that solve its pairs. To the client come the support vectors.
    """

    @with_callbacks
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> SVC:
        """Train on samples and their labels.

        Parameters
        ----------
        X : dask array, dask data frame or list of delayed blocks
        y : dask array, dask series or list of delayed blocks
        sample_weight : dask array, dask series or list of delayed blocks, optional

        Returns
        -------
        self : SVC
        """
        model = self._new_model()
        check_parameters(model, tuple(KERNELS))
        if callable(model.kernel) or model.kernel == "precomputed":
            raise ValueError(
                f"kernel={model.kernel!r} needs the matrix of all samples: on a cluster use one of "
                f"{list(KERNELS)}."
            )
        blocks = Blocks.of(self, model, X, y, sample_weight, negative=True)
        model.classes_ = blocks.classes
        model.shape_fit_ = blocks.n_given, blocks.shape[1]
        model._fitted_kernel, model._sparse, model._tol = model.kernel, False, float(model.tol)
        weighted = blocks.with_class_weights(model.class_weight)
        factors = weighted.reader.factors
        model.class_weight_ = np.ones(len(model.classes_)) if factors is None else factors
        parts = _Parts.of(weighted)  # on their way while gamma is found
        with limited(self.n_jobs):
            model._activation = model._resolve(blocks, blocks.weights)
        model._lattices = _lattices(blocks, model.precision)
        with blocks.finite(model):
            model._keep(*self._train(model, blocks, parts, (X, y)))
        self.model_ = model
        return self

    def _train(
        self, model: svc.SVC, blocks: Blocks, parts: _Parts, data: tuple[Any, Any]
    ) -> tuple[np.ndarray, np.ndarray, PairModels]:
        """Places and values of the support vectors, and the pairs that they are of."""
        tasks, n_classes, tiles = blocks.tasks, len(model.classes_), parts.tiles
        pairs = list(combinations(range(n_classes), 2))
        names = [model.classes_[list(pair)] for pair in pairs]
        progress = Progress(self, names, *data)
        order = _Order(float(model.C), not _uniform(blocks), model.precision, model._lattices)
        ready = tasks.each("class-sorted", order, [(one, parts.repeated) for one in parts.rows])
        ready = tasks.start(ready, priority=_BEFORE_PAIRS)
        solve, sizes = _Solve(model, len(blocks)), blocks.class_sizes()
        costs = [sum(int(sizes[c]) for pair in tile.pairs for c in pair) for tile in tiles]
        waiting = {}
        for n_larger, (i, where) in enumerate(_evenly(costs, blocks.homes.threads)):
            given = tiles[i].inside, *(ready[part] for part in tiles[i].parts)
            [task] = tasks.each("pairs", solve, [given])
            waiting[tasks.start(task, priority=-n_larger, **where)] = tiles[i].pairs
        solved: dict[tuple[int, int], _Pair] = {}
        for future, found in distributed.as_completed(waiting, with_results=True):
            for pair, one in zip(waiting[future], found):
                solved[pair] = one
                progress.solved(pairs.index(pair), one.solution)
        progress.finish()
        support, models = _assembled([solved[pair] for pair in pairs], pairs, n_classes)
        own = [np.concatenate([support[c] for c in part]) for part in parts.classes]
        chosen = tasks.each("support-vectors", Rows.at, list(zip(parts.rows, own)))
        vectors = Rows.joined(tasks.results(chosen))
        return vectors.places, vectors.X, models


def _lattices(blocks: Blocks, precision: str) -> tuple[Lattice, ...] | None:
    """The lattice that all samples are on, if there is one; None where nobody is to look."""
    if precision in FORCED:
        return None
    if blocks.dtype == np.uint8:
        return (Lattice(1.0, 0),)
    some = candidates(sample_of(blocks))  # type: ignore[arg-type]
    on = blocks.over_rows(_OnLattices(some), np.logical_and, False, False, "lattice")
    return tuple(lattice for lattice, every in zip(some, on) if every)[:1]


@dataclass(frozen=True)
class _OnLattices:
    lattices: list[Lattice]

    def __call__(self, X: np.ndarray, y: None, weights: None, first: int) -> np.ndarray:
        return np.array([not encode(X, lattice)[1].any() for lattice in self.lattices], bool)


class _Parts(NamedTuple):
    """The samples brought together by class: futures of each part and of whether samples repeat."""

    classes: list[list[int]]
    tiles: list[_Tile]
    rows: list[Any]
    repeated: list[Any]

    @classmethod
    def of(cls, blocks: Blocks) -> _Parts:
        """The parts of as many tiles as make three tasks a thread."""
        tasks = blocks.tasks
        classes, tiles = _tiles(len(blocks.class_sizes()), 3 * blocks.homes.n_threads)
        part_of = _PartOf(np.array([part[-1] for part in classes]))
        rows = regrouped(blocks, "classes", part_of, len(classes))
        repeated = tasks.each("repeats", _repeats, [(part,) for part in rows])
        futures = tasks.start([*rows, *repeated], priority=_BEFORE_PAIRS)
        return cls(classes, tiles, futures[: len(rows)], futures[len(rows) :])


@dataclass(frozen=True)
class _PartOf:
    """The part that samples belong to, of parts that end with these classes."""

    ends: np.ndarray

    def __call__(self, rows: Rows) -> np.ndarray:
        return np.searchsorted(self.ends, rows.y)


def _repeats(rows: Rows) -> bool:
    """Whether there are equal samples of one class."""
    return len(group_samples(rows.X, rows.y - rows.y.min(), None).first) < len(rows.X)


def _uniform(blocks: Blocks) -> bool:
    """Whether all samples have one weight."""
    if blocks.weights is None:
        return True
    least, most = blocks.over_rows(_ends, _wider, False, True, "weights")
    return least == most


def _ends(X: Any, y: None, weights: np.ndarray, first: int) -> tuple[float, float]:
    return weights.min(), weights.max()


def _wider(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    return min(a[0], b[0]), max(a[1], b[1])


class _Classes(NamedTuple):
    """Some classes as the solver takes them: a sample of each group in its order, bounds of all."""

    samples: Samples
    groups: Groups
    C: np.ndarray

    def and_those(self, others: _Classes) -> _Classes:
        """These classes, then the others."""
        ours, theirs, there = self.groups, others.groups, self.samples
        values = np.concatenate([there.values, others.samples.values])
        return _Classes(
            Samples(values, there.lattice, there.dtype),
            Groups(
                np.concatenate([ours.members, len(self.C) + theirs.members]),
                np.concatenate([ours.starts, len(self.C) + theirs.starts[1:]]),
                np.concatenate([ours.class_starts, len(there) + theirs.class_starts[1:]]),
            ),
            np.concatenate([self.C, others.C]),
        )

    def members(self, c: int) -> np.ndarray:
        """The numbers of the samples of a class."""
        starts, ends = self.groups.starts, self.groups.class_starts
        return self.groups.members[starts[ends[c]] : starts[ends[c + 1]]]


@sizeof.register(Samples)
def _size(samples: Samples) -> int:
    """Bytes, by which Dask decides what to move and what to keep."""
    return samples.values.nbytes


@dataclass(frozen=True)
class _Order:
    """Puts the samples of some classes in the solver's order."""

    C: float
    by_key: bool
    precision: str
    lattices: tuple[Lattice, ...] | None

    def __call__(self, rows: Rows, repeated: list[bool]) -> _Classes:
        # Without equal samples anywhere there is nothing to compare, and they keep their order.
        by_key = self.by_key or any(repeated)
        codes = rows.y - rows.y.min()
        groups = group_samples(rows.X if by_key else None, codes, None, by_key=by_key)
        bounds = np.full(len(rows.X), self.C)
        if rows.weights is not None:
            bounds = rows.weights * self.C
        samples = look(rows.X, self.precision, self.lattices)
        return _Classes(samples[groups.first], groups, bounds)


class _Pair(NamedTuple):
    """A solved pair: of each of its classes the support vectors' numbers and coefficients."""

    numbers: list[np.ndarray]
    values: list[np.ndarray]
    solution: Solution
    backend: str
    description: str


@dataclass(frozen=True)
class _Solve:
    """Solves pairs of some classes as the local twin does among all samples."""

    model: svc.SVC
    n_samples: int

    def __call__(self, pairs: list[tuple[int, int]], *parts: _Classes) -> list[_Pair]:
        model, own = self.model, functools.reduce(_Classes.and_those, parts)
        table, solutions, kernel = solve_samples(
            own.samples,
            own.C,
            model._activation,
            groups=own.groups,
            backend=model.backend,
            precision=model.precision,
            tol=model._tol,
            max_iter=model.max_iter,
            cache_bytes=model.cache_size * 2**20,
            stepped=_goes_on,
            solved=_goes_on,
            n_samples=self.n_samples,
            pairs=pairs,
        )
        # As they are numbered in their part.
        inside = np.concatenate([np.arange(len(part.C)) for part in parts])
        found = []
        for (a, b), solution in zip(pairs, solutions):
            numbers, values = [], []
            for c, row in ((a, b - 1), (b, a)):
                members = own.members(c)
                support = members[table[row, members] != 0]
                numbers.append(inside[support])
                values.append(table[row, support])
            solution.beta = solution.beta[solution.beta != 0]
            found.append(_Pair(numbers, values, solution, kernel.backend, kernel.description))
        return found


class _Tile(NamedTuple):
    """Pairs of classes that share kernel rows, their parts, and their numbers there."""

    pairs: list[tuple[int, int]]
    parts: list[int]
    inside: list[tuple[int, int]]


def _tiles(n_classes: int, wanted: int) -> tuple[list[list[int]], list[_Tile]]:
    """Parts of all classes, and all pairs in so many tiles, each of one part or of two.

    Of as few parts as give tiles enough; of a part for each class if there are not.
    """
    for n_parts in range(1, n_classes + 1):
        parts = [part.tolist() for part in np.array_split(np.arange(n_classes), n_parts)]
        tiles = []
        for both in combinations_with_replacement(range(n_parts), 2):
            own = sorted(set(both))
            classes = [c for i in own for c in parts[i]]
            pairs = [(a, b) for a in parts[both[0]] for b in parts[both[1]] if a < b]
            inside = [(classes.index(a), classes.index(b)) for a, b in pairs]
            if pairs:
                tiles.append(_Tile(pairs, own, inside))
        if len(tiles) >= wanted:
            break
    return parts, tiles


def _evenly(costs: list[int], threads: dict[str, int]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Tasks of these costs, the largest first, each for the thread that has least to do.

    Dask takes all tasks of a name to cost the same.
    """
    load = [(0, worker) for worker, n_threads in threads.items() for _ in range(n_threads)]
    for i in sorted(range(len(costs)), key=costs.__getitem__, reverse=True):
        if not load:  # workers are yet to come
            yield i, {}
            continue
        least, worker = load[0]
        heapq.heapreplace(load, (least + costs[i], worker))
        yield i, {"workers": [worker], "allow_other_workers": True}


def _goes_on(*args: Any) -> bool:
    return False


def _assembled(
    found: list[_Pair], pairs: list[tuple[int, int]], n_classes: int
) -> tuple[list[np.ndarray], PairModels]:
    """The support vectors' numbers in each class, and their coefficients in LIBSVM's layout."""
    own: list[list[np.ndarray]] = [[np.empty(0, np.int64)] for _ in range(n_classes)]
    for pair, result in zip(pairs, found):
        for c, numbers in zip(pair, result.numbers):
            own[c].append(numbers)
    support = [np.unique(np.concatenate(numbers)) for numbers in own]
    n_support = np.array([len(numbers) for numbers in support])
    starts = np.cumsum(n_support) - n_support
    table = np.zeros((n_classes - 1, n_support.sum()))
    for (a, b), result in zip(pairs, found):
        for c, row, numbers, values in zip((a, b), (b - 1, a), result.numbers, result.values):
            table[row, starts[c] + np.searchsorted(support[c], numbers)] = values
    solutions, first = [result.solution for result in found], found[0]
    places = np.arange(n_support.sum())
    models = PairModels(places, n_support, table, solutions, first.backend, first.description)
    return support, models
