"""Model the time of a recorded fit with other numbers of threads.

A recorder notes what each item of a parallel section did. `simulate` hands these items out to P
threads as `parallel_for` does: a section gets the threads that are free when it begins, and each
thread takes the next item when it has finished one. Python's lock is a resource that one thread
holds at a time. Not modelled: threads share caches, memory and the clock of the processor.
"""

from __future__ import annotations

import heapq
import itertools
import numbers
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from gpurbf.runtime.checks import check_number
from gpurbf.runtime.stages import Segment, Trace

Key = tuple[str, str]


class Scaling(NamedTuple):
    """The modelled time of a fit with a number of threads.

    ``limit`` is the stage and part for which threads wait the longest. ``limit_share`` is the share
    of all threads' time spent in this waiting. ``bytes_per_second`` is moved by all threads.
    """

    threads: int
    seconds: float
    speed_up: float
    limit: str
    limit_share: float
    bytes_per_second: float


def simulate(trace: Trace, threads: int) -> tuple[float, dict[Key, float]]:
    """Simulate handing out the items of a trace to some threads.

    Parameters
    ----------
    trace : list of Segment and list
        As a ``Recorder`` returns it: spans of time, and lists of items for parallel sections.
    threads : int
        How many there are.

    Returns
    -------
    seconds : float
        Until the last item is done.
    lost : dict
        Idle seconds of threads, by the stage and part that ran meanwhile.
    """
    free = threads - 1

    def perform(trace: Iterable[Segment | list[Trace]]) -> Iterator[Any]:
        for each in trace:
            if isinstance(each, Segment):
                yield each
            else:
                yield from share(each)

    def share(section: list[Trace]) -> Iterator[Any]:
        nonlocal free
        most = getattr(section, "most", None) or len(section)
        helpers = max(0, min(free, len(section) - 1, most - 1))
        free -= helpers
        items = iter(section)  # each thread takes the next item
        waiting: list[Iterator[Any]] = []  # this thread, if helpers still work when it is done

        def help_out() -> Iterator[Any]:
            nonlocal free, helpers
            yield from perform(itertools.chain.from_iterable(items))
            helpers -= 1
            if waiting and not helpers:
                push(now, waiting.pop())
            else:
                free += 1

        for _ in range(helpers):
            push(now, help_out())
        yield from perform(itertools.chain.from_iterable(items))
        if helpers:
            yield waiting

    queue: list[tuple[float, int, Iterator[Any], Key | None]] = []
    order = itertools.count()

    def push(time: float, thread: Iterator[Any], key: Key | None = None) -> None:
        heapq.heappush(queue, (time, next(order), thread, key))

    now = lock_free = 0.0
    running: Counter[Key] = Counter()
    lost: defaultdict[Key, float] = defaultdict(float)
    push(now, perform(trace))
    while queue:
        before = now
        now, _, thread, key = heapq.heappop(queue)
        busy = running.total()
        for each, number in running.items():
            lost[each] += (now - before) * (threads - busy) * number / busy
        if key is not None:
            running -= Counter([key])  # which keeps no zeros
        step = next(thread, None)
        if isinstance(step, Segment):
            # Most of a segment is one kernel; the lock is held before it.
            locked = max(0.0, step.seconds - step.unlocked_seconds)
            begin = max(now, lock_free) if locked else now
            lock_free = begin + locked if locked else lock_free
            running[step.key] += 1
            push(begin + step.seconds, thread, step.key)
        elif step is not None:
            free += 1  # while it waits
            step.append(thread)
    return now, dict(lost)


def model(trace: Trace, nbytes: float, threads: Sequence[int]) -> list[Scaling]:
    """Model a recorded trace, which moves ``nbytes`` bytes, for each number of threads."""
    one = simulate(trace, 1)[0]
    rows = []
    for number in threads:
        check_number("threads", number, numbers.Integral, 1)
        seconds, lost = simulate(trace, number)
        key = max(lost, key=lost.__getitem__, default=("", ""))
        limit = ": ".join(filter(None, key)) or ("Python between stages" if number > 1 else "")
        share = lost.get(key, 0.0) / (number * seconds)
        rows.append(Scaling(number, seconds, one / seconds, limit, share, nbytes / seconds))
    return rows


def table(rows: Sequence[Scaling]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and cells."""
    return ("threads", "s", "speed-up", "threads wait for", "% of their time", "GB/s"), [
        (
            str(row.threads),
            f"{row.seconds:.3g}",
            f"{row.speed_up:.1f}",
            row.limit,
            f"{100 * row.limit_share:.0f}",
            f"{row.bytes_per_second / 1e9:.3g}",
        )
        for row in rows
    ]


def draw(rows: Sequence[Scaling], figure: Any) -> None:
    """Draw the speed-ups and the ideal line."""
    axis = figure.subplots()
    threads = [row.threads for row in rows]
    axis.plot(threads, threads, color="#8fb8de", label="ideal")
    axis.plot(threads, [row.speed_up for row in rows], "o-", color="#1f4e79", label="modelled")
    axis.set(xscale="log", yscale="log", xlabel="threads", ylabel="speed-up of the training")
    axis.set_xticks(threads, [str(number) for number in threads])
    axis.set_yticks(threads, [str(number) for number in threads])
    axis.minorticks_off()
    axis.legend(frameon=False)
