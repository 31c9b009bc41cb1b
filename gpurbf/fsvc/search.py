"""The search for FSVC's radius: distances are computed once on a sample, then radii are tried.

The 2007 paper tried radii on a grid, then around the best one, on its test set. Here the grid spans
the radii that make 1 to 10 % of the samples centers (about half, if there are few samples). A
part of the training data, not used to choose centers or to train outputs, decides.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpurbf.fsvc.known import KnownLayer, Sample, select
from gpurbf.fsvc.selection import Rule, Selection
from gpurbf.fsvc.units import Unit
from gpurbf.runtime.config import bytes_to_keep
from gpurbf.runtime.errors import OutOfRange, quiet
from gpurbf.runtime.threads import map_single_threaded_blas, single_threaded_blas
from gpurbf.solvers import iterates
from gpurbf.solvers.lms import DivergenceError
from gpurbf.solvers.one_hot import mean_targets, one_hot, winning_class

_N_COARSE_RADII = 9
# Evaluation radii: the selection radius and multiples of the typical distance between samples,
# the middle one is tried with every radius, all of them with the best radius.
_EVAL_RADII_PER_DISTANCE = (0.7, 0.5, 0.35, 0.25, 0.18)
_EVAL_RADIUS_PER_DISTANCE = 0.5
# Around the best radius: powers of the grid's step, and of 1.4 for the evaluation radius.
_FINE_POWERS = tuple(i / 3 for i in range(-2, 3))
# If samples are few, more than 10 % may be needed: up to half of them or this many centers.
_MAX_CENTERS_OF_FEW_SAMPLES = 1000
# Searched radii are thousandths of a typical distance or more; float64 must hold their squares.
_LEAST_DISTANCE = 1e-150


class Trial(NamedTuple):
    """A radius tried, its centers in the sample and those expected in all data, and its results.

    ``score`` is the accuracy on the validation samples. ``loss`` (0 to 1) is the fraction of the
    targets' sum of squares that is left after subtracting the outputs, scaled by the best factor.
    ``n_iter`` is the best number of epochs.
    """

    radius: float
    eval_radius: float
    n_centers: int
    expected_centers: float
    score: float
    loss: float
    n_iter: int


def best(trials: Iterable[Trial]) -> Trial:
    """The most accurate trial; among equals, which are common with few samples, the least loss.

    Of radii that are still equal, as they chose the same centers, it is the middle one: near the
    largest, the same pass over all samples could leave a class without a center.
    """

    def merit(trial: Trial) -> tuple[float, float]:
        return trial.score, -trial.loss

    trials = list(trials)
    most = max(map(merit, trials))
    equal = [trial for trial in trials if merit(trial) == most]
    radii = sorted({trial.radius for trial in equal}, reverse=True)
    return next(trial for trial in equal if trial.radius == radii[len(radii) // 2])


@single_threaded_blas()
def tune(
    sample: Sample,
    n_samples: int,
    rule: Rule,
    *,
    kernel: str,
    solver: Any,
    radius: float | None,
    eval_radius: float | str | None,
) -> list[Trial]:
    """Search for the radii that are not given, on the sample; returns the trials in order.

    The grid spans the minimum to the maximum number of centers that a search aims at in all data.
    Radii are tried on all threads, as many at a time as memory holds. BLAS has one thread: with
    more it rounds products otherwise, and of radii that are equally good up to rounding another
    would be chosen.

    Parameters
    ----------
    n_samples : int
        Number of samples in all data.
    rule : Rule
    kernel, solver
        FSVC's parameters; the sample's distances are those of its metric.
    radius : float or None
        If given, only evaluation radii are tried.
    eval_radius : float, "auto" or None
        None: the same as the radius.
    """
    S, n_classes = len(sample.y), rule.n_classes
    T, T_valid = one_hot(sample.y, n_classes), one_hot(sample.y_valid, n_classes)
    rows, valid_rows = np.arange(S), np.arange(len(sample.y_valid))
    learned = T
    if solver.needs == "samples":
        learned = mean_targets(sample.y, n_classes, sample.keys, sample.weights)
    w, total = sample.weights_valid, sample.weights_valid.sum()
    size_valid = w @ np.square(T_valid).sum(axis=1)

    def judged(layer: KnownLayer, W: np.ndarray) -> tuple[float, float]:
        """The score and the loss, without the rounding of sums, so that equal ones are equal."""
        scores = layer.matvec(valid_rows, W)
        size = w @ np.square(scores, dtype=np.float64).sum(axis=1)
        fit = w @ (scores * T_valid).sum(axis=1)
        loss = 1 - fit**2 / (size * size_valid) if size > 0 else 1.0
        right = w @ (winning_class(scores) == sample.y_valid) / total
        return round(float(right), 12), round(float(loss), 12)

    def evaluate(centers: np.ndarray, r: float, e: float, m: float) -> Trial:
        unit = Unit(kernel, "", e)  # distances are given, so no metric
        layer = KnownLayer(sample.D, centers, unit)
        valid = KnownLayer(sample.D_valid, centers, unit)
        trial = functools.partial(Trial, r, e, len(centers), m)
        try:
            with quiet():
                found = iterates(solver, layer, rows, learned, sample.weights, T[centers], rows)
                return best(trial(*judged(valid, W), epoch) for epoch, W in enumerate(found, 1))
        except DivergenceError:  # the learning rate is too high for this radius
            return trial(0.0, 1.0, 1)

    def choose(r: float) -> np.ndarray:
        return select(sample, rule, Unit(kernel, "", r))

    def expect(centers: np.ndarray) -> float:
        # Passes of wide units take no more of more samples.
        wide = rule.kind != "error" and len(centers) <= _centers_of_wide_units(S, rule)
        return min(_extrapolate(centers, S, n_samples), limits[0] if wide else math.inf)

    start, limits = typical_distance(sample.D), _center_limits(n_samples, rule)
    grid, step = _grid(lambda r: expect(choose(r)), start, limits) if radius is None else ([], 1.0)
    trials: dict[tuple[float, float], Trial] = {}
    top = (radius or 0.0, 0.0)
    for phase in _phases(grid, step, start, trained=solver.needs != "center targets"):
        wanted = phase(*top)
        works = [functools.partial(choose, r) for r, _ in wanted]
        chosen = _as_memory_allows(works, 8 * n_classes * S)  # activities by class
        new: dict[tuple[float, float], Callable[[], Trial]] = {}
        for (r, candidates), centers in zip(wanted, chosen):
            m = expect(centers)
            if radius is None and (trials or new) and m > 1.1 * limits[1]:
                continue
            for e in candidates if eval_radius == "auto" else (float(eval_radius or r),):
                if (r, e) not in trials:
                    new[r, e] = functools.partial(evaluate, centers, r, e, m)
        largest = max(map(len, chosen), default=0)
        trial_bytes = largest * (S * sample.D.itemsize + 16 * largest)  # H, HᵀH and its factor
        trials.update(zip(new, _as_memory_allows([*new.values()], trial_bytes)))
        if trials:
            top = best(trials.values())[:2]
    return list(trials.values())


def _as_memory_allows(works: Sequence[Callable[[], Any]], work_bytes: int) -> list[Any]:
    """Results of functions that take so many bytes each, as many at a time as fit in memory."""
    return map_single_threaded_blas(works, max(1, int(bytes_to_keep(0.5) / max(work_bytes, 1))))


_Phase = Callable[[float, float], list[tuple[float, tuple[float, ...]]]]


def _phases(grid: list[float], step: float, start: float, trained: bool) -> tuple[_Phase, ...]:
    """A grid of radii, evaluation radii for the best, radii around it, evaluation radii again.

    Each phase is a function of the best radius and evaluation radius so far and gives radii, each
    with the evaluation radii to try. ``start`` is a typical distance. Outputs that are ``trained``
    need wide units, so the grid tries only the wide evaluation radius, not the selection radius as
    well.
    """
    wide = _EVAL_RADIUS_PER_DISTANCE * start
    every = tuple(factor * start for factor in _EVAL_RADII_PER_DISTANCE)
    return (
        lambda r, e: [(r, (wide,) if trained else (r, wide)) for r in grid],
        lambda r, e: [(r, (r, 0.5 * r, *every))],
        lambda r, e: [
            (s, (s if e == r else e,)) for s in dict.fromkeys(r * step**i for i in _FINE_POWERS)
        ],
        lambda r, e: [(r, tuple(e * 1.4**i for i in _FINE_POWERS))],
    )


def _grid(
    expected: Callable[[float], float], start: float, limits: tuple[float, float]
) -> tuple[list[float], float]:
    """Radii from the one with the fewest centers to the one with the most, and their ratio."""
    low, high = limits
    small = find_radius(expected, 0.9 * high, high, start)
    large: float = max(small, find_radius(expected, low, 1.2 * low, start))
    step = (large / small) ** (1 / (_N_COARSE_RADII - 1))
    return [large / step**i for i in range(_N_COARSE_RADII)], step


def _center_limits(n_samples: int, rule: Rule) -> tuple[float, float]:
    """Minimum and maximum number of centers that a search aims at: 1 to 10 % of the samples.

    Small data may have more: half of the samples, up to 1,000, and what wide units have.
    """
    least = _centers_of_wide_units(n_samples, rule)
    high = max(0.1 * n_samples, min(0.5 * n_samples, _MAX_CENTERS_OF_FEW_SAMPLES), least)
    if rule.max_centers is not None:
        high = min(high, rule.max_centers)
    return min(max(0.01 * n_samples, least), high), high


def _centers_of_wide_units(n_samples: int, rule: Rule) -> float:
    """One center per class, or as many as every pass takes however wide its units are.

    Activations are below 1, so a pass takes more than `overlap` samples if it has them. Only radii
    so wide that activations round to 1 give fewer.
    """
    n_passes = rule.n_classes if rule.kind == "per-class" else 1
    wide = 0 if rule.kind == "error" else n_passes * (math.floor(rule.overlap) + 1)
    return max(rule.n_classes, min(wide, n_samples))


def _extrapolate(centers: np.ndarray, n_sample: int, n_samples: int) -> float:
    """Number of centers to expect in all samples, if growth per doubling falls as in the sample."""
    m = len(centers)
    half = max(int((centers < n_sample / 2).sum()), 1)
    quarter = max(int((centers < n_sample / 4).sum()), 1)
    growth, before = math.log2(m / half), math.log2(half / quarter)
    # The root: half way between constant growth and growth that falls this fast (measured on
    # MNIST).
    fall = math.sqrt(min(max(growth / before, 0.25), 1.0)) if before > 0 else 1.0
    doublings = math.log2(n_samples / n_sample)
    terms = doublings if fall == 1.0 else fall * (1 - fall**doublings) / (1 - fall)
    return m * 2.0 ** (growth * terms)


def radius_for_ratio(
    X: Any,
    y: np.ndarray,
    stream: np.ndarray,
    rule: Rule,
    new: Callable[[float], Selection],
    D: np.ndarray,
) -> float:
    """A radius that makes 1 to 10 % of the stream centers: the rule of the authors' code.

    ``new(radius)`` gives an empty selection by the rule, D are some distances.
    """

    def count(radius: float) -> int:
        selection = new(radius)
        selection.feed(X, y, stream)
        return len(selection.indices)

    # Well inside the rule's limits, so that a few more samples do not leave them.
    seen = rule._replace(n_classes=len(np.unique(y)))  # a first chunk may lack classes
    least = _centers_of_wide_units(len(stream), seen)
    low, high = max(0.02 * len(stream), least), max(0.05 * len(stream), least)
    if rule.max_centers is not None:
        high = min(high, rule.max_centers)
    return find_radius(count, min(low, high), high, typical_distance(D))


_MAX_RADII, _MAX_RADII_WITHOUT_CHANGE = 60, 5


def find_radius(count: Callable[[float], float], low: float, high: float, start: float) -> float:
    """A radius for which ``low <= count(radius) <= high``, if there is one, else one close to it.

    ``count`` was called with the radius that is returned.
    The number of centers is taken to fall with the radius, nearly as a power of it: the bracket is
    narrowed by secant steps in logarithms, which stay away from its ends. With selection "error"
    the number may rise in places; then a radius may be missed.
    """
    small, large = 0.0, math.inf  # radii with too many and too few centers
    at_small = at_large = 0.0
    radius, target, same, wide = start, math.log(math.sqrt(low * high)), 0, 0
    for _ in range(_MAX_RADII):
        m = count(radius)
        if low <= m <= high:
            return radius
        if m > high and large == math.inf and math.log(m) == at_small:
            # If larger radii no longer change the number, units are so wide that every sample
            # activates all of them: the first such radius is as good. Or only samples far away are
            # left, so steps grow.
            wide += 1
        elif m > high:
            small, at_small, wide = radius, math.log(m), 0
        else:
            # If smaller radii no longer change the number, all distinct samples are centers, or the
            # classes are so far apart that a few centers decide.
            same = same + 1 if math.log(m) == at_large else 0
            large, at_large = radius, math.log(m)
        if _MAX_RADII_WITHOUT_CHANGE in (same, wide) or (small and large / small < 1 + 1e-9):
            break
        if small == 0.0 or large == math.inf:
            radius *= 2.0 ** (1 + wide) if small else 0.5
        else:
            place = (at_small - target) / (at_small - at_large)
            radius = small * (large / small) ** min(max(place, 0.1), 0.9)
    return large if large < math.inf else small


def typical_distance(D: np.ndarray) -> float:
    """The median of some distances between different samples; 1 if there are none.

    Raises
    ------
    FloatingPointError
        If float64 does not hold the squares of radii of that size.
    """
    some = D[:200, :200]
    some = some[~np.eye(len(some), dtype=bool) & (some > 0)]  # a sample is 0 off, up to rounding
    found = float(np.median(some)) if some.size else 1.0
    if found < _LEAST_DISTANCE:
        raise OutOfRange("squares of radii")
    return found
