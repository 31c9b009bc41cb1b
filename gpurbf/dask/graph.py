"""Tasks: their readable names, the threads and settings they run with, and trees of them."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import dask
import distributed
from dask.delayed import Delayed, delayed

from gpurbf._config import config_context, get_config
from gpurbf.backends.threads import limited

__all__ = ["Settings", "Tasks", "find_client", "shared"]


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

    def __init__(self, client: distributed.Client, settings: Settings) -> None:
        self.client, self.settings = client, settings

    def each(
        self, name: str, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
    ) -> list[Delayed]:
        """``function`` of each tuple of arguments; what it holds itself is sent once."""
        call = shared(functools.partial(self.settings.call, function), f"{name}-code")
        token = uuid.uuid4().hex
        return [
            delayed(_call, pure=False)(call, *own, dask_key_name=f"gpurbf-{name}-{token}-{i}")
            for i, own in enumerate(arguments)
        ]

    def merged(
        self, name: str, merge: Callable[..., Any], parts: list[Delayed], most: int = 64
    ) -> Delayed:
        """All parts merged in their order, in a tree: ``merge(*parts)`` of at most so many."""
        while len(parts) > 1:
            some = [tuple(parts[i : i + most]) for i in range(0, len(parts), most)]
            parts = self.each(f"{name}-merged", merge, some)
        return parts[0]

    def start(self, tasks: Any, **options: Any) -> Any:
        """Futures of tasks, which run now."""
        # Models are part of the graph on purpose, see `shared`.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"}):
            return self.client.compute(tasks, **options)

    def results(self, tasks: Any) -> Any:
        """What the tasks return, here."""
        return self.client.gather(self.start(tasks))


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)
