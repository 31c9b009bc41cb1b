"""scikit-learn's own tests of SVC, as installed, with our class in place of theirs."""

import inspect
import re
import types
import warnings
from pathlib import Path

import pytest
import sklearn.svm
import sklearn.svm.tests

from gpurbf import SVC

pytest.importorskip(
    "sklearn", "1.9", reason="its tests of SVC are full of `probability`; others do not apply"
)
# Their tests have filters of their own; ours turn every warning into an error.
pytestmark = pytest.mark.filterwarnings(
    "default", "ignore::sklearn.exceptions.ConvergenceWarning", "ignore::FutureWarning"
)

OTHERS = "tests another class"
REPEATED = (
    "iris holds a sample twice; equal samples become one before the solver runs, except where only "
    "kernel values are given, so the two solutions agree to tol, not to 6 digits"
)
NOT_APPLICABLE = {
    "test_svm": {
        "test_svr": OTHERS,
        "test_precomputed": REPEATED,
        "test_svc_clone_with_callable_kernel": REPEATED,
    },
    "test_sparse": {},
}
LINES_LEFT_OUT = (
    # A mark that is not registered here.
    "@pytest.mark.thread_unsafe\n",
    # Used by a test of another class only.
    "from sklearn.svm.tests import test_svm\n",
)


def substituted(name):
    """A copy of a scikit-learn test module in which `svm.SVC` is ours."""
    path = Path(sklearn.svm.tests.__file__).with_name(f"{name}.py")
    source = path.read_text(encoding="utf-8")
    for line in LINES_LEFT_OUT:
        source = source.replace(line, "\n")
    module = types.ModuleType(f"sklearn.svm.tests.{name}")
    module.__file__ = str(path)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        # Parametrized lists are made while the module runs; later it looks into its own `svm`.
        patch.setattr(sklearn.svm, "SVC", SVC)
        warnings.simplefilter("ignore")
        exec(compile(source, str(path), "exec"), module.__dict__)
    module.svm = types.SimpleNamespace(**vars(sklearn.svm) | {"SVC": SVC})
    return module


MODULES = {name: substituted(name) for name in NOT_APPLICABLE}
for _name, _module in MODULES.items():
    for _test, _function in vars(_module).items():
        # Those whose text, decorators included, does not name SVC test other classes.
        named = _test.startswith("test_") and re.search(r"\bSVC\b", inspect.getsource(_function))
        if named and _test not in NOT_APPLICABLE[_name]:
            globals()[f"{_test}__of_{_name}"] = _function


@pytest.fixture
def global_random_seed():
    """scikit-learn's own default seed."""
    return 42


@pytest.mark.parametrize("name", MODULES)
def test_every_test_that_is_left_out_exists(name):
    assert not [test for test in NOT_APPLICABLE[name] if not hasattr(MODULES[name], test)]
