"""Check that a GPU computes correctly: all kernels of a backend against NumPy, before its use.

    get_backend(name)     `require`: in this process, the loaded backend
    get_backend("auto")   `trusted`: in a separate process with a time limit, so that a crash or a
                          hang of a driver only makes the GPU unavailable; it is timed as well

The verdict is kept on disk for this machine, device, driver, sources and libraries; a failure is
kept for a day, a lack of memory for no time. `python -m gpurbf check-gpu` checks again and shows
each case.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpurbf.data.quantize import Quantization
from gpurbf.layer.activation import FORMULAS, PROFILES, ROOT, SQUARE, Activation, form
from gpurbf.layer.backends.numba.gram import Sums
from gpurbf.runtime.arrays import to_host
from gpurbf.runtime.config import config_context
from gpurbf.runtime.errors import BackendUnavailable, inform
from gpurbf.runtime.lazy import once
from gpurbf.runtime.stages import best_seconds

if TYPE_CHECKING:
    from gpurbf.layer.backends import Backend

# Seconds that a check in a process of its own may take, compiling included.
LIMIT = 120.0
_PACKAGE = Path(__file__).parents[3]
# Errors of a folder: those of the disk, and that of a user without a home.
_NO_FOLDER = OSError, RuntimeError
# A failure for lack of memory, in the words of Python, CuPy, CUDA and its libraries, or for a
# GPURBF_GPU_MEMORY that is no number.
_TAKEN = re.compile("MemoryError|out.of.memory|ALLOC_FAILED|GPU_MEMORY", re.IGNORECASE)
# Tolerances of H by arithmetic, relative to the largest entry.
_TOLERANCE = {"exact": 1e-5, "float32": 1e-4, "tf32": 2e-2, "float64": 1e-10}
# Numbers of samples, centers and inputs that do not fill tiles, warps and groups of cuBLAS; and
# more such shapes.
_SHAPE = (67, 37, 21)
_SHAPES = ((1, 1, 1), (7, 16, 17), (300, 130, 784), (1000, 1021, 64), (4097, 513, 33))
_KERNELS = {
    "cupy": ("rows, gemm, outputs", "rows, gemm, scores"),
    "numba-cuda": ("pack, tile to H", "pack, tile to H @ W, sum of shares"),
}
# Samples, centers and inputs of the tile that is timed, bytes of the copy, and runs of each, of
# which the first compiles.
_TIMED, _COPIED, _RUNS = (4096, 2048, 256), 1 << 26, 4


class Case(NamedTuple):
    """Kernels on some data, and their largest error relative to the largest entry."""

    kernel: str
    data: str
    error: float
    tolerance: float
    problem: str

    @property
    def why(self) -> str:
        """The failure in words, empty if the case is right."""
        return self.problem and f"{self.kernel}: {self.data}: {self.problem}"


class Verdict(NamedTuple):
    """The result of a check: ``why`` it failed or "", and ``rates`` by name if it was timed.

    "device", "host": operations a second of a float32 tile; "copy": bytes a second to the device.
    """

    device: str
    date: str
    why: str
    n_cases: int
    rates: dict[str, float]

    @property
    def said(self) -> str:
        """The verdict as a line for the command `info`."""
        rates = "".join(f", {what} {rate:.2g}" for what, rate in self.rates.items())
        return f"checked {self.date}, {self.n_cases} cases, {self.why or 'all right'}{rates}"


def cases(backend: Backend, thorough: bool = False, part: slice = slice(None)) -> Iterator[Case]:
    """Cases of all kernels of a loaded backend; ``thorough``: on more data, with every profile.

    ``part`` selects some of the layers that are prepared for the cases.
    """
    for layer in [*_layers(backend, thorough)][part]:
        yield from _of_layer(backend, *layer)


def _layers(backend: Backend, thorough: bool) -> Iterator[tuple[Any, str, str, str]]:
    """Shape, metric, profile and precision."""
    usual = {"euclidean": "gaussian", "dot": "poly", "manhattan": "laplacian"}
    metrics = usual if backend.name == "numba-cuda" else ("euclidean", "dot")
    precisions = ("exact", "float32", "float64", *backend.precisions)
    for shape in (_SHAPE, *(_SHAPES if thorough else ())):
        for metric, precision in product(metrics, precisions):
            yield shape, metric, usual[metric], precision
    if thorough:
        for profile, precision in product(PROFILES, precisions):
            yield _SHAPE, "euclidean", profile, precision
        yield (20_001, 64, 100), "euclidean", "gaussian", "exact"


def case(kernel: str, data: str, tolerance: float, run: Callable[[], tuple[Any, Any]]) -> Case:
    """Compare the two results of ``run``, actual and expected; an exception is a failed case."""
    error, problem = np.inf, ""
    try:
        actual, expected = (np.asarray(to_host(A), np.float64) for A in run())
        error = float(np.abs(actual - expected).max(initial=0) / np.abs(expected).max(initial=1))
        if not error <= tolerance:  # or it is NaN
            problem = f"differs by {error:.2g} of the largest value, more than {tolerance:.2g}"
    except Exception as failure:  # a device may raise any error
        problem = f"{type(failure).__name__}: {failure}"
    return Case(kernel, data, error, tolerance, problem)


def _of_layer(
    backend: Backend, shape: tuple[int, int, int], metric: str, profile: str, precision: str
) -> Iterator[Case]:
    """H from the host, H @ W on the device, and the sums of HᵀH and HᵀT."""
    from scipy.spatial.distance import cdist

    (N, m, n), rng, xp = shape, np.random.default_rng(0), backend.xp
    X, C = (rng.integers(0, 256, (rows, n)).astype(np.uint8) for rows in (N, m))
    quantization = Quantization(1.0, 0) if precision == "exact" else None
    dtype = np.dtype(np.float64 if precision == "float64" else np.float32)
    if quantization is None:
        X, C = ((A / 255).astype(dtype) for A in (X, C))
    if metric == "dot":
        s = np.matmul(X, C.T, dtype=np.float64)
    else:
        s = cdist(X, C, {"euclidean": "sqeuclidean", "manhattan": "cityblock"}[metric])
    activation = Activation(metric, profile, coef0=0.5)
    v = {ROOT: np.sqrt, SQUARE: np.square}.get(form(activation), np.asarray)(s)
    activation = activation._replace(gamma=1 / max(1e-9, float(np.abs(v[:50]).mean())))
    H = FORMULAS[profile](v, activation)
    options = {precision: True} if precision in backend.precisions else {}
    tolerance, data = _TOLERANCE[precision], f"{metric}, {profile}, {precision}, {N} × {m} × {n}"
    W, T = rng.normal(size=(m, 3)), rng.normal(size=(N, 2))
    to_H, to_scores = _KERNELS[backend.name]

    @functools.cache
    def layer() -> Any:
        return backend.prepare(C, activation, dtype, quantization, **options)

    def activations() -> tuple[Any, Any]:
        out = np.full((N, m), np.nan, dtype)
        layer().activations(X, out)
        return out, H

    def scores() -> tuple[Any, Any]:
        with backend.allocator():
            return layer().matvec(xp.asarray(X), layer().pack_weights(W)), H @ W

    def sums() -> tuple[Any, Any]:
        with backend.allocator():
            G, B = xp.zeros((m, m)), xp.zeros((m, 2))
            layer().gram(X, T, np.linspace(1, 2, N), Sums(G, B, np.zeros(m)))
        weighted = H * np.linspace(1, 2, N)[:, None]
        expected = np.hstack([np.tril(weighted.T @ H), weighted.T @ T])
        return np.hstack([np.tril(to_host(G)), to_host(B)]), expected

    yield case(to_H, data, tolerance, activations)
    yield case(to_scores, data, tolerance, scores)
    if metric == "euclidean":
        yield case("centered, syrk, gemm", data, tolerance, sums)


def rates(backend: Backend, host: Backend) -> dict[str, float]:
    """Operations a second of a tile on the device and on the host, and bytes a second of a copy."""
    N, m, n = _TIMED
    rng, xp = np.random.default_rng(0), backend.xp
    X, C = (rng.normal(size=(rows, n)).astype(np.float32) for rows in (N, m))
    rows, activation = np.ones(_COPIED, np.uint8), Activation("euclidean", "gaussian", 1 / n)

    def tile(where: Backend, x: Any) -> float:
        layer = where.prepare(C, activation, np.dtype(np.float32), None)
        W = layer.pack_weights(np.ones((m, 8), np.float32))
        return 2.0 * N * m * n / best_seconds(lambda: layer.matvec(x, W), _RUNS)

    with backend.allocator():
        return {
            "device": tile(backend, xp.asarray(X)),
            "copy": _COPIED / best_seconds(lambda: xp.asarray(rows), _RUNS),
            "host": tile(host, X),
        }


def judged(backend: Backend, found: Iterable[Case], host: Backend | None = None) -> Verdict:
    """The verdict on all these cases; beside a backend of the host with rates, if all are right."""
    measured = {}
    with config_context(gpu_memory=None):  # not that of whoever asks first
        whys = [one.why for one in found]
        why = next(filter(None, whys), "")
        if host is not None and not why:
            try:
                measured = rates(backend, host)
            except Exception as problem:
                why = f"timing: {type(problem).__name__}: {problem}"
    return Verdict(backend.device, _now(), why, len(whys), measured)


def require(backend: Backend) -> None:
    """Raise BackendUnavailable if a loaded backend is wrong; it is checked now if it never was.

    A MemoryError says that the check had no room, which is not kept.
    """
    device = backend.device
    checked = partial(judged, backend, cases(backend))
    verdict = _found(backend.name, lambda kept: kept.device == device, checked)
    if verdict.why:
        taken = _TAKEN.search(verdict.why)
        what = "lacks free memory to check" if taken else "computes wrong or not at all with"
        raise (MemoryError if taken else BackendUnavailable)(
            f"{device} {what} backend={backend.name!r}: {verdict.why} (checked {verdict.date}). "
            "Take backend='numba', or check again by `python -m gpurbf check-gpu`"
        )


@once
def trusted(name: str) -> Verdict:
    """The verdict on a backend that is not loaded here, from a process with a time limit."""
    try:
        return _found(name, lambda kept: bool(kept.why or kept.rates), lambda: _elsewhere(name))
    except Exception as error:  # no folder for temporary files, no interpreter to start
        return _failed(f"its check did not start: {type(error).__name__}: {error}")


def _found(name: str, holds: Callable[[Verdict], bool], checked: Callable[[], Verdict]) -> Verdict:
    """The verdict on disk if it holds here, else a new one.

    If several processes ask at once, one checks, and the others wait and read its verdict, but no
    longer than a check may take.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(ImportError, *_NO_FOLDER):  # Windows; a disk not writable
            import fcntl

            file = _file(name).with_suffix(".lock")
            file.parent.mkdir(parents=True, exist_ok=True)
            lock, end = held.enter_context(file.open("w")), time.monotonic() + LIMIT
            while time.monotonic() < end:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                time.sleep(0.05)
            else:
                return _failed(f"the check of another process did not end within {LIMIT:g} s")
        verdict = kept(name)
        if verdict is None or not holds(verdict):
            inform(f"gpurbf checks the GPU (backend {name!r}, once)")
            keep(name, verdict := checked())
    return verdict


def _elsewhere(name: str) -> Verdict:
    code = (
        "from gpurbf.layer import backends; from gpurbf.layer.backends.cuda import check; "
        f"check.report(backends.LOADERS[{name!r}], backends.best_on_host)"
    )
    # The new process finds the same modules as this one.
    paths = os.pathsep.join(path or os.curdir for path in sys.path)
    # Libraries may write any bytes.
    file = partial(tempfile.TemporaryFile, "w+", errors="replace")
    with file() as out, file() as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
        )
        try:
            status = process.wait(LIMIT)
            out.seek(0), errors.seek(0)
            return Verdict(*json.loads(out.readlines()[-1]))
        except subprocess.TimeoutExpired:
            why = f"its check did not end within {LIMIT:g} s"
        except (IndexError, ValueError, TypeError):
            said = " ".join(errors.read().split()[-40:])
            why = f"its check ended with status {status}: {said}"
        finally:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may keep it from ending
                process.wait(1)
    return _failed(why)


def report(load: Callable[[], Backend], on_host: Callable[[], tuple[Backend, Any]]) -> None:
    """Check and print the verdict as a line of JSON; this runs in the separate process."""
    try:
        verdict = judged(backend := load(), cases(backend), on_host()[0])
    except Exception as error:
        verdict = _failed(f"{type(error).__name__}: {error}")
    print(json.dumps(verdict), flush=True)


def kept(name: str) -> Verdict | None:
    """The verdict on disk for the current environment, if any; failures expire after a day."""
    try:
        verdict = Verdict(*json.loads(_file(name).read_text(encoding="utf-8")))
        age = datetime.datetime.now() - datetime.datetime.fromisoformat(verdict.date)
        known = verdict.rates.keys() in (set(), {"device", "host", "copy"})
    except (*_NO_FOLDER, ValueError, TypeError, AttributeError):
        return None
    return verdict if known and not (verdict.why and age.days) else None


def keep(name: str, verdict: Verdict) -> None:
    """Write a verdict for later processes, if the disk is writable; not that memory was short."""
    if _TAKEN.search(verdict.why):
        return
    with contextlib.suppress(*_NO_FOLDER):
        file = _file(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        written = file.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps(verdict), encoding="utf-8")
        written.replace(file)


def _failed(why: str) -> Verdict:
    return Verdict("", _now(), why, 0, {})


def _now() -> str:
    return datetime.datetime.now().isoformat(" ", "minutes")


def _file(name: str) -> Path:
    """A verdict's file; its name depends on machine, devices, driver, sources and libraries."""
    facts = [name, platform.node(), os.environ.get("CUDA_VISIBLE_DEVICES", ""), *_facts()]
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
    home = os.environ.get("LOCALAPPDATA") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "gpurbf" / f"gpu-{name}-{digest}.json"


@functools.cache
def _facts() -> list[str]:
    found = (f"{d.name} {d.version}" for d in importlib.metadata.distributions() if d.name)
    parts = ("cupy", "numba", "nvidia-", "cuda-", "numpy", "llvmlite")
    sources = b"".join(file.read_bytes() for file in sorted(_PACKAGE.rglob("*.py")))
    facts = [hashlib.sha256(sources).hexdigest()]
    facts += sorted(one for one in found if one.startswith(parts))
    # What Linux reports about driver and devices without a call to the driver.
    for pattern in ("version", "gpus/*/information"):
        for file in sorted(Path("/proc/driver/nvidia").glob(pattern)):
            with contextlib.suppress(OSError):
                facts.append(file.read_text())
    return facts
