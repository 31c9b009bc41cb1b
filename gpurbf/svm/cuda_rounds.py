"""SVC's steps where the kernel values are: the state of all pairs on a device, and its rounds."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from gpurbf.layer.backends import Backend, get_backend
from gpurbf.layer.backends.cuda.graphs import Repeated
from gpurbf.runtime.arrays import to_host
from gpurbf.runtime.errors import BackendUnavailable
from gpurbf.runtime.lazy import lazy_module

cuda_api = lazy_module("gpurbf.runtime.jit.cuda_api")
cuda_smo_kernels = lazy_module("gpurbf.svm._cuda_smo_kernels")


# Threads of a block that steps or selects, and of one that gathers or updates; these are so many a
# pair, or as many as have work.
_THREADS, _FEW, _BLOCKS_OF_A_PAIR = 512, 256, 64
# Of the memory that is left, for kernel values and for blocks between members; the rest is for
# evaluating values.
_ROWS, _BLOCKS = 0.5, 0.25


class Problems(NamedTuple):
    """Binary problems end to end, problem p at starts[p] to starts[p + 1].

    ``samples`` of the kernel, labels ``y`` (+1 or -1), bounds ``C``, and ``sizes`` of working sets;
    a problem that is no larger is its own set.
    """

    starts: np.ndarray
    samples: np.ndarray
    y: np.ndarray
    C: np.ndarray
    sizes: np.ndarray


class Stop(NamedTuple):
    """When steps end, see :class:`gpurbf.svm._cuda_smo_kernels.Rules`."""

    tol: float
    max_iter: int
    inner: float
    loose: float
    many: int
    doubt: float


class Plan(NamedTuple):
    """Rows of the kernel in memory, and problems at work at a time."""

    rows: int
    width: int


class Report(NamedTuple):
    """State of each problem."""

    running: np.ndarray
    doubted: np.ndarray
    finite: np.ndarray
    steps: np.ndarray
    violation: np.ndarray


def rounds_on(backend: Backend) -> tuple[Callable[..., Rounds] | None, str]:
    """A maker of `Rounds` on a backend's arrays, or None where the CPU steps, and the reason."""
    if backend.xp is np:
        return None, ""
    try:
        get_backend("numba-cuda")
    except BackendUnavailable as error:
        return None, f"steps on the CPU: those on the GPU need numba-cuda ({error})"
    return Rounds, ""


def plan(N: int, itemsize: int, problems: Problems, room: float) -> Plan | None:
    """How the kernel of N samples and the problems share the room; None where it is too small.

    All of K where it fits, else the rows of some problems' members at a time.
    """
    size, n_problems = int(problems.sizes.max()), len(problems.sizes)
    left = room - 40 * len(problems.samples) - 4 * size * n_problems - 16 * N
    rows = min(N, int(_ROWS * left // (itemsize * N)))
    width = int(_BLOCKS * left // (size * (itemsize * size + 16)))
    if rows < N:
        width = min(width, rows // size)
    return Plan(rows, min(width, n_problems)) if width > 0 else None


class Rounds:
    """The state of all problems on the device, and what a round does to it.

    Parameters
    ----------
    xp : module
        Library of the arrays.
    problems : Problems
    diagonal : ndarray of shape (N,)
        Of the kernel.
    dtype : dtype
        Of kernel values.
    stop : Stop
    planned : Plan
    steps : int
        Of a launch, at most.
    """

    def __init__(
        self,
        xp: ModuleType,
        problems: Problems,
        diagonal: np.ndarray,
        dtype: np.dtype,
        *,
        stop: Stop,
        planned: Plan,
        steps: int,
    ) -> None:

        self.xp, self.starts = xp, problems.starts
        n_problems, size = len(problems.sizes), int(problems.sizes.max())
        lengths = np.diff(problems.starts)
        self._longest = int(lengths.max())
        self.beta, self.f = xp.zeros(len(problems.y)), xp.empty(len(problems.y))
        self.f[...] = xp.asarray(problems.y)
        # Of K, and where each sample's row is among them.
        self.rows = xp.empty((planned.rows, len(diagonal)), dtype)
        self._row_of = xp.zeros(len(diagonal), np.int32)
        self._members = xp.zeros((n_problems, size), np.int32)
        self._counts = xp.zeros(n_problems, np.int32)
        self._progress = xp.zeros((n_problems, 6))
        self._pairs = self._given(
            cuda_smo_kernels.Pairs,
            xp.asarray(problems.starts),
            xp.asarray(problems.samples),
            xp.asarray(problems.y * problems.C),
            self.beta,
            self.f,
            xp.empty(len(problems.y), np.int64),
            xp.asarray(problems.sizes),
        )
        self._sets = self._given(cuda_smo_kernels.Sets, self._members, self._counts)
        self._values = self._given(
            cuda_smo_kernels.Values, self.rows, self._row_of, xp.asarray(diagonal)
        )
        shape = planned.width, size
        blocks = xp.empty((*shape, size), dtype), xp.empty(shape), xp.empty(shape)
        self._blocks = self._given(cuda_smo_kernels.Blocks, *blocks)
        self._table = self._argument(self._progress)
        self._rules = cuda_smo_kernels.Rules(stop.tol, stop.max_iter, steps, *stop[2:])

    def _given(self, kind: Any, *arrays: Any) -> Any:
        """Arrays as a group of arguments; they live as long as the group."""
        return kind(*map(self._argument, arrays))

    def _argument(self, array: Any) -> Any:

        return cuda_api.argument(array)

    def wave(self, problems: np.ndarray) -> Any:
        """Problems that are at work together, as the rounds take them."""
        return self.xp.asarray(problems.astype(np.int32))

    def repeated(self, waves: list[Any]) -> Callable[[], None]:
        """A round of all these waves where all of K is in memory, from the second on a graph.

        Problems that have ended are passed over, so the waves may stay as they are.
        """

        def launches() -> None:
            for wave in waves:
                self.select(wave)
                self.step(wave)

        return Repeated(self.xp, launches)

    def select(self, wave: Any) -> None:
        """Judge each problem and choose the working sets of those that go on."""

        cuda_smo_kernels.select[len(wave), _THREADS, cuda_api.current_stream()](
            self._argument(wave), self._pairs, self._sets, self._table, self._rules
        )

    def step(self, wave: Any) -> None:
        """Steps inside the sets, whose rows are in memory, then f of all samples."""

        stream, table, given = cuda_api.current_stream(), self._table, self._argument(wave)
        pairs, sets, values, blocks = self._pairs, self._sets, self._values, self._blocks
        grid = len(wave), min(_BLOCKS_OF_A_PAIR, self._longest)
        cuda_smo_kernels.gather[grid, _FEW, stream](given, pairs, sets, values, blocks, table)
        cuda_smo_kernels.inner[len(wave), _THREADS, stream](
            given, pairs, sets, blocks, table, self._rules
        )
        grid = len(wave), min(_BLOCKS_OF_A_PAIR, -(-self._longest // _FEW))
        cuda_smo_kernels.update[grid, _FEW, stream](given, pairs, sets, values, blocks, table)

    def place(self, samples: np.ndarray) -> Any:
        """The first rows are those of these samples from now on; where their values are to go."""
        row_of = np.zeros(len(self._row_of), np.int32)
        row_of[samples] = np.arange(len(samples))
        self._row_of[...] = self.xp.asarray(row_of)
        return self.rows[: len(samples)]

    def members(self, wave: Any) -> list[np.ndarray]:
        """The working set of each problem of a wave."""
        members, counts = to_host(self._members[wave]), to_host(self._counts[wave])
        return [some[:count] for some, count in zip(members, counts)]

    def report(self) -> Report:
        """Report of the rounds so far; waits for them."""

        table = to_host(self._progress).T
        state = table[cuda_smo_kernels.STATE].astype(int)
        return Report(
            np.isin(state, (cuda_smo_kernels.RUNNING, cuda_smo_kernels.DOUBTED)),
            state == cuda_smo_kernels.DOUBTED,
            state != cuda_smo_kernels.NOT_FINITE,
            table[cuda_smo_kernels.STEPS].astype(int),
            table[cuda_smo_kernels.VIOLATION],
        )

    def states(self, problems: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Beta and f of each of these problems."""
        numbers = [np.arange(self.starts[p], self.starts[p + 1]) for p in problems]
        there = self.xp.asarray(np.concatenate(numbers))
        ends = np.cumsum([len(some) for some in numbers])[:-1]
        beta, f = (np.split(to_host(A[there]), ends) for A in (self.beta, self.f))
        return list(zip(beta, f))

    def correct(self, p: int, f: np.ndarray) -> None:
        """F of a problem that was in doubt: it goes on from there."""

        self.f[self.starts[p] : self.starts[p + 1]] = self.xp.asarray(f)
        for column, value in (
            (cuda_smo_kernels.STATE, cuda_smo_kernels.RUNNING),
            (cuda_smo_kernels.SQUARES, 0.0),
        ):
            self._progress[p : p + 1, column] = value

    def end(self, p: int) -> None:
        """A problem that shall not go on is passed over from now on."""

        self._progress[p : p + 1, cuda_smo_kernels.STATE] = cuda_smo_kernels.ENDED
        self._counts[p : p + 1] = 0
