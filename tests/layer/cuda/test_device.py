"""What surrounds every GPU backend: tiles, memory, launches and copies, on a stand-in for CuPy.

What is counted is what the stand-in sees; what it costs in time was not measured on a GPU.
"""

import os
from contextlib import nullcontext
from itertools import combinations

import joblib
import numpy as np
import pytest
import sklearn.svm
import standin
from callers import sums_of
from sklearn.base import clone
from sklearn.datasets import load_digits
from standin import GAUSSIAN

import gpurbf
from gpurbf import BackendUnavailable, config_context
from gpurbf.layer import backends
from gpurbf.layer.backends.cuda import check, cupy_, device
from gpurbf.layer.layer import HiddenLayer, OutputWeights
from gpurbf.runtime.stages import FENCES, Recorder
from gpurbf.svm import cuda_pairs
from tests.layer.test_layer import data

DIGITS, LABELS = load_digits(return_X_y=True)
PIXELS = DIGITS.astype(np.uint8)


def samples_and_layer(dtype=np.float32, gamma=GAUSSIAN.gamma, **sizes):
    """Samples and a layer of the cupy backend."""
    X, C = data(dtype, **sizes)
    return X, HiddenLayer(C, GAUSSIAN._replace(gamma=gamma), backend="cupy")


def test_samples_cross_once_and_h_never_and_free_memory_is_asked_for_once(cupy):
    X, m, k = PIXELS, 100, 10
    model = gpurbf.RBFClassifier(m, gamma=0.001, backend="cupy", random_state=0).fit(X, LABELS)
    # Samples, those of the shift, of the calibration and 64 whose rounding is measured; targets and
    # a column of ones; centers; the shift, weights of the calibration, what the solution is made of
    # and up to 50 solutions for centers that are among the calibration's samples.
    left_out = 800
    samples, targets = len(X) + 1024 + left_out + 64, 8 * len(X) * (k + 1)
    small = 8 * (m * (k + 8) + left_out + 50 * m)
    bound = samples * X.shape[1] + targets + m * X.shape[1] + small
    assert 0.9 * bound < cupy.gpu.bytes("in") <= bound
    # W and means of H; of the calibration outputs and leverages, not H.
    assert cupy.gpu.bytes("out") <= 8 * m * (k + 3) + 8 * len(X) * (k + 1) + 100
    for weights, questions in ((4 * m * k, 2), (0, 1)):  # packed once
        cupy.gpu.copies.clear()
        asked = cupy.gpu.asked
        with Recorder() as recorder:
            model.predict(X)
        assert cupy.gpu.bytes("in") == X.nbytes + weights
        assert cupy.gpu.bytes("out") == 4 * len(X) * k and cupy.gpu.asked == asked + questions
    assert recorder.entries["host to device", "rows"].nbytes == X.nbytes
    assert recorder.entries["back and evaluate", "to host"].nbytes == 4 * len(X) * k
    assert len(FENCES) == 1  # what a profile waits for


def test_a_layer_of_the_host_takes_no_samples_of_the_device(cupy):
    X, C = data(np.float32)
    assert type(HiddenLayer(cupy.asarray(C), GAUSSIAN, backend="cupy").centers) is np.ndarray
    words = r"GPU.*\(backend='numpy'\) is not: set backend='cupy', or .*cupy\.asnumpy\(X\)"
    with pytest.raises(TypeError, match=words):
        HiddenLayer(C, GAUSSIAN, backend="numpy").activations(cupy.asarray(X))


def consumers(layer, X):
    """All that a layer computes: functions of no argument that give lists of arrays."""
    T, w = np.linspace(0, 1, len(X))[:, None], np.linspace(1, 2, len(X))
    W = np.linspace(-1, 1, len(layer.centers) * 2).reshape(-1, 2)
    return (
        lambda: [layer.activations(X)],
        lambda: [layer.matvec(X, W)],
        lambda: sums_of(layer, X, T, w),
    )


@pytest.mark.slow
@pytest.mark.parametrize("consumer", range(3))
def test_memory_that_runs_out_halves_the_tile_and_leaves_nothing(cupy, small_tiles, consumer):
    gpu = cupy.gpu
    X, layer = samples_and_layer(N=120)
    run = consumers(layer, X)[consumer]
    expected = run()
    (pool,) = (pool for pool in gpu.pools if pool.used)
    resident = pool.used
    start = gpu.n_allocations
    run()
    used = gpu.n_allocations - start
    # Wherever it happens, several times, and in a row.
    for k in range(1, used + 1, 3):
        tiles = len(gpu.calls)
        gpu.fail_at = {gpu.n_allocations + k + d for d in (0, 1, 25)}
        try:
            got = run()
        except MemoryError:
            assert k <= 3  # in what a call makes before its first tile: W, the sums
            continue
        assert len(gpu.calls) > tiles
        for a, b in zip(got, expected):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    gpu.failure, gpu.fail_at = KeyboardInterrupt, {gpu.n_allocations + used // 2}
    with pytest.raises(KeyboardInterrupt):
        run()
    assert pool.used == resident
    for a, b in zip(run(), expected):
        np.testing.assert_array_equal(a, b)


# What happens to the GPU once it is in use, or what is set, the error and what it says.
REFUSALS = {
    "full": ({"fail_above": 100}, MemoryError, r"one row.*GPURBF_GPU_MEMORY.*backend='numba'"),
    # Its arrays are elsewhere, and what was chosen is for the first.
    "another device": ({"device": 1}, BackendUnavailable, r"device 1 .*VISIBLE_DEVICES=1"),
    "forked": ({}, RuntimeError, r"forked after its parent had used the GPU.*loky"),
    **dict.fromkeys(["much", "-1", "nan", "inf"], ({}, ValueError, "GPU_MEMORY must be a number")),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_a_gpu_cannot_do_is_an_error_that_says_what_to_do(cupy, monkeypatch, what):
    X, layer = samples_and_layer()
    layer.activations(X)
    changed, error, words = REFUSALS[what]
    vars(cupy.gpu).update(changed)
    if what == "forked":
        parent = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    elif not changed:
        monkeypatch.setenv("GPURBF_GPU_MEMORY", what)
    with pytest.raises(error, match=words):
        layer.activations(X)
    if what == "full":
        with pytest.raises(error, match="37 centers of 21 inputs"):
            HiddenLayer(layer.centers, GAUSSIAN, backend="cupy").activations(X)


def test_a_fit_that_does_not_fit_says_so_and_leaves_nothing(cupy):
    """HᵀH is not made tile by tile."""
    cupy.gpu.capacity = 20 << 20
    X = np.random.default_rng(0).normal(size=(1600, 9))
    with pytest.raises(MemoryError, match=r"arrays of this step: .*0 MB are.*backend='numba'") as e:
        gpurbf.RBFClassifier(1500, random_state=0, backend="cupy").fit(X, X[:, 0] > 0)
    assert not isinstance(e.value, standin.OutOfMemoryError)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_packed_weights_are_there_for_other_streams(cupy, dtype):
    X, layer = samples_and_layer(dtype)
    layer.activations(X)
    waits, W = cupy.gpu.synchronizations, OutputWeights(np.ones((37, 2)))
    (prepared,) = layer._prepared.values()
    W.packed(prepared)
    assert cupy.gpu.synchronizations == waits + 1
    W.packed(prepared)
    assert cupy.gpu.synchronizations == waits + 1


@pytest.mark.parametrize("how", ["config", "environment"])
def test_the_pool_stays_within_its_budget(cupy, monkeypatch, how):
    X, layer = samples_and_layer(N=20_000, m=100)
    megabytes, runs = 2, consumers(layer, X)
    monkeypatch.setenv("GPURBF_GPU_MEMORY", "2" if how == "environment" else "0")
    with config_context(gpu_memory=megabytes if how == "config" else None):
        limited = [A for run in runs for A in run()]
    peak = max(pool.peak for pool in cupy.gpu.pools)
    assert 0.3 * megabytes * 2**20 < peak <= megabytes * 2**20
    monkeypatch.delenv("GPURBF_GPU_MEMORY")
    for a, b in zip(limited, [A for run in runs for A in run()]):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("megabytes", ["1e-9", "1e300", "1e305"])
def test_a_budget_below_a_byte_is_not_without_limit_and_a_huge_one_no_error(
    cupy, monkeypatch, megabytes
):
    X, layer = samples_and_layer()
    layer.activations(X)
    monkeypatch.setenv("GPURBF_GPU_MEMORY", megabytes)
    refused = pytest.raises(MemoryError, match="budget is 0 MB")
    with refused if megabytes == "1e-9" else nullcontext():
        layer.activations(X)


def test_memory_is_kept_between_calls_within_the_budget(cupy):
    X, layer = samples_and_layer(N=20_000, m=60)
    layer.matvec(X, np.ones((60, 2)))
    gpu = cupy.gpu
    (pool,) = (pool for pool in gpu.pools if pool.used)
    kept, mapped = pool.total, gpu.mapped
    assert kept - pool.used > 1 << 20
    layer.matvec(X, np.ones((60, 2)))
    assert gpu.mapped == mapped and pool.total == kept
    with config_context(gpu_memory=1):
        layer.matvec(X[:50], np.ones((60, 2)))
    assert pool.total_bytes() <= 1 << 20


@pytest.mark.parametrize(
    "name, threads, share",
    [("LokyProcess-3", "1", 8), ("LokyProcess-1", "3", 2), ("LokyProcess-1", "", 1), ("M", "1", 1)],
)  # fmt: skip
def test_workers_of_joblib_share_the_memory_as_they_share_the_cores(
    cupy, monkeypatch, name, threads, share
):
    """Each knows how many threads joblib leaves to it; Parallel sets these as tested below."""
    there = device.memory_of(cupy)
    whole = there.budget()
    monkeypatch.setattr(device.multiprocessing.current_process(), "_name", name)
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    monkeypatch.setattr("joblib.cpu_count", lambda: 8)
    assert there.budget() == whole // share


def test_joblib_tells_its_workers_their_number(monkeypatch):
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    n_jobs = min(2, joblib.cpu_count())
    found = joblib.Parallel(n_jobs)(joblib.delayed(device.processes)() for _ in range(2))
    assert found == [n_jobs] * 2 or n_jobs == 1


# Launches, copies, waits, blocks.
NOTHING_ELSE = [0, 0, 0]


def counted(gpu, call):
    """What the second call takes: the first compiles, and fills the pool."""
    call()
    before = gpu.counts()
    call()
    launches, *others = (gpu.counts() - before).tolist()
    return launches, others


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_resident_data_take_three_launches_a_tile_and_nobody_waits(cupy, dtype):
    X, layer = samples_and_layer(dtype, 1e-5, N=5000, m=60)
    x, out = cupy.asarray(X), cupy.empty((5000, 60), layer.dtype)
    W, T = OutputWeights(cupy.asarray(np.ones((60, 10)))), cupy.asarray(np.ones((5000, 10)))
    sums = cupy.zeros((60, 60)), cupy.zeros((60, 10))
    assert counted(cupy.gpu, lambda: layer.matvec(x, W)) == (3, NOTHING_ELSE)
    assert cupy.gpu.kernels[-2:] == ["rows", "scores"]
    assert counted(cupy.gpu, lambda: layer.activations(x, out)) == (3, NOTHING_ELSE)
    mean = np.zeros(60)
    # Two tiles, because of the sums; the mean, which is NumPy's, crosses the bus.
    assert counted(cupy.gpu, lambda: layer.gram(x, T, None, mean, sums)) == (2 * 7, [1, 0, 0])


def test_a_further_chunk_is_two_launches_more_for_the_same_numbers(cupy, monkeypatch):
    """A chunk is some thousand rows, or more if their products are few bytes; MNIST has eight."""
    monkeypatch.setattr(cupy_, "_CHUNK_BYTES", 0)
    X, layer = samples_and_layer(np.uint8, 1e-5, N=20_000, m=60)
    x, W = cupy.asarray(X), OutputWeights(cupy.asarray(np.ones((60, 10))))
    assert counted(cupy.gpu, lambda: layer.matvec(x, W)) == (1 + 2 * 3, NOTHING_ELSE)
    assert {call[2] for call in cupy.gpu.calls} == {8192, 20_000 - 2 * 8192}
    whole, rest = (layer.matvec(rows, W).get() for rows in (x, x[8192:]))
    np.testing.assert_array_equal(whole[8192:], rest)


# Launches, copies and waits of a fit of 1,797 digits and of a prediction, from the host and of what
# is on the device: what docs/notes/cuda.md says. More is a step back.
COUNTS = {
    gpurbf.RBFClassifier(100, random_state=0, gamma=1e-3): ((47, 25, 13), (3, 3, 1), (8, 4, 1)),
    gpurbf.RBFClassifier(100, solver="lms", random_state=0, gamma=1e-3): (
        (69, 19, 14), (3, 3, 1), (8, 4, 1),
    ),
    gpurbf.FSVC(40.0, selection="pass", eval_radius=None, random_state=0): (
        (58, 25, 15), (3, 3, 1), (8, 4, 2),
    ),
    gpurbf.SVC(C=10, gamma=0.001): ((11, 4, 4), (11, 3, 1), (12, 5, 1)),
    gpurbf.RBFLayer(100, random_state=0, gamma=1e-3): ((0, 0, 0), (3, 2, 1), (3, 0, 0)),
}  # fmt: skip


@pytest.mark.parametrize("model", COUNTS, ids=str)
def test_the_estimators_take_no_more_than_they_did(cupy, model):
    fit, host, resident = COUNTS[model]
    model = clone(model).set_params(backend="cupy")
    rows = slice(600) if isinstance(model, gpurbf.SVC) else slice(None)
    before = cupy.gpu.counts()
    model.fit(PIXELS[rows], LABELS[rows])
    assert ((cupy.gpu.counts() - before)[:3] <= fit).all(), cupy.gpu.counts() - before
    call = getattr(model, "transform", None) or model.predict
    for X, most in ((PIXELS, host), (cupy.asarray(PIXELS), resident)):
        launches, others = counted(cupy.gpu, lambda X=X: call(X))
        assert others[-1] == 0
        assert (np.array([launches, *others[:2]]) <= most).all(), (launches, others)


def test_the_steps_of_svc_that_are_at_work_are_within_the_memory():
    N, starts = 60_000, np.arange(0, 66_000, 6000)
    problems = cuda_pairs.problems_of(starts, np.ones(N), list(combinations(range(10), 2)))
    size = problems.sizes.max()
    assert cuda_pairs.pairs_that_fit(N, 4, problems, 80e9) == 45
    width = cuda_pairs.pairs_that_fit(N, 4, problems, 29e9)
    assert 4 * N * N + width * size * (4 * size + 16) < 29e9 and width == 45
    for room in (20e9, -1e6):
        with pytest.raises(MemoryError):
            cuda_pairs.pairs_that_fit(N, 4, problems, room)


def test_auto_takes_no_gpu_for_svc_and_does_not_ask_for_one(monkeypatch):
    monkeypatch.setattr(backends, "no_gpu", lambda: None)
    monkeypatch.delenv("GPURBF_BACKEND", raising=False)
    for name in backends.GPUS:
        monkeypatch.setitem(backends.LOADERS, name, lambda name=name: pytest.fail(name))
    monkeypatch.setattr(check, "trusted", pytest.fail)
    model = gpurbf.SVC(gamma=1e-3).fit(PIXELS[:200], LABELS[:200])
    assert (
        model.backend_ in backends.CPUS
        and "a GPU only if backend= names one" in model.backend_info_
    )
    model.predict(PIXELS[:200])
    trained = sklearn.svm.SVC(gamma=1e-3).fit(PIXELS[:200], LABELS[:200])
    assert gpurbf.SVC.from_sklearn(trained).backend_ in backends.CPUS
