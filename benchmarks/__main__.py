"""Measure this machine against the peers and write the results page.

``python -m benchmarks NAME [--quick]`` runs one benchmark. ``python -m benchmarks gpu-day DIR``
checks and measures everything on a GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks import BENCHMARKS, gpu_day, run_benchmark
from gpurbf.cli import exit_status

# Run in the repository, results go where the documentation shows them; those of a quick run do not.
_PAGES = Path("docs", "benchmarks")
_ELSEWHERE = Path("gpurbf-out")


def main(argv: list[str]) -> int:
    """Run one benchmark, or all that a GPU is to show.

    Parameters
    ----------
    argv : list of str
        The arguments after the program's name.

    Returns
    -------
    status : int
        That of `gpurbf.cli.exit_status`.
    """
    return exit_status(_run, argv, _program(argv))


def _program(argv: list[str]) -> str:
    return "benchmarks gpu-day" if argv[:1] == ["gpu-day"] else "benchmarks"


def _run(argv: list[str]) -> None:
    on_gpu = argv[:1] == ["gpu-day"]
    parser = argparse.ArgumentParser(
        prog=_program(argv),
        description=gpu_day.__doc__ if on_gpu else __doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--data",
        "--data-home",
        dest="data_home",
        default=os.environ.get("GPURBF_TEST_DATA"),
        metavar="DIR",
        help="holds MNIST (default: $GPURBF_TEST_DATA, else as gpurbf.datasets finds it)",
    )
    (gpu_day.add_arguments if on_gpu else _add_arguments)(parser)
    arguments = parser.parse_args(argv[on_gpu:])
    (gpu_day.run if on_gpu else _run_one)(arguments)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a single benchmark."""
    parser.add_argument("name", choices=BENCHMARKS)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="where to write page, tables and figures "
        f"(default: {_PAGES} if there is one and the run is not quick, else {_ELSEWHERE})",
    )


def _run_one(arguments: argparse.Namespace) -> None:
    """Run one benchmark, print its results and write them between the marks of its page."""
    folder = _PAGES if _PAGES.is_dir() and not arguments.quick else _ELSEWHERE
    if arguments.out:
        folder = Path(arguments.out)
    run_benchmark(arguments.name, arguments.quick, arguments.data_home, folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
