"""SVC on a cluster: what it does with a pair does not depend on which classes are beside it."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

import gpurbf

da = pytest.importorskip("dask.array", reason="no Dask")
distributed = pytest.importorskip("distributed", reason="no Dask")

import gpurbf.dask as on_dask  # noqa: E402

X, y = (part.astype(np.uint8) for part in load_digits(return_X_y=True))


@pytest.fixture(scope="module")
def client():
    options = {"n_workers": 2, "threads_per_worker": 2, "processes": False}
    quiet = {"dashboard_address": ":0", "silence_logs": "ERROR"}
    with distributed.LocalCluster(**options, **quiet) as cluster:
        with distributed.Client(cluster) as client:
            yield client


def uneven(rng):
    # Some pairs of classes are beyond what is solved at once, others are not.
    return rng.integers(-9, 10, (4500, 6)), rng.choice(4, 4500, p=[0.55, 0.3, 0.1, 0.05])


def few_digits(rng):
    return X[:300], y[:300]


def repeated(rng):
    # A few hundred distinct samples, whose matrix fits a cache that one of all would not.
    data = rng.integers(0, 4, (2500, 4))
    return data, (data.sum(axis=1) + (rng.random(2500) < 0.2)) % 3


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (uneven, {"max_iter": 3000}),
        (repeated, {"cache_size": 5}),
        (few_digits, {"class_weight": "balanced"}),
        (few_digits, {"class_weight": {0: 3.0}}),
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_svc_solves_a_pair_as_among_all_samples(client, make, options, weighted):
    rng = np.random.default_rng(0)
    data = make(rng)
    n = len(data[0])
    weights = rng.choice([0, 0.5, 1, 3], n) if weighted else None
    local = gpurbf.SVC(**options).fit(*data, weights)
    given = (None if part is None else da.from_array(part, n // 2) for part in (*data, weights))
    model = on_dask.SVC(**options).fit(*given).to_local()
    for name in set(vars(local)) - {"_cache"}:
        np.testing.assert_equal(getattr(model, name), getattr(local, name), err_msg=name)
