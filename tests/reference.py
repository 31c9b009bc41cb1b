"""The formulas, in float64 and a few lines each: the truth that every backend answers to."""

import numpy as np


def euclidean(X, C):
    X, C = np.asarray(X, float), np.asarray(C, float)
    return np.sqrt(np.array([((x - C) ** 2).sum(axis=1) for x in X]).reshape(len(X), len(C)))


def manhattan(X, C):
    X, C = np.asarray(X, float), np.asarray(C, float)
    return np.array([np.abs(x - C).sum(axis=1) for x in X]).reshape(len(X), len(C))


def dot(X, C):
    return np.asarray(X, float) @ np.asarray(C, float).T


METRICS = {"euclidean": euclidean, "manhattan": manhattan, "dot": dot}


def thin_plate(d, g):
    s = g * d**2
    return 0.5 * np.where(s > 0, s * np.log(np.where(s > 0, s, 1)), 0)


PROFILES = {
    "gaussian": lambda d, g: np.exp(-g * d**2),
    "laplacian": lambda d, g: np.exp(-g * d),
    "triangular": lambda d, g: np.maximum(0, 1 - g * d),
    "multiquadric": lambda d, g: np.sqrt(1 + g * d**2),
    "inverse-multiquadric": lambda d, g: 1 / np.sqrt(1 + g * d**2),
    "thin-plate": thin_plate,
}
DOT_PROFILES = {
    "linear": lambda t, g, coef0, degree: t,
    "poly": lambda t, g, coef0, degree: (g * t + coef0) ** degree,
    "sigmoid": lambda t, g, coef0, degree: np.tanh(g * t + coef0),
}


def hidden(X, C, metric, profile, gamma, coef0=0.0, degree=3):
    """H of the definition; a callable profile is a function of d²."""
    value = METRICS[metric](X, C)
    if callable(profile):
        return profile(value**2)
    if metric == "dot":
        return DOT_PROFILES[profile](value, gamma, coef0, degree)
    return PROFILES[profile](value, gamma)


def penalty(H, alpha, weights=None, fit_intercept=True):
    """What |W|² is multiplied by in a ridge problem: alpha times the mean square of H's columns."""
    w = np.ones(len(H)) if weights is None else weights
    mean = w @ H / w.sum() * fit_intercept
    return alpha * (w @ np.square(H - mean)).mean()


def least_squares(H, T, penalty, weights=None, fit_intercept=True):
    """W and b of Σ w (t - hW - b)² + penalty |W|², by the normal equations."""
    w = np.ones(len(H)) if weights is None else weights
    mean, target = w @ H / w.sum() * fit_intercept, w @ T / w.sum() * fit_intercept
    A = (w[:, None] * (H - mean)).T
    W = np.linalg.solve(A @ (H - mean) + penalty * np.eye(H.shape[1]), A @ (T - target))
    return W, target - mean @ W


def ridge(H, T, weights, alpha, fit_intercept):
    """Output weights and intercept of the weighted ridge problem, by the definition."""
    absolute = penalty(H, alpha, weights, fit_intercept)
    return least_squares(H, T, absolute, weights, fit_intercept)


# Largest relative or absolute error by dtype of the activations, float32 products of real data.
TOLERANCE = {np.dtype(np.float32): 2e-6, np.dtype(np.float64): 1e-13}


def fsvc_unit(d, kernel, radius):
    """FSVC's units of a distance d."""
    if kernel == "gaussian":
        return np.exp(-(d**2) / (2 * radius**2))
    return np.maximum(0, 1 - d / (np.sqrt(2 * np.pi) * radius))


def fsvc_distance(X, c, metric):
    D = np.asarray(X, float) - np.asarray(c, float)
    d = np.abs(D).sum(axis=1) if metric == "manhattan" else (D**2).sum(axis=1)
    return np.sqrt(d) if metric == "euclidean" else d


def fsvc_pass(X, radius, overlap, kernel, metric, y=None, margin=np.inf):
    """Indices of the centers of one sequential pass; with y, only those that are nearly wrong."""
    centers = []
    for i, x in enumerate(X):
        phi = fsvc_unit(fsvc_distance(X[centers], x, metric), kernel, radius)
        novel = phi.sum() < overlap
        if novel and y is not None:
            votes = np.array([phi[y[centers] == c].sum() for c in range(y.max() + 1)])
            rival = np.delete(votes, y[i]).max()
            lead = votes[y[i]] - rival
            novel = lead <= 0 or lead < margin * phi.sum()
        if novel:
            centers.append(i)
    return np.array(centers)


def lms(H, T, W, learning_rate, n_epochs):
    """On-line delta rule, one sample after the other."""
    W = np.array(W, float)
    for _ in range(n_epochs):
        for z, t in zip(H, T):
            W += learning_rate * np.outer(z, t - z @ W)
    return W


def svc_dual(K, y, C, beta):
    """Objective, violation and gap of a binary SVC with labels y of -1 and 1 and beta = y alpha."""
    alpha, f = y * beta, y - K @ beta
    up = np.where(y > 0, alpha < C, alpha > 0)
    down = np.where(y > 0, alpha > 0, alpha < C)
    violation = f[up].max() - f[down].min()
    free = (alpha > 0) & (alpha < C)
    b = f[free].mean() if free.any() else (f[up].max() + f[down].min()) / 2
    objective = beta @ K @ beta / 2 - alpha.sum()
    primal = beta @ K @ beta / 2 + (C * np.maximum(0, 1 - y * (K @ beta + b))).sum()
    inside = (alpha >= 0).all() and (alpha <= C).all()
    return {
        "feasible": bool(inside and abs(beta.sum()) < 1e-9 * max(len(y), alpha.sum())),
        "objective": objective,
        "violation": violation,
        "intercept": b,
        "gap": primal + objective,
    }
