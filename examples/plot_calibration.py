"""
Calibrated probabilities: CalibratedClassifierCV
================================================

A support vector classifier returns distances to a boundary, not probabilities.
``CalibratedClassifierCV`` learns on held-out samples which probability belongs to a distance. It
replaces ``probability=True``, which scikit-learn has deprecated.
"""

import matplotlib.pyplot as plt
from sklearn.calibration import CalibratedClassifierCV, CalibrationDisplay
from sklearn.datasets import make_classification
from sklearn.metrics import brier_score_loss
from sklearn.model_selection import train_test_split

from gpurbf import SVC

plt.style.use("gpurbf.figures")

X, y = make_classification(
    n_samples=6000, n_features=20, n_informative=6, flip_y=0.1, class_sep=0.6, random_state=0
)
X_train, X_test, y_train, y_test = train_test_split(X, y, train_size=1500, random_state=0)

# %%
# Distances that are only rescaled to 0 to 1 are not probabilities. One calibration fits a sigmoid,
# the other a step function ("isotonic").

model = SVC().fit(X_train, y_train)
distance = model.decision_function(X_test)
probability = {
    "range of the distances": (distance - distance.min()) / (distance.max() - distance.min())
}
for method in ("sigmoid", "isotonic"):
    calibrated = CalibratedClassifierCV(SVC(), method=method, ensemble=False, cv=3)
    probability[method] = calibrated.fit(X_train, y_train).predict_proba(X_test)[:, 1]

# %%
# On the diagonal, seven out of ten samples called "70 %" are of the class. The Brier score is
# the mean squared error of the probabilities: smaller is better.

figure, axis = plt.subplots(figsize=(6, 5))
for name, values in probability.items():
    score = brier_score_loss(y_test, values)
    print(f"{name:23} Brier score {score:.3f}")
    CalibrationDisplay.from_predictions(
        y_test, values, n_bins=10, name=f"{name}, Brier {score:.3f}", ax=axis
    )
axis.set_title("Calibrated outputs mean what they say")
plt.show()
