"""Measure which tiles are fastest on this machine, and keep them for all layers."""

from __future__ import annotations

import argparse
import os
import sys
import time

from benchmarks import tuner
from gpurbf.layer.backends import LOADERS, available_backends, get_backend, tile
from gpurbf.profiling.tables import markdown_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "--backend", choices=list(LOADERS), help="one only (default: every one that is available)"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="two ranges of inputs, the others stay at the default, and fewer rounds",
    )


def run(arguments: argparse.Namespace) -> None:
    """Tune, print what was found, and store it."""
    if arguments.backend:
        names = [get_backend(arguments.backend)[0].name]  # or the reason why not
    else:
        names = [name for name, problem in available_backends().items() if problem is None]
    if busy := _busy():
        print(busy, file=sys.stderr)
    for name in names:
        begin = time.perf_counter()
        outcomes = tuner.tune(name, 8 if arguments.quick else tuner.SECONDS, arguments.quick, _bar)
        took = time.perf_counter() - begin
        print(f"{name} on {tile.device(name)}\n\n{_table(outcomes)}\n\n{took:.0f} s, ", end="")
        try:
            print(f"stored: {tile.store(name, tuner.entries(outcomes))}\n")
        except OSError as error:
            print(f"could not be stored and changes nothing: {error}\n")


def _busy() -> str:
    """A warning if other programs keep the processor busy; nothing where the system cannot tell."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load < (os.cpu_count() or 1) / 2:
        return ""
    return f"the processor is busy (load {load:.1f}): tune again when it is not"


def _bar(done: int, total: int, text: str) -> None:
    """Progress on stderr: one line that is written over, or lines where that is no terminal."""
    width = 30
    filled = width * done // total if total else width
    bar = "#" * filled + "." * (width - filled)
    terminal = sys.stderr.isatty()
    start, end = ("\r\x1b[K", "\n" * (done == total)) if terminal else ("", "\n")
    print(f"{start}[{bar}] {done}/{total} {text}", end=end, file=sys.stderr, flush=True)


def _table(outcomes: list[tuner.Outcome]) -> str:
    """What won, and by how much."""
    rows = [
        (
            case.metric,
            case.precision,
            f"{case.most:,.0f}" if case.most < float("inf") else "more",
            case.n,
            tile,
            f"{1e3 * default:.2f}",
            f"{1e3 * seconds:.2f}",
            f"{default / seconds:.2f}",
        )
        for case, tile, default, seconds in outcomes
    ]
    header = ("metric", "precision", "inputs up to", "measured", "tile", "default ms", "ms", "gain")
    return markdown_table(header, rows)
