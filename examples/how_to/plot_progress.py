"""
Progress bars and early stopping: scikit-learn's callbacks
==========================================================

Classifiers take scikit-learn's callbacks (version 1.9 or newer). ``ProgressBar`` shows how far a
fit is; it needs the package rich. A callback of your own hears of each task that ends, and may end
the fit by returning True.
"""

import matplotlib.pyplot as plt
from sklearn.callback import ProgressBar
from sklearn.datasets import load_digits

from gpurbf import SVC, RBFClassifier
from gpurbf.solvers import CG

plt.style.use("gpurbf.figures")

X, y = load_digits(return_X_y=True)
X_train, y_train, X_test, y_test = X[:1200], y[:1200], X[1200:], y[1200:]

SVC(gamma=0.001).set_callbacks(ProgressBar()).fit(X_train, y_train)

# %%
# A callback that ends a fit after some tasks. The tasks of conjugate gradients are its iterations.


class StopAfter:
    """Ends a fit after this many tasks."""

    def __init__(self, n_tasks):
        self.n_tasks = n_tasks

    def setup(self, estimator, context):
        self.ended = 0

    def on_fit_task_begin(self, estimator, context):
        pass

    def on_fit_task_end(self, estimator, context):
        self.ended += 1
        return self.ended >= self.n_tasks

    def teardown(self, estimator, context):
        pass


# %%
# With all samples as centers some iterations are enough. (The preconditioner is made of few centers
# here, so that there is something to see.)

slow = CG(preconditioner=30, tol=1e-4)
limits, accuracy = [1, 2, 3, 5, 8, 13, 21, 34], []
for limit in limits:
    model = RBFClassifier("all", solver=slow, random_state=0).set_callbacks(StopAfter(limit))
    accuracy.append(100 * model.fit(X_train, y_train).score(X_test, y_test))
print(f"after {limits[-1]} iterations: accuracy {accuracy[-1]:.1f} %")

figure, axis = plt.subplots(figsize=(6, 3.6))
axis.plot(limits, accuracy, "o-")
axis.set(xlabel="iterations", ylabel="test images, accuracy in %")
axis.set_title("A model that is stopped early can be used")
plt.show()
