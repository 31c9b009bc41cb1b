"""Check and measure everything on a GPU, step by step, unattended; results come as they are found.

Every step is a process of its own with a limit of time, so nothing that one does, a crash or a
hang, ends the day. DIR/gpu-day.md gets each step's output when it ends and a table last; the
benchmark `gpu` writes DIR/gpu.md. Each of `STEPS` fails by raising. Without a GPU they run on the
CPU, small, to see that they work: a rehearsal, and the report says so.
"""

from __future__ import annotations

import argparse
import datetime
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
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import data
from benchmarks.peak_gpu import event_seconds, int8_products
from gpurbf import FSVC, SVC, RBFClassifier, RBFLayer, config_context
from gpurbf.cli import UserError, classify
from gpurbf.layer.activation import METRICS, PROFILES, Activation
from gpurbf.layer.backends import available_backends, get_backend, no_gpu
from gpurbf.layer.layer import HiddenLayer
from gpurbf.profiling import machine
from gpurbf.profiling.profiler import markdown_table
from gpurbf.runtime.arrays import to_host
from gpurbf.runtime.linalg import factorizations
from gpurbf.solvers.lms import LMS

_ROOT = Path(__file__).parents[1]
_TESTS = _ROOT / "tests"
# Seconds.
_LIMITS = {"versions": 120, "table": 300}
_LIMIT = 180
_GPUS = ("cupy", "numba-cuda")
_TOLERANCE = {"exact": 1e-5, "float32": 1e-4, "tf32": 2e-2, "float64": 1e-10}
# m = 16 … are rows of int8 products that do and do not fill whole groups of 4 and of 16.
_SHAPES = ((1, 1, 1), (7, 16, 17), (300, 37, 784), (1000, 5923, 784), (4097, 4096, 64))


def gpus() -> list[str]:
    """The GPU backends that can run here."""
    problems = available_backends()
    return [name for name in _GPUS if problems.get(name) is None]


def _names() -> list[str]:
    return gpus() or ["numba"]


def versions(data_home: str | None) -> None:
    """Print what is installed, what was found, and why a backend is missing."""
    print(markdown_table(("what", "found"), machine.hardware().items()), end="\n\n")
    print(markdown_table(("backend", "state"), machine.backends().items()), end="\n\n")
    names = ((found.name, found.version) for found in importlib.metadata.distributions())
    cuda = {name: version for name, version in names if name.startswith(("nvidia-", "cuda-"))}
    rows = (machine.versions() | dict(sorted(cuda.items()))).items()
    print(markdown_table(("library", "version"), rows), end="\n\n", flush=True)
    if smi := shutil.which("nvidia-smi"):
        subprocess.run([smi], check=False)


def int8(data_home: str | None) -> None:
    """cuBLAS's own 8-bit product, for rows and inputs that fill no group and for those that do."""
    if not gpus():
        print("not run: no GPU")
        return
    int8_products(get_backend("cupy")[0].xp, (16, 37, 4096, 5923), (17, 784))


def _layers(name: str) -> Iterator[tuple[str, str, bool]]:
    """Metric, precision and whether samples are on the device, for all that the backend has."""
    backend, _ = get_backend(name)
    for metric in METRICS if name != "cupy" else METRICS[:1]:
        for precision in ("exact", "float32", "float64", *backend.precisions):
            for resident in (False, True)[: 1 + (backend.xp is not np)]:
                yield metric, precision, resident


def products(data_home: str | None) -> None:
    """Every product × shape × mode (H, H @ W, HᵀH) against float64, from both sides of the bus."""
    rng = np.random.default_rng(0)
    for name in _names():
        xp = get_backend(name)[0].xp
        for N, m, n in _SHAPES if gpus() else _SHAPES[:2]:
            X, C = data.pixels(N, m, n)
            W, T = rng.normal(size=(m, 3)), rng.normal(size=(N, 2))
            for metric, precision, resident in _layers(name):
                gamma = 1 / max(1.0, float(data.distances(X[:50], C[:50], metric).mean()))
                form = "gaussian" if metric == "euclidean" else "laplacian"
                H = np.exp(-gamma * data.distances(X, C, metric))
                layer = HiddenLayer(
                    C, Activation(metric, form, gamma), backend=name, precision=precision
                )
                x = X if precision == "exact" else X.astype(layer.dtype)
                x = xp.asarray(x) if resident else x
                label = f"{name}, {metric}, {precision}, {N} × {m} × {n}, resident {resident}"
                tolerance = _TOLERANCE[precision]
                _compare(f"H, {label}", layer.activations(x), H, tolerance)
                _compare(f"H @ W, {label}", layer.matvec(x, W), H @ W, tolerance)
                G, B = layer.gram(x, T)
                _compare(f"HᵀH, {label}", G, H.T @ H, tolerance)
                _compare(f"HᵀT, {label}", B, H.T @ T, tolerance)


def profiles(data_home: str | None) -> None:
    """Each profile, on codes and on numbers, against the NumPy backend in float64."""
    X, C = data.pixels(200, 37, 21)
    for name in _names():
        for profile in PROFILES:
            gamma = 1 / float(np.sqrt(data.distances(X, C, "euclidean").max()))
            activation = Activation("euclidean", profile, gamma if "l" in profile else gamma**2)
            expected = HiddenLayer(C, activation, backend="numpy", precision="float64").activations(
                X
            )
            for precision in ("exact", "float32", "float64"):
                layer = HiddenLayer(C, activation, backend=name, precision=precision)
                x = X if precision == "exact" else X.astype(layer.dtype)
                label = f"{name}, {profile}, {precision}"
                _compare(label, layer.activations(x), expected, _TOLERANCE[precision])


def streams(data_home: str | None) -> None:
    """One to three streams and a small pool give the same numbers."""
    X, C = data.pixels(20_000 if gpus() else 500, 64, 100)
    for name in _names():
        layer = HiddenLayer(C, Activation("euclidean", "gaussian", 1e-6), backend=name)
        expected = layer.activations(X)
        for count in (1, 2, 3):
            for megabytes in (None, 8):
                with config_context(n_streams=count, gpu_memory=megabytes):
                    label = f"{name}, {count} streams, {megabytes} MB"
                    _compare(label, layer.activations(X), expected, 0)


def estimators(data_home: str | None) -> None:
    """Each estimator on scikit-learn's digits, its accuracy beside that of the NumPy backend."""
    X_train, y_train, X_test, y_test = classify.digits(1400)
    makers: dict[str, Callable[[str], Any]] = {
        "RBFClassifier": lambda name: RBFClassifier(200, backend=name, random_state=0),
        "RBFClassifier, lms": lambda name: RBFClassifier(
            200, solver="lms", backend=name, random_state=0
        ),
        "FSVC": lambda name: FSVC(25.0, backend=name, random_state=0),
        "SVC": lambda name: SVC(C=10, gamma=1e-3, backend=name),
    }
    rows = []
    for name in _names():
        for label, make in makers.items():
            accuracy, expected = (
                float(np.mean(make(which).fit(X_train, y_train).predict(X_test) == y_test))
                for which in (name, "numpy")
            )
            rows.append((name, label, f"{accuracy:.4f}", f"{expected:.4f}"))
            if abs(accuracy - expected) > 0.01:
                raise AssertionError(f"{name}, {label}: {accuracy:.4f} is not {expected:.4f}")
        layer = RBFLayer(200, backend=name, random_state=0).fit(X_train)
        expected_H = RBFLayer(200, backend="numpy", random_state=0).fit(X_train).transform(X_test)
        _compare(f"{name}, RBFLayer", layer.transform(X_test), expected_H, 1e-4)
    print(markdown_table(("backend", "estimator", "accuracy", "on numpy"), rows))


def svc(data_home: str | None) -> None:
    """SVC's steps: the CPU's path to the bit where a pair is its own set, else as good an end."""
    X, y, _, _ = classify.digits(1400)  # pairs end before the CPU leaves samples out
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(9000 if gpus() else 600, 20))
    labels = np.digitize(numbers[:, 0] + rng.normal(size=len(numbers)), (-0.5, 0.5))
    activation = Activation("euclidean", "gaussian", 1e-3)
    expected = SVC(gamma=0.05, backend="numpy").fit(numbers, labels)
    rows = []
    for name in _names():
        model = SVC(C=10, gamma=activation.gamma, backend=name).fit(X, y)
        K = HiddenLayer(X, activation, backend=name, dtype=np.dtype(np.float32)).activations(X)
        same = SVC(C=10, kernel="precomputed").fit(to_host(K), y)
        if not np.array_equal(model.n_iter_, same.n_iter_):
            raise AssertionError(f"{name}: steps {model.n_iter_} are not {same.n_iter_}")
        _compare(f"{name}, coefficients", model.dual_coef_, same.dual_coef_, 0)
        begin = time.perf_counter()
        large = SVC(gamma=0.05, backend=name).fit(numbers, labels)
        seconds = time.perf_counter() - begin
        rows.append((name, len(numbers), large.n_iter_.tolist(), f"{seconds:.2f}"))
        print(f"{name}: {model.backend_info_}\n")
        _compare(f"{name}, objective", large.objective_, expected.objective_, 1e-3)
    print(markdown_table(("backend", "samples", "steps", "seconds, compiling included"), rows))


def _compare(what: str, actual: Any, expected: np.ndarray, tolerance: float) -> None:
    """Raise where the largest error, relative to the largest entry, is above the tolerance."""
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    error = float(np.abs(to_host(actual) - expected).max(initial=0)) / scale
    if not error <= tolerance:
        raise AssertionError(f"{what}: an error of {error:.2g}, more than {tolerance:.2g}")


class _Row(NamedTuple):
    """A call to time, and the milliseconds that were estimated for an H100 before there was one."""

    what: str
    call: Callable[[], Any]
    floor: float
    attainable: float


def table(data_home: str | None) -> None:
    """Time each part on the device, by its clock and the wall's, beside the estimates."""
    there = gpus()
    N, m, n, few = (60_000, 4096, 784, 5500) if there else (200, 32, 64, 40)
    names = _names()
    for name in names:
        print(f"**{name}**, {N:,} × {m:,} × {n}, 8-bit, everything on the device\n", flush=True)
        print("| what | device ms | wall ms | H100: floor | attainable |")
        print("| --- | ---: | ---: | ---: | ---: |", flush=True)
        for row in _rows(name, N, m, n, few, data_home if there else None):
            try:
                device, wall = _milliseconds(get_backend(name)[0].xp, row.call)
            except Exception as error:  # the other rows are wanted all the same
                device, wall = "failed", f"{type(error).__name__}: {error}"
            print(f"| {row.what} | {device} | {wall} | {row.floor:g} | {row.attainable:g} |")
        print(flush=True)


def _rows(name: str, N: int, m: int, n: int, few: int, data_home: str | None) -> Iterator[_Row]:
    X, C = data.pixels(N, m, n)
    rng = np.random.default_rng(0)
    activation = Activation("euclidean", "gaussian", 1 / (2 * 85**2 * n))
    layer = HiddenLayer(C, activation, backend=name, precision="exact")
    xp = layer.xp
    targets = np.eye(10)[X[:, 0] % 10]
    x, W, T = (xp.asarray(A) for A in (X, rng.normal(size=(m, 10)), targets))
    out = xp.empty((N, m), layer.dtype)
    yield _Row("H", partial(layer.activations, x, out), 0.33, 0.45)
    yield _Row("H @ W, 10 outputs", partial(layer.matvec, x, W), 0.195, 0.45)
    sums = xp.zeros((m, m)), xp.zeros((m, 10))
    yield _Row("HᵀH", partial(layer.gram, x, T, out=sums), 15, 20)
    A = xp.asarray(np.cov(rng.normal(size=(2 * m, m)), rowvar=False))
    cholesky = factorizations(xp).cholesky
    yield _Row("Cholesky, float64", lambda: cholesky(A.copy()), 0.4, 4)
    rows = C[:few] if few <= m else data.pixels(1, few, n)[1]
    some = HiddenLayer(rows, activation, backend=name)
    lms = LMS(0.001)
    yield _Row(f"LMS, {few:,} centers", partial(lms.train, some, X, targets, None), 35, 120)
    images = classify.images(data_home is None, data_home)
    gamma = 0.02 / 255**2 if data_home else 1e-3
    svc = SVC(C=10, gamma=gamma, backend=name)
    yield _Row(f"SVC fit, {len(images[0]):,} images", partial(svc.fit, *images[:2]), 25, 200)


def _milliseconds(xp: Any, call: Callable[[], Any]) -> tuple[str, str]:
    """The median of five, after one to compile; one of the calls that take seconds."""
    begin = time.perf_counter()
    call()
    rounds = 5 if time.perf_counter() - begin < 5 else 1
    device, wall = [], []
    for _ in range(rounds):
        begin = time.perf_counter()
        if xp is np:
            call()
        else:
            device.append(1e3 * event_seconds(xp, call))
        wall.append(1e3 * (time.perf_counter() - begin))
    return f"{np.median(device):.3g}" if device else "no GPU", f"{np.median(wall):.3g}"


STEPS: dict[str, Callable[[str | None], None]] = {
    step.__name__: step
    for step in (versions, int8, products, profiles, streams, estimators, svc, table)
}


class Step(NamedTuple):
    """A command, its limit in seconds, and what it adds to the environment."""

    name: str
    command: list[str]
    limit: float
    environment: dict[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("out", metavar="DIR", type=Path, help="where the report goes")
    parser.add_argument(
        "--whole",
        action="store_true",
        help="then all of `gpu` and compute-sanitizer: an hour",
    )
    parser.add_argument(
        "--only", metavar="STEP", action="append", help="this step; may be repeated"
    )


def run(arguments: argparse.Namespace) -> None:
    """Run the steps one after the other; the status is an error only if none could be run."""
    page = arguments.out / "gpu-day.md"
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        page.write_text("# A day on a GPU\n\n", encoding="utf-8")
    except OSError as error:
        raise UserError(str(error)) from error
    steps = list(_steps(arguments))
    wanted = arguments.only or [step.name for step in steps]
    if unknown := set(wanted) - {step.name for step in steps}:
        names = ", ".join(step.name for step in steps)
        raise UserError(f"no step {', '.join(sorted(unknown))}: there are {names}")
    _say(page, _conditions())
    rows = []
    for step in steps:
        if step.name not in wanted:
            continue
        _say(page, f"## {step.name}")
        begin = time.monotonic()
        result, output = _run(step)
        seconds = time.monotonic() - begin
        rows.append((step.name, result, f"{seconds:.0f}"))
        _say(page, f"{output.strip()}\n\n{result}, {seconds:.0f} s")
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
    return f"**Rehearsal, not measured on a GPU** ({why}), {today}."


def _steps(arguments: argparse.Namespace) -> Iterator[Step]:
    python, out = [sys.executable, "-u"], str(arguments.out)

    def alone(name: str, title: str = "", **environment: str) -> Step:
        code = f"from benchmarks.gpu_day import STEPS; STEPS[{name!r}]({arguments.data_home!r})"
        limit = _LIMITS.get(name, _LIMIT)
        return Step(title or name, [*python, "-c", code], limit, environment)

    yield from map(alone, STEPS)
    benchmarks = [*python, "-m", "benchmarks"]
    home = ["--data", arguments.data_home] if arguments.data_home else []
    quick = [*benchmarks, "gpu", "--quick", "--out", str(arguments.out / "quick")]
    yield Step("bench gpu --quick", quick, 300, {})
    pytest = [*python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(_TESTS)]
    there = no_gpu() is None
    if _TESTS.is_dir() and importlib.util.find_spec("pytest"):
        names = "cupy or cuda" if there else "test_profiles"
        required = {"GPURBF_REQUIRE": "cupy,numba-cuda"} if there else {}
        yield Step("tests", [*pytest, "-k", names], 600, required)
    if there:  # the tile for Hopper; other GPUs say that they cannot
        for name in ("products", "table"):
            yield alone(name, f"{name}, wgmma", GPURBF_GPU_KERNEL="wgmma")
    if not arguments.whole:
        return
    yield Step("bench gpu", [*benchmarks, "gpu", *home, "--out", out], 3000, {})
    if sanitizer := shutil.which("compute-sanitizer"):
        code = "from benchmarks.gpu_day import STEPS; STEPS['profiles'](None)"
        for tool in ("memcheck", "racecheck"):
            command = [sanitizer, f"--tool={tool}", "--error-exitcode=1", *python, "-c", code]
            yield Step(tool, command, 900, {})


def _run(step: Step) -> tuple[str, str]:
    """Run a step; return its outcome and its output. All processes that it started end with it."""
    process = subprocess.Popen(
        step.command,
        env=os.environ | {"PYTHONPATH": str(_ROOT)} | step.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=step.limit)
    except subprocess.TimeoutExpired:
        _end(process)
        return f"**stopped** after {step.limit:g} s", process.communicate()[0]
    except BaseException:  # the user's Ctrl-C reaches this process alone
        _end(process)
        raise
    if process.returncode:
        return f"**failed** with status {process.returncode}", output
    return "done", output


def _end(process: subprocess.Popen) -> None:
    """End a process and those that it has started."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
