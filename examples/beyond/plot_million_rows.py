"""
Out-of-core learning: a million rows by partial_fit
===================================================

``RBFClassifier`` trains on sums over the samples, and each batch adds to these sums. The result
is that of one fit on all data with the same centers, but only one batch at a time is in memory.

Here the batches are generated: two interleaved spirals in ten dimensions, eight of which are noise.
45 % of the labels are wrong, so it takes many rows to find the right ones. Batches from a file or a
database are used in the same way.
"""

import time

import matplotlib.pyplot as plt
import numpy as np

from gpurbf import RBFClassifier

plt.style.use("gpurbf.figures")

rng = np.random.default_rng(0)
BATCH, N_BATCHES = 50_000, 20


def make_batch(n_samples):
    """Points on two spirals, with noise, and which of the two."""
    y = rng.integers(0, 2, n_samples)
    turn = 3 * np.pi * np.sqrt(rng.random(n_samples))
    X = rng.normal(0, 0.25, (n_samples, 10))
    X[:, 0] += turn * np.cos(turn + np.pi * y)
    X[:, 1] += turn * np.sin(turn + np.pi * y)
    return X.astype(np.float32), y


X_test, y_test = make_batch(20_000)

# %%
# The centers are chosen from the first batch. All classes are named with it.

model = RBFClassifier(n_centers=300, gamma=1.0, random_state=0)
seen, right, seconds = [], [], 0.0
for i in range(N_BATCHES):
    X, y = make_batch(BATCH)
    y ^= rng.random(BATCH) < 0.45
    started = time.perf_counter()
    model.partial_fit(X, y, classes=[0, 1])
    seconds += time.perf_counter() - started
    seen.append((i + 1) * BATCH)
    right.append(model.score(X_test, y_test))
print(f"{seen[-1]:,} rows in {seconds:.1f} s, compiling included")
print(f"{right[-1]:.2%} of the test rows classified right")

# %%
# Accuracy over the rows seen, and the predicted classes:

figure, (left, axis) = plt.subplots(1, 2, figsize=(9, 4))
left.plot(seen, [100 * value for value in right], "o-")
left.set(xlabel="rows seen", ylabel="accuracy on test rows, %")
left.xaxis.set_major_formatter("{x:,.0f}")
left.locator_params(axis="x", nbins=3)
some = slice(0, 3000)
axis.scatter(*X_test[some, :2].T, c=model.predict(X_test[some]), cmap="coolwarm", s=5)
axis.set(aspect="equal", xticks=[], yticks=[])
axis.spines[:].set_visible(False)
left.set_title("Many rows outweigh wrong labels")
axis.set_title("Test rows by predicted spiral")
plt.show()

# %%
# For a file that is larger than memory, ``fit`` takes a ``numpy.memmap``, see the guide.
