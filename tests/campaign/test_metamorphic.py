"""Changes that leave the problem as it is leave the answer as it is, in bits.

Classes are renamed, and circumstances changed, in test_freedom.py; streams are cut there and in
test_differential.py.
"""

import numpy as np
from callers import outputs
from hypothesis import strategies as st

from gpurbf import FSVC, SVC, RBFClassifier, RBFLayer
from tests.campaign.cases import AROUND, EXACT, storages, tables
from tests.campaign.rounds import campaign

# Rows beyond the training data, which are predicted.
NEW = 60
# Nothing is searched, and every center votes.
PLAIN = {"selection": "pass", "eval_radius": None, "solver": "one-hot"}
MODELS = {
    "RBFLayer": RBFLayer(30, gamma=0.1, random_state=0),
    "RBFClassifier": RBFClassifier(40, random_state=0),
    "FSVC": FSVC(3.0, random_state=0, **PLAIN),
    # The outputs of its pairs: scores of classes are sums of their signs.
    "SVC": SVC(decision_function_shape="ovo"),
}


@campaign(
    "metamorphic",
    40,
    # On a quantization no BLAS adds anything up that an answer depends on: bits are promised there.
    table=tables(values=EXACT, N=100, k=4),
    storage=storages(orders=("C", "F", "strided", "reversed")),
    first=AROUND,
    second=AROUND,
    name=st.sampled_from(sorted(MODELS)),
    cut=st.integers(1, NEW - 1),
)
def test_order_number_and_storage_of_rows_change_no_answer(
    table, storage, first, second, name, cut
):
    X, y = table.make(NEW)
    X, new = storage.of(X[:-NEW]), X[-NEW:].astype(storage.dtype)
    model = MODELS[name].set_params(backend=first.backend).fit(X, y)
    with first():
        whole = outputs(model, new)
    with second():
        order = table.rng().permutation(NEW)
        np.testing.assert_array_equal(outputs(model, new[order]), whole[order])
        parts = [outputs(model, storage.of(part)) for part in (new[:cut], new[cut:])]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
        np.testing.assert_array_equal(outputs(model, new[cut : cut + 1]), whole[cut : cut + 1])
        if name != "RBFLayer":
            labels = model.predict(new)
            np.testing.assert_array_equal(model.predict(new[order]), labels[order])


@campaign(
    "metamorphic",
    25,
    table=tables(values=("real", "few distinct"), N=100, k=4),
    around=AROUND,
    power=st.integers(-12, 12),
)
def test_another_unit_of_the_data_changes_no_answer(table, around, power):
    """A power of two changes no digit of anything; SVC, which ends within tol: test_freedom.py.

    Parameters leave nothing to be drawn by the values of the samples.
    """
    X, y = table.make(NEW)
    # Where data are not quantized a BLAS may add up a row as its place in memory asks.
    options, answers = {"backend": "numba", "precision": "float64"}, []
    for unit in (1.0, 2.0**power):
        A = X * unit
        rbf = RBFClassifier(centers=A[: len(A) // 3 + 1], gamma=0.3 / unit**2, **options)
        fsvc = FSVC(2.0 * unit, shuffle=False, **PLAIN, **options)
        with around():
            fits = (model.fit(A[:-NEW], y) for model in (rbf.set_params(alpha=1e-3), fsvc))
            answers.append([model.decision_function(A[-NEW:]) for model in fits])
    np.testing.assert_array_equal(*answers)
