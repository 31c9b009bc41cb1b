"""
Kernels: decision boundaries of four on iris
============================================

Which boundaries each kernel can draw, on two of the four features of scikit-learn's iris flowers.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_iris
from sklearn.inspection import DecisionBoundaryDisplay

from gpurbf import SVC

plt.style.use("gpurbf.figures")

iris = load_iris()
X, y = iris.data[:, 2:], iris.target
models = {
    "linear": SVC(kernel="linear", C=1.0),
    "rbf, gamma=0.7": SVC(gamma=0.7, C=1.0),
    "rbf, gamma=20": SVC(gamma=20, C=1.0),
    "poly, degree=3": SVC(kernel="poly", degree=3, gamma="auto", C=1.0),
}

# %%
# Each area has the color of the class that is predicted there.

colors = ["C0", "C1", "C2"]
figure, axes = plt.subplots(2, 2, figsize=(8, 6), sharex=True, sharey=True)
for axis, (name, model) in zip(axes.flat, models.items()):
    model.fit(X, y)
    DecisionBoundaryDisplay.from_estimator(
        model, X, response_method="predict", multiclass_colors=colors, alpha=0.5, ax=axis
    )
    axis.scatter(*X.T, c=[colors[label] for label in y], s=14, edgecolor="white", linewidth=0.4)
    axis.set_title(f"{name}: {len(model.support_)} support vectors")
for axis in axes[-1]:
    axis.set_xlabel(iris.feature_names[2])
for axis in axes[:, 0]:
    axis.set_ylabel(iris.feature_names[3])
plt.show()

# %%
# The narrow Gaussian draws islands around single flowers. It fits the training data best and needs
# the most support vectors, which is a sign of overfitting. (Their number can differ from
# scikit-learn's by a few, because equal flowers are solved as one here.)

for name, model in models.items():
    print(f"{name:15} accuracy {model.score(X, y):.4f}")
