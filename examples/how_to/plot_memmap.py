"""
Memory map: train on a file, 64 MB at a time
============================================

``fit`` and ``predict`` of ``RBFClassifier`` take a ``numpy.memmap``. They read it part by part,
within the memory that ``config_context`` allows, so the file may be larger than memory. Here
it is small: scikit-learn's digits, each with some noise, forty times.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from gpurbf import RBFClassifier, config_context

plt.style.use("gpurbf.figures")

X, y = load_digits(return_X_y=True)
X_train, y_train, X_test, y_test = X[:1200], y[:1200], X[1200:], y[1200:]

# %%
# The file is written block by block: uint8, one sample after the other.

folder = tempfile.TemporaryDirectory()
rng = np.random.default_rng(0)
blocks = 40
stored = np.memmap(
    Path(folder.name, "pixels"), np.uint8, "w+", shape=(blocks * len(X_train), X.shape[1])
)
for block in np.split(stored, blocks):
    block[:] = np.clip(X_train + rng.integers(-2, 3, X_train.shape), 0, 16)
labels = np.tile(y_train, blocks)

# %%
# Then it is used like an array.

with config_context(memory=64):  # megabytes
    model = RBFClassifier(n_centers=500, random_state=0).fit(stored, labels)
print(f"trained on {len(stored):,} rows, accuracy {model.score(X_test, y_test):.1%}")

figure, axes = plt.subplots(1, 8, figsize=(9, 1.6))
for axis, image in zip(axes, stored[: len(X_train) * 8 : len(X_train)]):
    axis.imshow(image.reshape(8, 8), cmap="gray_r")
    axis.set_axis_off()
figure.suptitle("The same digit in the first eight blocks of the file")
plt.show()

# %%
# Close the file before its folder is removed.

del stored, block, image
folder.cleanup()
