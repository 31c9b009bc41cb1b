"""Show where the time of a fit and a prediction goes, and how fast they could be."""

from __future__ import annotations

import argparse
import csv
import os
from pathlib import Path

from gpurbf.cli import BACKEND, UserError
from gpurbf.cli.classify import ESTIMATORS, images, say
from gpurbf.layer.backends import LOADERS, get_backend
from gpurbf.profiling import scaling
from gpurbf.profiling.profiler import Profile, Row, markdown_table, profile_data
from gpurbf.runtime.stages import Recorder, stage

# The parameter for the number of centers, or for its maximum.
_COUNTS = {"rbf": "n_centers", "fsvc": "max_centers"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--estimator", default="rbf", choices=[*ESTIMATORS], help="(default: rbf)")
    parser.add_argument("--backend", default="auto", choices=["auto", *LOADERS], help=BACKEND)
    parser.add_argument(
        "--centers", type=int, metavar="m", help="number for rbf, limit for fsvc (default: its own)"
    )
    parser.add_argument(
        "--data",
        "--data-home",
        dest="data_home",
        default=os.environ.get("GPURBF_TEST_DATA") or None,
        metavar="DIR",
        help="folder with MNIST's files (default: $GPURBF_TEST_DATA, else scikit-learn's digits)",
    )
    parser.add_argument(
        "--threads",
        metavar="1,2,16",
        help="also estimate the training time with these numbers of threads; the fit then uses at "
        "most two; --out writes this table",
    )
    parser.add_argument("--quick", action="store_true", help="use scikit-learn's digits")
    parser.add_argument(
        "--out", metavar="FILE", help="also write the picture (.png, .svg) or all rows (.csv)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Profile one estimator, print the table and write the requested file."""
    out = Path(arguments.out) if arguments.out else None
    if out and out.suffix not in (".png", ".svg", ".csv"):
        raise UserError(f"--out {out}: the name must end in .png, .svg or .csv.")
    if out and not out.parent.is_dir():  # said before the work, not after it
        raise UserError(f"--out {out}: there is no folder {out.parent}.")
    if arguments.centers is not None and arguments.estimator not in _COUNTS:
        raise UserError(f"--centers: {arguments.estimator} chooses its own centers; leave it out.")
    threads = _numbers(arguments.threads)
    quick = arguments.quick or arguments.data_home is None
    if not quick and not Path(arguments.data_home).is_dir():
        raise UserError(f"--data {arguments.data_home}: no such folder; --quick takes the digits.")
    try:
        get_backend(arguments.backend)  # refuse it before the data are read
        estimator = ESTIMATORS[arguments.estimator](1400 if quick else 60_000, arguments.backend)
        if arguments.centers is not None:
            estimator.set_params(**{_COUNTS[arguments.estimator]: arguments.centers})
        if threads:  # what more threads wait for would be in the record
            estimator.set_params(n_jobs=2)
        say("reading")
        with Recorder() as training, stage("read and validate", "files"):
            data = images(quick, arguments.data_home)
        found = profile_data(estimator, data, training, say=say)
    except ValueError as error:
        raise UserError(str(error)) from error
    print(found)
    if rows := found.scaling(threads):
        print(f"\nTraining with more threads, modelled:\n\n{markdown_table(*scaling.table(rows))}")
    if out:
        _write(found, rows, out)


def _numbers(text: str | None) -> list[int]:
    """Read the option --threads."""
    numbers = [int(n) if n.strip().isdecimal() else 0 for n in text.split(",")] if text else []
    if min(numbers, default=1) < 1:
        raise UserError(f"--threads {text}: give numbers >= 1 like 1,2,16.")
    return numbers


def _write(found: Profile, rows: list[scaling.Scaling], out: Path) -> None:
    """Write the picture or the rows."""
    try:
        if out.suffix == ".csv":
            with out.open("w", newline="", encoding="utf-8") as file:
                table = [scaling.Scaling._fields, *rows] if rows else [Row._fields, *found.rows]
                csv.writer(file).writerows(table)
        else:
            from matplotlib.figure import Figure

            figure = Figure(figsize=(6, 4.2) if rows else (11, 4.2), layout="constrained")
            scaling.draw(rows, figure) if rows else found.plot(figure)
            figure.savefig(out, dpi=100)
        print(f"written: {out}")
    except ImportError:
        print("no picture: get Matplotlib with `python -m pip install matplotlib`")
    except OSError as error:
        raise UserError(f"--out {out}: {error}") from error
