"""Gradient descent on a Gaussian kernel in PyTorch, preconditioned as in EigenPro: a peer of `cg`.

A short version of our own of what Ma and Belkin ("Kernel machines that adapt to GPUs for effective
large batch training", 2019) describe, for centers that are some of the samples: not their program.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

_SUBSAMPLE, _DIRECTIONS, _BATCH = 2_000, 160, 2_048
# Samples whose kernel is held at a time for predictions.
_ROWS = 4_096


def epochs(X: np.ndarray, T: np.ndarray, C: np.ndarray) -> Iterator[np.ndarray]:
    """Output weights W (m, k) after each pass over X (N, n) with targets T (N, k).

    Of f(x) = Σ_j exp(-|x - c_j|²) w_j for the centers C (m, n). With H the kernel of a batch with
    the centers, a step follows HᵀE, for its errors E, in a basis where the largest eigenvalues of
    KᵀK are those of the one after them; K is the kernel of a subsample with the centers.
    """
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


def outputs(X: np.ndarray, C: np.ndarray, W: np.ndarray) -> np.ndarray:
    """f of samples X (N, n)."""
    centers, weights = torch.from_numpy(C), torch.from_numpy(W)
    parts = [_kernel(part, centers) @ weights for part in torch.from_numpy(X).split(_ROWS)]
    return torch.cat(parts).numpy()


def _kernel(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """exp(-|a - b|²) of all rows."""
    squares = A.square().sum(1)[:, None] + B.square().sum(1) - 2 * (A @ B.T)
    return squares.clamp_(min=0).neg_().exp_()
