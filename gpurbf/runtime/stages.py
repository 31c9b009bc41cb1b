"""Stages of training and prediction: the code marks them, and a recorder, if any, times them.

    with stage("hidden layer", "H"):
        ...
        count(operations=2 * N * m * n, kind="float32", nbytes=X.nbytes)

A stage does nothing unless its thread is recorded. The time of a recorded thread counts for the
innermost open stage, so stages add up to the wall time however they are nested. The wall time of a
parallel section is divided among stages in proportion to the time that its threads spent in each.
"""

from __future__ import annotations

import _thread
import threading
import time
import timeit
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, ContextDecorator, nullcontext
from typing import Any, NamedTuple, TypeAlias, TypeVar

from gpurbf.runtime.memory import resident_bytes

# The stages, in the order of the data's flow.
STAGES = (
    "read and validate",
    "prepare",
    "host to device",
    "hidden layer",
    "output training",
    "back and evaluate",
)
ELSEWHERE = ("", "")
# Called before the clock is read: a backend with asynchronous work adds a function that waits.
FENCES: list[Callable[[], Any]] = []

# Seconds between measurements of memory in long stages, and of a stage after which it is measured
# again: each takes a hundredth of a millisecond, with Python's lock, and counts as work.
_SAMPLING, _WORTH_LOOKING = 0.05, 1e-3
Result = TypeVar("Result")


class Entry:
    """Counts of a part of a stage."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.nbytes = 0.0
        self.operations: dict[str, float] = {}
        self.memory = 0  # the process's largest resident set that was seen, bytes

    def add(self, other: Entry, factor: float = 1.0) -> None:
        """Add what another entry has, its seconds times the factor."""
        self.seconds += factor * other.seconds
        self.nbytes += other.nbytes
        self.memory = max(self.memory, other.memory)
        for kind, number in other.operations.items():
            self.operations[kind] = self.operations.get(kind, 0.0) + number


class Segment(NamedTuple):
    """A span of one thread's time in one stage, and how much of it did not hold Python's lock."""

    key: tuple[str, str]
    seconds: float
    unlocked_seconds: float


# What a thread did, in order; a parallel section is a list of its items' traces.
Trace: TypeAlias = "list[Segment | list[Trace]]"


class _Account:
    """The time of one thread: each moment counts for the innermost open stage."""

    def __init__(self, base: tuple[str, str]) -> None:
        self.entries: defaultdict[tuple[str, str], Entry] = defaultdict(Entry)
        self.trace: Trace = []
        self.unlocked_seconds = 0.0
        self.unlocked_since: float | None = None  # None: the thread may hold Python's lock
        # Each stage with its entry, which only this thread may add.
        self.open = [(base, self.entries[base])]
        self.since = time.perf_counter()

    def charge(self) -> None:
        """Count the time until now."""
        for fence in FENCES:
            fence()
        now = time.perf_counter()
        key, entry = self.open[-1]
        entry.seconds += now - self.since
        if self.unlocked_since is not None:
            self.unlocked_seconds += now - self.unlocked_since
            self.unlocked_since = now
        seconds = now - self.since
        self.trace.append(Segment(key, seconds, self.unlocked_seconds))
        self.since, self.unlocked_seconds = now, 0.0
        if seconds >= _WORTH_LOOKING or not entry.memory:
            self.look()

    def look(self) -> None:
        """Note the process's memory for the open stage."""
        _, entry = self.open[-1]
        entry.memory = max(entry.memory, resident_bytes())


class _Local(threading.local):
    """The account of this thread's time; None if it is not recorded."""

    account: _Account | None = None


_local = _Local()


class stage(ContextDecorator):
    """A block (``with``) or a function (as a decorator) whose time counts for a part of a stage.

    ``name`` is one of ``STAGES``. Time inside a further stage counts for that one.
    """

    def __init__(self, name: str, part: str = "") -> None:
        self._key = name, part

    def __enter__(self) -> None:
        if (account := _local.account) is not None:
            account.charge()
            account.open.append((self._key, account.entries[self._key]))

    def __exit__(self, *exception: object) -> None:
        if (account := _local.account) is not None:
            account.charge()
            account.open.pop()


class _Section(list[Trace]):
    """Work of several threads, in an open stage of the thread that waits for them.

    It is the list of its items' traces. At most ``most`` threads work (None: no limit).
    """

    def __init__(self, outer: _Account, helpers: int, most: int | None) -> None:
        self.outer, self.helpers, self.most = outer, helpers, most
        self.entries: list[tuple[tuple[str, str], Entry]] = []

    def __enter__(self) -> _Section:
        self.outer.charge()
        self.outer.trace.append(self)
        return self

    def traced(self, task: Callable[[int], Any]) -> Callable[[int], None]:
        """The task, with a trace recorded for each item."""

        def item(i: int) -> None:
            account = _local.account
            assert account is not None
            account.charge()
            before, account.trace = account.trace, []
            self.append(account.trace)
            try:
                task(i)
            finally:
                account.charge()
                account.trace = before

        return item

    def run(self, work: Callable[[], None]) -> None:
        """Do a thread's share of the work."""
        if not self.helpers:
            return work()
        before = _local.account
        account = _local.account = _Account(self.outer.open[-1][0])
        try:
            work()
        finally:
            account.charge()
            _local.account = before
            self.entries += account.entries.items()

    def __exit__(self, *exception: object) -> None:
        if not self.helpers:
            return
        wall = time.perf_counter() - self.outer.since
        busy = sum(entry.seconds for _, entry in self.entries)
        for key, entry in self.entries:
            self.outer.entries[key].add(entry, wall / busy if busy else 1.0)
        self.outer.since += wall


def count(*, operations: float = 0, kind: str = "", nbytes: float = 0) -> None:
    """Count, for the innermost open stage, operations of a kind and bytes that went in or out."""
    if (account := _local.account) is not None:
        _, entry = account.open[-1]
        entry.nbytes += nbytes
        if operations:
            entry.operations[kind] = entry.operations.get(kind, 0.0) + operations


def parallel_section(
    helpers: int, most: int | None = None
) -> AbstractContextManager[_Section | None]:
    """A context in which this thread and helpers share work: each calls ``run`` with its part.

    ``most`` is the maximum number of threads that share it. The context is empty, and gives None,
    unless this thread is recorded.
    """
    account = _local.account
    return nullcontext() if account is None else _Section(account, helpers, most)


def is_recorded() -> bool:
    """Whether this thread is recorded."""
    return _local.account is not None


def time_unlocked(function: Callable[..., Result]) -> Callable[..., Result]:
    """The function; if this thread is recorded, its time counts as without Python's lock."""
    account = _local.account
    if account is None or account.unlocked_since is not None:  # inside such a function it counts
        return function

    def timed(*args: Any, **kwargs: Any) -> Result:
        account.unlocked_since = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            account.unlocked_seconds += time.perf_counter() - account.unlocked_since
            account.unlocked_since = None

    return timed


def best_seconds(work: Callable[[], Any], runs: int) -> float:
    """Seconds of the fastest of some runs, including what they began on a device."""

    def whole() -> None:
        work()
        for fence in FENCES:
            fence()

    return min(timeit.repeat(whole, number=1, repeat=runs))


class Recorder:
    """Records the stages of this thread, and of threads that work for it, in a ``with`` block.

    Further blocks with the same recorder add to its record.

    Attributes
    ----------
    seconds : float
        Wall time of the blocks.
    entries : dict of (str, str) to Entry
        By stage and part; time outside all stages is under ``ELSEWHERE``.
    trace : list of Segment and list
        What the thread did in order; each list holds the traces of a parallel section's items.
    """

    def __init__(self) -> None:
        self._account, self.seconds = _Account(ELSEWHERE), 0.0
        self.entries, self.trace = self._account.entries, self._account.trace

    def __enter__(self) -> Recorder:
        # No Thread and no Event: they are written in Python, and an interrupt may come inside.
        self._before, self._watched = _local.account, _thread.allocate_lock()
        self._watched.acquire()
        try:
            _thread.start_new_thread(self._watch, (self._watched,))
            _local.account = self._account
            self._account.since = self._started = time.perf_counter()
        except BaseException:  # there will be no block to leave
            _local.account = self._before
            self._watched.release()
            raise
        return self

    def _watch(self, watched: _thread.LockType) -> None:
        """Note the memory of long stages, until the block ends."""
        while not watched.acquire(timeout=_SAMPLING):
            self._account.look()

    def __exit__(self, *exception: object) -> None:
        try:
            self._account.charge()
            self.seconds += self._account.since - self._started
        finally:
            _local.account = self._before
            self._watched.release()
