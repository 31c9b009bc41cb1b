"""
Profile: where the time of a fit goes
=====================================

``profile`` fits a clone of an estimator, lets it predict, and divides the time into six stages.
It compares each with what this machine was measured to reach, so you see what could be faster and
what could not. The same from the command line: ``python -m gpurbf profile``.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits

from gpurbf import RBFClassifier, profile

plt.style.use("gpurbf.figures")

X, y = load_digits(return_X_y=True)
found = profile(RBFClassifier(n_centers=800, random_state=0), X, y)

# %%
# The answer in words, then the table of the training:

print(found.bottleneck)
table = found.to_frame()
print(table[table.phase == "training"][["stage", "part", "seconds"]].round(4).to_string())

# %%
# And as a picture. Light bars are the time, dark bars what it would be at the machine's ceiling.

found.plot()
plt.show()
