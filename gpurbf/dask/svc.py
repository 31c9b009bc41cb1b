"""SVC on a cluster: pairs of classes are tasks, or several of few classes, the largest first."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement
from typing import Any, NamedTuple

import distributed
import numpy as np
from dask.sizeof import sizeof

from gpurbf.backends import Lattice
from gpurbf.backends.lattice import candidates, encode, sample_of
from gpurbf.backends.threads import limited
from gpurbf.dask.blocks import Blocks, Rows
from gpurbf.dask.parts import regrouped
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
    rows. For the time of the fit the samples of each class are brought together on a worker, and
    sent to those that solve its pairs. To the client come the support vectors.
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
        with limited(self.n_jobs):
            model._activation = model._resolve(blocks, blocks.weights)
        model._lattices = _lattices(blocks, model.precision)
        weighted = blocks.with_class_weights(model.class_weight)
        factors = weighted.reader.factors
        model.class_weight_ = np.ones(len(model.classes_)) if factors is None else factors
        with blocks.finite(model):
            model._keep(*self._train(model, blocks, weighted, (X, y)))
        self.model_ = model
        return self

    def _train(
        self, model: svc.SVC, blocks: Blocks, weighted: Blocks, data: tuple[Any, Any]
    ) -> tuple[np.ndarray, np.ndarray, PairModels]:
        """Places and values of the support vectors, and the pairs that they are of."""
        tasks, n_classes = blocks.tasks, len(model.classes_)
        pairs = list(combinations(range(n_classes), 2))
        names = [model.classes_[list(pair)] for pair in pairs]
        progress = Progress(self, names, *data)
        classes = tasks.start(regrouped(weighted, "classes", _class_of, n_classes))
        repeats = tasks.results(tasks.each("repeats", _repeats, [(one,) for one in classes]))
        by_key = any(repeated for repeated, _ in repeats) or not _uniform(blocks)
        order = _Order(float(model.C), by_key, model.precision, model._lattices)
        # All pairs wait for these: they come before the largest one.
        ready = tasks.each("class-sorted", order, [(one,) for one in classes])
        sorted_ = tasks.start(ready, priority=2 * len(blocks))
        solve = _Solve(model, len(blocks))
        tiles = _tiles(n_classes, 3 * sum(tasks.client.nthreads().values()))
        waiting = {}
        for tile in tiles:
            wanted = sorted({c for pair in tile for c in pair})
            inside = [(wanted.index(a), wanted.index(b)) for a, b in tile]
            own = (inside, *(sorted_[c] for c in wanted))
            size = sum(repeats[c][1] for pair in tile for c in pair)
            [task] = tasks.each("pairs", solve, [own])
            waiting[tasks.start(task, priority=size)] = tile
        solved: dict[tuple[int, int], _Pair] = {}
        for future, found in distributed.as_completed(waiting, with_results=True):
            for pair, one in zip(waiting[future], found):
                solved[pair] = one
                progress.solved(pairs.index(pair), one.solution)
        progress.finish()
        support, models = _assembled([solved[pair] for pair in pairs], pairs, n_classes)
        chosen = tasks.each("support-vectors", Rows.at, list(zip(classes, support)))
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


def _class_of(rows: Rows) -> np.ndarray:
    return rows.y


def _repeats(rows: Rows) -> tuple[bool, int]:
    """Whether a class has equal samples, and how many in all."""
    groups = group_samples(rows.X, np.zeros(len(rows.X), np.int64), None)
    return len(groups.first) < len(rows.X), len(rows.X)


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


class _Class(NamedTuple):
    """A class as the solver takes it: a sample of each group in its order, bounds of all."""

    samples: Samples
    groups: Groups
    C: np.ndarray


@sizeof.register(Samples)
def _size(samples: Samples) -> int:
    """Bytes, by which Dask decides what to move and what to keep."""
    return samples.values.nbytes


@dataclass(frozen=True)
class _Order:
    """Puts the samples of a class in the solver's order."""

    C: float
    by_key: bool
    precision: str
    lattices: tuple[Lattice, ...] | None

    def __call__(self, rows: Rows) -> _Class:
        # Without equal samples anywhere there is nothing to compare, and they keep their order.
        X = rows.X if self.by_key else None
        groups = group_samples(X, np.zeros(len(rows.X), np.int64), None, by_key=self.by_key)
        bounds = np.full(len(rows.X), self.C)
        if rows.weights is not None:
            bounds = rows.weights * self.C
        samples = look(rows.X, self.precision, self.lattices)
        return _Class(samples[groups.first], groups, bounds)


class _Pair(NamedTuple):
    """A solved pair: of each of its classes the support vectors' numbers and coefficients."""

    numbers: tuple[np.ndarray, np.ndarray]
    values: tuple[np.ndarray, np.ndarray]
    solution: Solution
    backend: str
    description: str


@dataclass(frozen=True)
class _Solve:
    """Solves pairs of some classes as the local twin does among all samples."""

    model: svc.SVC
    n_samples: int

    def __call__(self, pairs: list[tuple[int, int]], *classes: _Class) -> list[_Pair]:
        model, first = self.model, classes[0].samples
        at = np.cumsum([0] + [len(one.C) for one in classes])
        starts = [start + one.groups.starts[:-1] for start, one in zip(at, classes)]
        members = [start + one.groups.members for start, one in zip(at, classes)]
        n_groups = [len(one.samples) for one in classes]
        values = np.concatenate([one.samples.values for one in classes])
        table, solutions, kernel = solve_samples(
            Samples(values, first.lattice, first.dtype),
            np.concatenate([one.C for one in classes]),
            model._activation,
            groups=Groups(
                np.concatenate(members), np.append(np.concatenate(starts), at[-1]),
                np.cumsum([0, *n_groups]),
            ),
            backend=model.backend,
            precision=model.precision,
            tol=model._tol,
            max_iter=model.max_iter,
            cache_bytes=model.cache_size * 2**20,
            stepped=_goes_on,
            solved=_goes_on,
            n_samples=self.n_samples,
            pairs=pairs,
        )  # fmt: skip
        found = []
        for (a, b), solution in zip(pairs, solutions):
            own = table[b - 1, at[a] : at[a + 1]], table[a, at[b] : at[b + 1]]
            numbers = np.flatnonzero(own[0]), np.flatnonzero(own[1])
            solution.beta = solution.beta[solution.beta != 0]
            some = own[0][numbers[0]], own[1][numbers[1]]
            found.append(_Pair(numbers, some, solution, kernel.backend, kernel.description))
        return found


def _tiles(n_classes: int, wanted: int) -> list[list[tuple[int, int]]]:
    """All pairs in so many parts that share classes: pairs of a class share its kernel rows.

    Of as few groups of classes as give parts enough; a part for each pair if there are not.
    """
    for n_groups in range(1, n_classes + 1):
        groups = np.array_split(np.arange(n_classes), n_groups)
        both = combinations_with_replacement([group.tolist() for group in groups], 2)
        tiles = [sorted({(a, b) for a in A for b in B if a < b}) for A, B in both]
        tiles = [tile for tile in tiles if tile]
        if len(tiles) >= wanted:
            break
    return tiles


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
