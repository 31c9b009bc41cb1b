"""
RBFClassifierCV: penalty and width without a grid search
========================================================

``RBFClassifierCV`` compares penalties and kernel widths by their leave-one-out error. Ridge
regression has this error in closed form, so nothing is trained again for a fold or a penalty.
``GridSearchCV`` over the same values fits 5 × 3 × 20 models; here there are three.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits

from gpurbf import RBFClassifierCV

plt.style.use("gpurbf.figures")

X, y = load_digits(return_X_y=True)
X_train, y_train, X_test, y_test = X[:1200], y[:1200], X[1200:], y[1200:]

model = RBFClassifierCV(n_centers=400, gammas=[0.5, 2, 8], random_state=0)
model.fit(X_train, y_train)
print(f"alpha {model.alpha_:.2g}, gamma {model.gamma_:.2g}")
print(f"accuracy {model.score(X_test, y_test):.1%}")

# %%
# The score of each penalty, one line for each width. ``gammas`` are multiples of ``"scale"``.

model.plot_path()
plt.show()
