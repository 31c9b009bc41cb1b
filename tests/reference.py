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


def ridge(H, T, weights, alpha, fit_intercept):
    """Output weights and intercept of the weighted ridge problem, by the definition."""
    w = np.ones(len(H)) if weights is None else weights
    mean = (w @ H) / w.sum() if fit_intercept else np.zeros(H.shape[1])
    target = (w @ T) / w.sum() if fit_intercept else np.zeros(T.shape[1])
    A = (H - mean).T @ (w[:, None] * (H - mean))
    A += alpha * np.trace(A) / len(A) * np.eye(len(A))
    W = np.linalg.solve(A, (H - mean).T @ (w[:, None] * (T - target)))
    return W, target - mean @ W


# Largest relative or absolute error by dtype of the activations, float32 products of real data.
TOLERANCE = {np.dtype(np.float32): 2e-6, np.dtype(np.float64): 1e-13}
