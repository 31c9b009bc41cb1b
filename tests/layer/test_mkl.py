"""MKL after a fork: the child has none of its parent's threads and must not wait for them."""

import pytest
from callers import forks, run_python

from gpurbf import BackendUnavailable
from gpurbf.layer.backends import get_backend


@forks
def test_a_forked_child_computes_with_every_product():
    try:
        get_backend("mkl")
    except BackendUnavailable as error:
        pytest.skip(f"backend mkl: {error}")
    code = """
        from concurrent.futures import ThreadPoolExecutor
        import numpy as np
        import threadpoolctl
        from callers import exit_code_of_a_child
        from sklearn.datasets import load_digits
        from gpurbf import SVC, RBFClassifier
        from gpurbf.layer.backends.blas import mkl
        from gpurbf.runtime import threads

        X, y = load_digits(return_X_y=True)
        X = (16 * X[:, :60]).astype(np.uint8)

        def everything():
            found = []
            for dtype in (np.float32, np.float64):
                A, B = (np.tile(part, (2, 4)).astype(dtype) for part in (X, X[:900]))
                out = np.zeros((len(A), len(B)), dtype)
                mkl.products(np.dtype(dtype), A.shape[1], False).multiply(A, B, out)
                found.append(out.sum(dtype=np.float64))
            models = SVC(backend="mkl"), RBFClassifier(200, backend="mkl", random_state=0)
            for data in (X, X / 7.0, (X / 7.0).astype(np.float32)):
                for model in models:
                    found.append(model.fit(data, y).decision_function(data).sum())
            found.append(fitted.decision_function(X).sum())
            return found

        fitted = SVC(backend="mkl").fit(X, y)
        with threadpoolctl.threadpool_limits(1):  # leaves a number of this thread in MKL
            pass
        limit, here = threads.thread_limit(), everything()

        def same():
            with ThreadPoolExecutor(1) as pool:
                other = pool.submit(everything)
                found = everything(), other.result()
            return np.allclose(found, [here, here], rtol=1e-6) and threads.thread_limit() == limit

        raise SystemExit(exit_code_of_a_child(same))
    """
    run_python(code)
