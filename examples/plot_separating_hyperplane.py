"""
Maximum margin: the separating line and its support vectors
===========================================================

Of all lines between two classes, a linear support vector classifier takes the one that stays
farthest from both. Only the samples on the margin decide: its support vectors.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import make_blobs
from sklearn.inspection import DecisionBoundaryDisplay

from gpurbf import SVC

plt.style.use("gpurbf.figures")

X, y = make_blobs(n_samples=60, centers=2, cluster_std=1.1, random_state=6)

# %%
# With a large C errors are expensive. With a small C the margin is wider, and samples lie inside.

figure, axes = plt.subplots(1, 2, figsize=(9, 4), sharey=True)
for axis, C in zip(axes, (1000, 0.01)):
    model = SVC(kernel="linear", C=C).fit(X, y)
    DecisionBoundaryDisplay.from_estimator(
        model,
        X,
        plot_method="contour",
        response_method="decision_function",
        levels=[-1, 0, 1],
        linestyles=["--", "-", "--"],
        colors="0.3",
        ax=axis,
    )
    axis.scatter(*X.T, c=y, cmap="coolwarm", s=22)
    axis.scatter(*model.support_vectors_.T, s=90, facecolor="none", edgecolor="0.3")
    width = 2 / (model.coef_**2).sum() ** 0.5
    axis.set_title(f"C={C}: margin {width:.1f}, {len(model.support_)} support vectors")
    print(f"C={C}: width {width:.1f}, support vectors {model.support_}")
plt.show()
