"""SVC's steps where the kernel values are: the state of all pairs on a device, and its rounds."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from gpurbf.layer.backends import Backend, get_backend
from gpurbf.runtime.arrays import to_host
from gpurbf.runtime.errors import BackendUnavailable, warn
from gpurbf.runtime.lazy import lazy_module

cuda_api = lazy_module("gpurbf.runtime.jit.cuda_api")
cuda_smo_kernels = lazy_module("gpurbf.svm._cuda_smo_kernels")


# Threads of a block that steps or selects, and of one that gathers or updates; these are so many a
# pair, or as many as have work.
_STEP_THREADS, _UPDATE_THREADS, _MAX_BLOCKS_PER_PAIR = 512, 256, 64
# Of the memory that is left, for kernel values and for blocks between members; the rest is for
# evaluating values.
_ROWS_PART, _BLOCKS_PART = 0.5, 0.25


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


def steps_on_device(backend: Backend) -> tuple[bool, str]:
    """Whether `Rounds` can step on a backend's arrays, and why not where they are on a device."""
    if backend.xp is np:
        return False, ""
    try:
        get_backend("numba-cuda")
    except BackendUnavailable as error:
        return False, f"steps on the CPU: those on the GPU need numba-cuda ({error})"
    return True, ""


def plan(N: int, itemsize: int, problems: Problems, room: float) -> Plan | None:
    """How the kernel of N samples and the problems share the room; None where it is too small.

    All of K where it fits, else the rows of some problems' members at a time.
    """
    size, n_problems = int(problems.sizes.max()), len(problems.sizes)
    left = room - 40 * len(problems.samples) - 4 * size * n_problems - 16 * N
    rows = min(N, int(_ROWS_PART * left // (itemsize * N)))
    width = int(_BLOCKS_PART * left // (size * (itemsize * size + 16)))
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
    planned : Plan
    rules : Rules
        See :class:`gpurbf.svm._cuda_smo_kernels.Rules`.
    """

    def __init__(
        self,
        xp: ModuleType,
        problems: Problems,
        diagonal: np.ndarray,
        dtype: np.dtype,
        planned: Plan,
        rules: Any,
    ) -> None:
        self.xp, self.starts, self._rules = xp, problems.starts, rules
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
        self._pairs = _arguments(
            cuda_smo_kernels.Pairs,
            xp.asarray(problems.starts),
            xp.asarray(problems.samples),
            xp.asarray(problems.y * problems.C),
            self.beta,
            self.f,
            xp.empty(len(problems.y), np.int64),
            xp.asarray(problems.sizes),
        )
        self._sets = _arguments(cuda_smo_kernels.Sets, self._members, self._counts)
        self._values = _arguments(
            cuda_smo_kernels.Values, self.rows, self._row_of, xp.asarray(diagonal)
        )
        shape = planned.width, size
        blocks = xp.empty((*shape, size), dtype), xp.empty(shape), xp.empty(shape)
        self._blocks = _arguments(cuda_smo_kernels.Blocks, *blocks)
        self._table = cuda_api.argument(self._progress)

    def wave(self, problems: np.ndarray) -> Any:
        """Problems that are at work together, as the rounds take them."""
        return self.xp.asarray(problems.astype(np.int32))

    def repeated(self, waves: list[Any]) -> Callable[[], None]:
        """A function that makes a round of these waves where all of K is in memory.

        Problems that have ended are passed over, so the waves may stay as they are.
        """

        def launches() -> None:
            for wave in waves:
                self.select(wave)
                self.step(wave)

        return Repeated(self.xp, launches)

    def select(self, wave: Any) -> None:
        """Judge each problem and choose the working sets of those that go on."""
        cuda_smo_kernels.select[len(wave), _STEP_THREADS, cuda_api.current_stream()](
            cuda_api.argument(wave), self._pairs, self._sets, self._table, self._rules
        )

    def step(self, wave: Any) -> None:
        """Steps inside the sets, whose rows are in memory, then f of all samples."""
        stream, table, given = cuda_api.current_stream(), self._table, cuda_api.argument(wave)
        pairs, sets, values, blocks = self._pairs, self._sets, self._values, self._blocks
        grid = len(wave), min(_MAX_BLOCKS_PER_PAIR, self._longest)
        cuda_smo_kernels.gather[grid, _UPDATE_THREADS, stream](
            given, pairs, sets, values, blocks, table
        )
        cuda_smo_kernels.inner[len(wave), _STEP_THREADS, stream](
            given, pairs, sets, blocks, table, self._rules
        )
        grid = len(wave), min(_MAX_BLOCKS_PER_PAIR, -(-self._longest // _UPDATE_THREADS))
        cuda_smo_kernels.update[grid, _UPDATE_THREADS, stream](
            given, pairs, sets, values, blocks, table
        )

    def place(self, samples: np.ndarray) -> Any:
        """Make the first rows those of these samples; where their values are to go."""
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
        """Give a problem that was in doubt its f: it goes on from there."""
        self.f[self.starts[p] : self.starts[p + 1]] = self.xp.asarray(f)
        self._progress[p : p + 1, cuda_smo_kernels.STATE] = cuda_smo_kernels.RUNNING
        self._progress[p : p + 1, cuda_smo_kernels.SQUARES] = 0.0

    def end(self, p: int) -> None:
        """Pass over a problem that shall not go on."""
        self._progress[p : p + 1, cuda_smo_kernels.STATE] = cuda_smo_kernels.ENDED
        self._counts[p : p + 1] = 0


def _arguments(kind: Any, *arrays: Any) -> Any:
    """Arrays as a group of kernel arguments; they live as long as the group."""
    return kind(*map(cuda_api.argument, arrays))


class Repeated:
    """Launches on arrays that stay where they are: one by one the first time, then as a graph.

    The first time compiles what is to be compiled, and is all there is where nothing repeats. What
    is recorded must neither ask for memory nor wait, and is kernels of our own: CuPy refuses cuBLAS
    while it records. Where a driver refuses more than that, launches stay one by one, and say so.
    """

    def __init__(self, xp: ModuleType, launches: Callable[[], None]) -> None:
        self.xp, self.launches = xp, launches
        self._times = 0
        self._graph: Any = None

    def __call__(self) -> None:
        """Make the launches on the current stream."""
        if self._times == 1:
            self._graph = self._recorded()
        self._times += 1
        if self._graph is None:
            self.launches()
        else:
            self._graph.launch()

    def _recorded(self) -> Any:
        stream = self.xp.cuda.Stream(non_blocking=True)
        try:
            with stream:
                stream.begin_capture()
                try:
                    self.launches()
                finally:
                    graph = stream.end_capture()
        except Exception as error:  # of CuPy, Numba or the driver; what is really wrong comes again
            warn(
                "Launches that repeat could not be recorded as a CUDA graph and are made one by "
                f"one, which takes longer ({type(error).__name__}: {error})."
            )
            return None
        return graph
