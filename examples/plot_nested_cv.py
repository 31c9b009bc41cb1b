"""
Nested cross-validation: the best score of a search is too good
===============================================================

A grid search compares many models on the same folds, and its best score is partly luck. Searching
anew inside each fold of an outer cross-validation estimates the score on new data.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score

from gpurbf import SVC

plt.style.use("gpurbf.figures")

# %%
# Ten trials with different folds: the plain score and the nested one.

X, y = load_iris(return_X_y=True)
grid = {"C": [1, 10, 100], "gamma": [0.01, 0.1]}
plain, nested = [], []
for trial in range(10):
    inner, outer = (KFold(n_splits=4, shuffle=True, random_state=trial) for _ in range(2))
    search = GridSearchCV(SVC(), grid, cv=outer).fit(X, y)
    plain.append(search.best_score_)
    search = GridSearchCV(SVC(), grid, cv=inner)
    nested.append(cross_val_score(search, X, y, cv=outer).mean())
difference = np.subtract(plain, nested)
print(f"plain {np.mean(plain):.4f}, nested {np.mean(nested):.4f}")
print(f"the plain score is higher by {difference.mean():.4f} ± {difference.std():.4f}")

# %%

figure, axis = plt.subplots(figsize=(7, 3.6))
axis.plot(plain, "o-", label="best score of the search")
axis.plot(nested, "o-", label="nested")
axis.set(xlabel="trial", ylabel="accuracy", title="The search's own score is a little too good")
axis.legend()
plt.show()
