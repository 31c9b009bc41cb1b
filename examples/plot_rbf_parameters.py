"""
C and gamma: one map of the scores
==================================

``gamma`` says how far the influence of a sample reaches, ``C`` how much an error costs. They have
to be chosen together: good pairs lie on a diagonal.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine
from sklearn.model_selection import GridSearchCV, StratifiedShuffleSplit
from sklearn.preprocessing import StandardScaler

from gpurbf import SVC

plt.style.use("gpurbf.figures")

# %%
# Every pair of a logarithmic grid, each fitted five times on another four fifths of the wines.

X, y = load_wine(return_X_y=True)
X = StandardScaler().fit_transform(X)
C_range, gamma_range = np.logspace(-2, 5, 8), np.logspace(-5, 2, 8)
search = GridSearchCV(
    SVC(),
    {"C": C_range, "gamma": gamma_range},
    cv=StratifiedShuffleSplit(n_splits=5, test_size=0.2, random_state=42),
)
search.fit(X, y)
C, gamma = search.best_params_["C"], search.best_params_["gamma"]
print(f"best: C={C:g}, gamma={gamma:g}, accuracy {search.best_score_:.3f}")

# %%
# The map. Its colors show accuracies from 0.6 on, where the good pairs are.

scores = search.cv_results_["mean_test_score"].reshape(len(C_range), len(gamma_range))
figure, axis = plt.subplots(figsize=(6, 5))
picture = axis.imshow(scores, vmin=0.6, vmax=1.0)
axis.set_xticks(range(len(gamma_range)), [f"{gamma:.0e}" for gamma in gamma_range], rotation=45)
axis.set_yticks(range(len(C_range)), [f"{C:.0e}" for C in C_range])
axis.set(xlabel="gamma", ylabel="C", title="Good pairs of C and gamma lie on a diagonal")
axis.spines[:].set_visible(False)
axis.tick_params(length=0)
figure.colorbar(picture, label="accuracy in cross-validation")
plt.show()

# %%
# The same in numbers, a row for each C:

print(np.array2string(scores, precision=3, suppress_small=True))
