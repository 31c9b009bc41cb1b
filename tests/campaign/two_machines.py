"""What two machines, or two kernels of one, have to the same bit, and how far apart the rest is.

`python -m tests.campaign.two_machines here.npz [folder of MNIST]` on each machine writes arrays of
every estimator; `python -m tests.campaign.two_machines here.npz there.npz` compares them.
"""

import sys
from hashlib import sha256

import numpy as np
from sklearn.datasets import load_digits

from gpurbf import FSVC, SVC, RBFClassifier, RBFClassifierCV, RBFLayer, datasets
from gpurbf.data.samples import quantize_or_keep
from gpurbf.layer.backends.numba.gram import Grid

MODELS = {
    "layer": RBFLayer(300, backend="numba", random_state=0),
    "svc": SVC(backend="numba"),
    "ridge": RBFClassifier(300, backend="numba", random_state=0),
    "cg": RBFClassifier(300, solver="cg", backend="numba", random_state=0),
    "lms": RBFClassifier(300, solver="lms", backend="numba", random_state=0),
    "cv": RBFClassifierCV(300, backend="numba", random_state=0),
    "fsvc": FSVC(backend="numba", random_state=0),
}
CENTERS = ("centers_", "support_", "support_vectors_")
FITTED = ("dual_coef_", "intercept_", "coef_", "alpha_", "gamma_", "radius_")


def arrays(data, X, y):
    """Name and array of everything that is compared, in the order in which it is computed."""
    yield f"{data}: codes", quantize_or_keep(X / np.float32(255), "auto").values
    for name, model in MODELS.items():
        model.fit(X, y)
        if name == "layer":
            yield f"{data}: activations", model.transform(X)
            layer, targets = model._layer(), (y[:, None] == range(10)).astype(float)
            m = len(layer.centers)
            sums = np.zeros((m, m)), np.zeros((m, 10))
            layer.gram(X, targets, None, np.zeros(m), sums, Grid.of(1.0))
            yield from zip((f"{data}: HᵀH on a grid", f"{data}: HᵀT on a grid"), sums)
            continue
        for attribute in CENTERS + FITTED:
            if hasattr(model, attribute):
                yield f"{data}: {name}.{attribute}", np.asarray(getattr(model, attribute))
        yield f"{data}: {name} outputs", model.decision_function(X)
        yield f"{data}: {name} predictions", model.predict(X)


def write(path, folder=None):
    """Compute all arrays and keep them."""
    X, y = load_digits(return_X_y=True)
    found = dict(arrays("digits", X.astype(np.uint8), y))
    if folder:
        X, y, *_ = datasets.load_mnist(folder)
        found |= arrays("2,000 of MNIST", X[:2000], y[:2000])
    np.savez(path, **found)


def compare(here, there):
    """Print what has the same bits, by its hash, and the greatest difference of the rest."""
    for name in here.files:
        a, b = here[name], there[name]
        if a.dtype == b.dtype and a.tobytes() == b.tobytes():
            print(f"{name}: the same, {sha256(a.tobytes()).hexdigest()[:12]}")
        elif a.shape != b.shape:
            print(f"{name}: {a.shape} and {b.shape}")
        else:
            apart, others = np.abs(a.astype(float) - b).max(), (a != b).mean()
            print(f"{name}: {apart:.2g} apart of {np.abs(b).max():.2g}, {others:.0%}")


if __name__ == "__main__":
    path, *other = sys.argv[1:]
    if other and other[0].endswith(".npz"):
        compare(np.load(path), np.load(other[0]))
    else:
        write(path, *other)
