"""
Sample weights: some samples weigh more
=======================================

``sample_weight`` multiplies what an error on a sample costs. Here ten misclassified samples get
thirty times the weight, and the boundary moves to classify them correctly.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_moons
from sklearn.inspection import DecisionBoundaryDisplay

from gpurbf import SVC

plt.style.use("gpurbf.figures")

X, y = make_moons(n_samples=120, noise=0.35, random_state=3)
wrong = SVC(gamma=1).fit(X, y).predict(X) != y
heavy = np.flatnonzero(wrong)[:10]
weights = np.ones(len(X))
weights[heavy] = 30

# %%
# The size of a point is its weight.

figure, axes = plt.subplots(1, 2, figsize=(9, 4), sharey=True)
for axis, weight, title in zip(axes, (np.ones(len(X)), weights), ("equal", "ten count 30 times")):
    model = SVC(gamma=1).fit(X, y, sample_weight=weight)
    DecisionBoundaryDisplay.from_estimator(
        model, X, response_method="decision_function", cmap="coolwarm", alpha=0.5, ax=axis
    )
    axis.scatter(*X.T, c=y, s=14 * weight**0.6, cmap="coolwarm", edgecolor="white", linewidth=0.5)
    right = model.predict(X) == y
    axis.set_title(f"weights: {title}")
    print(f"{title}: accuracy {right.mean():.3f}, {right[heavy].sum()} of the ten correct")
plt.show()
