"""Tasks: their readable names, the threads and settings they run with, and trees of them."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import dask
import distributed
from dask.delayed import Delayed, delayed
from distributed.protocol.pickle import dumps

from gpurbf.runtime.config import config_context, get_config
from gpurbf.runtime.threads import limited

# Bytes that the tasks of a kind may hold together: more is sent once, and a step later.
_HELD = 1 << 24
# How addresses begin that only this machine, and this process, can reach.
_HERE = ("tcp://127.0.0.1:", "tcp://[::1]:", "inproc://")
# Results that the client merges itself.
_FEW = 4


def find_client(client: Any) -> distributed.Client:
    """The client that is given, or the one that is there."""
    if client is not None:
        return client
    try:
        return distributed.get_client()
    except ValueError:
        raise ValueError(
            "There is no Dask client: make one, client = distributed.Client(), or pass client=."
        ) from None


class Settings(NamedTuple):
    """How a task runs: as many threads as it may take, and the settings of who asked for it."""

    n_jobs: int
    config: dict[str, Any]

    @classmethod
    def of(cls, n_jobs: int | None) -> Settings:
        """Those in force here; a task has one thread, that of its worker which runs it."""
        return cls(1 if n_jobs is None else n_jobs, get_config())

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """The function called under these settings."""
        with config_context(**self.config), limited(self.n_jobs):
            return function(*args)


def shared(value: Any, name: str) -> Delayed:
    """A value that many tasks take: part of the graph, so that no worker's end loses it."""
    return delayed(value, name=f"gpurbf-{name}-{uuid.uuid4().hex}", traverse=False)


class Tasks:
    """Makes tasks of one kind: ``gpurbf-<name>`` is what the dashboard shows.

    Parameters
    ----------
    client : distributed.Client
    settings : Settings
    """

    # What `results` had last. To let go of it is a message to the scheduler, and the client's next
    # one waits up to 10 ms after that: the next tasks come first.
    _before: Any = None

    def __init__(self, client: distributed.Client, settings: Settings) -> None:
        self.client, self.settings = client, settings

    @functools.cached_property
    def threads(self) -> dict[str, int]:
        """Of each worker."""
        return dict(self.client.nthreads())

    def each(
        self, name: str, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
    ) -> list[Delayed]:
        """``function`` of each tuple of arguments; much that it holds itself is sent once."""
        call: Any = functools.partial(self.settings.call, function)
        if len(arguments) * len(dumps(call)) > _HELD:
            call = shared(call, f"{name}-code")
        task, token = delayed(_call, pure=False), uuid.uuid4().hex
        return [
            task(call, *own, dask_key_name=f"gpurbf-{name}-{token}-{i}")
            for i, own in enumerate(arguments)
        ]

    def merged(
        self,
        name: str,
        merge: Callable[..., Any],
        parts: list[Delayed],
        most: int = 64,
        left: int = 1,
    ) -> list[Delayed]:
        """So many parts at the most, in a tree: ``merge(*parts)`` of ``most`` neighbours."""
        while len(parts) > left:
            some = [tuple(parts[i : i + most]) for i in range(0, len(parts), most)]
            parts = self.each(f"{name}-merged", merge, some)
        return parts

    def total(self, name: str, merge: Callable[..., Any], parts: list[Delayed]) -> Any:
        """``merge(*parts)`` of all parts, here; of a few of them without tasks of its own."""
        return merge(*self.results(self.merged(name, merge, parts, left=_FEW)))

    def start(self, tasks: Any, **options: Any) -> Any:
        """Futures of tasks, which run now."""
        # Models are part of the graph on purpose, see `shared`.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"}):
            return self.client.compute(tasks, **options)

    def results(self, tasks: Any) -> Any:
        """Results of the tasks, on the client."""
        self._before = self.start(tasks)
        return self.gathered(self._before)

    def gathered(self, futures: Any) -> Any:
        """Their results; not by way of the scheduler where all are on one machine."""
        here = all(address.startswith(_HERE) for address in self.threads)
        return self.client.gather(futures, direct=here or None)


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)
