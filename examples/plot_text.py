"""
Text classification: sparse TF-IDF matrices
===========================================

TF-IDF turns a document into a long row of word weights, most of them zero. The classifier takes
the sparse matrix that scikit-learn's vectorizer returns.

The documents are made up here, so that this page needs no download: four topics with words
of their own, and many words that all topics share.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import ConfusionMatrixDisplay
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline

from gpurbf import SVC

plt.style.use("gpurbf.figures")

TOPICS = {
    "space": "orbit rocket launch moon telescope comet planet crew capsule gravity",
    "kitchen": "butter oven flour simmer onion knife dough pepper roast taste",
    "music": "chord violin tempo rehearsal choir melody drum concert tune score",
    "garden": "soil seed prune compost tulip spade frost hedge bloom root",
}
SHARED = "day year people time little good first long small place hand old night new work".split()
rng = np.random.default_rng(0)


def write(topic, n_words=25):
    """A document: one word in eight is of its topic, one in eight of any, the rest are shared."""
    own, every = TOPICS[topic].split(), " ".join(TOPICS.values()).split()
    source = rng.choice(3, n_words, p=[1 / 8, 1 / 8, 3 / 4])
    return " ".join(rng.choice((own, every, SHARED)[i]) for i in source)


labels = rng.choice(list(TOPICS), 1200)
documents = [write(label) for label in labels]
print(documents[0])

# %%
# Train on 800 documents, test on 400; the two kernels side by side.

texts, texts_test, y, y_test = train_test_split(documents, labels, test_size=400, random_state=0)
for kernel in ("linear", "rbf"):
    model = make_pipeline(TfidfVectorizer(), SVC(kernel=kernel)).fit(texts, y)
    folds = cross_val_score(model, texts, y, cv=3)
    test = model.score(texts_test, y_test)
    print(f"{kernel}: {folds.mean():.3f} in cross-validation, {test:.3f} on the test documents")

# %%
# Which topic is taken for which. A document without a word of its own topic cannot be told.

predicted = model.predict(texts_test)
figure, axis = plt.subplots(figsize=(5, 4.6))
ConfusionMatrixDisplay.from_predictions(y_test, predicted, colorbar=False, cmap="Blues", ax=axis)
axis.set_title(f"{(predicted == y_test).mean():.1%} of the documents get the right topic")
axis.spines[:].set_visible(False)
plt.show()
