"""
Classification: handwritten digits
==================================

A support vector classifier is trained on half of scikit-learn's 8 × 8 digits and tested on the
other half.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.metrics import ConfusionMatrixDisplay, classification_report
from sklearn.model_selection import train_test_split

from gpurbf import SVC

plt.style.use("gpurbf.figures")

# %%
# The data: 1,797 images, 64 grey levels from 0 to 16 in a row.

X, y = load_digits(return_X_y=True)
figure, axes = plt.subplots(1, 8, figsize=(8, 1.6))
for axis, image, label in zip(axes, X, y):
    axis.imshow(image.reshape(8, 8), cmap="gray_r")
    axis.set_axis_off()
    axis.set_title(label, loc="center")

# %%
# The first half trains, the second half tests.

X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, shuffle=False)
model = SVC(gamma=0.001).fit(X_train, y_train)
predicted = model.predict(X_test)
print(classification_report(y_test, predicted))

# %%
# What is taken for what:

# sphinx_gallery_thumbnail_number = 2

figure, axis = plt.subplots(figsize=(5, 5))
ConfusionMatrixDisplay.from_predictions(y_test, predicted, colorbar=False, cmap="Blues", ax=axis)
wrong = (predicted != y_test).sum()
axis.set_title(f"{wrong} of {len(y_test)} are wrong")
axis.spines[:].set_visible(False)
plt.show()
