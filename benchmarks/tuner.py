"""Which tile is fastest here: candidates run in turn, losers are dropped early, noise is respected.

Measured is H @ W for ten outputs, H not stored, on made-up data: for each metric and precision, and
for one number of inputs out of each range. The default runs along with the candidates to the end;
one of them replaces it only if it is faster by more than the noise.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from gpurbf.layer.activation import Activation
from gpurbf.layer.backends import Tile, get_backend
from gpurbf.layer.backends.tile import RANGES, Tuned, forced
from gpurbf.layer.layer import HiddenLayer
from gpurbf.runtime import clock
from gpurbf.runtime.threads import thread_limit

PRECISIONS = ("exact", "float32", "float64")
# The inputs whose ranges are measured when there is little time.
_QUICK = (64, 784)
# Seconds of a call, at least and at most: handing rows to threads should not count, and more rounds
# of short calls tell more than few of long ones.
_CALL = (0.002, 0.02)
# A thread gets this many rows or a multiple: whole blocks for every candidate.
_ROWS_A_THREAD = 768
_MOST_ROWS = 1 << 16
# About how long the tuning of a backend takes; the least rounds of slow cases come on top.
SECONDS = 35.0
# What a stage leaves is at most so much slower than the best.
_CLOSE = 1.1
# The default is replaced by what is faster by this in the median round, and by twice the error of
# that median (the range of the middle half of the rounds over the root of their number).
_GAIN, _ERRORS = 0.025, 2
# Rounds of the duel at least, and where calls are long.
_DUEL, _SHORT_DUEL, _LONG_CALL = 15, 7, 0.05
# Largest difference between the results of two tiles, relative to the largest number among them.
_TOLERANCE = {"exact": 1e-5, "float32": 1e-5, "float64": 1e-12}


class Case(NamedTuple):
    """What is measured for a range of inputs: layers of n inputs stand for those of up to most."""

    metric: str
    precision: str
    most: float
    n: int


class Outcome(NamedTuple):
    """What a race found: the winner, which may be the default, and the median seconds of both."""

    case: Case
    tile: Tile
    default_seconds: float
    seconds: float


def cases(name: str, quick: bool = False) -> list[Case]:
    """What there is to tune for a backend."""
    return [
        Case(metric, precision, most, n)
        for metric in get_backend(name)[0].tiles
        for precision in PRECISIONS
        for most, n in RANGES.items()
        if n in _QUICK or not quick
    ]


def tune(
    name: str,
    seconds: float = SECONDS,
    quick: bool = False,
    progress: Callable[[int, int, str], None] = lambda done, total, text: None,
) -> list[Outcome]:
    """Find the best tile for every case of a backend; nothing is stored.

    Parameters
    ----------
    name : str
        A backend that is available.
    seconds : float, default=35
        About how long it may take, compilation included.
    quick : bool, default=False
        Two ranges of inputs only.
    progress : callable
        Called with the number of cases done, their total and what is being measured.

    Returns
    -------
    outcomes : list of Outcome
        For :func:`entries` and :func:`gpurbf.layer.backends.tile.store`.
    """
    todo = cases(name, quick)
    end = time.perf_counter() + seconds
    outcomes = []
    for done, case in enumerate(todo):
        progress(done, len(todo), f"{case.metric}, {case.precision}, {case.n} inputs")
        left = max(0.0, end - time.perf_counter()) / (len(todo) - done)
        outcomes.append(measure(name, case, left))
    progress(len(todo), len(todo), "done")
    return outcomes


def entries(outcomes: list[Outcome]) -> tuple[Tuned, ...]:
    """The winners as they are stored."""
    return tuple(
        Tuned(case.metric, case.precision, case.most, tile) for case, tile, _, _ in outcomes
    )


def measure(name: str, case: Case, seconds: float) -> Outcome:
    """The best tile for one case, in about so many seconds."""
    end = time.perf_counter() + seconds
    # Centers that a core's cache does not hold, within reason.
    m = min(2048, max(256, 2**21 // case.n))
    X, C, W = problem(case.precision, 192 * thread_limit(), m, case.n)
    found = layers(name, case, C)
    found[Tile()].scores(X, W)  # compiles
    a_row = clock.seconds(partial(found[Tile()].scores, X, W)) / len(X)
    # Each candidate runs four times at least, and the last two much more often.
    call = max(_CALL[0], min(_CALL[1], (end - time.perf_counter()) / (8 * len(found))))
    # A tile of so many samples is one only if there are more.
    largest = max((tile.M or 0 for tile in found), default=0)
    n_rows = max(_rows(int(call / a_row), thread_limit()), largest + largest // 2)
    X = np.resize(X, (n_rows, X.shape[1]))
    verify(found, X, W, case.precision)
    calls = {tile: partial(layer.scores, X, W) for tile, layer in found.items()}
    gc.collect()
    winner, times = race(calls, Tile(), end)
    return Outcome(case, winner, times[Tile()], times[winner])


def layers(name: str, case: Case, C: np.ndarray) -> dict[Tile, HiddenLayer]:
    """The same layer with the default and with every candidate."""
    # Squared distances are about 2 n var(C), squared Manhattan distances about n² var(C).
    n = C.shape[1]
    squared = (n * n if case.metric == "manhattan" else 2 * n) * float(C.var(dtype=np.float64))
    activation = Activation(case.metric, "gaussian", 1 / squared)
    made = {}
    for tile in (Tile(), *get_backend(name)[0].tiles[case.metric]):
        made[tile] = HiddenLayer(C, activation, backend=name, precision=case.precision)
        with forced(tile):
            made[tile].scores(C[:1], np.ones((len(C), 1)))  # prepares: it keeps this tile
    return made


def problem(precision: str, N: int, m: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Samples (N, n), centers (m, n) and output weights (m, 10), drawn at random."""
    rng = np.random.default_rng(0)
    if precision == "exact":
        rows = rng.integers(0, 256, (N + m, n)).astype(np.uint8)
    else:
        rows = rng.standard_normal((N + m, n)).astype(precision)
    return rows[:N], rows[N:], rng.standard_normal((m, 10))


def _rows(wanted: int, n_threads: int) -> int:
    """Rows for a call: a multiple of what fills the threads, if it may take so long."""
    unit = _ROWS_A_THREAD * n_threads
    if wanted < unit:
        return max(unit // 4, wanted)
    return max(unit, min(wanted, _MOST_ROWS) // unit * unit)


def verify(found: dict[Tile, HiddenLayer], X: np.ndarray, W: np.ndarray, precision: str) -> None:
    """Every tile gives the result of the default, or nothing is timed."""
    expected = found[Tile()].scores(X, W)
    scale = np.abs(expected).max()
    for tile, layer in found.items():
        error = float(np.abs(layer.scores(X, W) - expected).max() / scale)
        if not error <= _TOLERANCE[precision]:
            raise AssertionError(f"the tile {tile} changes the result by {error:.2g}")


def race(
    calls: Mapping[Tile, Callable[[], object]], default: Tile, end: float
) -> tuple[Tile, dict[Tile, float]]:
    """The tile whose call is fastest, or the default where none is by more than noise.

    Stages of three rounds, each of which leaves the better half, then a duel with the default until
    the clock shows ``end``, of fifteen rounds at least, or seven of long calls.

    Returns
    -------
    winner : Tile
    seconds : dict of Tile to float
        The median of each tile's last rounds.
    """
    alive = [tile for tile in calls if tile != default]
    seconds: dict[Tile, float] = {}
    while len(alive) > 1:
        times = _rounds([default, *alive], calls, 3)
        seconds |= {tile: statistics.median(values) for tile, values in times.items()}
        alive.sort(key=seconds.__getitem__)
        bound = _CLOSE * seconds[alive[0]]
        alive = [tile for tile in alive[: (len(alive) + 1) // 2] if seconds[tile] <= bound]
    best = alive[0]
    least = _SHORT_DUEL if seconds.get(best, 0) > _LONG_CALL else _DUEL
    times = _rounds([default, best], calls, least, end)
    seconds |= {tile: statistics.median(values) for tile, values in times.items()}
    gains = [a / b - 1 for a, b in zip(times[default], times[best])]
    low, middle, high = statistics.quantiles(gains, n=4)
    doubt = _ERRORS * (high - low) / len(gains) ** 0.5
    return (best if middle > max(_GAIN, doubt) else default), seconds


def _rounds(
    tiles: list[Tile], calls: Mapping[Tile, Callable[[], object]], least: int, end: float = 0
) -> dict[Tile, list[float]]:
    """Seconds of each, in turn and every other round in reverse: ``least`` rounds, or until end."""
    rounds = _counting(least, end)
    return clock.in_turn(tiles[::-1], rounds, lambda tile: clock.seconds(calls[tile]))


def _counting(least: int, end: float) -> Iterator[int]:
    done = 0
    while done < least or (time.perf_counter() < end and done < 10 * least):
        yield done
        done += 1
