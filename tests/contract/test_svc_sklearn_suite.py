"""scikit-learn's own tests of SVC, as installed, with our class in place of theirs."""

import inspect
import types
import warnings
from pathlib import Path

import pytest
import sklearn
import sklearn.svm
import sklearn.svm.tests

from gpurbf import SVC

if tuple(map(int, sklearn.__version__.split(".")[:2])) < (1, 9):
    pytest.skip(
        f"scikit-learn {sklearn.__version__}: its tests of SVC are full of `probability`, and the "
        "list of those that do not apply is for 1.9 and later",
        allow_module_level=True,
    )

pytestmark = [
    # Their tests have filters of their own; ours turn every warning into an error.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

OTHERS = "tests another class"
PROBABILITY = "SVC has no `probability`, see docs/svc.md"
REPEATED = (
    "iris holds a sample twice; equal samples become one before the solver runs, except where only "
    "kernel values are given, so the two solutions agree to tol, not to 6 digits"
)
NOT_APPLICABLE = {
    "test_svm": {
        "test_svr": OTHERS,
        "test_linearsvr": OTHERS,
        "test_linearsvr_fit_sampleweight": OTHERS,
        "test_svr_errors": OTHERS,
        "test_oneclass": OTHERS,
        "test_oneclass_decision_function": OTHERS,
        "test_oneclass_score_samples": OTHERS,
        "test_svr_predict": OTHERS,
        "test_svm_regressor_sided_sample_weight": OTHERS,
        "test_linearsvc_parameters": OTHERS,
        "test_linearsvc": OTHERS,
        "test_linearsvc_crammer_singer": OTHERS,
        "test_linearsvc_fit_sampleweight": OTHERS,
        "test_crammer_singer_binary": OTHERS,
        "test_linearsvc_iris": OTHERS,
        "test_dense_liblinear_intercept_handling": OTHERS,
        "test_liblinear_set_coef": OTHERS,
        "test_linearsvc_verbose": OTHERS,
        "test_linear_svm_convergence_warnings": OTHERS,
        "test_svr_coef_sign": OTHERS,
        "test_lsvc_intercept_scaling_zero": OTHERS,
        "test_linearsvm_liblinear_sample_weight": OTHERS,
        "test_n_support": OTHERS,
        "test_dual_auto": OTHERS,
        "test_dual_auto_edge_cases": OTHERS,
        "test_probability": PROBABILITY,
        "test_hasattr_predict_proba": PROBABILITY,
        "test_probability_raises_futurewarning": PROBABILITY,
        "test_svc_nusvc_probA_probB_deprecated": PROBABILITY,
        "test_precomputed": REPEATED,
        "test_svc_clone_with_callable_kernel": REPEATED,
    },
    "test_sparse": {
        "test_linearsvc": OTHERS,
        "test_linearsvc_iris": OTHERS,
        "test_sparse_liblinear_intercept_handling": OTHERS,
        "test_sparse_oneclasssvm": OTHERS,
        "test_unsorted_indices": PROBABILITY,
        "test_sparse_svc_clone_with_callable_kernel": PROBABILITY,
    },
}
LINES_LEFT_OUT = (
    # A mark that is not registered here.
    "@pytest.mark.thread_unsafe\n",
    # Used by a test of another class only.
    "from sklearn.svm.tests import test_svm\n",
    # What test_sparse.test_svc asks for beside what it tests.
    "        probability=True,\n",
)


def substituted(name):
    """A copy of a scikit-learn test module in which `svm.SVC` is ours."""
    path = Path(sklearn.svm.tests.__file__).with_name(f"{name}.py")
    source = path.read_text(encoding="utf-8")
    for line in LINES_LEFT_OUT:
        source = source.replace(line, "")
    module = types.ModuleType(f"sklearn.svm.tests.{name}")
    module.__file__ = str(path)
    original = sklearn.svm.SVC
    # Parametrized lists are made while the module runs; later it looks into its own `svm`.
    sklearn.svm.SVC = SVC
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(source, str(path), "exec"), module.__dict__)
    finally:
        sklearn.svm.SVC = original
    module.svm = types.SimpleNamespace(**vars(sklearn.svm) | {"SVC": SVC})
    return module


MODULES = {name: substituted(name) for name in NOT_APPLICABLE}
for _name, _module in MODULES.items():
    for _test, _function in vars(_module).items():
        if _test.startswith("test_") and inspect.isfunction(_function):
            if _test not in NOT_APPLICABLE[_name]:
                globals()[f"{_test}__of_{_name}"] = _function


@pytest.fixture
def global_random_seed():
    """scikit-learn's own default seed."""
    return 42


@pytest.mark.parametrize("name", MODULES)
def test_every_test_that_is_left_out_exists(name):
    assert not [test for test in NOT_APPLICABLE[name] if not hasattr(MODULES[name], test)]
