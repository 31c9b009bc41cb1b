"""Check and measure a GPU within ten minutes, unattended, what is worth most first.

Every step is processes of its own, whose output goes to files of DIR as it comes; none that fails,
crashes or hangs stops the next one or hides it, and one that could not run does not say that it is
done. DIR/gpu-day.md has them all and a table last. `--quick` takes small sizes, for a rehearsal.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from benchmarks import gpu
from benchmarks.report import Report
from gpurbf.cli import UserError
from gpurbf.layer.backends import GPUS, LOADERS, Backend, no_gpu
from gpurbf.layer.backends.cuda import check
from gpurbf.profiling import machine
from gpurbf.profiling.profiler import markdown_table
from gpurbf.runtime.errors import BackendUnavailable
from gpurbf.svm import cuda_check

_ROOT = Path(__file__).parents[1]
# Status of a step that has nothing to run on, as automake has it; processes side by side, of which
# one that crashes hides half of the cases at most.
NOT_RUN, _PARTS = 77, max(2, min(8, os.cpu_count() or 2))
# Folders of tests that take any backend, each a process.
FOLDERS = "layer", "svm", "solvers", "estimators", "fsvc", "contract", "data", "profiling"
_QUICK = "GPURBF_GPU_DAY_QUICK"


def _backend(name: str) -> Backend:
    """The backend, right or wrong; ends a step that has none."""
    try:
        return LOADERS[name]()
    except BackendUnavailable as error:
        print(f"not run: {name}: {error}")
        raise SystemExit(NOT_RUN) from None


def versions() -> None:
    """Print what is installed and found; run cuBLAS's 8-bit product and a tile, a case of each."""
    print(markdown_table(("what", "found"), machine.hardware().items()), end="\n\n")
    names = ((found.name, found.version) for found in importlib.metadata.distributions())
    cuda = {name: version for name, version in names if name.startswith(("nvidia-", "cuda-"))}
    rows = (machine.versions() | dict(sorted(cuda.items()))).items()
    print(markdown_table(("library", "version"), rows), end="\n\n", flush=True)
    if smi := shutil.which("nvidia-smi"):
        subprocess.run([smi], check=False)
    for name in GPUS:
        case = next(check.cases(_backend(name)))
        print(f"{name}: {case.why or f'{case.kernel}: {case.data}: right'}", flush=True)
    print(f"CUDA_HOME={os.environ.get('CUDA_HOME', '')}")


def cases(name: str, part: str) -> None:
    """Every so many of the cases of a backend, and what its kernels take of a multiprocessor."""
    backend, thorough = _backend(name), not os.environ.get(_QUICK)
    found = check.cases(backend, thorough, slice(int(part), None, _PARTS))
    if name == "numba-cuda" and part == "0":
        found = chain(found, cuda_check.step_cases(backend, thorough))
    wrong = []
    for case in found:
        print(case.why or f"{case.kernel}: {case.data}: right, {case.error:.1e}", flush=True)
        wrong += [case.why] if case.why else []
    for kernel in gc.get_objects():
        kind = type(kernel).__name__
        with contextlib.suppress(Exception):  # of any kind of object
            if kind == "RawKernel":
                label, *used = kernel.name, kernel.num_regs, kernel.local_size_bytes
            elif kind == "CUDADispatcher" and kernel.overloads:  # those of what it is compiled for
                both = kernel.get_regs_per_thread(), kernel.get_local_mem_per_thread()
                label, *used = kernel.__name__, *(max(some.values()) for some in both)
            else:
                continue
            print("{}: {} registers, {} bytes of local memory".format(label, *used))
    if wrong:
        raise SystemExit(f"{len(wrong)} cases are wrong")


def section(what: str, name: str, data_home: str) -> None:
    """A section of the benchmark `gpu` for a backend, right or wrong."""
    bench = {name: _backend(name)}
    report, quick = Report(gpu.TITLE), bool(os.environ.get(_QUICK))
    gpu.SECTIONS[what](gpu.Bench(report, quick, data_home or None, bench))


class Step(NamedTuple):
    """Commands to run side by side, their limit in seconds, and what their environment has more."""

    name: str
    commands: list[list[str]]
    limit: float
    environment: dict[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("out", metavar="DIR", type=Path, help="where the report goes")
    parser.add_argument(
        "--within", metavar="SECONDS", type=float, default=540, help="all of it (default: 540)"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: a rehearsal")
    parser.add_argument(
        "--only", metavar="STEP", action="append", help="this step; may be repeated"
    )


def run(arguments: argparse.Namespace) -> None:
    """Run the steps one after the other; a table says of each how it ended."""
    end, out = time.monotonic() + arguments.within, arguments.out
    page = out / "gpu-day.md"
    steps = list(_steps(arguments))
    wanted = arguments.only or [step.name for step in steps]
    if unknown := set(wanted) - {step.name for step in steps}:
        names = ", ".join(step.name for step in steps)
        raise UserError(f"no step {', '.join(sorted(unknown))}: there are {names}")
    out.mkdir(parents=True, exist_ok=True)
    page.write_text("# A day on a GPU\n\n", encoding="utf-8")
    _say(page, _conditions())
    rows = []
    for step in steps:
        if step.name not in wanted:
            continue
        begin = time.monotonic()
        left = end - begin
        _say(page, f"## {step.name}")
        limit = min(step.limit * (3 if arguments.quick else 1), left)  # rehearsals have few cores
        result = _run(step, out, limit) if left > 1 else "**not run**: no time left"
        seconds = time.monotonic() - begin
        rows.append((step.name, result, f"{seconds:.0f}"))
        for file in sorted(out.glob(f"{step.name}-*.txt")) if left > 1 else ():
            _say(page, file.read_text(encoding="utf-8", errors="replace").strip())
        _say(page, f"{result}, {seconds:.0f} s")
    _say(page, "## Summary\n\n" + markdown_table(("step", "result", "seconds"), rows))
    _say(page, _conditions())
    print(f"written: {page}")


def _say(page: Path, text: str) -> None:
    """Print it and add it to the report at once."""
    print(text, end="\n\n", flush=True)
    with page.open("a", encoding="utf-8") as file:
        file.write(f"{text}\n\n")


def _conditions() -> str:
    """Say whether any of this was measured on a GPU."""
    why, today = no_gpu(), datetime.date.today().isoformat()
    if why is None:
        return f"On a machine with a GPU, {today}."
    return f"**Not measured on a GPU** ({why}), {today}."


def _steps(arguments: argparse.Namespace) -> Iterator[Step]:
    """What is worth most first: does it run, is it right, how fast is it, and what else."""
    python = [sys.executable, "-u"]
    quick = {_QUICK: "1"} if arguments.quick else {}

    def alone(step: str, *given: str) -> list[str]:
        return [*python, "-c", f"from benchmarks import gpu_day; gpu_day.{step}{given!r}"]

    def of_page(what: str, name: str, limit: float) -> Step:
        command = alone("section", what, name, arguments.data_home or "")
        return Step(f"{what} {name}", [command], limit, quick)

    yield Step("versions", [alone("versions")], 40, quick)
    sides = [alone("cases", name, str(part)) for name in GPUS for part in range(_PARTS)]
    yield Step("cases", sides, 110, quick)
    yield of_page("limits", "cupy", 40)
    for name in reversed(GPUS):
        yield of_page("table", name, 45)
    yield Step("check-gpu", [[*python, "-m", "gpurbf", "check-gpu"]], 100, quick)
    yield of_page("fits", "numba-cuda", 110)  # by name, which finds that verdict
    if sanitizer := shutil.which("compute-sanitizer"):
        # Libraries ask the driver for functions that it may not have.
        watched = [sanitizer, "--error-exitcode=1", "--report-api-errors=no", "--tool"]
        some = alone("cases", "numba-cuda", "1")
        sides = [[*watched, tool, *some] for tool in ("memcheck", "racecheck")]
        yield Step("sanitizer", sides, 60, quick)
    # A line as each ends; what takes the fixture `backend` has its name in brackets.
    pytest = [*python, "-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider"]
    pytest += ["-k", "cupy] or cupy- or numba-cuda"]
    sides = [[*pytest, str(_ROOT / "tests" / folder)] for folder in FOLDERS]
    yield Step("tests", sides, 540, {"GPURBF_REQUIRE": ",".join(GPUS)})


def _run(step: Step, out: Path, limit: float) -> str:
    """Run the commands of a step side by side; how they ended, and how many each way."""
    end = time.monotonic() + limit
    paths = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    processes, results = [], []
    try:
        for number, command in enumerate(step.commands):
            with (out / f"{step.name}-{number:02}.txt").open("wb") as file:
                process = subprocess.Popen(
                    command,
                    env=os.environ | {"PYTHONPATH": paths} | step.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            processes.append(process)
        for process in processes:
            try:
                status = process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                results.append(f"**stopped** after {limit:.0f} s")
            else:
                said = {0: "done", NOT_RUN: "**not run**"}
                results.append(said.get(status, f"**failed** with status {status}"))
    finally:  # the user's Ctrl-C reaches this process alone
        for process in processes:
            _end(process)
    if len(results) == 1:
        return results[0]
    return ", ".join(f"{results.count(one)} {one}" for one in sorted(set(results)))


def _end(process: subprocess.Popen) -> None:
    """End a process and those that it has started; a driver may not let it go."""
    with contextlib.suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(2)
