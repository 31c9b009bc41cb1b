"""SVC on a cluster: pairs of classes are tasks, or several of few classes, the largest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Any, NamedTuple

import distributed
import numpy as np

from gpurbf.centers.sample import Distinct, Race
from gpurbf.dask.blocks import Blocks
from gpurbf.dask.rows import Rows
from gpurbf.dask.tiles import Queue, Tile, ending_in_pairs, tiles_of
from gpurbf.dask.twin import ClassifierTwin, twin_of
from gpurbf.data.quantize import Quantization, candidates, encode, sample_of
from gpurbf.data.samples import FORCED, quantize_or_keep
from gpurbf.estimators import svc
from gpurbf.estimators._base import CallbackSupportMixin, with_callbacks
from gpurbf.estimators.svc import KERNELS, Progress, check_parameters
from gpurbf.runtime.threads import limited
from gpurbf.svm.binary import Solution
from gpurbf.svm.train import PairModels, group_samples, solve_samples

# Tasks of pairs that a thread has, with the one that it works on.
_AHEAD = 2
# Finds samples that are there twice; of this seed are the keys by which such are sorted.
_RACE = Race(0, by_class=True)


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
    rows. For the time of the fit each worker has its blocks once more, split by class, and pieces
    go to those that solve pairs of their classes. To the client come the support vectors, and 40
    bytes of each distinct sample, by which those that are there twice are known.
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
        check_parameters(model)
        if callable(model.kernel) or model.kernel == "precomputed":
            raise ValueError(
                f"kernel={model.kernel!r} needs the matrix of all samples: on a cluster use one of "
                f"{list(KERNELS)}."
            )
        blocks = Blocks.of(self, model, X, y, sample_weight, negative=True, race=_RACE)
        model.classes_ = blocks.classes
        model.shape_fit_ = blocks.n_given, blocks.shape[1]
        model._fitted_kernel, model._sparse, model._tol = model.kernel, False, float(model.tol)
        weighted = blocks.with_class_weights(model.class_weight, bounds=True)
        factors = weighted.reader.factors
        model.class_weight_ = np.ones(len(model.classes_)) if factors is None else factors
        parts = _Parts.of(weighted)  # on their way while gamma is found
        with limited(self.n_jobs):
            model._activation = model._resolve(blocks, blocks.weights)
        model._quantizations = _quantizations(blocks, model.precision)
        with blocks.finite(model):
            solve = _Solve.among(blocks, model)
            model._keep(*self._train(solve, weighted, parts, (X, y)))
        self.model_ = model
        return self

    def _train(
        self, solve: _Solve, blocks: Blocks, parts: _Parts, data: tuple[Any, Any]
    ) -> tuple[np.ndarray, np.ndarray, PairModels]:
        """Places and values of the support vectors, and the pairs that they are of."""
        tasks, tiles, sizes = blocks.tasks, parts.tiles, blocks.class_sizes()
        classes: Any = blocks.classes
        pairs = list(combinations(range(len(sizes)), 2))
        progress = Progress(self, [classes[list(pair)] for pair in pairs], *data)
        costs = [sum(int(sizes[c]) for pair in tile.pairs for c in pair) for tile in tiles]
        queue = Queue(costs, blocks.homes.threads)
        solved: dict[tuple[int, int], _Pair] = {}

        def begun() -> Any:
            i, where = queue.next()
            own = [piece for part in tiles[i].parts for piece in parts.pieces[part]]
            [task] = tasks.each("pairs", solve, [(tiles[i].pairs, *own)])
            future = tasks.start(task, **where)
            waiting[future] = i
            return future

        # None is let go of before the last tasks have begun, see `Tasks.results`.
        waiting: dict[Any, int] = {}
        first = [begun() for _ in range(min(len(tiles), _AHEAD * blocks.homes.n_threads))]
        running = distributed.as_completed(first)
        for ended in running.batches():
            for future in ended:
                queue.done(waiting[future])
                if queue:
                    running.add(begun())
            for future, found in zip(ended, tasks.gathered(ended)):
                for pair, one in zip(tiles[waiting[future]].pairs, found):
                    solved[pair] = one
                    progress.solved(pairs.index(pair), one.solution)
        progress.finish()
        support, models = _assembled([solved[pair] for pair in pairs], pairs, len(sizes))
        chosen = _Chosen(np.sort(np.concatenate(support)))
        found = tasks.results(tasks.each("support-vectors", chosen, list(zip(*parts.pieces))))
        vectors = Rows.in_order(found, by_class=True)
        return vectors.places, vectors.X, models


def _quantizations(blocks: Blocks, precision: str) -> tuple[Quantization, ...] | None:
    """The quantization that all samples are on, if there is one; None where nobody is to look."""
    if precision in FORCED:
        return None
    if blocks.dtype == np.uint8:
        return (Quantization(1.0, 0),)
    some = tuple(candidates(sample_of(blocks)))  # type: ignore[arg-type]
    on = blocks.over_rows(_OnQuantizations(some), np.logical_and, False, False, "quantization")
    return tuple(quantization for quantization, every in zip(some, on) if every)[:1]


@dataclass(frozen=True)
class _OnQuantizations:
    quantizations: tuple[Quantization, ...]

    def __call__(self, X: np.ndarray, y: None, weights: None, first: int) -> np.ndarray:
        return np.array(
            [not encode(X, quantization)[1].any() for quantization in self.quantizations], bool
        )


class _Parts(NamedTuple):
    """The samples by class: the tiles of all pairs, and futures of each part's pieces."""

    tiles: list[Tile]
    pieces: list[list[Any]]

    @classmethod
    def of(cls, blocks: Blocks) -> _Parts:
        """The parts of as many tiles as make three tasks a thread."""
        n_threads = blocks.homes.n_threads
        classes, tiles = tiles_of(len(blocks.class_sizes()), 3 * n_threads)
        pieces = [blocks.each("classes", _OfClasses(part)) for part in classes]
        there = blocks.tasks.start(list(chain(*pieces)))
        n = len(pieces[0])
        own = [there[i : i + n] for i in range(0, len(there), n)]
        return cls(ending_in_pairs(tiles, 2 * n_threads), own)


@dataclass(frozen=True)
class _OfClasses:
    """The rows of some blocks that are of these classes."""

    classes: list[int]

    def __call__(self, looked: Iterator[tuple[Rows, int]]) -> Rows:
        return Rows.joined(_of(self.classes, rows) for rows, _ in looked)


def _of(classes: list[int], rows: Rows) -> Rows:
    """The rows that are of these classes; the same ones if all are."""
    of_them = np.isin(rows.y, classes)
    return rows if of_them.all() else rows.at(of_them)


@dataclass(frozen=True)
class _Chosen:
    """The rows of these places, of the pieces of a block."""

    places: np.ndarray

    def __call__(self, *pieces: Rows) -> Rows:
        return Rows.joined(rows.at(np.isin(rows.places, self.places)) for rows in pieces)


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


class _Pair(NamedTuple):
    """A solved pair: of each of its classes the support vectors' places and coefficients."""

    places: list[np.ndarray]
    values: list[np.ndarray]
    solution: Solution
    backend: str
    description: str


@dataclass(frozen=True)
class _Solve:
    """Solves pairs of some classes as the local twin does among all samples.

    ``sizes`` are of all classes, equal samples counted once.
    """

    model: svc.SVC
    sizes: np.ndarray
    by_key: bool

    @classmethod
    def among(cls, blocks: Blocks, model: svc.SVC) -> _Solve:
        """For pairs of these samples; their weights are as given, without those of classes."""
        distinct = blocks.over_rows(_RACE, Distinct.merged, True, False, "repeats")
        by_key = len(distinct.first) < len(blocks) or not _uniform(blocks)
        return cls(model, np.bincount(distinct.labels), by_key)

    def __call__(self, pairs: list[tuple[int, int]], *pieces: Rows) -> list[_Pair]:
        model, wanted = self.model, sorted({c for pair in pairs for c in pair})
        rows = Rows.in_order((_of(wanted, piece) for piece in pieces), by_class=True)
        classes, codes = np.unique(rows.y, return_inverse=True)
        # Without equal samples anywhere there is nothing to compare, and they keep their order.
        groups = group_samples(rows.X if self.by_key else None, codes, None, by_key=self.by_key)
        samples = quantize_or_keep(rows.X, model.precision, model._quantizations)
        C = np.full(len(codes), float(model.C))
        table, solutions, kernel = solve_samples(
            samples[groups.first] if self.by_key else samples,
            C if rows.weights is None else rows.weights * model.C,
            model._activation,
            groups=groups,
            backend=model.backend,
            precision=model.precision,
            tol=model._tol,
            max_iter=model.max_iter,
            cache_bytes=model.cache_size * 2**20,
            stepped=_goes_on,
            solved=_goes_on,
            sizes=self.sizes,
            pairs=[tuple(np.searchsorted(classes, pair).tolist()) for pair in pairs],
        )
        starts, found = np.searchsorted(codes, np.arange(len(classes) + 1)), []
        for pair, solution in zip(np.searchsorted(classes, pairs), solutions):
            places, values = [], []
            for c, row in zip(pair, (pair[1] - 1, pair[0])):
                own = np.arange(starts[c], starts[c + 1])
                support = own[table[row, own] != 0]
                places.append(rows.places[support])
                values.append(table[row, support])
            solution.beta = solution.beta[solution.beta != 0]
            found.append(_Pair(places, values, solution, kernel.backend, kernel.description))
        return found


def _goes_on(*args: Any) -> bool:
    return False


def _assembled(
    found: list[_Pair], pairs: list[tuple[int, int]], n_classes: int
) -> tuple[list[np.ndarray], PairModels]:
    """The support vectors' places in each class, and their coefficients in LIBSVM's layout."""
    own: list[list[np.ndarray]] = [[np.empty(0, np.int64)] for _ in range(n_classes)]
    for pair, result in zip(pairs, found):
        for c, places in zip(pair, result.places):
            own[c].append(places)
    support = [np.unique(np.concatenate(places)) for places in own]
    n_support = np.array([len(places) for places in support])
    starts = np.cumsum(n_support) - n_support
    table = np.zeros((n_classes - 1, n_support.sum()))
    for (a, b), result in zip(pairs, found):
        for c, row, places, values in zip((a, b), (b - 1, a), result.places, result.values):
            table[row, starts[c] + np.searchsorted(support[c], places)] = values
    solutions, first = [result.solution for result in found], found[0]
    order = np.arange(n_support.sum())
    models = PairModels(order, n_support, table, solutions, first.backend, first.description)
    return support, models
