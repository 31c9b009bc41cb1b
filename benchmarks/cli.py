"""Measure this machine against the peers and write the results page."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks import BENCHMARKS, run_benchmark
from gpurbf.cli import UserError

# Run in the repository, results go where the documentation shows them; those of a quick run do not.
_PAGES = Path("docs", "benchmarks")
_ELSEWHERE = Path("gpurbf-out")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("name", choices=list(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument(
        "--data",
        "--data-home",
        dest="data_home",
        default=os.environ.get("GPURBF_TEST_DATA"),
        metavar="DIR",
        help="holds MNIST (default: $GPURBF_TEST_DATA, else as gpurbf.datasets finds it)",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="where to write page, tables and figures "
        f"(default: {_PAGES} if there is one and the run is not quick, else {_ELSEWHERE})",
    )


def run(arguments: argparse.Namespace) -> None:
    """Run one benchmark, print its results and write them between the marks of its page."""
    folder = _PAGES if _PAGES.is_dir() and not arguments.quick else _ELSEWHERE
    if arguments.out:
        folder = Path(arguments.out)
    try:
        run_benchmark(arguments.name, arguments.quick, arguments.data_home, folder)
    except BrokenPipeError:
        raise
    except OSError as error:  # no data, no room
        raise UserError(str(error)) from error
