"""On a cluster: the local models to the bit, blocks that stay, workers that may end."""

import os
import signal
import warnings
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import joblib
import numpy as np
import pytest
import scipy.sparse as sp
from callers import Recorder
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV

import gpurbf
from gpurbf import config_context, get_config
from gpurbf.runtime.threads import thread_limit
from tests.solvers.test_fixed_point import GRID, xor

dask = pytest.importorskip("dask", reason="no Dask")
da = pytest.importorskip("dask.array", reason="no Dask")
distributed = pytest.importorskip("distributed", reason="no Dask")

import gpurbf.dask as on_dask  # noqa: E402
from gpurbf.dask.graph import Tasks  # noqa: E402

X, y = (part.astype(np.uint8) for part in load_digits(return_X_y=True))
N = len(X)
RNG = np.random.default_rng(0)
WEIGHTS = RNG.random(N) * RNG.integers(0, 4, N)  # a quarter of them zero
QUIET = {"dashboard_address": ":0", "silence_logs": "ERROR"}
RBF = {"n_centers": 260, "random_state": 0}
OPTIONS = {"RBFClassifier": RBF, "RBFLayer": RBF, "SVC": {}}


@pytest.fixture(scope="module")
def client():
    options = {"n_workers": 2, "threads_per_worker": 2, "processes": False}
    with distributed.LocalCluster(**options, **QUIET) as cluster:
        with distributed.Client(cluster) as client:
            yield client


def cut(*chunks, data=(X, y)):
    parts = (part for part in data if part is not None)
    return [da.from_array(part, chunks=(chunks, *part.shape[1:])) for part in parts]


def fitted(name, options, *chunks, data=(X, y)):
    """Fitted on the cluster, to data that are cut in chunks, and locally."""
    model = getattr(on_dask, name)(**options).fit(*cut(*chunks, data=data))
    return model, getattr(gpurbf, name)(**options).fit(*data)


def delayed_blocks(n_blocks, read, *arguments):
    """X, each block read by a function of its number, the block and the arguments; and y."""
    parts = enumerate(np.array_split(X, n_blocks))
    blocks = [dask.delayed(read, pure=False)(i, part, *arguments) for i, part in parts]
    return blocks, [dask.delayed(part) for part in np.array_split(y, n_blocks)]


def assert_same(model, local):
    """The models have the same attributes, to the bit."""
    assert type(model) is type(local)
    assert set(vars(model)) - {"_cache"} == set(vars(local)) - {"_cache"}
    for name, value in vars(local).items():
        if name not in ("_cache", "_selection"):
            np.testing.assert_equal(getattr(model, name), value, err_msg=name)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("chunks", [(N,), (500, 500, 797), (1, 96) + (50,) * 34])
def test_a_classifier_is_the_local_one_to_the_bit(client, chunks, weights):
    options = RBF | {"class_weight": None if weights is None else "balanced"}
    model, local = fitted("RBFClassifier", options, *chunks, data=(X, y, weights))
    assert_same(model.to_local(), local)
    np.testing.assert_array_equal(model.coef_, local.coef_)


@pytest.mark.parametrize("n_distinct", [100, 900])
def test_copies_of_unequal_weight_are_those_of_the_local_fit(client, n_distinct):
    """They round apart, and are left out together; with fewer than centers nothing is rounded."""
    rng = np.random.default_rng(0)
    rows = rng.integers(0, n_distinct, 1200)
    data = X[rows], y[rows], rng.choice([0.3, 1, 2.7], 1200)
    model, local = fitted("RBFClassifier", {"centers": X[:260]}, 500, 690, 10, data=data)
    if "float64" not in local.solver_info_:  # the sums of blocks round in their own order there
        return assert_same(model.to_local(), local)
    assert model.solver_info_ == local.solver_info_
    np.testing.assert_allclose(model.coef_, local.coef_, atol=1e-6)
    assert model.temperature_ == pytest.approx(local.temperature_)


def test_sums_that_were_rounded_too_much_are_made_again(client):
    A, labels = xor(0.001, 0.3)
    options = {"centers": GRID, "gamma": 1.0}
    model, local = fitted("RBFClassifier", options, 600, 600, 800, data=(A, labels))
    assert model.solver_info_ == local.solver_info_ and "float64" in local.solver_info_
    found, expected = model.to_local().decision_function(A), local.decision_function(A)
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["RBFClassifier", "SVC"])
def test_blocks_that_workers_have_are_taken_together(client, name):
    # Each row is in two blocks, and neighbours are on different workers.
    twice, workers = (np.vstack([X[:600]] * 2), np.tile(y[:600], 2)), list(client.nthreads())

    def scattered(data):
        parts = zip(np.array_split(data, 12), workers * 6)
        return [client.scatter(part, workers=[worker], hash=False) for part, worker in parts]

    blocks, labels = map(scattered, twice)
    recorder = Recorder()
    model = getattr(on_dask, name)(**OPTIONS[name])
    if hasattr(model, "set_callbacks"):
        model.set_callbacks(recorder)
    model.fit(blocks, labels)
    assert_same(model.to_local(), getattr(gpurbf, name)(**OPTIONS[name]).fit(*twice))
    assert recorder.ended.count("hidden layer") in (0, sum(client.nthreads().values()))


@pytest.mark.parametrize("kind", ["frame", "delayed"])
def test_data_frames_and_delayed_blocks_are_taken(client, kind):
    labels = np.array(["no", "yes"])[(y > 4).astype(int)]
    options = {"n_centers": 30, "centers": "stratified", "gamma": "median", "random_state": 0}
    if kind == "frame":
        pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
        data = pd.DataFrame(X / 16, columns=[f"pixel {i}" for i in range(64)])
        blocks = dd.from_pandas(data, npartitions=3)
        names = dd.from_pandas(pd.Series(labels), npartitions=3)
        # A part that a filter leaves empty.
        blocks = dd.concat([blocks, blocks[blocks["pixel 0"] > 2]])
        names = dd.concat([names, names[names == "maybe"]])
    else:
        data = X
        blocks, names = (client.map(np.array, np.array_split(part, 3)) for part in (X, labels))
    local = gpurbf.RBFLayer(**options).fit(data, labels)
    layer = on_dask.RBFLayer(**options).fit(blocks, names)
    assert_same(layer.to_local(), local)
    H = layer.transform(blocks)
    assert np.isnan(H.shape[0]) and H.shape[1:] == (30,)
    np.testing.assert_array_equal(H.compute(), local.transform(data))
    model = on_dask.RBFClassifier(30, random_state=0).fit(blocks, names)
    ours = gpurbf.RBFClassifier(30, random_state=0).fit(data, labels)
    np.testing.assert_array_equal(model.predict(blocks).compute(), ours.predict(data))
    assert model.score(blocks, names) == ours.score(data, labels)


@pytest.mark.parametrize("rule", ["random", "stratified"])
def test_centers_are_drawn_in_the_scan_as_they_are_locally(client, rule):
    # Blocks have other labels each, one only rows of weight zero, and rows are there twice.
    names = np.array(["zero", "one", "two", "three", "four"])
    order = np.argsort(y[:900] % 5, kind="stable")
    data, labels = np.vstack([X[order], X[:300]]), names[np.append(y[order], y[:300]) % 5]
    weights = np.append(np.ones(900), np.zeros(300))
    weights[200:290] = 0
    weights[1150:] = 2
    states = [np.random.RandomState(3) for _ in range(2)]
    model, local = (
        module.RBFClassifier(120, centers=rule, random_state=state)
        for module, state in zip((on_dask, gpurbf), states)
    )
    chunks = (200, 90, 310, 300, 250, 50)
    model.fit(*cut(*chunks, data=(data, labels, weights)))
    local.fit(data, labels, weights)
    for name in ("classes_", "centers_", "center_indices_", "gamma_"):
        np.testing.assert_array_equal(getattr(model, name), getattr(local, name))
    assert states[0].randint(1 << 30) == states[1].randint(1 << 30)


def test_centers_that_were_not_prefetched_are_asked_for(client):
    """All are in the first block, of which as many were expected as of the others."""
    data = np.vstack([X[:300]] * 5), np.tile(y[:300], 5)
    model, local = fitted("RBFClassifier", RBF, *[300] * 5, data=data)
    assert model.center_indices_.max() < 300
    assert_same(model.to_local(), local)


def counted(i, part, log):
    with open(log, "a") as file:
        file.write(f"{i} ")
    return part


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize(("name", "most"), [("RBFClassifier", 2), ("SVC", 2), ("RBFLayer", 1)])
def test_blocks_that_are_not_kept_are_read_in_few_passes(client, tmp_path, name, most, balanced):
    log, options = tmp_path / "log", OPTIONS[name]
    if balanced and name != "RBFLayer":
        # Samples of classes were counted; what weights are, for HᵀH, is one more look.
        options, most = options | {"class_weight": "balanced"}, most + (name != "SVC")
    getattr(on_dask, name)(**options).fit(*delayed_blocks(4, counted, str(log)))
    read = log.read_text().split()
    assert 0 < max(map(read.count, "0123")) <= most


def uneven(rng):
    # Some pairs of classes are beyond what is solved at once, others are not.
    return rng.integers(-9, 10, (4500, 6)), rng.choice(4, 4500, p=[0.55, 0.3, 0.1, 0.05])


def few_digits(rng):
    return X[:300], y[:300]


def digits_twice(rng):
    return np.vstack([X[:600], X[:40]]), np.append(y[:600], y[:40])


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
        (few_digits, {"class_weight": {0: 3.0}}),
        (digits_twice, {"C": 3.0}),
        (digits_twice, {"class_weight": "balanced"}),
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_svc_solves_a_pair_as_among_all_samples(client, make, options, weighted):
    rng = np.random.default_rng(0)
    data = make(rng)
    n = len(data[0])
    weights = rng.choice([0, 0.5, 1, 3], n) if weighted else None
    model, local = fitted("SVC", options, n // 2, n - n // 2, data=(*data, weights))
    assert_same(model.to_local(), local)


def test_svc_off_the_quantization_has_the_local_solution(client):
    Z = X[:500] / 7 + 0.1
    model, local = fitted("SVC", {"tol": 1e-6}, 100, 400, data=(Z, y[:500]))
    np.testing.assert_array_equal(model.support_, local.support_)
    new = model.decision_function(cut(250, 250, data=(Z,))[0]).compute()
    np.testing.assert_allclose(new, local.decision_function(Z), atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"radius": 20.0, "shuffle": False}])
@pytest.mark.parametrize("solver", ["ridge", "lms"])
def test_fsvc_has_the_local_centers(client, options, solver):
    options = options | {"solver": solver, "learning_rate": 0.01, "n_epochs": 2, "random_state": 0}
    model, local = fitted("FSVC", options, 300, 40, 300, data=digits_twice(None))
    for name in ("center_indices_", "radius_", "eval_radius_", "n_iter_", "n_samples_seen_"):
        np.testing.assert_array_equal(getattr(model, name), getattr(local, name))
    np.testing.assert_allclose(model.coef_, local.coef_, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("error::sklearn.exceptions.ConvergenceWarning")
def test_fsvc_makes_sums_that_float32_cannot_tell_apart_in_float64(client):
    Z = np.random.default_rng(0).standard_normal((1500, 2)).astype(np.float32)
    options = {"radius": 0.1, "selection": "pass", "eval_radius": 0.5, "shuffle": False}
    model, local = fitted("FSVC", options, 700, 800, data=(Z, np.sin(3 * Z[:, 0]) > Z[:, 1]))
    new = model.decision_function(cut(1500, data=(Z,))[0]).compute()
    np.testing.assert_allclose(new, local.decision_function(Z), atol=1e-6)


def test_fsvc_takes_blocks_of_a_row_each(client):
    """Parts of the drawn order have no rows then."""
    options = {"radius": 20.0, "random_state": 0}
    model, local = fitted("FSVC", options, *[1] * 12, data=(X[:12], y[:12]))
    np.testing.assert_array_equal(model.center_indices_, local.center_indices_)


def test_predictions_are_lazy_and_those_of_the_model(client):
    blocks, labels = cut(1000, 797)
    calls, rbf, fsvc = [], on_dask.RBFClassifier(50), on_dask.FSVC(20.0, shuffle=False)
    for model in (rbf, fsvc, on_dask.SVC(decision_function_shape="ovo")):
        with pytest.raises(NotFittedError):
            model.predict(blocks)
        local = model.fit(blocks, labels).to_local()
        seen = blocks.map_blocks(lambda part: calls.append(1) or part, dtype=np.uint8, meta=X[:0])
        for method in ("predict", "decision_function", "predict_proba"):
            if hasattr(local, method):
                lazy, here = getattr(model, method)(seen), getattr(local, method)(X)
                assert (lazy.shape, lazy.dtype) == (here.shape, here.dtype) and not calls
                np.testing.assert_array_equal(lazy.compute(), here)
                calls.clear()


def test_one_block_may_stand_alone_and_predicted_ones_may_be_sparse(client):
    model = on_dask.RBFClassifier(30, random_state=0).fit(dask.delayed(X), client.scatter(y))
    blocks, labels = delayed_blocks(3, lambda i, part: sp.csr_array(part))
    local = model.to_local()
    np.testing.assert_array_equal(model.predict(blocks).compute(), local.predict(X))
    assert model.score(blocks, labels) == local.score(X, y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.score(blocks[:1], [dask.delayed(y[:1])])
    with pytest.raises(ValueError, match="Mix of label input types"):
        model.score(blocks[:1], [dask.delayed(y[: len(X) // 3].astype(str))])
    with pytest.raises(TypeError, match=r"known chunks, and has 300 rows"):
        model.fit(dask.array.from_array(X[:300], chunks=(50, -1)), y[:299])
    with pytest.raises(ValueError, match=r"X has 300 rows, and y or sample_weight 299"):
        samples = dask.array.from_array(X[:300], chunks=(50, -1))
        model.fit(samples, dask.array.from_array(y[:299], chunks=50))


@pytest.mark.filterwarnings("error")
def test_a_prediction_does_not_warn_of_the_row_that_shows_its_shape(client):
    far, labels = cut(N, data=(X + 1000.0, y))
    model = on_dask.FSVC(20.0, kernel="triangular", eval_radius=None).fit(far, labels)
    assert model.predict(far).shape == (N,)


def test_a_prediction_holds_the_samples_that_workers_have(client):
    blocks, labels = cut(1000, 797)
    model = on_dask.SVC().fit(blocks, labels)
    lazy = model.predict(blocks.persist())  # which nobody else holds
    np.testing.assert_array_equal(lazy.compute(), model.to_local().predict(X))


def test_blocks_never_come_to_the_client(client, monkeypatch):
    came = []
    gather = distributed.Client._gather

    async def weighed(self, futures, *args, **kwargs):
        found = await gather(self, futures, *args, **kwargs)
        came.append(distributed.sizeof.sizeof(found))
        return found

    monkeypatch.setattr(distributed.Client, "_gather", weighed)
    blocks = [client.submit(np.tile, X, (1, 8), pure=False) for _ in range(20)]  # 18 MB
    labels = [client.submit(np.array, y, pure=False) for _ in range(20)]
    model = on_dask.RBFClassifier(64, random_state=0).fit(blocks, labels)
    # Centers, 2,000 rows for the temperature, 1,024 for the shift, some for the quantization; HᵀH;
    # hashes of distinct rows.
    assert 0 < sum(came) < (64 + 2000 + 1024 + 50) * 512 + 8 * 64 * 80 + 32 * N + 100_000
    came.clear()
    model.score(blocks, labels)
    assert sum(came) < 1000


def kill_once(i, part, log, after):
    """A block that ends its worker when so many have been read; once."""
    counted(i, part, log)
    if len(Path(log).read_text().split()) > after:
        with suppress(FileExistsError):
            Path(f"{log}.killed").touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
    return part


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL")
def test_a_worker_that_is_killed_costs_time_only(tmp_path):
    # Of three, two are killed: nothing waits for those that Dask starts in their place, which
    # Dask 2026.8 sometimes never does.
    with distributed.LocalCluster(n_workers=3, threads_per_worker=1, **QUIET) as cluster:
        with distributed.Client(cluster) as client:
            for name in ("RBFClassifier", "SVC"):
                log, options = str(tmp_path / name), OPTIONS[name]
                # Blocks are read by one pass before HᵀH, and before the classes come together.
                blocks = delayed_blocks(6, kill_once, log, 7)
                pids = set(client.run(os.getpid).values())
                model = getattr(on_dask, name)(**options, client=client).fit(*blocks)
                assert os.path.exists(f"{log}.killed")
                assert pids - set(client.run(os.getpid).values())
                assert_same(model.to_local(), getattr(gpurbf, name)(**options).fit(X, y))


def test_a_task_takes_one_thread_and_the_settings_of_its_caller(client):
    def look():
        return thread_limit(), get_config()["memory"]

    with config_context(memory=77):
        tasks = [Tasks(client, n_jobs) for n_jobs in (None, 1)]
    for one in tasks:
        assert one.results(one.each("look", look, [()])) == [(1, 77)]


@pytest.mark.parametrize(
    ("model", "name", "n_tasks", "shown"),
    [
        (on_dask.RBFClassifier(20, random_state=0), "hidden layer", 3, {"scan", "hidden-layer"}),
        (on_dask.SVC(), "3 vs 8", 1, {"pairs"}),
        (on_dask.FSVC(20.0), "centers", 1, {"rows"}),
    ],
)
def test_tasks_have_names_that_can_be_read_and_callbacks_hear_of_them(
    client, model, name, n_tasks, shown
):
    recorder = Recorder()
    if has_callbacks := hasattr(model, "set_callbacks"):  # scikit-learn has them from 1.9 on
        model.set_callbacks(recorder)
    model.fit(*cut(200, 300, 500, data=(X[:1000], y[:1000])))
    assert {f"gpurbf-{task}" for task in shown} <= set(client.cluster.scheduler.task_prefixes)
    assert recorder.ended.count(name) == n_tasks * has_callbacks


def test_a_grid_search_runs_on_the_cluster(client):
    grid = {"n_centers": [20, 40], "gamma": ["scale", 0.001]}

    def search():
        model = gpurbf.RBFClassifier(random_state=0)
        return GridSearchCV(model, grid, cv=3).fit(X[:600], y[:600])

    with joblib.parallel_backend("dask", client=client):
        there = search()
    there, here = (found.cv_results_["mean_test_score"] for found in (there, search()))
    np.testing.assert_array_equal(there, here)


def test_an_estimator_has_the_local_parameters_and_is_cloned_with_its_client(client):
    for name in on_dask.__all__:
        local, model = getattr(gpurbf, name)(), getattr(on_dask, name)(client=client)
        assert set(model.get_params()) == {*local.get_params(), "client"}
        assert clone(model).client is client
    model = on_dask.RBFClassifier(7).set_params(alpha=0.1)
    assert (model.n_centers, clone(model).alpha) == (7, 0.1)
    (A, b), weights = cut(N // 2, N - N // 2), da.zeros(N, chunks=N)
    model.fit(A, b)
    lazy, before = model.decision_function(A), model.model_
    model.set_params(precision="float64", backend="numpy", client=client)
    assert model.to_local().backend == "numpy" and before.backend == "auto"
    assert (lazy.dtype, model.decision_function(A).dtype) == (before.coef_.dtype, np.float64)
    with pytest.raises(ValueError, match="nonsense"):
        model.set_params(backend="nonsense").predict(A)
    with pytest.raises(ValueError, match="a weight > 0"):
        model.set_params(backend="auto").score(A, b, weights)
    with pytest.raises(TypeError, match="n_center"):
        on_dask.RBFClassifier(n_center=3)


ZEROS = [dask.delayed(np.zeros((5, n_features))) for n_features in (3, 4)]
ROWS = [dask.delayed(X[:9]), dask.delayed(X[9:18])]


class Named(on_dask.RBFClassifier):
    """Adds a parameter, and sets one that its constructor does not take."""

    def __init__(self, n_centers=20, name="", *, client=None):
        super().__init__(n_centers, random_state=0, client=client)
        self.name = name


def test_a_subclass_may_have_other_parameters(client):
    model = clone(Named(260, "mine")).fit(*cut(1000, 797))
    assert (model.name, set(model.get_params())) == ("mine", {"n_centers", "name", "client"})
    assert_same(model.to_local(), gpurbf.RBFClassifier(**RBF).fit(X, y))


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (on_dask.RBFClassifier(), (X, y), "use the estimators of gpurbf"),
        (on_dask.RBFClassifier(), (cut(N)[0], [y[:9], y[9:]]), r"got list of shape \(2,\): for y"),
        (on_dask.RBFClassifier(centers="kmeans"), cut(1000, 797), "see all samples in one place"),
        (on_dask.RBFClassifier("all"), cut(1000, 797), "n_centers='all' brings all samples"),
        (on_dask.RBFClassifier(solver="lms"), cut(1000, 797), "solver='lms' has to see"),
        (on_dask.SVC(kernel="precomputed"), cut(1000, 797), "needs the matrix"),
        (on_dask.FSVC("ratio"), cut(1000, 797), "radius='ratio'"),
        (on_dask.SVC(class_weight={3: 0}), cut(1000, 797), "class_weight of 3 must be > 0"),
        (on_dask.SVC(), (cut(N)[0], cut(N)[1] * 0), "only one class"),
        (on_dask.RBFClassifier(10), (cut(N)[0] * np.nan, cut(N)[1]), "contains NaN"),
        (on_dask.RBFClassifier(10), (cut(N)[0] * 1e200, cut(N)[1]), "column .* reaches"),
        (on_dask.RBFLayer(10), ([], None), "no blocks"),
        (on_dask.RBFLayer(), (ZEROS, None), "Blocks differ in n_features: 3 and 4"),
        (on_dask.RBFClassifier(), (ZEROS[:1], ZEROS), "1 blocks, y and sample_weight 2"),
        (on_dask.SVC(), (cut(N)[0], None), "SVC needs labels"),
        (on_dask.SVC(), (cut(N)[0].reshape(N, 8, 8), cut(N)[1]), "X must have two dimensions"),
        (on_dask.SVC(), ([*ROWS], [*map(dask.delayed, (y[:9], y[9:18].astype(str)))]), "one type"),
        (on_dask.SVC(), ([*ROWS], [dask.delayed(np.array([0] * 8 + ["a"], object))] * 2), "one ty"),
    ],
)
def test_bad_input_is_refused_as_it_is_locally(client, model, data, message):
    with pytest.raises((ValueError, TypeError), match=message):
        model.fit(*data)
    assert not hasattr(model, "model_")


def test_more_classes_than_twenty_are_no_reason_to_warn(client):
    with warnings.catch_warnings(action="error"):
        on_dask.FSVC(1.0).fit(cut(N)[0], np.arange(N) % 30)


@pytest.mark.parametrize(
    ("state", "asynchronous", "message"), [("closed", False, "closed"), ("running", True, "asyn")]
)
def test_a_client_that_cannot_wait_is_refused(state, asynchronous, message):
    client = SimpleNamespace(status=state, asynchronous=asynchronous)
    with pytest.raises(ValueError, match=f"Dask client is {message}"):
        on_dask.RBFLayer(client=client).fit(cut(N)[0])


def test_without_a_client_the_error_says_what_to_do(monkeypatch):
    def nobody():
        raise ValueError("No clients found")

    monkeypatch.setattr(distributed, "get_client", nobody)
    with pytest.raises(ValueError, match="There is no Dask client"):
        on_dask.RBFLayer().fit(cut(N)[0])


@pytest.mark.parametrize("name", ["RBFClassifier", "SVC"])
def test_a_client_that_is_given_need_not_be_the_default_one(client, name, monkeypatch):
    def nobody():
        raise ValueError("No clients found")

    monkeypatch.setattr(distributed.client, "default_client", nobody)
    model = getattr(on_dask, name)(**OPTIONS[name], client=client).fit(*cut(900, 897))
    assert_same(model.to_local(), getattr(gpurbf, name)(**OPTIONS[name]).fit(X, y))


@pytest.mark.parametrize("model", [gpurbf.SVC(), gpurbf.FSVC(0.4), gpurbf.RBFLayer(20)])
def test_dask_tells_models_that_were_fitted_to_other_data_apart(model):
    """Dask calls results by their inputs: two models by one name would share their answers.

    It looks at the fields of dataclasses alone, which is why estimators are none.
    """
    X, y = load_iris(return_X_y=True)
    one, other = clone(model).fit(X, y), clone(model).fit(X[20:], y[20:])
    assert dask.base.tokenize(one) != dask.base.tokenize(other)
