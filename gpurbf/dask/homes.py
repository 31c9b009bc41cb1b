"""Where blocks are, and so which of them a task may take together."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import numpy as np

from gpurbf.dask.graph import Tasks

# Bytes that a task takes together at the most: a worker may have moved them to its disk.
_TOGETHER = 1 << 28


class Homes(NamedTuple):
    """The worker of each block as far as anyone knows, else "", its bytes there, all threads.

    Known are blocks that are persisted, or futures.
    """

    workers: list[str]
    nbytes: list[int]
    threads: dict[str, int]

    @classmethod
    def of(cls, tasks: Tasks, blocks: list[Any]) -> Homes:
        """The homes of blocks."""
        client: Any = tasks.client

        async def ask() -> tuple[Any, ...]:  # all in one wait
            questions = client.nthreads(), client.has_what(), client.nbytes(summary=False)
            return tuple(await asyncio.gather(*questions))

        tasks.threads, keys, nbytes = client.sync(ask)
        homes = {key: worker for worker, own in keys.items() for key in own}
        workers = [homes.get(block.key, "") for block in blocks]
        return cls(workers, [nbytes.get(block.key, 0) for block in blocks], tasks.threads)

    @property
    def n_threads(self) -> int:
        """How many tasks run at a time."""
        return max(1, sum(self.threads.values()))

    def at(self, some: list[int]) -> Homes:
        """The homes of some of them."""
        workers, nbytes = self.workers, self.nbytes
        return Homes([workers[i] for i in some], [nbytes[i] for i in some], self.threads)

    def groups(self, most: int | None = None, elsewhere: int = 1) -> list[list[int]]:
        """The numbers of blocks that tasks may take together.

        Those on one worker, in parts as even as no more than ``most`` allows, than a thread's share
        of all and than are held at a time; and ``elsewhere`` neighbours of those to be computed.
        """
        share = -(-len(self.workers) // self.n_threads)
        groups: list[list[int]] = []
        for worker in dict.fromkeys(self.workers):
            own = [i for i, home in enumerate(self.workers) if home == worker]
            size = elsewhere
            if worker:
                held = _TOGETHER // max(1, *(self.nbytes[i] for i in own))
                size = max(1, min(share, most or share, held))
            groups += [part.tolist() for part in np.array_split(own, -(-len(own) // size))]
        return groups
