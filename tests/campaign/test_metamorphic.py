"""Changes that leave the problem as it is leave the answer as it is: in bits, or within a bound."""

import functools
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from gpurbf import FSVC, SVC, RBFClassifier, RBFLayer
from tests.campaign.cases import AROUND, EXACT, Around, storages, tables
from tests.campaign.rounds import campaign

# Rows beyond the training data, which are predicted.
NEW = 60
# On a quantization no BLAS adds anything up that an answer depends on: bits are promised there.
QUANTIZATIONS = tables(values=EXACT, N=100, k=4)
# Nothing is searched, and every center votes.
PLAIN = functools.partial(
    FSVC, radius=3.0, selection="pass", eval_radius=None, solver="one-hot", random_state=0
)
CLASSIFIERS = {
    "RBFClassifier": functools.partial(RBFClassifier, 40, random_state=0),
    "FSVC": PLAIN,
    # The outputs of its pairs: scores of classes jump where one of those, known to tol, is near 0.
    "SVC": functools.partial(SVC, decision_function_shape="ovo"),
}
NAMES = st.sampled_from(sorted(CLASSIFIERS))


def close(some, others, relative=1e-6):
    """Within a share of the largest number."""
    np.testing.assert_allclose(some, others, rtol=0, atol=relative * (1 + np.abs(others).max()))


@campaign(
    "metamorphic",
    40,
    table=QUANTIZATIONS,
    storage=storages(orders=("C", "F", "strided", "reversed")),
    first=AROUND,
    second=AROUND,
    name=st.sampled_from([*sorted(CLASSIFIERS), "RBFLayer"]),
    cut=st.integers(1, NEW - 1),
)
def test_order_number_and_storage_of_rows_change_no_answer(
    table, storage, first, second, name, cut
):
    X, y = table.make(NEW)
    X, new = storage.of(X[:-NEW]), X[-NEW:].astype(storage.dtype)
    make = CLASSIFIERS.get(name, lambda **o: RBFLayer(30, gamma=0.1, random_state=0, **o))
    model = make(backend=first.backend).fit(X, y)
    answer = model.transform if name == "RBFLayer" else model.decision_function
    with first():
        whole = answer(new)
    with second():
        order = table.rng().permutation(NEW)
        np.testing.assert_array_equal(answer(new[order]), whole[order])
        parts = [answer(storage.of(new[:cut])), answer(storage.of(new[cut:]))]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
        np.testing.assert_array_equal(answer(new[cut : cut + 1]), whole[cut : cut + 1])
        if name != "RBFLayer":
            labels = model.predict(new)
            np.testing.assert_array_equal(model.predict(new[order]), labels[order])


@campaign(
    "metamorphic", 25, table=tables(N=100, k=4), storage=storages(), around=AROUND, name=NAMES
)
def test_renaming_the_classes_changes_no_answer(table, storage, around, name):
    X, y = table.make(NEW)
    X, new = storage.of(X[:-NEW]), storage.of(X[-NEW:])
    names = np.array(["ant", "bee", "cow", "dog", "eel"])
    backend = "auto" if storage.order == "sparse" else around.backend
    with around():
        plain = CLASSIFIERS[name](backend=backend).fit(X, y)
        named = CLASSIFIERS[name](backend=backend).fit(X, names[y])
        np.testing.assert_array_equal(plain.decision_function(new), named.decision_function(new))
        assert (names[plain.predict(new)] == named.predict(new)).all()


def fixed(name, X, unit=1.0):
    """Parameters that leave nothing to be drawn by the values of the samples."""
    if name == "FSVC":
        return {"radius": 2.0 * unit, "shuffle": False}
    more = {"centers": X[: len(X) // 3 + 1], "alpha": 1e-3} if name == "RBFClassifier" else {}
    return {"gamma": 0.3 / unit**2} | more


@campaign(
    "metamorphic",
    25,
    table=tables(values=("real", "few distinct"), N=100, k=4),
    around=AROUND,
    power=st.integers(-12, 12),
    name=NAMES,
)
def test_another_unit_of_the_data_changes_no_answer(table, around, power, name):
    """A power of two changes no digit of anything: everything is the same in bits.

    But for SVC, whose samples come in an order made of their values, and which ends within tol.
    """
    X, y = table.make(NEW)
    # Where data are not quantized a BLAS may add up a row as its place in memory asks.
    with around._replace(backend="numba")():
        a, b = (
            CLASSIFIERS[name](backend="numba", precision="float64", **fixed(name, X * s, s))
            .fit(X[:-NEW] * s, y)
            .decision_function(X[-NEW:] * s)
            for s in (1.0, 2.0**power)
        )
    close(a, b, 0.05 if name == "SVC" else 0.0)


@campaign(
    "metamorphic",
    8,
    table=tables(values=EXACT, N=300, n=12, k=4),
    around=AROUND,
    cuts=st.lists(st.integers(1, 299), max_size=3),
)
def test_cutting_a_stream_into_batches_changes_no_center_and_no_answer(table, around, cuts):
    X, y = table.make(NEW)
    X, new = X[:-NEW], X[-NEW:]
    edges = [0, *sorted({cut for cut in cuts if cut < table.N}), table.N]
    whole, parts = (PLAIN(backend=around.backend) for _ in range(2))
    with around():
        whole.partial_fit(X, y, classes=range(table.k))
        for a, b in pairwise(edges):
            parts.partial_fit(X[a:b], y[a:b], classes=range(table.k))
        np.testing.assert_array_equal(whole.center_indices_, parts.center_indices_)
        np.testing.assert_array_equal(whole.decision_function(new), parts.decision_function(new))


@campaign("metamorphic", 12, table=tables(values=EXACT, N=300, n=12, k=3), second=AROUND)
def test_training_does_not_depend_on_the_circumstances(table, second):
    """A backend with other tiles, threads and memory trains the same model, in bits."""
    X, y = table.make()
    models = []
    for around in (Around(second.backend, second.kernel), second):
        with around():
            models.append(
                [
                    RBFClassifier(60, random_state=0, backend=second.backend).fit(X, y),
                    PLAIN(backend=second.backend).fit(X, y),
                ]
            )
    for one, other in zip(*models):
        np.testing.assert_array_equal(one.centers_, other.centers_)
        close(one.decision_function(X), other.decision_function(X), 1e-4)
