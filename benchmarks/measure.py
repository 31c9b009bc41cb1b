"""Time calls in turn, run code in a fresh process, and measure memory."""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

REST = 0.3  # seconds before a call, see `in_turn`
_ROOT = Path(__file__).parents[1]


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
    """Time each candidate once a round, in turn.

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
    if warm_up:
        for candidate in candidates.values():
            candidate()
    shortest: dict[str, float] = {}

    def measure(name: str) -> float:
        call = functools.partial(timer or once, candidates[name])
        if rest:
            _settle(call, shortest.get(name, REST))
        took = call()
        shortest[name] = min(took, shortest.get(name, took))
        return took

    def collected() -> Iterator[int]:
        # With Numba's many objects it takes longer than most calls: after the first round it looks
        # at what the rounds have made alone, in a caller's `gc.freeze` never at the rest.
        ours = not gc.get_freeze_count()
        try:
            for done in range(rounds):
                gc.collect()
                if ours and not done:
                    gc.freeze()
                yield done
        finally:
            if ours:
                gc.unfreeze()

    return {
        name: Times(statistics.median(seconds), min(seconds), max(seconds))
        for name, seconds in _measured(candidates, collected(), measure).items()
    }


def _measured(
    names: Iterable[str], rounds: Iterable[int], measure: Callable[[str], float]
) -> dict[str, list[float]]:
    """``measure(name)`` of each once a round, one after the other, every other round in reverse.

    What disturbs the machine for a while then meets all of them, not one, and each of two is first
    as often as the other.
    """
    found: dict[str, list[float]] = {name: [] for name in names}
    for done in rounds:
        for name in reversed(found) if done % 2 else found:
            found[name].append(measure(name))
    return found


def _settle(call: Callable[[], Any], takes: float) -> None:
    """Let REST seconds pass, at work if a call takes less, else asleep."""
    end = time.perf_counter() + REST
    if takes >= REST:
        time.sleep(REST)
    while time.perf_counter() < end:
        call()


def calls(models: dict[str, Any], method: str, *arguments: Any) -> dict[str, Callable[[], Any]]:
    """The method of each model with these arguments, to be timed."""
    return {
        name: functools.partial(getattr(model, method), *arguments)
        for name, model in models.items()
    }


def timed(call: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Seconds of one call, and its result; garbage is collected before or after, not during."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        begin = time.perf_counter()
        result = call(*arguments)
        return time.perf_counter() - begin, result
    finally:
        if collecting:
            gc.enable()


def once(call: Callable[..., Any], *arguments: Any) -> float:
    """Seconds of one call, whose result is dropped."""
    return timed(call, *arguments)[0]


def run_python(code: str, **environment: str) -> str:
    """Run code in a fresh process, with these environment variables added; return its last line."""
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


def megabytes(what: str) -> float | None:
    """A line of Linux's /proc/self/status: "VmRSS", "VmHWM" or "RssAnon"; None elsewhere."""
    try:
        with open("/proc/self/status", encoding="utf-8") as lines:
            found = [line for line in lines if line.startswith(f"{what}:")]
    except OSError:
        return None
    return int(found[0].split()[1]) / 1024 if found else None


def reset_peak() -> None:
    """Let "VmHWM" be the peak from now on, where Linux's /proc is there."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


# The peak is reset after the set-up, so it is that of the measured lines alone.
_PEAK = """
import gc, json
from benchmarks.measure import megabytes, reset_peak
{setup}
gc.collect()
reset_peak()
before = megabytes("VmRSS")
{measured}
print(json.dumps(megabytes("VmHWM") - before))
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
    if megabytes("VmHWM") is None:
        return None
    return float(json.loads(run_python(_PEAK.format(setup=setup, measured=measured))))
