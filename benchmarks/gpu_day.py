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
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import data
from benchmarks.peak_gpu import event_seconds, int8_products, limits
from gpurbf import SVC
from gpurbf.cli import UserError, classify
from gpurbf.layer.activation import Activation
from gpurbf.layer.backends import GPUS, LOADERS, Backend, best_on_host, no_gpu
from gpurbf.layer.backends.cuda import check
from gpurbf.layer.layer import HiddenLayer
from gpurbf.profiling import machine
from gpurbf.profiling.profiler import markdown_table
from gpurbf.runtime.errors import BackendUnavailable
from gpurbf.runtime.linalg import factorizations
from gpurbf.svm import cuda_pairs

_ROOT = Path(__file__).parents[1]
# Status of a step that has nothing to run on, as automake has it; processes side by side.
NOT_RUN, _PARTS = 77, 8
_QUICK = "GPURBF_GPU_DAY_QUICK"


def _backend(name: str) -> Backend:
    """The backend, right or wrong; ends a step that has none."""
    try:
        return LOADERS[name]()
    except BackendUnavailable as error:
        print(f"not run: {name}: {error}")
        raise SystemExit(NOT_RUN) from None


def versions(*_: str) -> None:
    """Print what is installed and found, run a kernel of Numba and cuBLAS's 8-bit products."""
    print(markdown_table(("what", "found"), machine.hardware().items()), end="\n\n")
    names = ((found.name, found.version) for found in importlib.metadata.distributions())
    cuda = {name: version for name, version in names if name.startswith(("nvidia-", "cuda-"))}
    rows = (machine.versions() | dict(sorted(cuda.items()))).items()
    print(markdown_table(("library", "version"), rows), end="\n\n", flush=True)
    if smi := shutil.which("nvidia-smi"):
        subprocess.run([smi], check=False)
    xp = _backend("cupy").xp
    int8_products(xp, (16, 37, 4096, 5923), (17, 784))
    print("cuBLAS's 8-bit products are exact", flush=True)
    _backend("numba-cuda")
    from benchmarks.ways import one_thread_a_pair

    X, out = xp.asarray(np.ones((5, 3), np.float32)), xp.empty((5, 5), np.float32)
    one_thread_a_pair(X, X, 1.0, out)
    if not (out.get() == 1).all():
        raise AssertionError("Numba's kernel is wrong")
    print(f"Numba's kernel is right; CUDA_HOME={os.environ.get('CUDA_HOME', '')}")


def cases(name: str, part: str, _: str) -> None:
    """Every so many of the cases of a backend, and what its kernels take of a multiprocessor."""
    backend, thorough = _backend(name), not os.environ.get(_QUICK)
    found = check.cases(backend, thorough, slice(int(part), None, _PARTS))
    if name == "numba-cuda" and part == "0":
        found = chain(found, cuda_pairs.step_cases(backend, thorough))
    wrong = []
    for case in found:
        print(f"{case.kernel}: {case.data}: {case.why or f'right, {case.error:.1e}'}", flush=True)
        wrong += [case.why] if case.why else []
    for kernel in gc.get_objects():
        kind = type(kernel).__name__
        with contextlib.suppress(Exception):  # of any kind of object
            if kind == "RawKernel":
                used = kernel.name, kernel.num_regs, kernel.local_size_bytes
            elif kind == "CUDADispatcher":
                given = kernel.get_regs_per_thread(), kernel.get_local_mem_per_thread()
                used = kernel.__name__, *given
            else:
                continue
            print("{}: {} registers, {} bytes of local memory".format(*used))
    if wrong:
        raise SystemExit(f"{len(wrong)} cases are wrong")


def ceilings(*_: str) -> None:
    """Print the limits of the device, timed or from its properties."""
    size, megabytes = (256, 1) if os.environ.get(_QUICK) else (8192, 256)
    rates = limits(_backend("cupy").xp, size, megabytes)
    rows = [(what, f"{rate / 1e12:.3g}") for what, rate in rates.items()]
    print(markdown_table(("what", "10¹² a second"), rows))


class _Row(NamedTuple):
    """A call to time, and the milliseconds that were estimated for an H100 before there was one."""

    what: str
    call: Callable[[], Any]
    floor: float
    attainable: float


def table(name: str, *_: str) -> None:
    """Time each part on the device, by its clock and the wall's, beside the estimates."""
    backend = _backend(name)
    N, m, n = (200, 32, 64) if os.environ.get(_QUICK) else (60_000, 4096, 784)
    print(f"**{backend.kernel}**, {N:,} × {m:,} × {n}, 8-bit, everything on the device\n")
    print("| what | device ms | wall ms | H100: floor | attainable |")
    print("| --- | ---: | ---: | ---: | ---: |", flush=True)
    failed = 0
    for row in _rows(backend, N, m, n):
        try:
            device, wall = _milliseconds(backend.xp, row.call)
        except Exception as error:  # the other rows are wanted all the same
            device, wall = "failed", f"{type(error).__name__}: {error}"
            failed += 1
        cells = row.what, device, wall, f"{row.floor:g}", f"{row.attainable:g}"
        print(f"| {' | '.join(cells)} |", flush=True)
    if failed:
        raise SystemExit(f"{failed} rows failed")


def _rows(backend: Backend, N: int, m: int, n: int) -> Iterator[_Row]:
    X, C = data.pixels(N, m, n)
    rng, xp = np.random.default_rng(0), backend.xp
    activation = Activation("euclidean", "gaussian", 1 / (2 * 85**2 * n))
    layer = HiddenLayer(C, activation, backend=(backend, "gpu-day"), precision="exact")
    targets = np.eye(10)[X[:, 0] % 10]
    x, W, T = (xp.asarray(A) for A in (X, rng.normal(size=(m, 10)), targets))
    out = xp.empty((N, m), layer.dtype)
    yield _Row("H", partial(layer.activations, x, out), 0.33, 0.45)
    yield _Row("H @ W, 10 outputs", partial(layer.matvec, x, W), 0.195, 0.45)
    sums = xp.zeros((m, m)), xp.zeros((m, 10))
    yield _Row("HᵀH", partial(layer.gram, x, T, out=sums), 15, 20)
    A = xp.asarray(np.cov(rng.normal(size=(2 * m, m)), rowvar=False))
    yield _Row("Cholesky, float64", lambda: factorizations(xp).cholesky(A.copy()), 0.4, 4)


def _milliseconds(xp: Any, call: Callable[[], Any]) -> tuple[str, str]:
    """Of one of 20 calls between two events, after half a second of them; one by the wall."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < 0.5:
        call()
        xp.cuda.Device().synchronize()
    device = 1e3 * event_seconds(xp, lambda: [call() for _ in range(20)]) / 20
    begin = time.perf_counter()
    call()
    xp.cuda.Device().synchronize()
    return f"{device:.3g}", f"{1e3 * (time.perf_counter() - begin):.3g}"


def svc(name: str, _: str, data_home: str) -> None:
    """Time SVC's second fit on MNIST there and on the CPU with all its cores."""
    _backend(name)
    X, y, _test, _labels = classify.images(bool(os.environ.get(_QUICK)), data_home or None)
    gamma = 1e-3 if os.environ.get(_QUICK) else 0.02 / 255**2
    rows = []
    for where in (name, best_on_host()[0].name):
        model = SVC(C=10, gamma=gamma, backend=where)
        for _time in range(2):
            begin = time.perf_counter()
            model.fit(X, y)
        rows.append((where, f"{time.perf_counter() - begin:.3g}", model.n_iter_.sum()))
        print(model.backend_info_, flush=True)
    print(f"\n{len(X):,} images; estimate for an H100: 0.025 s, attainable 0.2 s\n")
    print(markdown_table(("backend", "seconds", "steps"), rows))


STEPS: dict[str, Callable[..., None]] = {
    step.__name__: step for step in (versions, cases, ceilings, table, svc)
}


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
    try:
        out.mkdir(parents=True, exist_ok=True)
        page.write_text("# A day on a GPU\n\n", encoding="utf-8")
    except OSError as error:
        raise UserError(str(error)) from error
    _say(page, _conditions())
    rows = []
    for step in steps:
        if step.name not in wanted:
            continue
        begin = time.monotonic()
        left = end - begin
        _say(page, f"## {step.name}")
        result = _run(step, out, min(step.limit, left)) if left > 1 else "**not run**: no time left"
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

    def alone(step: str, name: str = "", part: int = 0) -> list[str]:
        given = name, str(part), arguments.data_home or ""
        return [*python, "-c", f"from benchmarks import gpu_day; gpu_day.STEPS[{step!r}]{given!r}"]

    def hopper(name: str) -> dict[str, str]:
        return quick | ({"GPURBF_GPU_KERNEL": "wgmma"} if name == "wgmma" else {})

    backends = {"numba-cuda": "numba-cuda", "wgmma": "numba-cuda", "cupy": "cupy"}
    yield Step("versions", [alone("versions")], 40, quick)
    sides = [alone("cases", name, part) for name in GPUS for part in range(_PARTS)]
    yield Step("cases", sides, 110, quick)
    yield Step("ceilings", [alone("ceilings")], 40, quick)
    for title, name in backends.items():
        yield Step(f"table {title}", [alone("table", name)], 45, hopper(title))
    yield Step("cases wgmma", [alone("cases", "numba-cuda")], 60, hopper("wgmma"))
    yield Step("svc", [alone("svc", "numba-cuda")], 90, quick)
    checking = [*python, "-m", "gpurbf", "check-gpu", *([] if arguments.quick else ["--thorough"])]
    yield Step("check-gpu", [checking], 120, quick)
    if sanitizer := shutil.which("compute-sanitizer"):
        for tool in ("memcheck", "racecheck"):
            watched = [sanitizer, f"--tool={tool}", "--error-exitcode=1"]
            yield Step(tool, [[*watched, *alone("cases", "numba-cuda", 1)]], 60, quick)
    parallel = ["-n", "8"] if importlib.util.find_spec("xdist") else []
    pytest = [*python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *parallel]
    # What takes the fixture `backend` has its name in brackets.
    yield Step(
        "tests", [[*pytest, str(_ROOT / "tests"), "-k", "cupy] or cupy- or numba-cuda"]], 540,
        {"GPURBF_REQUIRE": "cupy,numba-cuda"},
    )  # fmt: skip


def _run(step: Step, out: Path, limit: float) -> str:
    """Run the commands of a step side by side; how they ended, and how many each way."""
    end = time.monotonic() + limit
    processes, results = [], []
    try:
        for number, command in enumerate(step.commands):
            with (out / f"{step.name}-{number:02}.txt").open("wb") as file:
                process = subprocess.Popen(
                    command,
                    env=os.environ | {"PYTHONPATH": _paths()} | step.environment,
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


def _paths() -> str:
    return os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def _end(process: subprocess.Popen) -> None:
    """End a process and those that it has started; a driver may not let it go."""
    with contextlib.suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(2)
