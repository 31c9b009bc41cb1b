"""A patched script gets the answers that it got, and what is not ours is left to scikit-learn.

The answers are the same, labels and outputs; what is left is said.
"""

import copy
import logging
import pickle
import sys

import numpy as np
import pytest
import scipy.sparse as sp
import sklearn.svm
from callers import run_python
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.metrics.pairwise import laplacian_kernel
from sklearn.model_selection import GridSearchCV
from sklearn.utils._param_validation import InvalidParameterError

import gpurbf
from gpurbf import SVC, patching
from gpurbf.cli import main

ORIGINAL = sklearn.svm.SVC
OWN = {"_evaluator", "_effective_probability"}  # the second is scikit-learn's from 1.9 on
DIGITS, LABELS = load_digits(return_X_y=True)
X, Y, X_TEST = DIGITS[:500] / 16, LABELS[:500], DIGITS[1000:] / 16


@pytest.fixture
def patched(monkeypatch):
    monkeypatch.setattr(patching, "_logged", False)
    gpurbf.patch_sklearn()
    yield sklearn.svm.SVC
    gpurbf.unpatch_sklearn()
    assert sklearn.svm.SVC is sklearn.svm._classes.SVC is ORIGINAL


@pytest.fixture
def ours_only(monkeypatch):
    """scikit-learn's own fit and evaluation fail."""

    def refuse(*_):
        raise AssertionError("left to scikit-learn")

    for name in ("fit", "predict", "decision_function"):
        monkeypatch.setattr(ORIGINAL, name, refuse)


def test_names_give_the_new_class_which_is_one_of_scikit_learns_and_checks_as_it_does(patched):
    assert sklearn.svm.SVC is patched is not ORIGINAL
    assert issubclass(patched, ORIGINAL) and isinstance(patched(), sklearn.svm.SVC)
    assert patched().get_params() == ORIGINAL().get_params()
    assert repr(patched(C=2)) == repr(ORIGINAL(C=2)) == "SVC(C=2)"
    for bad in ({"C": -1}, {"kernel": "laplacian"}, {"gamma": "wide"}):
        with pytest.raises(InvalidParameterError):
            patched(**bad).fit(X, Y)
    with pytest.raises(NotFittedError):
        patched().predict(X)


@pytest.mark.parametrize("weights", [None, np.ones(len(Y))], ids=["", "weighted"])
@pytest.mark.parametrize("labels", [float, object])
def test_labels_that_are_missing_are_the_error(patched, labels, weights):
    y = Y.astype(str).astype(labels)
    y[3] = np.nan
    with pytest.raises(ValueError, match="contains NaN"):
        patched(class_weight="balanced").fit(X, y, weights)


def test_a_class_that_replaced_scikit_learns_before_is_replaced_and_comes_back():
    """scikit-learn-intelex's became the base class, which kept support vectors in its own way."""
    code = """
import sklearn.svm
class Other(sklearn.svm.SVC):
    support_vectors_ = property(lambda self: self._kept)
theirs, sklearn.svm.SVC = sklearn.svm.SVC, Other
import gpurbf
for _ in range(2):
    gpurbf.patch_sklearn()
model = sklearn.svm.SVC().fit([[0.0], [1.0]], [3, 4])
gpurbf.unpatch_sklearn()
print(type(model).__bases__ == (theirs,), model.predict([[0.1]]), sklearn.svm.SVC is Other)
"""
    assert run_python(code).stdout == "True [3] True\n"


def test_a_class_that_replaced_ours_since_stays(patched, monkeypatch):
    other = type("Other", (ORIGINAL,), {})
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(sklearn.svm, "SVC", other)
        gpurbf.unpatch_sklearn()
        assert sklearn.svm.SVC is other


@pytest.mark.parametrize("make", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    "parameters",
    [
        {"C": 3.0},
        {"kernel": "poly", "degree": 2},
        {"kernel": lambda a, b: np.asarray((a @ b.T).todense() if sp.issparse(a) else a @ b.T)},
        {"class_weight": "balanced"},
    ],
)
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize("labels", [int, str])  # of class_weight, too, which may be digits in text
def test_answers_and_attributes_are_scikit_learns(patched, make, parameters, weighted, labels):
    weights = np.random.default_rng(0).uniform(0.5, 2, len(Y)) if weighted else None
    given = make(X), Y.astype(labels), weights
    models = [c(**parameters, tol=1e-6).fit(*given) for c in (patched, ORIGINAL)]
    assert np.array_equal(*(model.predict(make(X)) for model in models))
    for model in models:
        model.set_params(decision_function_shape="ovo")
    outputs = [model.decision_function(make(X)) for model in models]
    np.testing.assert_allclose(*outputs, rtol=0, atol=1e-4)
    np.testing.assert_array_equal(models[0].classes_, models[1].classes_)
    np.testing.assert_allclose(models[0].class_weight_, models[1].class_weight_)
    for made in (models[0], SVC(**parameters).fit(*given).to_sklearn()):
        assert vars(made).keys() - OWN == vars(models[1]).keys() - OWN
        for name, value in vars(models[1]).items():
            twin = getattr(made, name)
            assert isinstance(value, type(twin)), name
            if isinstance(value, np.ndarray):
                assert twin.dtype == value.dtype and twin.ndim == value.ndim, name
                assert twin.flags.c_contiguous, name


@pytest.mark.filterwarnings("ignore:The `prob:FutureWarning")
@pytest.mark.parametrize("probability", [False, True])
def test_a_program_that_draws_numbers_goes_on_with_those_that_it_had(patched, probability):
    drawn = []
    for make in (ORIGINAL, patched):
        state = np.random.RandomState(5)
        make(probability=probability, random_state=state).fit(X[:200], Y[:200])
        drawn.append(state.randint(2**31))
    assert drawn[0] == drawn[1]


def test_weights_do_not_change_gamma_whatever_the_data_are(patched):
    """Squares of small integers are beyond their dtype, and rows of one number are refused."""
    for A in (X, sp.csr_matrix((10 * X).astype(np.uint8)), sp.coo_array(X + 100)):
        plain, weighted = (patched().fit(A, Y, weights) for weights in (None, np.ones(len(Y))))
        assert weighted._gamma == plain._gamma
        assert np.array_equal(weighted.decision_function(A), plain.decision_function(A))
    with pytest.raises(ValueError, match="Expected 2D array"):
        patched().fit(X[:, 0], Y, np.ones(len(Y)))


@pytest.mark.filterwarnings("ignore:The `prob:FutureWarning")
@pytest.mark.parametrize(
    ("make", "kernel"),
    [(np.asarray, "rbf"), (sp.csr_matrix, "rbf"), (np.asarray, laplacian_kernel)],
    ids=["dense", "sparse", "function"],
)
def test_fit_outputs_labels_and_probabilities_are_ours(patched, ours_only, make, kernel):
    parameters = {"kernel": kernel, "probability": True, "random_state": 0}
    model, own = (cls(**parameters).fit(make(X), Y) for cls in (patched, SVC))
    found = model.predict_proba(make(X))
    assert np.array_equal(found, own.predict_proba(make(X)))
    np.testing.assert_allclose(own.to_sklearn().predict_proba(make(X)), found, atol=2e-3)
    np.testing.assert_allclose(model.predict_log_proba(make(X)), np.log(found))
    assert model.decision_function(make(X)).shape == (500, 10)
    model.set_params(probability=False, decision_function_shape="ovo")
    assert model.decision_function(make(X)).shape == (500, 45)
    assert not hasattr(model, "predict_proba")
    for each in (model, pickle.loads(pickle.dumps(model))):
        assert each.score(make(X), Y) > 0.95


@pytest.mark.parametrize("left_out", [0, 4, 9])
def test_classes_without_weight_are_left_to_scikit_learn_and_logged_once(patched, caplog, left_out):
    with caplog.at_level(logging.WARNING, "gpurbf"):
        model = patched().fit(X, Y, Y != left_out).fit(X, Y, Y != left_out)
    (record,) = caplog.records
    assert "sample weights of 0 or below" in record.message
    np.testing.assert_array_equal(model.predict(X), ORIGINAL.predict(model, X))
    with pytest.raises(ValueError, match="names 10 classes and was trained for 9"):
        SVC.from_sklearn(model)


def test_a_changed_or_refitted_model_answers_as_it_is(patched):
    model = patched().fit(X, Y)
    outputs = model.decision_function(X)
    model.intercept_ = model.intercept_ + 1  # which only tells of it, as in scikit-learn
    assert np.array_equal(model.decision_function(X), outputs)
    model._intercept_ = model._intercept_ + 1
    assert not np.allclose(model.decision_function(X), outputs)
    model.classes_ = model.classes_ + 10
    assert model.predict(X).min() >= 10
    assert set(model.fit(X, Y == 3).predict(X)) == {False, True}
    copied = copy.deepcopy(model)
    assert np.array_equal(copied.predict(X), model.predict(X))


def test_a_fit_that_ends_while_a_loaded_model_is_prepared_is_what_answers_next(
    patched, monkeypatch
):
    model, other = patched().fit(X, Y), patched().fit(X, Y % 2)
    before, convert = model.decision_function(X_TEST), SVC.from_sklearn
    model = pickle.loads(pickle.dumps(model))  # it has no evaluator

    def slowly(fitted):
        made = convert(fitted)
        model.fit(X, Y % 2)  # as another thread may
        return made

    monkeypatch.setattr(SVC, "from_sklearn", slowly)
    np.testing.assert_array_equal(model.decision_function(X_TEST), before)
    found, expected = model.decision_function(X_TEST), other.decision_function(X_TEST)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.filterwarnings("error")
def test_a_refused_fit_leaves_the_model_as_it_was(patched):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X).rename(columns="p{}".format)
    model = patched().fit(frame, Y)
    expected = vars(model).copy()
    for labels, C in ((Y[:10], 1.0), (np.zeros(len(X)), 1.0), (Y, -1.0)):
        with pytest.raises(ValueError, match=r"inconsistent|number of classes|'C' parameter"):
            model.set_params(C=C).fit(frame, labels)
    assert model.set_params(C=1.0) and vars(model) == expected
    model.predict(frame)


def test_clones_grids_and_pickles_work_in_other_processes(patched, tmp_path):
    grid = {"C": [0.1, 10], "gamma": [0.01, 0.1]}
    models = clone(patched()), SVC(), ORIGINAL()
    searches = [GridSearchCV(model, grid, cv=3, n_jobs=2).fit(X, Y) for model in models]
    scores = [each.cv_results_["mean_test_score"] for each in searches]
    np.testing.assert_allclose(scores, scores[2:] * 3, rtol=0, atol=0.005)
    assert type(searches[0].best_estimator_) is patched
    (tmp_path / "model").write_bytes(pickle.dumps(searches[0].best_estimator_))
    code = "import pickle; print(type(pickle.load(open('model', 'rb'))).__module__)"
    assert run_python(code, cwd=tmp_path).stdout == "gpurbf.patching\n"


def test_pickles_and_conversions_know_models_of_both_classes(patched):
    plain, model = ORIGINAL().fit(X, Y), patched().fit(X, Y)
    for each in (plain, SVC.from_sklearn(model).to_sklearn(), SVC().fit(X, Y).to_sklearn()):
        again = pickle.loads(pickle.dumps(each))
        assert type(each) is type(again) is ORIGINAL
        np.testing.assert_array_equal(again.predict(X), model.predict(X))
    for each in (plain, model):
        assert np.array_equal(SVC.from_sklearn(each).predict(X), each.predict(X))


def test_a_script_runs_with_its_arguments_and_status(capsys, monkeypatch, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nimport beside\nfrom sklearn.svm import SVC\n"
        "print(SVC.__module__, __name__, sys.argv[1:], beside.X, __file__)\nsys.exit(3)\n",
        encoding="utf-8",
    )
    (tmp_path / "beside.py").write_text("X = 5\n", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("__main__", "__mp_main__"):
        monkeypatch.setitem(sys.modules, name, sys.modules["__main__"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "__main__.py").write_text(script.read_text("utf-8"), "utf-8")
    main_of_folder = tmp_path / "__main__.py"
    called = [(["-m", "script"], script), (["script.py"], script), (["."], main_of_folder)]
    for arguments, file in (*called, (["--", "script.py"], script)):
        with pytest.raises(SystemExit) as stop:
            main(["run", *arguments, "--", "--a", "b"])
        assert stop.value.code == 3
        said = f"gpurbf.patching __main__ ['--', '--a', 'b'] 5 {file}\n"
        assert capsys.readouterr().out == said
        gpurbf.unpatch_sklearn()


def test_a_script_keeps_its_names_until_the_process_ends(tmp_path):
    (tmp_path / "script.py").write_text(
        "import atexit, pickle, sys\nclass A: pass\n"
        "atexit.register(lambda: print(type(pickle.loads(pickle.dumps(A()))), sys.argv))\n"
        "sys.exit(0)\n",
        encoding="utf-8",
    )
    code = "import sys; from gpurbf.cli import main; main(['run', 'script.py', '-a'])"
    done = run_python(code, cwd=tmp_path)
    assert done.stdout == "<class '__main__.A'> ['script.py', '-a']\n"


def test_a_spawned_process_may_return_an_object_of_a_class_of_the_script(tmp_path):
    (tmp_path / "script.py").write_text(
        "import multiprocessing\nfrom concurrent.futures import ProcessPoolExecutor\n"
        "class A: pass\nif __name__ == '__main__':\n"
        "    spawn = multiprocessing.get_context('spawn')\n"
        "    with ProcessPoolExecutor(1, spawn) as pool: print(type(pool.submit(A).result()))\n",
        encoding="utf-8",
    )
    code = "from gpurbf.cli import main; main(['run', 'script.py'])"
    assert run_python(code, cwd=tmp_path).stdout == "<class '__main__.A'>\n"


def test_a_script_that_is_not_there_is_one_line(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    assert main(["run", "no-such-script.py"]) == 2
    assert capsys.readouterr().err == "gpurbf run: no file no-such-script.py.\n"
    assert main(["run", "-m", "no_such_module.part"]) == 2
    assert capsys.readouterr().err == "gpurbf run: no module no_such_module.part.\n"
    for name in ("email.no_such_part", "email.mime", "email.mime.text.part"):
        assert main(["run", "-m", name]) == 2
        gpurbf.unpatch_sklearn()
        assert capsys.readouterr().err.startswith(f"gpurbf run: no module {name}, or a package wi")
    (tmp_path / "no_such_more").mkdir()
    (tmp_path / "no_such_more" / "__init__.py").write_text("import no_such")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such'"):
        main(["run", "-m", "no_such_more"])
    gpurbf.unpatch_sklearn()
