"""
Number of centers: from ten to all samples
==========================================

More centers make an RBF network more accurate; the ridge penalty keeps it from overfitting. If
every sample is a center, this is kernel ridge regression on the classes.

The closed form needs a square matrix of the centers and its factor, 12 bytes an entry: 43 GB for
all 60,000 images of MNIST. ``solver="cg"``, the default above 10,000 centers, uses conjugate
gradients. It stores one triangle of the kernel matrix in 16 bits.

The data are MNIST's images, from the folder that the environment variable ``GPURBF_TEST_DATA``
names, or from OpenML. If neither is there, scikit-learn's small digits are used instead; the
first line of the output says which it was.
"""

import os

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from gpurbf import RBFClassifier, config_context
from gpurbf.datasets import load_mnist

plt.style.use("gpurbf.figures")

try:
    X_train, y_train, X_test, y_test = load_mnist(os.environ.get("GPURBF_TEST_DATA"))
    sizes, alpha = [100, 1000, 4000, "all"], 1e-6
    print(f"MNIST: {len(X_train):,} images to train on, {len(X_test):,} to test on")
except FileNotFoundError:
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.4, random_state=0)
    sizes, alpha = [10, 30, 100, 300, "all"], 1e-5
    print("MNIST is not at hand: this is scikit-learn's digits, 8 × 8 pixels")

gamma = 2 / (X_train.shape[1] * X_train.var())
right, drawn = [], []
for n_centers in sizes:
    model = RBFClassifier(n_centers, gamma=gamma, alpha=alpha, random_state=0)
    if n_centers == "all":
        model.set_params(solver="cg")
    # Room for the kernel of all samples: where there is less, it is computed in every iteration.
    with config_context(memory=5000):
        model.fit(X_train, y_train)
    right.append(100 * model.score(X_test, y_test))
    drawn.append(len(model.centers_))
    print(f"{n_centers:>5} centers: {right[-1]:.2f} % of the test images classified right")

# %%
# What was solved, how the kernel was stored, and when it ended:

print(model.solver_info_)

figure, axis = plt.subplots(figsize=(7, 3.6))
axis.semilogx(drawn, right, "o-")
axis.set_xticks(drawn, [*sizes[:-1], f"all {drawn[-1]:,}"])
axis.minorticks_off()
axis.set(xlabel="centers", ylabel="accuracy on test images, %")
axis.set_title("The last step, to all samples, still helps a little")
plt.show()
