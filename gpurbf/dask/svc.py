"""SVC on a cluster: a task solves one or several pairs of classes; the largest begin first."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain, combinations
from typing import Any, NamedTuple

import numpy as np

from gpurbf.centers.sample import Race
from gpurbf.dask.base import DaskClassifier
from gpurbf.dask.blocks import Blocks, columns, in_order, joined
from gpurbf.data.quantize import Quantization, encode
from gpurbf.data.samples import quantizations_of, quantize_or_keep
from gpurbf.estimators import svc
from gpurbf.estimators._base import CallbackSupportMixin, with_callbacks
from gpurbf.estimators._validation import Rows, finite
from gpurbf.estimators.svc import KERNELS, Progress, check_parameters, with_probabilities
from gpurbf.layer.backends import GPUS
from gpurbf.runtime.threads import limited
from gpurbf.svm.binary import Solution
from gpurbf.svm.train import PairModels, group_samples

# Tasks per thread: at a time, including the running one, and in total, if there are enough.
_TASKS_AHEAD, _TASKS_PER_THREAD = 2, 3
# Finds equal samples by their hashes, with the seed that `group_samples` uses too.
_RACE = Race(0, by_class=True)


class SVC(CallbackSupportMixin, DaskClassifier, local=svc.SVC):
    """:class:`gpurbf.SVC` for data on a Dask cluster: the same problems, a task for each pair.

    Parameters
    ----------
    **parameters
        Those of :class:`gpurbf.SVC`; the kernel must be a name. A task takes `n_jobs` threads, by
        default one.
    client : distributed.Client, optional
        By default the current client.

    Notes
    -----
    A task solves one pair or, with few workers, several pairs of the same classes, which share
    kernel rows. During the fit each worker has a second copy of its blocks, split by class, and
    pieces are sent to the workers that solve pairs of their classes. The client receives the
    support vectors, and 40 bytes of each distinct sample to find equal samples.
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
        if with_probabilities(model):
            raise ValueError(
                "probability=True trains on the samples of one machine: on a cluster fit without "
                "it, and calibrate the model of to_local() with "
                "sklearn.calibration.CalibratedClassifierCV and sklearn.frozen.FrozenEstimator."
            )
        blocks = Blocks(self, model, X, y, sample_weight, negative=True, asked=[_RACE])
        model.classes_ = blocks.classes
        model.shape_fit_ = blocks.n_given, blocks.shape[1]
        model._fitted_kernel, model._sparse, model._tol = model.kernel, False, float(model.tol)
        weighted = blocks.with_class_weights(model.class_weight, bounds=True)
        factors = weighted.factors
        model.class_weight_ = np.ones(len(model.classes_)) if factors is None else factors
        if model.backend in GPUS:  # one task per worker: a GPU steps all its pairs side by side
            work = PairWork.at_once(len(model.classes_), len(blocks.tasks.threads))
        else:
            work = PairWork.of(len(model.classes_), _TASKS_PER_THREAD * blocks.tasks.n_threads)
        pieces = _pieces(weighted, work.parts)  # computed while gamma is found
        with limited(self.n_jobs):
            model._activation = model._resolve(blocks, None)
        model._quantizations = _quantizations(blocks, model.precision)
        with finite(model, blocks):
            found = self._solve_pairs(model, blocks, work, pieces, (X, y))
            pairs, entries, (first, *_), solved = zip(*found)
            solutions = [solution for _, solution in sorted(zip(chain(*pairs), chain(*solved)))]
            against, place, value = columns(entries)
            places, number = np.unique(place, return_inverse=True)
            tasks = blocks.tasks.each("support-vectors", partial(_chosen, places), [*zip(*pieces)])
            vectors = in_order(blocks.tasks.results(tasks), by_class=True)
            dual_coef = np.zeros((len(model.classes_) - 1, len(places)))
            dual_coef[against, np.argsort(vectors.places)[number]] = value
            n_support = np.bincount(vectors.y, minlength=len(model.classes_))
            models = PairModels(vectors.places, n_support, dual_coef, solutions, *first)
            model._keep(vectors.places, vectors.X, models)
        self.model_ = model
        return self

    def _solve_pairs(
        self,
        model: svc.SVC,
        blocks: Blocks,
        work: PairWork,
        pieces: list[list[Any]],
        data: tuple[Any, Any],
    ) -> list[tuple[Any, ...]]:
        """Results of `_solve` for all tasks, in the order of their first pairs."""
        tasks, classes, distinct = blocks.tasks, model.classes_, blocks.known[_RACE]
        sizes = np.bincount(distinct.labels)
        by_key = len(distinct.first) < blocks.shape[0] or len(np.unique(distinct.mass)) > 1
        solve = partial(_solve, model, sizes, by_key)
        pairs = list(combinations(range(len(classes)), 2))
        progress = Progress(self, [classes[list(pair)] for pair in pairs], *data)
        left = sorted(work.tasks, key=lambda own: sum(sizes[a] + sizes[b] for a, b in own))
        running: dict[Any, str] = {}  # the worker that each task was begun for
        found: list[tuple[Any, ...]] = []

        def begin(worker: str) -> Any:
            """Begin the largest task that is left, on that worker if it is there."""
            own = left.pop()
            arguments = own, *chain(*(pieces[part] for part in work.parts_of(own)))
            [task] = tasks.each("pairs", solve, [arguments])
            future = tasks.start(task, workers=worker, allow_other_workers=True)
            running[future] = worker
            return future

        # Dask expects tasks of one name to take equally long, and would queue too many at a thread.
        on_gpus = model.backend in GPUS
        workers = [at for at, n in tasks.threads.items() for _ in range(1 if on_gpus else n)]
        slots = ((workers or [""]) * _TASKS_AHEAD)[: len(left)]  # "": anywhere
        ends = tasks.as_completed([begin(worker) for worker in slots])
        for ended in ends.batches():
            for future in ended:
                worker = running.pop(future)
                if left:
                    ends.add(begin(worker))
            for solved in tasks.gathered(ended):
                found.append(solved)
                for pair, solution in zip(solved[0], solved[-1]):
                    progress.solved(pairs.index(pair), solution)
        progress.finish()
        return sorted(found)  # by the first pairs, which differ


class PairWork(NamedTuple):
    """All pairs of classes, divided into the ``tasks`` that solve them, and classes in ``parts``.

    All pairs between two parts are one task, because they share kernel rows. Each pair within a
    part is a task of its own; these are the smallest tasks, and let all threads end at about the
    same time.
    """

    parts: list[list[int]]
    tasks: list[list[tuple[int, int]]]

    @classmethod
    def of(cls, n_classes: int, wanted: int) -> PairWork:
        """At least ``wanted`` tasks, with as few parts as possible; or a task for each pair."""
        n_parts = 2
        while n_parts < n_classes and n_parts * (n_parts + 1) // 2 < wanted:
            n_parts += 1
        parts = [part.tolist() for part in np.array_split(np.arange(n_classes), n_parts)]
        between = [[(a, b) for a in one for b in other] for one, other in combinations(parts, 2)]
        return cls(parts, between + [[pair] for part in parts for pair in combinations(part, 2)])

    @classmethod
    def at_once(cls, n_classes: int, n_workers: int) -> PairWork:
        """A task for each worker, with about equal numbers of pairs of all classes."""
        pairs = list(combinations(range(n_classes), 2))
        tasks = [pairs[i::n_workers] for i in range(min(max(1, n_workers), len(pairs)))]
        return cls([[c] for c in range(n_classes)], tasks)

    def parts_of(self, pairs: list[tuple[int, int]]) -> list[int]:
        """The parts that have the classes of these pairs."""
        classes = {c for pair in pairs for c in pair}
        return [i for i, part in enumerate(self.parts) if classes.intersection(part)]


def _pieces(blocks: Blocks, parts: list[list[int]]) -> list[list[Any]]:
    """Futures of the samples of each part of the classes, a piece for each group of blocks."""
    tasks = [blocks.each("classes", partial(_piece, part)) for part in parts]
    futures, n = blocks.tasks.start(list(chain(*tasks))), len(tasks[0])
    return [futures[i : i + n] for i in range(0, len(futures), n)]


def _piece(classes: list[int], blocks: Iterator[tuple[Rows, Any]]) -> Rows:
    """The rows of some blocks that are of these classes."""
    return joined(_of_classes(classes, rows) for rows, _ in blocks)


def _of_classes(classes: list[int], rows: Rows) -> Rows:
    """The rows of these classes; not copied if these are all rows."""
    chosen = np.isin(rows.y, classes)
    return rows if chosen.all() else rows.at(chosen)


def _chosen(places: np.ndarray, *pieces: Rows) -> Rows:
    """The rows at these places, from the pieces of a group of blocks."""
    return joined(rows.at(np.isin(rows.places, places)) for rows in pieces)


def _quantizations(blocks: Blocks, precision: str) -> tuple[Quantization, ...] | None:
    """The quantization that all samples are on, if there is one; None if none is searched for."""
    likely = quantizations_of(blocks, precision)
    if not likely or blocks.dtype == np.uint8:
        return likely
    on = blocks.over_rows(partial(_are_on, likely), np.logical_and, "quantization")
    return tuple(quantization for quantization, every in zip(likely, on) if every)[:1]


def _are_on(
    quantizations: tuple[Quantization, ...], X: np.ndarray, y: Any, weights: Any, first: int
) -> np.ndarray:
    """Whether all rows are on each quantization."""
    return np.array([not encode(X, quantization)[1].any() for quantization in quantizations])


def _solve(
    model: svc.SVC, sizes: np.ndarray, by_key: bool, pairs: list[tuple[int, int]], *pieces: Rows
) -> tuple[list[tuple[int, int]], tuple[np.ndarray, ...], tuple[str, str], list[Solution]]:
    """Solve pairs of some classes as the local estimator does among all samples.

    ``sizes`` are those of all classes, with equal samples counted once; ``by_key`` says whether
    there are equal samples or unequal weights anywhere. Returns the pairs; the coefficients other
    than zero, by row of `PairModels.dual_coef` and number of the given sample; what ran; and the
    solutions.
    """
    wanted = sorted({c for pair in pairs for c in pair})
    rows = in_order((_of_classes(wanted, piece) for piece in pieces), by_class=True)
    # Without equal samples anywhere there is nothing to compare, and they keep their order.
    groups = group_samples(rows.X if by_key else None, rows.y, None, by_key=by_key)
    samples = quantize_or_keep(rows.X, model.precision, model._quantizations)
    C = np.full(len(rows.y), float(model.C))
    models = model._train_pairs(
        samples[groups.first] if by_key else samples,
        rows.y,
        C if rows.weights is None else rows.weights * model.C,
        groups,
        stepped=None,
        solved=lambda *_: False,  # False: continue
        sizes=sizes,
        pairs=pairs,
    )
    for solution in models.solutions:
        solution.beta = solution.beta[solution.beta != 0]
    against, number = np.nonzero(models.dual_coef)
    coefficients = against, rows.places[models.support[number]], models.dual_coef[against, number]
    return pairs, coefficients, (models.backend, models.description), models.solutions
