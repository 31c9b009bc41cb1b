"""Processes that work for a command."""

from __future__ import annotations

import os
import signal
import sys
from _thread import start_new_thread
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import active_children, get_context, parent_process
from typing import Any


class Processes(ProcessPoolExecutor):
    """At most `n` processes that ignore Ctrl-C, and end when this one ends in whatever way.

    They are spawned, not forked, because threads of this process hold locks.
    """

    def __init__(self, n: int) -> None:
        super().__init__(n, get_context("spawn"), _begin)

    def submit(self, *task: Any, **options: Any) -> Any:
        if sys.platform == "win32":
            return super().submit(*task, **options)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a new process keeps it
        try:
            return super().submit(*task, **options)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def __exit__(self, error: Any, *rest: Any) -> None:
        if error is KeyboardInterrupt:  # else the work that has begun is waited for
            for each in active_children():
                each.terminate()
        super().__exit__(error, *rest)


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    start_new_thread(_end_with_parent, ())


def _end_with_parent() -> None:
    parent_process().join()  # type: ignore[union-attr]
    os._exit(1)
