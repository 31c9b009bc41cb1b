"""
RBFLayer: a hidden layer before LogisticRegression
==================================================

``RBFLayer`` turns samples into activations, their nearness to some centers. Any linear classifier
of scikit-learn can follow it. ``LogisticRegression`` draws a straight line through two moons; after
an ``RBFLayer`` the line bends.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import make_moons
from sklearn.inspection import DecisionBoundaryDisplay
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from gpurbf import RBFLayer

plt.style.use("gpurbf.figures")

X, y = make_moons(600, noise=0.2, random_state=0)
X_train, y_train, X_test, y_test = X[:400], y[:400], X[400:], y[400:]
models = {
    "LogisticRegression": LogisticRegression(),
    "RBFLayer, LogisticRegression": make_pipeline(
        RBFLayer(n_centers=40, random_state=0), LogisticRegression(C=100)
    ),
}

figure, axes = plt.subplots(1, 2, figsize=(9, 4))
for axis, (name, model) in zip(axes, models.items()):
    model.fit(X_train, y_train)
    print(f"{name}: accuracy {model.score(X_test, y_test):.1%}")
    DecisionBoundaryDisplay.from_estimator(
        model, X, response_method="predict_proba", cmap="coolwarm", alpha=0.7, ax=axis
    )
    axis.scatter(*X_test.T, c=y_test, cmap="coolwarm", s=12, edgecolors="white", linewidths=0.5)
    axis.set(xticks=[], yticks=[], title=name)
plt.show()
