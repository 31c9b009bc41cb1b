"""
From ten centers to all samples
===============================

The more centers an RBF network has, the more it can say; the ridge keeps it from saying too
much. With every sample a center it is kernel ridge regression on classes.

For scikit-learn's digits that is a matter of a moment, and so it is for some ten thousand
centers on any data. Beyond, this closed form holds a square matrix of the centers, 8 bytes an
entry: all 60,000 of MNIST would take 29 GB.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from gpurbf import RBFClassifier

plt.style.use("gpurbf.figures")

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.4, random_state=0)

sizes = [10, 30, 100, 300, len(X_train)]
right = []
for n_centers in sizes:
    centers = X_train if n_centers == len(X_train) else "stratified"
    model = RBFClassifier(n_centers, centers=centers, alpha=1e-5, random_state=0)
    right.append(100 * model.fit(X_train, y_train).score(X_test, y_test))
    print(f"{n_centers:5} centers: {right[-1]:.2f} % of the test images right")

# %%

figure, axis = plt.subplots(figsize=(7, 3.6))
axis.semilogx(sizes, right, "o-")
axis.set_xticks(sizes, [*sizes[:-1], f"all {sizes[-1]}"])
axis.minorticks_off()
axis.set(xlabel="centers", ylabel="test images, % right")
axis.set_title("The last step, to all samples, still helps a little")
plt.show()
