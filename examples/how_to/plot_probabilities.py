"""
Probabilities: calibrated from training data alone
==================================================

``RBFClassifier.predict_proba`` is a softmax of the outputs, divided by a temperature. ``fit`` finds
the temperature from leave-one-out outputs, so no samples have to be set aside. Among digits that
get a probability of 90 %, about 90 % should be classified right.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss

from gpurbf import RBFClassifier

plt.style.use("gpurbf.figures")

X, y = load_digits(return_X_y=True)
X = np.clip(X + np.random.default_rng(0).normal(0, 6, X.shape), 0, 16)  # to make it hard
X_train, y_train, X_test, y_test = X[:900], y[:900], X[900:], y[900:]

model = RBFClassifier(n_centers=300, alpha=1e-2, random_state=0).fit(X_train, y_train)
probabilities = model.predict_proba(X_test)
print(f"accuracy {model.score(X_test, y_test):.1%}")
print(f"log loss {log_loss(y_test, probabilities):.2f}, of a guess {np.log(10):.2f}")

# %%
# Test samples in groups by the probability of their predicted class:

sure, hit = probabilities.max(axis=1), model.predict(X_test) == y_test
groups = np.array_split(np.argsort(sure), 8)
figure, axis = plt.subplots(figsize=(5, 4.5))
axis.plot([0.2, 1], [0.2, 1], "--", color="gray")
axis.plot([sure[group].mean() for group in groups], [hit[group].mean() for group in groups], "o-")
axis.set(xlabel="probability of the predicted class", ylabel="accuracy")
axis.set_title("Near the diagonal: well calibrated")
plt.show()
