"""
Grid search over a pipeline
===========================

The scaler, the kernel and its parameters are searched together. The best model is then tested on
samples that the search did not use.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.metrics import classification_report
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from gpurbf import SVC

plt.style.use("gpurbf.figures")

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, train_size=600, random_state=0)
pipeline = Pipeline([("scale", StandardScaler()), ("svc", SVC())])
grid = [
    {"scale": [StandardScaler(), "passthrough"], "svc__C": [0.1, 1, 10], "svc__kernel": ["linear"]},
    {
        "scale": [StandardScaler(), "passthrough"],
        "svc__C": [0.1, 1, 10],
        "svc__gamma": ["scale", 1e-3],
    },
]
search = GridSearchCV(pipeline, grid, cv=3).fit(X_train, y_train)

# %%
# The candidates from best to worst. Pixels are better not scaled: with equal variance, the border
# of an image counts as much as its middle.

results = search.cv_results_
order = results["mean_test_score"].argsort(kind="stable")[::-1]
for i in order:
    print(f"{results['mean_test_score'][i]:.3f}  {results['params'][i]}")

# %%
# The best one, refitted on all 600, on digits that it has not seen:

print(classification_report(y_test, search.predict(X_test)))

# %%
# Each candidate with the spread over its folds:

figure, axis = plt.subplots(figsize=(8, 4))
for scaled, color in ((True, "C1"), (False, "C0")):
    some = [
        k for k, i in enumerate(order) if (results["params"][i]["scale"] != "passthrough") == scaled
    ]
    axis.errorbar(
        some,
        results["mean_test_score"][order[some]],
        results["std_test_score"][order[some]],
        fmt="o",
        color=color,
        label="scaled" if scaled else "as they are",
    )
axis.set(xlabel="candidate, best first", ylabel="accuracy in cross-validation", ylim=(0.75, 1))
axis.set_xticks(range(0, len(order), 3))
axis.set_title("Pixels are better left as they are")
axis.legend()
plt.show()
