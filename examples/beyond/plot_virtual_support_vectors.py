"""
Virtual support vectors: 99.1 % on MNIST in half a minute
=========================================================

Only the support vectors decide what a support vector classifier answers. So, instead of
teaching it that a digit moved by a pixel is the same digit by moving all of them, move the
support vectors only and train again: DeCoste and Schölkopf, "Training invariant support vector
machines", Machine Learning 46, 2002. With images of 28 × 28 pixels, moves by one pixel, they
report 0.68 % of errors; two pixels and deskewing bring them to 0.56 %.

The data are MNIST's 60,000 and 10,000 images, from the folder that the environment variable
``GPURBF_TEST_DATA`` names or from OpenML. Where neither is at hand, scikit-learn's small digits
stand in for them; the first line of the output says which it was.
"""

import os
import time

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from gpurbf import SVC
from gpurbf.datasets import load_mnist

plt.style.use("gpurbf.figures")

try:
    X_train, y_train, X_test, y_test = load_mnist(os.environ.get("GPURBF_TEST_DATA"))
    C, gamma = 10, 0.02 / 255**2
    print(f"MNIST: {len(X_train):,} images to train on, {len(X_test):,} to test on")
except FileNotFoundError:
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(
        X.astype(np.uint8), y, test_size=0.5, shuffle=False
    )
    C, gamma = 10, 0.001
    print("MNIST is not at hand: this is scikit-learn's digits, 8 × 8 pixels")

# %%
# First a plain classifier. Pixels stay the integers that they are, so kernel values are exact.


def fit_and_test(X, y, gamma):
    """A fitted classifier; prints how long it took and how many test images it gets wrong."""
    started = time.perf_counter()
    model = SVC(C=C, gamma=gamma, cache_size=1000).fit(X, y)
    seconds = time.perf_counter() - started
    wrong = (model.predict(X_test) != y_test).sum()
    print(
        f"{len(X):7,} samples, {len(model.support_):7,} support vectors: {seconds:5.1f} s, "
        f"{wrong} wrong, {1 - wrong / len(y_test):.2%} right"
    )
    return model


started = time.perf_counter()
model = fit_and_test(X_train, y_train, gamma)

# %%
# Then its support vectors and their four neighbours, a pixel up, down, left and right. What
# leaves the image is lost, what enters is blank. Among samples that are closer together,
# kernels can be a little narrower.


def moved(X, down, right):
    """Images, as rows of pixels, moved by so many pixels; blank where nothing was."""
    side = int(X.shape[1] ** 0.5)
    images = np.pad(X.reshape(-1, side, side), ((0, 0), (1, 1), (1, 1)))
    return images[:, 1 - down : 1 - down + side, 1 - right : 1 - right + side].reshape(X.shape)


moves = [(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)]
kept = model.support_
X_virtual = np.concatenate([moved(X_train[kept], *move) for move in moves])
y_virtual = np.tile(y_train[kept], len(moves))
better = fit_and_test(X_virtual, y_virtual, 1.5 * gamma)
print(f"all of it: {time.perf_counter() - started:.0f} s")

# %%
# What one support vector turns into:

side = int(X_train.shape[1] ** 0.5)
figure, axes = plt.subplots(1, 5, figsize=(8, 2))
for axis, move, title in zip(axes, moves, ("support vector", "up", "down", "left", "right")):
    axis.imshow(moved(X_train[kept[:1]], *move).reshape(side, side), cmap="gray_r")
    axis.set_axis_off()
    axis.set_title(title, loc="center", fontsize=10, fontweight="normal")

# %%
# And some of what is wrong now: the truth and the answer.

# sphinx_gallery_thumbnail_number = 2

answers = better.predict(X_test)
wrong = np.flatnonzero(answers != y_test)
figure, axes = plt.subplots(2, 10, figsize=(9, 2.4))
for axis in axes.flat:
    axis.set_axis_off()
for axis, i in zip(axes.flat, wrong):
    axis.imshow(X_test[i].reshape(side, side), cmap="gray_r")
    axis.set_title(f"{y_test[i]} → {answers[i]}", loc="center", fontsize=9, fontweight="normal")
plt.show()
