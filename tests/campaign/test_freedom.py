"""What users may give: any centers, weights, widths, penalties and batches, by any solver.

Each answer is held against the solution in float64, of the definition, and what is promised of it:
what a fit minimises, the outputs, and the probabilities of samples that were left out.
"""

import warnings
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import reference
from hypothesis import assume
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax
from sklearn.exceptions import ConvergenceWarning

from gpurbf import RBFClassifier, RBFClassifierCV
from gpurbf.solvers import CG
from tests.campaign.rounds import campaign

# Samples (N, n) by a generator, and centers (m, n) by another and these samples.
SAMPLES = {
    "real": lambda rng, N, n: rng.standard_normal((N, n)),
    "pixels": lambda rng, N, n: rng.integers(0, 17, (N, n)),
    "offset": lambda rng, N, n: rng.standard_normal((N, n)) + 30,
    "repeated": lambda rng, N, n: rng.standard_normal((N // 3 + 2, n))[rng.integers(0, N // 3, N)],
}
CENTERS = {
    "samples": lambda rng, X, m: X[rng.integers(0, len(X), m)],
    "inside": lambda rng, X, m: X.mean(axis=0) + X.std() * rng.normal(0, 0.5, (m, X.shape[1])),
    "narrow": lambda rng, X, m: X.mean(axis=0) + X.std() * rng.normal(0, 1e-2, (m, X.shape[1])),
    "wide": lambda rng, X, m: X.mean(axis=0) + X.std() * rng.normal(0, 20, (m, X.shape[1])),
    "wider": lambda rng, X, m: X.mean(axis=0) + X.std() * rng.normal(0, 500, (m, X.shape[1])),
    "far": lambda rng, X, m: X.max(axis=0) + X.std() * rng.normal(6, 1, (m, X.shape[1])),
}
WEIGHTS = {
    "none": lambda rng, y: None,
    "a tenth": lambda rng, y: np.full(len(y), 0.1),
    "1 / N": lambda rng, y: np.full(len(y), 1 / len(y)),
    "a hundred": lambda rng, y: np.full(len(y), 100.0),
    "exponential": lambda rng, y: rng.exponential(50, len(y)),
    "six decades": lambda rng, y: 10.0 ** rng.uniform(-3, 3, len(y)),
    "some zero": lambda rng, y: rng.integers(0, 3, len(y)) + (y == 0.0),
    "a class of none": lambda rng, y: (y > 0) + 0.0,
}
# What rounding may add to the penalty: a tenth on average.
NOISE = 0.3


class Case(NamedTuple):
    """A problem of a user's making."""

    seed: int
    samples: str
    centers: str
    weights: str
    N: int
    n: int
    k: int
    m: int
    width: float
    alpha: float
    dtype: str
    lonely: bool

    def make(self):
        """X (N + 40, n) and C (m, n) in the dtype, y (N,), weights and gamma."""
        rng = np.random.default_rng(self.seed)
        X = SAMPLES[self.samples](rng, self.N + 40, self.n).astype(float)
        C = CENTERS[self.centers](rng, X, self.m)
        if self.samples == "pixels":
            C = np.rint(C).clip(0, 255)
        X, C = X.astype(self.dtype), C.astype(self.dtype)
        Z = (X - X.mean(axis=0)) / (X.std() or 1.0)
        y = (
            np.sin(2 * Z @ rng.normal(size=(self.n, self.k))) + 0.2 * rng.normal(size=self.k)
        ).argmax(axis=1)[: self.N]
        y[: self.k] = np.arange(self.k)
        if self.lonely:
            y[self.k :] %= self.k - 1
        gamma = 10.0**self.width / np.square(reference.euclidean(X[:50], C)).mean()
        return X, C, y, WEIGHTS[self.weights](rng, y), gamma


CASES = st.builds(
    Case,
    st.integers(0, 2**32 - 1),
    *(st.sampled_from(sorted(table)) for table in (SAMPLES, CENTERS, WEIGHTS)),
    N=st.integers(12, 120),
    n=st.integers(1, 6),
    k=st.integers(2, 4),
    m=st.sampled_from([4, 40, 256, 300]),
    width=st.floats(-6, 1.5),
    alpha=st.floats(-10, 0).map(lambda power: 10.0**power),
    dtype=st.sampled_from(["float64", "float32", "uint8"]),
    lonely=st.booleans(),
)


class Truth:
    """The solution in float64 with H (N, m) or, if `kernel`, with H = K and the penalty VᵀKV."""

    def __init__(self, H, T, w, alpha, kernel):
        self.H, self.T, self.w, self.kernel = H, T, w, kernel
        centred = self._centred(w)[0]
        self.ridge = alpha * (w.sum() if kernel else (w @ np.square(centred)).sum() / H.shape[1])
        self.spread = np.abs(centred).max()
        self.V, self.b = self._solve(w, slice(None))

    def _centred(self, w):
        mean = w @ self.H / w.sum()
        return self.H - mean, mean

    def _solve(self, w, centers):
        """Weights and intercept with these weights of samples and without some centers."""
        mean, V = w @ self.T / w.sum(), np.zeros((self.H.shape[1], self.T.shape[1]))
        if self.kernel:
            some = np.flatnonzero(w > 0)
            A = self.H[np.ix_(some, some)] + np.diag(self.ridge / w[some])
            both = np.linalg.solve(A, np.column_stack([self.T[some], np.ones(len(some))]))
            b = both[:, :-1].sum(axis=0) / both[:, -1].sum()
            V[some] = both[:, :-1] - both[:, -1:] * b
            return V, b
        Z, middle = self._centred(w)
        Z, roots = Z[:, centers], np.sqrt(w)[:, None]
        A = np.vstack([roots * Z, np.sqrt(self.ridge) * np.eye(Z.shape[1])])
        B = np.vstack([roots * (self.T - mean), np.zeros((Z.shape[1], len(mean)))])
        if len(w) < Z.shape[1] / 2:  # the same by samples
            Z = roots * Z
            V[centers] = Z.T @ np.linalg.solve(Z @ Z.T + self.ridge * np.eye(len(w)), B[: len(w)])
        else:
            V[centers] = np.linalg.lstsq(A, B)[0]
        return V, mean - middle @ V

    def penalty(self):
        return self.ridge * (self.V * (self.H @ self.V if self.kernel else self.V)).sum()

    def excess(self, V, b):
        """How much more these weights and intercept cost than the best."""
        V, b = V - self.V, b - self.b
        norm = V * (self.H @ V if self.kernel else V)
        return (self.w @ np.square(self.H @ V + b)).sum() + self.ridge * norm.sum()

    def loss(self):
        return (self.w @ np.square(self.H @ self.V + self.b - self.T)).sum()

    def allowed(self, tol):
        """What the excess may be: a tenth more of penalty and freedom, and the residual of cg."""
        N, m = self.H.shape
        rounding = 1e-13 * (self.w @ np.square(self.T)).sum()
        if self.kernel:
            B = (
                np.sqrt((self.w @ np.square(self.T)).sum())
                + np.sqrt(self.w.sum()) * np.abs(self.b).max()
            )
            kept = min(NOISE, 10 * tol) * np.sqrt(self.ridge * (self.penalty() + self.loss()))
            return (2 * tol * B + kept) ** 2 + rounding
        noise = NOISE * (self.penalty() + min(m, N) / N * self.loss())
        if tol:
            D = self.w[:, None] * np.column_stack(
                [self.T - self.w @ self.T / self.w.sum(), np.ones(N)]
            )
            norms = np.linalg.norm(self.H.T @ D, axis=0)
            noise += (4 * tol * norms.sum()) ** 2 / self.ridge
        return noise + rounding

    def left_out(self, groups, own):
        """Outputs of samples without their group, nor the center that they are."""
        outputs = self.H @ self.V + self.b
        for group in np.unique(groups[self.w > 0]):
            rows = groups == group
            w = np.where(rows, 0.0, self.w)
            if w.any():
                center = own[np.flatnonzero(rows)[0]]
                V, b = self._solve(w, np.arange(self.H.shape[1]) != center)
                outputs[rows] = self.H[rows] @ V + b
        return outputs


def log_loss(outputs, y, w, temperature):
    if outputs.shape[1] == 1:
        outputs = outputs * [-0.5, 0.5]
    return -np.average(log_softmax(outputs / temperature, axis=1)[np.arange(len(y)), y], weights=w)


MODELS = {
    "ridge": lambda alpha, tol, **o: RBFClassifier(solver="ridge", alpha=alpha, **o),
    "cg": lambda alpha, tol, **o: RBFClassifier(solver=CG(alpha, tol=tol, max_iter=1000), **o),
    "path": lambda alpha, tol, **o: RBFClassifierCV(alphas=[alpha], gammas=[1.0], **o),
}


@campaign(
    "freedom",
    60,
    case=CASES,
    solver=st.sampled_from(sorted(MODELS)),
    every=st.booleans(),
    power=st.floats(-10, -2),
    cuts=st.lists(st.integers(1, 100), max_size=3),
)
def test_rbf_is_the_direct_solution(case, solver, every, power, cuts):
    """The cost of the weights, the outputs and the temperature, of fits and of streams."""
    X, C, y, w, gamma = case.make()
    assume(w is None or len(np.unique(y[w > 0])) > 1)
    tol = 10.0**power if solver == "cg" else 0.0
    every = every and solver != "path"
    options = {"n_centers": "all", "random_state": 0} if every else {"centers": C}
    model = MODELS[solver](case.alpha, tol, gamma=gamma, **options)
    new, X = X[case.N :], X[: case.N]
    classes = np.arange(case.k)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if solver == "ridge" and not every and cuts:
            w, weighted = (np.ones(case.N), False) if w is None else (w, True)
            for a, b in pairwise([0, *sorted({c for c in cuts if c < case.N}), case.N]):
                if w[a:b].any():
                    model.partial_fit(X[a:b], y[a:b], classes, w[a:b] if weighted else None)
        else:
            model.fit(X, y, w)
            w = np.ones(case.N) if w is None else w
    assume(not any(issubclass(one.category, ConvergenceWarning) for one in said))
    X, y, w = X[w > 0], np.searchsorted(model.classes_, y[w > 0]), w[w > 0]
    k, C = len(model.classes_), model.centers_
    T = np.eye(k)[y] if k > 2 else 2.0 * y[:, None] - 1
    own = np.where((d := reference.euclidean(X, C)).min(axis=1) == 0, d.argmin(axis=1), -1)
    kernel, samples = solver == "cg" and (own >= 0).all(), (X, T, w)
    if kernel:  # samples of one center are one
        mass = np.bincount(own, w, len(C))
        samples = C, np.column_stack([np.bincount(own, w * t, len(C)) for t in T.T]), mass
        samples[1][:] /= np.where(mass > 0, mass, 1)[:, None]
    H = reference.hidden(samples[0], C, "euclidean", "gaussian", gamma)
    truth = Truth(H, *samples[1:], case.alpha, kernel)
    assume(truth.spread > 1e-9 * np.abs(H).max() > 0)
    V, b = model.coef_.T, model.intercept_
    excess, allowed = truth.excess(V, b), truth.allowed(tol)
    assert excess <= allowed, (excess, allowed, truth.penalty(), truth.loss())
    # Outputs are those of the weights, but for an error of H that adds as little to the penalty.
    # Errors of a row may be alike in all centers; so they were looked at in 64 rows.
    near = 4 * (8 + len(C) ** 0.5) * np.sqrt(NOISE * truth.penalty() / truth.w.sum()) + 1e-5
    for A in (X, new):
        expected = reference.hidden(A, C, "euclidean", "gaussian", gamma) @ V + b
        outputs = model.decision_function(A).reshape(expected.shape)
        off = np.abs(outputs - expected).max()
        assert off <= near * (1 + np.abs(expected).max()), (off, near, np.abs(expected).max())
    two = outputs * [-0.5, 0.5] if k == 2 else outputs
    np.testing.assert_allclose(
        model.predict_proba(new), softmax(two / model.temperature_, axis=1), atol=1e-6
    )
    if kernel:
        left = truth.left_out(np.arange(len(C)), np.full(len(C), -1))[own]
    else:
        distinct, groups = np.unique(np.column_stack([X, y]), axis=0, return_inverse=True)
        copied = len(distinct) < len(X)
        # Of cg it is an estimate, by a preconditioner made of the centers, and of single samples.
        # Copies of unequal weights are rounded otherwise; equal centers leave digits for few more.
        estimated = solver == "cg" and case.centers != "samples"
        if estimated or (copied and (solver == "cg" or np.ptp(w) or case.alpha < 1e-7)):
            return
        left = truth.left_out(groups, own if solver != "cg" else np.full(len(X), -1))
    powers = np.linspace(-7, 4, 45)
    best = min(log_loss(left, y, w, np.exp(power)) for power in powers)
    found = log_loss(left, y, w, model.temperature_)
    assert found <= 1.1 * best + (0.5 if solver == "cg" else 0.05), (
        found,
        best,
        model.temperature_,
    )
