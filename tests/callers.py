"""Threads that do as they are told, and what a limit of threads could leave a trace in."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import threadpoolctl

from gpurbf.runtime import threads


def own_numbers():
    """What the BLAS libraries are set to as this thread sees it: MKL keeps a number for each."""
    found = threadpoolctl.ThreadpoolController().select(user_api="blas")
    return {library.filepath: library.num_threads for library in found.lib_controllers}


def numbers():
    """What they are set to for a thread that has said nothing."""
    with ThreadPoolExecutor(1) as another:
        return another.submit(own_numbers).result()


def everything():
    """What a limit could leave a trace in."""
    return numbers(), own_numbers(), threads._limit.get(), set(threads._callers)


class Caller:
    """A thread that enters and leaves blocks when it is told to."""

    def __init__(self):
        self._thread, self._blocks = ThreadPoolExecutor(1), ExitStack()

    def enter(self, make, *arguments):
        return self._thread.submit(lambda: self._blocks.enter_context(make(*arguments))).result()

    def leave(self):
        self._thread.submit(self._blocks.close).result()
