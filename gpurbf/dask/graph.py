"""Dask tasks: names, threads and settings, merged results, and which worker has which block."""

from __future__ import annotations

import functools
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import dask
import distributed
import numpy as np
from dask.delayed import Delayed, delayed
from distributed.protocol.pickle import dumps

from gpurbf.runtime.config import config_context, get_config
from gpurbf.runtime.threads import limited

# If a function, pickled into each of its tasks, would take more bytes than this in all, it becomes
# a task of its own, which is sent once.
_MAX_BYTES_IN_TASKS = 1 << 24
# Maximum bytes of the blocks of one task: a worker may have moved them to its disk.
_MAX_BYTES_TOGETHER = 1 << 28
# Prefixes of addresses that only this machine, or only this process, can reach.
_LOCAL_ADDRESSES = ("tcp://127.0.0.1:", "tcp://[::1]:", "inproc://")


def _call(n_jobs: int, config: dict[str, Any], function: Callable[..., Any], *args: Any) -> Any:
    with config_context(**config), limited(n_jobs):
        return function(*args)


def shared(value: Any, name: str) -> Delayed:
    """Make a value for many tasks a part of the graph, so that it survives the end of a worker."""
    return delayed(value, name=f"gpurbf-{name}-{uuid.uuid4().hex}", traverse=False)


class Tasks:
    """Makes and runs tasks; the dashboard shows them as ``gpurbf-<name>``.

    A task runs with the settings that are in force where this is made.

    Parameters
    ----------
    client : distributed.Client or None
        None: the current one, which lazy tasks do not need before they are computed.
    n_jobs : int or None
        Threads of a task, by default its worker's one.
    """

    def __init__(self, client: Any, n_jobs: int | None = None) -> None:
        self._client = client
        self._call = functools.partial(_call, 1 if n_jobs is None else n_jobs, get_config())

    @functools.cached_property
    def client(self) -> distributed.Client:
        """The client that is given, or else the current one; it must be able to wait."""
        client = self._client
        if client is None:
            try:
                client = distributed.get_client()
            except ValueError:
                raise ValueError(
                    "There is no Dask client: make one, client = distributed.Client(), or pass "
                    "client=."
                ) from None
        if client.status == "closed":
            raise ValueError("The Dask client is closed: make another one, or pass client=.")
        if client.asynchronous:
            raise ValueError("The Dask client is asynchronous: pass client= one that waits.")
        return client

    @functools.cached_property
    def threads(self) -> dict[str, int]:
        """The number of threads of each worker, by its address."""
        return dict(self.client.nthreads())

    @property
    def n_threads(self) -> int:
        """How many tasks run at a time."""
        return max(1, sum(self.threads.values()))

    def each(
        self, name: str, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
    ) -> list[Delayed]:
        """Tasks for ``function`` of each tuple of arguments; a large function is sent once."""
        call: Any = functools.partial(self._call, function)
        if len(arguments) * len(dumps(call)) > _MAX_BYTES_IN_TASKS:
            call = shared(call, f"{name}-code")
        task, token = delayed(call, pure=False), uuid.uuid4().hex
        return [
            task(*own, dask_key_name=f"gpurbf-{name}-{token}-{i}")
            for i, own in enumerate(arguments)
        ]

    def merged(
        self, name: str, merge: Callable[..., Any], parts: list[Delayed], fan_in: int = 8
    ) -> list[Delayed]:
        """At most ``fan_in`` parts, merged by a tree of tasks ``merge(*neighbours)``."""
        while len(parts) > fan_in:
            groups = [tuple(parts[i : i + fan_in]) for i in range(0, len(parts), fan_in)]
            parts = self.each(f"{name}-merged", merge, groups)
        return parts

    def total(self, name: str, merge: Callable[..., Any], parts: list[Delayed]) -> Any:
        """Return ``merge(*parts)`` of all parts, the last of them merged by the client."""
        return merge(*self.results(self.merged(name, merge, parts)))

    def start(self, tasks: Any, **options: Any) -> Any:
        """Start tasks; return their futures."""
        # Models are part of the graph on purpose, see `shared`.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"}):
            return self.client.compute(tasks, **options)

    def as_completed(self, futures: list[Any]) -> Any:
        """Futures in the order in which they end; by itself Dask would ask the default client."""
        return distributed.as_completed(futures, loop=self.client.loop)

    def results(self, tasks: Any) -> Any:
        """Results of the tasks, on the client."""
        return self.gathered(self.start(tasks))

    def gathered(self, futures: Any) -> Any:
        """Results of futures; not through the scheduler if all workers are on this machine."""
        local = all(address.startswith(_LOCAL_ADDRESSES) for address in self.threads)
        return self.client.gather(futures, direct=local or None)

    def locality(self, blocks: list[Any]) -> list[list[int]]:
        """Group the numbers of blocks that one task takes together: those on one worker.

        A group is at most a thread's share of all blocks, and at most the bytes that a task may
        take. Blocks that are not computed yet are groups of their own.
        """
        nbytes = self.client.nbytes(summary=False)
        workers = {key: worker for worker, own in self.client.has_what().items() for key in own}
        together: dict[Any, list[int]] = defaultdict(list)
        for i, block in enumerate(blocks):
            together[workers.get(block.key, i)].append(i)
        share, groups = -(-len(blocks) // self.n_threads), []
        for own in together.values():
            largest = max(nbytes.get(blocks[i].key, 1) for i in own)
            size = max(1, min(share, _MAX_BYTES_TOGETHER // max(1, largest)))
            groups += [part.tolist() for part in np.array_split(own, -(-len(own) // size))]
        return groups
