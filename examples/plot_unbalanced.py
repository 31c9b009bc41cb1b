"""
Unbalanced classes: class_weight moves the boundary
===================================================

With a thousand samples of one class and a hundred of the other, the unweighted boundary
misses 41 % of the rare class. A weight makes errors on the rare class cost more.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import make_blobs
from sklearn.inspection import DecisionBoundaryDisplay
from sklearn.metrics import recall_score

from gpurbf import SVC

plt.style.use("gpurbf.figures")

X, y = make_blobs([1000, 100], centers=[(0, 0), (2, 2)], cluster_std=[1.5, 0.5], random_state=0)
figure, axis = plt.subplots(figsize=(7, 4.5))
axis.scatter(*X.T, c=y, cmap="coolwarm", s=12, alpha=0.6)
for weight, style in ((None, "-"), ({1: 10}, "--"), ("balanced", ":")):
    model = SVC(kernel="linear", class_weight=weight).fit(X, y)
    common, rare = recall_score(y, model.predict(X), average=None)
    print(f"class_weight={weight}: {common:.3f} of the common class, {rare:.3f} of the rare one")
    DecisionBoundaryDisplay.from_estimator(
        model,
        X,
        plot_method="contour",
        response_method="decision_function",
        levels=[0],
        linestyles=style,
        colors="0.2",
        ax=axis,
    )
    axis.plot([], [], style, color="0.2", label=f"class_weight={weight}")
axis.legend()
axis.set_title("With weights the rare class is found")
plt.show()
