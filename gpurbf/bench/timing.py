"""Time things in turn, and measure the memory that a piece of code takes."""

from __future__ import annotations

import functools
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Times", "in_turn", "once", "peak_memory", "run_python"]

REST = 0.3  # seconds before a call, see `in_turn`
_ROOT = Path(__file__).parents[2]


class Times(NamedTuple):
    """Seconds of the rounds."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        digits = 3 if self.median < 1 else 2 if self.median < 10 else 1
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}–{self.high:.{digits}f})"


def in_turn(
    candidates: dict[str, Callable[[], Any]],
    rounds: int = 5,
    warm_up: bool = True,
    timer: Callable[[Callable[[], Any]], float] | None = None,
    rest: bool = True,
) -> dict[str, Times]:
    """Time each candidate once a round, one after the other, every other round in reverse.

    What disturbs the machine for a while then meets all of them, not one, and each of two is
    first as often as the other.

    Parameters
    ----------
    candidates : dict of str to callable
        What is compared; results are dropped.
    rounds : int, default=5
        How often each is timed.
    warm_up : bool, default=True
        Run each once before, untimed: compilation and first touches of memory are not the subject.
    timer : callable, optional
        ``timer(candidate)`` calls it and gives its seconds; :func:`once` by default.
    rest : bool, default=True
        Let ``REST`` seconds pass before each call: OpenBLAS's and OpenMP's threads spin for up to
        0.2 s after a call in wait of the next one, and what another library computes meanwhile
        takes up to 1.5 times as long. Calls that are shorter are made untimed meanwhile, because
        caches and clocks of an idle machine cost them a tenth.

    Returns
    -------
    times : dict of str to Times
        Median and range of the rounds.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    if warm_up:
        for candidate in candidates.values():
            candidate()
    for done in range(rounds):
        # Once a round: with Numba's many objects it takes longer than most calls.
        gc.collect()
        for name in reversed(seconds) if done % 2 else seconds:
            measure = functools.partial(timer or once, candidates[name])
            if rest:
                _settle(measure, min(seconds[name], default=REST))
            seconds[name].append(measure())
    return {
        name: Times(statistics.median(values), min(values), max(values))
        for name, values in seconds.items()
    }


def _settle(call: Callable[[], Any], takes: float) -> None:
    """Let REST seconds pass, at work if a call takes less, else asleep."""
    end = time.perf_counter() + REST
    if takes >= REST:
        time.sleep(REST)
    while time.perf_counter() < end:
        call()


def once(candidate: Callable[[], Any]) -> float:
    """Seconds of one call; garbage is collected before or after, not during."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        started = time.perf_counter()
        candidate()
        return time.perf_counter() - started
    finally:
        if collecting:
            gc.enable()


# The peak is reset after the set-up, so it is that of the measured lines alone.
_PEAK = """
import gc, json, re
def status(name):
    with open("/proc/self/status") as lines:
        return int(re.search(rf"{{name}}:\\s+(\\d+) kB", lines.read()).group(1)) / 1024
{setup}
gc.collect()
with open("/proc/self/clear_refs", "w") as reset:
    reset.write("5")
before = status("VmRSS")
{measured}
print(json.dumps(status("VmHWM") - before))
"""


def peak_memory(setup: str, measured: str) -> float | None:
    """Megabytes by which `measured` raises the peak of a fresh process above `setup`.

    Parameters
    ----------
    setup : str
        Python lines that read the data and import what is used.
    measured : str
        Python lines to measure.

    Returns
    -------
    megabytes : float or None
        None where Linux's ``/proc`` is not there.
    """
    if not sys.platform.startswith("linux"):
        return None
    return float(json.loads(run_python(_PEAK.format(setup=setup, measured=measured))))


def run_python(code: str, **environment: str) -> str:
    """What a fresh process prints last for that code, with these environment variables added."""
    # The process imports this gpurbf, also where it is a source tree and the folder is another.
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path} | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.strip().splitlines()[-1]
