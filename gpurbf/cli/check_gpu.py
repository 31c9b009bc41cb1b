"""Check every kernel of the GPU backends against NumPy, and time them.

A GPU is checked when it is first used, and the result is kept. This command checks again and shows
each case. `--thorough` adds more shapes, all activations and larger problems of SVC.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import chain

from gpurbf.cli import UserError
from gpurbf.layer.backends import GPUS, LOADERS, Backend, best_on_host, why_of
from gpurbf.layer.backends.cuda import check
from gpurbf.svm import cuda_check


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--thorough", action="store_true", help="check more cases; takes minutes")
    parser.add_argument(
        "--backend", choices=GPUS, action="append", help="may be given twice (default: both)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Print a row for each case when it ends; raise an error at the end if one is wrong."""
    failures = []
    for name in arguments.backend or GPUS:
        try:
            backend = LOADERS[name]()
        except Exception as error:  # an old driver, a damaged CuPy: the other one is checked too
            failures.append(f"{name}: {why_of(error)}")
            continue
        print(f"{name}: {backend.kernel}", flush=True)
        verdict = check.judged(backend, _shown(backend, arguments.thorough), best_on_host()[0])
        check.keep(name, verdict)
        print(f"  {verdict.said}", flush=True)
        if verdict.why:
            failures.append(f"{name}: {verdict.why}")
    if failures:
        raise UserError("; ".join(failures))


def _shown(backend: Backend, thorough: bool) -> Iterator[check.Case]:
    """The cases, each printed when its result is known."""
    cases = check.cases(backend, thorough)
    if backend.name == "numba-cuda":
        cases = chain(cases, cuda_check.step_cases(backend, thorough))
    for case in cases:
        said = case.problem or f"{case.error:8.1e} of {case.tolerance:.0e}"
        verdict = "WRONG" if case.why else "right"
        print(f"  {case.kernel:34} {case.data:54} {verdict}  {said}", flush=True)
        yield case
