"""First predicts from many threads at once, of one model each time, are those of a serial run.

What is made at first use (a backend, its operand, compiled kernels, the pool of threads) is made
here for eight threads at once. ``GPURBF_FIRST_USES`` says of how many models, by default of 24.
"""

import os
import pickle
import sys
from functools import partial

import numpy as np
import pytest
from callers import answers, run_python, run_threads
from sklearn.datasets import load_digits

from gpurbf import FSVC, SVC, RBFClassifier, RBFLayer

pytestmark = pytest.mark.filterwarnings("ignore:.*outside the radius of every center:UserWarning")
MODELS = int(os.environ.get("GPURBF_FIRST_USES", "24"))

X, y = load_digits(return_X_y=True)
SCALES = {
    "uint8": lambda rows: rows.astype(np.uint8),
    "float32": lambda rows: (rows / 16).astype(np.float32),
    "float64": lambda rows: rows / 16,
    "offset": lambda rows: rows + 1000.1,
    "irrational": lambda rows: rows / np.pi,
}
FORMS = {form: scale(X[:200]) for form, scale in SCALES.items()}
ESTIMATORS = {
    "rbf": RBFClassifier(60, random_state=0),
    "svc": SVC(),
    "layer": RBFLayer(60, random_state=0),
    "fsvc": FSVC("ratio", solver="one-hot", random_state=0),
}


def bits(model, rows):
    """Its answers by method, as types and bytes."""
    return {name: (found.dtype, found.tobytes()) for name, found in answers(model, rows).items()}


@pytest.fixture(scope="module")
def pickles():
    """Fitted models without what their first use makes, by estimator and form of training data."""
    return {
        (name, form): pickle.dumps(estimator.fit(SCALES[form](X[200:900]), y[200:900]))
        for name, estimator in ESTIMATORS.items()
        for form in ("uint8", "float32", "offset")
    }


@pytest.fixture(scope="module")
def serial(pickles):
    """The answers of a model that is used for one form of data only, by one thread."""
    return {
        (key, form): bits(pickle.loads(state), rows)
        for key, state in pickles.items()
        for form, rows in FORMS.items()
    }


@pytest.mark.parametrize("interval", [None, 1e-5], ids=["usual switches", "frequent switches"])
def test_first_predicts_from_many_threads_have_the_bits_of_a_serial_run(pickles, serial, interval):
    usual = sys.getswitchinterval()
    try:
        sys.setswitchinterval(interval or usual)
        for number in range(MODELS):
            key = list(pickles)[number % len(pickles)]
            model = pickle.loads(pickles[key])
            forms = [list(FORMS)[(number + i) % len(FORMS)] for i in range(8)]
            found = run_threads(*(partial(bits, model, FORMS[form]) for form in forms))
            assert not [form for form, a in zip(forms, found) if a != serial[key, form]], key
    finally:
        sys.setswitchinterval(usual)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_first_use_adds_no_attribute_and_nothing_to_a_pickle(pickles, name):
    """scikit-learn looks at all attributes when it asks whether a model is fitted."""
    model = pickle.loads(pickles[name, "uint8"])
    before = list(vars(model)), len(pickle.dumps(model))
    answers(model, FORMS["uint8"])
    assert (list(vars(model)), len(pickle.dumps(model))) == before


@pytest.mark.parametrize("key", [("rbf", "uint8"), ("svc", "float32"), ("rbf", "offset")], ids=str)
def test_the_first_use_of_a_process_may_be_by_many_threads(pickles, serial, tmp_path, key):
    """Libraries are imported, backends loaded and kernels made by eight threads at once."""
    cases = [(rows, serial[key, form]) for form, rows in FORMS.items()]
    content = pickles[key], (cases * 2)[:8]
    (tmp_path / "content.pickle").write_bytes(pickle.dumps(content))
    code = """
        import pickle, sys, threading
        from concurrent.futures import ThreadPoolExecutor
        sys.setswitchinterval(1e-5)
        state, cases = pickle.load(open("content.pickle", "rb"))
        together = threading.Barrier(8)

        def first(case):
            together.wait()
            model, (X, answers) = pickle.loads(state), case
            for name, (_, answer) in answers.items():
                assert getattr(model, name)(X).tobytes() == answer

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(first, cases))
    """
    run_python(code, cwd=tmp_path)
