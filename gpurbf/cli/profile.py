"""Show where the time of a fit and a prediction goes, beside the ceilings."""

from __future__ import annotations

import argparse
import csv
import os
from pathlib import Path
from typing import Any

from gpurbf.cli import UserError
from gpurbf.cli.classify import ESTIMATORS, images, say
from gpurbf.layer.backends import LOADERS, get_backend
from gpurbf.profiling.profiler import Profile, Row, profile_from

# The parameter that says how many centers there are, or may be.
_COUNTS = {"rbf": "n_centers", "fsvc": "max_centers"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--estimator", default="rbf", choices=list(ESTIMATORS))
    parser.add_argument("--backend", default="auto", choices=["auto", *LOADERS])
    parser.add_argument(
        "--centers",
        type=int,
        metavar="m",
        help="number for rbf, maximum for fsvc (default: theirs)",
    )
    parser.add_argument(
        "--data",
        "--data-home",
        dest="data_home",
        default=os.environ.get("GPURBF_TEST_DATA"),
        metavar="DIR",
        help="holds MNIST (default: $GPURBF_TEST_DATA; without it scikit-learn's digits)",
    )
    parser.add_argument("--quick", action="store_true", help="scikit-learn's digits")
    parser.add_argument(
        "--out", metavar="FILE", help="also write the picture (.png, .svg) or all rows (.csv)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Profile one estimator, print the table and write what was asked for."""
    out = Path(arguments.out) if arguments.out else None
    if out and out.suffix not in (".png", ".svg", ".csv"):
        raise UserError(f"--out {out}: the name must end in .png, .svg or .csv.")
    if arguments.centers is not None and arguments.estimator not in _COUNTS:
        raise UserError(f"--centers: {arguments.estimator} chooses its own; leave it out.")
    quick = arguments.quick or arguments.data_home is None

    def load() -> tuple[Any, Any, Any, Any]:
        return images(quick, arguments.data_home)

    try:
        get_backend(arguments.backend)  # refused now rather than after the data are read
        N = 1400 if quick else 60_000
        estimator = ESTIMATORS[arguments.estimator](N, arguments.backend)
        if arguments.centers is not None:
            estimator.set_params(**{_COUNTS[arguments.estimator]: arguments.centers})
        found = profile_from(estimator, load, say=say)
    except (ValueError, FileNotFoundError) as error:
        raise UserError(str(error)) from error
    print(found)
    if out:
        _write(found, out)


def _write(found: Profile, out: Path) -> None:
    """The picture or the rows."""
    try:
        if out.suffix == ".csv":
            with out.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([Row._fields, *found.rows])
        else:
            from matplotlib.figure import Figure

            figure = found.plot(Figure(figsize=(11, 4.2), layout="constrained"))
            figure.savefig(out, dpi=100)
    except ImportError:
        print("no picture: get Matplotlib with `python -m pip install matplotlib`")
    except OSError as error:
        raise UserError(f"--out {out}: {error}") from error
    else:
        print(f"written: {out}")
