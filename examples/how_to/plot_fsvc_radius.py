"""
FSVC: one radius trades accuracy for centers
============================================

``FSVC`` goes through the data once. A sample becomes a center if the activities of the centers so
far sum to less than 1 there and do not classify it clearly. Very large radii give few centers, and
so fast predictions; very small ones make every sample a center.
By default the radius is searched on a fifth of the training data.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits

from gpurbf import FSVC

plt.style.use("gpurbf.figures")

X, y = load_digits(return_X_y=True)
X_train, y_train, X_test, y_test = X[:1200], y[:1200], X[1200:], y[1200:]

model = FSVC(random_state=0).fit(X_train, y_train)
print(f"{len(model.centers_)} centers, accuracy {model.score(X_test, y_test):.1%}")

# %%
# What was tried, on the samples set aside:

model.plot_radius_path()

# %%
# A limit on the number of centers is a limit on the time of a prediction.

for max_centers in (50, 100, 200):
    small = FSVC(max_centers=max_centers, random_state=0).fit(X_train, y_train)
    print(f"{len(small.centers_)} centers, accuracy {small.score(X_test, y_test):.1%}")
plt.show()
