"""
PCA before an SVC: eigendigits
==============================

Images are often projected on their principal components before they are classified. For faces
these components are called eigenfaces. This page uses digits, which need no download.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import Pipeline

from gpurbf import SVC

plt.style.use("gpurbf.figures")

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, random_state=0)
pipeline = Pipeline(
    [("pca", PCA(whiten=True, svd_solver="full")), ("svc", SVC(class_weight="balanced"))]
)
grid = {"pca__n_components": [5, 10, 20, 30], "svc__C": [1, 10]}
search = GridSearchCV(pipeline, grid, cv=3).fit(X_train, y_train)
print(search.best_params_)
print(f"cross-validation {search.best_score_:.3f}, test {search.score(X_test, y_test):.3f}")

# %%
# The first components, as images:

components = search.best_estimator_["pca"].components_
figure, axes = plt.subplots(1, 8, figsize=(8, 1.5))
for i, (axis, component) in enumerate(zip(axes, components)):
    axis.imshow(component.reshape(8, 8), cmap="RdBu")
    axis.set_axis_off()
    axis.set_title(i + 1, loc="center")

# %%
# How many are needed:

# sphinx_gallery_thumbnail_number = 2

scores = search.cv_results_["mean_test_score"].reshape(4, 2)
figure, axis = plt.subplots(figsize=(7, 3.6))
for j, C in enumerate(grid["svc__C"]):
    axis.plot(grid["pca__n_components"], scores[:, j], "o-", label=f"C={C}")
axis.set(
    xlabel="components", ylabel="accuracy in cross-validation", title="Twenty components suffice"
)
axis.legend()
plt.show()
print(scores.round(3))
