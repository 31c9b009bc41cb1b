"""Conjugate gradients for many centers: beside the closed form and KernelRidge."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.kernel_ridge import KernelRidge

from benchmarks import data
from benchmarks.measure import in_turn, once, run_python
from benchmarks.report import Report
from gpurbf import RBFClassifier, config_context, datasets
from gpurbf.cli import classify
from gpurbf.runtime.threads import thread_limit
from gpurbf.solvers.cg import CG

if TYPE_CHECKING:
    import torch

TITLE = "Conjugate gradients"

# Of one, two and three times `scale`, the best for 10,000 held-out training images of MNIST and
# 15,000 others as centers.
_WIDTH = 2.0
_SAME = 1e-5
# Of EigenPro: samples whose eigenvectors are found, how many of them, and samples of a step.
_SUBSAMPLE, _DIRECTIONS, _BATCH = 2_000, 160, 2_048
# Samples whose kernel is held at a time for EigenPro's predictions.
_ROWS = 4_096


def run(report: Report, quick: bool, data_home: str | None) -> None:
    """Verify the solution first; then many centers, in fresh processes; then the peers."""
    images = classify.images(quick, data_home)
    _direct(report, images, quick)
    sets = {"digits" if quick else "MNIST": "images"}
    if not quick and data.fashion(report, data_home):
        sets["Fashion-MNIST"] = "fashion"
    _many(report, sets, quick, data_home)
    _kernel_ridge(report, images, quick)
    _torch(report, images, quick)


def _gamma(X: np.ndarray) -> float:
    return _WIDTH / float(X.shape[1] * X.var())


def _direct(report: Report, images: datasets.Images, quick: bool) -> None:
    """Outputs for test samples beside those of the closed form."""
    X_train, y_train, X_test, y_test = images
    m = 300 if quick else 2_000
    direct = RBFClassifier(m, solver="ridge", random_state=0).fit(X_train, y_train)
    rows = []
    for tol in (1e-2, 1e-4, 1e-6, 1e-8):
        solver = CG(tol=tol, max_iter=500)
        # Kept, H is rounded to 16 bits as it is in the closed form's sums; made anew it is not.
        with config_context(memory=1_000):
            model = RBFClassifier(m, solver=solver, random_state=0).fit(X_train, y_train)
        # In float64: float32 sums of such large weights differ by more than the solutions do.
        H = model._layer().activations(X_test).astype(np.float64)
        change = H @ (model.coef_ - direct.coef_).T + model.intercept_ - direct.intercept_
        accuracy = f"{100 * model.score(X_test, y_test):.2f}"
        rows.append((f"{tol:g}", model.n_iter_, f"{np.abs(change).max():.1e}", accuracy))
    if np.abs(change).max() > _SAME:
        raise AssertionError(f"outputs differ by {np.abs(change).max():.1e} from the direct ones")
    report.text(
        f"## The closed form's solution, {len(X_train):,} samples, {m:,} centers\n\n"
        f'Largest difference of the {len(X_test):,} test samples\' outputs from `solver="ridge"`, '
        f"whose accuracy is {100 * direct.score(X_test, y_test):.2f} %, with room to keep H "
        "(`memory=1000`): both then solve the system of the same H in 16 bits. Everything else is "
        "the default."
    )
    report.table(("tol", "iterations", "largest difference", "accuracy %"), rows)


_FIT = """
import json, time
import numpy as np
from gpurbf import RBFClassifier, config_context
from benchmarks.measure import megabytes, reset_peak
{setup}
for m in (300, "all"):
    RBFClassifier(m, solver="cg").fit(X_train[:1000], y_train[:1000])
reset_peak()
model = RBFClassifier({m!r}, solver="cg", gamma={gamma}, random_state=0)
with config_context(memory={memory}):
    begin = time.perf_counter()
    model.fit(X_train, y_train)
    fit = time.perf_counter() - begin
peak = megabytes("VmHWM")
begin = time.perf_counter()
p = model.predict_proba(X_test)
predict = time.perf_counter() - begin
right = 100 * float(np.mean(model.classes_[p.argmax(axis=1)] == y_test))
loss = -float(np.mean(np.log(p[np.arange(len(p)), np.searchsorted(model.classes_, y_test)])))
print(json.dumps([fit, peak, right, loss, predict, model.solver_info_]))
"""


def _many(report: Report, sets: dict[str, str], quick: bool, data_home: str | None) -> None:
    """Fits of fresh processes: time, the whole process's peak, accuracy."""
    report.text(
        "## Many centers\n\nEach fit in a fresh process, compiled before. The memory is the peak "
        "of the whole process, data and libraries in it; `log-loss` that of the probabilities."
    )
    rows = []
    for name, loader in sets.items():
        setup = data.memory_setup(quick, data_home)
        if loader == "fashion":
            load = f"datasets.load_fashion_mnist({data_home!r})"
            setup = f"from gpurbf import datasets\nX_train, y_train, X_test, y_test = {load}\n"
        for m, memory in ((300, 256), ("all", 256)) if quick else ((20_000, 3_300), ("all", 5_000)):
            gamma = f"{_WIDTH} / (X_train.shape[1] * X_train.var())"
            code = _FIT.format(setup=setup, m=m, gamma=gamma, memory=memory)
            fit, peak, right, loss, predict, info = json.loads(run_python(code))
            shown = "–" if peak is None else f"{peak:,.0f}"
            count = m if isinstance(m, str) else f"{m:,}"
            numbers = f"{fit:.1f}", shown, f"{right:.2f}", f"{loss:.3f}", f"{predict:.1f}"
            rows.append((name, count, *numbers, info.partition(": ")[2]))
    report.table(
        ("data", "centers", "fit s", "peak MB", "accuracy %", "log-loss", "predict s", "how"), rows
    )


def _kernel_ridge(report: Report, images: datasets.Images, quick: bool) -> None:
    """Solve the equations in scikit-learn's closed form."""
    X_train, y_train, X_test, y_test = images
    n = 500 if quick else 10_000
    X, y, gamma = X_train[:n], y_train[:n], _gamma(X_train)
    T = np.eye(10, dtype=np.float32)[y]
    X32, X_test32 = X.astype(np.float32), X_test.astype(np.float32)
    ours = RBFClassifier("all", solver=CG(fit_intercept=False), gamma=gamma, random_state=0)
    theirs = KernelRidge(alpha=1e-6 * n, kernel="rbf", gamma=gamma)
    candidates: dict[str, Callable[[], Any]] = {
        "scikit-learn's KernelRidge": functools.partial(theirs.fit, X32, T),
        'RBFClassifier("all", solver="cg")': functools.partial(ours.fit, X, y),
    }
    ours.fit(X[:500], y[:500])
    times = in_turn(candidates, rounds=1 if quick else 2, warm_up=False)
    right = (
        100 * float(np.mean(theirs.predict(X_test32).argmax(axis=1) == y_test)),
        100 * ours.score(X_test, y_test),
    )
    report.text(f"## The first {n:,} samples, all of them centers, float32 for KernelRidge")
    first = next(iter(times.values())).median
    report.table(
        ("model", "fit s", "KernelRidge's time / this", "accuracy %"),
        [
            (name, each, f"{first / each.median:.1f}", f"{value:.2f}")
            for (name, each), value in zip(times.items(), right)
        ],
    )


def _torch(report: Report, images: datasets.Images, quick: bool) -> None:
    """Train this kernel by PyTorch on the CPU, where it is installed."""
    report.text("## Beside PyTorch on the CPU")
    try:
        import torch
    except ImportError:
        report.text("Without the comparison with PyTorch: it is not installed.")
        return
    torch.set_num_threads(thread_limit())
    X_train, y_train, X_test, y_test = images
    m, epochs, gamma = 300 if quick else 10_000, 1 if quick else 5, _gamma(X_train)
    rows: list[tuple[str, ...]] = []
    ours = RBFClassifier(m, solver="cg", gamma=gamma, random_state=0)
    RBFClassifier(300, solver="cg").fit(X_train[:1000], y_train[:1000])  # compiled before
    with config_context(memory=2_000):
        seconds = once(ours.fit, X_train, y_train)
    right = 100 * ours.score(X_test, y_test)
    info = ours.solver_info_.partition(": ")[2]
    rows.append((f'RBFClassifier({m:,}, solver="cg")', f"{seconds:.1f}", f"{right:.2f}", info))
    scale = np.float32(gamma**0.5)
    X, C, A = (part.astype(np.float32) * scale for part in (X_train, ours.centers_, X_test))
    T = np.eye(len(ours.classes_), dtype=np.float32)[np.searchsorted(ours.classes_, y_train)]
    spent = 0.0
    trained = _epochs(X, T, C)
    for epoch in range(1, epochs + 1):
        begin = time.perf_counter()
        W = next(trained)
        spent += time.perf_counter() - begin
        found = ours.classes_[_outputs(A, C, W).argmax(axis=1)]
        right = 100 * float(np.mean(found == y_test))
        rows.append(("EigenPro in PyTorch, ours", f"{spent:.1f}", f"{right:.2f}", f"epoch {epoch}"))
    report.text(
        f"{len(X_train):,} samples, {m:,} centers, the same in both, float32 in PyTorch "
        f"{torch.__version__}. *EigenPro in PyTorch, ours* is a short version of our own of the "
        "method of Ma and Belkin (2019) for fixed centers, not its authors' program. `falkon`, "
        "`eigenpro`, `eigenpro2` and `askotch` are packages of no registry that was at hand."
    )
    report.table(("model", "fit s", "accuracy %", "how"), rows)


def _epochs(X: np.ndarray, T: np.ndarray, C: np.ndarray) -> Iterator[np.ndarray]:
    """Output weights W (m, k) after each pass of EigenPro over X (N, n) with targets T (N, k).

    A short version of our own of what Ma and Belkin ("Kernel machines that adapt to GPUs for
    effective large batch training", 2019) describe, for centers that are some of the samples: not
    their program.

    Of f(x) = Σ_j exp(-|x - c_j|²) w_j for the centers C (m, n). With H the kernel of a batch with
    the centers, a step follows HᵀE, for its errors E, in a basis where the largest eigenvalues of
    KᵀK are those of the one after them; K is the kernel of a subsample with the centers.
    """
    import torch

    torch.manual_seed(0)
    samples, targets, centers = (torch.from_numpy(part) for part in (X, T, C))
    some = torch.randperm(len(samples))[:_SUBSAMPLE]
    H = _kernel(samples[some], centers)
    values, left = (part.flip(-1) for part in torch.linalg.eigh((H @ H.T).double()))
    q = min(_DIRECTIONS, len(centers) - 1, len(some) - 1)
    Q = H.T @ (left[:, :q] / values[:q].sqrt()).float()
    values = (values / len(some)).float()
    damping = 1 - values[q] / values[:q]
    # A batch's gradient is as noisy as its largest row is long, what is damped taken off.
    length = float((H.square().sum(1) - ((H @ Q).square() * damping).sum(1)).max())
    W = torch.zeros(len(centers), targets.shape[1])
    while True:
        order = torch.randperm(len(samples))
        for batch in order.split(_BATCH):
            b = len(batch)
            step = 1 / (length / b + (b - 1) / b * float(values[q]))
            H = _kernel(samples[batch], centers)
            G = H.T @ (H @ W - targets[batch]) / b
            W -= step * (G - Q @ (damping[:, None] * (Q.T @ G)))
        yield W.numpy()


def _outputs(X: np.ndarray, C: np.ndarray, W: np.ndarray) -> np.ndarray:
    """f of samples X (N, n)."""
    import torch

    centers, weights = torch.from_numpy(C), torch.from_numpy(W)
    parts = [_kernel(part, centers) @ weights for part in torch.from_numpy(X).split(_ROWS)]
    return torch.cat(parts).numpy()


def _kernel(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """exp(-|a - b|²) of all rows."""
    squares = A.square().sum(1)[:, None] + B.square().sum(1) - 2 * (A @ B.T)
    return squares.clamp_(min=0).neg_().exp_()
